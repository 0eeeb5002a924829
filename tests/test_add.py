"""Data that others wrote: added where they lie, measured there, and never touched."""

import json
import os
import shlex
import struct
from pathlib import Path

import h5py
import lmdb
import numpy as np
import pytest
import torch
from conftest import complaint, numbers, tree
from tensordict import TensorDict, tensorclass

import iobench
from iobench import formats
from iobench.base.errors import (
    ArtifactExists,
    CorruptArtifact,
    SourceError,
)
from iobench.dataset import apart
from iobench.dataset.add import add
from iobench.dataset.apart import Recognised
from iobench.dataset.manifest import Manifest
from iobench.dataset.prepare import prepare
from iobench.formats import Field
from iobench.testing._places import assert_places

SAMPLES = 203
X = np.random.default_rng(0).random((SAMPLES, 5), np.float32)
Y = np.random.default_rng(1).integers(0, 10, SAMPLES)
TOLD = (Field("x", (5,), "float32"), Field("y", (), "int64"))


def write_npy(path):
    path.mkdir()
    np.save(path / "x.npy", X)
    np.save(path / "y.npy", Y)
    return path


def write_hdf5(path):
    with h5py.File(path.with_suffix(".h5"), "w") as file:
        file["train/x"] = X
        file.create_dataset("train/y", data=Y, chunks=(7,), compression="gzip")
        file["test/x"] = X[:3]
    return Path(f"{path}.h5::train")


def write_memmap(path):
    TensorDict({"x": torch.from_numpy(X), "the label": torch.from_numpy(Y)}, [SAMPLES]).memmap(path)
    return path


@tensorclass
class Sample:
    x: torch.Tensor
    y: torch.Tensor


def write_tensorclass(path):
    Sample(x=torch.from_numpy(X), y=torch.from_numpy(Y), batch_size=[SAMPLES]).memmap(path)
    return path


def write_lmdb(path, key=lambda row: f"{row:08}".encode(), values=None, **options):
    """As people write it: in any order, with the number of samples beside them."""
    values = values or [x.tobytes() + y.tobytes() for x, y in zip(X, Y, strict=True)]
    with lmdb.open(str(path), map_size=1 << 24, **options) as env, env.begin(write=True) as txn:
        for row in np.random.default_rng(2).permutation(len(values)).tolist():
            txn.put(key(row), values[row])
        txn.put(b"length", str(len(values)).encode())
    return path


WRITERS = {
    "npy": write_npy,
    "hdf5": write_hdf5,
    "memmap": write_memmap,
    "tensorclass": write_tensorclass,
    "lmdb": write_lmdb,
}
FORMATS = {"tensorclass": "memmap"}


def state(folder):
    """All that can be told of the files below a folder, and what is in them."""
    stats = {path: path.lstat() for path in [folder, *sorted(folder.rglob("*"))]}
    return tree(folder), {p: (s.st_mtime_ns, s.st_ino, s.st_mode, s.st_size) for p, s in stats.items()}


@pytest.fixture
def theirs(tmp_path):
    (tmp_path / "theirs").mkdir()
    return tmp_path / "theirs"


def added(kind, theirs, **options):
    told = TOLD if kind == "lmdb" else ()
    data_dir = theirs.parent / "data"
    path = WRITERS[kind](theirs / kind)
    return add(path, FORMATS.get(kind, kind), name="d", fields=told, data_dir=data_dir, **options)[0]


@pytest.mark.parametrize("kind", WRITERS)
def test_what_others_wrote_is_measured_where_it_lies_and_never_touched(kind, theirs):
    manifest = added(kind, theirs)
    before, variant = state(theirs), FORMATS.get(kind, kind)
    names = [field.name for field in manifest.schema.fields]
    with manifest.opener(variant)() as reader:
        for rows in (slice(0, SAMPLES), np.array([7, 202, 7, 0])):
            batch = reader.batch(rows)
            np.testing.assert_array_equal(batch[names[0]], X[rows])
            np.testing.assert_array_equal(batch[names[1]], Y[rows])
        np.testing.assert_array_equal(reader.sample(11)[names[0]], X[11])
    options = iobench.RunOptions(
        loader=("native", "stream", "dataloader"), order=("random",), rounds="1", limits=False
    )
    found = iobench.run(manifest, options)
    assert (found.failures, len(found.records)) == ({}, 3)
    assert iobench.verify(manifest) == {variant: None}
    loader = iobench.StreamLoader(manifest.root, format=variant, batch_size=50, order="random")
    assert sum(len(batch[names[0]]) for batch in loader) == SAMPLES
    assert state(theirs) == before
    own = {".index", ".lock", "manifest.json"}  # what readers found out may be kept
    assert {path.name for path in manifest.root.iterdir()} <= own


