"""Format litdata: litdata reads and writes the same folders; invalid indices are refused."""

import json
from contextlib import closing

import numpy as np
import pytest
from kinds import has, refused_as
from own_library import loaded, run
from ragged_cases import batch_of, samples

from iobench import formats
from iobench.base.errors import CorruptArtifact
from iobench.dataset.opener import Opener
from iobench.formats import Chunked, Field, Listed, ListedSpans, Ragged, Schema
from iobench.loading import loaders
from iobench.loading.loaders import Job
from iobench.loading.order import Order
from iobench.testing.cases import SCHEMA, assert_rows, assert_same, store
from iobench.testing.loaders import as_arrays

LITDATA = formats.get("litdata")


WRITE = """
import sys, numpy as np, torch
from litdata.streaming.cache import Cache
def sample(row):
    return {
        "train/x": np.full((3, 4), row, "float32"),
        "vector": np.arange(5, dtype="int16") + row,
        "tensor": torch.full((2, 2), row, dtype=torch.float64),
        "flat": torch.arange(3) * row,
        "label": row,
        "share": row / 2,
        "nested": {"on": row % 2 == 0, "raw": np.full(3, row, "uint16").tobytes()},
    }
for name, change in [("same", lambda row: {}), ("texts", lambda row: {"text": "x" * (row % 3)}),
                     ("turned", lambda row: {"train/x": np.zeros((3, 4) if row < 40 else (4, 3), "f4")}),
                     ("objects", lambda row: {"set": {1, 2}})]:
    cache = Cache(f"{sys.argv[1]}/{name}", chunk_bytes=4000)
    for row in range(50):
        cache[row] = sample(row) | change(row)
    cache.done()
    cache.merge()
"""

WRITE_RAGGED = """
import sys, numpy as np, torch
from litdata.streaming.cache import Cache
cache = Cache(sys.argv[1], chunk_bytes=4000)
for row in range(50):
    count = row % 7
    cache[row] = {
        "vector": np.arange(count, dtype="int16") + row,
        "audio": np.full((1 + count, 2), row, "float32"),
        "tensor": torch.full((1 + count, 3), row, dtype=torch.float64),
        "flat": torch.arange(1 + count) * row,
        "raw": np.full(count, row, "uint16").tobytes(),
        "label": row,
    }
cache.done()
cache.merge()
"""

READ_RAGGED = """
import os, sys
os.environ["HOME"] = sys.argv[3]
import numpy as np, litdata
samples = list(litdata.StreamingDataset(sys.argv[1], shuffle=False))
np.savez(sys.argv[2], **{f"{name}-{row}": one[name] for row, one in enumerate(samples) for name in one})
"""

RAGGED = (
    Field("vector", (-1,), "int16"),
    Field("audio", (-1, 2), "float32"),
    Field("tensor", (-1, 3), "float64"),
    Field("flat", (-1,), "int64"),
    Field("raw", (-1,), "uint16"),
    Field("label", (), "int64"),
)

FIELDS = (
    Field("train_x", (3, 4), "float32"),
    Field("vector", (5,), "int16"),
    Field("tensor", (2, 2), "float64"),
    Field("flat", (3,), "int64"),
    Field("label", (), "int64"),
    Field("share", (), "float64"),
    Field("nested_on", (), "bool"),
    Field("nested_raw", (3,), "uint16"),
)


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    path = tmp_path_factory.mktemp("others")
    run("litdata", WRITE, path)
    return path


@pytest.fixture
def artifact(tmp_path):
    return store(formats.get("litdata", chunk_bytes=900), tmp_path / "a", SCHEMA)


@pytest.mark.parametrize(("name", "placement"), [("same", Chunked), ("texts", Listed)])
def test_folders_of_litdata_are_read_in_place(others, name, placement):
    path = others / name
    assert LITDATA.sniff(path)
    assert LITDATA.infer_schema(path, FIELDS) == Schema(50, FIELDS)
    rows = np.array([49, 0, 7, 7, 23])
    with LITDATA.open(path, Schema(50, FIELDS)) as reader:
        batch = reader.batch(rows)
        column = rows[:, None]
        assert_same(batch["train_x"], np.broadcast_to(rows[:, None, None], (5, 3, 4)).astype("float32"))
        assert_same(batch["vector"], (np.arange(5) + column).astype("int16"))
        assert_same(batch["tensor"], np.broadcast_to(rows[:, None, None], (5, 2, 2)).astype("float64"))
        assert_same(batch["flat"], np.arange(3) * column)
        assert_same(batch["label"], rows)
        assert_same(batch["share"], rows / 2)
        assert_same(batch["nested_on"], rows % 2 == 0)
        assert_same(batch["nested_raw"], np.repeat(column, 3, 1).astype("uint16"))
        assert reader.placement().keys() == {field.name for field in FIELDS}
        assert all(isinstance(place, placement) for place in reader.placement().values())


def test_its_own_loader_names_leaves_as_fields(others):
    pytest.importorskip("litdata")
    schema = Schema(50, FIELDS[:-1])
    job = Job(Opener(LITDATA, others / "same", schema), Order("sequential", 8))
    with (
        closing(loaders.parse("litdata").open(job)) as epochs,
        LITDATA.open(others / "same", schema) as reader,
    ):
        batches = [as_arrays(batch) for batch in epochs.epoch(0)]
        whole = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
        assert_rows(whole, reader.batch(slice(None)), slice(None))


