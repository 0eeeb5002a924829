"""Manifests with values out of range or in contradiction to the others are refused in one line."""

import errno
import json
import os

import pytest
from conftest import numbers
from kinds import kind
from manifest_cases import refusal

import iobench
from iobench.base.errors import InvalidSettings, ManifestError, PrepareError, SourceError
from iobench.dataset.manifest import Manifest

pytest_plugins = ("manifest_fixtures",)
DEEP = [[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]


@pytest.mark.parametrize(
    ("path", "value", "word"),
    [
        (["samples"], 10**12, "logical_bytes"),
        (["samples"], 2**63, "9223372036854775807"),
        (["fields", 0, "shape"], [10**9], "logical_bytes"),
        (["fields", 0, "shape"], [10**9] * 4, "64"),
        (["fields", 0, "shape"], [1] * 32, "33"),
        (["fields", 0, "name"], "x" * 256, "200"),
        (["fields", 1, "name"], "x", "two"),
        (["logical_bytes"], 1, "5684"),
        (["logical_bytes"], 10_000, "5684"),
        (["created"], "\ud800", "created"),
        (["artifacts", "npy", "write_s"], -0.1, "write_s"),
        (["artifacts", "npy", "verify_s"], -1, "verify_s"),
        (["artifacts", "npy", "stored_bytes"], -1, "stored_bytes"),
        (["artifacts", "npy", "stored_bytes"], 10**400, "stored_bytes"),
        (["artifacts", "npy", "files"], {}, "files"),
        (["artifacts", "npy", "files", "x" * 256], {"bytes": 1, "mtime_ns": 1}, "no file in npy"),
        (["artifacts", "npy", "files", "a\0b"], {"bytes": 1, "mtime_ns": 1}, "no file in npy"),
        (["artifacts", "npy", "files", "\ud800"], {"bytes": 1, "mtime_ns": 1}, "UTF-8"),
        (["artifacts", "npy", "variant"], "lmdb", "'lmdb'"),
        (["artifacts", "npy", "folder"], "../npy", "'../npy'"),
        (["source", "deep"], DEEP, "16"),
    ],
)
def test_values_out_of_range_are_refused(manifest, edit, path, value, word):
    """Before memory is allocated for it."""

    def change(body):
        for key in path[:-1]:
            body = body[key]
        body[path[-1]] = value

    edit(change)
    assert word in refusal(manifest).problem


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_is_not_finite_is_refused(manifest, number):
    path = manifest.root / "manifest.json"
    path.write_text(path.read_text().replace('"source": {', f'"source": {{"n": {number},'))
    assert number in refusal(manifest, "not-a-manifest").problem


def test_a_duplicate_key_is_refused(manifest):
    path = manifest.root / "manifest.json"
    path.write_text(path.read_text().replace('"samples"', '"samples": 1, "samples"'))
    assert "'samples'" in refusal(manifest, "not-a-manifest").problem


def test_two_artifacts_in_one_folder_are_refused(manifest, edit):
    edit(lambda body: body["artifacts"]["npy"].update(folder=body["artifacts"]["lmdb"]["folder"]))
    assert " lmdb-" in refusal(manifest).problem


@pytest.mark.parametrize("folder", [None, "", "npy/.."])
def test_an_artifact_without_a_folder_is_refused(manifest, edit, folder):
    entry = lambda body: body["artifacts"]["npy"]  # noqa: E731 - used twice
    edit(lambda body: entry(body).pop("folder") if folder is None else entry(body).update(folder=folder))
    assert "variant" in refusal(manifest).problem


def test_a_fifo_in_its_place_is_refused(manifest):
    (manifest.root / "manifest.json").unlink()
    os.mkfifo(manifest.root / "manifest.json")
    refusal(manifest, "not-a-manifest")


def test_no_time_to_write_does_no_harm(manifest, edit, tmp_path):
    edit(lambda body: body["artifacts"]["npy"].update(write_s=0))
    _, rows = iobench.prepare(numbers(), ["npy"], data_dir=tmp_path, name="d")
    assert rows[0].artifact.write_s == 0
    assert 0 < rows[0].write_bytes_per_s < float("inf")


class Described(type(numbers())):
    """A source with the description that a test gives it."""

    given = None

    @property
    def description(self):
        return self.given


@pytest.mark.parametrize("description", [{"x": float("nan")}, {"x": object()}, {"x": DEEP}])
def test_a_description_that_json_cannot_hold_is_refused_before_anything_is_written(tmp_path, description):
    source = Described(**numbers().arrays)
    source.given = description
    with pytest.raises(SourceError, check=kind("not-storable")):
        iobench.prepare(source, ["npy"], data_dir=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_description_is_recognised_however_json_writes_it(tmp_path):
    source = Described(**numbers().arrays)
    source.given = {"shape": (1, 2), "path": "caf\udce9", 3: "three"}
    for state in ("written", "present"):
        manifest, rows = iobench.prepare(source, ["npy"], data_dir=tmp_path, name="d")
        assert [row.state for row in rows] == [state]
    assert Manifest.load(manifest.root).source == json.loads(json.dumps(source.given))


def test_a_name_that_is_too_long_is_refused(tmp_path):
    for ask in (
        lambda name: iobench.prepare(numbers(), ["npy"], data_dir=tmp_path, name=name),
        lambda name: iobench.find_dataset(tmp_path, name),
    ):
        with pytest.raises(InvalidSettings, check=kind("invalid-name", found=201)):
            ask("x" * 201)
    assert iobench.prepare(numbers(), ["npy"], data_dir=tmp_path, name="x" * 200)[0].name == "x" * 200


def test_a_folder_whose_name_is_not_utf_8_is_refused(tmp_path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    with pytest.raises(ManifestError, check=kind("invalid-name", path=f"{tmp_path}/caf\\xe9/d")):
        iobench.prepare(numbers(), data_dir=folder, name="d")
    assert not folder.exists()
    iobench.prepare(numbers(), ["npy"], data_dir=tmp_path / "data", name="d")
    (tmp_path / "data").rename(folder)
    with pytest.raises(ManifestError, check=kind("invalid-name")):
        iobench.find_dataset(folder)


def test_a_data_folder_whose_name_is_too_long_is_one_line(tmp_path):
    with pytest.raises(ManifestError):
        iobench.find_dataset(tmp_path / ("x" * 300))
    with pytest.raises(PrepareError, match=os.strerror(errno.ENAMETOOLONG)):
        iobench.prepare(numbers(), data_dir=tmp_path / ("x" * 300), name="d")
