"""Past runs: listed, shown, deleted, exported."""

import csv
import dataclasses
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from kinds import complaint_kind, kind
from record_cases import STEADY, a_record, profiled, rounds_of

from iobench.base.errors import MissingDependency, RecordError
from iobench.results import history, record_file


@pytest.fixture
def root(tmp_path):
    """A data folder with two runs, the second newer."""
    write(tmp_path, "first", rounds_of(STEADY))
    os.utime(tmp_path / "results" / "first.jsonl", (10**9, 10**9))  # clocks of file systems are coarse
    write(tmp_path, "second", rounds_of(STEADY) + rounds_of([500] * 5, variant="lmdb"))
    return tmp_path


def write(root, name, records):
    for one in records:
        record_file.append(root / "results" / f"{name}.jsonl", one)


def test_runs_are_listed_the_newest_first(root):
    newer, older = history.past(root)
    assert (newer.name, newer.cases, newer.rounds, newer.dataset) == ("second", 2, 5, "d")
    assert (newer.outcome, older.outcome) == ("fastest", "single-case")
    assert all("npy · native" in text for text in (newer.verdict, newer.brief, older.brief))
    assert (older.name, older.cases, older.device, older.cache) == ("first", 1, "cpu", "warm")
    assert history.newest(root).name == "second.jsonl"


def test_a_folder_without_runs_has_none(tmp_path):
    assert history.past(tmp_path) == []
    with pytest.raises(RecordError, check=kind("no-runs", path=tmp_path / "results")) as caught:
        history.newest(tmp_path)
    assert "iobench run" in caught.value.hint


def test_a_folder_that_cannot_be_listed_is_an_error():
    with pytest.raises(RecordError, check=kind("not-readable")) as caught:
        history.past(Path("x/" * 3000))
    assert "--data-dir" in caught.value.hint


def test_a_file_that_cannot_be_read_is_listed_with_its_problem(root):
    (root / "results" / "broken.jsonl").write_text("hello\n")
    broken = next(past for past in history.past(root) if past.problem)
    assert (broken.name, broken.cases, broken.problem.kind) == ("broken", 0, "not-a-record")


def test_a_run_is_found_by_name_by_file_name_and_by_path(root):
    path = root / "results" / "first.jsonl"
    assert {history.find(root, name) for name in ("first", "first.jsonl", str(path))} == {path}
    with pytest.raises(RecordError, check=kind("unknown-run")) as caught:
        history.find(root, "third")
    assert "third" in caught.value.problem
    assert "iobench runs" in caught.value.hint


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


def test_a_file_without_records_is_not_deleted(root):
    path = root / "results" / "notes.jsonl"
    path.write_text("mine\n")
    with pytest.raises(RecordError, check=kind("not-a-record", path=path)):
        history.delete(path)
    assert path.read_text() == "mine\n"


def test_a_table_has_a_row_per_round_with_the_figures_of_the_record(root, tmp_path):
    records, _ = record_file.read(root / "results" / "first.jsonl")
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
    records = [*record_file.read(root / "results" / "first.jsonl")[0], profiled(a_record(5), {"read": 1.0})]
    history.export(records, tmp_path / "t.parquet")
    rows = parquet.read_table(tmp_path / "t.parquet").to_pylist()
    assert [row["bytes_per_s"] for row in rows] == [one.bytes_per_s for one in records]
    assert [row["timing_stages_read"] for row in rows] == [None] * 5 + [1.0]


def test_a_table_overwrites_nothing(root, tmp_path):
    (tmp_path / "t.csv").write_text("mine")
    with pytest.raises(RecordError, check=kind("exists", path=tmp_path / "t.csv")):
        history.export(rounds_of(STEADY), tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text() == "mine"


@pytest.mark.parametrize(("name", "problem"), [("t.xlsx", "unknown-suffix"), ("no/t.csv", "not-writable")])
def test_a_table_that_cannot_be_written_is_refused(tmp_path, name, problem):
    with pytest.raises(RecordError, check=kind(problem, path=tmp_path / name)):
        history.export(rounds_of(STEADY), tmp_path / name)


def test_a_missing_library_is_named_with_the_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        MissingDependency, check=kind("missing-dependency", hint="pip install 'iobench[parquet]'")
    ):
        history.export(rounds_of(STEADY), tmp_path / "t.parquet")


def test_the_command_lists_runs_and_names_unreadable_files(root, inside):
    (root / "results" / "broken.jsonl").write_text("hello\n")
    done = inside("runs", "--data-dir", root)
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()[:3]] == ["name", "second", "first"]
    assert str(root / "results" / "broken.jsonl") in done.stderr
    listed = json.loads(inside("runs", "--data-dir", root, "--json").stdout)
    assert {past["name"]: past["outcome"] for past in listed} == {
        "first": "single-case",
        "second": "fastest",
        "broken": "",
    }
    assert [past["problem"]["kind"] for past in listed if past["problem"]] == ["not-a-record"]


