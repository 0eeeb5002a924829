"""StreamLoader over samples that differ in length: each batch as values and offsets, in every format."""

import contextlib
import os

import numpy as np
import pytest
import torch
from conftest import installed_formats
from hypothesis import given, settings
from hypothesis import strategies as st
from kinds import kind
from ragged_cases import BatchSource, RaggedSource, batch_of
from stream_cases import SAMPLES, assert_batches, assert_nothing_left, every_order, loader, rows_of

import iobench
from iobench import StreamLoader, formats
from iobench.base.errors import CorruptArtifact, InvalidSettings
from iobench.formats import AdjacentSpans, Field, ListedSpans, Ragged, Schema, offsets_of
from iobench.host import page_cache
from iobench.stream import gather, pipeline, readahead
from iobench.stream.cached_reader import SpanAddresses
from iobench.stream.gather import gather_spans

HOLDERS = [name for name in installed_formats() if formats.class_of(name).holds_ragged and name != "audio"]
PLACED = ["npy", "memmap", "safetensors", "hdf5:chunk_bytes=0"]
LENGTHS = np.random.default_rng(3).choice([0, 1, 2, 40, 700], SAMPLES)


@pytest.fixture(scope="module")
def source():
    return RaggedSource(LENGTHS)


@pytest.fixture(scope="module")
def ragged(source, tmp_path_factory):
    return iobench.prepare(source, [*HOLDERS, PLACED[-1]], data_dir=tmp_path_factory.mktemp("ragged"))[0]


@every_order
@pytest.mark.parametrize("name", [*HOLDERS, PLACED[-1]])
def test_every_sample_comes_once_in_its_place_in_two_epochs(ragged, source, name, order):
    one = loader(ragged, name, order=order)
    for epoch in range(2):
        assert_batches(one, source.batch, rows_of(order, epoch))
    one.close()
    assert_nothing_left(ragged.root)


@every_order
@pytest.mark.parametrize("name", [*PLACED, "parquet", "lmdb"])
@pytest.mark.parametrize("long_bytes", [1, 1 << 20])
def test_cold_files_give_the_same_batches(monkeypatch, ragged, source, name, order, long_bytes):
    for constant in ("PIECE_BYTES", "WINDOW_BYTES"):
        monkeypatch.setattr(readahead, constant, 1 << 13)
    monkeypatch.setattr(readahead, "LONG_BYTES", long_bytes)
    page_cache.evict(ragged.files_of(name))
    assert_batches(loader(ragged, name, order=order), source.batch, rows_of(order))
    assert_nothing_left(ragged.root)


@pytest.fixture(scope="module")
def one_field():
    """Samples of one ragged field, which LMDB's values hold behind a head of other fields."""
    schema, batch = batch_of(LENGTHS)
    batch = {name: batch[name] for name in ("label", "tokens")}
    fields = tuple(schema.field(name) for name in batch)
    return BatchSource(Schema(SAMPLES, fields, totals={"tokens": schema.totals["tokens"]}), batch)


@every_order
@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("name", ["lmdb", "mds:shard_bytes=8192"])
def test_samples_between_others_are_found(monkeypatch, one_field, tmp_path, order, cold, name):
    monkeypatch.setattr(readahead, "PIECE_BYTES", 1 << 13)
    manifest = iobench.prepare(one_field, [name], data_dir=tmp_path)[0]
    with manifest.opener(name)() as reader:
        place = reader.placement()["tokens"]
        assert isinstance(place, ListedSpans)
        assert (len(place.files) > 1) == name.startswith("mds")
    if cold:
        page_cache.evict(manifest.files_of(name))
    one = loader(manifest, name, order=order)
    for epoch in range(2):
        assert_batches(one, one_field.batch, rows_of(order, epoch))


@pytest.mark.parametrize("name", ["npy", "lmdb"])
@pytest.mark.parametrize("options", [{"threads": 4}, {"rank": 1, "world_size": 2}, {"drop_last": True}])
def test_threads_and_ranks_give_the_same_batches(monkeypatch, ragged, source, name, options):
    monkeypatch.setattr(pipeline, "PIECE_BYTES", 1 << 12)  # many pieces of a group at a time
    rows = rows_of("random", **{key: value for key, value in options.items() if key != "threads"})
    assert_batches(loader(ragged, name, order="random", **options), source.batch, rows)


@pytest.mark.parametrize("name", ["npy", "lmdb"])
def test_some_fields_in_the_order_asked_for(ragged, source, name):
    for names in (["label", "tokens"], ["audio"], ["label"]):
        chosen = {field: source.batch[field] for field in names}
        assert_batches(loader(ragged, name, fields=names), chosen, rows_of("sequential"))


