"""Columns of bytes in Arrow, Parquet and Lance: binary ones, and the files that `datasets` embeds."""

import numpy as np
import pytest
from kinds import has, refused_as

from iobench import formats
from iobench.formats import VARIES, Field, Schema
from iobench.formats.array_schema import with_selection

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

FILE = pa.struct({"bytes": pa.binary(), "path": pa.string()})
STORED = [bytes([row]) * (3 * row % 7 + row // 4) for row in range(11)]  # the first empty


def write_arrow(path, table):
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=4)


def write_stream(path, table):
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=4)


def write_parquet(path, table):
    pq.write_table(table, path, row_group_size=4)


def write_lance(path, table):
    pytest.importorskip("lance").write_dataset(table, str(path))


WRITERS = {"arrow": write_arrow, "stream": write_stream, "parquet": write_parquet, "lance": write_lance}


def written(path, writer, table):
    """Write a table; return its format and its place."""
    form = formats.get("arrow" if writer == "stream" else writer)
    WRITERS[writer](path / f"x.{form.name}", table)
    return form, path / f"x.{form.name}"


def column(kind, stored):
    """Return a column of bytes, as they are or with paths."""
    one_path = {"bytes": None, "path": "cat/1.jpg"}
    values = [{**one_path, "bytes": one} for one in stored] if pa.types.is_struct(kind) else stored
    return pa.array(values, kind)


def as_bytes(ragged):
    return [part.tobytes() for part in np.split(ragged.values, ragged.offsets[1:-1])]


@pytest.mark.parametrize("kind", [FILE, pa.binary(), pa.large_binary()], ids=str)
@pytest.mark.parametrize("writer", WRITERS)
def test_bytes_are_a_ragged_field(tmp_path, writer, kind):
    form, path = written(tmp_path, writer, pa.table({"image": column(kind, STORED), "label": range(11)}))
    schema = form.infer_schema(path)
    fields = (Field("image", (VARIES,), "uint8"), Field("label", (), "int64"))
    assert schema == Schema(11, fields, totals={"image": sum(map(len, STORED))})
    (note,) = form.notes(path, schema)
    assert (note.kind, note.values) == ("encoded-bytes", {"fields": "image"})
    if writer != "lance":
        assert not form.notes(path, form.infer_schema(with_selection(path, ["label"])))
    with form.open(path, schema) as reader:
        for rows in (np.array([10, 0, 7, 7]), np.arange(2, 9), np.arange(11)):
            assert as_bytes(reader.batch(rows)["image"]) == [STORED[row] for row in rows]
        assert as_bytes(reader.batch(slice(2, 9))["image"]) == STORED[2:9]
        assert as_bytes(reader.native(slice(2, 9))["image"]) == STORED[2:9]
        assert reader.sample(6)["image"].tobytes() == STORED[6]


@pytest.mark.parametrize("writer", WRITERS)
def test_bytes_of_one_length_are_ragged_too_unless_a_field_says_otherwise(tmp_path, writer):
    form, path = written(tmp_path, writer, pa.table({"image": column(FILE, [b"abc", b"def"])}))
    schema = form.infer_schema(path)
    assert schema.fields == (Field("image", (VARIES,), "uint8"),)
    with form.open(path, Schema(2, (Field("image", (3,), "uint8"),))) as reader:
        assert reader.batch(slice(None))["image"].tolist() == [[97, 98, 99], [100, 101, 102]]


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize(
    ("missing", "found"),
    [({"bytes": None, "path": "cat/b.jpg"}, "the path cat/b.jpg alone"), (None, "a null")],
    ids=["path", "null"],
)
def test_a_sample_without_bytes_is_named(tmp_path, writer, missing, found):
    files = [{"bytes": b"abc", "path": "a.jpg"}] * 6 + [missing, missing]
    form, path = written(tmp_path, writer, pa.table({"image": pa.array(files, FILE)}))
    with refused_as("nulls", path=path, found=found, problem=has("sample 6")):
        form.infer_schema(path)
    with refused_as("nulls"), form.open(path, schema_of(8)) as reader:
        reader.batch(slice(None))


def schema_of(samples):
    return Schema(samples, (Field("image", (VARIES,), "uint8"),), totals={"image": 3 * samples})


def test_damage_in_paths_and_other_columns_does_not_end_the_process(tmp_path):
    paths = [f"cat/{row:04}.jpg" for row in range(11)]
    files = [{"bytes": one, "path": path} for one, path in zip(STORED, paths, strict=True)]
    table = pa.table({"image": pa.array(files, FILE), "text": pa.array(paths)})
    with pa.ipc.new_file(str(tmp_path / "x.arrow"), table.schema) as writer:
        writer.write_table(table)
    offsets = np.arange(12, dtype="int32") * len(paths[0])
    damaged = (tmp_path / "x.arrow").read_bytes().split(offsets.tobytes())
    assert len(damaged) == 3
    offsets[1:-1:2] = 1 << 30
    (tmp_path / "x.arrow").write_bytes(offsets.tobytes().join(damaged))
    arrow, path = formats.get("arrow"), tmp_path / "x.arrow"
    with arrow.open(path, arrow.infer_schema(with_selection(path, ["image"]))) as reader:
        assert as_bytes(reader.native(np.array([9, 2]))["image"]) == [STORED[9], STORED[2]]


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize(
    ("stored", "cause", "found"),
    [([[[1], [2, 3]], [[4], [5]]], "unequal-shapes", "1 to 2"), (["a", "b"], "unsupported-dtype", "string")],
    ids=["lists", "text"],
)
def test_a_column_without_samples_of_one_shape_is_refused_by_name(tmp_path, writer, stored, cause, found):
    form, path = written(tmp_path, writer, pa.table({"x": stored}))
    with refused_as(cause, path=path, found=has(found), problem=has("x:")):
        form.infer_schema(path)


@pytest.mark.parametrize("writer", ["arrow", "parquet"])
def test_a_struct_of_other_fields_is_refused(tmp_path, writer):
    form, path = written(tmp_path, writer, pa.table({"x": [{"bytes": b"a", "size": 1}]}))
    with refused_as("unsupported-dtype"):
        form.infer_schema(path)


def test_images_that_datasets_saved_are_read_in_place(tmp_path):
    datasets = pytest.importorskip("datasets")
    for row, stored in enumerate(STORED[1:]):
        (tmp_path / f"{row}.jpg").write_bytes(stored)
    columns = {"image": [str(tmp_path / f"{row}.jpg") for row in range(10)], "label": range(10)}
    features = datasets.Features({"image": datasets.Image(decode=False), "label": datasets.Value("int64")})
    dataset = datasets.Dataset.from_dict(columns, features=features)
    dataset.save_to_disk(tmp_path / "arrow", num_shards=2)
    datasets.load_from_disk(tmp_path / "arrow").to_parquet(tmp_path / "x.parquet")
    for form, path in (("arrow", tmp_path / "arrow"), ("parquet", tmp_path / "x.parquet")):
        schema = formats.get(form).infer_schema(path)
        with formats.get(form).open(path, schema) as reader:
            assert as_bytes(reader.batch(slice(None))["image"]) == STORED[1:]
