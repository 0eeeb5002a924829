"""Lance: its own library and ours read the same folders, whoever wrote them."""

import os

import numpy as np
import pytest

from iobench import formats
from iobench.base.errors import (
    CorruptArtifact,
)
from iobench.formats import Field
from iobench.testing._cases import INDICES, SCHEMA, assert_rows, random_batch, store

lance = pytest.importorskip("lance")
pa = pytest.importorskip("pyarrow")

LANCE = formats.get("lance")


def test_its_own_library_reads_what_was_written(tmp_path):
    artifact = store(LANCE, tmp_path / "a", SCHEMA)
    table = lance.dataset(str(artifact.path)).take([22, 0, 7])
    for name in ("rgb", "label", "mask"):
        assert table.column(name).to_pylist() == artifact.source[name][[22, 0, 7]].tolist()


def test_what_its_own_library_wrote_is_read_where_it_lies(tmp_path):
    source = random_batch(SCHEMA)
    flat = pa.FixedSizeListArray.from_arrays(pa.array(source["signal"].reshape(-1)), 10)
    table = pa.table({"signal": flat, "rgb": source["rgb"].tolist(), "label": source["label"]})
    lance.write_dataset(table.slice(0, 9), str(tmp_path / "t.lance"))
    lance.write_dataset(table.slice(9), str(tmp_path / "t.lance"), mode="append")
    assert LANCE.sniff(tmp_path / "t.lance")
    schema = LANCE.infer_schema(tmp_path / "t.lance")
    assert schema.fields[0] == Field("signal", (10,), "float32")
    expected = {
        "signal": source["signal"].reshape(23, 10),
        "rgb": source["rgb"].astype("int64"),
        "label": source["label"],
    }
    with LANCE.open(tmp_path / "t.lance", schema) as reader:
        assert_rows(reader.batch(INDICES), expected, INDICES)
        assert_rows(reader.batch(slice(3, 22)), expected, slice(3, 22))


@pytest.mark.parametrize(
    ("column", "complaint"),
    [
        ([[1, 2], [3]], "column x: .* lists of 1 to 2"),
        (["a", "b"], "numbers in column x .* string"),
    ],
    ids=range(2),
)
def test_columns_that_are_no_samples_of_one_shape_are_refused_by_name(tmp_path, column, complaint):
    lance.write_dataset(pa.table({"x": column}), str(tmp_path / "x.lance"))
    with pytest.raises(CorruptArtifact, match=complaint):
        LANCE.infer_schema(tmp_path / "x.lance")


def test_it_says_that_it_must_not_be_forked():
    assert [name for name in formats.names() if not formats.type_of(name).forkable] == ["lance"]
    assert np.all([formats.type_of(name).forkable for name in ("npy", "arrow", "zarr")])


@pytest.mark.parametrize("panics", [True, False])
def test_a_panic_is_one_line_and_nothing_else_is_kept_from_stderr(tmp_path, monkeypatch, capfd, panics):
    """The library prints a panic, with a backtrace, before Python hears of it."""
    artifact = store(LANCE, tmp_path / "a", SCHEMA)

    class PanicException(BaseException):
        pass

    def dataset(path):
        os.write(2, b"thread 'x' panicked at dataset.rs\nstack backtrace:\n")
        raise PanicException("range end index 7 out of range") if panics else OSError("no such thing")

    monkeypatch.setattr(lance, "dataset", dataset)
    with pytest.raises(CorruptArtifact, match="found range end index 7" if panics else "no such thing"):
        artifact.open()
    assert ("panicked" in capfd.readouterr().err) is not panics
