"""Sources read in the sandbox: .pt and .csv files, and data in any format that recognizes them."""

import gzip
import re
from typing import ClassVar

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from faults import hostile_sources as hostile
from kinds import refused_as
from test_sources import as_arrow, as_csv, as_parquet, everything, refused

import iobench
from iobench import formats
from iobench.base.errors import SourceError
from iobench.dataset import sandbox
from iobench.dataset.sources import checked, open_source
from iobench.dataset.sources.torch_file import TorchAdapter
from iobench.formats import Field, Schema
from iobench.terminal.datasets import dataset_line


class TestTorch:
    @pytest.mark.as_for_users
    def test_tensors_of_a_dict_become_fields_whatever_their_strides(self, tmp_path, monkeypatch):
        monkeypatch.setattr(sandbox, "BATCH_BYTES", 700)
        x, y = torch.rand(5, 203).t(), torch.arange(203)
        torch.save({"x": x, "more": {"y": y}}, tmp_path / "a.pt")
        arrays = everything(open_source(tmp_path / "a.pt"))
        np.testing.assert_array_equal(arrays["x"], x.numpy())
        np.testing.assert_array_equal(arrays["more_y"], y.numpy())

    def test_nothing_but_tensors_is_loaded(self, tmp_path):
        torch.save({"x": torch.rand(3), "trap": hostile.Trap(tmp_path / "sprung")}, tmp_path / "a.pt")
        refused(tmp_path / "a.pt", "not-tensors")
        assert not (tmp_path / "sprung").exists()

    @pytest.mark.parametrize(
        ("content", "cause"),
        [
            (torch.zeros(1).expand(1 << 30, 1 << 10), "repeated-storage"),
            ((torch.rand(3), 1), "not-tensors"),
            ([torch.rand(3), torch.rand(3, 2)], "unequal-shapes"),
            (torch.zeros(3, dtype=torch.float8_e4m3fn), "unsupported-dtype"),
            (torch.eye(3).to_sparse(), "unsupported-dtype"),
        ],
    )
    def test_other_values_are_refused_before_memory_is_allocated(self, tmp_path, content, cause):
        torch.save(content, tmp_path / "a.pt")
        with refused_as(cause, path=tmp_path / "a.pt"):
            TorchAdapter().infer_schema(tmp_path / "a.pt")

    def test_a_list_has_a_tensor_or_a_dict_per_sample(self, tmp_path):
        whole, ragged = [torch.rand(3) for _ in range(5)], [torch.rand(n, 2) for n in (3, 1, 2)]
        torch.save(whole, tmp_path / "a.pt")
        np.testing.assert_array_equal(everything(open_source(tmp_path / "a.pt"))["x"], torch.stack(whole))
        torch.save([{"x": x, "y": row} for row, x in enumerate(ragged)], tmp_path / "a.pt")
        source = open_source(tmp_path / "a.pt")
        assert source.schema.totals == {"x": 6}
        (batch,) = source.batches()
        np.testing.assert_array_equal(batch["x"].values, torch.cat(ragged))
        assert batch["y"].tolist() == [0, 1, 2]

    def test_numbers_of_python_are_those_that_were_saved(self, tmp_path):
        times, more = [1_700_000_000.125 + row for row in range(4)], [1, 0.5, 2, 3]
        rows = [{"x": torch.ones(3), "t": t, "more": one} for t, one in zip(times, more, strict=True)]
        torch.save(rows, tmp_path / "a.pt")
        torch.save({"x": torch.ones(4, 3), "t": times, "more": more}, tmp_path / "b.pt")
        for name in ("a.pt", "b.pt"):
            arrays = everything(open_source(tmp_path / name))
            assert (arrays["t"].tolist(), arrays["more"].tolist()) == (times, more)
        del rows[1]["more"]
        torch.save(rows, tmp_path / "a.pt")
        assert "'more' in sample 0 or 1" in refused(tmp_path / "a.pt", "not-tensors").found
        torch.save([{"x": torch.ones(3), "t": row} for row in (1, None, 2)], tmp_path / "a.pt")
        assert "NoneType in sample 1" in refused(tmp_path / "a.pt", "not-tensors").found
        torch.save({"x": torch.ones(2), "t": [2**63, 1]}, tmp_path / "a.pt")
        assert "64 bits" in refused(tmp_path / "a.pt", "not-tensors").found
        (tmp_path / "c").mkdir()
        for number, time in enumerate(times):
            torch.save({"x": torch.ones(3), "t": time}, tmp_path / f"c/{number}.pt")
        assert everything(open_source(tmp_path / "c"))["t"].tolist() == times

    def test_one_key_of_a_checkpoint(self, tmp_path):
        torch.save({"model": {"w": torch.rand(4, 2)}, "epoch": 3, "x": torch.rand(5)}, tmp_path / "a.pt")
        assert "::" in refused(tmp_path / "a.pt", "not-tensors").hint
        source = open_source(f"{tmp_path / 'a.pt'}::model")
        assert [field.name for field in source.schema.fields] == ["model_w"]

    def test_errors_show_the_name_of_the_file(self, tmp_path, monkeypatch):
        torch.save({"x": torch.rand(4_000_000)}, tmp_path / "mine.pt")
        monkeypatch.setattr(sandbox, "MEMORY_BYTES", -10_000_000)  # torch names the file it cannot map
        error = refused(tmp_path / "mine.pt", "damaged")
        assert "mine.pt>" in error.problem
        assert error.path == str(tmp_path / "mine.pt")


