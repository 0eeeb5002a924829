"""Trends over several runs: steps are detected; scatter and changes of the machine are none."""

import dataclasses
import html
import json
import random

import pytest
from record_cases import MIB, STEADY, rounds_of

from iobench.base.machine import BackgroundLoad
from iobench.results import record_file, trend
from iobench.results.parts import LimitPart
from iobench.results.trend import MIN_RUNS, MIN_STEP_RUNS, case_points


def a_run(number, factor=1.0, limit=10_000.0, busy=False, **chosen):
    """Return a run at a multiple of the usual speed on day `number`."""
    sample = LimitPart(name="page cache", bytes_per_s=limit * MIB, now_bytes_per_s=limit * MIB)
    return [
        dataclasses.replace(
            one,
            run=f"run{number}",
            time=f"2026-01-{number + 1:02}T03:{one.round:02}:05.678+00:00",
            limit=sample,
            background=BackgroundLoad(processors=0.6 if busy else 0.0),
        )
        for one in rounds_of([speed * factor for speed in STEADY], **chosen)
    ]


def trends(runs):
    """Return the trends over records by the name of their run."""
    return trend.trends([one for name, records in runs.items() for one in case_points(name, records)])


def course(factors, limits=None, **chosen):
    """Return the trend over runs at multiples of the usual speed that scatter by 1 %."""
    generator = random.Random(1)
    limits = limits or [10_000] * len(factors)
    runs = {
        f"n{number}": a_run(number, factor * generator.gauss(1, 0.01), limit, **chosen)
        for number, (factor, limit) in enumerate(zip(factors, limits, strict=True))
    }
    (result,) = trends(runs)
    return result


def test_a_step_is_found_and_described_in_one_line():
    result = course([1] * 6 + [0.8] * 6)
    assert (result.step.before, result.step.after) == ("n5", "n6")
    assert (result.outcome, result.step.case_specific) == ("slower", True)
    assert result.step.limit_ratio == pytest.approx(1.0)
    assert result.step.ratio == pytest.approx(0.8, rel=0.03)
    assert "\n" not in result.sentence
    faster = course([1] * 5 + [1.3] * 5)
    assert (faster.outcome, faster.case) == ("faster", "npy · native")
    assert faster.step.ratio == pytest.approx(1.3, rel=0.03)


def test_runs_that_only_scatter_have_no_step():
    generator, false = random.Random(5), 0
    for _ in range(40):
        result = course([generator.gauss(1, 0.1) for _ in range(12)])
        false += result.step is not None
    assert false <= 5
    assert course([1] * 12).outcome == "no-step"


def test_a_step_of_the_machine_is_not_attributed_to_the_case():
    result = course([1] * 6 + [0.5] * 6, [10_000] * 6 + [5000] * 6)
    assert (result.outcome, result.step.case_specific) == ("machine-changed", False)
    assert result.step.limit_ratio == pytest.approx(0.5)


def test_too_few_runs_have_no_step():
    assert trends({"a": a_run(1), "b": a_run(2)}) == []
    few = course([1, 1, 0.5, 0.5])
    assert (few.step, few.outcome) == (None, "too-few-runs")
    assert str(MIN_STEP_RUNS) in few.sentence


def test_the_rounds_of_a_race_are_no_run():
    runs = {f"n{n}": a_run(n) for n in range(8)} | {f"race{n}": a_run(n, 0.3)[:2] for n in range(8, 14)}
    (result,) = trends(runs)
    assert [point.run for point in result.points] == [f"n{n}" for n in range(8)]
    (short,) = trends({f"race{n}": a_run(n)[:1] for n in range(4)})
    assert len(short.points) == 4


def test_a_run_in_several_files_is_one_point_with_the_most_rounds():
    runs = {f"n{n}": a_run(n) for n in range(8)}
    (result,) = trends({**runs, "copy": a_run(3)[:4]})
    assert [point.run for point in result.points] == list(runs)


def test_runs_under_background_load_are_shown_and_excluded_from_steps():
    runs = {f"n{n}": a_run(n, 1 if n < 8 else 0.5, busy=n >= 8) for n in range(14)}
    (result,) = trends(runs)
    assert len(result.points) == 14
    assert result.step is None
    assert result.busy_runs == 6


def test_each_case_has_its_own_trend_and_those_with_a_step_come_first():
    steps = {f"n{n}": a_run(n) + a_run(n, 1 if n < 6 else 0.7, variant="hdf5") for n in range(12)}
    result = trends(steps)
    assert [one.step is not None for one in result] == [True, False]
    assert result[0].case == "hdf5 · native"
    assert result[0].sparkline == "██████▆▆▆▆▆▆"


@pytest.fixture
def folder(tmp_path):
    """A data folder with twelve runs, the last six of which are slower."""
    for number in range(12):
        for one in a_run(number, 1 if number < 6 else 0.7):
            record_file.append(tmp_path / "results" / f"run-{number:02}.jsonl", one)
    return tmp_path


def test_the_commands_show_the_trend_and_its_step(folder, inside):
    listed = inside("runs", "--data-dir", folder)
    assert all(text in listed.stdout for text in ("run-06", "1.43"))
    shown = inside("runs", "--data-dir", folder, "trend")
    assert "██████▆▆▆▆▆▆" in shown.stdout
    (one,) = json.loads(inside("runs", "--data-dir", folder, "trend", "--json").stdout)
    assert (one["outcome"], one["step"]["after"], len(one["points"])) == ("slower", "run-06", 12)
    assert one["sentence"] in " ".join(listed.stdout.split())
    assert one["sentence"] in " ".join(shown.stdout.split())


def test_without_several_runs_there_is_no_trend(tmp_path, inside):
    done = inside("runs", "--data-dir", tmp_path, "trend")
    assert (done.returncode, done.stdout) == (0, "")
    assert str(MIN_RUNS) in done.stderr


def test_the_report_draws_the_runs_of_its_cases(folder, inside, tmp_path):
    done = inside("report", "--data-dir", folder, "--out", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "page.html").read_text()
    assert 'id="over-runs"' in page
    (one,) = json.loads(inside("runs", "--data-dir", folder, "trend", "--json").stdout)
    assert html.escape(one["sentence"], quote=False).replace("'", "&#39;") in page
