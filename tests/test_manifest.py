"""Loading and refusing manifests, and finding datasets."""

import json
import os
import pickle
from pathlib import Path

import msgspec
import numpy as np
import pytest
from conftest import Arrays, numbers
from kinds import kind
from manifest_cases import refusal

import iobench
from iobench.base.errors import CorruptArtifact, InvalidSettings, ManifestError
from iobench.dataset.manifest import Manifest, check_name, find_dataset

pytest_plugins = ("manifest_fixtures",)


def test_a_saved_manifest_is_loaded(manifest):
    assert Manifest.load(manifest.root) == manifest
    manifest.save()
    assert Manifest.load(manifest.root) == manifest
    folders = [manifest.path_of(variant).name for variant in ("lmdb", "npy")]
    assert sorted(path.name for path in manifest.root.iterdir()) == [
        ".index",
        ".lock",
        folders[0],
        "manifest.json",
        folders[1],
    ]


def test_an_opener_travels_and_opens(manifest):
    opener = pickle.loads(pickle.dumps(manifest.opener("npy")))
    with opener() as reader:
        assert reader.batch(slice(0, 3))["x"].tobytes() == numbers().arrays["x"][:3].tobytes()


def test_an_opener_of_a_missing_variant_names_the_command(manifest):
    with pytest.raises(
        ManifestError, check=kind("not-prepared", expected="hdf5", found="npy, lmdb")
    ) as error:
        manifest.opener("hdf5")
    assert "--name d --format hdf5" in error.value.hint


@pytest.mark.parametrize("text", ["", "hello", "{", "[" * 100_000, '{"manifest_version": 1', "\0"])
def test_text_that_is_not_json_is_refused(manifest, text):
    (manifest.root / "manifest.json").write_text(text)
    refusal(manifest, "not-a-manifest")


def test_bytes_that_are_not_text_are_refused(manifest):
    (manifest.root / "manifest.json").write_bytes(b"\xff\xfe\x00")
    refusal(manifest, "not-a-manifest")


def test_a_folder_in_its_place_is_refused(manifest):
    (manifest.root / "manifest.json").unlink()
    (manifest.root / "manifest.json").mkdir()
    refusal(manifest, "not-a-manifest")


@pytest.mark.parametrize(
    "body", [[], 3, None, "text", {}, {"manifest_version": "1"}, {"manifest_version": True}]
)
def test_json_of_something_else_is_refused(manifest, body):
    (manifest.root / "manifest.json").write_text(json.dumps(body))
    assert "manifest_version" in refusal(manifest, "not-a-manifest").problem


@pytest.mark.parametrize("version", [1, 3, 10**30])
def test_another_version_is_refused(manifest, edit, version):
    edit(lambda body: body.update(manifest_version=version))
    error = refusal(manifest, "unknown-version")
    assert str(version)[:20] in error.found
    assert "2" in error.expected
    assert "--overwrite" in error.hint


@pytest.mark.parametrize(
    "key", ["created", "samples", "fields", "source", "checksum", "artifacts", "logical_bytes"]
)
def test_a_missing_key_is_named(manifest, edit, key):
    edit(lambda body: body.pop(key))
    assert f"`{key}`" in refusal(manifest).problem


@pytest.mark.parametrize("key", ["files", "stored_bytes", "write_s", "library"])
def test_a_missing_key_of_an_artifact_is_refused(manifest, edit, key):
    edit(lambda body: body["artifacts"]["npy"].pop(key))
    assert key in refusal(manifest).problem


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["samples"], "203"),
        (["samples"], 203.0),
        (["samples"], 0),
        (["samples"], -3),
        (["samples"], True),
        (["fields"], {}),
        (["fields"], [3]),
        (["fields", 0, "name"], 3),
        (["fields", 0, "name"], "../x"),
        (["fields", 0, "dtype"], "object"),
        (["fields", 0, "dtype"], ["float32"]),
        (["fields", 0, "shape"], 5),
        (["fields", 0, "shape"], [5.0]),
        (["fields", 0, "shape"], ["5"]),
        (["fields", 0, "shape"], [-5]),
        (["source"], "here"),
        (["checksum"], "0"),
        (["checksum", "content"], None),
        (["checksum", "ordered"], 12),
        (["checksum", "content"], "xyz"),
        (["artifacts"], []),
        (["artifacts", "npy"], None),
        (["artifacts", "npy", "files"], ["x.npy"]),
        (["artifacts", "npy", "files", "x.npy"], 7),
        (["artifacts", "npy", "files", "x.npy", "bytes"], "7"),
        (["artifacts", "npy", "files", "x.npy", "mtime_ns"], None),
        (["artifacts", "npy", "write_s"], "fast"),
        (["artifacts", "npy", "stored_bytes"], 1.5),
        (["artifacts", "npy", "library"], 3),
        (["artifacts", "npy", "more"], 3),
    ],
)
def test_a_wrong_type_is_refused(manifest, edit, path, value):
    def change(body):
        for key in path[:-1]:
            body = body[key]
        body[path[-1]] = value

    edit(change)
    refusal(manifest)