@pytest.mark.parametrize("name", ["npy", "lmdb"])
def test_a_resumed_loop_yields_the_same_batches(ragged, source, name):
    first, again = (loader(ragged, name, order="random") for _ in range(2))
    running = iter(first)
    for _ in range(4):
        next(running)
    again.load_state_dict(first.state_dict())
    running.close()
    assert_batches(again, source.batch, rows_of("random")[4:])


def test_a_transform_gets_ragged_fields_and_may_return_them(ragged, source):
    def transform(batch):
        tokens = batch["tokens"]
        return {"tokens": Ragged(tokens.values.to(torch.int32) + 1, tokens.offsets), "label": batch["label"]}

    tokens = source.batch["tokens"]
    more = Ragged(tokens.values.astype(np.int32) + 1, tokens.offsets)
    wanted = {"tokens": more, "label": source.batch["label"]}
    assert_batches(loader(ragged, "npy", transform=transform), wanted, rows_of("sequential"))


def test_groups_larger_than_their_slot_get_memory_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "GROUP_BYTES", 1 << 12)
    lengths = np.zeros(400, np.int64)
    lengths[-3:] = 100_000  # the mean tells nothing of the last batches
    source = RaggedSource(lengths)
    manifest = iobench.prepare(source, ["npy"], data_dir=tmp_path)[0]
    one = StreamLoader(manifest.root, format="npy", batch_size=2)
    kept = list(one)  # all at once: no memory may be used twice
    assert_batches(kept, source.batch, [np.arange(low, low + 2) for low in range(0, 400, 2)])


def test_a_dataset_without_any_element_has_empty_batches(tmp_path):
    source = RaggedSource([0, 0, 0])
    manifest = iobench.prepare(source, ["npy", "lmdb"], data_dir=tmp_path)[0]
    for name in ("npy", "lmdb"):
        one = StreamLoader(manifest.root, format=name, batch_size=2)
        assert_batches(one, source.batch, [np.arange(2), np.array([2])])


def test_reads_past_the_page_cache_are_refused(ragged):
    with pytest.raises(InvalidSettings, match="differ in length", check=kind("no-direct-reads")):
        loader(ragged, "npy", direct=True)


@pytest.mark.parametrize("name", ["npy", "hdf5:chunk_bytes=0"])
def test_a_file_that_is_cut_is_named(monkeypatch, source, tmp_path, name):
    manifest = iobench.prepare(source, [name], data_dir=tmp_path)[0]
    file = max(manifest.files_of(name), key=lambda path: path.stat().st_size)

    def transform(batch):
        if file.stat().st_size > 4096:
            os.truncate(file, 4096)
        return batch

    monkeypatch.setattr(pipeline, "GROUP_BYTES", 1)
    with pytest.raises(CorruptArtifact, match=file.name):  # of five files, one
        list(loader(manifest, name, order="random", threads=1, transform=transform))


def test_spans_that_lead_out_of_their_file_are_refused(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(bytes(20))
    schema = Schema(2, (Field("x", (-1,), "uint16"),), totals={"x": 9})
    other = tmp_path / "y"
    other.write_bytes(bytes(4))
    for cause, file, offset, size in (
        (None, [0, 1], [0, 0], [4, 4]),
        (kind("truncated", path=other), [0, 1], [0, 0], [4, 6]),  # the second sample is in a file of 4 bytes
        (kind("bad-placement"), [0, 0], [-8, 0], [4, 4]),
        (kind("bad-placement"), [0, 0], [0, 8], [4, -2]),
        (None, None, 2, 2),
        (kind("truncated", path=path), None, 4, 2),
    ):
        place = AdjacentSpans((path,), offset, size, np.array([0, 4, 9]))
        if file:
            place = ListedSpans((path, other), np.array(file), np.array(offset), np.array(size))
        with pytest.raises(CorruptArtifact, check=cause) if cause else contextlib.nullcontext():
            SpanAddresses(schema, {"x": place})


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.sampled_from([0, 1, 15, 16, 17, 100, 513, 3000]), min_size=1, max_size=30),
    st.integers(0, 40),
    st.randoms(use_true_random=False),
)
def test_gathered_spans_are_the_samples(lengths, before, random):
    lengths = np.array(lengths, np.int64)
    content = np.random.default_rng(1).integers(0, 256, before + int(lengths.sum()), dtype=np.uint8)
    begins = before + offsets_of(lengths)[:-1]
    rows = np.array(random.choices(range(len(lengths)), k=25), np.int64)
    expected = b"".join(content[begins[row] : begins[row] + lengths[row]].tobytes() for row in rows)
    for long in (1, 500, gather.LONG_BYTES):
        guarded = np.full(len(expected) + 600, 0xA5, np.uint8)
        out = guarded[: len(expected)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gather, "LONG_BYTES", long)
            gather_spans(content, begins[rows], lengths[rows], out)
        assert out.tobytes() == expected
        assert (guarded[len(expected) :] == 0xA5).all()  # nothing behind the output is written
