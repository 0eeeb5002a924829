import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from iobench.order import ORDERS, Order

EPOCHS = {
    "samples": st.integers(1, 300),
    "batch_size": st.integers(1, 400),
    "order": st.sampled_from(ORDERS),
    "seed": st.integers(0, 2**40),
    "epoch": st.integers(0, 9),
}


def rows_of(found, samples):
    return np.concatenate([np.arange(samples)[rows] for rows in found])


@settings(deadline=None)
@given(**EPOCHS)
def test_each_row_comes_exactly_once(samples, batch_size, order, seed, epoch):
    found = Order(order, batch_size, seed).batches(samples, epoch)
    assert sorted(rows_of(found, samples)) == list(range(samples))


@settings(deadline=None)
@given(**EPOCHS)
def test_only_the_last_batch_is_smaller(samples, batch_size, order, seed, epoch):
    sizes = [len(np.arange(samples)[rows]) for rows in Order(order, batch_size, seed).batches(samples, epoch)]
    assert set(sizes[:-1]) <= {batch_size}
    assert 1 <= sizes[-1] <= batch_size


@settings(deadline=None)
@given(seed=st.integers(0, 2**40), epoch=st.integers(0, 9))
def test_random_rows_are_the_same_for_a_seed_and_differ_by_epoch(seed, epoch):
    def rows(*which):
        return rows_of(Order("random", 7, which[0]).batches(100, which[1]), 100).tolist()

    assert rows(seed, epoch) == rows(seed, epoch)
    assert rows(seed, epoch) != rows(seed, epoch + 1)
    assert rows(seed, epoch) != rows(seed + 1, epoch)


def test_sequential_rows_are_slices_and_random_rows_int64():
    assert Order("sequential", 2).batches(5, 1) == [slice(0, 2), slice(2, 4), slice(4, 5)]
    assert {rows.dtype for rows in Order("random", 2).batches(5, 1)} == {np.dtype(np.int64)}


def test_random_rows_are_equal_on_every_machine():
    assert rows_of(Order("random", 4, 3).batches(10, 1), 10).tolist() == [4, 1, 2, 8, 5, 0, 7, 9, 6, 3]
