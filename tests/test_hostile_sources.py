"""Sources made to hurt: one clear line or sound data, in bounded memory, whatever is in them."""

import contextlib
import itertools
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import psutil
import pytest
from conftest import call, complaint, tree
from faults import hostile_sources as hostile
from PIL import Image

import iobench
from iobench import open_source
from iobench.base.errors import (
    SourceError,
)
from iobench.dataset import apart
from iobench.dataset.prepare import DEFAULT_FORMATS
from iobench.dataset.sources import checked
from iobench.formats import _hdf5_datasets

PEAK = """
import resource, sys
from faults import hostile_sources as hostile
makers = [*hostile.SLOW, hostile.special_file, hostile.npy_long_header, hostile.image_tiles]
tried, bad = hostile.attack(int(sys.argv[1]), 2 * len(makers), makers)
print(*bad, sep="\\n")
print(*(resource.getrusage(who).ru_maxrss >> 10 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))
"""
MOST_MIB = 1536


@pytest.mark.parametrize(
    "maker", [m for m in hostile.MAKERS if m not in hostile.SLOW], ids=lambda m: m.__name__
)
def test_what_is_made_to_hurt_is_refused_in_one_line_or_read(maker):
    assert hostile.attack(7, 4 if "hdf5" in maker.__name__ else 12, [maker])[1] == []


def test_every_header_that_is_none_is_refused(tmp_path):
    for header, version in itertools.product(hostile.HEADERS, (1, 2, 3)):
        (tmp_path / "a.npy").write_bytes(hostile.npy_bytes(header, bytes(32), version))
        assert hostile.judge(tmp_path / "a.npy", "refuse", tmp_path) is None


def test_memory_stays_bounded_in_this_process_and_in_those_that_it_starts():
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    command = [sys.executable, "-W", "ignore", "-c", PEAK, "3"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})
    *bad, peaks = done.stdout.strip().splitlines()
    assert (bad, done.stderr) == ([], "")
    assert max(map(int, peaks.split())) < MOST_MIB


def _command(process):
    """The command line of a process; empty where it has just ended."""
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


class TestTheJudgeSees:
    """The guard above fails where what it guards is broken."""

    @staticmethod
    def sound(rng, folder):
        np.save(folder / "a.npy", np.arange(4))
        return folder / "a.npy", "refuse"

    def test_a_source_that_should_have_been_refused(self):
        assert "found read" in hostile.attack(1, 1, [self.sound])[1][0]

    def test_an_error_that_is_none_of_ours(self, monkeypatch):
        monkeypatch.setattr("iobench.dataset.sources.numpy_files.read_header", lambda file: 1 / 0)
        assert "ZeroDivisionError" in hostile.attack(1, 1, [self.sound])[1][0]

    def test_a_line_that_says_nothing(self, monkeypatch):
        def refuse(*arguments):
            raise SourceError("no")

        monkeypatch.setattr("iobench.dataset.sources.numpy_files.schema_of", refuse)
        assert "refused with 'no'" in hostile.attack(1, 1, [self.sound])[1][0]


def refused(path, *arguments):
    with pytest.raises(SourceError) as error:
        for _ in checked(open_source(Path(path), *arguments)):
            pass
    return str(error.value)


class TestHdf5:
    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (hostile._external_storage, "external storage"),
            (hostile._virtual, "virtual dataset"),
            (hostile._external_link, "link to another file"),
            (hostile._dangling_link, "soft link to '/nowhere'"),
            (hostile._ragged, "variable length"),
            (hostile._references, "references"),
            (hostile._compound, "compound"),
            (hostile._sparse, "976,562,500 chunks, and 0 are stored"),
            (hostile._never_written, "16,000,000,000,000 bytes, and 0 are stored"),
            (hostile._partly_written, "977 chunks, and 1 are stored"),
            (hostile._huge_chunks, "chunks of 1,024 MiB"),
            (hostile._unknown_filter, "(300), which HDF5_PLUGIN_PATH has no plug-in for"),
            (hostile._many, "600 arrays, and at most 512"),
        ],
    )
    def test_what_is_not_numbers_in_this_file_is_refused_by_name(self, tmp_path, make, words):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            make(file, tmp_path)
        message = refused(tmp_path / "a.h5")
        assert words in message
        assert "x is " in message or make is hostile._many

    def test_a_library_that_takes_too_long_is_stopped(self, tmp_path, monkeypatch):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["x"] = np.arange(9)
        monkeypatch.setattr(apart, "LIMIT_S", 1e-6)
        assert "took longer than" in refused(tmp_path / "a.h5")

    def test_a_library_that_ends_its_process_is_told_of(self, tmp_path, monkeypatch):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["x"] = np.arange(9)
        monkeypatch.setattr(apart, "_START", "import os; os.kill(os.getpid(), 11)")
        assert "ended the library that reads it (Segmentation fault)" in refused(tmp_path / "a.h5")
        monkeypatch.setattr(apart, "_START", "raise SystemExit(3)")
        assert "ended with exit code 3" in refused(tmp_path / "a.h5")
        monkeypatch.setattr(apart, "_START", "print('hello, who are you?')")
        assert "gave an answer that makes no sense" in refused(tmp_path / "a.h5")

    def test_no_process_is_left_when_reading_stops_early(self, tmp_path, monkeypatch):
        monkeypatch.setattr(apart, "BATCH_BYTES", 800)
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["x"] = np.arange(1000)
        batches = open_source(tmp_path / "a.h5").batches()
        assert next(batches)["x"].tolist() == list(range(100))
        (reader,) = [one for one in psutil.Process().children() if "_apart_child" in _command(one)]
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
        assert "more than 10,000 objects" in refused(tmp_path / "a.h5")


