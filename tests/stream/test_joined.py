"""Batches read together are one array of rows, without a copy if they are adjacent."""

import numpy as np
import pytest

from iobench.loading.order import Order
from iobench.stream.batch_group import joined

ROWS = np.arange(100)[::-1].copy()


@pytest.mark.parametrize("kind", ["random", "block"])
def test_an_epoch_s_batches_are_joined_without_a_copy(kind):
    batches = list(Order(kind, 7, block_rows=3, window_batches=2).batches(100, 0))
    for low, high in ((0, 4), (3, 9), (11, 15)):
        whole = joined(batches[low:high])
        assert (whole == np.concatenate(batches[low:high])).all()
        assert all(np.shares_memory(whole, batch) for batch in batches[low:high])


@pytest.mark.parametrize(
    "group",
    [
        [ROWS[0:5], ROWS[6:9]],
        [ROWS[5:9], ROWS[0:5]],
        [ROWS[0:10:2], ROWS[10:14]],
        [ROWS[0:10:2], ROWS[5:9]],
        [ROWS[0:5], ROWS[5:9].copy()],
        [ROWS[0:5].copy(), ROWS[5:9].copy()],
        [ROWS.reshape(10, 10)[0], ROWS.reshape(10, 10)[1]],
        [np.arange(20, dtype=np.int32).view(np.int64)[0:3], np.arange(3)],
    ],
)
def test_batches_that_do_not_follow_each_other_are_joined_all_the_same(group):
    assert joined(group).tolist() == [row for batch in group for row in batch.tolist()]


def test_slices_are_one_slice():
    assert joined([slice(3, 5), slice(5, 9)]) == slice(3, 9)
