"""Ties between manifests and files: generations, seals, and what prepare may remove."""

import errno
import fcntl
import os
import shutil

import msgspec
import pytest
from conftest import numbers, tree
from kinds import has, kind

import iobench
from iobench.base.errors import CorruptArtifact, ManifestError, SourceError, WrongContent
from iobench.dataset import staging
from iobench.dataset.manifest import Manifest
from iobench.dataset.staging import SEAL, Seal
from iobench.dataset.verify import verify_artifact

pytest_plugins = ("manifest_fixtures",)


def prepare(folder, variants=("npy", "lmdb"), seed=0, **options):
    return iobench.prepare(numbers(seed=seed), variants, data_dir=folder, name="d", **options)


def names(root):
    return {path.name for path in root.iterdir()}


def assert_tidy(manifest):
    folders = {manifest.path_of(variant).name for variant in manifest.artifacts}
    assert names(manifest.root) == {".index", ".lock", "manifest.json", *folders}
    assert set(iobench.verify(manifest).values()) == {None}


class TestReading:
    def test_an_old_manifest_never_meets_new_files(self, manifest, tmp_path):
        before = (manifest.root / "manifest.json").read_bytes()
        prepare(tmp_path, seed=1, overwrite=True)  # of the same size
        (manifest.root / "manifest.json").write_bytes(before)
        for variant in manifest.artifacts:
            with pytest.raises(CorruptArtifact, check=kind("missing-file")):
                Manifest.load(manifest.root).opener(variant)

    def test_a_folder_of_other_data_in_its_place_is_refused(self, manifest, tmp_path):
        """Even if the sizes and times of the files are the same."""
        other = iobench.prepare(numbers(seed=1), ["npy"], data_dir=tmp_path, name="other")[0]
        for file, own in zip(other.files_of("npy"), manifest.files_of("npy"), strict=True):
            os.utime(file, ns=(0, own.stat().st_mtime_ns))
        shutil.rmtree(manifest.path_of("npy"))
        other.path_of("npy").rename(manifest.path_of("npy"))
        assert not manifest.unchanged("npy")
        with pytest.raises(CorruptArtifact, check=kind("other-content", path=manifest.path_of("npy"))):
            manifest.opener("npy")

    @pytest.mark.parametrize("content", [None, b"", b"{}", b"[" * 100_000, b"\xff"])
    def test_a_folder_without_its_seal_is_refused_and_repaired(self, manifest, tmp_path, content):
        file = manifest.path_of("npy") / SEAL
        file.unlink()
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(CorruptArtifact, check=kind("no-seal", path=file)):
            manifest.opener("npy")
        again, rows = prepare(tmp_path)
        assert [row.state for row in rows] == ["repaired", "present"]
        assert set(iobench.verify(again).values()) == {None}

    def test_the_seal_includes_the_schema(self, manifest, edit):
        """A different schema of as many bytes is detected before a format opens the files."""
        edit(lambda body: body["fields"][0].update(dtype="int32"))
        with pytest.raises(CorruptArtifact, check=kind("other-content")):
            Manifest.load(manifest.root).opener("npy")


