"""Large added data are hashed in part; what is known is right, and the rest is hashed when asked."""

import json
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kinds import kind

import iobench
from iobench import Manifest
from iobench.base.errors import ArtifactExists, ManifestError, WrongContent
from iobench.dataset import checksum, verify
from iobench.dataset.add import add
from iobench.dataset.checksum import Checksum, HashedRows
from iobench.dataset.verify import hash_rest, kept_hashes, sample_hashes, verify_artifact

SAMPLES, WIDTH = 1003, 16


@pytest.fixture
def small_parts(monkeypatch):
    """Pieces of seven rows, and data that are hashed in part from 8 KiB on."""
    monkeypatch.setattr(checksum, "HASHED_BYTES", 7 * WIDTH)
    monkeypatch.setattr(verify, "WHOLE_BYTES", 8 << 10)
    monkeypatch.setattr(verify, "PART_BYTES", 4 << 10)


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "external" / "x.npy"
    path.parent.mkdir()
    np.save(path, np.random.default_rng(0).integers(0, 256, (SAMPLES, WIDTH), np.uint8))
    return path


@pytest.fixture
def dataset(data, tmp_path, small_parts):
    return added(data, tmp_path)


def added(data, tmp_path, **options):
    return add(data, data_dir=tmp_path / "data", name="d", **options)[0]


def all_hashes(data):
    array = np.load(data)
    schema = iobench.formats.Schema(len(array), (iobench.formats.Field("x", (WIDTH,), "uint8"),))
    return Checksum(schema).hashes({"x": array})


def known_rows(dataset):
    return np.flatnonzero(sample_hashes(dataset, "npy").known(slice(0, SAMPLES)))


def overwrite_row(data, row):
    """Change a row and restore the times, as a disk that lost a page does."""
    before = data.stat()
    with open(data, "r+b") as file:
        file.seek(before.st_size - (SAMPLES - row) * WIDTH)
        file.write(bytes(WIDTH))
    os.utime(data, ns=(before.st_atime_ns, before.st_mtime_ns))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(1, 400), st.integers(1, 50), st.floats(0, 1))
