"""Prepare writes all or nothing, never a wrong artifact, and leaves files of the user alone."""

import errno
import fcntl
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from conftest import damage, forked, numbers, tree
from kinds import complaint_kind, kind
from PIL import Image

import iobench
from iobench import formats
from iobench.base.errors import (
    ArtifactExists,
    CorruptArtifact,
    ManifestError,
    PrepareError,
    SourceError,
    WrongContent,
)
from iobench.dataset import prepare as writing
from iobench.dataset.manifest import Manifest
from iobench.dataset.prepare import DEFAULT_FORMATS
from iobench.dataset.verify import read_back
from iobench.terminal.cli import main

VARIANTS = [*DEFAULT_FORMATS, "hdf5:chunk_bytes=0", "hdf5:compression=gzip", "lmdb:codec=lz4"]

Usage = namedtuple("Usage", "total used free")


def prepare(folder, variants=("npy", "lmdb"), source=None, **options):
    return iobench.prepare(source or numbers(), variants, data_dir=folder, name="d", **options)


def states(rows):
    return {row.variant: row.state for row in rows}


def flip_a_bit(file, sample):
    """Change one bit of a sample, wherever the file holds it."""
    raw = file.read_bytes()
    assert sample in raw
    file.write_bytes(raw.replace(sample, bytes([sample[0] ^ 16]) + sample[1:]))


def stored(manifest, variant):
    """All samples of an artifact."""
    batches = list(read_back(manifest.opener(variant)))
    return {f.name: np.concatenate([b[f.name] for b in batches]) for f in manifest.schema.fields}


def assert_holds(manifest, source=None):
    """Check that every listed artifact holds the source, and that the folder has no other files."""
    source = source or numbers()
    assert Manifest.load(manifest.root) == manifest
    for variant in manifest.artifacts:
        for name, array in stored(manifest, variant).items():
            assert array.tobytes() == source.arrays[name].tobytes()
    assert_tidy(manifest.root, manifest.artifacts)


def assert_tidy(root, variants=()):
    """Check that the folder holds these artifacts and no incomplete files; without any, it is gone."""
    names = {path.name for path in root.iterdir()} if root.exists() else set()
    listed = Manifest.load(root).artifacts if variants else {}
    assert set(listed) == set(variants)
    folders = {artifact.folder for artifact in listed.values()}
    assert names == ({".index", ".lock", "manifest.json", *folders} if variants else set())
    assert {path.stem for path in (root / ".index").glob("*")} == folders


def test_a_path_in_place_of_a_source_is_refused(tmp_path):
    with pytest.raises(SourceError, check=kind("no-source")):
        iobench.prepare("x.npy", data_dir=tmp_path)


@pytest.fixture
def break_in(monkeypatch):
    """Let a format fail while it writes, after the first batch."""

    def break_in(name, error):
        original = formats.type_of(name).write

        def write(self, path, schema, batches):
            def broken():
                yield next(iter(batches))
                raise error

            original(self, path, schema, broken())

        monkeypatch.setattr(formats.type_of(name), "write", write)

    return break_in


class TestWriting:
    def test_every_variant_holds_the_source(self, tmp_path, capfd):
        manifest, rows = prepare(tmp_path, VARIANTS)
        assert list(manifest.artifacts) == [row.variant for row in rows] == VARIANTS
        assert set(states(rows).values()) == {"written"}
        assert_holds(manifest)
        assert capfd.readouterr() == ("", "")

    def test_rows_describe_the_files(self, tmp_path):
        source = iobench.Synthetic(1 << 20, compressibility=0.5)
        manifest, rows = prepare(tmp_path, ["npy", "lmdb:codec=lz4"], source)
        assert [row.ratio for row in rows] == pytest.approx([1, 1.6], rel=0.1)
        for row in rows:
            files = manifest.files_of(row.variant)
            assert row.logical_bytes == 4 << 20
            assert row.artifact.stored_bytes == sum(512 * file.stat().st_blocks for file in files)
            assert row.artifact.write_s > 0 < row.artifact.verify_s
            assert row.artifact.library.split()[0] == formats.parse(row.variant).library

    def test_a_variant_asked_for_twice_is_written_once(self, tmp_path):
        _, rows = prepare(tmp_path, ["hdf5", "hdf5:compression=none", "hdf5"])
        assert states(rows) == {"hdf5": "written"}

    def test_a_folder_of_images_goes_into_every_format(self, tmp_path):
        for number in range(12):
            folder = tmp_path / "pets" / ("cat" if number % 3 else "dog")
            folder.mkdir(parents=True, exist_ok=True)
            pixels = np.random.default_rng(number).integers(0, 256, (9, 12, 3), np.uint8)
            Image.fromarray(pixels).save(folder / f"{number:02}.png")
        manifest, _ = prepare(tmp_path / "data", source=iobench.open_source(tmp_path / "pets", (9, 12, 3)))
        for variant in manifest.artifacts:
            arrays = stored(manifest, variant)
            assert arrays["y"].tolist() == [0] * 8 + [1] * 4
            np.testing.assert_array_equal(arrays["x"][-1], pixels if number % 3 == 0 else arrays["x"][-1])
        assert_tidy(manifest.root, manifest.artifacts)

    def test_progress_reports_writing_and_reading_back(self, tmp_path):
        seen = {}
        manifest, _ = prepare(
            tmp_path, progress=lambda activity, done, total: seen.setdefault(activity, []).append(done)
        )
        assert list(seen) == ["writing npy", "verifying npy", "writing lmdb", "verifying lmdb"]
        for done in seen.values():
            assert done == sorted(done)
            assert (done[0], done[-1]) == (0, manifest.schema.logical_bytes)


