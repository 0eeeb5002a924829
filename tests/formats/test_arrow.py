"""Format arrow: iobench, pyarrow and `datasets` read each other's files."""

import json

import numpy as np
import pytest
from kinds import has, refused_as

from iobench import formats
from iobench.base.errors import CorruptArtifact
from iobench.formats import Field, Schema
from iobench.testing.cases import INDICES, SCHEMA, assert_rows, assert_same, random_batch, read_all, store
from iobench.testing.placements import assert_placements

pa = pytest.importorskip("pyarrow")

ARROW = formats.get("arrow")


def nested(array):
    """Return a column of fixed-size lists."""
    if array.ndim == 1:
        return pa.array(array)
    return pa.FixedSizeListArray.from_arrays(nested(array.reshape(-1, *array.shape[2:])), array.shape[1])


def save(file, columns, stream=False, rows=10, **options):
    """Write a file with pyarrow."""
    table = pa.table(columns)
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(str(file), table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=rows)


def test_its_own_library_reads_what_was_written(tmp_path):
    artifact = store(ARROW, tmp_path / "a", SCHEMA)
    table = pa.ipc.open_file(pa.memory_map(str(artifact.path / "data.arrow"))).read_all()
    assert str(table.schema.field("signal").type) == (
        "fixed_size_list<item: fixed_size_list<item: float not null>[5] not null>[2]"
    )
    for name, array in artifact.source.items():
        column = table.column(name).to_pylist()
        assert_same(np.array(column, array.dtype).reshape(array.shape)[INDICES] * 0, array[INDICES] * 0)
        if array.dtype.kind != "f":
            assert column == array.tolist()


def test_datasets_loads_what_was_written(tmp_path):
    datasets = pytest.importorskip("datasets")
    artifact = store(ARROW, tmp_path / "a", SCHEMA)
    files = {"train": str(artifact.path / "data.arrow")}
    loaded = datasets.load_dataset("arrow", data_files=files, cache_dir=str(tmp_path / "cache"))["train"]
    rows = loaded.with_format("numpy")[:]
    for name, array in artifact.source.items():
        assert np.asarray(rows[name], array.dtype).tobytes() == array.tobytes()


@pytest.mark.parametrize("stream", [False, True])
def test_files_of_pyarrow_are_read_in_place(tmp_path, stream):
    source = random_batch(SCHEMA)
    columns = {f"train.{name}": nested(array) for name, array in source.items()}
    tensors = source["signal"].reshape(23, 10)
    columns["tensor"] = pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.float32(), (5, 2)), nested(tensors)
    )
    save(tmp_path / "theirs.arrow", columns, stream)
    assert ARROW.sniff(tmp_path / "theirs.arrow")
    schema = ARROW.infer_schema(tmp_path / "theirs.arrow")
    expected = {f"train_{name}": array for name, array in source.items()} | {
        "tensor": tensors.reshape(23, 5, 2)
    }
    assert {f.name: (f.shape, f.dtype) for f in schema.fields} == {
        name: (array.shape[1:], array.dtype.name) for name, array in expected.items()
    }
    ARROW.check(tmp_path / "theirs.arrow", schema)
    with ARROW.open(tmp_path / "theirs.arrow", schema) as reader:
        assert_rows(reader.batch(INDICES), expected, INDICES)
        assert_rows(reader.batch(slice(3, 22)), expected, slice(3, 22))
        assert_rows(reader.native(slice(3, 22)), expected, slice(3, 22))
        assert_placements(reader, expected)
        assert set(reader.placement()) == set(expected) - {"train_mask"}


def test_a_feather_file_is_recognized_where_it_is_an_arrow_file(tmp_path):
    from pyarrow import feather

    feather.write_feather(
        pa.table({"x": pa.array([1, 2])}), tmp_path / "x.feather", compression="uncompressed"
    )
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
    (tmp_path / "saved" / "state.json").write_text('{"_data_files": [{"filename": "../elsewhere.arrow"}]}')
    state = tmp_path / "saved" / "state.json"
    with refused_as("outside-folder", path=state, found=has("../elsewhere.arrow")):
        ARROW.open(tmp_path / "saved", schema)


@pytest.mark.parametrize(
    ("column", "cause", "found"),
    [
        ([[b"a"], [b"b"]], "unsupported-dtype", "binary"),
        ([1, None], "nulls", "one among"),
        ([[1, 2], None], "nulls", "one among"),
        ([[1, None], [2, 3]], "nulls", "one among"),
        ([{"bytes": b"a"}, {"bytes": b"b"}], "unsupported-dtype", "struct"),
    ],
    ids=range(5),
)
def test_a_column_without_samples_of_one_shape_is_refused_by_name(tmp_path, column, cause, found):
    save(tmp_path / "x.arrow", {"x": column})
    with refused_as(cause, path=tmp_path / "x.arrow", found=has(found), problem=has("x:")):
        ARROW.open(tmp_path / "x.arrow", ARROW.infer_schema(tmp_path / "x.arrow"))


def test_lists_whose_lengths_only_add_up_are_refused(tmp_path):
    save(tmp_path / "x.arrow", {"x": [[1, 2], [3], [4, 5, 6]]})
    with refused_as("unequal-shapes", found=has("1 to 3")):
        ARROW.check(tmp_path / "x.arrow", Schema(3, (Field("x", (2,), "int64"),)))


def test_compressed_buffers_are_refused(tmp_path):
    save(tmp_path / "x.arrow", {"x": np.zeros(10_000)}, compression="zstd", rows=10_000)
    with refused_as("compressed", path=tmp_path / "x.arrow", hint=has()):
        ARROW.open(tmp_path / "x.arrow", ARROW.infer_schema(tmp_path / "x.arrow"))


def test_a_name_of_a_column_that_is_no_text_is_corrupt(tmp_path):
    file, table = tmp_path / "a.arrow", pa.table({"name": [1, 2]})
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    file.write_bytes(file.read_bytes().replace(b"name", b"n\xd0me"))
    with refused_as("corrupt-artifact", path=file):
        ARROW.infer_schema(file)


def test_some_columns_can_be_selected(tmp_path):
    save(tmp_path / "x.arrow", {"x": np.arange(5), "text": list("abcde")})
    schema = ARROW.infer_schema(tmp_path / "x.arrow", [Field("x", (), "int64")])
    assert_same(read_all(ARROW, tmp_path / "x.arrow", schema)["x"], np.arange(5))


def test_the_selection_that_is_suggested_is_of_the_whole_folder(tmp_path):
    names = [f"data-{number}-of-2.arrow" for number in range(2)]
    for name in names:
        save(tmp_path / name, {"x": np.arange(5), "text": list("abcde")})
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    with refused_as("unsupported-dtype", path=tmp_path, hint=has(" ::x ")):
        ARROW.infer_schema(tmp_path)


def test_an_invalid_state_file_is_corrupt(tmp_path):
    for state in ("", "[]", json.dumps({"_data_files": []}), json.dumps({"_data_files": [1]}), "[" * 99_999):
        (tmp_path / "state.json").write_text(state)
        with pytest.raises(CorruptArtifact):
            ARROW.infer_schema(tmp_path)
