"""Loaders from another package: found through entry points, isolated, verified by what they declare."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import damage
from kinds import kind, refused_as
from plugin_cases import PACKAGE, installed, made

import iobench
from iobench.base.errors import BrokenPlugin, MissingDependency
from iobench.bench import case_grid
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


@pytest.fixture
def plugin(package):
    """The module of the package's loaders."""
    return importlib.import_module("iobench_tape")


def run(manifest, folder, *words, **more):
    chosen = {"device": ("cpu",), "order": ("random", "sequential"), "rounds": "2", "limits": False}
    asked = RunOptions(("npy",), words, **{**chosen, **more})
    return iobench.run(manifest, asked, out=folder / "r.jsonl")


def test_they_are_among_the_loaders(package):
    assert loaders.names() == sorted([*OURS, "clip", "loop", "tape"])
    assert loaders.parse("tape:buffer=3").buffer == 3
    described = {one["name"]: one for one in loaders.describe()}
    (buffer,) = described["tape"]["options"]
    assert buffer["name"] == "buffer"
    assert buffer["help"]


@pytest.mark.as_for_users
def test_they_run_in_their_own_process_with_the_orders_they_have(package, images, tmp_path):
    found = run(images, tmp_path, "tape", "loop", "native")
    assert not found.failures
    assert {(one.case["loader"], one.case["order"]) for one in found.records} == {
        *(("tape", "random"), ("loop", "random")),
        *(("native", "random"), ("native", "sequential")),
    }
    assert all(one.case["isolated"] for one in found.records)  # native, too, so that it can be compared
    alone = run(images, tmp_path / "alone", "native")
    assert not any(one.case["isolated"] for one in alone.records)


SPOILED = {  # the error's kind and counts → the rows that a loader reads
    ("wrong-count", 202): lambda rows: rows[:-1],
    ("wrong-count", 204): lambda rows: np.append(rows, 0),
    ("wrong-samples", 1, 1, 0): lambda rows: np.append(rows[1:], rows[-1]),
}


def counts_of(error):
    """Return a WrongContent's kind and counts: the samples, or missing, repeated and foreign ones."""
    assert "203" in error.expected
    return (error.kind, *map(int, re.findall(r"\d+", error.found)))


def spoil(monkeypatch, cls, change):
    rows = cls._rows
    monkeypatch.setattr(cls, "_rows", lambda self, rng: change(rows(self, rng)))


@pytest.mark.parametrize("counts", SPOILED)
def test_dropped_and_repeated_samples_are_detected(plugin, images, tmp_path, monkeypatch, counts):
    spoil(monkeypatch, plugin.TapeEpochs, SPOILED[counts])
    result = run(images, tmp_path, "tape", isolate=False)
    (error,) = result.failures.values()
    assert counts_of(error) == counts
    assert not result.records


@pytest.mark.parametrize(("wrong", "found"), [(None, None), ("twice", "1 repeated"), ("other", "1 that")])
def test_samples_of_a_part_are_the_datasets_and_none_came_twice(
    plugin, images, tmp_path, monkeypatch, wrong, found
):
    epoch = plugin.TapeEpochs.epoch

    def changed(self, asked):
        for number, batch in enumerate(epoch(self, asked)):
            if number == 5 and wrong == "twice":
                batch = {name: torch.cat([one[:1], one[:1], one[1:-1]]) for name, one in batch.items()}
            elif number == 5 and wrong == "other":
                batch["x"][1] ^= 1
            yield batch

    monkeypatch.setattr(plugin.TapeEpochs, "epoch", changed)
    asked = {"isolate": False, "batch_size": (4,), "max_batches": 10, "order": ("random",)}
    result = run(images, tmp_path, "tape", **asked)
    if wrong is None:
        check = result.records[0].content_check
        assert (check.verified_samples, check.dropped) == (4 * (2 + 10), 0)  # a lead and the window
        return
    (error,) = result.failures.values()
    assert kind("wrong-samples")(error)
    assert found in error.found
    assert "missing" not in error.found


