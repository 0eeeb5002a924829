"""Loading and refusing manifests, and finding datasets."""

import errno
import json
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest
from conftest import Arrays, numbers
from kinds import has, kind, refused_as

import iobench
from iobench.base.errors import CorruptArtifact, InvalidSettings, ManifestError, PrepareError, SourceError
from iobench.dataset.manifest import Manifest, check_name, find_dataset
from iobench.dataset.sources import FirstSamples

pytest_plugins = ("manifest_fixtures",)
DEEP = [[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]


def refusal(manifest, name="damaged-manifest", **fields):
    """Return the check that the manifest is refused with an error of this kind, a single line."""
    with refused_as(name, ManifestError, path=manifest.root / "manifest.json", **fields):
        Manifest.load(manifest.root)


NO_JSON = [b"", b"hello", b"{", b"[" * 100_000, b'{"manifest_version": 1', b"\0", b"\xff\xfe\0"]
OTHER_JSON = [b"[]", b"3", b"null", b"{}", b'{"manifest_version": "1"}', b'{"manifest_version": true}']


@pytest.mark.parametrize("content", [*NO_JSON, *OTHER_JSON])
def test_content_that_is_no_manifest_is_refused(manifest, content):
    (manifest.root / "manifest.json").write_bytes(content)
    refusal(manifest, "not-a-manifest", problem=has("manifest_version" if content in OTHER_JSON else "("))


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_file_in_its_place_is_refused(manifest, make):
    (manifest.root / "manifest.json").unlink()
    make(manifest.root / "manifest.json")
    refusal(manifest, "not-a-manifest")


@pytest.mark.parametrize("version", [1, 3, 10**30])
def test_another_version_is_refused(manifest, edit, version):
    edit(lambda body: body.update(manifest_version=version))
    hint, found = has("--overwrite"), has(str(version)[:20])
    refusal(manifest, "unknown-version", found=found, expected=has("2"), hint=hint)


NPY, GONE = ["artifacts", "npy"], object()
REQUIRED = ("created", "samples", "fields", "source", "checksum", "artifacts", "logical_bytes")
STAMP = {"bytes": 6, "mtime_ns": 0}
OUTSIDE = ("/etc/passwd", "../secret", "a/../../lmdb", "", ".", "..", "x" * 256, "a\0b")
DAMAGES = [  # what is changed, to what, and a word of the problem
    *(([key], GONE, f"`{key}`") for key in REQUIRED),
    *(([*NPY, key], GONE, key) for key in ("files", "stored_bytes", "write_s", "library")),
    *((["samples"], value, "samples") for value in ("203", 203.0, 0, -3, True)),
    (["samples"], 10**12, "logical_bytes"),
    (["samples"], 2**63, "9223372036854775807"),
    *((["fields"], value, "fields") for value in ({}, [3])),
    *((["fields", 0, "name"], value, "name") for value in (3, "../x")),
    (["fields", 0, "name"], "x" * 256, "200"),
    (["fields", 1, "name"], "x", "two"),
    *((["fields", 0, "dtype"], value, "") for value in ("object", ["float32"])),
    *((["fields", 0, "shape"], value, "") for value in (5, [5.0], ["5"], [-5])),
    (["fields", 0, "shape"], [10**9], "logical_bytes"),
    (["fields", 0, "shape"], [10**9] * 4, "64"),
    (["fields", 0, "shape"], [1] * 32, "33"),
    *((["logical_bytes"], value, "5684") for value in (1, 10_000)),
    (["created"], "\ud800", "created"),
    (["source"], "here", "source"),
    (["source", "deep"], DEEP, "16"),
    (["checksum"], "0", "checksum"),
    *((["checksum", "content"], value, "content") for value in (None, "xyz")),
    (["checksum", "ordered"], 12, "ordered"),
    (["artifacts"], [], "artifacts"),
    (NPY, None, "artifacts"),
    ([*NPY, "more"], 3, "more"),
    ([*NPY, "variant"], "lmdb", "'lmdb'"),
    ([*NPY, "library"], 3, "library"),
    *(([*NPY, "write_s"], value, "write_s") for value in ("fast", -0.1)),
    ([*NPY, "verify_s"], -1, "verify_s"),
    *(([*NPY, "stored_bytes"], value, "stored_bytes") for value in (1.5, -1, 10**400)),
    *(([*NPY, "files"], value, "files") for value in (["x.npy"], {})),
    ([*NPY, "files", "x.npy"], 7, "files"),
    ([*NPY, "files", "x.npy", "bytes"], "7", "bytes"),
    ([*NPY, "files", "x.npy", "mtime_ns"], None, "mtime_ns"),
    *(([*NPY, "files", name], STAMP, "no file in npy") for name in OUTSIDE),
    ([*NPY, "files", "\ud800"], STAMP, "UTF-8"),
    *(([*NPY, "folder"], value, "variant") for value in (GONE, "", "npy/..", "../npy")),
]


@pytest.mark.parametrize(("path", "value", "word"), DAMAGES)
def test_values_that_are_missing_or_wrong_are_refused(manifest, edit, path, value, word):
    """Before memory is allocated for them."""

    def change(body):
        for key in path[:-1]:
            body = body[key]
        if value is GONE:
            del body[path[-1]]
        else:
            body[path[-1]] = value

    edit(change)
    refusal(manifest, problem=has(word))


def test_two_artifacts_in_one_folder_are_refused(manifest, edit):
    edit(lambda body: body["artifacts"]["npy"].update(folder=body["artifacts"]["lmdb"]["folder"]))
    refusal(manifest, problem=has(" lmdb-"))


@pytest.mark.parametrize("variant", ["/etc", "..", "../other", "", ".", "npy/../../other", ".hidden"])
def test_an_artifact_outside_its_dataset_is_refused(manifest, edit, variant):
    edit(lambda body: body["artifacts"].update({variant: body["artifacts"].pop("npy")}))
    refusal(manifest, problem=has(repr(variant)))


NUMBERS = ("NaN", "Infinity", "-Infinity", "1e999")
NO_NUMBERS = {number: ('"source": {', f'"source": {{"n": {number},') for number in NUMBERS}


@pytest.mark.parametrize(
    ("found", "texts"), [*NO_NUMBERS.items(), ("'samples'", ('"samples"', '"samples": 1, "samples"'))]
)
def test_numbers_that_are_not_finite_and_keys_that_come_twice_are_refused(manifest, found, texts):
    path = manifest.root / "manifest.json"
    path.write_text(path.read_text().replace(*texts))
    refusal(manifest, "not-a-manifest", problem=has(found))


def test_no_time_to_write_does_no_harm(manifest, edit, tmp_path):
    edit(lambda body: body["artifacts"]["npy"].update(write_s=0))
    _, rows = iobench.prepare(numbers(), ["npy"], data_dir=tmp_path, name="d")
    assert rows[0].artifact.write_s == 0
    assert 0 < rows[0].write_bytes_per_s < float("inf")


# ── files of artifacts ──


@pytest.mark.parametrize("what", ["file", "folder", "folder in it"])
def test_only_the_artifact_that_is_linked_to_elsewhere_is_refused(manifest, tmp_path, what):
    """Even if everything else about it is right."""
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
    loaded.opener("lmdb")
    with pytest.raises(CorruptArtifact, check=kind("outside-dataset", path=moved)):
        loaded.opener("npy")


def test_files_and_dataset_folders_may_be_links_within(manifest, tmp_path):
    file = manifest.path_of("npy") / "x.npy"
    file.rename(file.with_name("stored"))
    file.symlink_to("stored")
    manifest.root.rename(tmp_path / "disk2")
    (tmp_path / "d").symlink_to(tmp_path / "disk2")
    with find_dataset(tmp_path, "d").opener("npy")() as reader:
        assert reader.batch(slice(0, 203))["x"].tobytes() == numbers().arrays["x"].tobytes()


@pytest.mark.parametrize("size", [None, "link to itself", 0, 10, 10_000])
def test_a_file_of_another_size_does_not_open(manifest, size):
    file = manifest.path_of("npy") / "x.npy"
    expected = kind("missing-file", path=file)
    if isinstance(size, int):
        os.truncate(file, size)
        expected = kind("wrong-size", found=f"{size} bytes")
    else:
        file.unlink()
    if size == "link to itself":
        file.symlink_to(file)
    with pytest.raises(CorruptArtifact, check=expected):
        manifest.opener("npy")


@pytest.mark.parametrize("name", ["manifest.json", ".", "NPY", "NPY/x.npy", "NPY/.iobench-seal.json"])
def test_what_may_not_be_read_is_called_neither_missing_nor_damaged(manifest, unprivileged, name):
    file = manifest.root / name.replace("NPY", manifest.path_of("npy").name)
    for folder in (manifest.root, manifest.path_of("npy")):
        folder.chmod(0o755)
    file.chmod(0)
    error = CorruptArtifact if "NPY" in name else ManifestError
    path = {} if name == "NPY" else {"path": file}
    with unprivileged(), pytest.raises(error, check=kind("no-permission", **path)) as caught:
        find_dataset(manifest.root.parent).opener("npy")()
    assert "overwrite" not in str(caught.value)
    file.chmod(0o755)


# ── descriptions and names ──


class Described(Arrays):
    """A source with the description that a test gives it."""

    description = None


def described(description):
    source = Described(**numbers().arrays)
    source.description = description
    return source


@pytest.mark.parametrize("description", [{"x": float("nan")}, {"x": object()}, {"x": DEEP}])
def test_a_description_that_json_cannot_hold_is_refused_before_anything_is_written(tmp_path, description):
    with pytest.raises(SourceError, check=kind("not-storable")):
        iobench.prepare(described(description), ["npy"], data_dir=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_description_is_recognised_however_json_writes_it(tmp_path):
    source = described({"shape": (1, 2), "path": "caf\udce9", 3: "three"})
    for state in ("written", "present"):
        manifest, rows = iobench.prepare(source, ["npy"], data_dir=tmp_path, name="d")
        assert [row.state for row in rows] == [state]
    assert Manifest.load(manifest.root).source == json.loads(json.dumps(source.description))


def test_names_and_folders_that_are_too_long_or_not_utf_8_are_refused(tmp_path):
    def prepare(data_dir, name):
        return iobench.prepare(numbers(), ["npy"], data_dir=data_dir, name=name)[0]

    no_text, long = tmp_path / os.fsdecode(b"caf\xe9"), tmp_path / ("x" * 300)
    for ask in (prepare, find_dataset):
        with pytest.raises(InvalidSettings, check=kind("invalid-name", found=201)):
            ask(tmp_path, "x" * 201)
        with pytest.raises(ManifestError, check=kind("invalid-name", path=f"{tmp_path}/caf\\xe9/d")):
            ask(no_text, "d")
    assert not no_text.exists()
    assert prepare(tmp_path, "x" * 200).name == "x" * 200
    with pytest.raises(ManifestError):
        find_dataset(long)
    with pytest.raises(PrepareError, match=os.strerror(errno.ENAMETOOLONG)):
        prepare(long, "d")


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b", "/tmp", "results", "-x", "a b", "a\n", "é"])
def test_a_name_that_is_not_a_folder_inside_is_refused(tmp_path, name):
    for ask in (
        lambda: check_name(name),
        lambda: find_dataset(tmp_path, name),
        lambda: iobench.prepare(Arrays(x=numbers().arrays["x"]), data_dir=tmp_path, name=name),
    ):
        with pytest.raises(InvalidSettings, check=kind("invalid-name")):
            ask()
    assert not list(tmp_path.iterdir())


class TestFindDataset:
    @pytest.fixture
    def written(self, manifest, tmp_path):
        """Return a function that makes a dataset of a given age."""

        def written(name, age_s, source=None):
            root = iobench.prepare(source or numbers(), ["npy"], data_dir=tmp_path, name=name)[0].root
            os.utime(root / "manifest.json", ns=(0, 2**33 * 10**9 - age_s * 10**9))
            return root

        return written

    def test_names_the_command_where_there_is_none(self, tmp_path):
        for folder in (tmp_path, tmp_path / "missing"):
            with pytest.raises(
                ManifestError, check=kind("no-dataset", path=folder, hint=has("iobench prepare"))
            ):
                find_dataset(folder)

    def test_names_those_that_there_are(self, written, tmp_path):
        written("photos", 0)
        with pytest.raises(ManifestError, check=kind("no-dataset", path=tmp_path / "photo")) as error:
            find_dataset(tmp_path, "photo")
        assert error.value.hint.startswith("did you mean photos? there are: d, photos;")

    def test_takes_the_newest_that_is_no_sample_and_no_leftover(self, written, tmp_path):
        (tmp_path / "unfinished" / "npy").mkdir(parents=True)
        written("sample", 2, FirstSamples(numbers(), 8))
        assert find_dataset(tmp_path).name == "d"
        for name, age_s in (("older", 4), ("newer", 3)):
            written(name, age_s)
            assert find_dataset(tmp_path).name == name
        (written("killed", 1) / ".tmp-1").mkdir()
        assert find_dataset(tmp_path).name == "newer"

    def test_takes_a_sample_where_there_is_nothing_else(self, tmp_path):
        iobench.prepare(FirstSamples(numbers(), 8), ["npy"], data_dir=tmp_path, name="sample")
        assert find_dataset(tmp_path).name == "sample"


def test_paths_are_text_or_paths(tmp_path, monkeypatch):
    """Scripts and notebooks name folders by text."""
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.arange(12, dtype=np.float32).reshape(6, 2))
    iobench.prepare(iobench.open_source("x.npy"), ["npy"], data_dir="data", name="prepared")
    iobench.add("x.npy", name="added", data_dir="data")
    assert find_dataset("data", "prepared") == find_dataset(Path("data"), "prepared")
    assert Manifest.load("data/added").schema.samples == 6


@pytest.mark.parametrize("take", [iobench.open_source, iobench.add])
def test_a_url_is_refused_as_one(take):
    with pytest.raises(SourceError, check=kind("remote-data", path="s3://bucket/x")):
        take(Path("s3://bucket/x"))
