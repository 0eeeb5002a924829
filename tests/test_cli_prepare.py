"""iobench prepare, verify and formats on the command line: results on stdout, one line per error."""

import errno
import json
import os
import re
import subprocess

import numpy as np
import pytest
from conftest import call, command, complaint, damage, tree
from kinds import complaint_kind

from iobench.dataset.manifest import Manifest
from iobench.dataset.prepare import DEFAULT_FORMATS
from iobench.formats import DTYPES

PROGRESS = re.compile(
    r"(writing|verifying) \S+|decoding|read: .*|"
    r"dataset written to .*; next: iobench run --data-dir .+ --name \S+"
)


@pytest.fixture
def prepare(inside):
    """Run prepare with these arguments in this process; see `ready` for a process of its own."""
    return lambda folder, *arguments: inside("prepare", "--data-dir", folder / "data", *arguments)


@pytest.fixture
def refused(prepare):
    """Return kind and line with which prepare refuses, after checking that it left no dataset."""

    def refused(folder, code, *arguments):
        done = prepare(folder, *arguments)
        kind, line = complaint_kind(done, code), complaint(done, code)
        assert done.stdout == ""
        assert all(PROGRESS.fullmatch(other) for other in done.stderr.splitlines()[:-1]), done.stderr
        assert not any(name.endswith("manifest.json") for name in tree(folder))
        return kind, line

    return refused


def rows(done):
    """Return the table that prepare printed."""
    assert done.returncode == 0, done.stderr
    assert all(PROGRESS.fullmatch(line) for line in done.stderr.splitlines()), done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def ready(tmp_path_factory, warm_python):
    """A folder with a dataset in every format, made through the command line by a process of its own."""
    folder = tmp_path_factory.mktemp("cli")
    where = ("prepare", "--data-dir", folder / "data")
    code = "from iobench.__main__ import main; main()"
    return folder, warm_python(code, *where, "--size", "2_000_000", "--sample-shape", "10x10", "--seed", "3")


class TestHappyPaths:
    def test_names_of_any_script_are_kept_and_others_shown(self, tmp_path, prepare):
        names = ["данные", "数据", "📷", "a b", "a_b", "..", "", "e\u0301", "é"]
        np.savez(tmp_path / "c.npz", **{name: np.full((20, 4), i, "f4") for i, name in enumerate(names)})
        done = prepare(tmp_path, "--source", tmp_path / "c.npz")
        assert done.returncode == 0, done.stderr
        manifest = Manifest.load(tmp_path / "data" / "c")
        assert set(manifest.artifacts) == set(DEFAULT_FORMATS)
        fields = [field.name for field in manifest.schema.fields]
        renamed = manifest.source["renamed"]
        assert [renamed.get(field, field) for field in fields] == names
        assert all(f"{field} from {own!r}" in done.stdout for field, own in renamed.items())
        assert set(fields) - set(renamed) == {"данные", "数据", "a_b", "é"}
        with manifest.opener("npy")() as reader:
            assert {name: array.mean() for name, array in reader.sample(3).items()} == {
                name: i for i, name in enumerate(fields)
            }

    def test_names_that_a_format_cannot_hold_are_shown_with_what_it_stores(self, tmp_path, prepare):
        arrays = {name: np.zeros((20, 4), "f4") for name in ("label", "Label", "данные")}
        np.savez(tmp_path / "c.npz", **arrays)
        formats = ("--format", "npy", "--format", "webdataset")
        for _ in ("written", "present"):
            done = prepare(tmp_path, "--source", tmp_path / "c.npz", *formats)
            shown = rows(done).splitlines()[-1:]
            assert shown == ["webdataset stores Label as label_2"]

    def test_a_first_prepare_prints_its_table(self, ready):
        _, done = ready
        text = rows(done)
        assert all(word in text.splitlines()[0] for word in ("float32-10x10-20000", "2,000,000", "20,000"))
        for words in ("npy", "hdf5", "lmdb", "memmap", "stored", "ratio", "MiB/s", "verified", "yes"):
            assert words in text
        assert re.search(" run --data-dir .+ --name float32-10x10-20000", done.stderr)

    def test_a_second_prepare_skips(self, ready, prepare):
        folder, _ = ready
        before = tree(folder)
        again = prepare(folder, "--size", "2e6", "--sample-shape", "10,10", "--seed", "3")
        assert rows(again).count(" yes, existing") == 4
        assert tree(folder) == before

    def test_verify_names_damaged_variants(self, tmp_path, prepare, inside):
        rows(prepare(tmp_path, "--size", "1MiB", "--name", "d", "--format", "npy", "--format", "lmdb"))
        (file,) = (tmp_path / "data" / "d").glob("npy-*/x.npy")
        damage(file)
        done = inside("verify", "--data-dir", tmp_path / "data")
        assert done.stdout == "lmdb: intact\n"
        assert complaint_kind(done, 1) == "other-content"
        assert str(file.parent) in complaint(done, 1)

    @pytest.mark.parametrize(("size", "elements"), [("1e4", 9984), ("20_000", 19968), ("1MiB", 262144)])
    def test_sizes_are_elements_or_bytes(self, tmp_path, size, elements, prepare):
        assert f" {elements:,} elements" in rows(prepare(tmp_path, "--size", size, "--format", "npy"))

    def test_variants_and_options_go_through(self, tmp_path, prepare):
        arguments = ("--size=1e5", "--dtype=int16", "--compressibility=0.9", "--format=lmdb:codec=lz4")
        text = rows(prepare(tmp_path, *arguments, "--format", "hdf5:chunk_bytes=4096,compression=gzip"))
        assert "codec=lz4" in text
        assert "chunk_bytes=4096,compression=gzip" in text
        body = json.loads((tmp_path / "data/int16-128-781/manifest.json").read_text())
        source = {"kind": "generated", "generator": "PCG64", "seed": 0, "compressibility": 0.9}
        assert body["source"] == source