@pytest.mark.parametrize("missing", [True, False])
def test_a_loader_that_repeats_must_deliver_every_sample(plugin, images, tmp_path, monkeypatch, missing):
    def change(rows):
        some = rows[rows != 7] if missing else rows
        return np.append(some, some[:3])

    spoil(monkeypatch, plugin.LoopEpochs, change)
    result = run(images, tmp_path, "loop", isolate=False)
    assert [counts_of(error)[:2] for error in result.failures.values()] == [("wrong-samples", 1)] * missing
    assert bool(result.records) != missing


def test_the_samples_of_a_loader_that_drops_are_counted_and_reported(package, images, tmp_path):
    found = run(images, tmp_path, "clip", "loop", "tape", batch_size=(32,), isolate=False, order=("random",))
    assert not found.failures
    checks = {one.case["loader"]: one.content_check for one in found.records}
    assert {name: (check.dropped, check.repeated) for name, check in checks.items()} == {
        "clip": (11, 0),
        "loop": (0, 21),
        "tape": (0, 0),
    }
    assert all(one.timing.samples % 192 == 0 for one in found.records if one.case["loader"] == "clip")
    (warning,) = [one for one in warnings_of(found.records) if one.kind == "sample-coverage"]
    assert warning.values == {"dropped": 11, "repeated": 21, "samples": 203}
    assert warning.cases == ["npy · clip", "npy · loop"]


def test_a_loader_that_drops_everything_fails(package, images, tmp_path):
    found = run(images, tmp_path, "clip", batch_size=(256,), isolate=False, order=("random",))
    (error,) = found.failures.values()
    assert counts_of(error) == ("wrong-count", 0)


def test_the_shuffle_quality_of_the_loaders_order_is_reported(package, images, tmp_path, monkeypatch):
    monkeypatch.setattr(case_grid, "BLOCK_BYTES", 16 * images.schema.sample_bytes)
    asked = {"batch_size": (16,), "order": ("random", "block"), "isolate": False}
    found = run(images, tmp_path, "tape:buffer=2", "tape:buffer=203", **asked)
    assert not found.failures
    little, much = (
        {one.shuffle_quality for one in found.records if one.case["options"]["buffer"] == buffer}
        for buffer in (2, 203)
    )
    assert len(little) == len(much) == 1  # of the content check's epoch, in every record
    assert max(little) < 0.5 < min(much) <= 1.1
    (warning,) = [one for one in warnings_of(found.records) if one.kind == "loader-order"]
    assert warning.cases == ["npy · tape, buffer 2"]
    assert warning.values == {"shuffle_quality": max(little)}


def test_a_loaders_order_that_is_not_the_stored_one_is_reported(plugin, images, tmp_path, monkeypatch):
    monkeypatch.setattr(plugin.Tape, "orders", ("sequential",))
    asked = {"order": ("sequential",), "isolate": False}
    ordered = run(images, tmp_path / "a", "tape:buffer=1", **asked)
    mixed = run(images, tmp_path / "b", "tape:buffer=8", **asked)
    in_order = [one.content_check.in_order for one in (*ordered.records, *mixed.records)]
    assert in_order == [True, True, False, False]
    kinds = [[one.kind for one in warnings_of(result.records)] for result in (ordered, mixed)]
    assert ["loader-order" in names for names in kinds] == [False, True]


def test_damaged_data_are_not_their_own_reference(package, own_images, tmp_path):
    damage(own_images.files_of("npy")[0])
    found = run(own_images, tmp_path, "tape", "loop", isolate=False, order=("random",))
    assert len(found.failures) == 2
    assert {error.kind for error in found.failures.values()} == {"other-content"}


