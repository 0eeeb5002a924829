"""Existing data: added in place, measured there, and never touched."""

import errno
import json
import os
import pickle
import shlex
import struct
from pathlib import Path
from typing import ClassVar

import h5py
import lmdb
import numpy as np
import pytest
import torch
from conftest import complaint, damage, numbers, tree
from kinds import complaint_kind, has, refused_as
from tensordict import TensorDict, tensorclass

import iobench
from iobench import formats
from iobench.base.errors import REPREPARE, ArtifactExists, CorruptArtifact, SourceError, WrongContent
from iobench.dataset import sandbox
from iobench.dataset.add import add
from iobench.dataset.manifest import Manifest
from iobench.dataset.prepare import prepare
from iobench.dataset.sandbox import SniffResult
from iobench.formats import Field
from iobench.formats.folders import LABELLED
from iobench.testing.placements import assert_placements

SAMPLES = 203
X = np.random.default_rng(0).random((SAMPLES, 5), np.float32)
Y = np.random.default_rng(1).integers(0, 10, SAMPLES)
GIVEN = (Field("x", (5,), "float32"), Field("y", (), "int64"))


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
    """Write as is usual: in any order, with the number of samples in an extra key."""
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
    """Return content and status of all files below a folder."""
    stats = {path: path.lstat() for path in [folder, *sorted(folder.rglob("*"))]}
    return tree(folder), {p: (s.st_mtime_ns, s.st_ino, s.st_mode, s.st_size) for p, s in stats.items()}


@pytest.fixture
def external(tmp_path):
    (tmp_path / "external").mkdir()
    return tmp_path / "external"


def added(kind, external, **options):
    fields = GIVEN if kind == "lmdb" else ()
    data_dir = external.parent / "data"
    path = WRITERS[kind](external / kind)
    return add(path, FORMATS.get(kind, kind), name="d", fields=fields, data_dir=data_dir, **options)[0]


@pytest.mark.parametrize("kind", WRITERS)
def test_existing_data_are_measured_in_place_and_never_touched(kind, external):
    manifest = added(kind, external)
    before, variant = state(external), FORMATS.get(kind, kind)
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
    run = iobench.run(manifest, options)
    assert (run.failures, len(run.records)) == ({}, 3)
    assert iobench.verify(manifest) == {variant: None}
    loader = iobench.StreamLoader(manifest.root, format=variant, batch_size=50, order="random")
    assert sum(len(batch[names[0]]) for batch in loader) == SAMPLES
    assert state(external) == before
    own = {".index", ".lock", "manifest.json"}
    assert {path.name for path in manifest.root.iterdir()} <= own


@pytest.mark.parametrize("kind", ["hdf5", "lmdb"])
def test_added_data_are_the_source_of_other_formats(kind, external, inside):
    manifest = added(kind, external)
    before = state(external)
    arguments = ("prepare", "--name", "d", "--data-dir", manifest.root.parent, "--format", "npy")
    for again in ((), ("--overwrite",), ("--overwrite", "--format", kind)):
        done = inside(*arguments, *again)
        assert done.returncode == 0, done.stderr
        loaded = Manifest.load(manifest.root)
        assert set(loaded.artifacts) == {kind, "npy"}
        assert set(iobench.verify(loaded).values()) == {None}
        with loaded.opener("npy")() as reader:
            np.testing.assert_array_equal(reader.batch(slice(0, 9))[manifest.schema.fields[0].name], X[:9])
    assert state(external) == before


def test_all_commands_work_on_it(external, inside):
    """Commands as a user types them, with a sniffed format."""
    data = external.parent / "data"
    path = write_npy(external / "mine")
    before = state(external)
    where = ("--data-dir", data)
    done = inside("add", path, *where)
    assert done.returncode == 0, done.stderr
    assert f" run --data-dir {data} --name mine" in done.stderr
    assert str(path) in done.stderr
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
    assert state(external) == before
    assert not Manifest.load(data / "mine").added


def test_notes_about_data_are_printed_before_they_are_hashed(external, inside):
    zarr = pytest.importorskip("zarr")
    zarr.create_array(external / "z.zarr", data=X, chunks=(50, 5))
    (external / "z.zarr/c/1/0").unlink()
    done = inside("add", external / "z.zarr", "--data-dir", external.parent / "data")
    assert done.returncode == 0, done.stderr
    warning, hashing = done.stderr.splitlines()[:2]
    assert warning.startswith("warning[missing-chunks]: z: ")
    assert hashing == "hashing zarr"


