"""Format lance: iobench and Lance's library read each other's datasets."""

import os

import pytest
from kinds import refused_as

from iobench import formats
from iobench.formats import Field
from iobench.testing.cases import INDICES, SCHEMA, assert_rows, random_batch, store

lance = pytest.importorskip("lance")
pa = pytest.importorskip("pyarrow")

LANCE = formats.get("lance")


def test_its_own_library_reads_what_was_written(tmp_path):
    artifact = store(LANCE, tmp_path / "a", SCHEMA)
    table = lance.dataset(str(artifact.path)).take([22, 0, 7])
    for name in ("rgb", "label", "mask"):
        assert table.column(name).to_pylist() == artifact.source[name][[22, 0, 7]].tolist()


def test_datasets_of_its_own_library_are_read_in_place(tmp_path):
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


@pytest.mark.parametrize("panics", [True, False])
def test_a_panic_is_one_error_and_other_stderr_output_stays(tmp_path, monkeypatch, capfd, panics):
    """The library prints a panic with a backtrace before it raises the exception."""
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
