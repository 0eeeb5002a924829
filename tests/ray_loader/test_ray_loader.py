"""RayLoader: what torch's DataLoader gives, from actors that may die."""

import signal
import time
import warnings
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace

import psutil
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset
from worker_datasets import Augmented, Once, Troubled, dawdling, killed, noted, raising

import iobench
from iobench.base.errors import (
    InvalidSettings,
    LoaderFailed,
)
from iobench.loading.ray import cluster as ray_cluster
from iobench.loading.ray import life, loader, remote
from iobench.loading.ray.remote import Dealer

pytestmark = pytest.mark.xdist_group("ray")
SETTINGS = {"num_workers": 2, "worker_init_fn": noted, "persistent_workers": True}


def generator():
    return torch.Generator().manual_seed(3)


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


class Dying(Augmented):
    """Augmented rows; two of them, each once, end or stop the worker that makes them."""

    def __init__(self, troubles):
        super().__init__()
        self.troubles = troubles

    def __getitem__(self, row):
        self.troubles.get(row, lambda: None)()
        return super().__getitem__(row)


@pytest.mark.timeout(120)
def test_epochs_are_torch_s_bit_by_bit_even_where_workers_are_killed_and_stopped(
    cluster, tmp_path, monkeypatch
):
    """Order, random transforms, worker_init_fn, get_worker_info, the last batch, workers that persist."""
    monkeypatch.setattr(life, "SILENT_S", 3.0)
    expected = DataLoader(Augmented(), 2, shuffle=True, generator=generator(), **SETTINGS)
    epochs = [list(expected), list(expected)]
    del expected
    troubles = {11: Once(signal.SIGKILL, tmp_path / "a"), 30: Once(signal.SIGSTOP, tmp_path / "b")}
    found = iobench.RayLoader(Dying(troubles), 2, shuffle=True, generator=generator(), **SETTINGS)
    for epoch in epochs:
        assert_same(list(found), epoch)
    found.close()
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.timeout(60)
def test_what_a_dataset_raises_is_raised_once_after_the_batches_before_it(cluster):
    batches = iter(iobench.RayLoader(Troubled(raising, 6), 2, num_workers=1))
    pids = {pid for batch in islice(batches, 3) for pid in batch.tolist()}
    with pytest.raises(ZeroDivisionError) as caught:
        next(batches)
    assert "row 6 is not to be had" in str(caught.value)
    assert "Caught ZeroDivisionError in RayLoader worker 0." in str(caught.value)
    assert len(pids) == 1
    gone_within(10, pids)  # and nobody is left


@pytest.mark.timeout(60)
def test_a_batch_that_kills_every_worker_is_one_line(cluster, monkeypatch):
    monkeypatch.setattr(remote, "DEATHS", 2)
    with pytest.raises(LoaderFailed, match="RayLoader worker 0 died 2 times over the same batch") as caught:
        list(iobench.RayLoader(Troubled(killed, 0), 2, num_workers=1))
    assert "\n" not in str(caught.value)


@pytest.mark.timeout(60)
def test_a_batch_that_does_not_come_in_time_and_a_loader_that_is_left(cluster):
    found = iobench.RayLoader(Troubled(dawdling, 2), 1, num_workers=1, persistent_workers=True, timeout=50)
    batches = iter(found)
    pids = {int(next(batches)), int(next(batches))}  # which took as long as an actor takes to start
    (member,) = found._kept._members
    member._crew = replace(member._crew, timeout=0.5)
    with pytest.raises(RuntimeError, match="timed out after 50 seconds"):
        next(batches)
    del batches, found, member
    gone_within(10, pids)


@pytest.mark.timeout(60)
def test_actors_that_no_host_has_room_for_are_one_line(cluster, monkeypatch):
    monkeypatch.setattr(life, "START_S", 1.5)
    impossible = {"resources": {"nowhere": 1}}
    with pytest.raises(LoaderFailed, match="has not started within") as caught:
        next(iter(iobench.RayLoader(Augmented(), num_workers=1, actor_options=impossible)))
    assert "\n" not in str(caught.value)


def test_small_batches_travel_together_and_large_ones_alone():
    def shipment(nbytes, count):
        return SimpleNamespace(batches=[0] * count, nbytes=nbytes, seconds=1e-6)

    assert remote._joined(shipment(1 << 14, 1)) == 64
    assert remote._joined(shipment(1 << 20, 1)) == 1
    assert remote._joined(shipment(6 << 20, 2)) == 1
    slow = shipment(1 << 10, 1)
    slow.seconds = 0.05
    assert remote._joined(slow) == 2


@pytest.mark.parametrize("sizes", [(1, 1, 1), (4, 1, 2)])
def test_batches_are_dealt_out_in_turn_however_many_travel_together(sizes):
    dealer, hands = Dealer(iter(range(11)), 3), [[], [], []]
    while any(dealt := [dealer.take(number, most) for number, most in enumerate(sizes)]):
        for hand, more in zip(hands, dealt, strict=True):
            hand += more
    assert hands == [list(range(11))[first::3] for first in range(3)]


def test_without_ray_it_is_torch_s_loader_and_says_so_once(monkeypatch):
    monkeypatch.setattr(ray_cluster, "installed", lambda: False)
    monkeypatch.setattr(loader, "_said", [])
    with pytest.warns(UserWarning, match=r'pip install "iobench\[ray\]"'):
        found = iobench.RayLoader(Augmented(), 4, shuffle=True, num_workers=2, generator=generator())
    expected = DataLoader(Augmented(), 4, shuffle=True, num_workers=2, generator=generator())
    assert_same(list(found), list(expected))
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


def test_an_iterable_dataset_is_refused_by_name():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(3))

    with pytest.raises(InvalidSettings, match="Stream is an IterableDataset"):
        iobench.RayLoader(Stream(), num_workers=1)


def gone_within(seconds, pids):
    until = time.monotonic() + seconds
    while any(psutil.pid_exists(pid) for pid in pids):
        assert time.monotonic() < until
        time.sleep(0.1)
