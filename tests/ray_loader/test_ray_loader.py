"""RayLoader returns what torch's DataLoader returns, also when actors die."""

import signal
import time
import warnings
from itertools import chain, islice
from types import SimpleNamespace

import psutil
import pytest
import torch
from kinds import has, refused_as
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset
from worker_datasets import RAISED, Augmented, Once, Troubled, killed, noted, raising, sleeping

import iobench
from iobench.base.errors import InvalidSettings, LoaderFailed
from iobench.contrib.ray import loader, ray_runtime, remote_worker
from iobench.contrib.ray.remote_worker import round_robin

SETTINGS = {"num_workers": 2, "worker_init_fn": noted, "persistent_workers": True}


def generator():
    return torch.Generator().manual_seed(3)


def assert_same(batches, expected):
    assert len(batches) == len(expected)
    for one, other in zip(batches, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


class Dying(Augmented):
    """Augmented rows; some of them kill or stop, once each, the worker that makes them."""

    def __init__(self, troubles):
        super().__init__()
        self.troubles = troubles

    def __getitem__(self, row):
        self.troubles.get(row, lambda: None)()
        return super().__getitem__(row)


@pytest.mark.timeout(120)
def test_epochs_equal_those_of_torch_bit_by_bit_when_workers_are_killed_or_stopped(
    cluster, tmp_path, monkeypatch
):
    """Compare order, random transforms, worker_init_fn, get_worker_info, the last batch and persistence."""
    monkeypatch.setattr(remote_worker, "SILENT_S", 3.0)
    expected = DataLoader(Augmented(), 2, shuffle=True, generator=generator(), **SETTINGS)
    epochs = [list(expected), list(expected)]
    del expected
    troubles = {11: Once(signal.SIGKILL, tmp_path / "a"), 30: Once(signal.SIGSTOP, tmp_path / "b")}
    actors = iobench.RayLoader(Dying(troubles), 2, shuffle=True, generator=generator(), **SETTINGS)
    for epoch in epochs:
        assert_same(list(actors), epoch)
    actors.close()
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.timeout(60)
def test_an_error_of_the_dataset_is_raised_once_after_the_batches_before_it(cluster):
    batches = iter(iobench.RayLoader(Troubled(raising, 6), 2, num_workers=1))
    pids = {pid for batch in islice(batches, 3) for pid in batch.tolist()}
    with pytest.raises(ZeroDivisionError) as caught:
        next(batches)
    assert RAISED in str(caught.value)
    assert "RayLoader worker 0" in str(caught.value)
    assert len(pids) == 1
    gone_within(10, pids)


@pytest.mark.timeout(60)
def test_a_batch_that_kills_every_worker_is_one_error(cluster, monkeypatch):
    monkeypatch.setattr(remote_worker, "DEATHS", 2)
    with refused_as("worker-died", LoaderFailed):
        list(iobench.RayLoader(Troubled(killed, 0), 2, num_workers=1))


@pytest.mark.timeout(60)
def test_a_batch_that_is_late_and_a_loader_that_is_abandoned(cluster, monkeypatch):
    actors = iobench.RayLoader(Troubled(sleeping, 2), 1, num_workers=1, persistent_workers=True, timeout=50)
    batches = iter(actors)
    pids = {int(next(batches)), int(next(batches))}  # waits until the actor has started
    moments = chain([time.monotonic() - 49.5], iter(time.monotonic, None))  # of the 50 s, 0.5 s are left
    monkeypatch.setattr(remote_worker, "time", SimpleNamespace(monotonic=lambda: next(moments)))
    with pytest.raises(RuntimeError, match="50 seconds"):
        next(batches)
    del batches, actors
    gone_within(10, pids)


@pytest.mark.timeout(60)
def test_actors_that_no_host_has_resources_for_are_one_error(cluster, monkeypatch):
    monkeypatch.setattr(remote_worker, "START_S", 1.5)
    impossible = {"resources": {"nowhere": 1}}
    with refused_as("worker-not-started", LoaderFailed):
        next(iter(iobench.RayLoader(Augmented(), num_workers=1, actor_options=impossible)))


def test_small_batches_are_shipped_together_and_large_ones_alone():
    def shipment(nbytes, count):
        return SimpleNamespace(batches=[0] * count, nbytes=nbytes, seconds=1e-6)

    assert remote_worker.batches_per_shipment(shipment(1 << 14, 1)) == 64
    assert remote_worker.batches_per_shipment(shipment(1 << 20, 1)) == 1
    assert remote_worker.batches_per_shipment(shipment(6 << 20, 2)) == 1
    slow = shipment(1 << 10, 1)
    slow.seconds = 0.05
    assert remote_worker.batches_per_shipment(slow) == 2


@pytest.mark.parametrize("sizes", [(1, 1, 1), (4, 1, 2)])
def test_batches_are_assigned_in_turn_whatever_the_number_per_shipment(sizes):
    shares, queues = round_robin(iter(range(11)), 3), [[], [], []]
    while any(more := [[*islice(share, most)] for share, most in zip(shares, sizes, strict=True)]):
        for queue, one in zip(queues, more, strict=True):
            queue += one
    assert queues == [list(range(11))[first::3] for first in range(3)]


def test_without_ray_it_is_torch_s_loader_with_one_warning(monkeypatch):
    monkeypatch.setattr(ray_runtime, "installed", lambda: False)
    loader.warn_once.cache_clear()
    with pytest.warns(UserWarning, match=r"iobench\[ray\]"):
        fallback = iobench.RayLoader(Augmented(), 4, shuffle=True, num_workers=2, generator=generator())
    expected = DataLoader(Augmented(), 4, shuffle=True, num_workers=2, generator=generator())
    assert_same(list(fallback), list(expected))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        iobench.RayLoader(Augmented(), 4, num_workers=2)


def test_without_workers_it_is_torch_s_loader():
    rows = TensorDataset(torch.arange(10))
    shares = []
    for rank in range(2):
        sampler = DistributedSampler(rows, 2, rank, shuffle=True)
        shares += [int(x) for (batch,) in iobench.RayLoader(rows, 2, sampler=sampler) for x in batch]
    assert sorted(shares) == list(range(10))


def test_an_iterable_dataset_is_refused():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(3))

    with refused_as("iterable-dataset", InvalidSettings, found=has("Stream")):
        iobench.RayLoader(Stream(), num_workers=1)


def gone_within(seconds, pids):
    until = time.monotonic() + seconds
    while any(psutil.pid_exists(pid) for pid in pids):
        assert time.monotonic() < until
        time.sleep(0.1)
