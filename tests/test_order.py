import itertools
from dataclasses import replace
from functools import partial
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from kinds import kind as error_kind

from iobench.base.errors import InvalidSettings
from iobench.base.options import LIMITS, check_setting
from iobench.bench.options import RunOptions
from iobench.formats import Field, Schema
from iobench.loading import order as order_module
from iobench.loading.batching import Batching, blocks_of
from iobench.loading.order import ORDERS, Order, shuffle_quality

ORDER = st.builds(
    Order,
    st.sampled_from(ORDERS),
    batch_size=st.one_of(st.integers(1, 9), st.integers(1, 400)),
    seed=st.integers(0, 2**40),
    block_rows=st.integers(1, 50),
    window_batches=st.integers(1, 9),
)
EPOCHS = {"samples": st.integers(1, 300), "order": ORDER, "epoch": st.integers(0, 9)}


def rows_of(batches, samples):
    return np.concatenate([np.arange(0), *(np.arange(samples)[rows] for rows in batches)])


def sizes_of(batches):
    return [rows.stop - rows.start if isinstance(rows, slice) else len(rows) for rows in batches]


def ranks(order, world_size):
    return [replace(order, rank=rank, world_size=world_size) for rank in range(world_size)]


@settings(deadline=None)
@given(**EPOCHS)
def test_each_row_comes_exactly_once_and_only_the_last_batch_is_smaller(samples, order, epoch):
    batches = order.batches(samples, epoch)
    assert sorted(rows_of(batches, samples)) == list(range(samples))
    sizes = sizes_of(batches)
    assert set(sizes[:-1]) <= {order.batch_size}
    assert 1 <= sizes[-1] <= order.batch_size