@pytest.mark.parametrize("kind", ["hdf5", "lmdb"])
def test_what_was_added_is_the_source_of_other_formats(kind, theirs, inside):
    manifest = added(kind, theirs)
    before = state(theirs)
    arguments = ("prepare", "--name", "d", "--data-dir", manifest.root.parent, "--format", "npy")
    for again in ((), ("--overwrite",), ("--overwrite", "--format", kind)):
        done = inside(*arguments, *again)
        assert done.returncode == 0, done.stderr
        found = Manifest.load(manifest.root)
        assert set(found.artifacts) == {kind, "npy"}
        assert set(iobench.verify(found).values()) == {None}
        with found.opener("npy")() as reader:
            np.testing.assert_array_equal(reader.batch(slice(0, 9))[manifest.schema.fields[0].name], X[:9])
    assert state(theirs) == before


def test_all_commands_work_on_it(theirs, inside):
    """As one would type them, with the format found out."""
    data = theirs.parent / "data"
    path = write_npy(theirs / "mine")
    before = state(theirs)
    where = ("--data-dir", data)
    done = inside("add", path, *where)
    assert done.returncode == 0, done.stderr
    assert (
        f"the data stay where they lie, {path}; next: iobench run --data-dir {data} --name mine"
        in done.stderr
    )
    assert "hashed where it lies" in done.stdout
    done = inside("run", *where, "--rounds", 1, "--loader", "native", "--no-limits")
    assert done.returncode == 0, done.stderr
    name = next((data / "results").glob("*.jsonl")).stem
    assert "mine" in inside("runs", *where).stdout
    assert "npy: intact" in inside("verify", *where).stdout
    for rest in (["limits", "--seconds", 0.01, *where], ["runs", "delete", name, "--yes", *where]):
        done = inside(*rest)
        assert done.returncode == 0, done.stderr
    done = inside("prepare", "--size", "1e3", "--format", "npy", "--name", "mine", "--overwrite", *where)
    assert done.returncode == 0, done.stderr
    assert state(theirs) == before
    assert not Manifest.load(data / "mine").added


def test_what_should_be_known_of_data_is_said_before_they_are_hashed(theirs, inside):
    zarr = pytest.importorskip("zarr")
    zarr.create_array(theirs / "z.zarr", data=X, chunks=(50, 5))
    (theirs / "z.zarr/c/1/0").unlink()
    done = inside("add", theirs / "z.zarr", "--data-dir", theirs.parent / "data")
    assert done.returncode == 0, done.stderr
    warning, hashing = done.stderr.splitlines()[:2]
    assert warning == "warning: z: 1 of 5 chunks is not stored and reads as the fill value 0.0"
    assert hashing == "hashing zarr"


def test_no_ratio_is_given_of_a_part_of_a_file(theirs, inside):
    def shown(path):
        done = inside("add", path, "--data-dir", theirs.parent / "data")
        assert done.returncode == 0, done.stderr
        words = done.stdout.splitlines()[-1].split()
        assert words[1:4] == ["as", "it", "lies"]
        return len(words), "stored counts all bytes of the files" in done.stderr

    assert shown(write_npy(theirs / "n")) == (13, False)
    assert shown(write_hdf5(theirs / "g")) == (12, True)


