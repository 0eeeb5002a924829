"""Formats arrow, parquet and lance: iobench and other libraries read each other's tables."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from kinds import has, refused_as
from ragged_cases import samples
from record_cases import delivered

import iobench
from iobench import formats
from iobench.base.errors import CorruptArtifact
from iobench.dataset.add import add
from iobench.formats import VARIES, Field, Schema
from iobench.formats.array_schema import with_selection
from iobench.testing.cases import INDICES, SCHEMA, assert_rows, assert_same, random_batch, read_all, store
from iobench.testing.placements import assert_placements

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ARROW, PARQUET, LANCE = (formats.get(name) for name in ("arrow", "parquet", "lance"))


def write_ipc(path, table, rows, make=pa.ipc.new_file, **options):
    with make(str(path), table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=rows)


def write_stream(path, table, rows):
    write_ipc(path, table, rows, pa.ipc.new_stream)


def write_parquet(path, table, rows):
    pq.write_table(table, path, row_group_size=rows)


def write_lance(path, table, rows):
    library = pytest.importorskip("lance")
    library.write_dataset(table.slice(0, rows), str(path))
    if len(table) > rows:
        library.write_dataset(table.slice(rows), str(path), mode="append")


WRITERS = {"arrow": write_ipc, "stream": write_stream, "parquet": write_parquet, "lance": write_lance}
FILES = ["arrow", "parquet"]


def written(folder, writer, columns, rows=4):
    """Write a table in pieces of so many rows; return its format and its place."""
    form = formats.get("arrow" if writer == "stream" else writer)
    path, table = folder / f"x.{form.name}", columns if isinstance(columns, pa.Table) else pa.table(columns)
    WRITERS[writer](path, table, rows)
    return form, path


def fixed(array):
    """Return a column of fixed-size lists."""
    if array.ndim == 1:
        return pa.array(array)
    return pa.FixedSizeListArray.from_arrays(fixed(array.reshape(-1, *array.shape[2:])), array.shape[1])


def variable(array):
    """Return a column of variable lists, the most common kind."""
    return pa.array(array.tolist(), fixed(array[:1]).type if array.ndim == 1 else None)


READ = {
    "arrow": lambda path: pa.ipc.open_file(pa.memory_map(str(path / "data.arrow"))).read_all(),
    "parquet:row_group_bytes=300,codec=zstd": lambda path: pq.read_table(path / "data.parquet"),
    "lance": lambda path: pytest.importorskip("lance").dataset(str(path)).to_table(),
}


@pytest.mark.parametrize(("variant", "read"), READ.items(), ids=READ)
def test_its_own_library_reads_what_was_written(tmp_path, variant, read):
    if variant == "lance":
        pytest.importorskip("lance")
    artifact = store(formats.parse(variant), tmp_path / "a", SCHEMA)
    table = read(artifact.path)
    for name, array in artifact.source.items():
        column = np.array(table.column(name).to_pylist(), array.dtype)
        assert np.array_equal(column, array, equal_nan=array.dtype.kind == "f")
    if variant == "arrow":
        assert str(table.schema.field("signal").type) == (
            "fixed_size_list<item: fixed_size_list<item: float not null>[5] not null>[2]"
        )


@pytest.mark.parametrize("lists", [fixed, variable])
@pytest.mark.parametrize("writer", WRITERS)
def test_tables_of_its_own_library_are_read_in_place(tmp_path, writer, lists):
    source = random_batch(SCHEMA)
    columns = {f"train {name}": lists(array) for name, array in source.items() if name != "signal"}
    columns["signal"] = fixed(source["signal"])
    expected = {name.replace(" ", "_"): source[name.removeprefix("train ")] for name in columns}
    if lists is variable:
        expected["train_rgb"] = source["rgb"].astype("int64")
    if writer in ("arrow", "stream"):
        tensors = fixed(source["signal"].reshape(23, 10))
        columns["tensor"] = pa.ExtensionArray.from_storage(
            pa.fixed_shape_tensor(pa.float32(), (5, 2)), tensors
        )
        expected["tensor"] = source["signal"].reshape(23, 5, 2)
    form, path = written(tmp_path, writer, columns, 10)
    assert form.sniff(path)
    schema = form.infer_schema(path)
    assert {f.name: (f.shape, f.dtype) for f in schema.fields} == {
        name: (array.shape[1:], array.dtype.name) for name, array in expected.items()
    }
    if form == ARROW:
        form.check(path, schema)
    with form.open(path, schema) as reader:
        assert_rows(reader.batch(INDICES), expected, INDICES)
        assert_rows(reader.batch(slice(3, 22)), expected, slice(3, 22))
        assert_rows(reader.native(slice(3, 22)), expected, slice(3, 22))
        assert_placements(reader, expected)
        assert set(reader.placement()) == (set(expected) - {"train_mask"} if form == ARROW else set())


def test_a_folder_of_parquet_files_is_read_in_place(tmp_path):
    for number in range(2):
        write_parquet(tmp_path / f"{number}.parquet", pa.table({"x": np.arange(5.0) + 5 * number}), 4)
    assert PARQUET.sniff(tmp_path)
    schema = PARQUET.infer_schema(tmp_path)
    assert_same(read_all(PARQUET, tmp_path, schema)["x"], np.arange(10.0))
    write_parquet(tmp_path / "2.parquet", pa.table({"y": [1.0]}), 4)
    with refused_as("missing-array", path=tmp_path / "2.parquet", expected="x", found="y"):
        PARQUET.infer_schema(tmp_path)


def test_a_feather_file_is_recognized_where_it_is_an_arrow_file(tmp_path):
    from pyarrow import feather

    feather.write_feather(pa.table({"x": [1, 2]}), tmp_path / "x.feather", compression="uncompressed")
    assert ARROW.sniff(tmp_path / "x.feather")
    (tmp_path / "v1.feather").write_bytes(b"FEA1")
    assert not ARROW.sniff(tmp_path / "v1.feather")


def test_a_folder_that_datasets_saved_is_read_in_place(tmp_path):
    datasets = pytest.importorskip("datasets")
    images = np.random.default_rng(0).integers(0, 256, (20, 3, 4, 5), dtype=np.uint8)
    features = datasets.Features(
        {
            "image": datasets.Array3D((3, 4, 5), "uint8"),
            "label": datasets.ClassLabel(num_classes=20),
            "box": datasets.Sequence(datasets.Value("float32"), length=4),
        }
    )
    columns = {"image": list(images), "label": range(20), "box": np.arange(80.0).reshape(20, 4)}
    datasets.Dataset.from_dict(columns, features=features).save_to_disk(tmp_path / "saved", num_shards=3)
    assert ARROW.sniff(tmp_path / "saved")
    schema = ARROW.infer_schema(tmp_path / "saved")
    expected = {"image": images, "label": np.arange(20), "box": np.arange(80, dtype="float32").reshape(20, 4)}
    ARROW.check(tmp_path / "saved", schema)
    with ARROW.open(tmp_path / "saved", schema) as reader:
        assert_rows(reader.batch(np.array([19, 0, 7])), expected, [19, 0, 7])
        assert_rows(reader.batch(slice(None)), expected, slice(None))
        assert_placements(reader, expected)
    state = tmp_path / "saved" / "state.json"
    state.write_text('{"_data_files": [{"filename": "../elsewhere.arrow"}]}')
    with refused_as("outside-folder", path=state, found=has("../elsewhere.arrow")):
        ARROW.open(tmp_path / "saved", schema)


def test_an_invalid_state_file_is_corrupt(tmp_path):
    for state in ("", "[]", json.dumps({"_data_files": []}), json.dumps({"_data_files": [1]}), "[" * 99_999):
        (tmp_path / "state.json").write_text(state)
        with pytest.raises(CorruptArtifact):
            ARROW.infer_schema(tmp_path)


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize(
    ("column", "cause", "found"),
    [
        ([[b"a"], [b"b"]], "unsupported-dtype", "binary"),
        ([1, None], "nulls", "one among"),
        ([[1, 2], None], "nulls", "one among"),
        ([[1, None], [2, 3]], "nulls", "one among"),
        ([{"bytes": b"a", "size": 1}], "unsupported-dtype", "struct"),
        ([[[1], [2, 3]], [[4], [5]]], "unequal-shapes", "1 to 2"),
        (["a", "b"], "unsupported-dtype", "string"),
    ],
    ids=range(7),
)
def test_a_column_without_samples_of_one_shape_is_refused_by_name(tmp_path, writer, column, cause, found):
    form, path = written(tmp_path, writer, {"x": column})
    with refused_as(cause, path=path, found=has(found), problem=has("x:")):
        form.open(path, form.infer_schema(path))


def test_lists_whose_lengths_only_add_up_are_refused(tmp_path):
    form, path = written(tmp_path, "arrow", {"x": [[1, 2], [3], [4, 5, 6]]})
    with refused_as("unequal-shapes", found=has("1 to 3")):
        form.check(path, Schema(3, (Field("x", (2,), "int64"),)))


def test_compressed_buffers_are_refused(tmp_path):
    write_ipc(tmp_path / "x.arrow", pa.table({"x": np.zeros(10_000)}), 10_000, compression="zstd")
    with refused_as("compressed", path=tmp_path / "x.arrow", hint=has()):
        ARROW.open(tmp_path / "x.arrow", ARROW.infer_schema(tmp_path / "x.arrow"))


def test_a_name_of_a_column_that_is_no_text_is_corrupt(tmp_path):
    _, file = written(tmp_path, "arrow", {"name": [1, 2]})
    file.write_bytes(file.read_bytes().replace(b"name", b"n\xd0me"))
    with refused_as("corrupt-artifact", path=file):
        ARROW.infer_schema(file)


@pytest.mark.parametrize("writer", FILES)
def test_the_hint_selects_the_columns_of_numbers(tmp_path, writer):
    columns = {"age": [1.5, 2.0], "name": ["a", "b"], "label": [0, 1]}
    form, path = written(tmp_path, writer, columns)
    with refused_as("unsupported-dtype", path=path, found="string", problem=has("column name:")) as caught:
        form.infer_schema(path)
    assert " ::age,label " in caught.value.hint
    fields = (Field("age", (), "float64"), Field("label", (), "int64"))
    schema = form.infer_schema(Path(f"{path}::age,label"))
    assert form.infer_schema(path, fields) == schema == Schema(2, fields)
    assert_same(read_all(form, path, schema)["age"], np.array([1.5, 2.0]))


def test_the_selection_that_is_suggested_is_of_the_whole_folder(tmp_path):
    names = [f"data-{number}-of-2.arrow" for number in range(2)]
    for name in names:
        write_ipc(tmp_path / name, pa.table({"x": np.arange(5), "text": list("abcde")}), 5)
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    with refused_as("unsupported-dtype", path=tmp_path, hint=has(" ::x ")):
        ARROW.infer_schema(tmp_path)


def test_a_table_of_pandas_is_read_without_an_index_that_has_no_name(tmp_path):
    pandas = pytest.importorskip("pandas")
    file = tmp_path / "t.parquet"
    pandas.DataFrame({"x": [0.5, 1.5], "y": [1, 2]}, index=[7, 5]).to_parquet(file)
    schema = PARQUET.infer_schema(file)
    batch = read_all(PARQUET, file, schema)
    assert {name: array.tolist() for name, array in batch.items()} == {"x": [0.5, 1.5], "y": [1, 2]}
    assert [note.kind for note in PARQUET.notes(file, schema)] == ["not-read"]
    assert len(PARQUET.infer_schema(Path(f"{file}::x,__index_level_0__")).fields) == 2


def test_a_row_group_is_decoded_once_for_consecutive_samples(tmp_path):
    artifact = store(formats.parse("parquet:row_group_bytes=600"), tmp_path / "a", SCHEMA)
    decoded = []

    def timed(decode):
        return lambda chunk: decoded.append(chunk) or decode(chunk)

    with artifact.open() as reader:
        reader.time_decoding(timed)
        for row in range(23):
            assert_rows(reader.sample(row), artifact.source, row)
    assert decoded == [0, 1, 2]


@pytest.mark.parametrize("panics", [True, False])
def test_a_panic_is_one_error_and_other_stderr_output_stays(tmp_path, monkeypatch, capfd, panics):
    """Lance prints a panic with a backtrace before it raises the exception."""
    lance = pytest.importorskip("lance")
    artifact = store(LANCE, tmp_path / "a", SCHEMA)

    class PanicException(BaseException):
        pass

    def dataset(path):
        os.write(2, b"thread 'x' panicked at dataset.rs\nstack backtrace:\n")
        raise PanicException("range end index 7 out of range") if panics else OSError("no such thing")

    monkeypatch.setattr(lance, "dataset", dataset)
    message = "range end index 7 out of range" if panics else "no such thing"
    with refused_as("corrupt-artifact", found=message):
        artifact.open()
    assert ("panicked" in capfd.readouterr().err) is not panics


# ── columns of bytes: binary ones, and the files that `datasets` embeds ──

FILE = pa.struct({"bytes": pa.binary(), "path": pa.string()})
STORED = [bytes([row]) * (3 * row % 7 + row // 4) for row in range(11)]  # the first empty


def column(kind, stored):
    """Return a column of bytes, as they are or with paths."""
    values = [{"bytes": one, "path": "cat/1.jpg"} for one in stored] if pa.types.is_struct(kind) else stored
    return pa.array(values, kind)


@pytest.mark.parametrize("kind", [FILE, pa.binary(), pa.large_binary()], ids=str)
@pytest.mark.parametrize("writer", WRITERS)
def test_bytes_are_a_ragged_field(tmp_path, writer, kind):
    form, path = written(tmp_path, writer, {"image": column(kind, STORED), "label": range(11)})
    schema = form.infer_schema(path)
    fields = (Field("image", (VARIES,), "uint8"), Field("label", (), "int64"))
    assert schema == Schema(11, fields, totals={"image": sum(map(len, STORED))})
    (note,) = form.notes(path, schema)
    assert (note.kind, note.values) == ("encoded-bytes", {"fields": "image"})
    if writer != "lance":
        assert not form.notes(path, form.infer_schema(with_selection(path, ["label"])))
    with form.open(path, schema) as reader:
        for rows in (np.array([10, 0, 7, 7]), np.arange(2, 9), np.arange(11)):
            assert samples(reader.batch(rows)["image"]) == [STORED[row] for row in rows]
        assert samples(reader.batch(slice(2, 9))["image"]) == STORED[2:9]
        assert samples(reader.native(slice(2, 9))["image"]) == STORED[2:9]
        assert reader.sample(6)["image"].tobytes() == STORED[6]


@pytest.mark.parametrize("writer", WRITERS)
def test_bytes_of_one_length_are_ragged_too_unless_a_field_says_otherwise(tmp_path, writer):
    form, path = written(tmp_path, writer, {"image": column(FILE, [b"abc", b"def"])})
    assert form.infer_schema(path).fields == (Field("image", (VARIES,), "uint8"),)
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
    form, path = written(tmp_path, writer, {"image": pa.array(files, FILE)})
    with refused_as("nulls", path=path, found=found, problem=has("sample 6")):
        form.infer_schema(path)
    schema = Schema(8, (Field("image", (VARIES,), "uint8"),), totals={"image": 24})
    with refused_as("nulls"), form.open(path, schema) as reader:
        reader.batch(slice(None))


def test_damage_in_paths_and_other_columns_does_not_end_the_process(tmp_path):
    paths = [f"cat/{row:04}.jpg" for row in range(11)]
    files = [{"bytes": one, "path": path} for one, path in zip(STORED, paths, strict=True)]
    form, file = written(tmp_path, "arrow", {"image": pa.array(files, FILE), "text": pa.array(paths)}, 11)
    offsets = np.arange(12, dtype="int32") * len(paths[0])
    damaged = file.read_bytes().split(offsets.tobytes())
    assert len(damaged) == 3
    offsets[1:-1:2] = 1 << 30
    file.write_bytes(offsets.tobytes().join(damaged))
    with form.open(file, form.infer_schema(with_selection(file, ["image"]))) as reader:
        assert samples(reader.native(np.array([9, 2]))["image"]) == [STORED[9], STORED[2]]


def test_images_that_datasets_saved_are_read_in_place(tmp_path):
    datasets = pytest.importorskip("datasets")
    for row, stored in enumerate(STORED[1:]):
        (tmp_path / f"{row}.jpg").write_bytes(stored)
    columns = {"image": [str(tmp_path / f"{row}.jpg") for row in range(10)], "label": range(10)}
    features = datasets.Features({"image": datasets.Image(decode=False), "label": datasets.Value("int64")})
    dataset = datasets.Dataset.from_dict(columns, features=features)
    dataset.save_to_disk(tmp_path / "arrow", num_shards=2)
    datasets.load_from_disk(tmp_path / "arrow").to_parquet(tmp_path / "x.parquet")
    for form, path in ((ARROW, tmp_path / "arrow"), (PARQUET, tmp_path / "x.parquet")):
        with form.open(path, form.infer_schema(path)) as reader:
            assert samples(reader.batch(slice(None))["image"]) == STORED[1:]


# ── lists of lists: fields in which several axes vary, if samples are rectangular ──

SIZES = [(4, 6), (0, 0), (6, 4), (1, 7), (4, 6), (3, 2)]
IMAGES = [np.random.default_rng(row).integers(0, 256, (*size, 3), np.uint8) for row, size in enumerate(SIZES)]
LISTS = {
    "lists": pa.list_(pa.list_(pa.list_(pa.uint8()))),
    "fixed pixels": pa.list_(pa.list_(pa.list_(pa.uint8(), 3))),
    "large": pa.large_list(pa.large_list(pa.list_(pa.uint8(), 3))),
}


def nested(folder, writer, kind=LISTS["lists"], images=None, rows=2):
    columns = pa.schema({"image": kind, "label": pa.int64()})
    lists = [one.tolist() for one in IMAGES] if images is None else images
    return written(folder, writer, pa.table({"image": lists, "label": [*range(6)]}, columns), rows)


@pytest.mark.parametrize("writer", FILES)
@pytest.mark.parametrize("name", LISTS)
def test_rectangular_samples_are_one_field_with_their_extents(tmp_path, writer, name):
    form, path = nested(tmp_path, writer, LISTS[name])
    schema = form.infer_schema(path)
    assert schema.describe().split(", ") == ["image uint8 *x*x3", "label int64"]
    assert schema.totals == {"image": sum(height * width for height, width in SIZES)}
    with form.open(path, schema) as reader:
        for some in (slice(0, 6), slice(1, 4), np.array([5, 0, 1, 5])):
            rows = np.arange(6)[some].tolist()
            for batch in (reader.batch(some), reader.native(some)):
                assert list(batch) == ["image", "image_extents", "label"]
                assert samples(batch["image"]) == [IMAGES[row].tobytes() for row in rows]
                assert batch["image_extents"].tolist() == [[*SIZES[row]] for row in rows]
                assert batch["image_extents"].dtype == np.int32
        assert reader.sample(3)["image_extents"].tolist() == [*SIZES[3]]


@pytest.mark.parametrize("writer", FILES)
def test_every_loader_delivers_them(tmp_path, writer):
    _, path = nested(tmp_path, writer)
    manifest, _ = add(path, writer, data_dir=tmp_path / "data")
    loaders, chosen = ("native", "stream", "dataloader"), {"batch_size": (4,), "collate": ("jagged", "pad")}
    records = delivered(manifest, (writer,), loaders, tmp_path / "records.jsonl", isolate=False, **chosen)
    assert len(records) == 2 * len(loaders)
    assert iobench.verify(manifest) == {writer: None}


@pytest.mark.parametrize("writer", FILES)
@pytest.mark.parametrize("rows", [2, 6])
def test_a_sample_that_is_not_rectangular_is_named(tmp_path, writer, rows):
    images = [one.tolist() for one in IMAGES]
    images[3] = [[[1, 2, 3]] * 2, [[1, 2, 3]] * 5]
    form, path = nested(tmp_path, writer, images=images, rows=rows)
    with refused_as("unequal-shapes", match=r"\b3\b") as error:
        form.infer_schema(path)
    assert re.findall(r"\d+", error.value.found) == ["2", "5"]
