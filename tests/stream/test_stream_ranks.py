import pytest
import torch
from conftest import image_arrays
from kinds import kind, refused_as
from stream_cases import SAMPLES, assert_batches, every_order, loader, rows_of

import iobench
from iobench import StreamLoader
from iobench.base.errors import InvalidSettings

pytest_plugins = ("stream_fixtures",)

SOURCE = image_arrays(SAMPLES)


@pytest.mark.parametrize("drop_last", [False, True])
def test_more_ranks_than_samples_are_refused(pictures, drop_last):
    loader(pictures, "npy", batch_size=1, rank=0, world_size=SAMPLES, drop_last=drop_last)
    with pytest.raises(InvalidSettings, check=kind("uneven-batches", hint="use fewer ranks")):
        loader(pictures, "npy", batch_size=1, rank=0, world_size=SAMPLES + 1, drop_last=drop_last)


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
    with refused_as(named, InvalidSettings):
        loader(pictures, "npy", **given)


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
