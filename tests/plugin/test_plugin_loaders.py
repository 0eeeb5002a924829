"""Loaders from another package: found by entry points, run apart, proved by what they promise."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import damage
from plugin_cases import PACKAGE, installed, made

import iobench
from iobench import formats
from iobench.base.errors import (
    BrokenPlugin,
    MissingDependency,
)
from iobench.bench import options as bench_options
from iobench.bench.options import RunOptions
from iobench.loading import loaders
from iobench.results.warnings import warnings_of

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
    assert loaders.names() == sorted([*OURS, "clip", "loop", "tape"])
    assert loaders.parse("tape:buffer=3").buffer == 3
    described = {one["name"]: one for one in loaders.describe()}
    assert described["tape"]["options"][0]["help"] == "samples that are shuffled among each other"


def test_their_options_are_listed_with_them(package):
    done = subprocess.run(
        [sys.executable, "-m", "iobench", "loaders"],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": f"{package}:{Path(iobench.__file__).parent.parent}", "PATH": "/usr/bin"},
    )
    assert "buffer" in done.stdout
    assert "fetch" in done.stdout


def test_they_run_in_a_process_of_their_own_where_they_fit(package, images, tmp_path):
    found = run(images, tmp_path, "tape", "loop", "native")
    assert not found.failures
    cases = {(one.case["loader"], one.case["order"], one.case["isolated"]) for one in found.records}
    assert cases == {
        ("tape", "random", True),
        ("loop", "random", True),
        ("native", "random", True),  # or nobody could compare it with them
        ("native", "sequential", True),
    }
    alone = run(images, tmp_path / "alone", "native")
    assert not any(one.case["isolated"] for one in alone.records)


SPOILED = {
    "203 samples: it dropped 1": lambda rows: rows[:-1],
    "203 samples: it repeated 1": lambda rows: np.append(rows, 0),
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
    assert ("of 203 samples 1 never came" in said) == missing
    assert bool(found.records) != missing


def test_a_loader_that_drops_may_and_what_it_drops_is_counted_and_said(package, images, tmp_path):
    found = run(images, tmp_path, "clip", "loop", "tape", batch_size=(32,), isolate=False, order=("random",))
    assert not found.failures
    proofs = {one.case["loader"]: one.proof for one in found.records}
    assert {name: (proof.dropped, proof.repeated) for name, proof in proofs.items()} == {
        "clip": (11, 0),
        "loop": (0, 21),
        "tape": (0, 0),
    }
    assert all(one.timing.samples % 192 == 0 for one in found.records if one.case["loader"] == "clip")
    said = [one for one in warnings_of(found.records) if one.kind == "coverage"]
    assert "dropped 11 and repeated 21 of 203 samples in an epoch" in said[0].said
    assert said[0].cases == ["npy · clip", "npy · loop"]


def test_a_loader_that_drops_everything_is_wrong(package, images, tmp_path):
    found = run(images, tmp_path, "clip", batch_size=(256,), isolate=False, order=("random",))
    ((_, reason),) = found.failures.items()
    assert "203 samples: it dropped 203" in reason


def test_how_random_its_own_order_is_is_measured_and_said(package, images, tmp_path, monkeypatch):
    monkeypatch.setattr(bench_options, "BLOCK_BYTES", 16 * images.schema.sample_bytes)
    asked = {"batch_size": (16,), "order": ("random", "block"), "isolate": False}
    found = run(images, tmp_path, "tape:buffer=2", "tape:buffer=203", **asked)
    assert not found.failures
    little, much = (
        {one.shuffledness for one in found.records if one.case["options"]["buffer"] == buffer}
        for buffer in (2, 203)
    )
    assert len(little) == len(much) == 1  # the proof's epoch, in every record
    assert max(little) < 0.5 < min(much) <= 1.1
    (said,) = [one for one in warnings_of(found.records) if one.kind == "own order"]
    assert said.cases == ["npy · tape, buffer 2"]
    assert "of a full one" in said.said


def test_an_own_order_that_is_not_the_stored_one_is_said(package, images, tmp_path, monkeypatch):
    import iobench_tape

    monkeypatch.setattr(iobench_tape.Tape, "orders", ("sequential",))
    asked = {"order": ("sequential",), "isolate": False}
    kept = run(images, tmp_path / "a", "tape:buffer=1", **asked)
    mixed = run(images, tmp_path / "b", "tape:buffer=8", **asked)
    assert [one.proof.in_order for one in (*kept.records, *mixed.records)] == [True, True, False, False]
    kinds = [[one.kind for one in warnings_of(found.records)] for found in (kept, mixed)]
    assert ["own order" in kind for kind in kinds] == [False, True]


def test_data_damaged_where_they_lie_are_no_measure_of_themselves(package, own_images, tmp_path):
    damage(own_images.files_of("npy")[0])
    found = run(own_images, tmp_path, "tape", "loop", isolate=False, order=("random",))
    assert len(found.failures) == 2
    assert all(f"expected checksum {own_images.content:016x}" in reason for reason in found.failures.values())


def test_losses_are_compared_only_where_the_order_is_the_same(package, images, tmp_path):
    found = run(
        images, tmp_path, "tape", "native", order=("random",), model=("mlp",), batch_size=(32,), isolate=False
    )
    assert not found.failures
    losses = {one.case["loader"]: one.loss for one in found.records if one.round == 1}
    assert losses["tape"] != losses["native"]


def left_out_of(manifest, *words, formats=("npy", "lmdb"), order=("sequential",)):
    """What makes cases of these words, and what is said of the others."""
    asked = RunOptions(formats, words, order=order)
    cases = bench_options.cases_of(manifest, asked, ["cpu"])
    return {case.loader.name for case in cases}, bench_options.left_out(manifest, asked)


def test_without_its_library_it_is_named_with_the_command_that_installs_it(package, images, monkeypatch):
    import iobench_tape

    monkeypatch.setattr(iobench_tape.Tape, "modules", ("numpy", "no_such_library"))
    reason = "loader tape needs no_such_library, which is not installed: pip install no_such_library"
    assert {one["name"]: one["usable"] for one in loaders.describe()}["tape"] == reason
    monkeypatch.setattr(iobench_tape.Tape, "extra", "tapes")
    with pytest.raises(MissingDependency, match=r"pip install 'iobench\[tapes\]'$"):
        left_out_of(images, "tape", "native")


def test_a_folder_by_the_name_of_its_library_is_not_the_library(package, tmp_path, monkeypatch):
    import iobench_tape

    (tmp_path / "no_such_library").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(iobench_tape.Tape, "modules", ("no_such_library",))
    with pytest.raises(MissingDependency, match="no_such_library, which is not installed"):
        loaders.parse("tape")


def test_all_means_those_that_are_there_and_read_what_is_asked_for(package, images, monkeypatch):
    import iobench_tape

    monkeypatch.setattr(iobench_tape.Clip, "modules", ("no_such_library",))
    monkeypatch.setattr(iobench_tape.Loop, "reads", lambda self, format: format.name == "hdf5")
    monkeypatch.setattr(iobench_tape.Tape, "orders", ("sequential",))
    measured, said = left_out_of(images, "all")
    assert {*loaders.DEFAULT_LOADERS, "tape"} <= measured
    assert not {"clip", "loop"} & measured
    assert (
        "left out: loader clip needs no_such_library, which is not installed: pip install no_such_library"
        in said
    )
    assert any("loop" in one and "none of npy, lmdb in sequential order" in one for one in said)
    assert "tape" not in " ".join(said)


def test_what_a_run_measures_by_default_is_not_what_happens_to_be_installed(package, images):
    assert {case.loader.name for case in bench_options.cases_of(images, RunOptions(), ["cpu"])} == {
        *loaders.DEFAULT_LOADERS
    }


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