def test_leaves_without_dtype_and_shape_are_named(others):
    with refused_as("fields-needed", problem=has("leaf nested_raw"), hint=has("--field")):
        LITDATA.infer_schema(others / "same")
    with refused_as("encoded-values", found=has("pickle")):
        LITDATA.infer_schema(others / "objects", (Field("set", (3,), "uint8"),))


def test_a_shape_that_changes_at_the_same_size_is_refused(others):
    with refused_as("unequal-shapes", problem=has("train_x"), expected=has("float32 (3, 4)")):
        LITDATA.infer_schema(others / "turned", FIELDS)


def altered(path, change):
    index = json.loads((path / "index.json").read_text())
    change(index, index["chunks"][0], index["config"])
    (path / "index.json").write_text(json.dumps(index))


def spec(text):
    return lambda i, c, config: config.update(data_spec=text)


INVALID = {
    "above": (lambda i, c, _: c.update(filename="../chunk-0-0.bin"), "outside-folder", "../chunk-0-0.bin"),
    "absolute": (lambda i, c, _: c.update(filename="/etc/passwd"), "outside-folder", "/etc/passwd"),
    "missing": (lambda i, c, _: c.update(filename="chunk-9-9.bin"), "missing-file", "chunk-9-9.bin"),
    "more": (lambda i, c, _: c.update(chunk_size=c["chunk_size"] + 1), "corrupt-artifact", "23 samples"),
    "negative": (lambda i, c, _: c.update(chunk_size=-1), "invalid-index", "-1"),
    "none": (lambda i, c, _: i.update(chunks=[]), "invalid-index", "no chunks"),
    "no chunk": (lambda i, c, _: i.update(chunks=[3]), "invalid-index", "chunk"),
    "compressed": (lambda i, c, config: config.update(compression="zstd"), "compressed", "compression zstd"),
    "encrypted": (lambda i, c, config: config.update(encryption={"a": 1}), "encrypted", "encryption"),
    "tables": (
        lambda i, c, config: config.update(item_loader="ParquetLoader"),
        "unsupported-type",
        "ParquetLoader",
    ),
    "kinds": (lambda i, c, config: config.update(data_format=["numpy"]), "invalid-index", "serializer"),
    "other kinds": (
        lambda i, c, config: config.update(data_format=["int"] * 4),
        "corrupt-artifact",
        "leaf rgb",
    ),
    "no spec": (spec(None), "invalid-index", "description"),
    "deep spec": (spec("[1, " + '{"a":' * 5000), "invalid-index", "description"),
    "a class": (
        spec('[1, {"type": "os.system", "context": "[]", "children_spec": []}]'),
        "invalid-index",
        "os.system",
    ),
}


@pytest.mark.parametrize(("change", "cause", "part"), INVALID.values(), ids=INVALID)
def test_an_invalid_index_is_a_one_line_error(artifact, change, cause, part):
    altered(artifact.path, change)
    with refused_as(cause) as error:
        LITDATA.open(artifact.path, SCHEMA).batch(slice(None))
    assert part in str(error.value)


def test_samples_of_litdata_that_differ_in_length_are_read_in_place(tmp_path):
    run("litdata", WRITE_RAGGED, tmp_path / "a")
    counts = np.arange(50) % 7
    schema = LITDATA.infer_schema(tmp_path / "a", RAGGED)
    assert schema.totals == {
        "vector": counts.sum(),
        "raw": counts.sum(),
        **dict.fromkeys(("audio", "tensor", "flat"), (1 + counts).sum()),
    }
    with LITDATA.open(tmp_path / "a", schema) as reader:
        assert all(isinstance(reader.placement()[f.name], ListedSpans) for f in RAGGED[:-1])
        for row in (0, 13, 49):
            sample, count = reader.sample(row), row % 7
            assert_same(sample["vector"], (np.arange(count) + row).astype("int16"))
            assert_same(sample["audio"], np.full((1 + count, 2), row, "float32"))
            assert_same(sample["tensor"], np.full((1 + count, 3), row, "float64"))
            assert_same(sample["flat"], np.arange(1 + count) * row)
            assert_same(sample["raw"], np.full(count, row, "uint16"))
            assert sample["label"] == row


def test_litdata_reads_samples_that_differ_in_length_which_we_wrote(tmp_path):
    schema, batch = batch_of([3, 0, 300, 1])
    LITDATA.write(tmp_path / "a", schema, [batch])
    run("litdata", READ_RAGGED, tmp_path / "a", tmp_path / "read.npz", tmp_path)
    read = loaded(tmp_path / "read.npz")
    for row in range(4):
        for name in ("tokens", "audio"):
            assert read[f"{name}-{row}"].tobytes() == samples(batch[name])[row]
        assert read[f"label-{row}"] == batch["label"][row]


@pytest.mark.parametrize(("word", "value"), [(0, 1), (1, 1), (2, 8), (3, 3)])
def test_a_header_that_contradicts_a_sample_s_length_is_refused(tmp_path, word, value):
    field = Field("audio", (-1, 2), "float32")
    audio = Ragged(np.zeros((12, 2), np.float32), np.array([0, 5, 12]))
    schema = Schema(2, (field,), totals={"audio": 12})
    LITDATA.write(tmp_path / "a", schema, [{"audio": audio}])
    file = tmp_path / "a" / "chunk-0-0.bin"
    stored = np.frombuffer(bytearray(file.read_bytes()), "<u4")
    stored[4 + 1 + word] = value  # behind the table and the size of the first sample's leaf
    file.write_bytes(stored.tobytes())
    with pytest.raises(CorruptArtifact) as caught:
        LITDATA.infer_schema(tmp_path / "a", (field,))
    assert "sample 0" in caught.value.expected