class TestCsv:
    @pytest.mark.as_for_users
    def test_columns_become_fields(self, tmp_path, monkeypatch):
        monkeypatch.setattr(sandbox, "BATCH_BYTES", 700)
        rows = range(5000)
        lines = "".join(f"{i},{i / 7!r},{'true' if i % 2 else 'false'}\n" for i in rows)
        (tmp_path / "a.csv").write_text("n,the ratio,odd\n" + lines)
        arrays = everything(open_source(tmp_path / "a.csv"))
        np.testing.assert_array_equal(arrays["n"], rows)
        np.testing.assert_array_equal(arrays["the_ratio"], np.arange(5000) / 7)
        np.testing.assert_array_equal(arrays["odd"], np.arange(5000) % 2 == 1)

    NO_TABLES: ClassVar = {
        "gap": ("a,b\n1,2\n3,\n", "empty-cell", "sample 1"),
        "text": ("a,b\n1,cat\n", "unsupported-dtype", "column b"),
        "no names": ("1,2\n3,4\n", "no-column-names", ""),
        "no lines": ("a,b\n", "empty", ""),
        "ragged": ("a,b\n1,2,3\n", "not-a-table", ""),
        "carriage returns": ("a,b\r1,2\r", "not-a-table", "carriage returns"),
        "a long name": (f"a,{'b' * 200_000}\n1,2\n", "not-a-table", ""),
        "text at the end": ("a\n" + "1\n" * 3_000_000 + "x\n", "numbers-and-text", "column a"),
        "a number twice": ("5,0,0\n1,2,3\n", "no-column-names", ""),
        "text without names": ("5.1,3.5,setosa\n4.9,3.0,setosa\n", "no-column-names", ""),
        "decimal commas": ("a;b\n1,5;2\n", "decimal-commas", ""),
        "thousands commas": ('a,b\n999,1\n"1,234",2\n', "thousands-commas", ""),
        "a mark for missing": ("a,b\n1,2\n?,3\n4,5\n", "numbers-and-text", "column a"),
        "blanks": ("a b\n1 2\n", "not-a-table", "blanks"),
    }

    @pytest.mark.parametrize(("text", "cause", "word"), NO_TABLES.values(), ids=NO_TABLES)
    def test_a_file_that_is_not_a_table_of_numbers_is_refused(self, tmp_path, text, cause, word):
        (tmp_path / "a.csv").write_text(text)
        assert word in refused(tmp_path / "a.csv", cause).problem

    def test_text_in_two_bytes_is_named(self, tmp_path):
        (tmp_path / "a.csv").write_text("a,b\n1,2\n", "utf-16")
        assert "iconv" in refused(tmp_path / "a.csv", "not-a-table").hint

    @pytest.mark.parametrize(
        ("content", "names"),
        [
            ("a;b\n1;2.5\n", ["a", "b"]),
            ("a\tb\r\n1\t2.5\r\n", ["a", "b"]),
            ('a, b, "c, d"\n1, 2.5, 3\n', ["a", "b", "c, d"]),
            ("a,a,a.1\n1,2.5,3\n", ["a", "a.1", "a.1.1"]),
            ("0,1,2,3\n1,2.5,3,4\n", ["0", "1", "2", "3"]),
            ("größe,ä\n1,2.5\n", ["größe", "ä"]),
            ("\ufeffa,b\n1,nan\n", ["a", "b"]),
        ],
        ids=["semicolon", "tab", "blanks", "a name twice", "numbered", "not ASCII", "a byte order mark"],
    )
    @pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
    def test_it_is_read_as_pandas_reads_it(self, tmp_path, content, names, encoding):
        if encoding == "latin-1" and "\ufeff" in content:
            encoding = "utf-8"
        (tmp_path / "a.csv").write_bytes(content.encode(encoding))
        source = open_source(tmp_path / "a.csv", columns="separate")
        own = [source.schema.renamed.get(field.name, field.name) for field in source.schema.fields]
        assert own == names
        numbers = [float(cell) for cell in re.split(r"[;,\t]\s*", content.splitlines()[1])]
        np.testing.assert_array_equal([array[0] for array in everything(source).values()], numbers)

    def test_text_in_latin_1_is_refused_as_text_and_the_others_can_be_selected(self, tmp_path):
        (tmp_path / "a.csv").write_bytes("a,city,label\n1,Köln,0\n2,Köln,1\n".encode("latin-1"))
        hint = refused(tmp_path / "a.csv", "unsupported-dtype").hint
        selected = next(word for word in hint.split() if word.startswith("::"))
        assert everything(open_source(f"{tmp_path}/a.csv{selected}"))["label"].tolist() == [0, 1]

    def test_rows_of_several_lengths_are_refused_with_a_remedy(self, tmp_path):
        (tmp_path / "a.csv").write_text("# made by hand\na,b\n1,2\n")
        assert refused(tmp_path / "a.csv", "not-a-table").hint

    def test_all_rows_decide_the_type(self, tmp_path):
        text = "a\n" + "0\n" * 3_000_000 + "0.5\n"
        (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode(), 1))
        source = open_source(tmp_path / "a.csv.gz")
        assert (source.name, source.schema.samples) == ("a", 3_000_001)
        assert everything(source)["a"].sum() == 0.5

    def test_the_index_that_pandas_writes_is_not_read(self, tmp_path):
        (tmp_path / "a.csv").write_text(",x,z\n0,3,4\n1,5,6\n")
        source = open_source(tmp_path / "a.csv")
        assert [(note.kind, note.values) for note in source.notes] == [("coverage", {"columns": 1})]
        assert everything(source)["features"].tolist() == [[3, 4], [5, 6]]
        assert len(everything(open_source(f"{tmp_path}/a.csv::Unnamed: 0,x"))["features"]) == 2
        (tmp_path / "a.csv").write_text(",x\n1,3\n0,5\n")
        assert everything(open_source(tmp_path / "a.csv"))["features"].tolist() == [[1, 3], [0, 5]]


