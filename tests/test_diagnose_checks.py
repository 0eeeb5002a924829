"""Real loaders with one problem each, or none, and their diagnoses."""

import dataclasses
import functools
import gc
import json
import multiprocessing
import os
import random
import resource
import sqlite3
import subprocess
import sys
import threading
import time
import zlib
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import ClassVar

import h5py
import lmdb
import numpy as np
import pandas as pd
import pytest
import torch
from conftest import with_shared_memory
from live_loaders import FORK, Batches, Samples, Stream, until
from PIL import Image
from record_cases import rounds_at
from torch.utils.data import DataLoader, Sampler, get_worker_info

from iobench.advise import diagnose as session
from iobench.advise.checks import call_costs, decoding, loop_stats, profiling, remedies
from iobench.advise.checks.call_costs import LibraryShare, LineShare, Profile
from iobench.advise.checks.evidence import Evidence
from iobench.advise.checks.profiling import sampled_lines
from iobench.advise.checks.remedies import KeptBatches, KeptSamples, PatchedDataset
from iobench.advise.checks.sample_calls import calls_for, elements_touched, files_kept_open
from iobench.advise.checks.watched_loader import ProcessMonitor, WatchedLoader
from iobench.advise.diagnosis import diagnose
from iobench.advise.settings.candidate import BASELINE, Candidate
from iobench.advise.settings.search_space import MAX_WORKERS, LoaderTraits, candidates_for
from iobench.advise.settings.settings_race import SettingsRace
from iobench.advise.settings.tunable_loader import TunableLoader
from iobench.advise.settings.turn import TurnSpec
from iobench.advise.settings.watchdog import DeadlineReached, Watchdog
from iobench.base import thresholds
from iobench.base.errors import TargetError
from iobench.bench.budget import Budget
from iobench.host.process_counters import descendants
from iobench.loading.inspection import same_tensors

WHOLE_S = 600.0  # more than an epoch takes on any machine: the data end the loops


def alone(loader):
    """Advice for a loader that runs alone, without a race."""
    return session.diagnose(loader, max_time_s=WHOLE_S, batches=200, variants=False).advice


def examined(loader):
    """Examine a loader that runs alone, without a race: return the evidence, and the changes to try."""
    watchdog = Watchdog(60.0, Budget(WHOLE_S))
    with watchdog.active():
        return session.examine(TunableLoader(loader), watchdog, "cpu")


def watched(loader, step=lambda number: None):
    """Measurements of a loop over a loader, with that step, which is given the number of the batch."""
    loop = WatchedLoader(loader, "cpu", lambda stats: None)
    for number, _ in enumerate(loop, 1):
        step(number)
    return loop.stats


def in_a_loop(loader, step_s):
    """Advice for a loop with a step of that length."""
    return diagnose(Evidence(watched(loader, lambda number: time.sleep(step_s)))).advice


def kinds(advice):
    return [one.kind for one in advice]


def slow(row):
    time.sleep(5e-3)
    return torch.zeros(4)


def test_samples_that_take_long_without_workers(monkeypatch):
    def augmented(row):
        return slow(row) + torch.rand(4)  # differs each time: to keep it in memory is no way out

    monkeypatch.setattr(loop_stats, "CPU_CONTENDED", 1.0)  # other tests use the other cores
    found = until("too-few-workers", lambda: DataLoader(Samples(256, augmented), batch_size=16))
    (few, *_) = found.advice
    assert few.kind == "too-few-workers"
    assert few.gain > 1
    assert f"num_workers={few.values['num_workers']}" in few.hint
    tried = max(candidate.changes.get("num_workers", 0) for candidate in found.candidates)
    assert tried > len(os.sched_getaffinity(0)) or tried == MAX_WORKERS  # none of them computes


def test_workers_that_cost_more_than_they_bring():
    quick = Samples(4096)
    advice = until("workers-cost", lambda: DataLoader(quick, batch_size=4, **FORK)).advice
    assert "workers-cost" in kinds(advice)
    assert next(one.gain for one in advice if one.kind == "workers-cost") > 1


def test_workers_that_take_long_to_start():
    late = {"worker_init_fn": lambda number: time.sleep(1.0)}
    quick = Batches(64, lambda rows: torch.zeros(len(rows), 4))
    loader = DataLoader(quick, batch_size=8, collate_fn=lambda batch: batch, **late, **FORK)
    assert "first-batch" in kinds(alone(loader))


class SlowOrder(Sampler):
    """Makes the order of an epoch in a second, at once or with its first batch."""

    def __init__(self, length, at_once):
        self.length, self.at_once = length, at_once

    def __len__(self):
        return self.length

    def __iter__(self):
        if self.at_once:
            time.sleep(1.0)
        return iter([[row] for row in range(self.length)]) if self.at_once else self.later()

    def later(self):
        time.sleep(1.0)
        yield from range(self.length)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_slow_sampler_is_named_and_not_the_start_of_workers(at_once):
    order = {"batch_sampler" if at_once else "sampler": SlowOrder(8, at_once)}
    advice = in_a_loop(DataLoader(Samples(8), **order, **FORK), step_s=0.0)
    assert advice[0].kind == "sampler"
    assert (advice[0].values["sampler"], "first-batch" in kinds(advice)) == ("SlowOrder", False)


