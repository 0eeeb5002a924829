"""Loaders from another package: found by entry points, run apart, proved by what they promise."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from plugin_cases import PACKAGE, installed, made

import iobench
from iobench import formats
from iobench.bench.options import RunOptions
from iobench.formats import BrokenPlugin
from iobench.loading import loaders

OURS = loaders.names()


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(installed(folder))
    return folder


def run(manifest, folder, *words, **more):
    chosen = {"device": ("cpu",), "order": ("random", "sequential"), "rounds": "2", "limits": False}
    asked = RunOptions(("npy",), words, **{**chosen, **more})
    return iobench.run(manifest, asked, out=folder / "r.jsonl")


def test_they_are_among_the_loaders(package):
    assert loaders.names() == sorted([*OURS, "loop", "tape"])
    assert loaders.parse("tape:buffer=3").buffer == 3
    described = {one["name"]: one for one in loaders.describe()}
    assert described["tape"]["options"][0]["help"] == "samples that are shuffled among each other"


def test_their_options_are_options_of_the_command(package):
    done = subprocess.run(
        [sys.executable, "-m", "iobench", "run", "--help"],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": f"{package}:{Path(iobench.__file__).parent.parent}", "PATH": "/usr/bin"},
    )
    assert "--buffer" in done.stdout
    assert "--fetch" in done.stdout


def test_they_run_in_a_process_of_their_own_where_they_fit(package, images, tmp_path):
    found = run(images, tmp_path, "tape", "loop", "native")
    assert not found.failures
    cases = {(one.case["loader"], one.case["order"], one.case["isolated"]) for one in found.records}
    assert cases == {
        ("tape", "random", True),
        ("loop", "random", True),
        ("native", "random", False),
        ("native", "sequential", False),
    }


SPOILED = {
    "203: it dropped 1": lambda rows: rows[:-1],
    "203: it repeated 1": lambda rows: np.append(rows, 0),
    "wrong content on the device": lambda rows: np.append(rows[1:], rows[-1]),
}


def spoil(monkeypatch, cls, change):
    rows = cls._rows
    monkeypatch.setattr(cls, "_rows", lambda self, rng: change(rows(self, rng)))


@pytest.mark.parametrize("said", SPOILED)
def test_what_they_drop_or_repeat_is_found_by_the_proof(package, images, tmp_path, monkeypatch, said):
    import iobench_tape

    spoil(monkeypatch, iobench_tape.TapeEpochs, SPOILED[said])
    found = run(images, tmp_path, "tape", isolate=False)
    ((_, reason),) = found.failures.items()
    assert said in reason
    assert not found.records


@pytest.mark.parametrize("missing", [True, False])
def test_a_loader_that_repeats_has_to_give_every_sample(package, images, tmp_path, monkeypatch, missing):
    import iobench_tape

    def change(rows):
        kept = rows[rows != 7] if missing else rows
        return np.append(kept, kept[:3])

    spoil(monkeypatch, iobench_tape.LoopEpochs, change)
    found = run(images, tmp_path, "loop", isolate=False)
    said = " ".join(found.failures.values())
    assert ("1 samples never came" in said) == missing
    assert bool(found.records) != missing


def test_losses_are_compared_only_where_the_order_is_the_same(package, images, tmp_path):
    found = run(
        images, tmp_path, "tape", "native", order=("random",), model=("mlp",), batch_size=(32,), isolate=False
    )
    assert not found.failures
    losses = {one.case["loader"]: one.loss for one in found.records if one.round == 1}
    assert losses["tape"] != losses["native"]


def test_one_that_cannot_be_used_is_named_and_harms_nobody(tmp_path, monkeypatch, images):
    folder = tmp_path / "bad"
    folder.mkdir()
    made(folder, "bad-loaders", {"iobench.loaders": {"bad": "bad_loader:Bad"}}, bad_loader="1 / 0")
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(BrokenPlugin, match=r"loader bad of bad-loaders .* ZeroDivisionError"):
        loaders.parse("bad")
    assert {one["name"]: one["usable"] for one in loaders.describe()}["native"] == "yes"
    assert not run(images, tmp_path, "native").failures


def test_the_package_s_own_tests_pass(package):
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-n0",
        str(PACKAGE / "test_tape.py"),
    ]
    environment = {"PYTHONPATH": f"{package}:{Path(iobench.__file__).parent.parent}", "PATH": "/usr/bin"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=package)
    assert done.returncode == 0, done.stdout


def test_a_loader_that_reads_some_formats_makes_no_case_of_others(package, images, tmp_path, monkeypatch):
    import iobench_tape

    monkeypatch.setattr(iobench_tape.Tape, "reads", lambda self, format: format.name == "lmdb")
    asked = RunOptions(("npy", "lmdb"), ("tape",), device=("cpu",), rounds="1", limits=False, isolate=False)
    found = iobench.run(images, asked, out=tmp_path / "r.jsonl")
    assert [case.variant for case in found.cases] == ["lmdb"]
    assert dataclasses.asdict(found.cases[0].loader) == {"buffer": 8}
    assert formats.get("npy").name == "npy"
