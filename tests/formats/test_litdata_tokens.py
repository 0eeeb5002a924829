"""Chunks for litdata's TokensLoader: read in windows as litdata reads them, or refused where they lie."""

import json
import struct
from contextlib import closing

import numpy as np
import pytest
from kinds import refused_as

import iobench
from iobench import formats
from iobench.dataset.opener import Opener
from iobench.formats import Chunked, Field, Schema
from iobench.loading import loaders
from iobench.loading.loaders import Job
from iobench.loading.order import Order

WINDOW = 8
OF_TOKENS = formats.get("litdata", window=WINDOW)
DOCUMENTS = [np.arange(100 * row, 100 * row + row % 11, dtype=np.uint16) for row in range(40)]
IN_CHUNKS = (DOCUMENTS[:7], DOCUMENTS[7:9], DOCUMENTS[9:])
EXPECTED = np.concatenate(
    [chunk[: len(chunk) // WINDOW * WINDOW].reshape(-1, WINDOW) for chunk in map(np.concatenate, IN_CHUNKS)]
)


def chunk_bytes(documents):
    """Return a chunk: the number of items, the offset of each and the end, the items."""
    offsets = np.cumsum([4 * (2 + len(documents)), *(one.nbytes for one in documents)])
    return (
        struct.pack(f"<{len(offsets) + 1}I", len(documents), *offsets) + np.concatenate(documents).tobytes()
    )


@pytest.fixture
def folder(tmp_path):
    path, chunks = tmp_path / "tokens", []
    path.mkdir()
    for number, documents in enumerate(IN_CHUNKS):
        name, stored = f"chunk-0-{number}.bin", chunk_bytes(documents)
        (path / name).write_bytes(stored)
        tokens = sum(map(len, documents))
        chunks.append(
            {"chunk_bytes": len(stored), "chunk_size": len(documents), "dim": tokens, "filename": name}
        )
    config = {
        "compression": None,
        "data_format": ["no_header_numpy:5"],
        "data_spec": json.dumps([1, {"type": None, "context": None, "children_spec": []}]),
        "item_loader": "TokensLoader",
    }
    (path / "index.json").write_text(json.dumps({"chunks": chunks, "config": config}))
    return path


def schema_of(samples):
    return Schema(samples, (Field("tokens", (WINDOW,), "uint16"),))


def test_windows_do_not_cross_chunks(folder):
    schema = schema_of(len(EXPECTED))
    assert OF_TOKENS.sniff(folder)
    assert OF_TOKENS.infer_schema(folder) == schema
    with OF_TOKENS.open(folder, schema) as reader:
        np.testing.assert_array_equal(reader.batch(slice(None))["tokens"], EXPECTED)
        np.testing.assert_array_equal(reader.batch(np.array([9, 0, 9]))["tokens"], EXPECTED[[9, 0, 9]])
        assert isinstance(reader.placement()["tokens"], Chunked)
    left = sum(sum(map(len, documents)) % WINDOW for documents in IN_CHUNKS)
    (note,) = OF_TOKENS.notes(folder, schema)
    assert (note.kind, note.values["left_over"]) == ("not-read", left)


@pytest.mark.parametrize("name", ["native", "stream", "dataloader", "litdata"])
def test_loaders_deliver_each_window_once(folder, name):
    if name == "litdata":
        pytest.importorskip("litdata")
    loader = loaders.parse(name)
    job = Job(Opener(OF_TOKENS, folder, schema_of(len(EXPECTED))), Order("sequential", 4))
    with closing(loader.on("cpu").open(job)) as epochs:
        batches = [
            np.asarray(batch["tokens"]) for batch in epochs.epoch(0 if loader.iterable_style else rows(4))
        ]
    np.testing.assert_array_equal(np.concatenate(batches), EXPECTED)


def rows(batch_size):
    return Order("sequential", batch_size).batches(len(EXPECTED), 1)


def test_they_are_added_and_verified(folder, tmp_path):
    manifest, _ = iobench.add(folder, OF_TOKENS.variant, data_dir=tmp_path / "data", name="t")
    assert manifest.schema == schema_of(len(EXPECTED))
    assert iobench.verify(manifest) == {OF_TOKENS.variant: None}


def altered(folder, change):
    index = json.loads((folder / "index.json").read_text())
    change(index["chunks"], index["config"])
    (folder / "index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda chunks, config: chunks[1].update(dim=chunks[1]["dim"] + 1), "invalid-index"),
        (lambda chunks, config: chunks[1].update(dim=None), "invalid-index"),
        (lambda chunks, config: chunks[1].update(chunk_size=1 << 60), "invalid-index"),
        (lambda chunks, config: config.update(data_format=["no_header_numpy:99"]), "invalid-index"),
        (lambda chunks, config: config.update(data_format=["numpy:5"]), "invalid-index"),
        (lambda chunks, config: config.update(data_format=None), "invalid-index"),
        (lambda chunks, config: config.update(compression="zstd"), "compressed"),
        (lambda chunks, config: chunks[0].update(filename="../x"), "outside-folder"),
    ],
)
def test_an_index_that_lies_is_refused(folder, change, kind):
    altered(folder, change)
    with refused_as(kind):
        OF_TOKENS.infer_schema(folder)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (lambda stored: stored[:-2], "truncated"),
        (lambda stored: stored + b"\0\0", "trailing-bytes"),
        (lambda stored: struct.pack("<I", 1) + stored[4:], "corrupt-artifact"),
    ],
)
def test_chunks_that_contradict_the_index_are_refused(folder, content, kind):
    schema, chunk = OF_TOKENS.infer_schema(folder), folder / "chunk-0-1.bin"
    chunk.write_bytes(content(chunk.read_bytes()))
    with refused_as(kind):
        OF_TOKENS.open(folder, schema)


def test_too_few_tokens_for_a_window_are_refused(folder):
    with refused_as("too-few-tokens"):
        formats.get("litdata").infer_schema(folder)
