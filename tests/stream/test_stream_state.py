import json
from itertools import chain

import numpy as np
import pytest
from conftest import image_arrays, numbers
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from kinds import kind, refused_as
from stream_cases import BATCH, SAMPLES, WINDOW, assert_batches, every_order, every_way, loader, rows_of

import iobench
from iobench.base.errors import InvalidSettings
from iobench.loading.order import ORDERS, Order
from iobench.stream.epoch_position import EpochPosition, RemainingBatches

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


@every_order
@pytest.mark.parametrize("options", [{"drop_last": True}, {"rank": 1, "world_size": 2}])
def test_every_batch_can_be_the_last_before_a_stop(pictures, order, options):
    rows = rows_of(order, **options)
    for stop in range(len(rows) + 1):
        again = loader(pictures, "npy", order=order, **options)
        again.load_state_dict(state_after(stop, loader(pictures, "npy", order=order, **options)))
        assert_batches(again, SOURCE, rows[stop:])
    assert_batches(again, SOURCE, rows_of(order, 1, **options))


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
        ({"order": "random"}, "order: expected 'block', found 'random'"),
        ({"drop_last": True}, "drop_last: expected False, found True"),
        ({"block_bytes": 1}, "block_rows: .* found 1"),
        ({"window_bytes": 1}, "window_bytes: .* found 1"),
    ],
)
def test_a_state_of_other_settings_is_refused_by_their_name(pictures, option, named):
    one = loader(pictures, "npy", order="block")
    with refused_as("other-loader", InvalidSettings, match=named):
        one.load_state_dict(state_after(3, loader(pictures, "npy", **{"order": "block", **option})))
    assert_batches(one, SOURCE, rows_of("block"))


def test_a_state_is_the_same_on_every_rank(pictures):
    ranks = [loader(pictures, "npy", order="block", rank=rank, world_size=3) for rank in range(3)]
    first, *others = [state_after(2, one) for one in ranks]
    assert others == [first, first]


@settings(deadline=None, max_examples=300)
@given(
    samples=st.integers(1, 150),
    legs=st.lists(
        st.tuples(st.integers(1, 5), st.integers(1, 9), st.integers(0, 20)), min_size=1, max_size=4
    ),
    options=st.fixed_dictionaries(
        {
            "kind": st.sampled_from(ORDERS),
            "seed": st.integers(0, 2**40),
            "block_rows": st.integers(1, 9),
            "window_batches": st.integers(1, 4),
            "drop_last": st.booleans(),
        }
    ),
)
@example(
    5,
    [(2, 2, 1), (1, 5, 1)],  # the rank of 2 samples keeps one for its second batch
    {"kind": "random", "seed": 0, "block_rows": 1, "window_batches": 1, "drop_last": False},
)
@example(
    20,
    [(1, 5, 1), (4, 1, 5)],
    {"kind": "random", "seed": 0, "block_rows": 1, "window_batches": 1, "drop_last": True},
)
def test_each_sample_comes_once_over_resumes_with_other_ranks_and_batches(samples, legs, options):
    position, consumed = None, []
    for number, (world_size, batch_size, stop) in enumerate(legs):
        ranks = [
            Order(batch_size=batch_size, rank=r, world_size=world_size, **options) for r in range(world_size)
        ]
        position = position or EpochPosition.start(ranks[0], samples, 2)
        try:
            length = len(position.division(ranks[0], samples).numbers)
        except InvalidSettings:
            assume(number)
            continue  # load_state_dict refuses these ranks
        stop = min(stop, length) if number < len(legs) - 1 else length
        after = position.after(ranks[0], samples, stop)
        assert not 0 < stop == length or not after.remaining  # dropped ones do not come
        for one in ranks:
            batches = rows_in(RemainingBatches(one, samples, position), samples)
            consumed += [row for batch in batches[:stop] for row in batch]
            # the same ranks resume with the very next batch
            assert rows_in(RemainingBatches(one, samples, after), samples) == batches[stop:]
        position = after
    assert len(set(consumed)) == len(consumed)
    if not position.remaining and not options["drop_last"]:
        assert sorted(consumed) == list(range(samples))
    elif position.remaining:
        assert len(consumed) + position.size == samples