class TestUsage:
    @pytest.mark.parametrize("size", ["0", "-1", "1.5", "many", "", "0GiB", "1e99", "nan", "9e999999KiB"])
    def test_an_invalid_size(self, tmp_path, size, refused):
        kind, line = refused(tmp_path, 2, f"--size={size}")
        assert kind == ("out-of-range" if size in ("1e99", "9e999999KiB") else "invalid-size")
        assert f"--size {size!r}" in line

    @pytest.mark.parametrize(
        ("arguments", "kind", "word"),
        [
            (["--size", "127"], "out-of-range", "128"),
            (["--dtype", "complex256"], "unknown-dtype", ", ".join(DTYPES)),
            (["--dtype", "object"], "unknown-dtype", "'object'"),
            (["--sample-shape", "0"], "invalid-shape", "--sample-shape"),
            (["--sample-shape", "3xy"], "invalid-shape", "'3xy'"),
            (["--compressibility", "1.5"], "out-of-range", "compressibility"),
            (["--compressibility", "half"], "usage", "compressibility"),
            (["--compressibility", "nan"], "out-of-range", "compressibility"),
            (["--compressibility", "1e400"], "out-of-range", "compressibility"),
            (["--sample-shape", "x".join("1" * 65)], "too-many-axes", "65"),
            (["--sample-shape", "1" + "0" * 30], "out-of-range", "--sample-shape"),
            (["--size", "1e11", "--sample-shape", "40000x40000"], "sample-too-large", "128 MiB"),
            (["--seed", "9223372036854775808"], "out-of-range", "seed"),
            (["--seed", "-1"], "out-of-range", "seed"),
            (["--seed", "x"], "usage", "seed"),
            (["--format", "csv"], "unknown-format", "arrow, "),
            (["--format", "hdf5:zip=1"], "unknown-option", "'zip'"),
            (["--format", "hdf5:compression=zip"], "invalid-value", "none, lzf, gzip"),
            (["--format", "hdf5:chunk_bytes=-1"], "invalid-value", "chunk_bytes"),
            (["--format", "hdf5:compression"], "malformed-option", "OPTION=VALUE"),
            (["--name", "../x"], "invalid-name", "'../x'"),
            (["--name", ""], "invalid-name", "''"),
            (["--frmat", "npy"], "usage", "--frmat"),
            (["more"], "usage", "--source PATH"),
        ],
    )
    def test_an_invalid_argument(self, tmp_path, arguments, kind, word, refused):
        result, line = refused(tmp_path, 2, *arguments)
        assert (result, word in line) == (kind, True), line

    def test_generated_data_and_a_source_exclude_each_other(self, tmp_path, refused):
        kind, line = refused(tmp_path, 2, "--source", tmp_path, "--size", "1e7", "--seed", "1")
        assert kind == "conflicting-options"
        assert "--size, --seed" in line

    def test_an_unknown_command(self):
        done = call("prepar")
        assert complaint_kind(done, 2) == "usage"
        assert "prepar" in complaint(done, 2)

    def test_verify_of_an_unknown_format(self, ready, inside):
        folder, _ = ready
        done = inside("verify", "--data-dir", folder / "data", "--format", "csv")
        assert complaint_kind(done, 2) == "unknown-format"


class TestBadInput:
    def test_more_than_fits_on_the_disk(self, tmp_path, refused):
        kind, line = refused(tmp_path, 1, "--size=1e15", "--format=npy")
        assert kind == "disk-full"
        assert " 3.55 PiB" in line

    def test_a_path_that_is_too_long(self, tmp_path, refused):
        assert os.strerror(errno.ENAMETOOLONG) in refused(tmp_path, 1, "--source", "x" * 300 + ".npy")[1]

    def test_ctrl_c_leaves_nothing(self, tmp_path):
        """The signal comes while the first artifact is being written."""
        run = command("prepare", "--data-dir", tmp_path, "--size", "1e8", "--format", "npy", "--name", "d")
        with subprocess.Popen(run, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr.readline() == "writing npy\n"
            process.send_signal(2)
            rest = process.stderr.read()
        assert process.returncode == 130
        assert "Traceback" not in rest
        assert not (tmp_path / "d").exists()


def test_the_folder_of_the_data_is_never_the_dataset_s(tmp_path, prepare):
    own = tmp_path / "data" / "patients"
    own.mkdir(parents=True)
    for number in range(3):
        np.save(own / f"{number}.npy", np.arange(4.0))
    before = tree(own)
    done = prepare(tmp_path, "--source", own, "--format", "npy")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "data" / "patients-2" / "manifest.json").exists()
    for data_dir, name in ((own.parent, ["--name", "patients"]), (own, ["--name", "d"]), (own / "d", [])):
        done = prepare(tmp_path, "--source", own, "--data-dir", data_dir, *name)
        assert complaint_kind(done) == "nested-folders"
    assert tree(own) == before