class TestASecondCall:
    def test_adds_missing_variants(self, tmp_path):
        prepare(tmp_path)
        manifest, rows = prepare(tmp_path, ["npy", "memmap", "lmdb:codec=lz4"])
        assert states(rows) == {"npy": "present", "memmap": "written", "lmdb:codec=lz4": "written"}
        assert list(manifest.artifacts) == ["npy", "lmdb", "memmap", "lmdb:codec=lz4"]
        assert_holds(manifest)

    def test_keeps_and_stamps_touched_files(self, tmp_path):
        manifest, _ = prepare(tmp_path)
        os.utime(manifest.files_of("npy")[0], (1, 1))
        before = tree(manifest.path_of("npy"))
        again, rows = prepare(tmp_path)
        assert states(rows)["npy"] == "present"
        assert tree(again.path_of("npy")) == before
        assert again.unchanged("npy")
        assert_holds(again)

    def test_leaves_other_files_next_to_the_data(self, tmp_path):
        """LMDB's own tools leave a lock file, and a run must work without it."""
        manifest, _ = prepare(tmp_path)
        lock = manifest.path_of("lmdb") / "lock.mdb"
        lock.touch()
        os.utime(manifest.path_of("lmdb") / "data.mdb")
        again, rows = prepare(tmp_path)
        assert (states(rows)["lmdb"], lock.exists()) == ("present", True)
        lock.unlink()
        again.opener("lmdb")

    @pytest.mark.parametrize("variant", DEFAULT_FORMATS)
    @pytest.mark.parametrize("harm", ["bit", "truncated", "missing file", "missing folder"])
    def test_repairs_damaged_variants(self, tmp_path, variant, harm):
        manifest, _ = prepare(tmp_path, [variant])
        file = max(manifest.files_of(variant), key=lambda path: path.stat().st_size)
        if harm == "bit":
            flip_a_bit(file, numbers().arrays["x"][100].tobytes())
        elif harm == "truncated":
            os.truncate(file, 100)
        elif harm == "missing file":
            file.unlink()
        else:
            shutil.rmtree(manifest.path_of(variant))
        again, rows = prepare(tmp_path, [variant])
        assert states(rows) == {variant: "repaired"}
        assert_holds(again)

    def test_overwrite_writes_again_and_keeps_the_rest(self, tmp_path):
        prepare(tmp_path)
        manifest, rows = prepare(tmp_path, ["npy"], overwrite=True)
        assert states(rows) == {"npy": "written"}
        assert list(manifest.artifacts) == ["npy", "lmdb"]
        assert_holds(manifest)