@settings(deadline=None)
@given(**EPOCHS)
def test_a_smaller_last_batch_can_be_left_out(samples, order, epoch):
    whole = order.batches(samples, epoch)
    dropped = replace(order, drop_last=True).batches(samples, epoch)
    assert sizes_of(dropped) == [order.batch_size] * (samples // order.batch_size)
    for held, rows in zip(dropped, whole, strict=False):
        np.testing.assert_array_equal(np.arange(samples)[held], np.arange(samples)[rows])


@settings(deadline=None)
@given(**EPOCHS, world_size=st.integers(1, 9))
@example(samples=5, order=Order("sequential", 2), epoch=0, world_size=2)  # 3 rows and 2: one batch more
@example(samples=5, order=Order("block", 2, block_rows=3), epoch=0, world_size=2)
def test_over_all_ranks_each_row_comes_once_in_equally_many_batches(samples, order, epoch, world_size):
    every = ranks(order, world_size)
    most = -(-samples // world_size)
    if -(-most // order.batch_size) > samples // world_size:  # a rank would have an empty batch
        for one in every:
            with pytest.raises(InvalidSettings, check=error_kind("uneven-batches")):
                one.batches(samples, epoch)
        return
    result = [one.batches(samples, epoch) for one in every]
    assert sorted(np.concatenate([rows_of(own, samples) for own in result])) == list(range(samples))
    assert {len(own) for own in result} == {order.length(most, epoch)}
    assert {one.length(samples, epoch) for one in every} == {order.length(most, epoch)}
    sizes = [sizes_of(own) for own in result]
    assert all(1 <= size <= order.batch_size for own in sizes for size in own)
    assert all(set(own[:-2]) <= {order.batch_size} for own in sizes)
    shares = [sum(own) for own in sizes]
    assert max(shares) - min(shares) <= 1


@settings(deadline=None)
@given(**EPOCHS, world_size=st.integers(1, 9))
def test_ranks_that_drop_the_last_have_full_batches_of_different_rows(samples, order, epoch, world_size):
    assume(samples >= world_size)  # fewer are refused
    every = [replace(one, drop_last=True) for one in ranks(order, world_size)]
    result = [one.batches(samples, epoch) for one in every]
    count = samples // world_size // order.batch_size
    assert [sizes_of(own) for own in result] == [[order.batch_size] * count] * world_size
    rows = np.concatenate([rows_of(own, samples) for own in result])
    assert len(set(rows.tolist())) == len(rows)


@settings(deadline=None)
@given(**EPOCHS, start=st.integers(0, 40), step=st.integers(1, 3))
def test_batches_are_the_same_wherever_the_reading_begins(samples, order, epoch, start, step):
    whole = order.batches(samples, epoch)
    for own, held in zip(whole[start::step], list(whole)[start::step], strict=True):
        np.testing.assert_array_equal(np.arange(samples)[own], np.arange(samples)[held])


@settings(deadline=None)
@given(**EPOCHS, count=st.integers(1, 60))
def test_a_part_is_so_many_batches_and_begins_with_an_epoch_unless_in_stored_order(
    samples, order, epoch, count
):
    whole = order.batches(samples, epoch)
    part = whole[order.part(len(whole), epoch, min(count, len(whole)))]
    assert len(part) == min(count, len(whole))
    rows = rows_of(part, samples).tolist()
    if order.kind == "sequential":
        assert rows == list(range(rows[0], rows[-1] + 1))
    else:
        assert rows == rows_of(whole[: len(part)], samples).tolist()


@pytest.mark.parametrize("kind", ORDERS)
def test_the_parts_of_rounds_lie_all_over_the_dataset(kind):
    order = Order(kind, 10, block_rows=5, window_batches=2)
    rows = []
    for epoch in range(200):
        whole = order.batches(100_000, epoch)
        rows.append(rows_of(whole[order.part(len(whole), epoch, 4)], 100_000))
    assert np.histogram(np.concatenate(rows), 10, (0, 100_000))[0].min() > 0


@pytest.mark.parametrize("kind", ["random", "block"])
def test_shuffled_rows_differ_by_seed_and_epoch(kind):
    def rows(seed, epoch):
        order = Order(kind, 7, seed, block_rows=3, window_batches=4)
        return rows_of(order.batches(100, epoch), 100).tolist()

    drawn = [rows(seed, epoch) for seed in (0, 1, 2**40) for epoch in (0, 1, 9)]
    assert all(one != other for one, other in itertools.combinations(drawn, 2))


def test_sequential_rows_are_slices_and_others_int64():
    assert list(Order("sequential", 2).batches(5, 1)) == [slice(0, 2), slice(2, 4), slice(4, 5)]
    for kind in ("random", "block"):
        assert {rows.dtype for rows in Order(kind, 2).batches(5, 1)} == {np.dtype(np.int64)}


def test_shuffled_rows_are_equal_on_every_machine():
    assert rows_of(Order("random", 4, 3).batches(10, 1), 10).tolist() == [4, 2, 3, 0, 8, 1, 5, 6, 7, 9]
    block = Order("block", 2, 3, block_rows=2, window_batches=2)
    assert rows_of(block.batches(10, 1), 10).tolist() == [8, 9, 4, 5, 1, 0, 6, 7, 3, 2]


@settings(deadline=None)
@given(**EPOCHS, world_size=st.integers(1, 3))
def test_the_rows_of_a_window_are_whole_blocks_but_for_its_edges(samples, order, epoch, world_size):
    samples *= 12  # which 1, 2 and 3 ranks share equally
    for one in ranks(replace(order, kind="block"), world_size):
        rows = rows_of(one.batches(samples, epoch), samples)
        window = one.window_batches * one.batch_size
        of_block = np.bincount(np.arange(samples) // one.block_rows)
        for low in range(0, len(rows), window):
            blocks, members = np.unique(rows[low : low + window] // one.block_rows, return_counts=True)
            assert np.count_nonzero(members < of_block[blocks]) <= 2


def test_within_a_window_rows_are_shuffled_and_blocks_come_in_random_order():
    rows = rows_of(Order("block", 10, 0, block_rows=10, window_batches=4).batches(400, 0), 400)
    windows = rows.reshape(10, 40)
    assert (np.diff(np.sort(windows)) == 1).sum() >= 10 * 36  # four whole blocks
    assert not any((np.diff(window) == 1).mean() > 0.2 for window in windows)
    assert (np.diff(windows.min(axis=1)) > 0).sum() < 9


@pytest.mark.parametrize(
    ("batch_size", "block_bytes", "window_bytes", "expected"),
    [
        (10, 1000, 10_000, (10, 10)),
        (10, 1099, 10_999, (10, 10)),
        (10, 1, 1, (1, 1)),
        (10, 10**9, 10**9, (203, 10**6)),
        (10**6, 1000, 10_000, (10, 1)),
    ],
)
def test_blocks_and_windows_hold_at_least_one(batch_size, block_bytes, window_bytes, expected):
    schema = Schema(203, (Field("x", (100,), "uint8"),))
    assert blocks_of(schema, batch_size, block_bytes, window_bytes) == expected


@pytest.mark.parametrize(
    ("name", "flag"), [("block_bytes", "--block-size"), ("window_bytes", "--window-size")]
)
def test_empty_blocks_and_windows_and_those_of_other_orders_are_refused(name, flag):
    with pytest.raises(InvalidSettings, check=error_kind("out-of-range", problem=flag, found=0)):
        RunOptions(**{name: (0,)}, order=("block",))
    for order in ("sequential", "random"):
        with pytest.raises(InvalidSettings, check=error_kind("conflicting-options", found=order)):
            RunOptions(**{name: (4096,)}, order=(order,))


def test_settings_become_an_order_of_rows():
    schema = Schema(203, (Field("x", (100,), "uint8"),))
    output = Batching("block", 10, 7, block_bytes=1000, window_bytes=10_000, drop_last=True)
    assert output.row_order(schema, 1, 3) == Order("block", 10, 7, 10, 10, 1, 3, True)
    assert Batching("random").row_order(schema) == replace(Batching().row_order(schema), kind="random")


@pytest.mark.parametrize("name", LIMITS)
def test_numbers_are_taken_within_their_limits_and_refused_beyond_by_name(name):
    least, most = LIMITS[name]
    for value in (least, most):
        check_setting(name, value)
    wrong = {least - 1: f"at least {least}", most + 1: f"at most {most}"}
    for value, limit in wrong.items():
        beyond = error_kind("out-of-range", problem=name, expected=limit, found=value)
        with pytest.raises(InvalidSettings, check=beyond):
            check_setting(name, value)
    for value in ("1", 1.0, True, None):
        with pytest.raises(InvalidSettings, check=error_kind("not-a-number", problem=name)) as caught:
            check_setting(name, value)
        assert "\n" not in str(caught.value)


BATCHING = ("batch_size", "seed", "block_bytes", "window_bytes", "batch_tokens")
REFUSED = [  # a call, and the error's kind and one of its fields
    (lambda: Order(batch_size=1, world_size=2).length(3, 0), "uneven-batches", {"hint": "use drop_last"}),
    (lambda: Order(batch_size=1, world_size=3).length(11, 0), "uneven-batches", {"hint": "use drop_last"}),
    (lambda: Order(world_size=2).length(1, 0), "uneven-batches", {"hint": "use fewer ranks"}),
    *((partial(Batching, one), "unknown-choice", {"found": repr(one)}) for one in ("shuffled", None, 3)),
    *(
        (partial(Order, rank=rank, world_size=size), "invalid-rank", {"found": rank})
        for rank, size in ((2, 2), (-1, 2), (0, 0), (1, 1))
    ),
    *(
        (partial(Batching, **{name: value}), "out-of-range", {"problem": name})
        for name in BATCHING
        for value in (-1, LIMITS[name][1] + 1)
    ),
]


@pytest.mark.parametrize(("call", "refusal", "fields"), REFUSED)
def test_invalid_settings_are_refused_by_name(call, refusal, fields):
    with pytest.raises(InvalidSettings, check=error_kind(refusal, **fields)):
        call()


SAMPLES, BLOCK = 50_000, 100


def shuffled(kind, window_batches=1):
    order = Order(kind, 250, block_rows=BLOCK, window_batches=window_batches)
    return shuffle_quality(order.batches(SAMPLES, 1), BLOCK, SAMPLES)


def test_blocks_are_the_more_shuffled_the_larger_their_window_is():
    result = [shuffled("sequential"), *(shuffled("block", window) for window in (1, 2, 5, 20, 200))]
    assert result == sorted(result)
    assert 0 < result[0] < 0.02
    assert result[-2] < 0.9
    for whole in (result[-1], shuffled("random")):  # the window is all there is
        assert whole == pytest.approx(1, abs=0.02)


@settings(deadline=None)
@given(samples=st.integers(1, 300), order=ORDER)
def test_a_single_batch_is_as_shuffled_as_can_be(samples, order):
    batches = replace(order, batch_size=300).batches(samples, 0)
    assert shuffle_quality(batches, order.block_rows, samples) == pytest.approx(1)
    assert shuffle_quality([], order.block_rows, samples) == 1


@pytest.mark.parametrize("kind", ["random", "block"])
def test_a_batch_is_right_if_another_thread_reads_one_far_away_meanwhile(monkeypatch, kind):
    monkeypatch.setattr(order_module, "FIRST_ROWS", 8)
    monkeypatch.setattr(order_module, "PIECE_ROWS", 32)
    order = Order(kind, batch_size=8, block_rows=10, window_batches=3)
    expected = [rows.tolist() for rows in order.batches(400, 0)]
    shared, inside = order.batches(400, 0), False

    def interrupted(value):  # as if the other thread ran now
        nonlocal inside
        if not inside:
            inside = True
            assert shared[-1].tolist() == expected[-1]
            inside = False
        return len(value)

    monkeypatch.setattr(order_module, "len", interrupted, raising=False)
    assert [shared[number].tolist() for number in range(40)] == expected[:40]


@settings(deadline=None)
@given(
    **EPOCHS,
    ends=st.tuples(st.integers(0, 30), st.integers(1, 30)),
    world=st.integers(1, 3),
    read=st.booleans(),
)
def test_batches_joined_are_the_rows_of_each(samples, order, epoch, ends, world, read):
    for one in ranks(replace(order, drop_last=True), min(world, samples)):
        batches = one.batches(samples, epoch)
        if not len(batches):
            continue
        first = ends[0] % len(batches)
        last = min(first + ends[1], len(batches))
        with mock.patch.object(order_module, "FIRST_ROWS", 16):
            if read:
                assert batches[first] is not None  # a piece is drawn from there on
        rows, sizes = batches.joined(first, last)
        parts = batches[first:last]
        assert sizes == sizes_of(parts)
        assert np.arange(samples)[rows].tolist() == rows_of(parts, samples).tolist()


def test_rows_do_not_depend_on_what_was_drawn_before():
    order = Order("block", batch_size=8, block_rows=3, window_batches=2)
    draw = order.draw(100, 0)
    for low, high in ((0, 8), (20, 60), (8, 16), (90, 100), (0, 100)):
        np.testing.assert_array_equal(draw(low, high), order.rows(100, 0, low, high))
