"""Indexes of sample offsets are built once, cached next to the manifest, and rebuilt when stale."""

import contextlib
import json
import math
import mmap
import os
import shutil
import time
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest
from conftest import SAMPLES, image_arrays, prepared

import iobench
from iobench import Manifest
from iobench.bench.budget import Budget
from iobench.bench.options import RunOptions
from iobench.contrib.formats import tfrecord
from iobench.dataset import index_cache
from iobench.dataset.index_cache import MAGIC, IndexFile
from iobench.formats.lmdb import pages as _lmdb_pages


@pytest.fixture
def dataset(tmp_path):
    return prepared(tmp_path, image_arrays(), ["lmdb"])


@pytest.fixture
def walks(monkeypatch):
    """Calls of the walk over the pages of LMDB that finds values."""
    calls, values = [], _lmdb_pages.Tree.places

    def counted(*arguments):
        calls.append(arguments)
        return values(*arguments)

    monkeypatch.setattr(_lmdb_pages.Tree, "places", counted)
    monkeypatch.setattr(index_cache, "kept_indexes", type(index_cache.kept_indexes)())
    return calls


def offsets(dataset):
    with Manifest.load(dataset.root).opener("lmdb")() as reader:
        return np.array(reader.placement()["x"].offset)


def indexes(dataset):
    return list((dataset.root / index_cache.FOLDER).glob("*.values"))


def test_an_index_is_built_once(dataset, walks):
    assert (offsets(dataset) == offsets(dataset)).all()
    assert len(walks) == 1
    assert len(indexes(dataset)) == 1


def of_dtype(dtype, path):
    """Write an index of another dtype, as from the same files."""
    header = msgspec.json.decode(path.read_bytes()[len(MAGIC) : mmap.PAGESIZE].strip())
    with contextlib.closing(IndexFile(path.parent, "hostile")) as written:
        assert written.append({name: np.zeros(SAMPLES, dtype) for name in ("offset", "size")})
        assert written.finish(path, header["built_from"])


def flipped(place, path):
    content = bytearray(path.read_bytes())
    content[place] ^= 0x10
    path.write_bytes(content)


def replaced(old, new, path):
    assert old in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(old, new))


def placed_at(offset, path):
    content = path.read_bytes()
    header = json.loads(content[len(MAGIC) : mmap.PAGESIZE])
    header["arrays"][0]["offset"] = offset
    start = MAGIC + json.dumps(header).encode()
    path.write_bytes(start.ljust(mmap.PAGESIZE) + content[mmap.PAGESIZE :])


def fifo(path):
    path.unlink()
    os.mkfifo(path)


DAMAGES = {
    "deleted": lambda path: shutil.rmtree(path.parent),
    "a fifo": fifo,
    **{f"of {dtype}": partial(of_dtype, dtype) for dtype in ("S4", "U2", "V8", "f8", ">i8")},
    **{f"byte {at}": partial(flipped, at) for at in (0, 20, 60, 4096 + 100, 4096 + 8 * SAMPLES - 1)},
    "another dtype in the header": partial(replaced, b'"<i8"', b'"<u8"'),
    **{f"values at {offset}": partial(placed_at, offset) for offset in (-1, 10**30)},
    **{
        f"only {content[:9]}": lambda path, content=content: path.write_bytes(content)
        for content in (b"", b"iobench index 1\n", b"\x80\x04", bytes(5000))
    },
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_an_index_that_is_damaged_is_built_again_and_replaced(dataset, walks, damage):
    expected, (path,) = offsets(dataset), indexes(dataset)
    damage(path)
    for _ in range(2):
        np.testing.assert_array_equal(offsets(dataset), expected)
    assert len(walks) == 2
    assert path.is_file()


def test_an_index_of_changed_files_is_built_again(dataset, walks):
    offsets(dataset)
    (file,) = dataset.files_of("lmdb")
    os.utime(file)
    offsets(dataset)
    offsets(dataset)
    assert len(walks) == 2


def test_an_index_that_cannot_be_written_stays_in_memory(dataset, walks, monkeypatch):
    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    shutil.rmtree(dataset.root / index_cache.FOLDER)
    monkeypatch.setattr(index_cache.Path, "mkdir", refuse)
    assert (offsets(dataset) == offsets(dataset)).all()
    assert len(walks) == 1
    assert not (dataset.root / index_cache.FOLDER).exists()


def test_an_index_is_not_part_of_the_artifact_and_is_removed_with_it(dataset, walks):
    offsets(dataset)
    (before,) = indexes(dataset)
    (before.parent / "lmdb-00000000.values.1234abcd.tmp").write_bytes(b"half")
    assert iobench.verify(dataset) == {"lmdb": None}
    assert Manifest.load(dataset.root).unchanged("lmdb")
    assert dataset.artifacts["lmdb"].files.keys() == {"data.mdb"}
    source = iobench.open_source(Path(dataset.source["path"]))
    iobench.prepare(source, ["lmdb"], data_dir=dataset.root.parent, name=dataset.name, overwrite=True)
    assert indexes(dataset) == []


@pytest.mark.parametrize("loader", ["native", "stream", "dataloader:num_workers=1"])
def test_an_index_that_is_not_built_in_time_skips_its_case(tmp_path, monkeypatch, loader):
    dataset = prepared(tmp_path, image_arrays(), ["tfrecord"])
    for path in (dataset.root / index_cache.FOLDER).glob("*.records"):
        path.unlink()
    monkeypatch.setattr(index_cache, "kept_indexes", type(index_cache.kept_indexes)())
    monkeypatch.setattr(tfrecord, "PIECE", 2)
    options = RunOptions(
        ("tfrecord",), (loader,), rounds="2", limits=False, device=("cpu",), max_time=60.0, isolate=False
    )
    over = Budget(60.0, began=time.monotonic() - 100.0)
    late = iobench.run(dataset, options, out=tmp_path / "late.jsonl", budget=over)
    assert not late.failures
    assert not late.records
    (note,) = (one for one in late.notes if one.kind == "skipped")
    assert "the index of its samples was not built in time" in note.sentence
    assert dataset.index_end == math.inf
    assert len(iobench.run(dataset, options, out=tmp_path / "r.jsonl").records) == 2
    assert len(list((dataset.root / index_cache.FOLDER).glob("*.records"))) == 1


def test_the_index_of_lmdb_is_built_in_pieces_until_the_time_is_over(tmp_path, monkeypatch):
    dataset = prepared(tmp_path, {"x": np.arange(2000, dtype=np.int64)}, ["lmdb"])
    monkeypatch.setattr(index_cache, "kept_indexes", type(index_cache.kept_indexes)())
    whole = offsets(dataset)
    for path in indexes(dataset):
        path.unlink()
    monkeypatch.setattr(index_cache, "kept_indexes", type(index_cache.kept_indexes)())
    monkeypatch.setattr(_lmdb_pages, "PIECE_BYTES", 1)  # a page
    dataset.index_end = time.monotonic()
    with pytest.raises(index_cache.IndexLate), dataset.opener("lmdb")() as reader:
        reader.placement()
    assert indexes(dataset) == []
    np.testing.assert_array_equal(offsets(dataset), whole)
