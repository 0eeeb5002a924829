"""scripts/gpu_check: its output without a GPU, and its steps on the simulated device."""

import json
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent.parent / "scripts"
sys.path.append(str(SCRIPTS))
from eval.gpu_check import check as checking  # noqa: E402 - not an installed package
from eval.gpu_check import commands, device_checks, plan  # noqa: E402

pytest_plugins = "plugged"

SCRIPT = SCRIPTS / "gpu_check"


@pytest.fixture
def check(images, tmp_path):
    made = checking.Check("sim:1", tmp_path / "out", "1MiB")
    made.manifest = lambda: images
    return made


@pytest.fixture
def script(monkeypatch, capsys):
    """Return a function that runs the script with these arguments, and returns its exit code and output."""

    def script(*arguments):
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, arguments)])
        return plan.main(), *capsys.readouterr()

    return script


def test_without_a_gpu_it_is_an_error_in_one_line(script, tmp_path):
    code, out, err = script("--device", "cuda:77", "--out", tmp_path / "out")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("gpu_check: ")
    assert "cuda:77" in err
    assert not (tmp_path / "out").exists()


def test_the_plan_is_printed_without_a_gpu_and_takes_less_than_eight_minutes(script):
    code, out, _ = script("--plan")
    *steps, total = out.splitlines()
    assert code == 0
    assert [line.partition("  ")[0] for line in steps] == [step.name for step in plan.PLAN]
    assert max(sum(step.seconds for step in plan.PLAN), checking.TOTAL_S) < 8 * 60
    assert total.startswith("total")


@pytest.mark.parametrize(
    "step", [device_checks.identity, device_checks.allocations, device_checks.late_consumer]
)
def test_its_steps_pass_on_a_correct_device(check, machine, step):
    check.step("it", step)
    ((_, verdict, output),) = check.verdicts
    assert verdict == checking.PASS, output


def test_the_clock_step_passes_if_torch_runs_backward_passes(check, late):
    check.device = "sim:0"  # this back end supports only the first device
    check.step("clock", device_checks.clock)
    assert check.verdicts[0][1] == checking.PASS, check.verdicts


def test_a_step_runs_in_a_child_process(check, monkeypatch, tmp_path):
    """A device error ends that step alone: here the device is missing."""
    check.step("clock", lambda check: check.run_in_child("clock"))
    ((_, verdict, output),) = check.verdicts
    assert verdict == checking.FAIL
    assert output.startswith("gpu_check: ")
    assert "'sim:1'" in output


def test_a_step_that_takes_twice_its_estimate_is_killed(check):
    check.step(
        "one", lambda check: check.call("one.txt", "timeit", "-n", "1", "import time; time.sleep(60)"), 0.1
    )
    ((name, verdict, output),) = check.verdicts
    assert (name, verdict) == ("one", checking.UNKNOWN)
    assert "0 s" in output


def test_a_failed_step_has_a_verdict_and_the_next_one_runs(check):
    def refuse(check):
        raise ValueError("first\nsecond")

    check.step("one", refuse)
    check.step("two", lambda check: (checking.PASS, "yes"))
    lines = (check.out / "verdicts.txt").read_text().splitlines()
    assert [line.split(": ") for line in lines] == [
        ["one", "fail", "ValueError", "first"],
        ["two", "pass", "yes"],
    ]
    result = json.loads((check.out / "verdicts.json").read_text())
    assert [one["verdict"] for one in result] == ["fail", "pass"]


def test_without_time_left_the_verdict_is_unknown(check):
    check.began -= checking.TOTAL_S + 1
    check.step("one", lambda check: pytest.fail("the step ran"))
    assert [one[:2] for one in check.verdicts] == [("one", checking.UNKNOWN)]


def test_a_missing_library_is_named(check, monkeypatch):
    assert not commands.installed("no_such_library.dali")
    monkeypatch.setattr(commands, "installed", lambda module: False)
    for step, extra in ((commands.kvikio, "gds"), (commands.dali, "dali")):
        verdict, output = step(check)
        assert verdict == checking.UNKNOWN
        assert f"'iobench[{extra}]'" in output