def test_losses_are_compared_only_where_the_order_is_the_same(package, images, tmp_path):
    chosen = {"order": ("random",), "model": ("mlp",), "batch_size": (32,), "isolate": False}
    found = run(images, tmp_path, "tape", "native", **chosen)
    assert not found.failures
    losses = {one.case["loader"]: one.loss for one in found.records if one.round == 1}
    assert losses["tape"] != losses["native"]


def skipped_of(manifest, *words, formats=("npy", "lmdb"), order=("sequential",)):
    """Return the loaders of these words that make cases, and the notes about the others."""
    asked = RunOptions(formats, words, order=order)
    cases = case_grid.cases_of(manifest, asked, ["cpu"])
    return {case.loader.name for case in cases}, case_grid.skip_notes(manifest, asked)


def test_without_its_library_the_error_has_the_pip_command(plugin, images, tmp_path, monkeypatch):
    (tmp_path / "no_such_library").mkdir()  # a folder of that name is not the library
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(plugin.Tape, "modules", ("numpy", "no_such_library"))
    with refused_as("missing-dependency", MissingDependency) as error:
        loaders.parse("tape")
    assert error.value.hint.split() == ["pip", "install", "no_such_library"]
    assert {one["name"]: one["usable"] for one in loaders.describe()}["tape"] == str(error.value)
    with refused_as("missing-dependency", MissingDependency):
        skipped_of(images, "tape", "native")


def test_all_means_the_installed_loaders_that_read_the_formats(plugin, images, monkeypatch):
    monkeypatch.setattr(plugin.Clip, "modules", ("no_such_library",))
    monkeypatch.setattr(plugin.Loop, "reads", lambda self, format: format.name == "hdf5")
    monkeypatch.setattr(plugin.Tape, "orders", ("sequential",))
    measured, notes = skipped_of(images, "all")
    assert {*loaders.DEFAULT_LOADERS, "tape"} <= measured
    assert not {"clip", "loop"} & measured
    reasons = {note.values["reason"]: note.message for note in notes if re.search("clip|loop", note.message)}
    assert reasons.keys() == {"missing-dependency", "reads-nothing"}
    assert "no_such_library" in reasons["missing-dependency"]
    assert "loop" in reasons["reads-nothing"]
    assert not any("tape" in note.message for note in notes)


def test_the_default_loaders_do_not_depend_on_what_is_installed(package, images):
    cases = case_grid.cases_of(images, RunOptions(), ["cpu"])
    assert {case.loader.name for case in cases} == {*loaders.DEFAULT_LOADERS}


def test_a_broken_one_is_reported_and_affects_no_other(tmp_path, monkeypatch, images):
    folder = tmp_path / "bad"
    folder.mkdir()
    made(folder, "bad-loaders", {"iobench.loaders": {"bad": "bad_loader:Bad"}}, bad_loader="1 / 0")
    monkeypatch.syspath_prepend(folder)
    with refused_as("broken-plugin", BrokenPlugin, match="ZeroDivisionError"):
        loaders.parse("bad")
    assert {one["name"]: one["usable"] for one in loaders.describe()}["native"] == "yes"
    assert not run(images, tmp_path, "native").failures


def test_the_package_s_own_tests_pass(package):
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-n0", str(PACKAGE / "test_tape.py"))
    paths = {"PYTHONPATH": f"{package}:{Path(iobench.__file__).parent.parent}", "PATH": "/usr/bin"}
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=paths, cwd=package)
    assert done.returncode == 0, done.stdout


def test_a_loader_that_reads_some_formats_makes_no_case_of_others(plugin, images, tmp_path, monkeypatch):
    monkeypatch.setattr(plugin.Tape, "reads", lambda self, format: format.name == "lmdb")
    asked = RunOptions(("npy", "lmdb"), ("tape",), device=("cpu",), rounds="1", limits=False, isolate=False)
    found = iobench.run(images, asked, out=tmp_path / "r.jsonl")
    assert [case.variant for case in found.cases] == ["lmdb"]
    assert found.cases[0].loader.buffer == 8
