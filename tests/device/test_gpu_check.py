"""scripts/gpu_check: what it says without a GPU, and its own questions asked of the made-up device."""

import json
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

pytest_plugins = "plugged"

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "gpu_check"


@pytest.fixture(scope="module")
def gpu_check():
    loader = SourceFileLoader("gpu_check", str(SCRIPT))
    module = module_from_spec(spec_from_loader("gpu_check", loader))
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    loader.exec_module(module)
    sys.dont_write_bytecode = before
    return module


@pytest.fixture
def check(gpu_check, images, tmp_path):
    made = gpu_check.Check("sim:1", tmp_path / "out", "1MiB")
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


@pytest.mark.parametrize("question", ["identity", "late_consumer"])
def test_its_questions_hold_on_a_device_that_does_as_it_should(gpu_check, check, machine, question):
    check.step(question, lambda: getattr(gpu_check, question)(check))
    ((_, verdict, said),) = check.verdicts
    assert verdict == gpu_check.HOLDS, said


def test_a_question_that_fails_is_answered_and_the_next_one_asked(gpu_check, check):
    def refuse():
        raise ValueError("first line\nsecond")

    check.step("one", refuse)
    check.step("two", lambda: (gpu_check.HOLDS, "yes"))
    lines = (check.out / "verdicts.txt").read_text().splitlines()
    assert lines == ["one: fails: ValueError: first line", "two: holds: yes"]
    assert [one["verdict"] for one in json.loads((check.out / "verdicts.json").read_text())] == [
        "fails",
        "holds",
    ]


def test_where_time_is_up_it_says_so(gpu_check, check):
    check.began -= gpu_check.TOTAL_S + 1
    check.step("one", lambda: pytest.fail("it was asked"))
    assert check.verdicts == [("one", gpu_check.UNKNOWN, "no time was left for it")]


def test_a_library_that_is_not_there_is_named_so(gpu_check):
    assert gpu_check.installed("no_such_library.dali") == (gpu_check.UNKNOWN, "not installed")
    assert gpu_check.installed("no_such_library") == (gpu_check.UNKNOWN, "not installed")