class TestChoosing:
    @pytest.fixture
    def file(self, tmp_path):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["train/x"], file["train/y"] = np.arange(6).reshape(3, 2), np.arange(3)
            file["test/x"], file["names"] = np.arange(8).reshape(4, 2), ["one", "two"]
        return tmp_path / "a.h5"

    def taken(self, path):
        source = open_source(Path(path))
        assert (
            sum(len(batch[source.schema.fields[0].name]) for batch in checked(source))
            == source.schema.samples
        )
        return [field.name for field in source.schema.fields]

    def test_arrays_and_groups_are_taken_by_name(self, file):
        assert self.taken(f"{file}::train") == ["train_x", "train_y"]
        assert self.taken(f"{file}::test/x") == ["test_x"]
        assert self.taken(f"{file}::/train/x,train/y") == ["train_x", "train_y"]

    def test_a_refusal_says_what_there_is_and_how(self, file):
        assert "give 'a.h5::NAME,NAME', out of names, test/x, train/x, train/y" in refused(file)
        assert "it has no 'valid'; it has names, test/x" in refused(f"{file}::valid")

    def test_arrays_of_an_archive(self, tmp_path):
        np.savez(tmp_path / "a.npz", x=np.arange(3), y=np.arange(4), z=np.array(["text"]))
        assert self.taken(f"{tmp_path}/a.npz::y") == ["y"]
        assert "'z.npy'" in refused(f"{tmp_path}/a.npz::z") or "z is" in refused(f"{tmp_path}/a.npz::z")

    def test_another_choice_is_other_data_under_another_name(self, file):
        train, test = open_source(Path(f"{file}::train")), open_source(Path(f"{file}::test"))
        assert (train.name, test.name) == ("a-train", "a-test")
        assert train.description["arrays"] == ["train"]

    def test_a_file_whose_name_has_colons_is_a_file(self, tmp_path):
        np.savez(tmp_path / "a::b.npz", x=np.arange(3))
        assert self.taken(tmp_path / "a::b.npz") == ["x"]

    def test_nothing_is_chosen_from_other_sources(self, tmp_path):
        np.save(tmp_path / "a.npy", np.arange(3))
        assert "chooses arrays of" in refused(f"{tmp_path}/a.npy::x")


class TestOddBools:
    """Bytes other than 0 and 1 in an array of truth values become 1, before anything is written."""

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
    def test_every_format_stores_and_proves_them(self, tmp_path, kind):
        source = self.make(tmp_path, kind)
        manifest, _ = iobench.prepare(source, DEFAULT_FORMATS, data_dir=tmp_path / "data")
        assert set(iobench.verify(manifest).values()) == {None}
        for variant in manifest.artifacts:
            with manifest.opener(variant)() as reader:
                raw = reader.batch(slice(0, 8))["x"].view(np.uint8)
            assert raw.tolist() == [[0, 1, 1, 1]] * 8

    def test_a_source_of_ones_own_is_put_right_too(self):
        from conftest import Arrays

        odd = np.frombuffer(self.BYTES, np.bool_).reshape(8, 4)
        swapped = np.arange(8, dtype=">i4")
        (batch,) = checked(Arrays(x=odd, y=swapped))
        assert batch["x"].view(np.uint8).max() == 1
        assert batch["y"].dtype.isnative
        assert batch["y"].tolist() == list(range(8))


