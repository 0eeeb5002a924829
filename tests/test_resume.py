"""Resuming of interrupted runs, and its refusal where it would be another run."""

import dataclasses
import itertools
import json
import shlex
from collections import Counter

import pytest
from conftest import complaint, image_arrays, numbers, prepared
from kinds import complaint_kind, kind

import iobench
from iobench.base.errors import InvalidSettings, RecordError
from iobench.bench.budget import Budget
from iobench.bench.options import RunOptions
from iobench.bench.outcome import Observer
from iobench.bench.plans import interrupted_run
from iobench.host import machine_info
from iobench.results import history, record_file

ROUNDS = 4


class Stopping(Observer):
    """Ctrl-C after a number of rounds."""

    def __init__(self, after):
        self.left, self.lines, self.earlier = after, [], []

    def recorded(self, key, made):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt

    def status(self, text):
        self.lines.append(text)

    def resumed(self, records):
        self.earlier += records


def options(*loaders, **chosen):
    given = {"device": ("cpu",), "batch_size": (32,), "rounds": str(ROUNDS), "limits": False, **chosen}
    return RunOptions(("npy",), loaders or ("native", "dataloader"), **given)


@pytest.fixture
def cut(images, tmp_path):
    """The file of a run of two cases and four rounds, interrupted after five records."""
    path = tmp_path / "r.jsonl"
    assert iobench.run(images, options(), out=path, observer=Stopping(5)).interrupted
    return path


def resume(images, path, observer=None, budget=None):
    planned, rounds = interrupted_run(path)
    return iobench.run(
        images, planned.run, out=path, observer=observer, earlier_records=rounds, budget=budget
    )


def turns(path):
    return [(one.settings_key, one.round) for one in record_file.read(path)[0]]


def test_the_missing_rounds_are_made_in_the_planned_order(images, cut, tmp_path):
    assert len(turns(cut)) == 5
    watching = Stopping(0)
    done = resume(images, cut, watching)
    assert not done.failures
    assert set(Counter(turns(cut)).values()) == {1}
    assert len(turns(cut)) == 2 * ROUNDS
    assert len({one.run for one in record_file.read(cut)[0]}) == 1
    assert len(watching.earlier) == 5
    assert any(str(cut) in line and "5 of 8" in line for line in watching.lines)
    iobench.run(images, options(), out=tmp_path / "whole.jsonl")
    assert turns(cut) == turns(tmp_path / "whole.jsonl")


def test_a_truncated_line_stays_separate_from_the_next(images, cut):
    with open(cut, "a") as file:
        file.write('{"run": "half a rec')
    resume(images, cut)
    records, errors = record_file.read(cut)
    assert len(records) == 2 * ROUNDS
    assert len(errors) == 1


def test_the_last_run_of_a_file_is_resumed(images, cut):
    assert iobench.run(images, options("stream"), out=cut, observer=Stopping(2)).interrupted
    resume(images, cut)
    last = record_file.read(cut)[0][5:]
    assert [one.round for one in last] == list(range(1, ROUNDS + 1))
    assert {one.case["loader"] for one in last} == {"stream"}


def test_the_plan_is_in_the_first_record_and_in_no_export(images, cut, tmp_path):
    first, *others = record_file.read(cut)[0]
    assert len(first.plan["cases"]) == 2
    assert not any(one.plan for one in others)
    history.export([first], tmp_path / "t.csv")
    assert "plan" not in (tmp_path / "t.csv").read_text().splitlines()[0]


def test_a_complete_run_is_not_resumed(images, cut):
    resume(images, cut)
    with pytest.raises(InvalidSettings, check=kind("nothing-to-resume", path=cut), match="8 rounds"):
        resume(images, cut)


def test_auto_adds_the_rounds_that_it_needs(images, tmp_path):
    path = tmp_path / "auto.jsonl"
    asked = options("native", rounds="auto", max_time=3.0)
    budget = Budget(3.0, clock=itertools.count(0.0, 0.04).__next__)  # of as many rounds on any machine
    iobench.run(images, asked, out=path, observer=Stopping(3), budget=budget)
    before = len(turns(path))
    resume(images, path, budget=budget)
    assert len(turns(path)) > before
    assert set(Counter(turns(path)).values()) == {1}


def test_another_machine_is_refused(images, cut, monkeypatch):
    real = machine_info.describe
    monkeypatch.setattr(
        machine_info, "describe", lambda *a: dataclasses.replace(real(*a), cpu="Z80", kernel="1")
    )
    with pytest.raises(InvalidSettings, check=kind("other-machine")) as caught:
        resume(images, cut)
    for part in ("cpu was", "is Z80", "kernel was"):
        assert part in caught.value.problem
    assert len(turns(cut)) == 5


def test_other_data_are_refused(cut, tmp_path):
    arrays = image_arrays()
    arrays["x"][0] += 1
    other = prepared(tmp_path, arrays, ["npy"])
    fields = {
        "expected": f"content {record_file.read(cut)[0][0].dataset.content}",
        "found": f"{other.content:016x}",
    }
    with pytest.raises(InvalidSettings, check=kind("other-content", **fields)):
        resume(other, cut)


def test_other_cases_are_refused(tmp_path):
    manifest, _ = iobench.prepare(numbers(), ["npy"], data_dir=tmp_path)
    every = dataclasses.replace(options("native"), format=("all",))
    iobench.run(manifest, every, out=tmp_path / "r.jsonl", observer=Stopping(2))
    more, _ = iobench.prepare(numbers(), ["memmap"], data_dir=tmp_path)
    with pytest.raises(InvalidSettings, check=kind("other-cases"), match="memmap · native"):
        resume(more, tmp_path / "r.jsonl")


def test_records_without_a_plan_are_refused(cut):
    first, *others = map(json.loads, cut.read_text().splitlines())
    for plan, name in ((None, "no-plan"), ({"run": {"rounds": 3}}, "invalid-plan")):
        first["plan"] = plan
        cut.write_text("".join(json.dumps(line) + "\n" for line in (first, *others)))
        with pytest.raises(RecordError, check=kind(name, path=cut)):
            interrupted_run(cut)


def test_the_command_resumes_by_name_and_takes_no_other_option(images, inside, monkeypatch):
    monkeypatch.setattr(
        "iobench.terminal.live.Lines.recorded", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    data_dir = images.root.parent
    given = ("--format", "npy", "--loader", "native", "--device", "cpu", "--rounds", 3, "--no-limits")
    done = inside("run", "--data-dir", data_dir, *given)
    assert done.returncode == 130
    typed = shlex.split(done.stderr.strip().rpartition(": ")[2])
    assert typed[:2] == ["iobench", "run"]
    monkeypatch.undo()
    monkeypatch.setattr("sys.argv", ["iobench"])
    refused = inside(*typed[1:], "--rounds", 5)
    assert complaint_kind(refused, 2) == "conflicting-options"
    assert "--rounds" in complaint(refused, 2)
    done = inside(*typed[1:])
    assert done.returncode == 0, done.stderr
    assert len(turns(data_dir / "results" / f"{typed[-1]}.jsonl")) == 3
    assert complaint_kind(inside("run", "--data-dir", data_dir, "--resume", "nothing")) == "unknown-run"