def test_a_part_of_a_file_has_no_ratio(external, inside):
    def shown(path):
        done = inside("add", path, "--data-dir", external.parent / "data")
        assert done.returncode == 0, done.stderr
        words = done.stdout.splitlines()[-1].split()
        assert words[1] == "existing"
        return len(words), "stored: " in done.stderr

    assert shown(write_npy(external / "n")) == (10, False)
    assert shown(write_hdf5(external / "g")) == (9, True)


class TestChanges:
    @pytest.mark.parametrize("kind", ["hdf5", "lmdb"])
    def test_a_touched_file_is_reported_with_the_command_that_helps(self, kind, external, inside):
        manifest = added(kind, external)
        file = next(path for path in manifest.path_of(kind).parent.rglob("*") if path.stat().st_size > 5000)
        os.utime(file, (1, 1))
        for command in (["run", "--loader", "native"], ["verify"], ["prepare", "--format", kind]):
            done = inside(*command, "--name", "d", "--data-dir", manifest.root.parent)
            assert complaint_kind(done, 1) == "changed"
        with pytest.raises(CorruptArtifact) as error:
            manifest.opener(kind)
        assert error.value.kind == "changed"
        command = error.value.hint[error.value.hint.index("iobench add") :]
        done = inside(*shlex.split(command)[1:])
        assert done.returncode == 0, done.stderr
        assert iobench.verify(Manifest.load(manifest.root)) == {kind: None}
        assert Manifest.load(manifest.root).schema == manifest.schema

    def test_removed_data_are_reported_and_the_rest_is_measured(self, external, inside):
        manifest = added("hdf5", external)
        where = ("--name", "d", "--data-dir", manifest.root.parent)
        assert inside("prepare", "--format", "npy", *where).returncode == 0
        path = manifest.path_of("hdf5")
        path.rename(path.with_name("moved.h5"))
        for more in ((), ("--profile",)):
            loaders = ("--loader", "native", "--loader", "stream")
            done = inside("run", *loaders, "--rounds", "1", *more, *where)
            assert done.returncode == 1
            assert "Traceback" not in done.stderr
            cases = "hdf5 · native; hdf5 · stream"
            _, _, line = done.stderr.partition("iobench: error[missing-file]: ")
            assert line.startswith(f"{cases}: {path}: ")
            assert "npy · native" not in line
            assert "1 round" in done.stdout
        assert str(path) in complaint(inside("limits", *where), 1)

    @pytest.mark.parametrize(
        ("stored", "cause"),
        [(X[5].tobytes(), WrongContent), (b"\x78\x5e", CorruptArtifact)],
        ids=["a value", "a packed chunk"],
    )
    def test_damage_that_no_stamp_shows_is_reported_with_the_remedy(self, external, stored, cause):
        manifest, file = added("hdf5", external), external / "hdf5.h5"
        whole, stat = file.read_bytes(), file.stat()
        file.write_bytes(whole.replace(stored, b"damaged!"[: len(stored)] + stored[8:], 1))
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        options = iobench.RunOptions(loader=("native", "stream", "dataloader"), rounds="1", limits=False)
        errors = [*iobench.run(manifest, options).failures.values(), iobench.verify(manifest)["hdf5"]]
        assert len(errors) == 4
        if cause is CorruptArtifact:
            with pytest.raises(CorruptArtifact) as error:
                list(iobench.StreamLoader(manifest.root, format="hdf5", batch_size=50))
            with pytest.raises(CorruptArtifact) as other:
                list(iobench.batches(manifest.root, format="hdf5", loader="native"))
            errors += [error.value, other.value]
        for error in errors:
            assert isinstance(error, cause)
            assert "iobench add" in error.hint
            assert REPREPARE not in str(error)

    @pytest.mark.parametrize("word", ["rewritten", "replaced", "3 files", "1 file "])
    def test_every_kind_of_change_is_detected(self, external, word):
        manifest = added("npy", external)
        folder = external / "npy"
        same = (folder / "x.npy").read_bytes()

        def replaced():
            stat = (folder / "x.npy").stat()
            (folder / "new").write_bytes(same)
            os.utime(folder / "new", ns=(stat.st_atime_ns, stat.st_mtime_ns))
            (folder / "new").rename(folder / "x.npy")

        changes = {
            "rewritten": lambda: np.save(folder / "x.npy", X + 1),
            "replaced": replaced,
            "3 files": lambda: (folder / "z.npy").write_bytes(same),
            "1 file ": lambda: (folder / "y.npy").unlink(),
        }
        assert manifest.unchanged("npy")
        changes[word]()
        with refused_as("changed", match=word, path=folder):
            manifest.opener("npy")

    def test_an_empty_folder_and_a_removed_one_are_detected(self, external):
        manifest, folder = added("npy", external), external / "npy"
        for file in folder.iterdir():
            file.unlink()
        with refused_as("empty", path=folder):
            manifest.opener("npy")
        folder.rmdir()
        with refused_as("missing-file", path=folder):
            manifest.opener("npy")

    def test_other_data_do_not_replace_those_that_copies_were_made_from(self, external):
        manifest = added("npy", external)
        data = manifest.root.parent
        copies = prepare(iobench.AddedSource(manifest), ["lmdb"], data_dir=data, name="d")[0]
        np.save(external / "npy/x.npy", X + 1)
        with refused_as("other-data", ArtifactExists, match="npy, lmdb"):
            add(external / "npy", "npy", name="d", data_dir=data)
        assert copies.path_of("lmdb").exists()
        before = state(external)
        new = add(external / "npy", "npy", name="d", data_dir=data, overwrite=True)[0]
        assert set(new.artifacts) == {"npy"}
        assert not copies.path_of("lmdb").exists()
        assert state(external) == before

    def test_other_fields_are_refused_before_anything_is_hashed(self, external, monkeypatch):
        manifest = added("npy", external)
        np.save(external / "other.npy", np.zeros((5, 2)))
        hashed = []
        monkeypatch.setattr(sandbox, "hashes", lambda *of: hashed.append(of))
        with refused_as("variant-exists", ArtifactExists):
            add(external / "other.npy", name="d", data_dir=manifest.root.parent)
        safe = write_lmdb(external / "t")
        with refused_as("other-data", ArtifactExists):
            add(safe, "lmdb", name="d", fields=[Field("z", (28,), "uint8")], data_dir=manifest.root.parent)
        assert not hashed

    def test_the_same_data_in_another_format_join_the_dataset(self, external):
        manifest = added("npy", external)
        same = write_lmdb(external / "t")
        both = add(same, "lmdb", name="d", fields=GIVEN, data_dir=manifest.root.parent)[0]
        assert set(both.artifacts) == {"npy", "lmdb"}
        with refused_as("variant-exists", ArtifactExists):
            add(write_npy(external / "other"), "npy", name="d", data_dir=manifest.root.parent)

    def test_a_file_that_changes_while_it_is_hashed(self, external, monkeypatch):
        hash = sandbox.hashes

        def hashes(*arguments):
            yield from hash(*arguments)
            os.utime(external / "npy/y.npy", (1, 1))

        monkeypatch.setattr(sandbox, "hashes", hashes)
        with refused_as("changed", SourceError, path=external / "npy"):
            added("npy", external)
        assert tree(external.parent / "data") == {}

    def test_prepare_neither_seals_nor_sweeps_it(self, external):
        manifest = added("npy", external)
        before = state(external)
        prepare(numbers(), ["npy"], data_dir=manifest.root.parent, name="d", overwrite=True)
        assert state(external) == before