class TestReplacing:
    def test_readers_continue_with_the_old_while_the_new_is_written(self, manifest, tmp_path):
        """Every artifact stays complete until the new one is listed; an open reader also after that."""
        opened, seen = {}, []

        def look(activity, done, total):
            if activity not in seen:
                seen.append(activity)
                assert set(iobench.verify(Manifest.load(manifest.root)).values()) == {None}
                opened.setdefault("reader", manifest.opener("npy")())

        new, _ = prepare(tmp_path, seed=1, overwrite=True, progress=look)
        assert len(seen) == 4
        with opened["reader"] as reader:
            assert reader.batch(slice(0, 203))["x"].tobytes() == numbers().arrays["x"].tobytes()
        with pytest.raises(CorruptArtifact, check=kind("missing-file")):
            manifest.opener("npy")
        verify_artifact(new, "npy")
        assert new.content != manifest.content
        assert_tidy(new)

    @pytest.mark.parametrize("at", [(os, "rmdir"), (staging, "sync_directory")])
    def test_a_folder_keeps_its_seal_until_all_listed_files_are_gone(self, tmp_path, monkeypatch, at):
        """Without the seal the owner of the remaining files, on the disk too, would be unknown."""
        folder = tmp_path / "npy-11111111"
        (folder / "inner").mkdir(parents=True)
        (folder / "inner" / "a").write_text("ours")
        Seal(1, folder.name, 0, 0, 1, (), ("inner/a",)).write(folder)

        def refused(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

        with monkeypatch.context() as patched:
            patched.setattr(*at, refused)
            staging.sweep(tmp_path, ())
        assert Seal.read(folder) is not None
        staging.sweep(tmp_path, ())
        assert not folder.exists()

    @pytest.mark.parametrize("at", ["sweep", "sync"])
    def test_nothing_comes_back_once_the_new_is_listed(self, manifest, tmp_path, monkeypatch, at):
        def ctrl_c(*_):
            if Manifest.load(manifest.root).content != manifest.content:
                raise KeyboardInterrupt

        if at == "sweep":
            monkeypatch.setattr(Seal, "remove", ctrl_c)
        else:
            monkeypatch.setattr("iobench.dataset.manifest_file.sync_directory", ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            prepare(tmp_path, seed=1, overwrite=True)
        monkeypatch.undo()
        new = Manifest.load(manifest.root)
        assert set(iobench.verify(new).values()) == {None}
        assert new.content != manifest.content
        assert names(new.root) > {new.path_of("npy").name, manifest.path_of("npy").name}
        again, rows = prepare(tmp_path, seed=1)
        assert {row.state for row in rows} == {"present"}
        assert_tidy(again)

    def test_data_that_changed_under_the_same_description_are_replaced(self, tmp_path):
        source = numbers()
        prepared = iobench.prepare(source, ["npy", "lmdb"], data_dir=tmp_path, name="d")[0]
        source.arrays["x"][:2] = source.arrays["x"][1::-1].copy()  # their sum stays
        with pytest.raises(WrongContent, check=kind("source-changed")):
            iobench.prepare(source, ["hdf5"], data_dir=tmp_path, name="d")
        new = iobench.prepare(source, ["npy"], data_dir=tmp_path, name="d", overwrite=True)[0]
        assert list(new.artifacts) == ["npy"]
        assert new.content != prepared.content
        assert_tidy(new)

    def test_a_damaged_manifest_costs_nothing_before_that(self, manifest, tmp_path, monkeypatch):
        (manifest.root / "manifest.json").write_text("{")
        before = tree(manifest.root)
        with pytest.raises(ManifestError, check=kind("not-a-manifest", hint=has("--overwrite"))):
            prepare(tmp_path)
        monkeypatch.setattr(iobench.formats.type_of("lmdb"), "write", _fail)
        with pytest.raises(SourceError):
            prepare(tmp_path, seed=1, overwrite=True)
        monkeypatch.undo()
        assert tree(manifest.root) == before
        assert_tidy(prepare(tmp_path, seed=1, overwrite=True)[0])


def _fail(*_):
    raise SourceError("it broke")


class TestSweeping:
    def test_finished_folders_that_are_not_listed_are_removed(self, manifest, tmp_path):
        stray = tmp_path / "npy-00000000"
        shutil.copytree(manifest.path_of("npy"), stray)
        stray = stray.rename(manifest.root / stray.name)
        msgspec.structs.replace(Seal.read(stray), folder=stray.name).write(stray)
        assert_tidy(prepare(tmp_path)[0])

    def test_files_of_the_user_stay(self, manifest, tmp_path):
        """A copy of an artifact, files next to and inside one, links, and folders with generated names."""
        root = manifest.root
        shutil.copytree(manifest.path_of("npy"), root / "npy-copy")
        shutil.copytree(manifest.path_of("npy"), tmp_path / "elsewhere")
        (root / "npy-11111111").symlink_to(tmp_path / "elsewhere")
        (manifest.path_of("npy") / "notes.txt").write_text("mine")
        (root / "npy-22222222").mkdir()
        (root / "npy-22222222" / "x.npy").write_text("mine")
        (root / "plots").mkdir()
        (root / "notes.txt").write_text("mine")
        own = ("notes.txt", "npy-copy/x.npy", "npy-22222222/x.npy")
        mine = [*(root / name for name in own), tmp_path / "elsewhere/x.npy"]
        mine += [manifest.path_of("npy") / "notes.txt"]
        before = [file.read_bytes() for file in mine]
        for seed in (1, 2):
            new, _ = prepare(tmp_path, seed=seed, overwrite=True)
            assert set(iobench.verify(new).values()) == {None}
        assert [file.read_bytes() for file in mine] == before
        assert (root / "plots").is_dir()
        assert not (manifest.path_of("npy") / "x.npy").exists()

    def test_a_seal_that_names_files_elsewhere_removes_none(self, manifest, tmp_path):
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "x").write_text("mine")
        folder = manifest.root / "npy-33333333"
        folder.mkdir()
        (folder / "linked").symlink_to(tmp_path / "mine")
        files = ("../../mine/x", str(tmp_path / "mine" / "x"), "linked/x", "")
        stray = Seal(1, folder.name, 0, 0, 1, (), files)
        stray.write(folder)
        prepare(tmp_path)
        assert (tmp_path / "mine" / "x").read_text() == "mine"


def test_a_lock_that_was_removed_in_between_is_taken_again(tmp_path, monkeypatch):
    """Another prepare that fails removes the folder with its lock while this one waits for it."""
    flock, calls = fcntl.flock, []

    def remove_first(lock, how):
        if not calls:
            calls.append(1)
            shutil.rmtree(tmp_path / "d")
        flock(lock, how)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    assert_tidy(prepare(tmp_path)[0])