class TestOtherData:
    def test_are_kept_without_overwrite(self, tmp_path):
        manifest, _ = prepare(tmp_path)
        before = tree(tmp_path)
        with pytest.raises(ArtifactExists, check=kind("other-data", path=tmp_path / "d")) as error:
            prepare(tmp_path, source=numbers(seed=1))
        assert all(option in error.value.hint for option in ("--overwrite", "--name"))
        assert tree(tmp_path) == before
        assert_holds(manifest)

    def test_a_folder_that_no_manifest_lists_stays(self, tmp_path):
        """The user's folder may have a format's name, and may even be the source."""
        mine = tmp_path / "d" / "npy" / "x.npy"
        mine.parent.mkdir(parents=True)
        np.save(mine, np.arange(50))
        for overwrite in (False, True):
            manifest, _ = prepare(tmp_path, ["lmdb", "npy"], iobench.open_source(mine), overwrite=overwrite)
            assert iobench.verify(manifest) == {"lmdb": None, "npy": None}
            assert np.load(mine).tolist() == list(range(50))


class TestFailure:
    """Any failure: incomplete data never open, and existing data stay."""

    ERRORS = (
        (OSError(errno.ENOSPC, "No space left on device"), PrepareError, "No space left on device"),
        (SourceError("unreadable"), SourceError, "unreadable"),
        (KeyboardInterrupt(), KeyboardInterrupt, None),
        (ZeroDivisionError(), ZeroDivisionError, None),
    )

    @pytest.mark.parametrize("name", DEFAULT_FORMATS)
    @pytest.mark.parametrize(("error", "expected", "words"), ERRORS)
    def test_in_the_first_write_leaves_nothing(self, tmp_path, break_in, name, error, expected, words):
        break_in(name, error)
        with pytest.raises(expected, match=words):
            prepare(tmp_path, [name])
        assert_tidy(tmp_path / "d")
        with pytest.raises(ManifestError):
            iobench.find_dataset(tmp_path)

    @pytest.mark.parametrize("overwrite", [False, True])
    @pytest.mark.parametrize(("error", "expected", "words"), ERRORS)
    def test_in_a_later_write_keeps_the_rest(self, tmp_path, break_in, error, expected, words, overwrite):
        prepare(tmp_path, ["npy", "hdf5"] if overwrite else ["npy"])
        before = tree(tmp_path)
        break_in("hdf5", error)
        with pytest.raises(expected, match=words):
            prepare(tmp_path, ["hdf5", "memmap"], overwrite=overwrite)
        assert tree(tmp_path) == before
        assert_holds(iobench.find_dataset(tmp_path))

    @pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()])
    @pytest.mark.parametrize("point", [(writing, "sync"), (writing, "sync_directory")])
    def test_of_a_sync_keeps_existing_data(self, tmp_path, monkeypatch, error, point):
        prepare(tmp_path, ["npy"])
        before = tree(tmp_path)

        def fail(path):
            raise error

        monkeypatch.setattr(*point, fail)
        with pytest.raises((PrepareError, KeyboardInterrupt)):
            prepare(tmp_path, ["npy", "lmdb"], numbers(seed=1), overwrite=True)
        assert tree(tmp_path) == before

    @pytest.mark.parametrize("seed", [0, 1], ids=["same data", "other data"])
    def test_to_write_the_manifest_keeps_existing_data(self, tmp_path, monkeypatch, seed):
        prepare(tmp_path, ["npy"])
        before = tree(tmp_path)

        def fail(descriptor):
            file = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            if file.is_file() and file.parent == tmp_path / "d":
                raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(PrepareError, match=os.strerror(errno.ENOSPC)):
            prepare(tmp_path, ["npy", "lmdb"], numbers(seed=seed), overwrite=True)
        assert tree(tmp_path) == before
        assert_tidy(tmp_path / "d", ["npy"])

    @pytest.mark.parametrize("fault", ["a changed byte", "no samples"])
    def test_of_a_format_to_write_what_it_was_given_is_detected(self, tmp_path, monkeypatch, fault):
        npy = formats.type_of("npy")
        original = npy.write

        def write(self, path, schema, batches):
            original(self, path, schema, [] if fault == "no samples" else batches)
            if fault == "a changed byte":
                damage(path / "x.npy")

        monkeypatch.setattr(npy, "write", write)
        with pytest.raises((WrongContent, CorruptArtifact)):
            prepare(tmp_path, ["lmdb", "npy"])
        assert_holds(iobench.find_dataset(tmp_path))

    def test_by_a_kill_leaves_nothing_that_opens(self, tmp_path):
        script = (
            "import os, sys, iobench; from iobench import formats\n"
            "formats.type_of('hdf5').open = lambda *_: os.kill(os.getpid(), 9)\n"
            "iobench.prepare(iobench.Synthetic(9999), ['npy', 'hdf5'], data_dir=sys.argv[1], name='d')\n"
        )
        assert subprocess.run([sys.executable, "-c", script, tmp_path]).returncode == -9
        assert list(iobench.find_dataset(tmp_path).artifacts) == ["npy"]
        manifest, rows = prepare(tmp_path, ["npy", "hdf5"], iobench.Synthetic(9999))
        assert states(rows) == {"npy": "present", "hdf5": "written"}
        assert_tidy(manifest.root, manifest.artifacts)


