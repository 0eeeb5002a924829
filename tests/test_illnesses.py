"""Real loaders, each with one illness or none, and what a diagnosis makes of them."""

import os
import time

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from iobench.diagnose import session
from iobench.diagnose.advice import diagnose
from iobench.diagnose.processes import Processes
from iobench.diagnose.watch import Watch
from iobench.tuning.settings import MOST_WORKERS

FORK = {"num_workers": 2, "multiprocessing_context": "fork"}


class Samples(Dataset):
    """As many samples as there are rows, made by a function of the row."""

    def __init__(self, length, make, **attributes):
        self.length, self.make = length, make
        vars(self).update(attributes)

    def __len__(self):
        return self.length

    def __getitem__(self, row):
        return self.make(row)


class Batches(Samples):
    """The same, asked for whole batches."""

    def __getitems__(self, rows):
        return self.make(rows)


def alone(loader, **options):
    """What is advised about a loader that is run alone."""
    return session.diagnose(loader, **{"seconds": 5.0, "batches": 200, **options}).advice


def in_a_loop(loader, step_s):
    """What is advised about a loop with a step of that length."""
    watch = Watch(loader, "cpu", lambda seen: None)
    for _ in watch:
        time.sleep(step_s)
    return diagnose(watch.seen).advice


def kinds(advice):
    return [one.kind for one in advice]


def slow(row):
    time.sleep(5e-3)
    return torch.zeros(4)


def test_samples_that_take_long_without_workers():
    found = session.diagnose(DataLoader(Samples(256, slow), batch_size=16), seconds=8.0)
    (few, *_) = found.advice
    assert few.kind == "too-few-workers"
    assert few.gain > 1
    assert "set num_workers=" in few.said
    tried = max(trial.changes.get("num_workers", 0) for trial in found.trials)
    assert tried > len(os.sched_getaffinity(0)) or tried == MOST_WORKERS  # none of them computes anything


def test_workers_that_cost_more_than_they_bring():
    quick = Samples(4096, lambda row: torch.zeros(4))
    advice = alone(DataLoader(quick, batch_size=4, **FORK))
    assert "workers-cost" in kinds(advice)
    assert next(one.gain for one in advice if one.kind == "workers-cost") > 1


def test_workers_that_take_long_to_start():
    late = {"worker_init_fn": lambda number: time.sleep(0.5)}
    quick = Batches(64, lambda rows: torch.zeros(len(rows), 4))
    loader = DataLoader(quick, batch_size=8, collate_fn=lambda batch: batch, **late, **FORK)
    assert "first-batch" in kinds(alone(loader, variants=False))


def test_workers_that_are_late_now_and_then():
    def sometimes_slow(rows):
        time.sleep(0.2 if rows[0] % (16 * 8) == 0 else 1e-3)
        return torch.zeros(len(rows), 4)

    uneven = DataLoader(Batches(96 * 8, sometimes_slow), 8, collate_fn=lambda batch: batch, **FORK)
    said = [one.said for _ in range(2) for one in in_a_loop(uneven, step_s=0.01) if one.kind == "prefetch"]
    assert "prefetch_factor=8 (now 2)" in said[0]


def test_many_small_tensors():
    sample = {f"f{number}": torch.zeros(1) for number in range(40)}
    wide = Samples(512, lambda row: sample)
    assert "collate" in kinds(alone(DataLoader(wide, batch_size=32), variants=False))


STRINGS, ROWS = 3_000_000, 300
TWICE = [[row] for row in range(ROWS) for _ in range(2)]  # so that each of two workers has every row


@pytest.fixture
def looked(monkeypatch):
    """Waits until the watcher has looked once more, however busy the machine is."""
    look, looks = Processes._look, []
    monkeypatch.setattr(Processes, "_look", lambda self: (look(self), looks.append(time.monotonic())))

    def wait():
        asked = time.monotonic()
        while len([at for at in looks[-2:] if at > asked]) < 2:  # the one before may have begun earlier
            time.sleep(1e-3)

    return wait


@pytest.mark.parametrize("objects", [True, False], ids=["a list of strings", "an array"])
def test_python_objects_that_workers_copy_by_looking_at_them(looked, objects):
    held = [str(number) * 3 for number in range(STRINGS)] if objects else np.arange(STRINGS * 10)

    def count(row):
        part = held[row * len(held) // ROWS : (row + 1) * len(held) // ROWS]
        return sum(len(text) for text in part) if objects else int(part.sum())

    watch = Watch(DataLoader(Samples(ROWS, count), batch_sampler=TWICE, **FORK), "cpu", lambda seen: None)
    for number, _ in enumerate(watch, 1):
        if number in (2, len(TWICE) - 4):  # when all memory is yet shared, and when the workers are done
            looked()
    assert ("memory" in kinds(diagnose(watch.seen).advice)) == objects


def test_a_file_that_was_open_before_workers_forked(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = np.zeros((64, 4))
        taken_along = Samples(64, lambda row: torch.zeros(4), file=file)
        assert "handles" in kinds(alone(DataLoader(taken_along, batch_size=8, **FORK), variants=False))
        assert "handles" not in kinds(alone(DataLoader(taken_along, batch_size=8), variants=False))


def test_chunks_of_which_one_sample_is_wanted(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        rows = file.create_dataset("x", data=np.zeros((512, 64)), chunks=(256, 64), compression="gzip")
        chunked = Samples(512, lambda row: torch.from_numpy(rows[row]), rows=rows)
        advice = alone(DataLoader(chunked, batch_size=32, shuffle=True), variants=False)
    assert "chunks" in kinds(advice)
    assert "rows: chunks of 256 samples" in next(one.said for one in advice if one.kind == "chunks")


@pytest.mark.parametrize("workers", [{}, {**FORK, "persistent_workers": True}], ids=["none", "two"])
def test_a_healthy_loader_gets_no_advice(workers):
    def read(rows):
        return torch.from_numpy(np.full((len(rows), 1024), 1, np.float32))

    loader = DataLoader(Batches(256, read), batch_size=32, collate_fn=lambda batch: batch, **workers)
    loops = (in_a_loop(loader, step_s=0.1) for _ in range(4))
    assert any(advice == [] for advice in loops)  # the machine itself may be ill for a second


@pytest.mark.parametrize(
    "batch",
    [{"a": {"b": [torch.zeros(2)]}}, [["text", "more"]], "text", None, 3, (None, torch.zeros(2))],
    ids=["nested dict", "list", "string", "None", "number", "tuple"],
)
def test_batches_of_any_kind_are_taken_as_they_are(batch):
    found = session.diagnose([batch] * 20, seconds=1.0, batches=20)
    assert found.seen.batches == 20
    assert found.advice == []
    assert found.verdict.startswith("Alone, the loader gives ")
