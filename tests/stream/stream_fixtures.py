"""Datasets of the tests of StreamLoader; a plugin, because only one conftest.py exists."""

import gc
import shutil

import pytest
from conftest import every_dtype_arrays, image_arrays, prepared, require_disk
from loop_disk import LoopDisk
from stream_cases import SAMPLES, VARIANTS, vector_arrays

from iobench.host import page_cache
from iobench.stream import direct_reader as direct_reads


@pytest.fixture(scope="module", autouse=True)
def nothing_left_by_others():
    """Close what the tests of another module left to the garbage collector: here it would be ours."""
    gc.collect()


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


@pytest.fixture
def always_warm(monkeypatch):
    """Let no other process of the machine make the files cold."""
    monkeypatch.setattr(page_cache, "residency", lambda files, sampled=False: 1.0)


@pytest.fixture
def loop_disk(tmp_path):
    """Return a disk that can be made to fail."""
    try:
        disk = LoopDisk(tmp_path)
    except OSError as error:
        pytest.skip(f"no loop device here: {error}")
    yield disk
    disk.close()
