"""The manifest as a whole: what is out of range or at odds with the rest is refused in one line."""

import json
import os

import pytest
from conftest import numbers
from manifest_cases import refusal

import iobench
from iobench.base.errors import (
    InvalidSettings,
    ManifestError,
    SourceError,
)
from iobench.dataset.manifest import Manifest

pytest_plugins = ("manifest_fixtures",)
DEEP = [[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (["samples"], 10**12, "logical_bytes"),
        (["samples"], 2**63, "9223372036854775807"),
        (["fields", 0, "shape"], [10**9], "logical_bytes"),
        (["fields", 0, "shape"], [10**9] * 4, "beyond 64 bits"),
        (["fields", 0, "shape"], [1] * 32, "33 axes, at most 32"),
        (["fields", 0, "name"], "x" * 256, "longer than 255 bytes"),
        (["fields", 1, "name"], "x", "two fields are named x"),
        (["logical_bytes"], 1, "logical_bytes is 1, samples and fields make 5684"),
        (["created"], "\ud800", "created"),
        (["artifacts", "npy", "write_s"], -0.1, "write_s"),
        (["artifacts", "npy", "verify_s"], -1, "verify_s"),
        (["artifacts", "npy", "stored_bytes"], -1, "stored_bytes"),
        (["artifacts", "npy", "stored_bytes"], 10**400, "stored_bytes"),
        (["artifacts", "npy", "files"], {}, "files"),
        (["artifacts", "npy", "files", "x" * 256], {"bytes": 1, "mtime_ns": 1}, "no file name"),
        (["artifacts", "npy", "files", "a\0b"], {"bytes": 1, "mtime_ns": 1}, "no file name"),
        (["artifacts", "npy", "files", "\ud800"], {"bytes": 1, "mtime_ns": 1}, "surrogates"),
        (["artifacts", "npy", "variant"], "lmdb", "says that it is 'lmdb'"),
        (["artifacts", "npy", "folder"], "../npy", "is no variant"),
        (["source", "deep"], DEEP, "nested more than 16 levels deep"),
    ],
)
def test_what_is_out_of_range_is_refused(manifest, edit, path, value, words):
    """Before anything is allocated for it."""

    def change(body):
        for key in path[:-1]:
            body = body[key]
        body[path[-1]] = value

    edit(change)
    assert words in refusal(manifest)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_is_none_is_refused(manifest, number):
    path = manifest.root / "manifest.json"
    path.write_text(path.read_text().replace('"source": {', f'"source": {{"n": {number},'))
    assert f"{number} is no finite number" in refusal(manifest)


def test_a_key_that_stands_twice_is_refused(manifest):
    path = manifest.root / "manifest.json"
    path.write_text(path.read_text().replace('"samples"', '"samples": 1, "samples"'))
    assert "'samples' stands there twice" in refusal(manifest)


def test_two_artifacts_in_one_folder_are_refused(manifest, edit):
    edit(lambda body: body["artifacts"]["npy"].update(folder=body["artifacts"]["lmdb"]["folder"]))
    assert "two artifacts are in lmdb-" in refusal(manifest)


def test_a_pipe_in_its_place_is_refused(manifest):
    (manifest.root / "manifest.json").unlink()
    os.mkfifo(manifest.root / "manifest.json")
    assert "it is not a file" in refusal(manifest)


def test_no_time_to_write_does_no_harm(manifest, edit, tmp_path):
    edit(lambda body: body["artifacts"]["npy"].update(write_s=0))
    _, rows = iobench.prepare(numbers(), ["npy"], data_dir=tmp_path, name="d")
    assert rows[0].artifact.write_s == 0
    assert 0 < rows[0].write_bytes_per_s < float("inf")


class Described(type(numbers())):
    """A source that says of itself what it is told to."""

    said = None

    @property
    def description(self):
        return self.said


@pytest.mark.parametrize("said", [{"x": float("nan")}, {"x": object()}, {"x": DEEP}])
def test_what_a_manifest_could_not_hold_is_refused_before_it_is_written(tmp_path, said):
    source = Described(**numbers().arrays)
    source.said = said
    with pytest.raises(SourceError, match="it cannot be stored"):
        iobench.prepare(source, ["npy"], data_dir=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_description_is_recognised_however_json_writes_it(tmp_path):
    source = Described(**numbers().arrays)
    source.said = {"shape": (1, 2), "path": "caf\udce9", 3: "three"}
    for state in ("written", "present"):
        manifest, rows = iobench.prepare(source, ["npy"], data_dir=tmp_path, name="d")
        assert [row.state for row in rows] == [state]
    assert Manifest.load(manifest.root).source == json.loads(json.dumps(source.said))


def test_a_name_that_is_too_long_is_refused(tmp_path):
    for ask in (
        lambda name: iobench.prepare(numbers(), ["npy"], data_dir=tmp_path, name=name),
        lambda name: iobench.find_dataset(tmp_path, name),
    ):
        with pytest.raises(InvalidSettings, match=r"dataset name .* has 256 characters; at most 255"):
            ask("x" * 256)
    assert iobench.prepare(numbers(), ["npy"], data_dir=tmp_path, name="x" * 255)[0].name == "x" * 255


def test_a_folder_whose_name_is_not_utf_8_is_refused(tmp_path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    with pytest.raises(ManifestError, match=r"caf\\xe9/d: the name of this folder is not UTF-8"):
        iobench.prepare(numbers(), data_dir=folder, name="d")
    assert not folder.exists()
    iobench.prepare(numbers(), ["npy"], data_dir=tmp_path / "data", name="d")
    (tmp_path / "data").rename(folder)
    with pytest.raises(ManifestError, match="not UTF-8"):
        iobench.find_dataset(folder)


def test_a_data_folder_whose_name_is_too_long_is_one_line(tmp_path):
    with pytest.raises(ManifestError):
        iobench.find_dataset(tmp_path / ("x" * 300))
    with pytest.raises(OSError, match="File name too long"):
        iobench.prepare(numbers(), data_dir=tmp_path / ("x" * 300), name="d")