class TestChanges:
    @pytest.mark.parametrize("kind", ["hdf5", "lmdb"])
    def test_a_file_that_was_touched_is_told_with_the_command_that_helps(self, kind, theirs, inside):
        manifest = added(kind, theirs)
        file = next(path for path in manifest.path_of(kind).parent.rglob("*") if path.stat().st_size > 5000)
        os.utime(file, (1, 1))
        for command in (["run", "--loader", "native"], ["verify"], ["prepare", "--format", kind]):
            done = inside(*command, "--name", "d", "--data-dir", manifest.root.parent)
            said = complaint(done, 1)
            assert "it changed since it was added to dataset d" in said
        help = said.partition("or hash them again: ")[2]
        done = inside(*shlex.split(help)[1:])
        assert done.returncode == 0, done.stderr
        assert iobench.verify(Manifest.load(manifest.root)) == {kind: None}
        assert Manifest.load(manifest.root).schema == manifest.schema

    def test_data_that_have_gone_are_told_and_the_rest_is_measured(self, theirs, inside):
        manifest = added("hdf5", theirs)
        where = ("--name", "d", "--data-dir", manifest.root.parent)
        assert inside("prepare", "--format", "npy", *where).returncode == 0
        path = manifest.path_of("hdf5")
        path.rename(path.with_name("moved.h5"))
        for more in ((), ("--profile",)):
            loaders = ("--loader", "native", "--loader", "stream")
            done = inside("run", *loaders, "--rounds", "1", *more, *where)
            assert done.returncode == 1
            assert "Traceback" not in done.stderr
            assert "iobench: hdf5 · native; hdf5 · stream: " in done.stderr
            assert "it was added to dataset d" in done.stderr
            assert "npy · native" not in done.stderr.partition("iobench:")[2]
            assert "1 round" in done.stdout
        assert str(path) in complaint(inside("limits", *where), 1)

    @pytest.mark.parametrize(
        ("stored", "words"),
        [(X[5].tobytes(), "content"), (b"\x78\x5e", "expected ")],
        ids=["a value", "a packed chunk"],
    )
    def test_damage_that_no_stamp_shows_is_told_with_what_helps(self, theirs, stored, words):
        manifest, file = added("hdf5", theirs), theirs / "hdf5.h5"
        whole, stat = file.read_bytes(), file.stat()
        file.write_bytes(whole.replace(stored, b"damaged!"[: len(stored)] + stored[8:], 1))
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        options = iobench.RunOptions(loader=("native", "stream", "dataloader"), rounds="1", limits=False)
        said = [*iobench.run(manifest, options).failures.values(), iobench.verify(manifest)["hdf5"]]
        assert len(said) == 4
        if words == "expected ":
            with pytest.raises(CorruptArtifact) as error:
                list(iobench.StreamLoader(manifest.root, format="hdf5", batch_size=50))
            with pytest.raises(CorruptArtifact) as other:
                list(iobench.batches(manifest.root, format="hdf5", loader="native"))
            said += [str(error.value), str(other.value)]
        for line in said:
            assert words in line
            assert "; restore the files from where they came, or hash them again: iobench add" in line
            assert "prepare it again" not in line

    def test_every_kind_of_change_is_seen(self, theirs):
        manifest = added("npy", theirs)
        folder = theirs / "npy"
        same, other = (folder / "x.npy").read_bytes(), X + 1

        def replaced():
            stat = (folder / "x.npy").stat()
            (folder / "new").write_bytes(same)
            os.utime(folder / "new", ns=(stat.st_atime_ns, stat.st_mtime_ns))
            (folder / "new").rename(folder / "x.npy")

        changes = {
            "a file was written to": lambda: np.save(folder / "x.npy", other),
            "a file was written to, moved or replaced": replaced,
            "2 files": lambda: (folder / "z.npy").write_bytes(same),
            "1 file of": lambda: (folder / "y.npy").unlink(),
            "holds no file": lambda: (folder / "x.npy").unlink(),
            "No such file": folder.rmdir,
        }
        for words, change in changes.items():
            assert manifest.unchanged("npy")
            change()
            with pytest.raises(CorruptArtifact, match=words) as error:
                manifest.opener("npy")
            assert "\n" not in str(error.value)
            if "1 file of" in words or "holds" in words:
                break
            if (folder / "z.npy").exists():
                (folder / "z.npy").unlink()
            np.save(folder / "x.npy", X)
            manifest = add(folder, "npy", name="d", data_dir=theirs.parent / "data")[0]

    def test_other_data_do_not_take_the_place_of_those_that_copies_were_made_from(self, theirs):
        manifest = added("npy", theirs)
        data = manifest.root.parent
        copies = prepare(iobench.AddedSource(manifest), ["lmdb"], data_dir=data, name="d")[0]
        np.save(theirs / "npy/x.npy", X + 1)
        with pytest.raises(ArtifactExists, match="holds other data in npy, lmdb"):
            add(theirs / "npy", "npy", name="d", data_dir=data)
        assert copies.path_of("lmdb").exists()
        before = state(theirs)
        found = add(theirs / "npy", "npy", name="d", data_dir=data, overwrite=True)[0]
        assert set(found.artifacts) == {"npy"}
        assert not copies.path_of("lmdb").exists()
        assert state(theirs) == before

    def test_other_fields_are_refused_before_anything_is_hashed(self, theirs, monkeypatch):
        manifest = added("npy", theirs)
        np.save(theirs / "other.npy", np.zeros((5, 2)))
        hashed = []
        monkeypatch.setattr(apart, "checksum", lambda *of: hashed.append(of))
        with pytest.raises(ArtifactExists, match="has npy already"):
            add(theirs / "other.npy", name="d", data_dir=manifest.root.parent)
        safe = write_lmdb(theirs / "t")
        with pytest.raises(ArtifactExists, match="holds other data in npy; give another --name"):
            add(safe, "lmdb", name="d", fields=[Field("z", (28,), "uint8")], data_dir=manifest.root.parent)
        assert not hashed

    def test_the_same_data_in_another_format_join_the_dataset(self, theirs):
        manifest = added("npy", theirs)
        same = write_lmdb(theirs / "t")
        found = add(same, "lmdb", name="d", fields=TOLD, data_dir=manifest.root.parent)[0]
        assert set(found.artifacts) == {"npy", "lmdb"}
        with pytest.raises(ArtifactExists, match="has npy already"):
            add(write_npy(theirs / "other"), "npy", name="d", data_dir=manifest.root.parent)

    def test_a_file_that_changes_while_it_is_hashed(self, theirs, monkeypatch):
        hash = apart.checksum

        def checksum(data, schema, report):
            found = hash(data, schema, report)
            os.utime(theirs / "npy/y.npy", (1, 1))
            return found

        monkeypatch.setattr(apart, "checksum", checksum)
        with pytest.raises(SourceError, match="changed while it was hashed"):
            added("npy", theirs)
        assert tree(theirs.parent / "data") == {}

    def test_prepare_neither_seals_nor_sweeps_it(self, theirs):
        """Where a prepared folder of an old manifest would get a seal, and be removed."""
        manifest = added("npy", theirs)
        before = state(theirs)
        prepare(numbers(), ["npy"], data_dir=manifest.root.parent, name="d", overwrite=True)
        assert state(theirs) == before


