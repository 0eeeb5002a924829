"""LMDB pages damaged behind the manifest's back, size and time unchanged: one line, and no process ends."""

import os

import numpy as np
import pytest

import iobench
from iobench.base.errors import (
    CorruptArtifact,
)
from iobench.formats import _lmdb_meta


def kind(page):
    page[10] ^= 0x10


def bounds(page):
    page[12:16] = 0xFF


def key(page):
    words = page.view("<u2")
    page[words[9] + 8 + 7] ^= 4


def offset(page):
    page.view("<u2")[9] = 4094


@pytest.fixture(params=[kind, bounds, key, offset], ids=lambda damage: damage.__name__)
def damaged(own_images, request):
    """The dataset, with one page of its tree damaged."""
    (file,) = own_images.files_of("lmdb")
    stat, meta = file.stat(), _lmdb_meta.read_meta(file)
    pages = np.memmap(file, np.uint8, "r+").reshape(-1, meta.page_bytes)
    root = pages[meta.root].view("<u2")
    request.param(pages[root[root[9] // 2]])  # the second child
    pages.base.flush()
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert own_images.unchanged("lmdb")
    return own_images


def test_verify_names_it(damaged):
    found = iobench.verify(damaged, ["lmdb", "npy"])
    assert found["npy"] is None
    assert f"{damaged.path_of('lmdb')}/data.mdb: expected in page" in found["lmdb"]
    assert "\n" not in found["lmdb"]


def test_run_names_it_and_measures_the_others(damaged, inside, tmp_path):
    where = ("--data-dir", damaged.root.parent, "--name", damaged.name, "--out", tmp_path / "r.jsonl")
    asked = ("--format", "lmdb", "--format", "npy", "--loader", "native", "--device", "cpu", "--rounds", 1)
    done = inside("run", *where, *asked, "--no-limits")
    assert done.returncode == 1
    assert "data.mdb: expected in page" in done.stderr
    assert "Traceback" not in done.stderr
    rounds = (tmp_path / "r.jsonl").read_text().splitlines()
    assert all('"npy"' in line for line in rounds)
    assert rounds


def test_stream_loader_names_it(damaged):
    with pytest.raises(CorruptArtifact, match=r"data\.mdb: expected in page"):
        iobench.StreamLoader(damaged.root, format="lmdb")
