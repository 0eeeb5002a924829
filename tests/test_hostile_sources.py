"""Hostile sources: each gives one clear line or valid data, in bounded memory."""

import contextlib
import errno
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import psutil
import pytest
from conftest import complaint, tree
from faults import hostile_sources as hostile
from hypothesis import settings
from kinds import kind
from PIL import Image

import iobench
from iobench import open_source
from iobench.base.errors import SourceError
from iobench.dataset import sandbox
from iobench.dataset.prepare import DEFAULT_FORMATS
from iobench.dataset.sources import checked
from iobench.formats.hdf5 import datasets as _hdf5_datasets

PEAK = """
import resource, sys
from faults import hostile_sources as hostile
from conftest import peak_mib
makers = [*hostile.SLOW, hostile.special_file, hostile.npy_long_header, hostile.image_tiles]
tried, bad = hostile.attack(int(sys.argv[1]), 2 * len(makers), makers)
print(*bad, sep="\\n")
print(peak_mib(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10)
"""
MOST_MIB = 1536


def crashing(connection, heartbeats, *descriptors):
    os.kill(os.getpid(), signal.SIGSEGV)


def leaving(connection, heartbeats, *descriptors):
    raise SystemExit(3)


def hanging(connection, heartbeats, *descriptors):
    heartbeats.count += 1
    time.sleep(600)


def pickling(connection, heartbeats, *descriptors):
    connection.send(hostile.Trap(os.environ["SPRUNG"]))


def sending_a_list(connection, heartbeats, *descriptors):
    connection.send_bytes(b"[1]")


def sending_too_much(connection, heartbeats, *descriptors):
    connection.send_bytes(bytes(1 << 25))


