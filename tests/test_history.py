"""Earlier runs: listed, shown, deleted, exported."""

import csv
import dataclasses
import json
import sys
from pathlib import Path

import pytest
from record_cases import a_record, profiled, rounds_of

from iobench.base.errors import (
    MissingDependency,
    RecordError,
)
from iobench.results import history, record

STEADY = [1000, 1010, 990, 1005, 995]


@pytest.fixture
def root(tmp_path):
    """A data folder with two runs, the second newer."""
    write(tmp_path, "first", rounds_of(STEADY))
    write(tmp_path, "second", rounds_of(STEADY) + rounds_of([500] * 5, variant="lmdb"))
    return tmp_path


def write(root, name, records):
    for one in records:
        record.append(root / "results" / f"{name}.jsonl", one)


def test_runs_are_listed_the_newest_first(root):
    newer, older = history.past(root)
    assert (newer.name, newer.cases, newer.rounds, newer.dataset) == ("second", 2, 5, "d")
    assert newer.verdict.startswith("Fastest: npy · native, 2.00 ×")
    assert (newer.brief, older.brief) == ("fastest: npy · native", "npy · native alone")
    assert (older.name, older.cases, older.device, older.cache) == ("first", 1, "cpu", "warm")
    assert history.newest(root).name == "second.jsonl"


def test_a_folder_without_runs_has_none(tmp_path):
    assert history.past(tmp_path) == []
    with pytest.raises(RecordError, match=r"no runs in .*make one with 'iobench run'"):
        history.newest(tmp_path)


def test_a_folder_that_cannot_be_looked_into_is_one_line():
    with pytest.raises(RecordError, match="File name too long; name another --data-dir"):
        history.past(Path("x/" * 3000))


def test_a_file_that_cannot_be_read_is_listed_with_its_problem(root):
    (root / "results" / "broken.jsonl").write_text("hello\n")
    broken = next(past for past in history.past(root) if past.problem)
    assert (broken.name, broken.cases) == ("broken", 0)


def test_a_run_is_found_by_name_by_file_name_and_by_path(root):
    path = root / "results" / "first.jsonl"
    assert {history.find(root, name) for name in ("first", "first.jsonl", str(path))} == {path}
    with pytest.raises(RecordError, match=r"no run 'third'.*'iobench runs' lists them"):
        history.find(root, "third")


def test_deleting_removes_records_and_traces_and_nothing_else(root):
    results = root / "results"
    (results / "first.traces").mkdir()
    (results / "first-2.traces").mkdir()
    for name in ("first.traces/npy.json", "first-2.traces/npy.json", "first-notes.txt", "firsts.jsonl"):
        (results / name).write_text("mine")
    gone = history.delete(results / "first.jsonl")
    assert gone == [results / "first.jsonl", results / "first.traces" / "npy.json"]
    left = {"second.jsonl", "first-2.traces", "first-notes.txt", "firsts.jsonl"}
    assert {path.name for path in results.iterdir()} == left
    assert (results / "first-2.traces" / "npy.json").read_text() == "mine"


def test_what_holds_no_records_is_not_deleted(root):
    path = root / "results" / "notes.jsonl"
    path.write_text("mine\n")
    with pytest.raises(RecordError):
        history.delete(path)
    assert path.read_text() == "mine\n"


def test_a_table_has_a_row_per_round_with_the_figures_of_the_record(root, tmp_path):
    records, _ = record.read(root / "results" / "first.jsonl")
    history.export(records, tmp_path / "t.csv")
    with open(tmp_path / "t.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["bytes_per_s"]) for row in rows] == [one.bytes_per_s for one in records]
    assert next((row["case_format"], row["machine_disk_model"], row["round"]) for row in rows) == (
        "npy",
        "fast",
        "1",
    )


def test_parquet_holds_the_same_as_csv(root, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    records = [*record.read(root / "results" / "first.jsonl")[0], profiled(a_record(5), {"read": 1.0})]
    history.export(records, tmp_path / "t.parquet")
    found = parquet.read_table(tmp_path / "t.parquet").to_pylist()
    assert [row["bytes_per_s"] for row in found] == [one.bytes_per_s for one in records]
    assert [row["timing_stages_read"] for row in found] == [None] * 5 + [1.0]


def test_a_table_overwrites_nothing(root, tmp_path):
    (tmp_path / "t.csv").write_text("mine")
    with pytest.raises(RecordError, match="is there already"):
        history.export(rounds_of(STEADY), tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "said"), [("t.xlsx", r"\.csv or \.parquet"), ("no/t.csv", "cannot be written")]
)
def test_a_table_that_cannot_be_is_refused(tmp_path, name, said):
    with pytest.raises(RecordError, match=said):
        history.export(rounds_of(STEADY), tmp_path / name)


def test_a_missing_library_is_named_with_the_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependency, match=r"pip install 'iobench\[parquet\]'"):
        history.export(rounds_of(STEADY), tmp_path / "t.parquet")


def test_the_command_lists_and_names_what_it_cannot_read(root, inside):
    (root / "results" / "broken.jsonl").write_text("hello\n")
    done = inside("runs", "--data-dir", root)
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()[:3]] == ["name", "second", "first"]
    assert "left out: " in done.stderr
    listed = json.loads(inside("runs", "--data-dir", root, "--json").stdout)
    assert {past["name"] for past in listed} == {"first", "second", "broken"}


def test_a_word_without_end_leaves_room_for_the_others(root, inside):
    odd = a_record(100)
    odd = dataclasses.replace(odd, case={**odd.case, "cache": "x" * 4000})
    write(root, "odd", [dataclasses.replace(odd, dataset=dataclasses.replace(odd.dataset, name="y" * 4000))])
    lines = inside("runs", "--data-dir", root).stdout.splitlines()
    assert {"odd", "second", "first"} <= {line.split()[0] for line in lines}


def test_no_runs_say_how_to_make_one(tmp_path, inside):
    done = inside("runs", "--data-dir", tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert "iobench run" in done.stderr


def test_a_run_is_shown_as_it_was_printed(root, inside):
    done = inside("runs", "show", "second", "--data-dir", root)
    assert "Fastest: npy · native" in done.stdout
    assert "batch 256" in done.stdout
    found = json.loads(inside("runs", "--data-dir", root, "show", "second", "--json").stdout)
    assert [case["label"] for case in found["contexts"][0]["cases"]] == ["npy · native", "lmdb · native"]


def test_deleting_asks_and_without_anybody_there_needs_yes(root, inside):
    refused = inside("runs", "--data-dir", root, "delete", "first")
    assert refused.returncode == 2
    assert "give --yes" in refused.stderr
    assert (root / "results" / "first.jsonl").exists()
    assert inside("runs", "--data-dir", root, "delete", "first", "--yes").returncode == 0
    assert not (root / "results" / "first.jsonl").exists()


def test_all_runs_are_exported_unless_some_are_named(root, inside, tmp_path):
    for name, arguments, rows in (("a.csv", (), 15), ("b.csv", ("first",), 5)):
        done = inside("runs", "--data-dir", root, "export", "--out", tmp_path / name, *arguments)
        assert done.returncode == 0
        assert len((tmp_path / name).read_text().splitlines()) == 1 + rows