class TestFolderAndDisk:
    def test_two_at_once_are_kept_apart(self, tmp_path):
        manifest, _ = prepare(tmp_path)
        with open(manifest.root / ".lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with pytest.raises(PrepareError, check=kind("locked")):
                prepare(tmp_path)
        prepare(tmp_path)

    def test_too_little_space_is_reported_before_anything_is_written(self, tmp_path, monkeypatch):
        monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1 << 40, 0, 100_000))
        with pytest.raises(PrepareError, check=kind("disk-full", found="97.7 KiB free")) as error:
            prepare(tmp_path)
        assert "--size" in error.value.hint
        assert_tidy(tmp_path / "d")

    def test_existing_data_need_no_space(self, tmp_path, monkeypatch):
        prepare(tmp_path)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1 << 40, 0, 0))
        assert set(states(prepare(tmp_path)[1]).values()) == {"present"}

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_a_full_disk_is_one_line(self, small_disk, variant, tmp_path, monkeypatch):
        """In a child process, which a library may crash when its writes are refused."""
        prepare(small_disk, ["npy"])
        before = tree(small_disk)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1 << 40, 0, 1 << 40))
        arguments = ["prepare", "--size=2e6", "--name=large", "--format", variant, "--data-dir", small_disk]
        monkeypatch.setattr(sys, "argv", ["iobench", *map(str, arguments)])
        done = forked(main, tmp_path)
        assert complaint_kind(done, 1) == "prepare"
        assert done.stderr.splitlines()[:-1] in ([], [f"writing {variant}"])
        assert tree(small_disk) == before
        assert_tidy(small_disk / "large")

    def test_a_read_only_folder_is_one_line(self, small_disk):
        manifest, _ = prepare(small_disk, ["npy"])
        subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
        for source in (numbers(), numbers(seed=1)):
            with pytest.raises(PrepareError, match=os.strerror(errno.EROFS)):
                prepare(small_disk, source=source, overwrite=True)
        with pytest.raises(PrepareError, match=os.strerror(errno.EROFS)):
            iobench.prepare(numbers(), data_dir=small_disk, name="new")
        assert_holds(manifest)

    def test_a_file_in_the_place_of_the_folder_stays(self, tmp_path):
        (tmp_path / "d").write_text("mine")
        with pytest.raises(PrepareError, match=os.strerror(errno.EEXIST)):
            prepare(tmp_path)
        with pytest.raises(PrepareError, match=os.strerror(errno.ENOTDIR)):
            iobench.prepare(numbers(), data_dir=tmp_path / "d" / "e")
        assert (tmp_path / "d").read_text() == "mine"


def test_memory_does_not_grow_with_the_data(tmp_path):
    """Peak memory for 200 MB in every format is about that for 100 MB.

    A reader's mapped pages count as memory, so its share is made small.
    """
    script = (
        "import importlib, sys, iobench\n"
        "from pathlib import Path\n"
        "from conftest import peak_mib\n"
        "importlib.import_module('iobench.dataset.verify').READER_BYTES = 32 << 20\n"
        "def prepare(size):\n"
        "    iobench.prepare(iobench.Synthetic(size), data_dir=Path(sys.argv[1]), name=str(size))\n"
        "prepare(1_000_000)\n"  # loads the libraries
        "prepare(25_000_000)\n"
        "before = peak_mib()\n"
        "prepare(50_000_000)\n"
        "print(peak_mib() - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": os.path.dirname(__file__)},
    )
    assert int(done.stdout) < 70  # 0 to 30; data that were held would be 100


def test_a_format_whose_library_is_not_a_package_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(type(formats.parse("npy")), "library", "no-such-package")
    with pytest.raises(PrepareError, check=kind("unknown-library")) as caught:
        iobench.prepare(numbers(), ["npy"], data_dir=tmp_path)
    assert "'no-such-package'" in caught.value.problem
    assert "\n" not in str(caught.value)
    assert tree(tmp_path) == {}
