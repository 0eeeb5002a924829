"""Damaged LMDB files raise one error, where the library would abort the process or miss samples."""

import errno
import multiprocessing
import os
import shutil
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from unittest import mock

import numpy as np
import pytest

from iobench import formats
from iobench.base.errors import CorruptArtifact
from iobench.formats import Field, Schema
from iobench.formats.lmdb.pages import read_meta
from iobench.testing.cases import store

FLIPS = 400
PAGE = 4096

# (variant, samples, bytes of one): small values under several levels, a few to a page, on pages of their own
STORED = [("lmdb", 40_000, 1), ("lmdb", 700, 600), ("lmdb", 300, 5000), ("lmdb:codec=lz4", 900, 300)]


@pytest.fixture(scope="module", params=STORED, ids=lambda case: f"{case[0]}-{case[2]}")
def artifact(request, tmp_path_factory):
    variant, samples, width = request.param
    schema = Schema(samples, (Field("x", (width,), "uint8"),))
    folder = tmp_path_factory.mktemp("lmdb") / "a"
    return store(formats.parse(variant), folder, schema, batch_sizes=(samples // 3, samples // 3))


@pytest.fixture
def data(artifact, tmp_path):
    return shutil.copytree(artifact.path, tmp_path / "a") / "data.mdb"


def check(artifact, data):
    artifact.format.check(data.parent, artifact.schema)


def live_pages(data):
    """The numbers of the tree's branch and leaf pages, without freed pages."""
    pages, meta = np.fromfile(data, np.uint8).reshape(-1, PAGE), read_meta(data)
    level, numbers = [meta.root], [meta.root]
    for _ in range(meta.depth - 1):
        level = [child for number in level for child in children(pages[number])]
        numbers += level
    return np.array(numbers)


def children(page):
    for place in nodes(page):
        yield int.from_bytes(page[place : place + 6].tobytes(), "little")


def nodes(page):
    words = page.view("<u2")
    return words[8 : words[6] // 2].tolist()


def flips(data, count, seed=3):
    """Bits in headers, offsets, node headers and keys, by byte and bit: mostly where pages begin."""
    rng = np.random.default_rng(seed)
    pages = rng.choice(np.append(live_pages(data), [0, 0, 1, 1]), count) * PAGE
    within = np.where(rng.random(count) < 0.5, rng.integers(0, 48, count), rng.integers(0, PAGE, count))
    return list(zip((pages + within).tolist(), rng.integers(0, 8, count).tolist(), strict=True))


def flip(data, place, bit):
    np.memmap(data, np.uint8, "r+")[place] ^= 1 << bit


def read_flipped(artifact, data, places, checked=True):
    """The number of flips that raised an error; the others were read whole, in order and at random."""
    errors = 0
    for place, bit in places:
        flip(data, place, bit)
        try:
            if checked:
                check(artifact, data)
            with artifact.format.open(data.parent, artifact.schema) as reader:
                reader.batch(slice(None))
                reader.batch(np.arange(len(reader))[::-9])
        except CorruptArtifact as error:
            assert str(error).count("\n") == 0  # noqa: PT017 - a flip may also hit unused bytes
            errors += 1
        finally:
            flip(data, place, bit)
    return errors


@pytest.fixture
def in_child():
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield lambda *call: pool.submit(*call).result()


def test_an_intact_file_passes_and_describes_itself(artifact, data):
    check(artifact, data)
    assert artifact.format.infer_schema(artifact.path) == artifact.schema
    assert read_meta(data).depth == (3 if artifact.schema.samples == 40_000 else 2)


def test_no_flipped_bit_in_the_tree_ends_the_process(artifact, data, in_child):
    count = FLIPS if artifact.schema.samples < 1000 else FLIPS // 8
    assert in_child(read_flipped, artifact, data, flips(data, count)) > count // 4


def test_without_the_check_some_flipped_bits_end_the_process(tmp_path, in_child):
    schema = Schema(700, (Field("x", (600,), "uint8"),))
    artifact = store(formats.get("lmdb"), tmp_path / "a", schema)
    data = artifact.path / "data.mdb"
    with pytest.raises(BrokenProcessPool):
        in_child(read_flipped, artifact, data, flips(data, FLIPS), False)


def test_every_flipped_bit_of_a_key_is_detected(artifact, data):
    pages, rng = np.fromfile(data, np.uint8).reshape(-1, PAGE), np.random.default_rng(1)
    for number in [*live_pages(data)[:3], *rng.choice(live_pages(data), 20)]:
        is_branch = pages[number].view("<u2")[5] == 1  # whose first key is unused
        place = rng.choice(nodes(pages[number])[int(is_branch) :])
        key_bytes = int(pages[number][place + 6])
        spot = (int(number * PAGE + place + 8 + rng.integers(0, key_bytes)), int(rng.integers(0, 8)))
        flip(data, *spot)
        with pytest.raises(CorruptArtifact):
            check(artifact, data)
        flip(data, *spot)
    check(artifact, data)


def test_another_number_of_samples_is_corrupt(artifact, data):
    for samples in (artifact.schema.samples - 1, artifact.schema.samples + 1):
        with pytest.raises(CorruptArtifact):
            artifact.format.check(data.parent, Schema(samples, artifact.schema.fields))


def test_a_truncated_file_is_corrupt(artifact, data):
    for size in (0, 100, PAGE, PAGE + 100, 3 * PAGE, data.stat().st_size - 1):
        shutil.copy(artifact.path / "data.mdb", data)
        os.truncate(data, size)
        with pytest.raises(CorruptArtifact):
            check(artifact, data)
        with pytest.raises(CorruptArtifact):
            artifact.format.open(data.parent, artifact.schema)


def test_a_page_that_is_its_own_child_is_corrupt_and_ends(artifact, data):
    meta = read_meta(data)
    pages = np.memmap(data, np.uint8, "r+").reshape(-1, PAGE)
    root = pages[meta.root]
    for place in nodes(root)[:2]:
        root[place : place + 6] = np.frombuffer(int(meta.root).to_bytes(6, "little"), np.uint8)
    pages.base.flush()
    with pytest.raises(CorruptArtifact):
        check(artifact, data)


@pytest.mark.parametrize("used", ["by another value", "by the tree"])
@pytest.mark.parametrize("artifact", STORED[2:3], indirect=True)
def test_a_page_that_is_used_twice_is_corrupt(artifact, data, used):
    number = live_pages(data)[1]
    pages = np.memmap(data, np.uint8, "r+").reshape(-1, PAGE)
    first, second = (place + 16 for place in nodes(pages[number])[:2])  # after header and key
    other = pages[number][first : first + 8].copy() if used == "by another value" else pages[number][:8]
    pages[number][second : second + 8] = other
    pages.base.flush()
    with pytest.raises(CorruptArtifact):
        check(artifact, data)


def test_a_read_error_of_the_disk_is_an_os_error(artifact, data, monkeypatch):
    monkeypatch.setattr(os, "preadv", mock.Mock(side_effect=OSError(errno.EIO, "of the disk")))
    with pytest.raises(OSError, match="of the disk"):
        check(artifact, data)


@pytest.mark.parametrize("artifact", STORED[2:3], indirect=True)
def test_values_on_pages_of_their_own_are_not_read(data, artifact):
    """Checksums detect damage of a sample's bytes; the tree does not hold them."""
    content = artifact.source["x"][7].tobytes()
    flip(data, data.read_bytes().index(content) + 2500, 1)
    check(artifact, data)