def rows_in(batches, samples):
    return [np.arange(samples)[rows].tolist() for rows in batches]


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("stop", [0, 3])
def test_a_global_batch_of_random_order_does_not_depend_on_the_number_of_ranks(world_size, stop):
    whole = rows_in(Order("random", 8, 5).batches(203, 0), 203)
    position = EpochPosition.start(Order("random", 8, 5), 203, 0).after(Order("random", 8, 5), 203, stop)
    ranks = [Order("random", 8 // world_size, 5, rank=r, world_size=world_size) for r in range(world_size)]
    batches = [rows_in(RemainingBatches(one, 203, position), 203) for one in ranks]
    together = [sorted(chain(*parts)) for parts in zip(*batches, strict=True)]
    full = 203 // 8 - stop
    assert together[: full - 1] == [sorted(batch) for batch in whole[stop:][: full - 1]]


@every_way
@every_order
@pytest.mark.usefixtures("real_direct")
def test_other_ranks_and_batches_read_what_remains(pictures, name, direct, order):
    state = state_after(2, loader(pictures, name, order=order, rank=1, world_size=2))
    own = {"direct": direct, "order": order, "window_bytes": WINDOW * BATCH * pictures.schema.sample_bytes}
    came = []
    for rank in range(3):
        one = loader(pictures, name, rank=rank, world_size=3, batch_size=7, **own)
        one.load_state_dict(state)
        for batch in one:
            came += [x.tobytes() for x in batch["x"].numpy()]
    read = [rows[:2] for rows in (rows_of(order, rank=rank, world_size=2) for rank in range(2))]
    rest = np.delete(np.arange(SAMPLES), np.concatenate([batch for rows in read for batch in rows]))
    assert sorted(came) == sorted(x.tobytes() for x in SOURCE["x"][rest])


def test_a_rest_that_the_ranks_cannot_share_is_refused(pictures):
    state = state_after(BATCHES - 1, loader(pictures, "npy"))  # 11 samples remain
    one = loader(pictures, "npy", batch_size=1, rank=0, world_size=7)
    with pytest.raises(InvalidSettings, check=kind("uneven-batches")):
        one.load_state_dict(state)
    assert one.state_dict()["remaining"] == [[0, SAMPLES]]


def test_a_state_of_another_dataset_is_refused(pictures, tmp_path):
    other, _ = iobench.prepare(numbers(SAMPLES), ["npy"], data_dir=tmp_path)
    with pytest.raises(InvalidSettings, check=kind("other-loader"), match="dataset"):
        loader(pictures, "npy").load_state_dict(state_after(1, loader(other, "npy")))


MISSING = object()
WRONG = {
    "epoch": (MISSING, -1, None, True, "1", 0.5),
    "remaining": (
        *(MISSING, [[-1, SAMPLES]], [[0, SAMPLES + 1]], [[3, 1]], [[4, 8], [0, 2]], None),
        *([[True, 2]], [[1.0, 2]], [1]),
    ),
    "ranks": (MISSING, 0, SAMPLES + 1),
    "window_rows": (MISSING, 0, None),
    "version": (MISSING, 1, None),
    "dataset": (MISSING,),
    "seed": (MISSING,),
}


@pytest.mark.parametrize(("name", "value"), [(name, one) for name, values in WRONG.items() for one in values])
def test_a_state_that_makes_no_sense_or_lacks_something_is_refused(pictures, name, value):
    one = loader(pictures, "npy")
    changed = one.state_dict() | {name: value}
    if value is MISSING:
        del changed[name]
    with pytest.raises(InvalidSettings, match=name):
        one.load_state_dict(changed)
    assert one.state_dict() == loader(pictures, "npy").state_dict()


@pytest.mark.parametrize("state", [None, True, [1]])
def test_an_object_that_is_not_a_state_is_refused(pictures, state):
    with pytest.raises(InvalidSettings, check=kind("invalid-state", found=type(state).__name__)):
        loader(pictures, "npy").load_state_dict(state)