class TestHostile:
    def refused(self, data, name, format="npy", fields=(), **expected):
        """Return the error, of this kind and in one line, with which data are refused."""
        with refused_as(name, SourceError, **expected) as error:
            add(data, format, name="d", fields=fields, data_dir=data.parent.parent / "data")
        assert tree(data.parent.parent / "data") == {}
        return error.value

    @pytest.mark.parametrize(
        ("name", "target", "cause"),
        [
            ("z.npy", "../secret.npy", "link-outside"),
            ("again", "../a", "link-outside"),
            ("again", "inner", "link-to-folder"),
        ],
    )
    def test_links_that_lead_elsewhere(self, external, name, target, cause):
        write_npy(external / "a")
        (external / "secret.npy").write_bytes(b"secret")
        (external / "a/inner").mkdir()
        (external / "a" / name).symlink_to(target)
        self.refused(external / "a", cause, path=external / "a" / name)

    @pytest.mark.parametrize("inner", [True, False])
    def test_a_fifo(self, external, inner):
        write_npy(external / "a")
        path = external / "a/z.npy" if inner else external / "f.npy"
        os.mkfifo(path)
        self.refused(external / "a" if inner else path, "not-a-file", path=path)

    def test_a_folder_without_permission(self, external, unprivileged):
        write_npy(external / "a").chmod(0)
        with unprivileged():
            error = self.refused(external / "a", "source", path=external / "a")
        assert error.problem == os.strerror(errno.EACCES)
        (external / "a").chmod(0o755)

    @pytest.mark.parametrize("name", [b"a\xff", b"a\x1b[31m", "a‮b".encode()])
    def test_names_that_cannot_be_stored(self, external, inside, name):
        path = os.fsdecode(os.fsencode(external) + b"/" + name)
        write_npy(Path(path))
        done = inside("add", path, "--format", "npy", "--name", "d", "--data-dir", external.parent / "data")
        assert complaint_kind(done, 1) == "invalid-name"

    def test_two_formats_that_recognise_it(self, external, monkeypatch):
        both = SniffResult(("mds", "litdata"), {})
        monkeypatch.setattr(sandbox, "sniff", lambda path, files, selected: both)
        problem, hint = has("mds", "litdata"), has("--format mds")
        self.refused(write_npy(external / "a"), "ambiguous-format", format=None, problem=problem, hint=hint)
        with refused_as("ambiguous-format", SourceError, hint=has("--source-format mds")):
            iobench.open_source(external / "a")
        assert iobench.open_source(external / "a", format="npy").schema.samples == SAMPLES

    def test_data_that_no_format_recognises(self, external):
        (external / "a").mkdir()
        (external / "a/readme.txt").write_text("hello")
        tried = has("hdf5", "lmdb", "memmap", "npy")
        self.refused(external / "a", "unrecognized", format=None, problem=tried)

    def test_a_folder_of_several_kinds_of_data_is_not_guessed(self, external):
        parquet = pytest.importorskip("pyarrow.parquet")
        table = pytest.importorskip("pyarrow").table({"x": X[:, 0]})
        path = external / "a"
        path.mkdir()
        parquet.write_table(table, path / "t.parquet")
        assert sandbox.sniff(path).ambiguity == ""
        write_npy(path / "npy")
        write_hdf5(path / "g")
        (path / "readme.txt").write_text("hello")
        members, hint = has("g.h5 (hdf5)", "npy (npy)"), has("--format parquet")
        self.refused(path, "ambiguous-format", format=None, problem=members, hint=hint)
        with refused_as("ambiguous-format", SourceError):
            iobench.open_source(path)
        (path / "t.parquet").write_bytes(b"hello")
        members = has(*members, "t.parquet (parquet)")
        self.refused(path, "ambiguous-format", format=None, problem=members)
        parquet.write_table(table, path / "t.parquet")
        added = add(path, "parquet", name="p", data_dir=external.parent / "data")[0]
        assert added.schema.samples == SAMPLES

    def test_of_very_many_similar_files_only_some_are_sniffed(self, external):
        write_npy(external / "a")
        for number in range(150):
            (external / f"a/{number:03}.npy").hardlink_to(external / "a/x.npy")
        write_hdf5(external / "a/z")
        assert sandbox.sniff(external / "a").members["z.h5"] == "hdf5"

    def test_the_hint_for_data_that_prepare_converts(self, external):
        def hint(path):
            return self.refused(external / path, "unrecognized", format=None).hint

        (external / "a.csv").write_text("x\n1\n")
        assert f"prepare --source {external}/a.csv" in hint("a.csv")
        (external / "a.tar").write_text("hello")
        assert "prepare" not in hint("a.tar")
        pictures = pytest.importorskip("PIL.Image")
        (external / "p").mkdir()
        for name in ("image", "mask"):
            pictures.new("L", (4, 4)).save(external / f"p/{name}.png")
        assert LABELLED in hint("p")

    def test_the_hint_for_too_few_tokens_to_be_recognized(self, external):
        np.arange(500, dtype=np.uint16).tofile(external / "short.bin")
        hint = self.refused(external / "short.bin", "unrecognized", format=None).hint
        assert hint.partition(";")[0].split()[-2:] == ["--format", "tokens"]
        assert self.refused(external / "short.bin", "too-few-tokens", format="tokens:dtype=uint16").hint

    def test_a_wrong_format_is_refused_with_the_right_one(self, external):
        write_npy(external / "a")
        assert "--format npy" in self.refused(external / "a", "unreadable", format="hdf5").hint
        np.save(external / "f.npy", np.asfortranarray(X))
        assert "--format" not in str(self.refused(external / "f.npy", "fortran-order"))

    def test_nothing_at_all(self, external):
        self.refused(external / "a", "missing-file", path=external / "a")
        (external / "a").mkdir()
        self.refused(external / "a", "empty")

    def test_iobench_s_own_folders(self, external):
        path = write_npy(external / "a")
        with refused_as("nested-folders", SourceError):
            add(path, "npy", name="d", data_dir=path / "data")
        manifest = prepare(numbers(), ["npy"], data_dir=external.parent / "data", name="own")[0]
        with refused_as("managed-data", SourceError):
            add(manifest.path_of("npy"), "npy", name="d", data_dir=external.parent / "data")

    LMDB: ClassVar = {
        "pickles": ({"values": [pickle.dumps(x) for x in X]}, "encoded-values", "pickles"),
        "several lengths": ({"values": [bytes(n + 1) for n in range(9)]}, "unequal-shapes", "1 to 9 bytes"),
        "names": ({"key": lambda row: f"img{row:09}".encode()}, "not-sample-keys", "b'img000000000'"),
        "a gap": ({"key": lambda row: struct.pack(">I", row + (row > 5))}, "missing-samples", "203"),
    }

    @pytest.mark.parametrize(("options", "cause", "found"), LMDB.values(), ids=LMDB)
    def test_an_lmdb_without_a_sample_of_these_fields_for_each_number(self, external, options, cause, found):
        path = write_lmdb(external / "l", **options)
        self.refused(path, cause, format="lmdb", fields=GIVEN, found=has(found))

    def test_values_without_fields_or_with_wrong_ones(self, external):
        path = write_lmdb(external / "l")
        assert "--field" in self.refused(path, "fields-needed", format="lmdb").hint
        self.refused(path, "fields-differ", format="lmdb", fields=GIVEN[:1], expected="20 bytes")

    @pytest.mark.parametrize(
        ("array", "cause"),
        [
            (np.arange(24, dtype=np.uint8).reshape(6, 4).view(bool), "odd-bools"),
            (np.asfortranarray(X), "fortran-order"),
            (np.array([{}]), "unsupported-dtype"),
        ],
        ids=["bools of other bytes", "Fortran order", "objects"],
    )
    def test_arrays_that_cannot_be_mapped(self, external, array, cause):
        np.save(external / "x.npy", array, allow_pickle=True)
        self.refused(external / "x.npy", cause, path=external / "x.npy")

    @pytest.mark.parametrize(("kept", "cause"), [(-1, "truncated"), (128, "truncated"), (60, "unreadable")])
    def test_a_npy_file_that_was_cut_off(self, external, kept, cause):
        np.save(external / "x.npy", X)
        (external / "x.npy").write_bytes((external / "x.npy").read_bytes()[:kept])
        assert self.refused(external / "x.npy", cause, path=external / "x.npy").hint

    def test_a_tensordict_of_a_class_that_the_data_name(self, external):
        TensorDict({"x": torch.from_numpy(X)}, [SAMPLES]).memmap(external / "t")
        meta = external / "t/meta.json"
        saved = json.loads(meta.read_text())
        meta.write_text(json.dumps({"x": saved["x"], "_type": "<class 'os.system'>"}))
        self.refused(external / "t", "unsupported-class", format="memmap", found=has("os.system"))

    def test_a_damaged_lmdb_file_crashes_nothing(self, external):
        path = write_lmdb(external / "l") / "data.mdb"
        whole = path.read_bytes()
        rng = np.random.default_rng(4)
        for _ in range(4):
            data = np.frombuffer(whole, np.uint8).copy()
            data[rng.integers(4096 * 2, len(data), 400)] = 255
            path.write_bytes(data.tobytes())
            with pytest.raises(SourceError):
                add(external / "l", "lmdb", name="d", fields=GIVEN, data_dir=external.parent / "data")

    @pytest.mark.parametrize(
        "field", ["x", "x=float32[3", "x=float33[3]", "=int64", "x=int64[0]", "x=int64[a]"]
    )
    def test_invalid_fields_are_usage_errors(self, external, inside, field):
        assert "--field" in complaint(inside("add", external, "--field", field), 2)


