import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iobench.loading.draws import CHUNK, KeyedPermutation
from iobench.loading.order import Order

IMPROBABLE = 1e-5  # of a correct permutation, for each test of uniformity
KEYS = 4000


def permuted(size, *key):
    return KeyedPermutation(size, *key)(np.arange(size))


def is_uniform(counts):
    """Return whether Pearson's statistic is that of equally probable values."""
    from scipy.stats import chisquare

    return chisquare(counts).pvalue > IMPROBABLE


def test_it_is_a_bijection_for_every_small_size():
    for size in range(1, 2001):
        assert np.bincount(permuted(size, size), minlength=size).tolist() == [1] * size


@settings(deadline=None, max_examples=20)
@given(size=st.integers(CHUNK - 9, 9 * CHUNK), key=st.integers(0, 2**63 - 1))
def test_it_is_a_bijection_over_several_chunks(size, key):
    assert np.bincount(permuted(size, key)).tolist() == [1] * size


@settings(deadline=None)
@given(
    size=st.integers(1 << 31, 1 << 62), start=st.integers(0, (1 << 31) - 1000), key=st.integers(0, 2**63 - 1)
)
def test_a_stretch_of_a_large_one_has_different_numbers_below_its_size(size, start, key):
    images = KeyedPermutation(size, key)(np.arange(start, start + 1000))
    assert len(set(images.tolist())) == 1000
    assert 0 <= images.min() <= images.max() < size


@pytest.mark.parametrize("size", [2, 3, 5, 7, 16, 31])
def test_positions_and_pairs_of_neighbors_are_uniform(size):
    every = np.array([permuted(size, key, 3) for key in range(KEYS)])
    for position in range(size):
        assert is_uniform(np.bincount(every[:, position], minlength=size))
    pairs = np.bincount(every[:, 0] * size + every[:, 1], minlength=size**2).reshape(size, size)
    assert is_uniform(pairs[~np.eye(size, dtype=bool)])


def test_a_large_one_is_uniform_over_its_range_and_by_differences():
    images = KeyedPermutation(4 * 10**9, 7)(np.arange(200_000))
    assert is_uniform(np.histogram(images, 1000, (0, 4e9))[0])
    assert is_uniform(np.histogram(np.diff(images) % (4 * 10**9), 1000, (0, 4e9))[0])
    assert is_uniform(np.bincount(images % 512, minlength=512))


def test_an_order_of_four_billion_rows_takes_no_memory_for_them():
    import tracemalloc

    tracemalloc.start()
    batches = Order("random", 256).batches(4 * 10**9, 3)
    assert len(batches) == 4 * 10**9 // 256
    first, last = batches[:1][0], batches[-1]
    assert len(first) == len(last) == 256
    assert tracemalloc.get_traced_memory()[1] < 200 << 20
    tracemalloc.stop()
