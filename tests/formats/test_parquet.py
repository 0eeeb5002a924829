"""Parquet: its own library, and pandas, read the same files, whoever wrote them."""

import numpy as np
import pytest

from iobench import formats
from iobench.base.errors import (
    CorruptArtifact,
)
from iobench.formats import Field
from iobench.testing._cases import INDICES, SCHEMA, assert_rows, assert_same, random_batch, read_all, store

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

PARQUET = formats.get("parquet")


def nested(array):
    """A column of variable lists, as most people have them."""
    return pa.array(array.tolist()) if array.ndim > 1 else pa.array(array)


def test_its_own_library_reads_what_was_written(tmp_path):
    artifact = store(formats.parse("parquet:row_group_bytes=300,codec=zstd"), tmp_path / "a", SCHEMA)
    opened = pq.ParquetFile(artifact.path / "data.parquet")
    assert opened.num_row_groups == 5
    table = opened.read()
    for name in ("rgb", "label", "mask"):
        assert table.column(name).to_pylist() == artifact.source[name].tolist()
    found = np.array(table.column("signal").to_pylist(), "float32")
    assert np.array_equal(found, artifact.source["signal"], equal_nan=True)


def test_what_its_own_library_wrote_is_read_where_it_lies(tmp_path):
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


def test_a_table_of_pandas_is_read_where_it_lies(tmp_path):
    pandas = pytest.importorskip("pandas")
    pandas.DataFrame({"x": [0.5, 1.5], "y": [1, 2]}).to_parquet(tmp_path / "t.parquet")
    schema = PARQUET.infer_schema(tmp_path / "t.parquet")
    found = read_all(PARQUET, tmp_path / "t.parquet", schema)
    assert_same(found["x"], np.array([0.5, 1.5]))
    assert_same(found["y"], np.array([1, 2]))


@pytest.mark.parametrize(
    ("column", "complaint"),
    [
        ([[1, 2], [3]], "column x: .* lists of 1 to 2"),
        (["a", "b"], "numbers in column x .* string"),
        ([1, None], "nulls"),
    ],
    ids=range(3),
)
def test_columns_that_are_no_samples_of_one_shape_are_refused_by_name(tmp_path, column, complaint):
    pq.write_table(pa.table({"x": column}), tmp_path / "x.parquet")
    with pytest.raises(CorruptArtifact, match=complaint):
        read_all_of(tmp_path / "x.parquet")


def read_all_of(path):
    with PARQUET.open(path, PARQUET.infer_schema(path)) as reader:
        return reader.batch(slice(None))


def test_a_row_group_is_decoded_once_for_samples_in_a_row(tmp_path):
    artifact = store(formats.parse("parquet:row_group_bytes=600"), tmp_path / "a", SCHEMA)
    decoded = []

    def timed(decode):
        return lambda chunk: decoded.append(chunk) or decode(chunk)

    with artifact.open() as reader:
        reader.time_decoding(timed)
        for row in range(23):
            assert_rows(reader.sample(row), artifact.source, row)
    assert decoded == [0, 1, 2]
