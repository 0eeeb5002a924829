"""Sums of the words of samples: as defined, in every library, in any pieces and batches."""

from itertools import pairwise
from unittest.mock import patch

import numpy as np
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from iobench.dataset import checksum
from iobench.dataset.checksum import Checksum
from iobench.formats import DTYPES, Field, Ragged, Schema, offsets_of
from iobench.loading.collate import Collate
from iobench.loading.tensors import tensors_of

MASK = (1 << 64) - 1
PIECE_BYTES = (16, 64, checksum.PIECE_BYTES)
lengths = st.lists(st.integers(0, 20) | st.integers(60, 700), max_size=12)
some_lengths = lengths.filter(any)


def defined(sample):
    """Return the sum of a sample's bytes as the module defines it."""
    padded = sample + bytes(-len(sample) % 8)
    words = np.frombuffer(padded, np.uint64).tolist()
    own = checksum.weights(len(words)).tolist()
    return sum((word ^ word >> 31) * weight for word, weight in zip(words, own, strict=True)) & MASK


def unsigned(sums):
    return [one & MASK for one in sums.tolist()]


@settings(deadline=None)
@given(lengths, st.sampled_from(PIECE_BYTES), st.sampled_from([1, 3, 1 << 20]), st.integers(0, 7))
@example([300_001, 0, 5], PIECE_BYTES[-1], 1 << 20, 3)
def test_arrays_and_devices_sum_as_defined_in_any_pieces(sizes, piece_bytes, piece_words, before):
    edges = offsets_of(np.array(sizes, np.int64))
    memory = np.random.default_rng(0).integers(0, 256, before + edges[-1], dtype=np.uint8)[before:]
    expected = [defined(memory[a:b].tobytes()) for a, b in pairwise(edges)]
    with (
        patch.object(checksum, "PIECE_BYTES", piece_bytes),
        patch.object(checksum, "DEVICE_PIECE_WORDS", piece_words),
    ):
        assert unsigned(checksum.ragged_sums(memory, edges)) == expected
        on_device = checksum.device_sums(torch.from_numpy(memory), torch.from_numpy(edges))
    assert unsigned(on_device) == expected


def test_weights_are_odd_and_differ():
    own = checksum.weights(5000)
    assert (own & 1).all()
    assert len(set(own.tolist())) == 5000
    assert checksum.weights(7).tolist() == own[:7].tolist()


def ragged(sizes, dtype, inner=()):
    """Return a schema and a batch of one field with samples of these lengths."""
    field = Field("x", (-1, *inner), dtype)
    offsets = offsets_of(np.array(sizes, np.int64))
    raw = np.random.default_rng(1).integers(1, 256, offsets[-1] * field.sample_bytes, dtype=np.uint8)
    raw = raw % 2 if dtype == "bool" else raw
    values = raw.view(dtype).reshape(-1, *inner)
    return Schema(len(sizes), (field,), totals={"x": int(offsets[-1])}), {"x": Ragged(values, offsets)}


@settings(deadline=None)
@given(some_lengths, st.sampled_from(DTYPES), st.sampled_from([(), (3,)]), st.integers(1, 5))
def test_a_sample_has_one_hash_however_it_is_batched_and_collated(sizes, dtype, inner, size):
    schema, batch = ragged(sizes, dtype, inner)
    check = Checksum(schema)
    hashes = check.hashes(batch).tolist()
    parts = [batch["x"][low : low + size] for low in range(0, len(sizes), size)]
    assert [one for part in parts for one in check.hashes({"x": part}).tolist()] == hashes
    tensors = tensors_of(batch)
    for way in ("jagged", "list", "pad:multiple=8", "pack:16", "pack:best-fit=16"):
        one = Collate.parse(way)(tensors)["x"]
        same = one if isinstance(one, Ragged) else one.parted()[0]
        found = check.hashes({"x": same})
        assert isinstance(found, torch.Tensor)
        assert found.tolist() == hashes


@settings(deadline=None)
@given(some_lengths, st.sampled_from(["uint8", "uint16", "float32", "int64", "complex128"]), st.data())
def test_every_change_of_a_ragged_sample_changes_its_hash_alone(sizes, dtype, data):
    schema, batch = ragged(sizes, dtype)
    check, one = Checksum(schema), batch["x"]
    hashes, total = check.hashes(batch), len(one.values)

    def changed(values=one.values, offsets=one.offsets):
        found = check.hashes({"x": Ragged(values, offsets)})
        return np.flatnonzero(found != hashes).tolist()

    place, other = (data.draw(st.integers(0, total - 1)) for _ in range(2))
    rows = (np.searchsorted(one.offsets, [place, other], "right") - 1).tolist()
    flipped = one.values.copy()
    flipped.view(np.uint8).reshape(total, -1)[place, -1] ^= 1 << data.draw(st.integers(0, 7))
    assert changed(flipped) == [rows[0]]
    swapped = one.values.copy()
    swapped[[place, other]] = swapped[[other, place]]
    assert changed(swapped) == ([] if swapped.tobytes() == one.values.tobytes() else sorted({*rows}))
    if rows[0] and place == one.offsets[rows[0]]:
        moved = one.offsets.copy()
        moved[rows[0]] += 1  # its first element belongs to the sample before
        assert changed(offsets=moved) == [rows[0] - 1, rows[0]]


@given(some_lengths, st.sampled_from(["uint8", "float32", "int64"]))
def test_zeros_at_the_end_of_a_sample_change_its_hash(sizes, dtype):
    schema, batch = ragged(sizes, dtype)
    check, values = Checksum(schema), batch["x"].values
    longer = Ragged(np.append(values, values[:1] * 0), batch["x"].offsets.copy())
    longer.offsets[-1] += 1
    assert check.hashes({"x": longer})[-1] != check.hashes(batch)[-1]
