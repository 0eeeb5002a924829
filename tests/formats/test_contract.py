"""The contract suite over all formats and their variants, and promises of single formats."""

import json
import pickle

import numpy as np
import pytest
from format_cases import IMAGES, SMALL, TOKENS, variants

from iobench import formats
from iobench.base.errors import CorruptArtifact
from iobench.formats import Field, Schema, Strided
from iobench.testing.cases import (
    INDICES,
    SAMPLES,
    SCHEMA,
    assert_rows,
    assert_same,
    files_of,
    read_all,
    store,
)
from iobench.testing.corruption import Bomb
from iobench.testing.formats import FormatContract, NarrowFormatContract


def over(variants):
    """Return the fixture of the formats under test."""

    @pytest.fixture(scope="class", params=variants)
    @staticmethod
    def fmt(request):
        return formats.parse(request.param)

    return fmt


class TestEveryVariant(FormatContract):
    """The contract suite for each variant."""

    most_bytes, most_samples = 300_000, 1000  # small shards would be thousands of files
    fmt = over([fmt.variant for fmt in variants()])


class TestSmallPieces(NarrowFormatContract):
    """The contract suite with chunks and shards of a few samples."""

    most_bytes, fmt = 20_000, over(SMALL)


class TestOneField(NarrowFormatContract):
    """The contract suite for a format of one field, a number."""

    format, samples = formats.get("npy"), Schema(SAMPLES, (Field("x", (), "int32"),))


class TestImages(NarrowFormatContract):
    """The contract suite for images with labels."""

    images = (Field("rgb", (4, 6, 3), "uint8"), Field("signal", (2, 5), "uint8"))
    samples = Schema(SAMPLES, (*images, Field("label", (), "int64"), Field("mask", (), "bool")))
    blob_axes, most_bytes, most_samples, fmt = (1,), 300_000, 100, over(IMAGES)


class TestTokens(NarrowFormatContract):
    """The contract suite for windows of tokens."""

    samples, fmt = Schema(SAMPLES, (Field("ids", (17,), "uint16"),)), over(TOKENS)


def test_native_of_memmap_is_a_tensorclass(tmp_path):
    from tensordict import is_tensorclass

    artifact = store(formats.get("memmap"), tmp_path / "a", SCHEMA)
    with artifact.open() as reader:
        native = reader.native(INDICES)
        assert is_tensorclass(native)
        assert native.batch_size == (6,)
        assert_same(native.get("rgb"), artifact.source["rgb"][INDICES])


@pytest.mark.parametrize("variant", ["npy", "memmap", "hdf5:chunk_bytes=0"])
def test_raw_layouts_have_a_placement(variant, tmp_path):
    with store(formats.parse(variant), tmp_path / "a", SCHEMA).open() as reader:
        places = reader.placement()
        strided = {name for name, place in places.items() if isinstance(place, Strided)}
        assert strided == {field.name for field in SCHEMA.fields}


@pytest.mark.parametrize(
    ("variant", "shifted"),  # damages that change more than a byte: none, except in HDF5's own tables
    [("npy", 0), ("memmap", 0), ("hdf5", 0), ("hdf5:chunk_bytes=4096,compression=gzip", 3)],
)
def test_a_damaged_byte_is_refused_or_changes_one_byte(variant, shifted, tmp_path):
    artifact = store(formats.parse(variant), tmp_path / "a", SCHEMA)
    changed = []
    for file in files_of(artifact.path):
        content = file.read_bytes()
        for place in range(0, min(len(content), 2000), 5):
            file.write_bytes(content[:place] + b"(" + content[place + 1 :])
            batch = read_all(artifact.format, artifact.path, SCHEMA)
            changed.append(None if batch is None else different_bytes(batch, artifact.source))
        file.write_bytes(content)
    assert changed.count(None) > 60  # headers
    assert sum(count is not None and count > 1 for count in changed) <= shifted


def different_bytes(batch, source):
    """Return how many bytes of a batch differ from those of the source, whose dtypes and shapes it has."""
    assert all((batch[n].shape, batch[n].dtype) == (a.shape, a.dtype) for n, a in source.items())
    return sum(int((batch[n].view(np.uint8) != a.view(np.uint8)).sum()) for n, a in source.items())


def test_a_memmap_description_that_requests_a_pickle_is_corrupt(tmp_path):
    from tensordict import NonTensorData

    artifact = store(formats.get("memmap"), tmp_path / "a", SCHEMA)
    meta = artifact.path / "meta.json"
    described = json.loads(meta.read_text()) | {"_type": str(NonTensorData), "_class": None}
    meta.write_text(json.dumps(described))
    (artifact.path / "other.pickle").write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
    with pytest.raises(CorruptArtifact):
        artifact.open()
    assert not (tmp_path / "exploded").exists()


DAMAGES = {
    "objects": lambda file, bomb: np.save(file, np.full(SAMPLES, bomb, object), allow_pickle=True),
    "Fortran order": lambda file, bomb: np.save(file, np.asfortranarray(np.load(file))),
    "more bytes": lambda file, bomb: file.write_bytes(file.read_bytes() + b"!"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_npy_that_cannot_be_mapped_is_corrupt_and_not_unpickled(tmp_path, damage):
    artifact = store(formats.get("npy"), tmp_path / "a", SCHEMA)
    damage(artifact.path / "signal.npy", Bomb(tmp_path / "exploded"))
    with pytest.raises(CorruptArtifact):
        artifact.open()
    assert not (tmp_path / "exploded").exists()


def test_slices_of_maps_are_copied_piece_by_piece(tmp_path, monkeypatch):
    monkeypatch.setattr("iobench.formats.reader.PIECE_BYTES", 50)
    artifact = store(formats.get("npy"), tmp_path / "a", SCHEMA)
    with artifact.open() as reader:
        assert_rows(reader.batch(slice(1, 22)), artifact.source, slice(1, 22))


def test_a_damaged_lz4_frame_is_corrupt(tmp_path):
    artifact = store(formats.get("lmdb", codec="lz4"), tmp_path / "a", SCHEMA)
    data = artifact.path / "data.mdb"
    data.write_bytes(data.read_bytes().replace(b"\x04\x22\x4d\x18", b"frog"))
    assert read_all(artifact.format, artifact.path, SCHEMA) is None
