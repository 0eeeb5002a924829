"""A watched DataLoader is a DataLoader to everything that shards one; watch says if nothing did."""

import copy
import gc
import inspect
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
import traceback

import pytest
import torch
from conftest import image_arrays, prepared
from kinds import kind
from torch import distributed
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from iobench import RayLoader, StreamLoader
from iobench.advise.checks import loop_stats
from iobench.advise.checks.evidence import Evidence
from iobench.advise.checks.watched_loader import watched
from iobench.advise.diagnosis import diagnose
from iobench.base.errors import InvalidSettings
from iobench.host.rank_info import torchrun_variables

SAMPLES, BATCH, RANKS = 96, 8, 2
DATA = TensorDataset(torch.arange(SAMPLES))
FIRST = "every-rank-reads-all"


class Doubling(DataLoader):
    """A user's own: another argument, a loop of its own, and a slot that no other object can share."""

    __slots__ = ("ended",)

    def __init__(self, dataset, factor, **settings):
        super().__init__(dataset, **settings)
        self.factor, self.ended = factor, 0

    def __iter__(self):
        for (rows,) in super().__iter__():
            yield [rows * self.factor // self.factor]
        self.ended += 1

    def epochs(self):
        return self.ended


class Stream(IterableDataset):
    def __init__(self, share=False):
        self.share = share

    def __iter__(self):
        first, step = (distributed.get_rank(), distributed.get_world_size()) if self.share else (0, 1)
        return ((row,) for row in torch.arange(first, SAMPLES, step))


class Labels:
    """Labels of a StreamLoader's batches, as TensorDataset has them."""

    def __init__(self, stream):
        self.stream = stream

    def __iter__(self):
        return ([batch["y"]] for batch in self.stream)


LOADERS = {
    "DataLoader": lambda: DataLoader(DATA, BATCH, shuffle=True),
    "workers": lambda: DataLoader(DATA, BATCH, num_workers=1, multiprocessing_context="fork"),
    "own": lambda: Doubling(DATA, 3, batch_size=BATCH),
    "stateful": lambda: StatefulDataLoader(DATA, BATCH),
    "ray": lambda: RayLoader(DATA, BATCH, actor_options={"num_cpus": 1}),
}


def ignore(stats):
    pass


def watch(loader):
    return watched(loader, "cpu", ignore)


def seen(loader):
    return [row for (rows,) in loader for row in rows.tolist()]


def again(loader, sampler):
    """Return a loader of the same class with another sampler, made as Lightning makes it."""
    public = {name: value for name, value in vars(loader).items() if not name.startswith("_")}
    names = set(inspect.signature(loader.__init__).parameters)
    if "settings" in names:  # **settings are passed on to DataLoader
        names |= set(inspect.signature(DataLoader).parameters)
    settings = {name: value for name, value in public.items() if name in names}
    return type(loader)(**settings | {"sampler": sampler, "batch_sampler": None})


@pytest.mark.parametrize("name", LOADERS)
def test_a_watched_dataloader_is_the_loader_to_all_but_a_loop(name):
    loader = LOADERS[name]()
    watching = watch(loader)
    assert isinstance(watching, type(loader))
    assert (len(watching), vars(watching), str(type(watching))) == (
        len(loader),
        vars(loader),
        str(type(loader)),
    )
    assert watching.dataset is DATA
    watching.note = 1
    assert loader.note == 1
    with pytest.raises(AttributeError):
        _ = watching.missing
    assert sorted(seen(watching)) == list(range(SAMPLES))
    assert [one.batches for one in watching.loops] == [SAMPLES // BATCH]
    assert not hasattr(loader, "loops")


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("how", ["again", "pickled", "copied"])
def test_what_is_made_of_it_is_watched(name, how):
    watching = watch(LOADERS[name]())
    made = {
        "again": lambda: again(watching, DistributedSampler(DATA, RANKS, 1, shuffle=False)),
        "pickled": lambda: pickle.loads(pickle.dumps(watching)),
        "copied": lambda: copy.copy(watching),
    }[how]()
    assert isinstance(made, type(LOADERS[name]()))
    expected = range(1, SAMPLES, RANKS) if how == "again" else range(SAMPLES)
    assert sorted(seen(made)) == list(expected)
    assert [one.samples for one in made.loops] == [len(expected)]
    assert (made.loops == watching.loops) == (how != "pickled")
    assert getattr(made, "actor_options", None) == getattr(watching, "actor_options", None)


def test_methods_of_a_loader_s_own_are_the_loader_s():
    watching = watch(Doubling(DATA, 3, batch_size=BATCH))
    seen(watching)
    assert (watching.epochs(), watching.factor, watching.stats.batches) == (1, 3, SAMPLES // BATCH)


def test_a_state_taken_in_a_watched_loop_is_the_loader_s():
    states = []
    for loader in (StatefulDataLoader(DATA, BATCH), watch(StatefulDataLoader(DATA, BATCH))):
        batches = iter(loader)
        next(batches)
        states.append(loader.state_dict())
    assert states[0] == states[1]


def test_watching_draws_no_other_random_numbers():
    draws = []
    for wrap in (lambda loader: loader, watch):
        torch.manual_seed(0)
        batches = iter(wrap(DataLoader(DATA, BATCH, shuffle=True)))
        between = torch.rand(1).item()
        draws.append((between, [rows.tolist() for (rows,) in batches]))
    assert draws[0] == draws[1]


class Interrupted(Exception):
    """Raised by the handler of a signal."""


@pytest.fixture
def no_other_callbacks():
    """Leave the collector without the callbacks of others, such as Hypothesis', which lose errors.

    Without garbage, too: callbacks of weak references to it lose them likewise.
    """
    gc.collect()
    others = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks[:] = others


def interrupt_the_collector():
    """Let a signal come while the collector works; its handler runs in the first Python code after it."""

    def handler(number, frame):
        came.append(number)
        raise Interrupted

    came = []
    heap, before = [[] for _ in range(500_000)], signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-3)
        gc.collect()
        while not came:
            pass
    finally:
        signal.signal(signal.SIGALRM, before)
        heap.clear()


@pytest.mark.parametrize("ends", [True, False], ids=["before-an-error", "before-a-batch"])
def test_what_a_signal_raises_while_the_collector_works_reaches_the_training(ends, no_other_callbacks):
    def batches():
        yield torch.zeros(8)
        interrupt_the_collector()
        if ends:
            raise KeyError("later")
        yield torch.zeros(8)

    loop = watched(batches(), "cpu", lambda stats: None)
    with pytest.raises(Interrupted):
        list(loop)


def test_an_error_before_the_first_batch_is_named():
    loop = watched((next(iter([])) for _ in range(1)), "cpu", lambda stats: None)
    with pytest.raises(RuntimeError):
        list(loop)
    assert (loop.stats.raised, loop.stats.batches) == ("RuntimeError", 0)
    assert "RuntimeError" in diagnose(Evidence(loop.stats)).findings[0].message


@pytest.mark.parametrize("tensors", [1, 20])
def test_a_long_loop_is_counted_with_its_smaller_last_batch(tensors):
    sizes = [8] * 999 + [3]
    loop = watched([[torch.zeros(size, 2)] * tensors for size in sizes], "cpu", lambda stats: None)
    assert sum(1 for _ in loop) == len(sizes)
    assert (loop.stats.batches, loop.stats.samples, loop.stats.tensors) == (1000, sum(sizes), tensors)
    assert loop.stats.bytes == sum(sizes) * 8 * tensors


def test_accelerate_is_told_to_prepare_first():
    """Its `prepare` would make another loader, which is not watched."""
    loader = DataLoader(DATA, BATCH)
    with pytest.raises(InvalidSettings, check=kind("watched-before-prepare")) as caught:
        getattr(watch(loader), "_is_accelerate_prepared", False)
    assert "iobench.watch(accelerator.prepare(loader))" in caught.value.hint
    loader._is_accelerate_prepared = True
    assert watch(loader)._is_accelerate_prepared


def _rank(rank, meeting, make, answers):
    try:
        distributed.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=RANKS)
        watching = watch(make(rank))
        if rank == 0:
            alone = watch(DataLoader(DATA, BATCH))  # as for an evaluation on one rank
            seen(alone)
            assert diagnose(Evidence(alone.stats)).findings[0].kind != FIRST
        rows = []
        for (own,) in watching:
            rows += own.tolist()
            distributed.barrier()  # ranks that train together are in step
        answers.put((rank, rows, diagnose(Evidence(watching.stats)).findings))
        distributed.barrier()
    except BaseException:  # noqa: BLE001 - the test shows it
        answers.put((rank, traceback.format_exc(), []))


def over_ranks(make, tmp_path, monkeypatch):
    """Return what each rank saw of a watched loader, and its findings."""
    monkeypatch.setattr(loop_stats, "LATE_S", 60.0)  # however late the other rank is
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    fork = multiprocessing.get_context("fork")
    answers = fork.Queue()
    ranks = [
        fork.Process(target=_rank, args=(rank, tmp_path / "meeting", make, answers)) for rank in range(RANKS)
    ]
    for one in ranks:
        one.start()
    came = sorted(answers.get(timeout=120) for _ in ranks)
    assert all(isinstance(rows, list) for _, rows, _ in came), came
    for one in ranks:
        one.join(60)
    return [rows for _, rows, _ in came], [findings for _, _, findings in came]


@pytest.mark.parametrize(
    "make",
    [
        lambda rank: DataLoader(DATA, BATCH),
        lambda rank: DataLoader(DATA, BATCH, sampler=DistributedSampler(DATA, 1, 0)),
        lambda rank: DataLoader(
            DATA, BATCH, sampler=RandomSampler(DATA, generator=torch.Generator().manual_seed(rank))
        ),
        lambda rank: DataLoader(Stream(), BATCH),
    ],
    ids=["sequential", "sampler-of-one", "seeds", "iterable"],
)
def test_it_is_said_first_that_every_rank_reads_everything(make, tmp_path, monkeypatch):
    rows, findings = over_ranks(make, tmp_path, monkeypatch)
    assert [sorted(own) for own in rows] == [list(range(SAMPLES))] * RANKS
    assert [own[0].kind for own in findings] == [FIRST] * RANKS


@pytest.mark.parametrize(
    "make",
    [
        lambda rank: again(watch(DataLoader(DATA, BATCH, shuffle=True)), DistributedSampler(DATA)),
        lambda rank: DataLoader(TensorDataset(torch.arange(rank, SAMPLES, RANKS)), BATCH),
        lambda rank: DataLoader(Stream(share=True), BATCH),
    ],
    ids=["sampler", "own-data", "iterable"],
)
def test_ranks_with_samples_of_their_own_are_not_complained_of(make, tmp_path, monkeypatch):
    rows, findings = over_ranks(make, tmp_path, monkeypatch)
    assert sorted(rows[0] + rows[1]) == list(range(SAMPLES))
    assert not any(one.kind == FIRST for own in findings for one in own)


class Late(TensorDataset):
    def __init__(self, late_s):
        super().__init__(torch.arange(SAMPLES))
        self.late_s = late_s

    def __getitem__(self, row):
        time.sleep(self.late_s)
        return super().__getitem__(row)


def test_the_rank_that_waits_most_decides_and_is_named(tmp_path, monkeypatch):
    """The step of the first rank waits for the second one's, whose loader is slow."""
    _, (first, second) = over_ranks(lambda rank: DataLoader(Late(rank * 0.01), BATCH), tmp_path, monkeypatch)
    (verdict,), (own,) = ([one for one in found if one.kind == "bottleneck"] for found in (first, second))
    assert verdict.values["slowest_rank"] == 1
    assert verdict.values["slowest_wait_share"] == own.values["wait_share"] > verdict.values["wait_share"]


EPOCHS = """
import iobench, torch
loader = torch.utils.data.DataLoader(range(64), batch_size=8)
loader = iobench.watch(loader) if {once} else loader
for _ in range({epochs}):
    for batch in loader if {once} else iobench.watch(loader):
        pass
    print("epoch", file=__import__("sys").stderr)
"""


@pytest.mark.parametrize(
    ("once", "epochs", "rank"), [(False, 1, 0), (True, 3, 0), (False, 3, 0), (False, 3, 1)]
)
def test_the_first_epoch_is_reported_and_all_at_the_end_on_the_first_rank(once, epochs, rank):
    done = subprocess.run(
        [sys.executable, "-c", EPOCHS.format(once=once, epochs=epochs)],
        capture_output=True,
        text=True,
        timeout=400,
        env=os.environ | torchrun_variables(rank, RANKS),
    )
    first, *others = done.stderr.split("epoch\n")
    assert (done.returncode, done.stdout) == (0, "")
    assert ("Next:" in first) == (rank == 0)
    assert ["Next:" in one for one in others] == [False] * (epochs - 1) + [rank == 0 and epochs > 1]
    assert others[-1].count(f" {epochs} loops") == (rank == 0 and epochs > 1)


UNREAD = """
import iobench, sys, torch
if {closed}:
    sys.stderr.close()
loader = torch.utils.data.DataLoader(range(64), batch_size=8)
for _ in range(3):
    for batch in iobench.watch(loader):
        pass
print("trained")
"""


@pytest.mark.parametrize("redirected", ["", "2>&-", "2> /dev/full", "2>&1 >&3 | true"])
def test_training_goes_on_where_nothing_can_be_printed(redirected):
    shell = f'exec 3>&1; "$0" -c "$1" {redirected}'
    code = UNREAD.format(closed=not redirected)
    done = subprocess.run(["sh", "-c", shell, sys.executable, code], stdout=subprocess.PIPE, timeout=100)
    assert done.stdout.split() == [b"trained"]


def test_a_stream_loader_that_is_made_first_reads_its_share(tmp_path, monkeypatch):
    images = prepared(tmp_path, image_arrays(), ["npy"])
    stream = StreamLoader(images.root, format="npy", batch_size=BATCH, order="random", fields=["y"])
    rows, findings = over_ranks(lambda rank: Labels(stream), tmp_path, monkeypatch)
    assert sorted(rows[0] + rows[1]) == sorted(seen(Labels(stream)))
    assert not any(one.kind == FIRST for own in findings for one in own)