@pytest.mark.parametrize(
    "maker", [m for m in hostile.MAKERS if m not in hostile.SLOW], ids=lambda m: m.__name__
)
def test_hostile_sources_are_refused_in_one_line_or_read(maker):
    most = 4 if "hdf5" in maker.__name__ else 12
    assert hostile.attack(7, min(most, settings().max_examples // 4), [maker])[1] == []


def test_every_invalid_header_is_refused(tmp_path):
    for header, version in zip(hostile.HEADERS, itertools.cycle((1, 2, 3)), strict=False):
        (tmp_path / "a.npy").write_bytes(hostile.npy_bytes(header, bytes(32), version))
        assert hostile.judge(tmp_path / "a.npy", "refuse", tmp_path) is None


def test_every_invalid_dataset_is_refused(tmp_path):
    (tmp_path / "inner").mkdir()  # some of them make a file beside it
    for make in hostile.HDF5_REFUSED:
        with h5py.File(tmp_path / "inner/a.h5", "w") as file:
            make(file, tmp_path / "inner")
        assert hostile.judge(tmp_path / "inner/a.h5", "refuse", tmp_path / "inner") is None, make


def test_memory_stays_bounded_in_this_process_and_its_children():
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    command = [sys.executable, "-W", "ignore", "-c", PEAK, "3"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})
    *bad, peaks = done.stdout.strip().splitlines()
    assert (bad, done.stderr) == ([], "")
    assert max(map(int, peaks.split())) < MOST_MIB


def _command(process):
    """Return the command line of a process; empty if it has just ended."""
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def test_a_source_that_should_have_been_refused_is_noticed():
    """The checks above fail if the code they check is broken."""

    def sound(rng, folder):
        np.save(folder / "a.npy", np.arange(4))
        return folder / "a.npy", "refuse"

    assert "read" in hostile.attack(1, 1, [sound])[1][0]


def refused(path, name, *arguments):
    """Return the error, of this kind, with which a source is refused."""
    with pytest.raises(SourceError, check=kind(name)) as error:
        for _ in checked(open_source(Path(path), *arguments)):
            pass
    assert "/proc/" not in str(error.value)
    return error.value


class TestHdf5:
    @pytest.mark.parametrize(
        ("make", "cause", "word"),
        [
            (hostile.external_storage, "external-data", "outside its folder"),
            (hostile.virtual, "missing-file", "missing.h5"),
            (hostile.external_link, "external-data", "outside its folder"),
            (hostile.dangling_link, "dangling-link", "'/nowhere'"),
            (hostile.ragged, "unsupported-dtype", "variable"),
            (hostile.references, "unsupported-dtype", "references"),
            (hostile.sparse, "not-stored", "976,562,500 chunks"),
            (hostile.never_written, "not-stored", "16,000,000,000,000 bytes"),
            (hostile.partly_written, "not-stored", "977 chunks"),
            (hostile.huge_chunks, "chunks-too-large", "1,024 MiB"),
            (hostile.unknown_filter, "unknown-codec", "HDF5_PLUGIN_PATH"),
            (hostile.many, "too-many-arrays", "600"),
        ],
    )
    def test_data_other_than_numbers_in_this_file_are_refused_by_name(self, tmp_path, make, cause, word):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            make(file, tmp_path)
        error = refused(tmp_path / "a.h5", cause)
        assert word in str(error)
        assert error.problem.startswith("x: ") or make is hostile.many

    @pytest.mark.parametrize(
        ("worker", "cause", "word"),
        [
            ("hanging", "timeout", ""),
            ("crashing", "reader-crashed", signal.strsignal(signal.SIGSEGV)),
            ("leaving", "reader-crashed", "exit code 3"),
            ("pickling", "invalid-reply", ""),
            ("sending_a_list", "invalid-reply", ""),
            ("sending_too_much", "invalid-reply", ""),
        ],
    )
    def test_a_process_that_ends_hangs_or_sends_anything_else_is_reported(
        self, tmp_path, monkeypatch, worker, cause, word
    ):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["x"] = np.arange(9)
        monkeypatch.setenv("SPRUNG", str(tmp_path / "sprung"))
        if worker == "hanging":
            monkeypatch.setattr(sandbox, "LIMIT_S", 0.2)
        monkeypatch.setattr(sandbox, "WORKER", f"{__name__}:{worker}")
        assert word in refused(tmp_path / "a.h5", cause).problem
        assert not (tmp_path / "sprung").exists()

    @pytest.mark.as_for_users
    def test_no_process_is_left_when_reading_stops_early(self, tmp_path, monkeypatch):
        monkeypatch.setattr(sandbox, "BATCH_BYTES", 800)
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["x"] = np.arange(1000)
        before = set(psutil.Process().children())
        batches = open_source(tmp_path / "a.h5").batches()
        assert next(batches)["x"].tolist() == list(range(100))
        own = set(psutil.Process().children()) - before
        (reader,) = [one for one in own if "sandbox_worker" in _command(one)]
        batches.close()
        assert not reader.is_running()

    def test_links_inside_the_file_are_second_names(self, tmp_path):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["g/x"] = np.arange(6)
            file["again"], file["soft"], file["g/near"] = (
                file["g"],
                h5py.SoftLink("/g/x"),
                h5py.SoftLink("./x"),
            )
        fields = [field.name for field in open_source(tmp_path / "a.h5").schema.fields]
        assert len(fields) == 1

    def test_objects_are_counted(self, tmp_path, monkeypatch):
        assert _hdf5_datasets.MAX_OBJECTS == 10_000
        with h5py.File(tmp_path / "a.h5", "w") as file:
            group = file.create_group("g")
            for number in range(10_001):
                group.create_group(str(number))
        assert "10,000" in str(refused(tmp_path / "a.h5", "unreadable"))


class TestSelection:
    @pytest.fixture
    def file(self, tmp_path):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["train/x"], file["train/y"] = np.arange(6).reshape(3, 2), np.arange(3)
            file["test/x"], file["names"] = np.arange(8).reshape(4, 2), ["one", "two"]
        return tmp_path / "a.h5"

    def selected(self, path):
        source = open_source(Path(path))
        assert (
            sum(len(batch[source.schema.fields[0].name]) for batch in checked(source))
            == source.schema.samples
        )
        return [field.name for field in source.schema.fields]

    def test_arrays_and_groups_are_selected_by_name(self, file):
        assert self.selected(f"{file}::train") == ["train_x", "train_y"]
        assert self.selected(f"{file}::test/x") == ["test_x"]
        assert self.selected(f"{file}::/train/x,train/y") == ["train_x", "train_y"]

    def test_a_refusal_selects_the_arrays_that_can_be_read(self, file):
        hint = refused(file, "unequal-lengths").hint
        selection = hint.partition("append ::")[2].split()[0]
        assert len(self.selected(f"{file}::{selection}")) == 1 + selection.count(",")
        error = refused(f"{file}::valid", "unknown-array")
        assert "'valid'" in error.problem
        assert "names, test/x" in error.hint

    def test_arrays_of_an_archive(self, tmp_path):
        np.savez(tmp_path / "a.npz", x=np.arange(3), y=np.arange(4), z=np.array(["text"]))
        assert self.selected(f"{tmp_path}/a.npz::y") == ["y"]
        assert "z" in refused(f"{tmp_path}/a.npz::z", "unsupported-dtype").problem

    def test_another_selection_is_other_data_under_another_name(self, file):
        train, test = open_source(Path(f"{file}::train")), open_source(Path(f"{file}::test"))
        assert (train.name, test.name) == ("a-train", "a-test")
        assert train.description["arrays"] == ["train"]

    def test_a_file_whose_name_has_colons_is_a_file(self, tmp_path):
        np.savez(tmp_path / "a::b.npz", x=np.arange(3))
        assert self.selected(tmp_path / "a::b.npz") == ["x"]

    def test_other_sources_have_no_selection(self, tmp_path):
        np.save(tmp_path / "a.npy", np.arange(3))
        refused(f"{tmp_path}/a.npy::x", "not-selectable")


class TestOddBools:
    """Bytes other than 0 and 1 in an array of bools become 1 before anything is written."""

    BYTES = bytes([0, 1, 2, 255]) * 8

    def make(self, folder, kind):
        if kind == "npy":
            (folder / "a.npy").write_bytes(
                hostile.npy_bytes(hostile.array_header("'|b1'", "(8, 4)"), self.BYTES)
            )
        elif kind == "npz":
            member = hostile.npy_bytes(hostile.array_header("'|b1'", "(8, 4)"), self.BYTES)
            hostile.npz(folder, [("x.npy", member)])
        else:
            with h5py.File(folder / "a.h5", "w") as file:
                file.create_dataset("x", (8, 4), "?", chunks=(8, 4)).id.write_direct_chunk((0, 0), self.BYTES)
        return open_source(folder / f"a.{kind}")

    @pytest.mark.parametrize("kind", ["npy", "npz", "h5"])
    def test_every_format_stores_and_verifies_them(self, tmp_path, kind):
        source = self.make(tmp_path, kind)
        manifest, _ = iobench.prepare(source, DEFAULT_FORMATS, data_dir=tmp_path / "data")
        assert set(iobench.verify(manifest).values()) == {None}
        for variant in manifest.artifacts:
            with manifest.opener(variant)() as reader:
                raw = reader.batch(slice(0, 8))["x"].view(np.uint8)
            assert raw.tolist() == [[0, 1, 1, 1]] * 8

    def test_a_user_defined_source_is_converted_too(self):
        from conftest import Arrays

        odd = np.frombuffer(self.BYTES, np.bool_).reshape(8, 4)
        swapped = np.arange(8, dtype=">i4")
        (batch,) = checked(Arrays(x=odd, y=swapped))
        assert batch["x"].view(np.uint8).max() == 1
        assert batch["y"].dtype.isnative
        assert batch["y"].tolist() == list(range(8))


class TestChangesWhileReading:
    @pytest.fixture
    def pets(self, tmp_path):
        (tmp_path / "pets/cat").mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / f"pets/cat/{number}.png")
        return tmp_path / "pets"

    @pytest.mark.parametrize("what", ["removed", "replaced", "fifo"])
    def test_an_image_that_changed(self, pets, tmp_path, what):
        source = open_source(pets, (8, 8))
        file = pets / "cat/2.png"
        file.unlink()
        if what == "replaced":
            Image.new("RGB", (9, 9)).save(file)
        elif what == "fifo":
            os.mkfifo(file)
        with pytest.raises(SourceError, match=r"2\.png"):
            iobench.prepare(source, ["npy"], data_dir=tmp_path / "data")
        assert tree(tmp_path / "data") == {}

    @pytest.mark.parametrize("truncated", [False, True])
    @pytest.mark.parametrize("suffix", ["npy", "npz", "h5"])
    def test_a_file_written_to_while_it_is_read(self, tmp_path, suffix, truncated, monkeypatch):
        monkeypatch.setattr(sandbox, "BATCH_BYTES", 800)
        path = tmp_path / f"a.{suffix}"
        array = np.arange(1000)
        if suffix == "h5":
            with h5py.File(path, "w") as file:
                file["x"] = array
        else:
            (np.save if suffix == "npy" else np.savez)(path, array)
        batches = checked(open_source(path))
        next(batches)
        os.truncate(path, 500) if truncated else os.utime(path, (1, 1))
        with pytest.raises(SourceError, check=kind("changed", path=path)):
            list(batches)

    def test_a_source_that_fails_half_way_leaves_nothing(self, tmp_path, monkeypatch):
        monkeypatch.setattr(sandbox, "BATCH_BYTES", 800)
        np.savez_compressed(tmp_path / "a.npz", x=np.random.default_rng(0).random(1000))
        source = open_source(tmp_path / "a.npz")
        data = bytearray((tmp_path / "a.npz").read_bytes())
        data[len(data) // 2 : len(data) // 2 + 50] = bytes(50)
        stat = (tmp_path / "a.npz").stat()
        with open(tmp_path / "a.npz", "r+b") as file:
            file.write(data)
        os.utime(tmp_path / "a.npz", ns=(stat.st_atime_ns, stat.st_mtime_ns))
        with pytest.raises(SourceError, check=kind("damaged", path=tmp_path / "a.npz")):
            iobench.prepare(source, ["npy", "lmdb"], data_dir=tmp_path / "data")
        assert tree(tmp_path / "data") == {}


class TestFolders:
    def test_a_file_without_permission_is_named(self, tmp_path, unprivileged):
        np.save(tmp_path / "a.npy", np.arange(3))
        (tmp_path / "pets/cat").mkdir(parents=True)
        Image.new("L", (4, 4)).save(tmp_path / "pets/cat/1.png")
        for path in (tmp_path / "a.npy", tmp_path / "pets/cat/1.png"):
            path.chmod(0)
        with unprivileged():
            assert refused(tmp_path / "a.npy", "no-permission").path == str(tmp_path / "a.npy")
            denied = refused(tmp_path / "pets", "undecodable", (4, 4))
        assert os.strerror(errno.EACCES) in denied.problem


NASTY = "\x1b[2J\x1b[31m[bold]\u202e\n[/]:dog:"


class TestEscapes:
    def clean(self, text):
        assert not {"\x1b", "\u202e", "\r", "\x9b"} & set(text)
        assert "Traceback" not in text

    @pytest.mark.parametrize("kind", ["npz", "h5"])
    def test_names_of_arrays(self, tmp_path, inside, kind):
        if kind == "npz":
            hostile.npz(tmp_path, [(f"{NASTY}.npy", hostile.member(np.zeros((0, 2))))])
        else:
            with h5py.File(tmp_path / "a.h5", "w") as file:
                file[NASTY.replace("/", "")] = np.zeros((0, 2))
        done = inside("prepare", "--source", tmp_path / f"a.{kind}", "--data-dir", tmp_path / "data")
        self.clean(complaint(done, 1))
        assert "\\x1b[2J" in done.stderr

    def test_names_of_files(self, tmp_path, inside):
        path = tmp_path / f"a{NASTY.replace('/', '')}.npy"
        path.write_bytes(b"nothing")
        self.clean(complaint(inside("prepare", "--source", path, "--data-dir", tmp_path / "data"), 1))

    def test_names_that_are_not_utf_8(self, tmp_path, inside):
        path = os.fsencode(tmp_path) + b"/\xff.npy"
        with open(path, "wb") as file:
            np.save(file, np.arange(1000.0))
        typed = ("prepare", "--source", os.fsdecode(path), "--format=npy", "--data-dir")
        done = inside(*typed, tmp_path / "data")
        assert done.returncode == 0, done.stderr
        again = inside(*typed, os.fsdecode(path))
        assert "\\xff.npy" in complaint(again, 1)

    def test_tables_and_lines(self, capsys):
        from iobench.results.display import table
        from iobench.terminal import display

        display.result(NASTY)
        display.blocks([table(("a [red]title[/]", "n"), [(NASTY, "[/nothing]")])])
        display.note(NASTY)
        out, err = capsys.readouterr()
        self.clean(out + err)
        shown = "\\x1b[2J\\x1b[31m[bold]\\u202e\\x0a[/]:dog:"
        assert out.count(shown) == 2
        assert "[/nothing]" in out
        assert "a [red]title[/]" in out
        assert err == shown + "\n"

    def test_a_foreign_manifest(self, tmp_path, inside):
        (tmp_path / "data/d").mkdir(parents=True)
        (tmp_path / "data/d/manifest.json").write_text('{"manifest_version": 2, "samples": "\\u001b[2J\\n"}')
        done = inside("verify", "--data-dir", tmp_path / "data", "--name", "d")
        self.clean(complaint(done, 1))
