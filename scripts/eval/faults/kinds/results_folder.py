"""Odd files among the results, and missing permissions: they hide no run and hang no command."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from eval.faults.children import drop_rights, tried
from eval.faults.cli_runs import expect, run_cli
from eval.faults.kinds.record_mutations import recorded_run
from eval.faults.registry import Outcome, Trials, kind
from eval.faults.scenarios import NAME

MANY = 300
SUFFIXES = (".jsonl", ".study.json", ".recommendation.json", ".traces", ".jsonl.lock", ".tmp", "")
ODD = ("empty", "dangling", "circle", "fifo", "folder", "socket", "device", "half", "bytes", "denied")
REFUSED = ("no-permission", "not-writable", "is not readable")
COMMANDS = ("runs", "runs --json", "runs trend", "runs show good", "runs export --out new.csv")
DENIED = ("verify", "run --rounds 2 --no-limits --format npy --loader native", "limits --seconds 0.01")


@kind("results-folder")
def results_folder(trials: Trials) -> Iterator[Outcome]:
    """Put files of every type among the results, the newest of all."""
    recorded_run(trials.folder / "data")
    for number in trials.numbers(full=200, quick=20):
        odd = [
            (trials.rng.choice(ODD), trials.rng.choice(SUFFIXES))
            for _ in range(trials.rng.choice((1, 1, 2, 4)))
        ]
        command = "report --out new.html" if number % 8 == 7 else trials.rng.choice(COMMANDS)
        fault = f"{number}: {command} among {odd}"
        yield tried(fault, _among_odd_files, trials.folder, number, odd, command, timeout_s=60)
    for number in trials.numbers(full=10, quick=1):
        yield tried(f"many runs {number}", _among_many, trials.folder, number, trials.rng.random())


@kind("permissions")
def permissions(trials: Trials) -> Iterator[Outcome]:
    """Take the permission of one file or folder from the user who reads."""
    recorded_run(trials.folder / "data")
    _let_others_enter(trials.folder)
    inner = ["data", "data/results", "data/results/good.jsonl", f"data/{NAME}", f"data/{NAME}/manifest.json"]
    for number in trials.numbers(full=200, quick=24):
        modes = (0o000, 0o200, 0o600, 0o700) if os.geteuid() == 0 else (0o000, 0o200)
        mode, seed = trials.rng.choice(modes), trials.rng.random()
        command = trials.rng.choice((*COMMANDS, *DENIED))
        path = trials.rng.choice([*inner, "artifact", "artifact file"])
        fault, given = f"{number}: {command}, {path} of mode {mode:03o}", (path, mode, command, seed)
        yield tried(fault, _without_permission, trials.folder, number, *given, timeout_s=60)


def _copy(folder: Path, number: int) -> Path:
    """Return a new folder with a copy of the data and the run, the current folder from now on."""
    copy = folder / f"trial-{number}"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("trial-*"))
    os.chdir(copy)
    return copy


def _among_odd_files(folder: Path, number: int, odd: list[tuple[str, str]], command: str) -> None:
    copy = _copy(folder, number)
    results = copy / "data" / "results"
    for place, (what, suffix) in enumerate(odd):
        _make(what, results / f"odd{place}{suffix}")
    expect(command.split())
    if command == "runs":
        expect(["runs"], "good")
    shutil.rmtree(copy)


def _among_many(folder: Path, number: int, seed: float) -> None:
    """List, report and plan from many runs, some of them cut off or overwritten."""
    copy, rng = _copy(folder, 1000 + number), random.Random(seed)
    results = copy / "data" / "results"
    good, intact = (results / "good.jsonl").read_bytes(), {"good"}
    for name in map("run-{}".format, range(MANY)):
        damage = rng.choice(("none", "none", "none", "cut", "bytes"))
        intact |= {name} if damage == "none" else set()
        cut = good[: rng.randrange(len(good))]
        (results / f"{name}.jsonl").write_bytes({"none": good, "cut": cut, "bytes": bytes(256)}[damage])
    for again in range(2):  # the second time with an index
        listed = run_cli("runs", "--json")
        assert (listed.code, listed.problem) == (0, None), listed.problem
        runs = {one["name"]: one["problem"] for one in json.loads(listed.stdout)}
        lost = intact - {name for name, problem in runs.items() if problem is None}
        assert not lost, f"listing {again}: lost {sorted(lost)}"
        assert len(runs) == MANY + 1, f"listing {again}: {len(runs)} runs"
    for command in ("runs", "plan --ranks 2 --nodes 1", "report --out new.html"):
        expect(command.split())
    shutil.rmtree(copy)


def _make(what: str, path: Path) -> None:
    if what == "empty":
        path.touch()
    elif what == "dangling":
        path.symlink_to("nowhere")
    elif what == "circle":
        path.symlink_to(path.name)
    elif what == "fifo":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    elif what == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            os.chdir(path.parent)  # the path of a socket is short
            server.bind(path.name)
            os.chdir(path.parents[2])
    elif what == "device":
        path.symlink_to("/dev/zero")
    elif what == "denied":
        path.touch(0)
    else:
        path.write_bytes(b'{"schema": 1, "kind"' if what == "half" else bytes(range(256)))


def _let_others_enter(folder: Path) -> None:
    """Have every user pass the folders above the trials'."""
    for path in (folder, *folder.parents):
        if path.stat().st_mode & 0o005 != 0o005:
            path.chmod(path.stat().st_mode | 0o055)


def _without_permission(folder: Path, number: int, path: str, mode: int, command: str, seed: float) -> None:
    copy = _copy(folder, number)
    artifact = sorted(one for one in (copy / "data" / NAME).iterdir() if one.is_dir() and "npy" in one.name)[
        0
    ]
    files = sorted(one for one in artifact.rglob("*") if one.is_file())
    special = {"artifact": artifact, "artifact file": random.Random(seed).choice(files)}
    target = special.get(path, copy / path)
    for one in (copy, *copy.rglob("*")):
        one.chmod(one.stat().st_mode | (0o777 if one.is_dir() else 0o666))
    target.chmod(mode)
    drop_rights()
    result = run_cli(*command.split())
    assert result.problem is None, result.problem
    said = result.stderr.rstrip("\n").rpartition("\n")[2]
    if result.code:
        assert any(word in said for word in REFUSED), f"not called a permission: {said}"
        assert "--overwrite" not in said, f"harmful advice: {said}"
    elif target.name == "results" and command.startswith("runs"):
        raise AssertionError(f"exit 0: {result.stdout[:300]} {result.stderr[:300]}")