class TestHostile:
    def refused(self, path, *words, format="npy", fields=(), **options):
        with pytest.raises(SourceError) as error:
            add(path, format, name="d", fields=fields, data_dir=path.parent.parent / "data", **options)
        said = str(error.value)
        assert "\n" not in said
        assert all(word in said for word in words), said
        assert tree(path.parent.parent / "data") == {}

    def test_a_link_out_of_the_folder(self, theirs):
        write_npy(theirs / "a")
        (theirs / "secret.npy").write_bytes(b"secret")
        (theirs / "a/z.npy").symlink_to(theirs / "secret.npy")
        self.refused(theirs / "a", "z.npy: it is a link out of the folder")

    def test_links_that_go_round(self, theirs):
        write_npy(theirs / "a")
        (theirs / "a/again").symlink_to(theirs / "a")
        self.refused(theirs / "a", "again: it is a link")
        (theirs / "a/again").unlink()
        (theirs / "a/inner").mkdir()
        (theirs / "a/again").symlink_to(theirs / "a/inner")
        self.refused(theirs / "a", "again: it is a link to a folder")

    @pytest.mark.parametrize("inner", [True, False])
    def test_a_fifo(self, theirs, inner):
        write_npy(theirs / "a")
        path = theirs / "a/z.npy" if inner else theirs / "f.npy"
        os.mkfifo(path)
        self.refused(theirs / "a" if inner else path, "it is a FIFO")

    def test_a_folder_without_permission(self, theirs):
        write_npy(theirs / "a")
        (theirs / "a").chmod(0)
        for folder in (theirs.parent, *theirs.parent.parents):
            if folder.stat().st_uid == os.getuid() and str(folder).startswith("/tmp/"):
                folder.chmod(0o755)
        root = os.geteuid() == 0
        try:
            if root:
                os.seteuid(65534)
            self.refused(theirs / "a", "Permission denied")
        finally:
            if root:
                os.seteuid(0)
            (theirs / "a").chmod(0o755)

    @pytest.mark.parametrize("name", [b"a\xff", b"a\x1b[31m", "a‮b".encode()])
    def test_names_that_cannot_be_kept(self, theirs, inside, name):
        path = os.fsdecode(os.fsencode(theirs) + b"/" + name)
        write_npy(Path(path))
        done = inside("add", path, "--format", "npy", "--name", "d", "--data-dir", theirs.parent / "data")
        assert "control characters" in complaint(done, 1)

    def test_two_formats_that_recognise_it(self, theirs, monkeypatch):
        monkeypatch.setattr(apart, "recognise", lambda path: Recognised(("mds", "litdata"), {}))
        self.refused(write_npy(theirs / "a"), "mds and litdata both recognise it", "--format", format=None)

    def test_nothing_that_any_format_recognises(self, theirs):
        (theirs / "a").mkdir()
        (theirs / "a/readme.txt").write_text("hello")
        self.refused(theirs / "a", "no format recognises it", "hdf5", "lmdb", "memmap", "npy", format=None)

    def test_a_folder_in_which_several_data_lie_is_not_guessed(self, theirs, inside):
        parquet = pytest.importorskip("pyarrow.parquet")
        table = pytest.importorskip("pyarrow").table({"x": X[:, 0]})
        (theirs / "a").mkdir()
        parquet.write_table(table, theirs / "a/t.parquet")
        assert apart.recognise(theirs / "a").mixed == ""
        write_npy(theirs / "a/npy")
        write_hdf5(theirs / "a/g")
        (theirs / "a/readme.txt").write_text("hello")
        said = "parquet recognises it, and in it lie g.h5 (hdf5), npy (npy), too; name the one to take"
        self.refused(theirs / "a", said, "or say with --format what all of it is", format=None)
        with pytest.raises(SourceError, match="parquet recognises it, and in it lie"):
            iobench.open_source(theirs / "a")
        (theirs / "a/t.parquet").write_bytes(b"hello")
        said = "as a whole; it holds g.h5 (hdf5), npy (npy), t.parquet (parquet): name the one to take"
        self.refused(theirs / "a", said, format=None)
        parquet.write_table(table, theirs / "a/t.parquet")
        added = add(theirs / "a", "parquet", name="p", data_dir=theirs.parent / "data")[0]
        assert added.schema.samples == SAMPLES

    def test_of_very_many_files_alike_some_are_looked_at_and_each_other_kind(self, theirs):
        write_npy(theirs / "a")
        for number in range(150):
            (theirs / f"a/{number:03}.npy").symlink_to("x.npy")
        write_hdf5(theirs / "a/z")
        assert apart.recognise(theirs / "a").beside["z.h5"] == "hdf5"

    def test_what_prepare_reads_is_said_to_be_and_other_data_not(self, theirs):
        (theirs / "a.csv").write_text("x\n1\n")
        self.refused(theirs / "a.csv", f"; 'iobench prepare --source {theirs}/a.csv' reads it", format=None)
        (theirs / "a.tar").write_text("hello")
        with pytest.raises(SourceError) as error:
            add(theirs / "a.tar", data_dir=theirs.parent / "data")
        assert str(error.value).endswith("say so with --format, else write it in one of them first")
        pictures = pytest.importorskip("PIL.Image")
        (theirs / "p").mkdir()
        pictures.new("L", (4, 4)).save(theirs / "p/1.png")
        self.refused(theirs / "p", f"; 'iobench prepare --source {theirs}/p' reads it", format=None)

    def test_another_format_than_the_data_are_in_is_told_which_they_are_in(self, theirs):
        write_npy(theirs / "a")
        said = "; npy recognises it: give --format npy, or none"
        self.refused(
            theirs / "a", "a: it is a folder without data.h5, and no HDF5 file" + said, format="hdf5"
        )
        np.save(theirs / "f.npy", np.asfortranarray(X))
        with pytest.raises(SourceError, match=r"Fortran order(?!.*recognises)"):
            add(theirs / "f.npy", "npy", data_dir=theirs.parent / "data")

    def test_nothing_at_all(self, theirs):
        self.refused(theirs / "a", "No such file")
        (theirs / "a").mkdir()
        self.refused(theirs / "a", "holds no file")

    def test_iobench_s_own_folders(self, theirs):
        path = write_npy(theirs / "a")
        with pytest.raises(SourceError, match="would lie in it"):
            add(path, "npy", name="d", data_dir=path / "data")
        manifest = prepare(numbers(), ["npy"], data_dir=theirs.parent / "data", name="own")[0]
        with pytest.raises(SourceError, match="prepare wrote it"):
            add(manifest.path_of("npy"), "npy", name="d", data_dir=theirs.parent / "data")

    def test_values_that_would_have_to_be_unpickled(self, theirs):
        import pickle

        values = [pickle.dumps((x, int(y))) for x, y in zip(X, Y, strict=True)]
        path = write_lmdb(theirs / "p", values=values)
        self.refused(path, "pickled, and nothing is unpickled", format="lmdb", fields=TOLD)

    def test_samples_of_several_lengths(self, theirs):
        path = write_lmdb(theirs / "v", values=[bytes(n + 1) for n in range(9)])
        self.refused(
            path, "1 to 9 bytes", "pad them, or cut them to a fixed crop", format="lmdb", fields=TOLD
        )

    def test_values_that_say_nothing_or_are_told_wrongly(self, theirs):
        path = write_lmdb(theirs / "l")
        self.refused(path, "28 bytes do not say", "--field", format="lmdb")
        self.refused(path, "make 20: tell all that is in a value", format="lmdb", fields=TOLD[:1])

    def test_keys_that_are_no_numbers_or_not_all(self, theirs):
        named = write_lmdb(theirs / "k", key=lambda row: f"img{row:09}".encode())
        self.refused(named, "its first key is b'img000000000'", format="lmdb", fields=TOLD)
        gaps = write_lmdb(theirs / "g", key=lambda row: struct.pack(">I", row + (row > 5)))
        self.refused(gaps, "203 samples, and the last is number 203", format="lmdb", fields=TOLD)

    def test_truth_values_that_are_neither(self, theirs):
        odd = np.arange(24, dtype=np.uint8).reshape(6, 4).view(bool)
        np.save(theirs / "odd.npy", odd)
        self.refused(theirs / "odd.npy", "other than the bytes 0 and 1")

    def test_arrays_that_do_not_lie_as_they_are_read(self, theirs):
        np.save(theirs / "f.npy", np.asfortranarray(X))
        self.refused(theirs / "f.npy", "Fortran order")
        np.save(theirs / "o.npy", np.array([{}]), allow_pickle=True)
        self.refused(theirs / "o.npy", "cannot be read as .npy")

    def test_a_tensordict_with_more_than_tensors(self, theirs):
        TensorDict({"x": torch.from_numpy(X), "name": "text"}, [SAMPLES]).memmap(theirs / "t")
        self.refused(theirs / "t", "name is NonTensorData", format="memmap")
        meta = theirs / "t/meta.json"
        said = json.loads(meta.read_text())
        meta.write_text(json.dumps({"x": said["x"], "_type": "<class 'os.system'>"}))
        self.refused(theirs / "t", "saved from <class 'os.system'>", format="memmap")

    def test_an_lmdb_file_that_is_damaged_ends_nobody(self, theirs):
        path = write_lmdb(theirs / "l") / "data.mdb"
        whole = path.read_bytes()
        rng = np.random.default_rng(4)
        for _ in range(4):
            data = np.frombuffer(whole, np.uint8).copy()
            data[rng.integers(4096 * 2, len(data), 400)] = 255
            path.write_bytes(data.tobytes())
            with pytest.raises(SourceError):
                add(theirs / "l", "lmdb", name="d", fields=TOLD, data_dir=theirs.parent / "data")

    @pytest.mark.parametrize(
        "field", ["x", "x=float32[3", "x=float33[3]", "=int64", "x=int64[0]", "x=int64[a]"]
    )
    def test_fields_that_are_none_are_usage_errors(self, theirs, inside, field):
        assert "--field" in complaint(inside("add", theirs, "--field", field), 2)


