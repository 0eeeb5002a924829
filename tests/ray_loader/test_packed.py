"""Objects sent between actors arrive unchanged, in new memory."""

from collections import namedtuple

import numpy as np
import pytest
import torch

pytest.importorskip("ray", reason="Ray is not installed")
from iobench.contrib.ray.packed import pack

Pair = namedtuple("Pair", "x y")
VALUES = {
    "half": torch.randn(3, 4, dtype=torch.bfloat16),
    "scalar": torch.tensor(7),
    "empty": torch.empty(0, 3),
    "turned": torch.arange(12.0).reshape(3, 4).T,
    "mask": torch.tensor([True, False]),
    "complex": torch.randn(4, dtype=torch.complex64).conj(),
    "grown": torch.ones(2, requires_grad=True),
    "sparse": torch.eye(3).to_sparse(),
    "array": np.arange(6, dtype=np.int16).reshape(2, 3),
    "column": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_arrives_unchanged(name):
    value = VALUES[name]
    arrived = pack(value).unpacked()
    assert type(arrived) is type(value)
    assert arrived.dtype == value.dtype
    dense = (lambda one: one.to_dense()) if name == "sparse" else (lambda one: one)
    torch.testing.assert_close(torch.as_tensor(dense(arrived)), torch.as_tensor(dense(value)), rtol=0, atol=0)


def test_arrived_memory_is_writable_and_not_shared():
    packed = pack(Pair(torch.zeros(3), [np.zeros(2)]))
    first, second = packed.unpacked(), packed.unpacked()
    first.x.add_(1)
    first.y[0] += 1
    assert type(first) is Pair
    assert not second.x.any()
    assert not second.y[0].any()


def test_array_memory_is_not_in_the_pickle():
    packed = pack({"x": torch.zeros(1000), "y": np.zeros(1000)})
    assert len(packed.pickled) < 1000
    assert packed.nbytes == len(packed.pickled) + 12_000
