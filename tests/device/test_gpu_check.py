"""scripts/gpu_check: what it says without a GPU, and its own questions asked of the made-up device."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent.parent / "scripts"
sys.path.append(str(SCRIPTS))
from _gpu_check import check as checking  # noqa: E402 - it is no package that is installed
from _gpu_check import commands, plan, questions, register  # noqa: E402

pytest_plugins = "plugged"

SCRIPT = SCRIPTS / "gpu_check"


@pytest.fixture
def check(images, tmp_path):
    made = checking.Check("sim:1", tmp_path / "out", "1MiB")
    made.manifest = lambda: images
    return made


def test_without_a_gpu_it_says_so_in_one_line(tmp_path):
    command = [sys.executable, str(SCRIPT), "--device", "cuda:77", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("gpu_check: --device cuda:77: this machine has ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_plan_is_printed_without_a_gpu_and_takes_less_than_eight_minutes():
    done = subprocess.run([sys.executable, str(SCRIPT), "--plan"], capture_output=True, text=True, check=True)
    assert [line.partition("  ")[0] for line in done.stdout.splitlines()[:-1]] == [s.name for s in plan.PLAN]
    assert sum(step.seconds for step in plan.PLAN) < 8 * 60
    assert checking.TOTAL_S < 8 * 60
    assert done.stdout.splitlines()[-1].startswith("together")


@pytest.mark.parametrize("question", [questions.identity, questions.allocations, questions.late_consumer])
def test_its_questions_hold_on_a_device_that_does_as_it_should(check, machine, question):
    check.step("it", question)
    ((_, verdict, output),) = check.verdicts
    assert verdict == checking.HOLDS, output


def test_the_clock_s_question_holds_where_torch_runs_backward_passes(check, late):
    check.device = "sim:0"  # the first device alone, of such a back end
    check.step("clock", questions.clock)
    assert check.verdicts[0][1] == checking.HOLDS, check.verdicts


def test_a_question_is_asked_in_a_process_of_its_own(check, monkeypatch, tmp_path):
    """An error of the device ends that one alone: here the devices are not there."""
    check.step("clock", lambda check: check.apart("clock"))
    ((_, verdict, output),) = check.verdicts
    assert verdict == checking.FAILS
    assert output.startswith("gpu_check: unknown device 'sim:1'")


def test_a_step_that_takes_twice_its_estimate_is_ended(check):
    check.step(
        "one", lambda check: check.call("one.txt", "timeit", "-n", "1", "import time; time.sleep(60)"), 0.1
    )
    assert check.verdicts == [("one", checking.UNKNOWN, "it took more than 0 s")]


def test_a_question_that_fails_is_answered_and_the_next_one_asked(check):
    def refuse(check):
        raise ValueError("first line\nsecond")

    check.step("one", refuse)
    check.step("two", lambda check: (checking.HOLDS, "yes"))
    lines = (check.out / "verdicts.txt").read_text().splitlines()
    assert lines == ["one: fails: ValueError: first line", "two: holds: yes"]
    result = json.loads((check.out / "verdicts.json").read_text())
    assert [one["verdict"] for one in result] == ["fails", "holds"]


def test_where_time_is_up_it_says_so(check):
    check.began -= checking.TOTAL_S + 1
    check.step("one", lambda check: pytest.fail("it was asked"))
    assert check.verdicts == [("one", checking.UNKNOWN, "no time was left for it")]


def test_a_library_that_is_not_there_is_named_so(check, monkeypatch):
    assert not commands.installed("no_such_library.dali")
    monkeypatch.setattr(commands, "installed", lambda module: False)
    for ask, extra in ((commands.kvikio, "gds"), (commands.dali, "dali")):
        assert ask(check) == (checking.UNKNOWN, f"not installed: pip install 'iobench[{extra}]'")


def test_a_mapped_file_that_is_registered_arrives_whole_or_the_trial_fails(check, machine, monkeypatch):
    class Library:
        cudaHostUnregister = staticmethod(lambda address: 0)
        cudaGetLastError = staticmethod(lambda: 0)

        def __init__(self, code):
            self.cudaHostRegister = lambda address, count, flags: code

    assert register.host_register(check)[0] == checking.UNKNOWN  # no libcudart here
    verdicts = []
    for code in (0, 801):
        monkeypatch.setattr(register, "_runtime", lambda code=code: Library(code))
        verdicts.append(register.host_register(check)[0])
    assert verdicts == [checking.HOLDS, checking.UNKNOWN]
    monkeypatch.setattr(register, "_copied", lambda room, there, host: 1.0)
    monkeypatch.setattr(register, "_runtime", lambda: Library(0))
    assert register.host_register(check)[0] == checking.FAILS