@pytest.mark.parametrize("name", ["/etc/passwd", "../secret", "../../secret", "a/../../lmdb", "", ".", ".."])
def test_a_file_outside_its_artifact_is_refused(manifest, edit, tmp_path, name):
    (tmp_path / "secret").write_text("secret")
    edit(lambda body: body["artifacts"]["npy"]["files"].update({name: {"bytes": 6, "mtime_ns": 0}}))
    assert repr(name) in refusal(manifest).problem


@pytest.mark.parametrize(
    "variant", ["/etc", "..", "../other", "", ".", "npy/..", "npy/../../other", ".hidden"]
)
def test_an_artifact_outside_its_dataset_is_refused(manifest, edit, tmp_path, variant):
    (tmp_path / "other").mkdir()
    edit(lambda body: body["artifacts"].update({variant: body["artifacts"].pop("npy")}))
    assert repr(variant) in refusal(manifest).problem


@pytest.mark.parametrize("what", ["file", "folder", "folder in it"])
def test_only_the_artifact_that_is_linked_to_elsewhere_is_refused(tmp_path, what):
    """Even if everything else about it is right."""
    manifest = iobench.prepare(numbers(), ["npy", "memmap"], data_dir=tmp_path / "data", name="d")[0]
    folder = manifest.path_of("npy")
    moved = {"file": folder / "x.npy", "folder": folder, "folder in it": folder / "inner"}[what]
    if what == "folder in it":
        moved.mkdir()
        (folder / "x.npy").rename(moved / "x.npy")
        files = {n.replace("x.npy", "inner/x.npy"): s for n, s in manifest.artifacts["npy"].files.items()}
        manifest.artifacts["npy"] = msgspec.structs.replace(manifest.artifacts["npy"], files=files)
        manifest.save()
    moved.rename(tmp_path / "elsewhere")
    moved.symlink_to(tmp_path / "elsewhere")
    loaded = Manifest.load(manifest.root)
    loaded.opener("memmap")
    with pytest.raises(CorruptArtifact, check=kind("outside-dataset", path=moved)):
        loaded.opener("npy")


def test_a_file_may_be_a_link_within_its_artifact(manifest):
    file = manifest.path_of("npy") / "x.npy"
    file.rename(file.with_name("stored"))
    file.symlink_to("stored")
    with Manifest.load(manifest.root).opener("npy")() as reader:
        assert len(reader) == 203


def test_a_dataset_folder_may_be_a_link(manifest, tmp_path):
    manifest.root.rename(tmp_path / "disk2")
    (tmp_path / "d").symlink_to(tmp_path / "disk2")
    with find_dataset(tmp_path, "d").opener("npy")() as reader:
        assert len(reader) == 203


def test_circular_links_are_refused(manifest):
    file = manifest.path_of("npy") / "x.npy"
    file.unlink()
    file.symlink_to(file)
    with pytest.raises((ManifestError, CorruptArtifact)):
        Manifest.load(manifest.root).opener("npy")


@pytest.mark.parametrize("size", [None, 0, 10, 10_000])
def test_a_file_of_another_size_does_not_open(manifest, size):
    file = manifest.path_of("npy") / "x.npy"
    if size is None:
        file.unlink()
    else:
        os.truncate(file, size)
    expected = kind("missing-file", path=file) if size is None else kind("wrong-size", found=f"{size} bytes")
    with pytest.raises(CorruptArtifact, check=expected):
        manifest.opener("npy")