def test_the_list_holds_each_known_row_once_in_its_order(samples, piece_rows, share):
    every = -(-samples // piece_rows)
    hashed = HashedRows(samples, piece_rows, max(1, round(share * every)))
    rows = np.concatenate([np.arange(part.start, part.stop) for part in hashed.slices(3)])
    assert len(rows) == hashed.count
    np.testing.assert_array_equal(np.sort(rows), np.flatnonzero(hashed.known(slice(0, samples))))
    np.testing.assert_array_equal(hashed.positions(rows), np.arange(len(rows)))


@pytest.mark.parametrize("pieces", [3, 17, 100, 641])
def test_pieces_are_spread_over_the_data(pieces):
    hashed = HashedRows(10_000, 10, pieces)
    begins = sorted(part.start for part in hashed.slices(10))
    gaps = np.diff([0, *begins, 10_000])
    assert gaps.max() <= 3 * 10_000 / pieces


def test_large_data_are_hashed_in_part_and_the_manifest_says_which(dataset, data, tmp_path):
    loaded = Manifest.load(dataset.root)
    assert loaded.part == dataset.part is not None
    assert loaded.hashed.count * WIDTH == pytest.approx(4 << 10, abs=2 * 7 * WIDTH)
    rows = known_rows(loaded)
    np.testing.assert_array_equal(sample_hashes(loaded, "npy").of(rows), all_hashes(data)[rows])
    seen = []
    added(data, tmp_path, overwrite=True, warn=seen.append)
    assert [note.kind for note in seen] == ["hashed-in-part"]


def test_full_hashes_everything(data, tmp_path, small_parts):
    dataset = added(data, tmp_path, hash="full")
    assert dataset.part is None
    np.testing.assert_array_equal(sample_hashes(dataset, "npy").of(np.arange(SAMPLES)), all_hashes(data))


def test_data_that_would_take_longer_are_hashed_in_part(data, tmp_path, small_parts, monkeypatch):
    monkeypatch.setattr(verify, "WHOLE_BYTES", 1 << 30)
    monkeypatch.setattr(verify, "READ_BYTES_PER_S", 1 << 10)
    assert added(data, tmp_path, hash_s=60.0).part is None, "16 KiB take 16 s"
    assert added(data, tmp_path, hash_s=10.0, overwrite=True).part is not None


def test_time_ends_the_hashing_of_a_part(data, tmp_path, small_parts):
    dataset = added(data, tmp_path, hash_s=0.0)
    assert dataset.part.pieces == 1
    assert kept_hashes(dataset, "npy").hashed.count == dataset.hashed.count
    verify_artifact(dataset, "npy")


def test_the_list_is_kept_by_the_only_reading(dataset, monkeypatch):
    monkeypatch.setattr("iobench.dataset.verify.stored_hashes", None)
    assert sample_hashes(dataset, "npy").known(slice(0, SAMPLES)).sum() == dataset.hashed.count


@pytest.mark.parametrize("hash", ["auto", "full"])
def test_verify_names_a_wrong_row_that_is_hashed_or_sampled_and_does_not_see_others(
    data, tmp_path, small_parts, hash
):
    dataset, size = added(data, tmp_path, hash=hash), 1 << 10 if hash == "full" else None
    read = HashedRows.part_of(dataset.schema, size) if size else dataset.hashed
    inside = read.known(slice(0, SAMPLES))
    overwrite_row(data, int(np.flatnonzero(~inside)[5]))
    assert iobench.verify(dataset, sample_bytes=size) == {"npy": None}
    row = int(np.flatnonzero(inside)[5])
    overwrite_row(data, row)
    damage = iobench.verify(dataset, sample_bytes=size)["npy"]
    assert kind("other-content", expected=f"row {row:,} as it was hashed")(damage)


def test_a_sample_needs_kept_hashes_which_verify_keeps(dataset):
    (file,) = (dataset.root / ".index").glob("*.hashes")
    file.unlink()
    assert kind("no-hashes")(iobench.verify(dataset, sample_bytes=1 << 10)["npy"])
    assert iobench.verify(dataset) == {"npy": None}
    assert iobench.verify(dataset, sample_bytes=1 << 10) == {"npy": None}


def test_the_rest_is_hashed_later(dataset, data):
    hash_rest(dataset, lambda *step: None)
    loaded = Manifest.load(dataset.root)
    whole = Checksum(loaded.schema)
    whole.add_hashes(all_hashes(data), np.arange(SAMPLES))
    assert (loaded.part, loaded.content, loaded.ordered) == (None, whole.content, whole.ordered)
    np.testing.assert_array_equal(kept_hashes(loaded, "npy").of(slice(0, SAMPLES)), all_hashes(data))
    assert iobench.verify(loaded) == {"npy": None}


def test_the_rest_of_data_whose_known_rows_changed_is_refused(dataset, data):
    overwrite_row(data, int(known_rows(dataset)[0]))
    with pytest.raises(WrongContent, check=kind("other-content")):
        hash_rest(dataset, lambda *step: None)
    assert Manifest.load(dataset.root).part == dataset.part


def claim(dataset, hashed):
    path = dataset.root / "manifest.json"
    body = json.loads(path.read_text())
    path.write_text(json.dumps(body | {"hashed": hashed and body["hashed"] | hashed(body["hashed"])}))


@pytest.mark.parametrize(
    "hashed",
    [None, lambda part: {"pieces": part["pieces"] + 1}, lambda part: {"piece_rows": part["piece_rows"] + 1}],
    ids=["all", "more pieces", "longer pieces"],
)
def test_a_manifest_that_claims_too_much_is_refused(dataset, hashed):
    claim(dataset, hashed)
    with pytest.raises(WrongContent):
        sample_hashes(Manifest.load(dataset.root), "npy")
    assert iobench.verify(Manifest.load(dataset.root))["npy"].kind == "other-content"


@pytest.mark.parametrize("part", [{"piece_rows": 1003, "pieces": 1}, {"piece_rows": 7, "pieces": 200}])
def test_a_part_that_is_no_part_is_a_damaged_manifest(dataset, part):
    claim(dataset, lambda before: part)
    with pytest.raises(ManifestError, check=kind("damaged-manifest")):
        Manifest.load(dataset.root)


def test_the_same_data_join_with_the_same_rows_and_other_data_do_not(dataset, data, tmp_path):
    blob = tmp_path / "external" / "group"
    blob.mkdir()
    np.save(blob / "x.npy", np.load(data))
    same = add(blob, "npy", data_dir=tmp_path / "data", name="e")[0]
    assert same.part == dataset.part
    assert (same.content, same.ordered) == (dataset.content, dataset.ordered)
    table = iobench.prepare(iobench.AddedSource(dataset), ["hdf5"], data_dir=tmp_path / "other", name="h")[0]
    file = next(path for path in table.files_of("hdf5") if path.suffix == ".h5")
    copy = file.rename(tmp_path / "external" / "x.h5")
    both = add(copy, "hdf5", data_dir=tmp_path / "data", name="d")[0]
    assert set(both.artifacts) == {"npy", "hdf5"}
    assert both.part == dataset.part
    with pytest.raises(ArtifactExists, check=kind("hashed-in-part")):
        add(copy, "hdf5", data_dir=tmp_path / "data", name="d", hash="full")


def test_prepare_hashes_the_rest_first(dataset, tmp_path):
    both, _ = iobench.prepare(iobench.AddedSource(dataset), ["memmap"], data_dir=tmp_path / "data", name="d")
    assert both.part is None
    assert iobench.verify(both) == {"npy": None, "memmap": None}
