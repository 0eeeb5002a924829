from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import image_arrays
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kinds import kind
from stream_cases import SAMPLES, assert_batches, either_order, every_order, every_way, loader, rows_of

import iobench
from iobench import StreamLoader
from iobench.base.errors import InvalidSettings
from iobench.loading.order import ORDERS, Order

pytest_plugins = ("stream_fixtures",)

ROOT = Path(iobench.__file__).parent.parent
SOURCE = image_arrays(SAMPLES)


@settings(deadline=None)
@given(
    samples=st.integers(1, 300),
    world_size=st.integers(1, 9),
    epoch=st.integers(0, 5),
    options=st.fixed_dictionaries(
        {
            "kind": st.sampled_from(ORDERS),
            "batch_size": st.integers(1, 80),
            "seed": st.integers(0, 2**40),
            "block_rows": st.integers(1, 40),
            "window_batches": st.integers(1, 4),
            "drop_last": st.booleans(),
        }
    ),
)
def test_ranks_have_equally_many_batches_and_every_sample_once(samples, world_size, epoch, options):
    orders = [Order(rank=rank, world_size=world_size, **options) for rank in range(world_size)]
    try:
        batches = [order.batches(samples, epoch) for order in orders]
    except InvalidSettings:
        assume(False)
    assert {len(own) for own in batches} == {orders[0].length(samples, 0)}
    rows = [[np.arange(samples)[rows] for rows in own] for own in batches]
    assert all(len(batch) for own in rows for batch in own)
    sizes = [sum(map(len, own)) for own in rows]
    every = np.concatenate([np.zeros(0, np.int64), *(batch for own in rows for batch in own)])
    assert len(np.unique(every)) == len(every)
    if options["drop_last"]:
        assert {len(batch) for own in rows for batch in own} <= {options["batch_size"]}
        assert samples - len(every) < world_size * options["batch_size"]
    else:
        assert len(every) == samples
        assert max(sizes) - min(sizes) <= 1


@every_way
@either_order
@pytest.mark.usefixtures("real_direct")
def test_each_rank_reads_its_own_part_in_every_epoch(pictures, name, direct, order):
    for rank in range(3):
        share = {"rank": rank, "world_size": 3}
        one = loader(pictures, name, direct=direct, order=order, **share)
        assert len(one) == 5
        for epoch in range(2):
            assert_batches(one, SOURCE, rows_of(order, epoch, **share))


@pytest.mark.parametrize("drop_last", [False, True])
def test_more_ranks_than_samples_are_refused(pictures, drop_last):
    loader(pictures, "npy", batch_size=1, rank=0, world_size=SAMPLES, drop_last=drop_last)
    with pytest.raises(InvalidSettings, check=kind("uneven-batches", hint="use fewer ranks")):
        loader(pictures, "npy", batch_size=1, rank=0, world_size=SAMPLES + 1, drop_last=drop_last)


def test_uneven_batches_are_refused_with_a_hint(pictures):
    with pytest.raises(InvalidSettings, check=kind("uneven-batches", hint="use drop_last")):
        loader(pictures, "npy", batch_size=1, rank=0, world_size=2)
    assert len(loader(pictures, "npy", batch_size=1, rank=0, world_size=2, drop_last=True)) == SAMPLES // 2


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"rank": 0}, "missing-option"),
        ({"world_size": 2}, "missing-option"),
        ({"rank": 2, "world_size": 2}, "invalid-rank"),
        ({"rank": -1, "world_size": 2}, "invalid-rank"),
        ({"rank": 0, "world_size": 0}, "invalid-rank"),
    ],
)
def test_an_invalid_rank_is_refused(pictures, given, named):
    with pytest.raises(InvalidSettings, check=kind(named)) as caught:
        loader(pictures, "npy", **given)
    assert "\n" not in str(caught.value)


@pytest.fixture
def group(monkeypatch):
    """Return a function that makes this process a rank of a process group."""

    def join(rank, world_size):
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: world_size)

    return join


@every_order
def test_a_loader_follows_a_group_that_is_made_after_it(group, pictures, order):
    one, alone = (loader(pictures, "npy", order=order, **own) for own in ({}, {"rank": 0, "world_size": 1}))
    assert len(one) == len(alone) == 13
    next(iter(one))  # a look at the first batch
    for epoch, (rank, world_size) in enumerate([(1, 3), (0, 2)]):
        group(rank, world_size)
        rows = rows_of(order, epoch, rank=rank, world_size=world_size)
        assert len(one) == len(rows)
        assert_batches(one, SOURCE, rows)
        assert_batches(alone, SOURCE, rows_of(order, epoch))


def test_a_state_is_loaded_by_the_ranks_of_then(group, pictures):
    one, state = loader(pictures, "npy"), loader(pictures, "npy").state_dict()
    for rank, world_size in [(2, 3), (1, 2)]:
        group(rank, world_size)
        one.load_state_dict(state)
        assert_batches(one, SOURCE, rows_of("sequential", rank=rank, world_size=world_size))


def test_without_a_group_the_launcher_s_variables_count(monkeypatch, pictures):
    one = loader(pictures, "npy")
    for name, value in {"RANK": "1", "WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    assert_batches(one, SOURCE, rows_of("sequential", rank=1, world_size=3))
    batches = iobench.batches(pictures.root, format="npy", loader="native", batch_size=16)
    assert_batches(batches, SOURCE, rows_of("sequential", rank=1, world_size=3))


def test_tasks_of_slurm_that_may_not_train_together_are_warned_of(monkeypatch, pictures):
    for name, value in {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "3"}.items():
        monkeypatch.setenv(name, value)
    with pytest.warns(RuntimeWarning):
        assert_batches(loader(pictures, "npy"), SOURCE, rows_of("sequential", rank=1, world_size=3))


def test_a_group_that_contradicts_the_launcher_is_an_error(group, monkeypatch, pictures):
    group(1, 2)
    for name, value in {"RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    for use in (len, list, StreamLoader.state_dict):
        with pytest.raises(InvalidSettings, check=kind("contradicting-ranks")):
            use(loader(pictures, "npy"))


def test_a_rank_that_changes_in_the_middle_of_an_epoch_is_an_error(group, pictures):
    one = loader(pictures, "npy")
    running = iter(one)
    next(running)
    group(1, 2)
    for use in (one.state_dict, running.__next__):
        with pytest.raises(InvalidSettings, check=kind("rank-changed")):
            use()
    assert_batches(one, SOURCE, rows_of("sequential", rank=1, world_size=2))
