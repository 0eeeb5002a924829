"""Files of the user's whose samples differ in length: lines of JSON, and columns of lists."""

import gzip
import json
import runpy
import subprocess
import sys
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kinds import refused_as
from ragged_cases import RaggedSource, everything, samples
from record_cases import delivered

import iobench
from iobench.advise.code import loader_code
from iobench.advise.measured_data import FirstSamples, MeasuredData
from iobench.base.errors import SourceError
from iobench.bench.case import Case
from iobench.dataset import sandbox
from iobench.dataset.add import AddOptions, add, add_files
from iobench.dataset.sandbox import UntrustedData
from iobench.dataset.sources import open_source
from iobench.formats import Field, Schema
from iobench.loading import loaders

LISTS = [[1, 2, 3], [], [70_000], [5] * 40, [7, 8]] * 60


def lines(path, values):
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def refused(path, name):
    with refused_as(name, SourceError) as error:
        everything(open_source(path))
    return str(error.value)


class TestJsonl:
    def test_lists_of_different_lengths_are_a_ragged_field(self, tmp_path, monkeypatch):
        monkeypatch.setattr(sandbox, "BATCH_BYTES", 700)
        path = lines(tmp_path / "a.jsonl", [{"ids": ids, "n": i / 2} for i, ids in enumerate(LISTS)])
        source = open_source(path)
        assert source.schema.field("ids").typed == "ids=uint32[*]"
        assert source.schema.totals == {"ids": sum(map(len, LISTS))}
        arrays = everything(source)
        assert [np.frombuffer(one, "u4").tolist() for one in samples(arrays["ids"])] == LISTS
        np.testing.assert_array_equal(arrays["n"], np.arange(len(LISTS)) / 2)

    @pytest.mark.parametrize(
        ("values", "typed"),
        [
            ([[0, 1], [65_535]], "x=uint16[*]"),
            ([[0, 1], [65_536]], "x=uint32[*]"),
            ([[0, 1], [1 << 32]], "x=int64[*]"),
            ([[0, 1], [-1]], "x=int64[*]"),
            ([[0.5], []], "x=float64[*]"),
            ([[1, 2], [3, 4]], "x=uint16[2]"),
            ([1, 2], "x=int64"),
        ],
    )
    def test_the_values_decide_dtype_and_shape(self, tmp_path, values, typed):
        (field,) = open_source(lines(tmp_path / "a.jsonl", [{"x": one} for one in values])).schema.fields
        assert field.typed == typed

    @pytest.mark.parametrize(("first", "last"), [(0, 0.5), ([0, 1], [0.5, 1]), ([], [2, 3])])
    def test_all_lines_decide_the_type(self, tmp_path, first, last):
        text = f'{{"a": {first}}}\n' * 600_000 + f'{{"a": {last}}}\n'
        (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(text.encode(), 1))
        source = open_source(tmp_path / "a.jsonl.gz")
        assert source.schema.samples == 600_001
        a = everything(source)["a"]
        assert np.ravel(getattr(a, "values", a))[-1] == np.ravel(last)[-1]

    def test_lines_may_be_long(self, tmp_path):
        values = [[1] * length for length in (3, 1_000_000, 2)]
        arrays = everything(open_source(lines(tmp_path / "a.jsonl", [{"x": one} for one in values])))
        assert np.diff(arrays["x"].offsets).tolist() == [3, 1_000_000, 2]

    def test_some_keys_can_be_selected(self, tmp_path):
        path = lines(tmp_path / "a.jsonl", [{"text": "a", "ids": [1]}, {"text": "b", "ids": [1, 2]}])
        assert " ::ids " in refused(path, "unsupported-dtype")
        assert list(everything(open_source(f"{path}::ids"))) == ["ids"]

    OTHER_LINES: ClassVar = {
        "another key": ('{"x": [1]}\n{"y": [1]}\n', "empty-cell", "sample 1"),
        "null": ('{"x": [1]}\n{"x": [1, null]}\n', "empty-cell", "sample 1"),
        "another kind": ('{"x": [1]}\n{"x": 1}\n', "not-a-table", ""),
        "cut off": ('{"x": [1]}\n{"x"', "not-a-table", ""),
        "a new key": ('{"x": 1}\n' * 600_000 + '{"x": 1, "y": 2}\n', "empty-cell", "y"),
        "a new kind": ('{"x": 1}\n' * 600_000 + '{"x": [1]}\n', "not-a-table", "x"),
        "a key that ends": ('{"x": 1, "y": 2}\n' * 300_000 + '{"x": 1}\n' * 600_000, "empty-cell", "y"),
        "no object": ("[1, 2]\n", "not-a-table", ""),
        "lists of lists": ('{"x": [[1], [2, 3]]}\n', "unsupported-dtype", "column x"),
        "no lines": ("", "empty", ""),
        "no keys": ("{}\n{}\n", "no-arrays", ""),
    }

    @pytest.mark.parametrize(("text", "cause", "word"), OTHER_LINES.values(), ids=OTHER_LINES)
    def test_other_lines_are_refused(self, tmp_path, text, cause, word):
        (tmp_path / "a.jsonl").write_text(text)
        assert word in refused(tmp_path / "a.jsonl", cause)


