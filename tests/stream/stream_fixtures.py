"""Datasets of the tests of StreamLoader; a plugin, because only one conftest.py exists."""

import os
import shutil
import subprocess

import pytest
from conftest import every_dtype_arrays, image_arrays, prepared, require_disk
from stream_cases import PLACED, SAMPLES, VARIANTS, vector_arrays, wide_arrays

from iobench.stream import direct_reader as direct_reads


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """Prepare small images with labels in every variant; read-only."""
    return prepared(tmp_path_factory.mktemp("pictures"), image_arrays(SAMPLES), VARIANTS)


@pytest.fixture(scope="session")
def every_kind(tmp_path_factory):
    """Prepare all dtypes in every variant."""
    return prepared(tmp_path_factory.mktemp("kinds"), every_dtype_arrays(), VARIANTS)


@pytest.fixture(scope="session")
def vectors(tmp_path_factory):
    """Prepare 16 MiB of vectors labeled with their row, in every variant."""
    return prepared(tmp_path_factory.mktemp("vectors"), vector_arrays(), VARIANTS)


@pytest.fixture(scope="session")
def wide(tmp_path_factory):
    """Prepare a few samples of three pages each, in every variant with direct reads."""
    return prepared(tmp_path_factory.mktemp("wide"), wide_arrays(), PLACED)


@pytest.fixture
def own(request, pictures, tmp_path):
    """Copy the variant `name` of `pictures` for a test that damages it."""
    name, root = request.node.callspec.params["name"], tmp_path / "own"
    shutil.copytree(pictures.path_of(name), root / pictures.path_of(name).name)
    shutil.copy(pictures.root / "manifest.json", root)
    return root


@pytest.fixture
def real_direct(request, monkeypatch, tmp_path):
    """Make direct reads go to the disk for fields of any size."""
    if request.node.callspec.params.get("direct"):
        require_disk(tmp_path)
    monkeypatch.setattr(direct_reads, "SMALL_BYTES", 0)


class LoopDisk:
    """A small file system on a loop device, whose reads fail after `fail`."""

    def __init__(self, folder):
        self.path, self._backing = folder / "disk", folder / "backing"
        self.path.mkdir()
        with open(self._backing, "wb") as file:
            file.truncate(96 << 20)
        if os.geteuid():
            pytest.skip("a loop device needs root")
        for command in (
            ["mkfs.ext4", "-q", "-F", "-O", "^has_journal", str(self._backing)],
            ["mount", "-o", "loop", str(self._backing), str(self.path)],
        ):
            try:
                subprocess.run(command, check=True, capture_output=True, text=True)
            except (OSError, subprocess.CalledProcessError) as error:
                pytest.skip(f"no loop device here: {getattr(error, 'stderr', '') or error}")

    def fail(self, files):
        """Truncate the file behind the device, and evict the unmapped pages of these files."""
        for file in files:
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
        backing = os.open(self._backing, os.O_RDWR)
        os.ftruncate(backing, 0)
        os.close(backing)

    def close(self):
        """Unmount the file system."""
        subprocess.run(["umount", str(self.path)], check=True, capture_output=True)


@pytest.fixture
def loop_disk(tmp_path):
    """Return a disk that can be made to fail."""
    disk = LoopDisk(tmp_path)
    yield disk
    disk.close()