KEYS = {
    "8 digits": lambda row: f"{row:08}".encode(),
    "5 digits from 1": lambda row: f"{row + 1:05}".encode(),
    "digits": lambda row: str(row).encode(),
    "4 bytes": lambda row: struct.pack(">I", row),
    "8 bytes": lambda row: struct.pack(">Q", row),
}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("large", [False, True])
def test_lmdb_as_people_write_it(theirs, key, large):
    """Values within pages and in pages of their own, in a folder and in a file alone, whatever the keys."""
    lmdb_format = formats.get("lmdb")
    x = np.tile(X, 200 if large else 1)
    path = write_lmdb(theirs / "l", KEYS[key], [one.tobytes() for one in x], subdir=not large)
    told = (Field("x", x.shape[1:], "float32"),)
    assert lmdb_format.recognises(path)
    schema = lmdb_format.schema_of(path, told)
    lmdb_format.check(path, schema)
    with lmdb_format.open(path, schema) as reader:
        np.testing.assert_array_equal(reader.batch(slice(3, SAMPLES))["x"], x[3:])
        np.testing.assert_array_equal(reader.batch(np.array([9, 0, 202]))["x"], x[[9, 0, 202]])
        assert_places(reader, {"x": x})


def test_lmdb_with_another_key_among_those_of_samples(theirs):
    path = write_lmdb(theirs / "l", values=[one.tobytes() for one in X])
    with lmdb.open(str(path), map_size=1 << 24) as env, env.begin(write=True) as txn:
        txn.put(b"00000005x", X[0].tobytes())
    lmdb_format, told = formats.get("lmdb"), (Field("x", X.shape[1:], "float32"),)
    with lmdb_format.open(path, lmdb_format.schema_of(path, told)) as reader:
        np.testing.assert_array_equal(reader.batch(slice(0, SAMPLES))["x"], X)
        assert_places(reader, {"x": X})