class TestTables:
    @pytest.fixture
    def table(self, tmp_path):
        columns = {f"x {i}": np.arange(9, dtype="f4") + i for i in range(40)}
        as_parquet(tmp_path / "t.parquet", {**columns, "label": np.arange(9)})
        return tmp_path / "t.parquet"

    def test_columns_of_one_dtype_become_one_field(self, table):
        source = open_source(table)
        arrays = everything(source)
        assert list(arrays) == ["features", "label"]
        np.testing.assert_array_equal(arrays["features"], np.arange(9)[:, None] + np.arange(40, dtype="f4"))
        np.testing.assert_array_equal(arrays["label"], np.arange(9))
        description = source.description
        originals = [description["renamed"][name] for name in description["packed"]["features"]]
        assert originals == [f"x {i}" for i in range(40)]

    def test_separate_columns_stay_fields(self, table):
        source = open_source(table, columns="separate")
        assert len(everything(source)) == 41
        assert "packed" not in source.description

    def test_labels_and_lists_stay_fields_and_names_are_free(self, tmp_path):
        numbers = np.arange(6)
        lists = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(12)), 2)
        columns = {"a": numbers, "features_int64": numbers, "Target": numbers, "pair": lists}
        floats = {"b": numbers / 2, "c": numbers / 4, "alone": numbers > 2}
        as_parquet(tmp_path / "t.parquet", columns | floats)
        source = open_source(tmp_path / "t.parquet")
        packed = {"features_int64_2": ["a", "features_int64"], "features_float64": ["b", "c"]}
        assert source.description["packed"] == packed
        assert set(everything(source)) == {*packed, "Target", "pair", "alone"}

    def test_every_format_stores_the_matrix(self, table, tmp_path):
        variants = ["npy", "hdf5", "lmdb", "memmap", "parquet"]
        manifest, _ = iobench.prepare(open_source(table), variants, data_dir=tmp_path / "data")
        for form in variants:
            with manifest.opener(form)() as reader:
                np.testing.assert_array_equal(reader.sample(3)["features"], 3 + np.arange(40))
        assert "(features from 'x_0 … x_39' float32 40, label int64)" in dataset_line(manifest)

    def test_scalar_columns_are_described_without_being_decoded(self, table, monkeypatch):
        monkeypatch.setattr(pq.ParquetFile, "read_row_group", None)
        assert len(formats.get("parquet").infer_schema(table).fields) == 41


