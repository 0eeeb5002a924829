"""A run that was cut short goes on, and only where it would be the same run."""

import dataclasses
import json
import shlex
from collections import Counter

import pytest
from conftest import complaint, image_arrays, numbers, prepared

import iobench
from iobench.base.errors import (
    InvalidSettings,
    RecordError,
)
from iobench.bench import recorder
from iobench.bench.observer import Observer
from iobench.bench.options import RunOptions
from iobench.bench.resume import earlier
from iobench.results import history, record
from iobench.results.cases import key_of

ROUNDS = 4


class Stopping(Observer):
    """Ctrl-C after so many rounds."""

    def __init__(self, after):
        self.left, self.said = after, []

    def recorded(self, key, made):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt

    def status(self, text):
        self.said.append(text)


def options(*loaders, **chosen):
    given = {"device": ("cpu",), "batch_size": (32,), "rounds": str(ROUNDS), "limits": False, **chosen}
    return RunOptions(("npy",), loaders or ("native", "dataloader"), **given)


@pytest.fixture
def cut(images, tmp_path):
    """The file of a run of two cases and four rounds of which five were made."""
    path = tmp_path / "r.jsonl"
    assert iobench.run(images, options(), out=path, observer=Stopping(5)).interrupted
    return path


def go_on(images, path, observer=None):
    planned, rounds = earlier(path)
    return iobench.run(images, planned.run, out=path, observer=observer, went_before=rounds)


def turns(path):
    return [(key_of(one.case), one.round) for one in record.read(path)[0]]


def test_it_makes_the_rounds_that_are_missing_in_the_turns_that_were_planned(images, cut, tmp_path):
    assert len(turns(cut)) == 5
    watching = Stopping(0)
    done = go_on(images, cut, watching)
    assert not done.failures
    assert set(Counter(turns(cut)).values()) == {1}
    assert len(turns(cut)) == 2 * ROUNDS
    assert len({one.run for one in record.read(cut)[0]}) == 1
    assert f"going on with {cut}: 5 of 8 rounds are there" in watching.said
    iobench.run(images, options(), out=tmp_path / "whole.jsonl")
    assert turns(cut) == turns(tmp_path / "whole.jsonl")


def test_a_line_that_was_cut_off_stays_apart_from_the_next(images, cut):
    with open(cut, "a") as file:
        file.write('{"run": "half a rec')
    go_on(images, cut)
    found, left_out = record.read(cut)
    assert len(found) == 2 * ROUNDS
    assert len(left_out) == 1


def test_the_last_run_of_a_file_goes_on(images, cut):
    assert iobench.run(images, options("stream"), out=cut, observer=Stopping(2)).interrupted
    go_on(images, cut)
    last = record.read(cut)[0][5:]
    assert [one.round for one in last] == list(range(1, ROUNDS + 1))
    assert {one.case["loader"] for one in last} == {"stream"}


def test_the_plan_is_in_the_first_record_and_in_no_export(images, cut, tmp_path):
    first, *others = record.read(cut)[0]
    assert len(first.plan["cases"]) == 2
    assert not any(one.plan for one in others)
    history.export([first], tmp_path / "t.csv")
    assert "plan" not in (tmp_path / "t.csv").read_text().splitlines()[0]


def test_a_run_that_is_whole_has_nothing_left(images, cut):
    go_on(images, cut)
    with pytest.raises(InvalidSettings, match="all 8 rounds are there"):
        go_on(images, cut)


def test_rounds_that_auto_needs_are_made_on_top(images, tmp_path):
    path = tmp_path / "auto.jsonl"
    asked = options("native", rounds="auto", max_time=0.5)
    iobench.run(images, asked, out=path, observer=Stopping(3))
    before = len(turns(path))
    go_on(images, path)
    assert len(turns(path)) > before
    assert set(Counter(turns(path)).values()) == {1}


def test_another_machine_is_refused(images, cut, monkeypatch):
    real = recorder.machine_part
    monkeypatch.setattr(
        recorder, "machine_part", lambda *a: dataclasses.replace(real(*a), cpu="Z80", kernel="1")
    )
    with pytest.raises(
        InvalidSettings, match=r"the machine is not the same \(cpu was .*, is Z80; kernel was"
    ):
        go_on(images, cut)
    assert len(turns(cut)) == 5


def test_other_data_are_refused(cut, tmp_path):
    arrays = image_arrays()
    arrays["x"][0] += 1
    other = prepared(tmp_path, arrays, ["npy"])
    with pytest.raises(InvalidSettings, match=r"the run measured data .*, dataset arrays holds"):
        go_on(other, cut)


def test_other_cases_are_refused(tmp_path):
    manifest, _ = iobench.prepare(numbers(), ["npy"], data_dir=tmp_path)
    every = dataclasses.replace(options("native"), format=("all",))
    iobench.run(manifest, every, out=tmp_path / "r.jsonl", observer=Stopping(2))
    more, _ = iobench.prepare(numbers(), ["memmap"], data_dir=tmp_path)
    with pytest.raises(InvalidSettings, match=r"other cases now than when it began \(memmap · native\)"):
        go_on(more, tmp_path / "r.jsonl")


def test_records_without_a_plan_are_refused(cut):
    lines = [json.loads(line) for line in cut.read_text().splitlines()]
    for line in lines:
        line["plan"] = None
    cut.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(RecordError, match="holds no plan"):
        earlier(cut)
    lines[0]["plan"] = {"run": {"rounds": 3}}
    cut.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(RecordError, match="its plan cannot be read"):
        earlier(cut)


def test_the_command_goes_on_by_name_and_takes_no_plan_beside_it(images, inside, monkeypatch):
    monkeypatch.setattr(
        "iobench.terminal.live.Lines.recorded", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    data_dir = images.root.parent
    given = ("--format", "npy", "--loader", "native", "--device", "cpu", "--rounds", 3, "--no-limits")
    done = inside("run", "--data-dir", data_dir, *given)
    assert done.returncode == 130
    typed = shlex.split(done.stderr.strip().rpartition("go on with: ")[2])
    assert typed[:2] == ["iobench", "run"]
    monkeypatch.undo()
    monkeypatch.setattr("sys.argv", ["iobench"])
    refused = inside(*typed[1:], "--rounds", 5)
    assert "--rounds: the run " in complaint(refused, 2)
    done = inside(*typed[1:])
    assert done.returncode == 0, done.stderr
    assert len(turns(data_dir / "results" / f"{typed[-1]}.jsonl")) == 3
    assert "no run 'nothing'" in complaint(inside("run", "--data-dir", data_dir, "--resume", "nothing"), 1)
