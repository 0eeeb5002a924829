"""Hashes of samples are cached, certified by the manifest's checksums, and never trusted."""

import json
import os

import numpy as np
import pytest
from conftest import image_arrays, prepared

from iobench import Manifest
from iobench.base.errors import WrongContent
from iobench.dataset import index_cache, verify
from iobench.dataset.checksum import Checksum
from iobench.dataset.verify import read_back, stored_hashes


@pytest.fixture
def dataset(tmp_path):
    return prepared(tmp_path, image_arrays(), ["npy"])


@pytest.fixture
def reads(monkeypatch):
    """Calls that read the whole artifact."""
    calls = []

    def counted(*arguments):
        calls.append(arguments)
        return stored_hashes(*arguments)

    monkeypatch.setattr(verify, "stored_hashes", counted)
    return calls


def hashes(dataset):
    manifest = Manifest.load(dataset.root)
    return verify.sample_hashes(manifest, "npy").of(slice(0, manifest.schema.samples))


def stored_list(dataset):
    (file,) = (dataset.root / index_cache.FOLDER).glob(f"*.{verify.NAME}")
    return file


def flip(path, offset):
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    replacement = path.with_name("replacement")
    replacement.write_bytes(content)
    os.replace(replacement, path)


def test_the_list_that_prepare_keeps_holds_the_hash_of_each_sample_in_stored_order(dataset, reads):
    batches = list(read_back(dataset.opener("npy"), rows=3))
    expected = np.concatenate([Checksum(dataset.schema).hashes(batch) for batch in batches])
    np.testing.assert_array_equal(hashes(dataset), expected)
    assert not reads


def test_hashes_are_given_for_any_rows(dataset):
    rows, everything = np.array([5, 0, 5]), hashes(dataset)
    some = verify.sample_hashes(dataset, "npy")
    np.testing.assert_array_equal(some.of(rows), np.asarray(everything)[rows])
    assert some.known(rows).tolist() == [True] * 3
    assert some.known(slice(1, 3)).tolist() == [True] * 2


def test_a_list_that_takes_too_long_is_not_made(dataset, reads):
    stored_list(dataset).unlink()
    with pytest.raises(TimeoutError):
        verify.sample_hashes(dataset, "npy", end=0.0)
    assert not list((dataset.root / index_cache.FOLDER).glob("*"))
    assert verify.hashes_in_time(dataset, "npy", 0.0) is None
    assert len(reads) == 1, "what is expected to take too long is not begun"
    assert verify.hashes_in_time(dataset, "npy", 60.0) is not None


@pytest.mark.parametrize("damage", ["missing", "cut off", "flipped bit"])
def test_a_damaged_list_is_built_again(dataset, reads, damage):
    expected = np.array(hashes(dataset))
    file = stored_list(dataset)
    if damage == "missing":
        file.unlink()
    elif damage == "cut off":
        content = file.read_bytes()
        file.unlink()
        file.write_bytes(content[:-4096])
    else:
        flip(file, 4096 + 5)
    np.testing.assert_array_equal(hashes(dataset), expected)
    assert len(reads) == 1


def test_a_list_without_hashes_is_built_again(dataset, reads):
    expected, file = hashes(dataset), stored_list(dataset)
    built_from = json.loads(file.read_bytes()[len(index_cache.MAGIC) : 4096])["built_from"]
    other = index_cache.IndexFile(file.parent, "other")
    assert other.append({"another": expected})
    assert other.finish(file, built_from)
    np.testing.assert_array_equal(hashes(dataset), expected)
    assert len(reads) == 1


@pytest.mark.parametrize("change", ["other", "swapped", "short"])
def test_a_list_of_other_data_is_refused(dataset, change):
    expected = np.array(hashes(dataset))
    stored_list(dataset).unlink()
    forged = expected[:-1] if change == "short" else expected.copy()
    if change == "swapped":
        forged[[0, 1]] = forged[[1, 0]]
    elif change == "other":
        forged[0] += 1
    with verify.HashWriter.temporary(dataset.root) as writer:
        writer.append(forged)
        writer.keep(dataset, "npy")
    for read in (hashes, lambda one: verify.kept_hashes(one, "npy")):
        with pytest.raises(WrongContent) as caught:
            read(dataset)
        assert caught.value.kind == ("other-order" if change == "swapped" else "other-content")


def test_zeroed_data_with_restored_times_make_no_list(dataset):
    stored_list(dataset).unlink()
    file = max(dataset.files_of("npy"), key=lambda path: path.stat().st_size)
    before = file.stat()
    with open(file, "r+b") as opened:
        opened.seek(before.st_size // 2)
        opened.write(bytes(before.st_size // 4))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(WrongContent):
        hashes(dataset)
    assert not list((dataset.root / index_cache.FOLDER).glob("*"))
