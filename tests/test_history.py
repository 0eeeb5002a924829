"""Past runs: listed, shown, deleted, exported."""

import csv
import dataclasses
import json
import os
import shlex
import subprocess
import sys

import pytest
from kinds import complaint_kind, has, kind
from record_cases import STEADY, a_record, profiled, rounds_of

from iobench import studies
from iobench.advise import recommendation as recommendations
from iobench.base.errors import MissingDependency, RecordError
from iobench.base.files import replace_file
from iobench.results import history, record_file
from iobench.studies import Measurements

STUDY = studies.StudyResult("x", "s", "a", Measurements({}), [], {"cpu": "Z80"}, "2026-01-01T00:00:00+00:00")


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


def test_deleting_without_a_terminal_needs_yes(root, inside):
    refused = inside("runs", "--data-dir", root, "delete", "first")
    assert complaint_kind(refused, 2) == "needs-confirmation"
    assert "--yes" in refused.stderr
    assert (root / "results" / "first.jsonl").exists()
    assert inside("runs", "--data-dir", root, "delete", "first", "--yes").returncode == 0
    assert not (root / "results" / "first.jsonl").exists()


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


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_table_has_a_row_per_round_with_the_figures_of_the_record(root, tmp_path, suffix):
    records = [*record_file.read(root / "results" / "first.jsonl")[0], profiled(a_record(5), {"read": 1.0})]
    path = tmp_path / f"t.{suffix}"
    history.export(records, path)
    if suffix == "csv":
        with open(path, newline="") as file:
            rows = list(csv.DictReader(file))
    else:
        rows = pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()
    assert [float(row["bytes_per_s"]) for row in rows] == [one.bytes_per_s for one in records]
    assert [row["timing_stages_read"] or None for row in rows][4:] in ([None, 1.0], [None, "1.0"])
    assert (rows[0]["case_format"], rows[0]["machine_disk_model"], int(rows[0]["round"])) == (
        "npy",
        "fast",
        1,
    )


@pytest.mark.parametrize(
    ("name", "problem"), [("t.xlsx", "unknown-suffix"), ("no/t.csv", "not-writable"), ("mine.csv", "exists")]
)
def test_a_table_that_cannot_be_written_is_refused(tmp_path, name, problem):
    (tmp_path / "mine.csv").write_text("mine")
    with pytest.raises(RecordError, check=kind(problem, path=tmp_path / name)):
        history.export(rounds_of(STEADY), tmp_path / name)
    assert (tmp_path / "mine.csv").read_text() == "mine"


@pytest.mark.parametrize("suffix", ["csv", "study"])
def test_a_full_disk_leaves_what_was_there_and_nothing_else(tmp_path, monkeypatch, suffix):
    def full(*_):
        raise OSError(28, "No space left on device")

    if suffix == "study":
        studies.save(STUDY, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RecordError, check=kind("not-writable")):
        studies.save(STUDY, tmp_path) if before else history.export(rounds_of(STEADY), tmp_path / "t.csv")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == before


def test_a_file_with_the_longest_name_is_replaced(tmp_path):
    replace_file(tmp_path / ("x" * 255), b"content")
    assert (tmp_path / ("x" * 255)).read_bytes() == b"content"


@pytest.mark.parametrize("past", [studies.past, recommendations.past, history.past])
def test_results_that_cannot_be_listed_are_an_error(past, tmp_path):
    (tmp_path / "results").touch()
    with pytest.raises(RecordError, check=kind("not-readable", hint=has("--data-dir"))):
        past(tmp_path)


@pytest.mark.parametrize("past", [studies.past, recommendations.past])
def test_a_link_in_a_circle_is_named(past, tmp_path):
    (tmp_path / "results").mkdir()
    for suffix in ("study", "recommendation"):
        loop = tmp_path / "results" / f"x.{suffix}.json"
        loop.symlink_to(loop)
    results, problems = past(tmp_path)
    assert (results, [problem.kind for problem in problems]) == ([], ["not-a-result"])


def test_all_runs_are_exported_unless_some_are_named(root, inside, tmp_path):
    (root / "results" / "third.jsonl").touch()
    for name, arguments, rows in (("a.csv", (), 15), ("b.csv", ("first",), 5)):
        done = inside("runs", "--data-dir", root, "export", "--out", tmp_path / name, *arguments)
        assert (done.returncode, "third.jsonl" in done.stderr) == (0, name == "a.csv")
        assert len((tmp_path / name).read_text().splitlines()) == 1 + rows


def test_what_is_no_file_or_holds_no_round_is_named_and_hides_no_run(root, inside):
    (root / "results" / "empty.jsonl").touch()
    (root / "results" / "gone.jsonl").symlink_to("nowhere")
    os.mkfifo(root / "results" / "pipe.jsonl")
    os.mkfifo(root / "results" / "pipe.study.json")
    assert {past.name for past in history.past(root) if past.problem} == {"empty", "gone", "pipe"}
    assert history.newest(root).name == "second.jsonl"
    done = inside("report", "--data-dir", root, "--out", root / "r.html")
    assert done.returncode == 0
    assert "pipe.study.json" in done.stderr


@pytest.mark.parametrize("closed", ["results", "results/*.jsonl"])
@pytest.mark.parametrize("command", [(), ("export", "--out", "t.csv"), ("show", "second")])
def test_runs_without_permission_are_not_said_to_be_none(root, inside, unprivileged, closed, command):
    assert inside("runs", "--data-dir", root).returncode == 0  # imports what this user may read
    for path in root.glob(closed):
        path.chmod(0)
    with unprivileged():
        done = inside("runs", "--data-dir", root, *command)
    assert complaint_kind(done) == "no-permission"
    (root / "results").chmod(0o755)


def test_a_run_is_shown_as_data(root, inside):
    shown = json.loads(inside("runs", "--data-dir", root, "show", "second", "--json").stdout)
    (context,) = shown["contexts"]
    cases = [(case["label"], case["leader"]) for case in context["cases"]]
    assert cases == [("npy · native", True), ("lmdb · native", False)]
    for finding in (shown["answer"][0], context["findings"][0]):
        assert (finding["kind"], finding["values"]["fastest"]) == ("fastest", "npy · native")
