"""Cases over several runs: a step is noticed, chance and the machine's own changes are not taken for one."""

import dataclasses
import json
import random

import pytest
from record_cases import MIB, rounds_of

from iobench.results import record
from iobench.results.parts import LimitPart, OthersPart
from iobench.results.trend import trends

STEADY = [1000, 1010, 990, 1005, 995]


def a_run(number, factor=1.0, limit=10_000.0, busy=False, **chosen):
    """A run at so many times the usual speed on day `number`."""
    found = LimitPart(name="page cache", bytes_per_s=limit * MIB, now_bytes_per_s=limit * MIB)
    return [
        dataclasses.replace(
            one,
            run=f"run{number}",
            time=f"2026-01-{number + 1:02}T03:{one.round:02}:05.678+00:00",
            limit=found,
            others=OthersPart(processors=0.6 if busy else 0.0),
        )
        for one in rounds_of([speed * factor for speed in STEADY], **chosen)
    ]


def course(factors, limits=None, **chosen):
    """Runs that scatter by a per cent, each at so many times the usual speed, and the trend over them."""
    generator = random.Random(1)
    limits = limits or [10_000] * len(factors)
    runs = {
        f"n{number}": a_run(number, factor * generator.gauss(1, 0.01), limit, **chosen)
        for number, (factor, limit) in enumerate(zip(factors, limits, strict=True))
    }
    (found,) = trends(runs)
    return found


def test_a_step_is_noticed_and_told_in_one_line():
    found = course([1] * 6 + [0.8] * 6)
    assert (found.step.before, found.step.after) == ("n5", "n6")
    assert found.step.own
    assert found.step.ratio == pytest.approx(0.8, rel=0.03)
    assert found.sentence.startswith("npy · native on d: slower since n6, it takes 1.2")
    assert found.sentence.endswith("the machine's own limit is 1.00 × what it was (12 runs)")
    assert "\n" not in found.sentence
    assert course([1] * 5 + [1.3] * 5).step.ratio == pytest.approx(1.3, rel=0.03)


def test_runs_that_only_scatter_have_no_step():
    generator, false = random.Random(5), 0
    for _ in range(40):
        found = course([generator.gauss(1, 0.1) for _ in range(12)])
        false += found.step is not None
    assert false <= 5
    assert "no step in 12 runs" in course([1] * 12).sentence


def test_a_step_that_the_machine_made_is_not_called_the_cases():
    found = course([1] * 6 + [0.5] * 6, [10_000] * 6 + [5000] * 6)
    assert found.step.own is False
    assert found.sentence.startswith("npy · native on d: cannot tell: slower since n6")
    assert "the machine's own limit is 0.50 × what it was" in found.sentence


def test_too_few_runs_tell_no_step_and_say_so():
    assert trends({"a": a_run(1), "b": a_run(2)}) == []
    few = course([1, 1, 0.5, 0.5])
    assert few.step is None
    assert few.sentence == "npy · native on d: no step in 4 runs; a step is looked for from 8 quiet runs on"


def test_a_round_of_a_race_is_no_run_among_runs():
    runs = {f"n{n}": a_run(n) for n in range(8)} | {f"race{n}": a_run(n, 0.3)[:2] for n in range(8, 14)}
    (found,) = trends(runs)
    assert [point.run for point in found.points] == [f"n{n}" for n in range(8)]
    (short,) = trends({f"race{n}": a_run(n)[:1] for n in range(4)})
    assert len(short.points) == 4


def test_runs_beside_other_work_are_shown_and_make_no_step():
    runs = {f"n{n}": a_run(n, 1 if n < 8 else 0.5, busy=n >= 8) for n in range(14)}
    (found,) = trends(runs)
    assert len(found.points) == 14
    assert found.step is None
    assert "14 runs, 6 beside other work" in found.sentence


def test_each_case_has_a_course_of_its_own_and_those_with_a_step_come_first():
    steps = {f"n{n}": a_run(n) + a_run(n, 1 if n < 6 else 0.7, variant="hdf5") for n in range(12)}
    found = trends(steps)
    assert [one.step is not None for one in found] == [True, False]
    assert found[0].case == "hdf5 · native"
    assert found[0].course == "██████▆▆▆▆▆▆"


@pytest.fixture
def folder(tmp_path):
    """A data folder with twelve runs, the last six of which are slower."""
    for number in range(12):
        for one in a_run(number, 1 if number < 6 else 0.7):
            record.append(tmp_path / "results" / f"run-{number:02}.jsonl", one)
    return tmp_path


def test_the_commands_show_the_course_and_name_the_step(folder, inside):
    listed = inside("runs", "--data-dir", folder)
    assert "slower since run-06, it takes 1.43 × as long as until run-05" in listed.stdout
    shown = inside("runs", "--data-dir", folder, "trend")
    assert "██████▆▆▆▆▆▆" in shown.stdout
    assert "slower since run-06" in shown.stdout
    (one,) = json.loads(inside("runs", "--data-dir", folder, "trend", "--json").stdout)
    assert (one["step"]["after"], len(one["points"])) == ("run-06", 12)


def test_without_several_runs_there_is_no_trend(tmp_path, inside):
    done = inside("runs", "--data-dir", tmp_path, "trend")
    assert (done.returncode, done.stdout) == (0, "")
    assert "was measured by 3 runs" in done.stderr


def test_the_report_draws_the_runs_of_its_cases(folder, inside, tmp_path):
    done = inside("report", "--data-dir", folder, "--out", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "page.html").read_text()
    assert "From run to run" in page
    assert "slower since run-06" in page