class TestFindDataset:
    def test_names_the_command_where_there_is_none(self, tmp_path):
        for folder in (tmp_path, tmp_path / "missing"):
            with pytest.raises(ManifestError, check=kind("no-dataset", path=folder)) as error:
                find_dataset(folder)
            assert "iobench prepare" in error.value.hint

    def test_names_the_folder_of_a_missing_one(self, manifest, tmp_path):
        with pytest.raises(ManifestError, check=kind("no-dataset", path=tmp_path / "other")):
            find_dataset(tmp_path, "other")

    def test_names_those_that_there_are(self, tmp_path):
        for name in ("photos", "sounds"):
            iobench.prepare(numbers(), ["npy"], data_dir=tmp_path, name=name)
        with pytest.raises(ManifestError, check=kind("no-dataset")) as error:
            find_dataset(tmp_path, "photo")
        assert error.value.hint.startswith("did you mean photos? there are: photos, sounds;")

    def test_takes_the_newest(self, tmp_path):
        for name in ("b", "c", "a"):
            iobench.prepare(numbers(), ["npy"], data_dir=tmp_path, name=name)
        assert find_dataset(tmp_path).name == "a"
        os.utime(tmp_path / "b" / "manifest.json", (2**33, 2**33))
        assert find_dataset(tmp_path).name == "b"

    def test_skips_folders_without_a_manifest(self, manifest, tmp_path):
        (tmp_path / "results").mkdir()
        (tmp_path / "unfinished" / "npy").mkdir(parents=True)
        assert find_dataset(tmp_path) == manifest


@pytest.mark.parametrize(
    "name", ["", "..", ".hidden", "a/b", "/tmp", "results", "-x", "a b", "a\n", "a:b", "é"]
)
def test_a_name_that_is_not_a_folder_inside_is_refused(tmp_path, name):
    with pytest.raises(InvalidSettings, check=kind("invalid-name")):
        check_name(name)
    with pytest.raises(InvalidSettings, check=kind("invalid-name")):
        find_dataset(tmp_path, name)
    with pytest.raises(InvalidSettings, check=kind("invalid-name")):
        iobench.prepare(Arrays(x=numbers().arrays["x"]), data_dir=tmp_path, name=name)
    assert not list(tmp_path.iterdir())


def test_a_manifest_without_permission_is_not_called_damaged(tmp_path, unprivileged):
    manifest, _ = iobench.prepare(numbers(), ["npy"], data_dir=tmp_path, name="d")
    (manifest.root / "manifest.json").chmod(0)
    with unprivileged(), pytest.raises(ManifestError, check=kind("no-permission")) as caught:
        Manifest.load(manifest.root)
    assert "overwrite" not in str(caught.value)
    (manifest.root / "manifest.json").chmod(0o644)
    manifest.path_of("npy").chmod(0)
    with unprivileged(), pytest.raises(CorruptArtifact, check=kind("no-permission")):
        manifest.location_of("npy").check()


def test_a_dataset_without_permission_is_not_said_to_be_none(manifest, unprivileged):
    manifest.root.chmod(0)
    with unprivileged(), pytest.raises(ManifestError, check=kind("no-permission", path=manifest.root)):
        find_dataset(manifest.root.parent)
    manifest.root.chmod(0o755)


@pytest.mark.parametrize("name", [".iobench-seal.json", "x.npy"])
def test_a_file_without_permission_is_not_said_to_be_damage(manifest, unprivileged, name):
    file = manifest.path_of("npy") / name
    file.chmod(0)
    for folder in (manifest.root, file.parent):
        folder.chmod(0o755)
    with unprivileged(), pytest.raises(CorruptArtifact, check=kind("no-permission", path=file)):
        manifest.opener("npy")()


def test_paths_are_text_or_paths(tmp_path, monkeypatch):
    """Scripts and notebooks name folders by text."""
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.arange(12, dtype=np.float32).reshape(6, 2))
    iobench.prepare(iobench.open_source("x.npy"), ["npy"], data_dir="data", name="prepared")
    iobench.add("x.npy", name="added", data_dir="data")
    assert iobench.find_dataset("data", "prepared") == iobench.find_dataset(Path("data"), "prepared")
    assert {iobench.find_dataset("data", name).name for name in ("prepared", "added")} == {
        "prepared",
        "added",
    }
    assert iobench.Manifest.load("data/added").schema.samples == 6