class TestColumns:
    @pytest.fixture
    def table(self, tmp_path):
        table = pa.table({"ids": pa.array(LISTS, pa.list_(pa.uint32())), "label": np.arange(len(LISTS))})
        pq.write_table(table, tmp_path / "t.parquet", row_group_size=70)
        return tmp_path / "t.parquet"

    def test_lists_of_different_lengths_are_a_ragged_field(self, table, monkeypatch):
        monkeypatch.setattr(sandbox, "BATCH_BYTES", 700)
        arrays = everything(open_source(table))
        assert [np.frombuffer(one, "u4").tolist() for one in samples(arrays["ids"])] == LISTS
        np.testing.assert_array_equal(arrays["label"], np.arange(len(LISTS)))

    def test_they_are_added_where_they_lie_and_measured(self, table, tmp_path):
        manifest, _ = add(table, data_dir=tmp_path / "data")
        assert manifest.schema.totals == {"ids": sum(map(len, LISTS))}
        out = tmp_path / "r.jsonl"
        assert len(delivered(manifest, ("parquet",), ("native", "stream"), out, batch_size=(16,))) == 2

    def test_the_first_rows_are_a_dataset_of_their_own(self, table, tmp_path):
        first = FirstSamples(open_source(table), 103)
        assert first.schema.totals == {"ids": sum(map(len, LISTS[:103]))}
        manifest, _ = add_files(table, AddOptions(data_dir=tmp_path / "data", first=first.schema))
        with manifest.opener("parquet")() as reader:
            ids = reader.batch(slice(0, 103))["ids"]
        assert [np.frombuffer(one, "u4").tolist() for one in samples(ids)] == LISTS[:103]


@pytest.mark.parametrize("wrong", [[1, 2, 3, 4], [0, 3, 2, 4], [0, 1, 2, 1 << 40]])
def test_offsets_that_a_reading_process_made_up_are_refused(tmp_path, wrong):
    """The process that reads a user's file is not trusted: its offsets would lead out of memory."""

    class Child:
        def receive_into(self, memory):
            memory.cast("B")[:] = np.array(wrong, np.int64).tobytes()[: memory.nbytes]

        def wait(self, limit):
            """Return at once."""

        def receive_bytes(self, most):
            return b"{}"

    schema = Schema(3, (Field("x", (-1,), "uint8"),), totals={"x": 4})
    worker = sandbox.SandboxWorker(UntrustedData(tmp_path, None, 0), Child())
    with refused_as("invalid-reply", SourceError):
        worker.batch(schema, 3)


@pytest.mark.parametrize("word", ["stream", "dataloader", "dataloader:fetch=batch,num_workers=2", "native"])
def test_code_that_recommend_prints_runs(tmp_path, word, capfd):
    source = RaggedSource(np.arange(40))
    manifest = iobench.prepare(source, ["npy"], data_dir=tmp_path, name="mine")[0]
    case = Case(manifest.name, "", "npy", loaders.parse(word).on("cpu"), batch_size=16, order="random")
    code = loader_code(MeasuredData(manifest, 1, False), case, epochs=1)
    assert "tokens, audio: values and offsets" in code
    check = "assert len(batch['tokens'].offsets) == len(batch['label']) + 1; print(len(batch['label']))"
    (tmp_path / "train.py").write_text(code.replace("pass  #", f"{check}  #"))
    if "num_workers" in word:  # which may import the script again
        command = [sys.executable, "train.py"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0
        out, err = done.stdout, done.stderr
    else:
        runpy.run_path(str(tmp_path / "train.py"), run_name="__main__")
        out, err = capfd.readouterr()
    assert (err, out.split()) == ("", ["16", "16", "8"])