class LockingOrder:
    """An order whose making holds the interpreter's lock most of the time."""

    def __iter__(self):
        began = time.perf_counter()
        time.sleep(0.5)  # for a sample of the stack
        sum(range(5 * 10**7))
        self.took_s = time.perf_counter() - began
        return iter(range(8))

    def __len__(self):
        return 8


def test_a_sampler_that_holds_the_interpreters_lock_counts_whole():
    order = LockingOrder()
    assert watched(DataLoader(torch.zeros(8, 4), sampler=order)).sampler_s > 0.7 * order.took_s


class SlowToPickle(Samples):
    def __reduce__(self):
        time.sleep(12)
        return int, ()


def test_a_diagnosis_without_a_batch_names_what_took_the_time():
    dataset = SlowToPickle(8)
    loader = DataLoader(dataset, num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(DeadlineReached) as caught:
        session.diagnose(TunableLoader(loader), max_time_s=3)
    assert caught.value.kind == "out-of-time"
    assert session.DID["pickling"] in caught.value.problem


def test_pickling_for_workers_is_seen_on_the_stack():
    begun, done = threading.Event(), threading.Event()

    class Waits:
        def __reduce__(self):
            begun.set()
            done.wait()
            return int, ()

    worker = multiprocessing.get_context("spawn").Process(target=int, args=(Waits(),))
    thread = threading.Thread(target=worker.start)
    thread.start()
    begun.wait()
    assert profiling.activity_of(thread.ident) == "pickling"
    assert profiling.activity_of(threading.get_ident()) is None
    done.set()
    thread.join()
    worker.join()


def test_workers_of_a_setting_that_fails_end_with_it():
    def fails(row):
        raise ValueError("no")

    before = descendants()
    race = SettingsRace(TunableLoader(DataLoader(Samples(8, fails))), TurnSpec())
    with race.active(), pytest.raises(TargetError) as caught:
        race.take(Candidate("2 workers", FORK, "workers"), None)
    assert caught.value.kind == "raised"
    assert descendants() == before


def test_persistent_workers_end_when_their_loader_is_closed():
    before = descendants()
    tunable = TunableLoader(DataLoader(Samples(8, float)))
    loader = tunable.with_changes({**FORK, "persistent_workers": True})
    loader.of = loader  # which only a garbage collection would end
    assert len(list(loader)) == 8
    tunable.close()
    assert descendants() == before


def test_workers_that_are_late_now_and_then():
    def sometimes_slow(rows):
        time.sleep(1.0 if rows[0] % (16 * 8) == 0 else 1e-3)
        return torch.zeros(len(rows), 4)

    uneven = DataLoader(Batches(96 * 8, sometimes_slow), 8, collate_fn=lambda batch: batch, **FORK)
    loops = (in_a_loop(uneven, step_s=0.04) for _ in range(6))  # a pause of the machine's own may hide it
    advice = next(one for advice in loops for one in advice if one.kind == "prefetch")
    assert (advice.values["prefetch_factor"], advice.values["present"]) == (8, 2)


def test_any_order_of_batches_is_tried_where_some_wait_for_one_before_them():
    loader = TunableLoader(DataLoader(Samples(64, float), 8, **FORK))
    for uneven in (True, False):
        candidates, _ = candidates_for(loader, LoaderTraits(uneven=uneven))
        assert any(one.changes == {"in_order": False} for one in candidates) == uneven


def fields(row):
    return {f"f{number}": torch.zeros(4) for number in range(60)}


@pytest.mark.parametrize(("ahead", "named"), [(8, True), (1, False)])
def test_tensors_of_workers_that_fill_the_table_of_open_files(ahead, named):
    """Each of 60 fields in each batch of a worker's queue is an open file of it, unless it may be a path."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (700, limits[1]))
    try:
        advice = in_a_loop(DataLoader(Samples(800, fields), 8, prefetch_factor=ahead, **FORK), step_s=0.02)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert ("open-files" in kinds(advice)) == named


SMALL_SHARED_MEMORY = """
import sys
sys.path.insert(0, sys.argv[1])
from test_diagnose_checks import FORK, DataLoader, Samples, in_a_loop, torch

large = DataLoader(Samples(80, lambda row: torch.zeros(1 << 18)), 8, **FORK)
print(*(one.sentence for one in in_a_loop(large, 0.2) if one.kind == "shared-memory"))
"""


# six batches of 8 MiB at most: two ahead of each worker, one in use and the one before it
@pytest.mark.parametrize(("size", "named"), [("64m", True), ("200m", False)])
def test_batches_in_flight_that_fill_the_shared_memory(size, named):
    command = [
        *with_shared_memory(size),
        sys.executable,
        "-c",
        SMALL_SHARED_MEMORY,
        str(Path(__file__).parent),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert ("64.0 MiB" in done.stdout) == named


class Augmented(Samples):
    """Samples with noise of a generator: of the process, or one that the dataset holds."""

    def __init__(self, draw):
        super().__init__(64, lambda row: torch.zeros(4) + draw(self))
        self.rng = np.random.default_rng(0)


def seeded_by_torch(worker):
    get_worker_info().dataset.rng = np.random.default_rng(torch.initial_seed())


@pytest.mark.parametrize(
    ("draw", "begin", "named"),
    [
        (lambda own: np.random.rand(), lambda worker: np.random.seed(7), "np.random"),
        (lambda own: random.random(), lambda worker: random.seed(7), "random"),
        (lambda own: torch.rand(()), lambda worker: torch.manual_seed(7), "torch"),
        (lambda own: own.rng.random(), None, "rng"),
        (lambda own: own.rng.random(), seeded_by_torch, None),
        (lambda own: np.random.rand(), None, None),
        (lambda own: np.random.rand(), lambda worker: np.random.seed(worker), None),
        (lambda own: torch.rand(()), lambda worker: np.random.seed(7), None),
    ],
    ids=["numpy", "random", "torch", "held", "made again", "by torch", "by number", "another's seed"],
)
def test_workers_that_draw_the_same_random_numbers(draw, begin, named):
    loader = DataLoader(Augmented(draw), 4, worker_init_fn=begin, **FORK)
    found = [one.values["generators"] for one in alone(loader) if one.kind == "same-random-numbers"]
    assert found == ([named] if named else [])


def test_many_small_tensors():
    sample = {f"f{number}": torch.zeros(1) for number in range(40)}
    wide = Samples(3200, lambda row: sample)
    assert "collate" in kinds(alone(DataLoader(wide, batch_size=32)))


STRINGS, ROWS = 3_000_000, 300
TWICE = [[row] for row in range(ROWS) for _ in range(2)]  # so that each of two workers has every row


@pytest.fixture
def sampled(monkeypatch):
    """Waits until the monitor has taken one more sample, however busy the machine is."""
    sample, samples = ProcessMonitor.sample, []
    monkeypatch.setattr(
        ProcessMonitor, "sample", lambda self: (sample(self), samples.append(time.monotonic()))
    )

    def wait():
        began = time.monotonic()
        while len([at for at in samples[-2:] if at > began]) < 2:  # the one before may have begun earlier
            time.sleep(1e-3)

    return wait


BUSY = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"


@pytest.mark.parametrize("ends", [False, True])
def test_what_a_process_used_before_a_loop_is_not_its_workers(ends):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", BUSY], **pipes) as child:
        child.stdout.readline()
        processes = ProcessMonitor("cpu")
        with processes.active():
            if ends:
                child.communicate()
        assert 0 <= processes.figures()["worker_cpu_s"] < 0.2
        child.kill()


@pytest.mark.parametrize("objects", [True, False], ids=["a list of strings", "an array"])
def test_python_objects_that_workers_copy_by_reading_them(sampled, objects):
    held = [str(number) * 3 for number in range(STRINGS)] if objects else np.arange(STRINGS * 10)

    def count(row):
        part = held[row * len(held) // ROWS : (row + 1) * len(held) // ROWS]
        return sum(len(text) for text in part) if objects else int(part.sum())

    loader = DataLoader(Samples(ROWS, count), batch_sampler=TWICE, **FORK)
    ends = 4, len(TWICE) - 4  # when nearly all memory is yet shared, and when the workers are done
    stats = watched(loader, lambda number: sampled() if number in ends else None)
    of_a_training = min(stats.memory_bytes, 1 << 30)  # this process holds more: other tests
    stats = dataclasses.replace(stats, memory_bytes=of_a_training)
    assert ("memory-growth" in kinds(diagnose(Evidence(stats)).advice)) == objects


def test_a_file_that_was_open_before_workers_forked(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = np.zeros((64, 4))
        inherited = Samples(64, file=file)
        assert "open-handles" in kinds(alone(DataLoader(inherited, batch_size=8, **FORK)))
        assert "open-handles" not in kinds(alone(DataLoader(inherited, batch_size=8)))


def hdf5_rows(path):
    return h5py.File(path)["x"]


def zarr_rows(path):
    return pytest.importorskip("zarr").open(str(path), mode="r")


class Crops(Samples):
    """Parts of samples of an array that is opened by the process that reads it."""

    def __init__(self, opened):
        super().__init__(64, opened=opened, rows=None)

    def __getitem__(self, row):
        self.rows = self.opened() if self.rows is None else self.rows
        return self.rows[row, 16:32, ::2]


@pytest.mark.parametrize("library", ["HDF5", "Zarr"])
@pytest.mark.parametrize("options", [{}, FORK], ids=["in the main process", "in workers"])
def test_chunks_that_are_read_whole_for_a_part_of_them(tmp_path, library, options):
    shape, chunks = (64, 256, 256), (4, 256, 256)  # more than HDF5 keeps of a file: each sample takes ms
    if library == "HDF5":
        with h5py.File(tmp_path / "x", "w") as file:
            file.create_dataset("x", data=np.zeros(shape), chunks=chunks, compression="gzip")
    else:
        pytest.importorskip("zarr").create_array(
            store=str(tmp_path / "x"), data=np.zeros(shape), chunks=chunks
        )
    opened = partial(hdf5_rows if library == "HDF5" else zarr_rows, tmp_path / "x")
    (found,) = [one for one in alone(DataLoader(Crops(opened), 8, **options)) if one.kind == "chunks"]
    assert found.values["library"] == library
    assert (found.values["read_bytes"], found.values["touched_bytes"]) == (16 * 128 * 8, 4 * 256 * 256 * 8)
    assert f"--source {tmp_path / 'x'}" in found.hint


def test_files_that_are_kept_open_are_those_that_are_opened_by_name_for_reading(tmp_path):
    opened, own = {}, h5py.File
    with files_kept_open(opened):
        with h5py.File(tmp_path / "x", "w") as file:
            file["x"] = np.arange(3)
        assert not opened
        for _ in range(2):
            with h5py.File(tmp_path / "x") as file:
                assert "x" in file
                assert file["x"][1] == 1
        with (tmp_path / "x").open("rb") as stream, h5py.File(stream) as file:
            assert list(file) == ["x"]
    assert h5py.File is own
    (kept,) = opened.values()
    assert kept.name == "/"
    kept.id.close()


@pytest.mark.parametrize(
    ("selection", "elements"),
    [
        (0, 8 * 4),
        (slice(3, 9), 12 * 8),
        ((Ellipsis, 7), 16 * 4),
        ((slice(None), [0, 1, 5]), 16 * 8),
        (..., 128),
    ],
)
def test_the_chunks_that_hold_a_selection(selection, elements):
    assert elements_touched(selection, (16, 8), (4, 4)) == elements


def test_the_gain_of_the_remedy_is_measured_and_not_that_of_another(tmp_path):
    """A file that is opened for each crop of compressed chunks: its chunks are the cause, not the opening."""
    with h5py.File(tmp_path / "x", "w") as file:
        file.create_dataset("x", data=np.zeros((32, 256, 256)), chunks=(1, 256, 256), compression="gzip")

    def crop(row):
        with h5py.File(tmp_path / "x") as file:
            return file["x"][row, :16, :16] + np.random.rand()

    found = until("chunks", lambda: DataLoader(Samples(32, crop), 4, shuffle=True)).advice
    assert found[0].kind == "chunks"
    assert found[0].gain > 1.3


@pytest.mark.parametrize("options", [{}, FORK], ids=["in the main process", "in workers"])
def test_the_library_and_the_line_that_take_most_of_the_time_are_named(options):
    def solve(row):
        quick = row + 1
        return sum(np.linalg.svd(np.ones((150, 150)) + quick + part)[1] for part in range(2))

    loader = DataLoader(Samples(100, solve), 4, **options)
    profile = session.diagnose(loader, max_time_s=WHOLE_S, variants=False).profiles[-1]
    library, line = profile.libraries[0], profile.lines[0]
    assert library.name == "numpy"
    assert any("svd" in call for call in library.calls)
    assert "np.linalg.svd" in line.text
    assert line.place == f"tests/test_diagnose_checks.py:{solve.__code__.co_firstlineno + 2}"
    assert min(library.share, line.share) > 0.5


def test_what_calls_the_diagnosis_is_no_line_of_the_loader():
    rows = torch.utils.data.TensorDataset(torch.zeros(20_000, 4))
    profile = session.diagnose(DataLoader(rows, 64), max_time_s=WHOLE_S, variants=False).profiles[-1]
    assert profile.lines == []


def test_a_library_s_calls_count_together_and_each_of_them_once():
    mine, group, file = ("/mine.py", 1, "get"), "/site-packages/h5py/_hl/group.py", "/site-packages/h5py/f.py"
    calls = {
        mine: (1, 1, 1.0, 10.0, {}),
        (group, 1, "__getitem__"): (1, 1, 2.0, 5.0, {mine: (1, 1, 2.0, 5.0)}),
        (file, 2, "close"): (2, 2, 4.0, 4.0, {mine: (1, 1, 1.0, 1.0), (group, 1, "x"): (1, 1, 3.0, 3.0)}),
        ("~", 0, "<built-in method torch.rand>"): (1, 1, 3.0, 3.0, {mine: (1, 1, 3.0, 3.0)}),
    }
    first, second = call_costs.library_shares(calls, 10.0)
    assert (first.name, first.share, second.name, second.share) == ("h5py", 0.6, "torch", 0.3)
    assert [name.split()[-1] for name in first.calls] == ["__getitem__", "close"]


def test_what_takes_most_of_the_time_is_named_where_there_is_no_advice():
    stats = watched(DataLoader(Samples(32, slow), 2, num_workers=1, persistent_workers=True))
    assert stats.batches == 16

    def found(libraries=(), lines=(), decoding=0.0):
        shares = {"libraries": list(libraries), "lines": list(lines), "costs": {"decoding": decoding}}
        profile = Profile("workers", 1.0, [], 0.9, 10, 0.0, **shares)
        return {one.kind: one for one in diagnose(Evidence(stats, profiles=[profile]), alone=True).findings}

    library = LibraryShare("h5py", 0.6, ["h5py/_hl/files.py:1 close"])
    line = LineShare("mine/train.py:7", "total += 1", 0.8)
    both = found([library], [line])
    assert (both["dominating-library"].values["share"], both["own-lines"].values["share"]) == (0.6, 0.8)
    assert "mine/train.py:7" in both["own-lines"].message
    assert {"dominating-library", "own-lines"}.isdisjoint(found())
    assert {"dominating-library", "own-lines"}.isdisjoint(found([library], [line], decoding=0.8))


def files(folder):
    for number in range(64):
        np.save(folder / f"{number}.npy", np.zeros(16))
    return [lambda row: np.load(folder / f"{row}.npy"), lambda row: opened(folder / "0.npy")]


@functools.cache
def opened(path):
    return np.load(path)


def rows_of_a_table(folder):
    table = pd.DataFrame({"x": np.zeros(64), "y": np.ones(64)})
    values = table.to_numpy()
    return [lambda row: table.iloc[row].to_numpy(), lambda row: values[row] * np.ones((64, 64)).sum()]


def elements(folder):
    numbers = torch.zeros(64, 64)
    return [
        lambda row: torch.tensor([numbers[row, k].item() for k in range(64)]),
        lambda row: (numbers[row], numbers[row, 0].item()),
    ]


def proxies(folder):
    manager, own = multiprocessing.Manager(), {row: np.zeros(16) for row in range(64)}
    shared = manager.dict(own)
    return [lambda row: (shared[row], manager.address)[0], own.__getitem__]


def text(folder):
    stored, known = json.dumps([0.5] * 5000), {row: torch.full((2000,), 0.5) for row in range(64)}
    return [lambda row: torch.zeros(16) + json.loads(stored)[row], lambda row: known[row] + 1]


def archive(folder):
    np.savez(folder / "x.npz", x=np.zeros((64, 4096)))
    opened, taken = np.load(folder / "x.npz", mmap_mode="r"), np.load(folder / "x.npz")["x"]
    return [lambda row: opened["x"][row], lambda row: taken[row] + 1]


def environment(folder):
    with lmdb.open(str(folder / "x")) as env, env.begin(write=True) as put:
        put.put(b"x", bytes(64))
    kept = lmdb.open(str(folder / "y"), lock=False)

    def read(row):
        with lmdb.open(str(folder / "x"), readonly=True) as env, env.begin() as get:
            return torch.frombuffer(bytearray(get.get(b"x")), dtype=torch.uint8)

    return [read, lambda row: (torch.zeros(64) + row, kept.begin().get(b"x") or b"")[0]]


def hdf5_file(folder):
    with h5py.File(folder / "x.h5", "w") as file:
        file["x"] = np.zeros((64, 16))
    kept = h5py.File(folder / "x.h5")  # for each name that is looked up, h5py makes another object of it

    def read(row):
        with h5py.File(folder / "x.h5") as file:
            return torch.from_numpy(file["x"][row])

    return [read, lambda row: torch.from_numpy(kept["x"][row])]


def hdf5_array(folder):
    with h5py.File(folder / "x.h5", "w") as file:
        file["x"] = np.zeros((64, 16))
    kept = h5py.File(folder / "x.h5")
    array = kept["x"]
    return [lambda row: torch.from_numpy(kept["x"][row]), lambda row: torch.from_numpy(array[row])]


def listing(folder):
    for number in range(64):
        (folder / f"{number}.bin").touch()
    paths = sorted(folder.glob("*.bin"))
    named = lambda path: torch.tensor(len(path.name))  # noqa: E731
    return [lambda row: named(sorted(folder.glob("*.bin"))[row]), lambda row: named(paths[row])]


def database(folder):
    connection = sqlite3.connect(folder / "x.db")
    for table in ("scanned", "found"):
        connection.execute(f"create table {table} (number integer, x blob)")
        rows = ((row, bytes(64)) for row in range(2000))
        connection.executemany(f"insert into {table} values (?, ?)", rows)
    connection.execute("create index numbers on found (number)")

    def read(table, row):
        return connection.execute(f"select x from {table} where number = ?", (row,)).fetchone()[0]

    return [lambda row: torch.tensor(len(read("scanned", row))), lambda row: slow(len(read("found", row)))]


def searched(folder):
    names = [f"{number}.jpg" for number in range(20_000)]
    places = {name: number for number, name in enumerate(names)}
    return [
        lambda row: torch.tensor(names.index(names[-1 - row])),
        lambda row: torch.tensor(places[names[row]]),
    ]


def sound(folder):
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(folder / "x.flac", np.zeros(400_000), 16_000)
    part = partial(soundfile.read, folder / "x.flac")
    return [lambda row: part()[0][row : row + 1000], lambda row: part(start=row, frames=1000)[0]]


@pytest.mark.parametrize(
    ("kind", "make", "samples"),
    [  # enough of the 64 rows, again and again, that a pause of this process is a small share of the time
        ("parsed-text", text, 512),
        ("npz-members", archive, 512),
        ("file-reopened", environment, 2048),
        ("file-reopened", hdf5_file, 1024),
        ("array-lookup", hdf5_array, 1024),
        ("folder-listed", listing, 512),
        ("list-searched", searched, 512),
        ("database-query", database, 512),
        ("whole-sound", sound, 128),
        ("file-per-sample", files, 1024),
        ("dataframe-rows", rows_of_a_table, 4096),
        ("single-elements", elements, 512),
        ("manager-proxy", proxies, 1024),
    ],
)
def test_what_makes_each_sample_slow_is_named_and_not_what_resembles_it(tmp_path, kind, make, samples):
    bad, good = (Samples(samples, lambda row, read=read: read(row % 64)) for read in make(tmp_path))
    named = next(one for one in alone(DataLoader(bad, 32)) if one.kind == kind)
    assert make is not hdf5_file or "h5py" in named.message
    assert named.values.get("calls", samples) >= 0.9 * named.values.get("samples", samples)
    assert kind not in kinds(alone(DataLoader(good, 32)))


@pytest.mark.parametrize("locked", [True, False])
def test_workers_that_wait_for_a_lock(locked):
    lock = multiprocessing.get_context("fork").Lock()

    def read(row):
        with lock if locked else nullcontext():
            return slow(row)

    assert ("lock" in kinds(alone(DataLoader(Samples(256, read), 4, **FORK)))) == locked


@pytest.mark.parametrize(
    ("caller", "share"), [("/lib/multiprocessing/queues.py", 0.0), ("/mine/data.py", 1.0)]
)
def test_a_queue_that_waits_for_work_is_no_lock(caller, share):
    lock = ("~", 0, "<method 'acquire' of '_multiprocessing.SemLock' objects>")
    calls = {lock: (1, 1, 5.0, 5.0, {(caller, 1, "get"): (1, 1, 5.0, 5.0)})}
    assert call_costs.cost_shares(calls, call_costs.busy_s(calls))["locks"] == share


@pytest.mark.parametrize(
    ("stream", "repeated"),
    [
        (Stream(shared=False), 1.0),
        (Stream(shared=True), 0.0),
        (Stream(shared=False, numbers=lambda row: torch.zeros(4)), None),
    ],
    ids=["whole in each worker", "shared by workers", "samples that are all the same"],
)
def test_samples_that_each_worker_repeats(stream, repeated):
    found = session.diagnose(DataLoader(stream, 10, **FORK), max_time_s=WHOLE_S, variants=False)
    assert found.loop.repeated == repeated
    assert ("repeated-samples" in [one.kind for one in found.advice]) == bool(repeated)


@pytest.fixture
def photo(tmp_path):
    Image.fromarray(np.zeros((900, 1200, 3), np.uint8)).save(tmp_path / "photo.jpg")
    return tmp_path / "photo.jpg"


def resized(photo, row):
    with Image.open(photo) as image:
        return torch.from_numpy(np.array(image.resize((200, 150))))


def cropped(photo, row):
    with Image.open(photo) as image:
        return torch.from_numpy(np.array(image.crop((0, 0, 800, 600)).resize((200, 150))))


def test_images_are_decoded_small_where_they_are_made_small(photo, monkeypatch):
    whole, scaled = Samples(4, partial(resized, photo)), list[tuple[int, int]]()
    assert calls_for(whole, [0, 1]).resized_to == (200, 150)
    assert calls_for(Samples(4, partial(cropped, photo)), [0, 1]).resized_to is None
    assert calls_for(Samples(4, slow), [0, 1]).resized_to is None
    resize, before = Image.Image.resize, Image.open
    monkeypatch.setattr(
        Image.Image, "resize", lambda self, size: (scaled.append(self.size), resize(self, size))[1]
    )
    by_draft = PatchedDataset(whole, partial(decoding.drafted, (200, 150)))
    assert by_draft[0].shape == whole[0].shape
    assert scaled == [(300, 225), (1200, 900)]
    assert Image.open is before


def test_remedies_are_found_without_a_race(photo):
    found, changes = examined(DataLoader(Samples(32, partial(resized, photo)), 4))
    assert "draft" in [one.kind for one in changes]
    found.candidates = [Candidate(BASELINE), *changes]
    assert "jpeg-draft" in kinds(diagnose(found, alone=True).advice)


def test_decoding_smaller_is_tried(photo):
    def flipped(row):
        image = resized(photo, row)
        return image.flip(1) + torch.randint(0, 2, (1,), dtype=torch.uint8)

    found = until("jpeg-draft", lambda: DataLoader(Samples(16, flipped), 4)).advice
    (draft,) = [one for one in found if one.kind == "jpeg-draft"]
    assert draft.gain > 1.05
    assert (draft.values["width"], draft.values["height"]) == (200, 150)


def test_a_collate_function_that_does_what_torch_s_does():
    def doubly(samples):
        return torch.cat([one.unsqueeze(0).clone() for one in samples for _ in range(8)])[::8].clone()

    images = torch.rand(128, 3, 64, 64)
    found = until("default-collate", lambda: DataLoader(images, 32, collate_fn=doubly)).advice
    (own,) = [one for one in found if one.kind == "default-collate"]
    assert own.gain > 1.05


def collecting(row):
    gc.collect()
    return torch.zeros(4)


@pytest.mark.parametrize("options", [{}, FORK], ids=["in the main process", "in workers"])
def test_the_time_of_the_garbage_collector_is_seen(options):
    gc.freeze()  # a collection of all that the tests import takes most of a second
    assert "garbage-collection" in kinds(alone(DataLoader(Samples(16, collecting), 4, **options)))


def test_a_frozen_heap_lasts_for_a_loop():
    frozen = remedies.During([1, 2], remedies.frozen_heap)
    assert [(one, gc.get_freeze_count() > 0) for one in frozen] == [(1, True), (2, True)]
    assert gc.get_freeze_count() == 0
    gc.freeze()  # what the tests import, again: workers that are forked would copy it when they collect


@pytest.mark.parametrize("options", [{}, FORK], ids=["main", "workers"])
def test_one_thread_of_torch_is_tried_for_samples_that_it_makes_in_the_main_process(options):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        loader = DataLoader(Samples(64, lambda row: torch.ones(200_000).float().exp().sum()), 4, **options)
        tried = [one for one in examined(loader)[1] if one.kind == "one-thread"]
        assert len(tried) == (0 if options else 1)
        for one in tried:
            assert {torch.get_num_threads() for _ in one.make()} == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_samples_that_differ_from_time_to_time_are_not_cached():
    draw = random.Random(0)

    def flip(row):
        time.sleep(1e-3)
        return torch.arange(8).flip(0) if draw.random() < 0.5 else torch.arange(8)

    def tried(make):
        _, changes = examined(DataLoader(Samples(32, make), 4))
        return remedies.CACHED in [one.name for one in changes]

    assert tried(slow)
    assert not tried(flip)


@pytest.mark.parametrize(
    "make",
    [
        lambda row: torch.full((3,), row),
        lambda row: np.full((3,), row),
        lambda row: (torch.full((3,), row), row, "text"),
        lambda row: [np.full((3,), row), float(row)],
        lambda row: {"x": torch.full((3,), row), "y": [torch.full((row + 1,), row)]},
        lambda row: (torch.full((row + 1,), row), torch.tensor(row)),
    ],
    ids=["tensor", "array", "tuple", "list", "nested", "of different lengths"],
)
def test_samples_in_memory_are_those_of_the_dataset(make):
    kept = KeptSamples(8)
    for row in (5, 0, 3):
        kept.keep(row, make(row))
    for row in (0, 3, 5):
        sample, own = kept[row], make(row)
        assert type(sample) is type(own)
        assert same_tensors(sample, own)
        if isinstance(sample, dict):
            sample["y"].pop()  # which does not last
            assert len(kept[row]["y"]) == 1
    assert (kept.rows, len(kept)) == ([5, 0, 3], 8)


def test_samples_in_memory_are_rows_of_one_tensor():
    kept = KeptSamples(4)
    for row in range(4):
        kept.keep(row, (torch.full((3,), row), row))
    first, last = kept[0][0], kept[3][0]
    assert first.untyped_storage().data_ptr() == last.untyped_storage().data_ptr()


def test_batches_of_samples_in_memory_ask_for_no_others():
    batches = KeptBatches([[0, 1], [2, 3], [4]], [1, 4])
    assert (list(batches), len(batches)) == ([[1, 1], [1, 4], [4]], 3)


def test_a_part_of_the_samples_in_memory_is_measured_where_not_all_can_be_read(monkeypatch):
    monkeypatch.setattr(remedies, "KEEP", 0.0)
    monkeypatch.setattr(thresholds, "ROUND_S", 0.2)  # of which a pause is no tenth
    found = session.diagnose(DataLoader(Samples(32, slow), 4, shuffle=True), max_time_s=4.0)
    (kept,) = [one for one in found.candidates if one.kind == "cache"]
    assert kept.rate > 10 * found.candidates[0].rate  # none of its samples is read again


def test_changes_that_cannot_be_tried_have_a_reason():
    def flip(row):
        return slow(row) + torch.rand(4)

    found = session.diagnose(DataLoader(Samples(64, flip), 4), max_time_s=3.0)
    assert remedies.CACHED in [one.values.get("change") for one in found.skipped]
    named = {one.name for one in found.candidates if one.rates}
    untried = ";".join(str(one.values.get("cases")) for one in found.skipped)
    assert all(one.name in named or one.name in untried for one in found.candidates[1:])


def test_tensors_made_of_lists_in_collate():
    rows = [[float(number)] * 256 for number in range(10_000)]
    loader = DataLoader(Samples(10_000, rows.__getitem__), 50, collate_fn=torch.tensor)
    (found,) = [one for one in alone(loader) if one.kind == "python-lists"]
    assert "torch.from_numpy()" in found.hint


def test_numbers_that_a_collate_function_sets_one_by_one():
    def one_by_one(rows):
        batch = torch.zeros(len(rows), 64)
        for row, values in enumerate(rows):
            for place, value in enumerate(values):
                batch[row, place] = value
        return batch

    rows = [[float(number)] * 64 for number in range(2000)]
    slow, quick = (
        DataLoader(Samples(2000, rows.__getitem__), 50, collate_fn=c) for c in (one_by_one, torch.tensor)
    )
    assert alone(slow)[0].kind == "collate-loops"
    assert "collate-loops" not in kinds(alone(quick))


def test_workers_are_advised_for_a_stream_that_gives_each_its_share():
    def slow(row):
        time.sleep(0.002)
        return torch.full((4,), row)

    (found,) = [one for one in alone(DataLoader(Stream(numbers=slow), 8)) if one.kind == "too-few-workers"]
    assert "get_worker_info" in found.hint


LIMITED = """
import sys

import threadpoolctl
import torch

sys.path.insert(0, sys.argv[1])
from test_diagnose_checks import FORK, DataLoader, Samples

from iobench.advise.settings.tunable_loader import rebuilt


def sample(row):
    pools = threadpoolctl.threadpool_info()
    return torch.tensor([max(one["num_threads"] for one in pools if one["user_api"] == "blas"), *begun])


begun = []
loader = DataLoader(Samples(2, sample), 2, worker_init_fn=begun.append, **FORK)
for changes in ({"prefetch_factor": 4}, {"worker_threads": 1}):
    print([batch[0].tolist() for batch in rebuilt(loader, changes)], flush=True)
"""


def test_one_thread_per_worker_limits_those_of_its_libraries():
    """The user's own `worker_init_fn`, which notes the worker's number, runs as well."""
    four = {**os.environ, "OMP_NUM_THREADS": "4", "OPENBLAS_NUM_THREADS": "4"}  # the suite has one
    command = [sys.executable, "-c", LIMITED, str(Path(__file__).parent)]
    done = subprocess.run(command, env=four, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    before, limited = map(json.loads, done.stdout.splitlines())
    assert before[0][0] > 1  # as many as there are cores
    assert limited == [[1, 0]]


def test_samples_that_would_fit_in_memory_are_decoded_once():
    packed = zlib.compress(bytes(4 << 20))

    def decode(row):
        return torch.zeros(len(zlib.decompress(packed)) >> 20)

    advice = until("decoding", lambda: DataLoader(Samples(32, decode), 4)).advice
    (found,) = [one for one in advice if one.kind == "decoding"]
    assert found.gain > 2
    assert found.values["cached"]


def test_a_good_loader_of_whole_batches_gets_no_advice_from_its_race():
    rows = Batches(8192, lambda rows: torch.zeros(len(rows), 64))
    loader = DataLoader(rows, 512, collate_fn=lambda batch: batch)
    assert session.diagnose(loader, max_time_s=3.0, batches=200).advice == []


@pytest.mark.parametrize("workers", [{}, {**FORK, "persistent_workers": True}], ids=["none", "two"])
def test_a_good_loader_gets_no_advice(workers):
    def read(rows):
        return torch.from_numpy(np.full((len(rows), 1024), 1, np.float32))

    loader = DataLoader(Batches(256, read), batch_size=32, collate_fn=lambda batch: batch, **workers)
    loops = (in_a_loop(loader, step_s=0.1) for _ in range(4))
    assert any(advice == [] for advice in loops)  # the machine itself may be disturbed for a second


@pytest.mark.parametrize(
    "batch",
    [{"a": {"b": [torch.zeros(2)]}}, [["text", "more"]], "text", None, 3, (None, torch.zeros(2))],
    ids=["nested dict", "list", "string", "None", "number", "tuple"],
)
def test_batches_of_any_kind_are_taken_as_they_are(batch):
    found = session.diagnose([batch] * 20, max_time_s=WHOLE_S, batches=20)
    assert found.loop.batches == 20
    assert found.advice == []
    assert found.verdict.kind == "loader-alone"


def candidate(name, kind="", rates=(), final_rates=(), **more):
    race, final = rounds_at(dict(rates)), rounds_at(dict(final_rates))
    return Candidate(name, {"a": 1} if kind else {}, kind, race=race, final=final, **more)


@pytest.mark.parametrize(("rate", "expected"), [(300.0, "undecided"), (9.0, "nothing-faster")])
def test_one_final_round_does_not_say_that_nothing_is_faster(rate, expected):
    base = candidate(BASELINE, rates={1: 10.0}, final_rates={1: 10.0})
    other = candidate("another", "kept", rates={1: rate}, final_rates={1: rate})
    found = kinds(diagnose(Evidence(watched([torch.zeros(4)] * 20), [base, other]), alone=True).findings)
    assert {"undecided", "nothing-faster"} & set(found) == {expected}


def test_persistent_workers_get_final_rounds_where_a_race_cannot_show_their_gain():
    base = Candidate(BASELINE, race=rounds_at({1: 10.0}, first_batch=0.5))
    persist = candidate("persistent workers", "persistent", rates={1: 9.0})
    more = Candidate("more", {"a": 1, "b": 2}, "persistent", race=rounds_at({1: 11.0}))
    few = candidate("2 workers", "workers", rates={1: 9.0})
    assert session.best_of_each_kind([base, more, few, persist]) == [persist]
    base.race = rounds_at({1: 10.0}, first_batch=0.1)  # of which little is starting
    assert session.best_of_each_kind([base, more, few, persist]) == [more]


def test_a_loader_that_takes_all_the_time_leaves_a_turn_for_the_most_promising_change():
    own = TunableLoader(DataLoader(Samples(160, slow), 80))
    changed = [Candidate(f"{count} workers", {"num_workers": count}) for count in (2, 1)]
    candidates, race = [Candidate(BASELINE), *changed], SettingsRace(own, TurnSpec())
    with race.active():
        race.race(candidates, 0.01)
    assert [len(one.rates) for one in candidates] == [1, 1, 0]


def test_persistent_workers_start_before_final_rounds_are_timed():
    own = TunableLoader(DataLoader(Samples(16, lambda row: torch.zeros(1)), 4, **FORK))
    candidates = [Candidate(BASELINE), Candidate("persist", {"persistent_workers": True}, "persistent")]
    race = SettingsRace(own, TurnSpec())
    with race.active():
        race.race(candidates, 0.01)
        before = [len(one.turns) for one in candidates]
        race.final_rounds(candidates, 60.0, rounds=3)
    assert [len(one.final_rates) for one in candidates] == [3, 3]
    turns = [len(one.turns) - earlier for one, earlier in zip(candidates, before, strict=True)]
    assert turns == [3, 4], "one more, which is not timed"


class NotesCollection(tuple):
    """Names of packages that note whether the garbage collector could run while they were looked at."""

    __slots__ = ()
    seen: ClassVar[list[bool]] = []

    def __iter__(self):
        self.seen.append(gc.isenabled())
        return super().__iter__()


@pytest.mark.parametrize("collects", [True, False])
def test_no_collection_runs_while_the_stack_of_another_thread_is_read(collects, monkeypatch):
    NotesCollection.seen.clear()
    monkeypatch.setattr(profiling, "PACKAGES", NotesCollection())
    (gc.enable if collects else gc.disable)()
    try:
        with sampled_lines() as counts:
            while sum(counts.values()) < 3:
                time.sleep(0.001)
        assert gc.isenabled() == collects
    finally:
        gc.enable()
    assert NotesCollection.seen
    assert not any(NotesCollection.seen)