KEYS = {
    "8 digits": lambda row: f"{row:08}".encode(),
    "5 digits from 1": lambda row: f"{row + 1:05}".encode(),
    "digits": lambda row: str(row).encode(),
    "4 bytes": lambda row: struct.pack(">I", row),
    "8 bytes": lambda row: struct.pack(">Q", row),
}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("large", [False, True])
def test_lmdb_as_usually_written(external, key, large):
    """Values within pages and in pages of their own, in a folder and in a single file, for all keys."""
    lmdb_format = formats.get("lmdb")
    x = np.tile(X, 200 if large else 1)
    path = write_lmdb(external / "l", KEYS[key], [one.tobytes() for one in x], subdir=not large)
    fields = (Field("x", x.shape[1:], "float32"),)
    assert lmdb_format.sniff(path)
    schema = lmdb_format.infer_schema(path, fields)
    lmdb_format.check(path, schema)
    with lmdb_format.open(path, schema) as reader:
        np.testing.assert_array_equal(reader.batch(slice(3, SAMPLES))["x"], x[3:])
        np.testing.assert_array_equal(reader.batch(np.array([9, 0, 202]))["x"], x[[9, 0, 202]])
        assert_placements(reader, {"x": x})


def test_lmdb_with_another_key_among_those_of_samples(external):
    path = write_lmdb(external / "l", values=[one.tobytes() for one in X])
    with lmdb.open(str(path), map_size=1 << 24) as env, env.begin(write=True) as txn:
        txn.put(b"00000005x", X[0].tobytes())
    lmdb_format, fields = formats.get("lmdb"), (Field("x", X.shape[1:], "float32"),)
    with lmdb_format.open(path, lmdb_format.infer_schema(path, fields)) as reader:
        np.testing.assert_array_equal(reader.batch(slice(0, SAMPLES))["x"], X)
        assert_placements(reader, {"x": X})


