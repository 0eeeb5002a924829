"""Content checksums change with every change of a sample, and not with batching or order."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from iobench.dataset.checksum import Checksum
from iobench.formats import DTYPES, Field, Schema
from iobench.loading.tensors import tensors_of

PAIR = Schema(40, (Field("x", (3, 5), "float32"), Field("y", (), "int64"), Field("z", (3,), "uint8")))

quick = settings(max_examples=50, deadline=None, derandomize=True)


def random_batch(schema, seed=0):
    rng = np.random.default_rng(seed)
    arrays = {}
    for field in schema.fields:
        raw = rng.bytes(schema.samples * field.sample_bytes)
        shape = (schema.samples, *field.shape)
        array = np.frombuffer(bytearray(raw), np.uint8 if field.dtype == "bool" else field.dtype)
        arrays[field.name] = (
            (array % 2).astype(bool).reshape(shape) if field.dtype == "bool" else array.reshape(shape)
        )
    return arrays


def checksum(schema, *batches):
    check = Checksum(schema)
    for batch in batches:
        check.add_in_order(batch)
    return check


def content(schema, *batches):
    check = Checksum(schema)
    for batch in batches:
        check.add(batch)
    return check.content


def rows(batch, index):
    return {name: array[index] for name, array in batch.items()}


@pytest.mark.parametrize("shape", [(), (1,), (3,), (7, 5), (129,)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_and_torch_agree_on_every_dtype_and_odd_size(dtype, shape):
    schema = Schema(11, (Field("x", shape, dtype),))
    batch = random_batch(schema)
    expected = checksum(schema, batch).content
    assert content(schema, batch) == expected
    assert content(schema, tensors_of(batch)) == expected


def test_tensors_that_begin_at_an_odd_byte_or_skip_bytes_count_the_same():
    schema = Schema(6, (Field("x", (8,), "uint8"),))
    memory = torch.from_numpy(np.random.default_rng(0).integers(0, 256, 200, dtype=np.uint8))
    for view in (memory[3:51].view(6, 8), memory[:192].view(6, 32)[:, ::4], memory[:48].view(8, 6).T):
        expected = content(schema, {"x": np.ascontiguousarray(view.numpy())})
        assert content(schema, {"x": view}) == content(schema, {"x": view.numpy()}) == expected


def test_many_samples_in_many_batches_wrap_without_complaint():
    batch = random_batch(PAIR)
    once = content(PAIR, batch)
    assert content(PAIR, *[batch] * 9) == content(PAIR, *[tensors_of(batch)] * 9) == 9 * once % 2**64


@quick
@given(cuts=st.lists(st.integers(1, 39), unique=True), seed=st.integers(0, 99))
def test_batch_boundaries_do_not_matter(cuts, seed):
    batch = random_batch(PAIR, seed)
    edges = [0, *sorted(cuts), 40]
    pieces = [rows(batch, slice(*pair)) for pair in itertools.pairwise(edges)]
    whole, split = checksum(PAIR, batch), checksum(PAIR, *pieces)
    assert (split.content, split.ordered, split.samples) == (whole.content, whole.ordered, 40)


@quick
@given(order=st.permutations(range(40)))
def test_order_matters_to_ordered_only(order):
    batch = random_batch(PAIR)
    straight, shuffled = checksum(PAIR, batch), checksum(PAIR, rows(batch, list(order)))
    assert shuffled.content == straight.content == content(PAIR, tensors_of(rows(batch, list(order))))
    assert (shuffled.ordered == straight.ordered) == (list(order) == sorted(order))


@quick
@given(pair=st.lists(st.integers(0, 39), min_size=2, max_size=2, unique=True), name=st.sampled_from("xyz"))
def test_a_field_that_moves_to_another_sample_changes_the_content(pair, name):
    batch = random_batch(PAIR)
    swapped = {**batch, name: batch[name].copy()}
    swapped[name][pair] = batch[name][pair[::-1]]
    assert content(PAIR, swapped) != content(PAIR, batch)


def test_values_in_another_field_are_another_content():
    schema = Schema(9, (Field("x", (3,), "float32"), Field("y", (3,), "float32")))
    batch = random_batch(schema)
    assert content(schema, {"x": batch["y"], "y": batch["x"]}) != content(schema, batch)


@quick
@given(data=st.data(), name=st.sampled_from("xyz"))
def test_any_flipped_bit_changes_the_content(data, name):
    batch = random_batch(PAIR)
    raw = batch[name].copy().reshape(-1).view(np.uint8)
    bit = data.draw(st.integers(0, 8 * raw.size - 1))
    raw[bit // 8] ^= 1 << bit % 8
    changed = {**batch, name: raw.view(batch[name].dtype).reshape(batch[name].shape)}
    assert content(PAIR, changed) != content(PAIR, batch)
    assert content(PAIR, tensors_of(changed)) == content(PAIR, changed)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64"])
@pytest.mark.parametrize("negated", [[0, 1], [0, 2], [5, 14], slice(None)])
def test_flipped_sign_bits_of_a_sample_change_the_content(dtype, negated):
    schema = Schema(3, (Field("x", (16,), dtype),))
    batch = {"x": np.arange(1, 49).astype(dtype).reshape(3, 16)}
    changed = {"x": batch["x"].copy()}
    changed["x"][1, negated] *= -1
    assert content(schema, changed) != content(schema, batch)


def test_the_checksum_of_given_data_never_changes():
    """Existing manifests must stay valid in later versions of iobench."""
    schema = Schema(4, (Field("x", (3,), "uint16"), Field("y", (), "int64")))
    batch = {"x": np.arange(12, dtype=np.uint16).reshape(4, 3), "y": np.arange(4)}
    check = checksum(schema, batch)
    assert (f"{check.content:016x}", f"{check.ordered:016x}") == ("f4e8f970b6b817dc", "f77c234c3fa95e97")


@pytest.mark.gpu
def test_cuda_agrees_with_numpy():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    batch = random_batch(PAIR)
    on_device = {name: tensor.cuda() for name, tensor in tensors_of(batch).items()}
    assert content(PAIR, on_device) == content(PAIR, batch)
