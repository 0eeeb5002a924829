"""Format parquet: iobench, pyarrow and pandas read each other's files."""

from pathlib import Path

import numpy as np
import pytest
from kinds import has, refused_as

from iobench import formats
from iobench.formats import Field, Schema
from iobench.testing.cases import INDICES, SCHEMA, assert_rows, assert_same, random_batch, read_all, store

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

PARQUET = formats.get("parquet")


def nested(array):
    """Return a column of variable lists, the most common kind."""
    return pa.array(array.tolist()) if array.ndim > 1 else pa.array(array)


def test_its_own_library_reads_what_was_written(tmp_path):
    artifact = store(formats.parse("parquet:row_group_bytes=300,codec=zstd"), tmp_path / "a", SCHEMA)
    opened = pq.ParquetFile(artifact.path / "data.parquet")
    assert opened.num_row_groups == 5
    table = opened.read()
    for name in ("rgb", "label", "mask"):
        assert table.column(name).to_pylist() == artifact.source[name].tolist()
    signal = np.array(table.column("signal").to_pylist(), "float32")
    assert np.array_equal(signal, artifact.source["signal"], equal_nan=True)


def test_files_of_pyarrow_are_read_in_place(tmp_path):
    source = random_batch(SCHEMA)
    columns = {f"train.{name}": nested(array) for name, array in source.items() if name != "signal"}
    columns["signal"] = pa.array(source["signal"].reshape(23, 10).tolist(), pa.list_(pa.float32()))
    for number, part in enumerate([pa.table(columns).slice(0, 9), pa.table(columns).slice(9)]):
        pq.write_table(part, tmp_path / f"{number}.parquet", row_group_size=4)
    assert PARQUET.sniff(tmp_path)
    schema = PARQUET.infer_schema(tmp_path)
    assert schema.field("signal") == Field("signal", (10,), "float32")
    expected = {"train_rgb": source["rgb"].astype("int64"), "train_label": source["label"]}
    fields = [f for f in schema.fields if f.name in expected]
    schema = PARQUET.infer_schema(tmp_path, fields)
    with PARQUET.open(tmp_path, schema) as reader:
        assert_rows(reader.batch(INDICES), expected, INDICES)
        assert_rows(reader.batch(slice(3, 22)), expected, slice(3, 22))


def test_a_table_of_pandas_is_read_in_place(tmp_path):
    pandas = pytest.importorskip("pandas")
    pandas.DataFrame({"x": [0.5, 1.5], "y": [1, 2]}).to_parquet(tmp_path / "t.parquet")
    schema = PARQUET.infer_schema(tmp_path / "t.parquet")
    batch = read_all(PARQUET, tmp_path / "t.parquet", schema)
    assert_same(batch["x"], np.array([0.5, 1.5]))
    assert_same(batch["y"], np.array([1, 2]))


def test_an_index_without_a_name_is_said_to_be_left_out(tmp_path):
    columns = {"x": [1.0, 2.0], "__index_level_0__": [7, 5]}  # as pandas writes sampled rows
    pq.write_table(pa.table(columns), file := tmp_path / "a.parquet")
    schema = PARQUET.infer_schema(file)
    assert [field.name for field in schema.fields] == ["x"]
    assert [note.kind for note in PARQUET.notes(file, schema)] == ["not-read"]
    chosen = PARQUET.infer_schema(tmp_path / "a.parquet::x,__index_level_0__")
    assert len(chosen.fields) == 2


def test_the_hint_selects_the_columns_of_numbers(tmp_path):
    path, columns = tmp_path / "x.parquet", {"age": [1.5, 2.0], "name": ["a", "b"], "label": [0, 1]}
    pq.write_table(pa.table(columns), path)
    with refused_as("unsupported-dtype", path=path, found="string", problem=has("column name:")) as caught:
        PARQUET.infer_schema(path)
    selected = Path(f"{path}::age,label")
    assert " ::age,label " in caught.value.hint
    fields = (Field("age", (), "float64"), Field("label", (), "int64"))
    assert PARQUET.infer_schema(path, fields) == PARQUET.infer_schema(selected) == Schema(2, fields)


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
