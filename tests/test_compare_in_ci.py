"""The jobs of the page on comparing in CI run as printed, in a clone with a base and a slower head."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from test_compare import VERSION, gate_kinds
from test_pages import ROOT, code

PAGE = ROOT / "docs" / "how-to" / "compare-in-ci.md"
GITHUB, GITLAB = map(yaml.safe_load, code(PAGE, "yaml"))


def git(folder, *words):
    name = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *name, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def clone(tmp_path):
    """Return a clone whose head takes three times as long for a sample as its base."""
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    origin.mkdir()
    git(origin, "init", "-q", "-b", "main")
    (origin / "train.py").write_text(VERSION.replace("def make(", "def make_loader("))
    (origin / "work.py").write_text("WORK_S = 0.01")
    git(origin, "add", ".")
    git(origin, "commit", "-qm", "base")
    git(tmp_path, "clone", "-q", origin, clone)
    (clone / "work.py").write_text("WORK_S = 0.03")
    return clone


def run(line, folder, **variables):
    """Run a line of a job by bash as CI does, with this environment's iobench."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-e", "-c", line],
        cwd=folder,
        env={**os.environ, "PATH": path, **{name: str(value) for name, value in variables.items()}},
        capture_output=True,
        text=True,
    )


def test_the_workflow_fails_for_a_slower_head_and_writes_its_summary(clone, tmp_path):
    steps = {one["name"]: one["run"] for one in GITHUB["jobs"]["compare"]["steps"] if "run" in one}
    install, *others = steps.values()
    assert shlex.split(install)[:2] == ["pip", "install"]
    given = {"RUNNER_TEMP": tmp_path, "GITHUB_BASE_REF": "main", "GITHUB_STEP_SUMMARY": tmp_path / "summary"}
    done = [run(one, clone, **given) for one in others]
    assert [one.returncode for one in done] == [0, 1], done[-1].stderr
    assert gate_kinds(done[-1]) == ["slower"]
    lines = (tmp_path / "summary").read_text().splitlines()
    assert sum(line.startswith("| ") for line in lines) == 3  # the titles, their line, and the case


def test_the_other_job_is_the_same_command():
    install, fetch, checkout, compare = map(shlex.split, GITLAB["loader speed"]["script"])
    assert (install[:2], fetch[:2], checkout[:3]) == (
        ["pip", "install"],
        ["git", "fetch"],
        ["git", "worktree", "add"],
    )
    ours = shlex.split(
        next(one["run"] for one in GITHUB["jobs"]["compare"]["steps"] if one.get("name") == "Compare")
    )
    assert compare[1:3] == ours[ours.index("iobench") + 1 :][:2]
    assert {*compare} - {*ours} == {f"{checkout[3]}/train.py:make_loader"}