def test_very_long_names_leave_room_for_the_others(root, inside):
    odd = a_record(100)
    odd = dataclasses.replace(odd, case={**odd.case, "cache": "x" * 4000})
    write(root, "odd", [dataclasses.replace(odd, dataset=dataclasses.replace(odd.dataset, name="y" * 4000))])
    lines = inside("runs", "--data-dir", root).stdout.splitlines()
    assert {"odd", "second", "first"} <= {line.split()[0] for line in lines}


def test_without_runs_the_command_to_measure_one_is_shown(tmp_path, inside):
    done = inside("runs", "--data-dir", tmp_path)
    assert (complaint_kind(done, 1), done.stdout) == ("no-runs", "")
    assert "iobench run" in done.stderr


def test_a_run_is_shown_as_it_was_printed(root, inside):
    done = inside("runs", "show", "second", "--data-dir", root)
    assert "batch 256" in done.stdout
    (context,) = json.loads(inside("runs", "--data-dir", root, "show", "second", "--json").stdout)["contexts"]
    assert [case["label"] for case in context["cases"]] == ["npy · native", "lmdb · native"]
    finding = context["findings"][0]
    assert (finding["kind"], finding["values"]["fastest"]) == ("fastest", "npy · native")
    assert finding["message"] in done.stdout


def test_deleting_without_a_terminal_needs_yes(root, inside):
    refused = inside("runs", "--data-dir", root, "delete", "first")
    assert complaint_kind(refused, 2) == "needs-confirmation"
    assert "--yes" in refused.stderr
    assert (root / "results" / "first.jsonl").exists()
    assert inside("runs", "--data-dir", root, "delete", "first", "--yes").returncode == 0
    assert not (root / "results" / "first.jsonl").exists()


def test_all_runs_are_exported_unless_some_are_named(root, inside, tmp_path):
    for name, arguments, rows in (("a.csv", (), 15), ("b.csv", ("first",), 5)):
        done = inside("runs", "--data-dir", root, "export", "--out", tmp_path / name, *arguments)
        assert done.returncode == 0
        assert len((tmp_path / name).read_text().splitlines()) == 1 + rows


def test_an_empty_newest_file_does_not_hide_older_runs(root):
    (root / "results" / "third.jsonl").touch()
    assert history.newest(root).name == "second.jsonl"


def test_what_is_no_file_is_named_and_hides_no_run(root, inside):
    (root / "results" / "gone.jsonl").symlink_to("nowhere")
    os.mkfifo(root / "results" / "pipe.jsonl")
    os.mkfifo(root / "results" / "pipe.study.json")
    assert {past.name for past in history.past(root) if past.problem} == {"gone", "pipe"}
    assert history.newest(root).name == "second.jsonl"
    done = inside("report", "--data-dir", root, "--out", root / "r.html")
    assert done.returncode == 0
    assert "pipe.study.json" in done.stderr


def test_a_table_on_a_full_disk_leaves_no_file(root, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RecordError, check=kind("not-writable")):
        history.export(rounds_of(STEADY), root / "t.csv")
    assert sorted(path.name for path in root.iterdir()) == ["results"]


def test_a_folder_without_permission_is_named(root, unprivileged):
    (root / "results").chmod(0)
    with unprivileged(), pytest.raises(RecordError, check=kind("no-permission", path=root / "results")):
        history.past(root)
    with unprivileged(), pytest.raises(RecordError, check=kind("no-permission")):
        history.find(root, "second")
    (root / "results").chmod(0o755)


def iobench(*arguments, **environment):
    command = [sys.executable, "-m", "iobench", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, env=os.environ | environment, timeout=120)


def test_an_encoding_without_a_character_degrades_it(root):
    done = iobench("runs", "show", "second", "--data-dir", root, PYTHONIOENCODING="ascii")
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False)
    assert b"npy" in done.stdout


def test_closed_output_is_no_error(root):
    command = f"{shlex.quote(sys.executable)} -m iobench runs --data-dir {shlex.quote(str(root))} >&- 2>&-"
    assert subprocess.run(command, shell=True, timeout=120).returncode == 0


def test_a_report_without_docstrings_is_refused_in_one_line(root):
    done = iobench("report", "--data-dir", root, PYTHONOPTIMIZE="2")
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)
    assert b"error[no-docstrings]" in done.stderr


@pytest.mark.parametrize("command", [(), ("export", "--out", "t.csv")])
def test_runs_without_permission_are_not_said_to_be_none(root, inside, unprivileged, command):
    assert inside("runs", "--data-dir", root).returncode == 0  # imports what this user may read
    for path in (root / "results").glob("*.jsonl"):
        path.chmod(0)
    with unprivileged():
        done = inside("runs", "--data-dir", root, *command)
    assert complaint_kind(done) == "no-permission"


def test_an_export_names_runs_that_it_lacks(root, inside):
    (root / "results" / "third.jsonl").touch()
    done = inside("runs", "--data-dir", root, "export", "--out", root / "t.csv")
    assert done.returncode == 0
    assert "third.jsonl" in done.stderr