@pytest.mark.parametrize("write", [as_parquet, as_arrow, as_csv])
def test_text_in_a_table_is_refused_with_the_selection_of_the_other_columns(tmp_path, write):
    path = tmp_path / f"t.{write.__name__.removeprefix('as_')}"
    write(path, {"name": ["a", "b"], "age": [1.5, 2.0], "label": [0, 1]})
    error = refused(path, "unsupported-dtype")
    assert error.found == "string"
    assert "::age,label " in error.hint
    source = open_source(f"{path}::label,age")
    assert everything(source).keys() == {"age", "label"}
    assert source.description["arrays"] == ["label", "age"]
    hint = "did you mean age? it holds name, age, label"
    with refused_as("unknown-array", SourceError, path=path, hint=hint):
        open_source(f"{path}::agee")


def test_many_alike_fields_are_described_as_a_count():
    schema = Schema(1, (*(Field(f"x{i}", (), "float32") for i in range(40)), Field("label", (), "int64")))
    assert schema.describe() == "40 × float32, label int64"


class TestFormats:
    def test_memory_of_the_process_that_reads_is_limited(self, tmp_path, monkeypatch):
        """The limit keeps a file that unpacks to more than the machine has from filling memory."""
        path = tmp_path / "a.h5"
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=np.zeros((64, 1 << 20)), chunks=(8, 1 << 20), compression="gzip")
        monkeypatch.setattr(sandbox, "MEMORY_BYTES", 40 << 20)
        refused(path)
        monkeypatch.undo()
        assert sum(len(batch["x"]) for batch in checked(open_source(path))) == 64

    def test_the_limit_of_memory_is_named(self, tmp_path, monkeypatch):
        # one allocation is too large, and there is enough for all others, whose failure may crash the library
        table = pa.table({"x": np.zeros(32 << 20)})
        pq.write_table(table, tmp_path / "a.parquet", row_group_size=32 << 20, use_dictionary=False)
        monkeypatch.setattr(sandbox, "MEMORY_BYTES", 128 << 20)
        error = refused(tmp_path / "a.parquet", "memory-limit")
        assert "MiB" in error.problem