class TestWhatChangesMeanwhile:
    @pytest.fixture
    def pets(self, tmp_path):
        (tmp_path / "pets/cat").mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / f"pets/cat/{number}.png")
        return tmp_path / "pets"

    @pytest.mark.parametrize("what", ["removed", "replaced", "fifo"])
    def test_an_image_that_is_no_longer_what_it_was(self, pets, tmp_path, what):
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

    @pytest.mark.parametrize("kind", ["npy", "npz", "h5"])
    def test_a_file_written_to_while_it_is_read(self, tmp_path, kind, monkeypatch):
        for module in ("sources.numpy_files", "apart"):
            monkeypatch.setattr(f"iobench.dataset.{module}.BATCH_BYTES", 800)
        path = tmp_path / f"a.{kind}"
        array = np.arange(1000)
        if kind == "h5":
            with h5py.File(path, "w") as file:
                file["x"] = array
        else:
            (np.save if kind == "npy" else np.savez)(path, array)
        batches = checked(open_source(path))
        next(batches)
        os.utime(path, (1, 1))
        with pytest.raises(SourceError, match="changed while it was read"):
            list(batches)

    def test_a_file_that_is_cut_while_it_is_read(self, tmp_path, monkeypatch):
        monkeypatch.setattr("iobench.dataset.sources.numpy_files.BATCH_BYTES", 800)
        np.save(tmp_path / "a.npy", np.arange(1000))
        batches = checked(open_source(tmp_path / "a.npy"))
        next(batches)
        os.truncate(tmp_path / "a.npy", 500)
        with pytest.raises(SourceError, match="ends early"):
            list(batches)

    def test_nothing_is_kept_of_a_source_that_fails_half_way(self, tmp_path, monkeypatch):
        monkeypatch.setattr("iobench.dataset.sources.numpy_files.BATCH_BYTES", 800)
        np.savez_compressed(tmp_path / "a.npz", x=np.random.default_rng(0).random(1000))
        source = open_source(tmp_path / "a.npz")
        data = bytearray((tmp_path / "a.npz").read_bytes())
        data[len(data) // 2 : len(data) // 2 + 50] = bytes(50)
        stat = (tmp_path / "a.npz").stat()
        with open(tmp_path / "a.npz", "r+b") as file:
            file.write(data)
        os.utime(tmp_path / "a.npz", ns=(stat.st_atime_ns, stat.st_mtime_ns))
        with pytest.raises(SourceError, match="cannot be read"):
            iobench.prepare(source, ["npy", "lmdb"], data_dir=tmp_path / "data")
        assert tree(tmp_path / "data") == {}


class TestPlaces:
    def test_what_may_not_be_read_is_named(self, tmp_path):
        np.save(tmp_path / "a.npy", np.arange(3))
        (tmp_path / "pets/cat").mkdir(parents=True)
        Image.new("L", (4, 4)).save(tmp_path / "pets/cat/1.png")
        for path in (tmp_path / "a.npy", tmp_path / "pets/cat/1.png"):
            path.chmod(0)
        for folder in (tmp_path, *tmp_path.parents):
            if folder.stat().st_uid == os.getuid() and str(folder).startswith("/tmp/"):
                folder.chmod(0o755)
        root = os.geteuid() == 0
        try:
            if root:
                os.seteuid(65534)
            assert "a.npy: Permission denied" in refused(tmp_path / "a.npy")
            assert "Permission denied" in refused(tmp_path / "pets", (4, 4))
        finally:
            if root:
                os.seteuid(0)

    def test_pictures_are_left_out_or_refused_never_passed_over(self, tmp_path):
        (tmp_path / "pets/cat/deeper").mkdir(parents=True)
        Image.new("L", (4, 4)).save(tmp_path / "pets/cat/1.png")
        assert "deeper is a folder" in refused(tmp_path / "pets", (4, 4))
        (tmp_path / "pets/cat/deeper").rmdir()
        Image.new("L", (4, 4)).save(tmp_path / "pets/1.png")
        assert "1.png lies beside" in refused(tmp_path / "pets", (4, 4))

    def test_one_label_will_do(self, tmp_path):
        (tmp_path / "pets/cat").mkdir(parents=True)
        Image.new("L", (4, 4)).save(tmp_path / "pets/cat/1.png")
        assert open_source(tmp_path / "pets", (4, 4)).labels == ["cat"]

    def test_the_largest_sample_is_stated(self, tmp_path):
        assert "at most 128 MiB" in refused_synthetic(size=1 << 40, sample_shape=(1 << 30,))
        assert "33 axes" in refused_synthetic(size=100, sample_shape=(1,) * 32)
        assert "not below 2^63" in refused_synthetic(size=1000, seed=1 << 63)


def refused_synthetic(**arguments):
    with pytest.raises(SourceError) as error:
        iobench.Synthetic(**arguments)
    return str(error.value)


NASTY = "\x1b[2J\x1b[31m[bold]\u202e\n[/]:dog:"


class TestNothingReachesTheTerminalAsIs:
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
        done = call("prepare", "--source", os.fsdecode(path), "--data-dir", tmp_path / "data", "--format=npy")
        assert done.returncode == 0, done.stderr
        again = inside(
            "prepare", "--source", os.fsdecode(path), "--data-dir", os.fsdecode(path), "--format=npy"
        )
        assert "\\xff.npy" in complaint(again, 1)

    def test_tables_and_lines(self, capsys):
        from iobench.terminal import display, tables

        table = tables.plain_table("a [red]title[/]", "n", left=1)
        table.add_row(NASTY, "[/nothing]")
        display.result(NASTY, table)
        display.note(NASTY)
        out, err = capsys.readouterr()
        self.clean(out + err)
        shown = "\\x1b[2J\\x1b[31m[bold]\\u202e\\x0a[/]:dog:"
        assert out.count(shown) == 2
        assert "[/nothing]" in out
        assert "a [red]title[/]" in out
        assert err == shown + "\n"

    def test_a_manifest_of_somebody_else(self, tmp_path, inside):
        (tmp_path / "data/d").mkdir(parents=True)
        (tmp_path / "data/d/manifest.json").write_text('{"manifest_version": 1, "samples": "\\u001b[2J\\n"}')
        done = inside("verify", "--data-dir", tmp_path / "data", "--name", "d")
        self.clean(complaint(done, 1))
