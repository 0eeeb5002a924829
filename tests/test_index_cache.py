"""Lists of where samples lie are found once, kept beside the manifest, and never believed when stale."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import image_arrays, prepared

import iobench
from iobench import Manifest
from iobench.dataset import index_cache
from iobench.formats import _lmdb_tree


@pytest.fixture
def dataset(tmp_path):
    return prepared(tmp_path, image_arrays(), ["lmdb"])


@pytest.fixture
def walks(monkeypatch):
    """How often the pages of LMDB were walked to find values."""
    found, values = [], _lmdb_tree.values

    def counted(*arguments):
        found.append(arguments)
        return values(*arguments)

    monkeypatch.setattr(_lmdb_tree, "values", counted)
    monkeypatch.setattr(kept, "_memory", type(kept._memory)())
    return found


def offsets(dataset):
    with Manifest.load(dataset.root).opener("lmdb")() as reader:
        return np.array(reader.placement()["x"].offset)


def lists(dataset):
    return list((dataset.root / kept.FOLDER).iterdir())


def test_a_list_is_found_once(dataset, walks):
    assert (offsets(dataset) == offsets(dataset)).all()
    assert len(walks) == 1
    assert len(lists(dataset)) == 1


def test_a_list_that_was_deleted_is_found_again(dataset, walks):
    expected = offsets(dataset)
    shutil.rmtree(dataset.root / kept.FOLDER)
    np.testing.assert_array_equal(offsets(dataset), expected)
    assert len(walks) == 2


def test_a_list_of_files_that_changed_is_found_again(dataset, walks):
    offsets(dataset)
    (file,) = dataset.files_of("lmdb")
    os.utime(file)
    offsets(dataset)
    offsets(dataset)
    assert len(walks) == 2


@pytest.mark.parametrize("place", [0, 20, 60, 4096 + 100, -1])
def test_a_list_that_is_damaged_is_found_again(dataset, walks, monkeypatch, place):
    expected = offsets(dataset)
    (path,) = lists(dataset)
    content = bytearray(path.read_bytes())
    place = place if place >= 0 else 4096 + 8 * len(expected) - 1
    content[place] ^= 0x10
    path.write_bytes(content)
    np.testing.assert_array_equal(offsets(dataset), expected)
    assert len(walks) == 2


def test_a_list_whose_description_is_damaged_is_found_again(dataset, walks):
    expected = offsets(dataset)
    (path,) = lists(dataset)
    content = path.read_bytes()
    assert b'"<i8"' in content
    path.write_bytes(content.replace(b'"<i8"', b'"<u8"'))
    np.testing.assert_array_equal(offsets(dataset), expected)
    assert len(walks) == 2


@pytest.mark.timeout(20)
def test_a_pipe_in_the_place_of_a_list_is_replaced(dataset, walks):
    expected = offsets(dataset)
    (path,) = lists(dataset)
    path.unlink()
    os.mkfifo(path)
    np.testing.assert_array_equal(offsets(dataset), expected)
    assert path.is_file()


@pytest.mark.parametrize("content", [b"", b"iobench index 1\n", b"\x80\x04", bytes(5000)])
def test_what_is_no_list_is_replaced(dataset, walks, content):
    expected = offsets(dataset)
    (path,) = lists(dataset)
    path.write_bytes(content)
    np.testing.assert_array_equal(offsets(dataset), expected)
    np.testing.assert_array_equal(offsets(dataset), expected)
    assert len(walks) == 2


def test_where_nothing_can_be_written_a_list_stays_in_memory(dataset, walks, monkeypatch):
    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(kept.Path, "mkdir", refuse)
    assert (offsets(dataset) == offsets(dataset)).all()
    assert len(walks) == 1
    assert not (dataset.root / kept.FOLDER).exists()


def test_a_list_is_no_part_of_the_artifact_and_goes_with_it(dataset, walks):
    offsets(dataset)
    (before,) = lists(dataset)
    (before.parent / "lmdb-00000000.values.1234abcd.tmp").write_bytes(b"half")
    assert iobench.verify(dataset) == {"lmdb": None}
    assert Manifest.load(dataset.root).unchanged("lmdb")
    assert dataset.artifacts["lmdb"].files.keys() == {"data.mdb"}
    source = iobench.open_source(Path(dataset.source["path"]))
    iobench.prepare(source, ["lmdb"], data_dir=dataset.root.parent, name=dataset.name, overwrite=True)
    assert lists(dataset) == []