def test_an_lmdb_that_was_cut_off_is_said_to_be_that(theirs):
    path = write_lmdb(theirs / "l")
    os.truncate(path / "data.mdb", 3 * 4096)
    with pytest.raises(SourceError, match=r"data.mdb: expected at least \d+ bytes, found 12288 bytes"):
        add(path, name="d", fields=TOLD, data_dir=theirs.parent / "data")


def test_an_index_of_any_size_ends_nobody(theirs):
    (theirs / "mds").mkdir()
    with open(theirs / "mds/index.json", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(SourceError, match="no format recognises it"):
        add(theirs / "mds", name="d", data_dir=theirs.parent / "data")


def test_a_folder_of_thousands_of_files_has_a_stamp_of_one_size(theirs):
    manifest = added("npy", theirs)
    for number in range(3000):
        (theirs / f"npy/{number}.txt").touch()
    found = add(theirs / "npy", "npy", name="d", data_dir=manifest.root.parent)[0]
    assert found.added["npy"].stamp.files == 3002
    assert (found.root / "manifest.json").stat().st_size < 2000
    (theirs / "npy/77.txt").write_text("more")
    with pytest.raises(CorruptArtifact, match="changed since"):
        found.opener("npy")


def test_old_iobench_would_not_take_it_for_prepared(theirs):
    manifest = added("npy", theirs)
    assert json.loads((manifest.root / "manifest.json").read_text())["manifest_version"] == 3
