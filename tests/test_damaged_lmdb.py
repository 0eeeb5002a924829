"""Damaged LMDB pages with unchanged size and time: one error, and no process aborts."""

import os

import numpy as np
import pytest
from kinds import kind, refused_as

import iobench
from iobench import formats
from iobench.base.errors import CorruptArtifact
from iobench.formats.lmdb.pages import read_meta


def page_kind(page):
    page[10] ^= 0x10


def bounds(page):
    page[12:16] = 0xFF


def key(page):
    words = page.view("<u2")
    page[words[9] + 8 + 7] ^= 4


def offset(page):
    page.view("<u2")[9] = 4094


@pytest.fixture(params=[page_kind, bounds, key, offset], ids=lambda damage: damage.__name__)
def damaged(own_images, request):
    """The dataset with one damaged page in its tree."""
    (file,) = own_images.files_of("lmdb")
    stat, meta = file.stat(), read_meta(file)
    pages = np.memmap(file, np.uint8, "r+").reshape(-1, meta.page_bytes)
    root = pages[meta.root].view("<u2")
    request.param(pages[root[root[9] // 2]])  # the second child
    pages.base.flush()
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert own_images.unchanged("lmdb")
    return own_images


def test_verify_run_and_stream_loader_report_it_and_measure_the_others(damaged, inside, tmp_path):
    file = damaged.path_of("lmdb") / "data.mdb"
    damage = iobench.verify(damaged, ["lmdb", "npy"])
    assert damage["npy"] is None
    assert kind("damaged-page", path=file)(damage["lmdb"])
    assert "\n" not in str(damage["lmdb"])
    where = ("--data-dir", damaged.root.parent, "--name", damaged.name, "--out", tmp_path / "r.jsonl")
    asked = ("--format", "lmdb", "--format", "npy", "--loader", "native", "--device", "cpu", "--rounds", 1)
    done = inside("run", *where, *asked, "--no-limits")
    assert done.returncode == 1
    assert f"{file}: " in done.stderr
    assert "Traceback" not in done.stderr
    rounds = (tmp_path / "r.jsonl").read_text().splitlines()
    assert rounds
    assert all('"npy"' in line for line in rounds)
    with refused_as("damaged-page", path=file):
        iobench.StreamLoader(damaged.root, format="lmdb")


def test_more_keys_than_the_file_has_room_for_are_refused(own_images):
    (file,) = own_images.files_of("lmdb")
    page_bytes = read_meta(file).page_bytes
    with open(file, "r+b") as opened:
        for page in range(2):  # of meta data; the number of keys is the main tree's fifth
            opened.seek(page * page_bytes + 120)
            opened.write((1 << 63).to_bytes(8, "little"))
    with pytest.raises(CorruptArtifact):
        formats.parse("lmdb").infer_schema(file)
