"""A file that something else has open is not corrupt: it is read, or the error says who has it open."""

import errno
import os
import subprocess
import sys

import h5py
import lmdb
import numpy as np
import pytest
import torch
from conftest import image_arrays, prepared
from kinds import kind
from stream_cases import SAMPLES, assert_batches, data_file, loader, rows_of

import iobench
from iobench import formats
from iobench.base.errors import InvalidSettings, LoaderFailed, expecting
from iobench.testing.cases import SCHEMA, assert_rows, store

SOURCE = image_arrays(SAMPLES)
ROWS = rows_of("sequential")
# located in the file, in compressed chunks, and read by the library alone
HDF5 = ("hdf5", "hdf5:compression=gzip", "hdf5:compression=lzf")


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("in-use"), SOURCE, [*HDF5, "lmdb"])


@pytest.mark.parametrize("name", HDF5)
@pytest.mark.parametrize("locking", [None, True, False])
def test_a_file_that_the_process_has_open_is_read(stored, name, locking):
    with h5py.File(data_file(stored.root, name), locking=locking) as theirs:
        assert_batches(loader(stored, name), SOURCE, ROWS)
        np.testing.assert_array_equal(theirs["y"][:], SOURCE["y"])


@pytest.mark.parametrize("name", HDF5)
def test_a_file_that_is_read_can_be_opened_by_the_process(stored, name):
    one = loader(stored, name)
    list(one)
    with h5py.File(data_file(stored.root, name)) as theirs:
        np.testing.assert_array_equal(theirs["y"][:], SOURCE["y"])


def environment(path):
    return lmdb.open(str(path), readonly=True, lock=False)


def test_located_values_are_read_without_the_environment_of_lmdb(stored):
    with environment(stored.path_of("lmdb")):
        one = loader(stored, "lmdb")
        assert_batches(one, SOURCE, ROWS)
    with environment(stored.path_of("lmdb")):  # while the loader keeps its files
        assert_batches(one, SOURCE, rows_of("sequential", epoch=1))


@pytest.mark.skipif(lmdb.__version__ < "2", reason="opens a file twice")
def test_another_environment_of_the_process_is_named_and_can_be_closed(tmp_path):
    artifact = store(formats.get("lmdb", codec="lz4"), tmp_path / "a", SCHEMA)
    with environment(artifact.path):
        reader = artifact.open()
        with pytest.raises(LoaderFailed, check=kind("in-use", path=artifact.path / "data.mdb")):
            reader.batch(slice(None))
    with reader, artifact.open() as second:  # readers of ours share one
        assert_rows(reader.batch(slice(None)), artifact.source, slice(None))
        assert_rows(second.batch(slice(None)), artifact.source, slice(None))


def test_a_file_that_another_process_writes_is_in_use_and_is_not_written_again(tmp_path):
    def prepare():
        source = iobench.open_source(tmp_path / "arrays.npz")
        return iobench.prepare(source, ["hdf5"], data_dir=tmp_path / "data")

    own = prepared(tmp_path, SOURCE, ["hdf5"])
    file = data_file(own.root, "hdf5")
    code = f"import h5py; file = h5py.File({str(file)!r}, 'r+'); print(flush=True); input()"
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **streams) as theirs:
        assert theirs.stdout.readline() == b"\n"
        with pytest.raises(LoaderFailed, check=kind("in-use", path=file)):
            list(loader(own, "hdf5"))
        os.utime(file)  # so that prepare reads it
        with pytest.raises(LoaderFailed, check=kind("in-use", path=file)):
            prepare()
        theirs.communicate(b"\n")
    assert [row.state for row in prepare()[1]] == ["present"]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOTCONN, errno.ESTALE, errno.ENOLCK])
def test_an_error_of_the_system_says_nothing_about_the_file(number, tmp_path):
    def fail():
        raise OSError(number, os.strerror(number))

    failure = pytest.raises(LoaderFailed, check=kind("read-error", path=tmp_path, hint=None))
    with failure, expecting(tmp_path, "an array", OSError):
        fail()


def test_a_dataloader_over_a_stream_loader_says_that_it_takes_its_place(stored):
    with pytest.raises(InvalidSettings, check=kind("not-a-dataset")):
        list(torch.utils.data.DataLoader(loader(stored, "hdf5"), batch_size=2))