def test_a_truncated_lmdb_is_reported(external):
    path = write_lmdb(external / "l")
    os.truncate(path / "data.mdb", 3 * 4096)
    with refused_as("truncated", SourceError, path=path / "data.mdb", found="12288 bytes"):
        add(path, name="d", fields=GIVEN, data_dir=external.parent / "data")


def test_an_index_of_any_size_crashes_nothing(external):
    (external / "mds").mkdir()
    with open(external / "mds/index.json", "wb") as file:
        file.truncate(1 << 40)
    with refused_as("unrecognized", SourceError):
        add(external / "mds", name="d", data_dir=external.parent / "data")


def test_a_folder_of_many_files_has_a_stamp_of_one_size(external):
    manifest = added("npy", external)
    for number in range(300):
        (external / f"npy/{number}.txt").touch()
    again = add(external / "npy", "npy", name="d", data_dir=manifest.root.parent)[0]
    assert again.added["npy"].stamp.files == 302
    assert (again.root / "manifest.json").stat().st_size < 2000
    (external / "npy/77.txt").write_text("more")
    with refused_as("changed"):
        again.opener("npy")


def write_packed(path):
    """Write a file of compressed chunks."""
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.random.default_rng(0).random(9000), compression="gzip", chunks=(99,))


def test_prepare_keeps_the_index_of_added_data(external):
    write_packed(external / "own.h5")
    manifest, _ = add(external / "own.h5", name="d", data_dir=external.parent / "data")
    index = manifest.root / ".index" / "hdf5.rows"
    index.parent.mkdir(exist_ok=True)
    index.touch()
    prepare(iobench.AddedSource(manifest), ["npy"], data_dir=manifest.data_dir, name="d")
    assert index.exists()


@pytest.mark.parametrize(
    ("name", "write", "error", "cause"),
    [
        ("own.npy", lambda path: np.save(path, np.arange(20.0)), WrongContent, "source-changed"),
        ("own.h5", write_packed, SourceError, "source"),
    ],
)
def test_added_data_that_changed_with_their_times_restored_are_not_prepared(
    external, name, write, error, cause
):
    write(external / name)
    manifest, _ = add(external / name, name="d", data_dir=external.parent / "data")
    damage(external / name)
    with refused_as(cause, error, hint=has("iobench add") if cause == "source" else has()):
        prepare(iobench.AddedSource(manifest), ["lmdb"], data_dir=manifest.data_dir, name="d")
