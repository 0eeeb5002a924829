import json

import pytest
from conftest import image_arrays, numbers
from kinds import kind
from stream_cases import BATCH, SAMPLES, assert_batches, every_order, every_way, loader, rows_of

import iobench
from iobench.base.errors import InvalidSettings

pytest_plugins = ("stream_fixtures",)

SOURCE = image_arrays(SAMPLES)
BATCHES = -(-SAMPLES // BATCH)


def state_after(batches, one):
    """Return a loader's state inside the loop, after that many batches, as a checkpoint stores it."""
    state = one.state_dict()
    for number, _ in enumerate(one, 1):
        if number == batches:
            state = one.state_dict()
            break
    return json.loads(json.dumps(state))


@every_way
@pytest.mark.parametrize(("order", "stop"), [("sequential", BATCHES), ("random", 4), ("block", 4)])
@pytest.mark.usefixtures("real_direct")
def test_a_resumed_loop_yields_the_same_batches(pictures, name, direct, order, stop):
    def one():
        return loader(pictures, name, direct=direct, order=order, seed=4)

    again = one()
    again.load_state_dict(state_after(stop, one()))
    assert_batches(again, SOURCE, rows_of(order, 0, seed=4)[stop:])
    assert_batches(again, SOURCE, rows_of(order, 1, seed=4))


@every_order
@pytest.mark.parametrize("options", [{"drop_last": True}, {"rank": 1, "world_size": 2}])
def test_every_batch_can_be_the_last_before_a_stop(pictures, order, options):
    rows = rows_of(order, **options)
    for stop in range(len(rows) + 1):
        again = loader(pictures, "npy", order=order, **options)
        again.load_state_dict(state_after(stop, loader(pictures, "npy", order=order, **options)))
        assert_batches(again, SOURCE, rows[stop:])


@every_order
def test_a_state_between_epochs_resumes_with_the_next(pictures, order):
    one, again = loader(pictures, "npy", order=order), loader(pictures, "npy", order=order)
    assert len(list(one)) == BATCHES
    again.load_state_dict(one.state_dict())
    assert_batches(again, SOURCE, rows_of(order, 1))


def test_a_resumed_loop_can_be_stopped_again(pictures):
    one = loader(pictures, "npy", order="random")
    one.load_state_dict(state_after(3, one))
    again = loader(pictures, "npy", order="random")
    again.load_state_dict(state_after(2, one))
    assert_batches(again, SOURCE, rows_of("random")[5:])


def test_a_state_can_be_loaded_and_saved_without_a_loop_between(pictures):
    state = state_after(7, loader(pictures, "npy"))
    again = loader(pictures, "npy")
    again.load_state_dict(state)
    assert again.state_dict() == state


def test_only_the_first_loop_after_a_state_is_shorter(pictures):
    one = loader(pictures, "npy", order="random")
    one.load_state_dict(state_after(9, one))
    assert len(one) == BATCHES
    next(iter(one))
    assert_batches(one, SOURCE, rows_of("random"))


def test_choosing_the_epoch_of_a_state_keeps_its_place_and_another_one_does_not(pictures):
    state = state_after(9, loader(pictures, "npy", order="random"))
    for epoch, rest in [(0, rows_of("random")[9:]), (1, rows_of("random", 1))]:
        again = loader(pictures, "npy", order="random")
        again.load_state_dict(state)
        again.set_epoch(epoch)
        assert_batches(again, SOURCE, rest)


@every_way
@pytest.mark.usefixtures("real_direct")
def test_a_state_may_be_used_with_another_format_and_other_fields(pictures, name, direct):
    again = loader(pictures, name, direct=direct, order="block", fields=["y"], threads=1)
    again.load_state_dict(state_after(4, loader(pictures, "hdf5", order="block", threads=2)))
    assert_batches(again, {"y": SOURCE["y"]}, rows_of("block")[4:])


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ({"seed": 1}, "seed: expected 0, found 1"),
        ({"batch_size": BATCH + 1}, f"batch_size: expected {BATCH}, found {BATCH + 1}"),
        ({"order": "random"}, "order: expected 'block', found 'random'"),
        ({"drop_last": True}, "drop_last: expected False, found True"),
        ({"rank": 0, "world_size": 2}, "world_size: expected 1, found 2"),
        ({"block_bytes": 1}, "block_rows: .* found 1"),
        ({"window_bytes": 1}, "window_batches: .* found 1"),
    ],
)
def test_a_state_of_other_settings_is_refused_by_their_name(pictures, option, named):
    one = loader(pictures, "npy", order="block")
    with pytest.raises(InvalidSettings, check=kind("other-loader"), match=named) as caught:
        one.load_state_dict(state_after(3, loader(pictures, "npy", **{"order": "block", **option})))
    assert "\n" not in str(caught.value)
    assert_batches(one, SOURCE, rows_of("block"))


def test_a_state_of_another_rank_is_refused(pictures):
    one = loader(pictures, "npy", rank=0, world_size=2)
    with pytest.raises(InvalidSettings, check=kind("other-loader", expected=0, found=1)):
        one.load_state_dict(state_after(1, loader(pictures, "npy", rank=1, world_size=2)))


def test_a_state_of_another_dataset_is_refused(pictures, tmp_path):
    other, _ = iobench.prepare(numbers(SAMPLES), ["npy"], data_dir=tmp_path)
    with pytest.raises(InvalidSettings, check=kind("other-loader"), match="dataset"):
        loader(pictures, "npy").load_state_dict(state_after(1, loader(other, "npy")))


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": -1},
        {"epoch": None},
        {"epoch": True},
        {"epoch": "1"},
        {"epoch": 0.5},
        {"batch": -1},
        {"batch": BATCHES + 1},
        {"batch": None},
        {"batch": True},
        {"batch": 1.0},
        {"batch": [1]},
        {"version": 2},
        {"version": None},
    ],
)
def test_a_state_that_makes_no_sense_is_refused(pictures, change):
    one = loader(pictures, "npy")
    with pytest.raises(InvalidSettings, match=str(next(iter(change)))):
        one.load_state_dict({**one.state_dict(), **change})
    assert one.state_dict() == loader(pictures, "npy").state_dict()


@pytest.mark.parametrize("missing", ["version", "dataset", "seed", "epoch", "batch"])
def test_a_state_that_lacks_something_is_refused(pictures, missing):
    one = loader(pictures, "npy")
    state = one.state_dict()
    del state[missing]
    with pytest.raises(InvalidSettings, match=missing):
        one.load_state_dict(state)
    with pytest.raises(InvalidSettings):
        one.load_state_dict({})


@pytest.mark.parametrize("state", [None, True, [1]])
def test_an_object_that_is_not_a_state_is_refused(pictures, state):
    with pytest.raises(InvalidSettings, check=kind("invalid-state", found=type(state).__name__)):
        loader(pictures, "npy").load_state_dict(state)
