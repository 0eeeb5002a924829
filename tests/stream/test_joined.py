"""Batches read together are one array of rows."""

import numpy as np
import pytest

from iobench.loading.order import Order
from iobench.stream.batch_group import joined

ROWS = np.arange(100)[::-1].copy()


@pytest.mark.parametrize("kind", ["random", "block"])
def test_an_epoch_s_batches_are_joined(kind):
    batches = list(Order(kind, 7, block_rows=3, window_batches=2).batches(100, 0))
    for low, high in ((0, 4), (3, 9), (11, 15)):
        whole = joined(batches[low:high])
        assert (whole == np.concatenate(batches[low:high])).all()


def test_batches_that_do_not_follow_each_other_are_joined_all_the_same():
    group = [ROWS[5:9], ROWS[0:5], ROWS[0:10:2]]
    assert joined(group).tolist() == [row for batch in group for row in batch.tolist()]


def test_slices_are_one_slice():
    assert joined([slice(3, 5), slice(5, 9)]) == slice(3, 9)
