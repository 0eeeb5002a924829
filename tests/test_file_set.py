"""Several files as one dataset: parts, samples or fields, as their shapes and names say."""

import contextlib
import gzip
import io
import json

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import zarr
from kinds import has, refused_as
from PIL import Image
from safetensors.numpy import save_file

import iobench
from iobench.base.errors import SourceError
from iobench.dataset.add import add
from iobench.dataset.samples import Samples
from iobench.dataset.sources import open_source

X = np.random.default_rng(0).random((12, 9, 2))


def packed(file, x):
    np.save(stream := io.BytesIO(), x)
    file.write_bytes(gzip.compress(stream.getvalue()))


def hdf5(file, x, y=None, **options):
    with h5py.File(file, "w") as opened:
        opened.create_dataset("x", data=x, **options)
        if y is not None:
            opened["y"] = y


WRITERS = {  # of one array
    ".npy": np.save,
    ".npy.gz": packed,
    ".npz": lambda file, x: np.savez(file, x=x),
    ".pt": lambda file, x: torch.save({"x": torch.from_numpy(x)}, file),
    ".safetensors": lambda file, x: save_file({"x": x}, file),
    ".h5": hdf5,
}
SAMPLES = WRITERS | {  # with a number
    ".npz": lambda file, x: np.savez(file, x=x, y=len(file.stem)),
    ".pt": lambda file, x: torch.save({"x": torch.from_numpy(x), "y": len(file.stem)}, file),
    ".safetensors": lambda file, x: save_file({"x": x, "y": np.array(len(file.stem))}, file),
    ".h5": lambda file, x: hdf5(file, x, len(file.stem)),
}


def folder_of(folder, suffix, samples, names="{}", writers=WRITERS):
    """Write each array into a file of its own."""
    for row, sample in enumerate(samples):
        file = folder / f"{names.format(row)}{suffix}"
        file.parent.mkdir(parents=True, exist_ok=True)
        writers[suffix](file, sample)
    return folder


def read(folder, tmp_path, **options):
    """Return what `add` and `prepare` read of a folder, which has to be the same, and their notes."""
    source, notes = open_source(folder, **options), []
    manifest, row = add(folder, data_dir=tmp_path / "data", warn=notes.append, **options)
    assert noted(notes, "files") == noted(source.notes, "files")
    with manifest.opener(row.variant)() as reader:
        batch = reader.batch(slice(None))
        order = np.random.default_rng(1).permutation(len(reader))
        mixed = reader.batch(order)
        sample = reader.sample(len(reader) - 1)
    assert source.schema == manifest.schema
    prepared = list(source.batches())
    loader = iobench.StreamLoader(manifest.root, format=row.variant, batch_size=5, order="sequential")
    streamed = list(loader)
    for name, array in batch.items():
        np.testing.assert_array_equal(np.concatenate([flat(part[name]) for part in prepared]), flat(array))
        np.testing.assert_array_equal(flat(mixed[name]), flat(array[order]))
        np.testing.assert_array_equal(torch.cat([flat(part[name]) for part in streamed]), flat(array))
        if flat(array) is array:
            np.testing.assert_array_equal(sample[name], array[-1])
    return batch, notes, row.variant


def flat(array):
    """Return an array, or the values of one whose samples differ in length."""
    return array.values if hasattr(array, "offsets") else array


def noted(notes, kind):
    """Return the values of the notes of a kind."""
    return [one.values for one in notes if one.kind == kind]


def refused(data, tmp_path, cause, **expected):
    """Check that both `prepare` and `add` refuse data; return the last error."""
    for opened in (open_source, lambda data: add(data, data_dir=tmp_path / "data")):
        with refused_as(cause, SourceError, **expected) as caught:
            opened(data)
    return caught.value


# ── files of arrays ──


@pytest.mark.parametrize("suffix", SAMPLES)
def test_each_numbered_file_is_a_sample(tmp_path, suffix):
    batch, notes, variant = read(folder_of(tmp_path / "a", suffix, X, writers=SAMPLES), tmp_path)
    assert variant == "samples"
    np.testing.assert_array_equal(batch["x"], X)  # in natural order: 2 before 10
    if "y" in batch:
        assert batch["y"].tolist() == [1] * 10 + [2] * 2
    told = [] if "y" in batch and suffix != ".h5" else [{"files": 12, "relation": "samples"}]
    assert noted(notes, "files") == told


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".pt", ".h5"])
def test_files_that_are_named_as_parts_are_joined(tmp_path, suffix):
    folder = folder_of(tmp_path / "a", suffix, [X[:8, 0], X[8:, 0]], "part-{}")
    batch, notes, _ = read(folder, tmp_path)
    np.testing.assert_array_equal(batch["x"], X[:, 0])
    assert noted(notes, "files")[0]["relation"] == "parts"


@pytest.mark.parametrize("options", [{}, {"chunks": (3, 2)}, {"chunks": (3, 2), "compression": "gzip"}])
def test_hdf5_files_of_several_lengths_are_parts(tmp_path, options):
    parts, writers = [X[n, : 3 + n % 5] for n in range(11)], {".h5": lambda *file: hdf5(*file, **options)}
    batch, notes, variant = read(folder_of(tmp_path / "a", ".h5", parts, "patient{}", writers), tmp_path)
    assert variant == "parts:of=hdf5"
    np.testing.assert_array_equal(batch["x"], np.concatenate(parts))
    assert noted(notes, "files") == [{"files": 11, "relation": "parts"}]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_files_of_several_lengths_are_samples_of_several_lengths(tmp_path, save):
    samples = [X[row, : 3 + row % 4] for row in range(6)]
    writers = {".npz": lambda file, x: save(file, x=x, y=int(file.stem))}
    batch, _, variant = read(folder_of(tmp_path / "a", ".npz", samples, writers=writers), tmp_path)
    assert (variant, batch["y"].tolist()) == ("samples", list(range(6)))
    np.testing.assert_array_equal(batch["x"].values, np.concatenate(samples))


def test_arrays_of_one_length_and_several_kinds_are_fields(tmp_path):
    batch, _, variant = read(folder_of(tmp_path / "a", ".npy", [X, X[:, 0, 0]], "f{}"), tmp_path)
    assert (variant, [*batch]) == ("npy", ["f0", "f1"])


def test_folders_in_one_format_are_parts(tmp_path):
    for number in (10, 9):
        folder_of(tmp_path / f"a/e{number}", ".npy", [X[number], X[number, :, 0]], "f{}")
    batch, notes, variant = read(tmp_path / "a", tmp_path)
    assert variant == "parts"  # of npy
    assert [note.values for note in notes] == [{"folders": 2, "relation": "parts"}]
    np.testing.assert_array_equal(batch["f0"], np.concatenate([X[9], X[10]]))


@pytest.mark.parametrize(
    ("relation", "shape"), [("samples", (3, 9, 2)), ("parts", (27, 2)), ("fields", (9, 2))]
)
def test_files_that_may_be_read_in_several_ways_are_asked_for(tmp_path, relation, shape):
    folder = tmp_path / "a"
    for row, name in enumerate(("left", "middle", "right")):
        folder_of(folder, ".npy", X[row : row + 1], name)
    refused(folder, tmp_path, "several-readings", hint=has(f"--files {relation}"))
    batch, _, _ = read(folder, tmp_path, files=relation)
    assert next(iter(batch.values())).shape == shape
    assert len(batch) == (3 if relation == "fields" else 1)


def test_the_splits_of_one_folder_need_folders_of_their_own(tmp_path):
    folder = folder_of(tmp_path / "a", ".npy", [X, X[:, 0, 0]], "f{}_train")
    folder_of(folder, ".npy", [X[:3], X[:3, 0, 0]], "f{}_test")
    refused(folder, tmp_path, "unequal-shapes", hint=has("folder of its own"))


def test_numbered_arrays_that_differ_in_a_later_axis_are_no_fields(tmp_path):
    folder = folder_of(tmp_path / "a", ".npy", [X[:2, :, :n] for n in (1, 2, 1)], "patient{}")
    refused(folder, tmp_path, "unequal-shapes", hint=has("moveaxis(x, 2, 0)"))
    batch, _, variant = read(folder, tmp_path, files="fields")
    assert (variant, len(batch)) == ("npy", 3)


def test_files_whose_other_arrays_differ_in_length_are_read_by_name(tmp_path):
    (tmp_path / "a").mkdir()
    for number in range(2):
        with h5py.File(tmp_path / f"a/{number}.nc", "w") as file:
            file["x"], file["lat"] = X[: 3 + number], np.arange(5.0)
            file.create_dataset("crs", (), "i4")  # never written, as NetCDF's conventions have it
    batch, _, variant = read(f"{tmp_path / 'a'}::x", tmp_path)
    assert variant == "parts:of=hdf5"
    np.testing.assert_array_equal(batch["x"], np.concatenate([X[:3], X[:4]]))
    with h5py.File(tmp_path / "a/0.nc", "a") as file:
        del file["lat"]
    assert [field.name for field in open_source(tmp_path / "a/0.nc").schema.fields] == ["x"]


def test_a_subfolder_per_class_is_a_label(tmp_path):
    folder = folder_of(tmp_path / "a", ".npy", X[:2], "cat/{}")
    batch, _, _ = read(folder_of(folder, ".npy", X[2:5], "dog/x{}"), tmp_path)
    np.testing.assert_array_equal(batch["x"], X[:5])
    assert batch["label"].tolist() == [0, 0, 1, 1, 1]


def test_numbers_next_to_each_file_are_fields(tmp_path):
    folder = folder_of(tmp_path / "a", ".npy", X)
    for row in range(12):
        (folder / f"{row}.cls").write_text(f"{row}\n")
        (folder / f"{row}.json").write_text(f'{{"age": {row / 2}, "name": "a"}}')
        (folder / f"{row}.txt").write_text("a caption")
    batch, notes, _ = read(folder, tmp_path)
    assert batch["cls"].tolist() == list(range(12))
    assert batch["age"].tolist() == [row / 2 for row in range(12)]
    assert noted(notes, "not-read") == [{"files": 48, "not_read": 12, ".txt": 12}]
    (folder / "7.cls").unlink()
    refused(folder, tmp_path, "missing-label")


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
@pytest.mark.parametrize("beside", ["convert.log", "save.py", "README.rst", "0.png"])
def test_what_is_no_data_beside_samples_is_counted(tmp_path, suffix, beside):
    folder_of(tmp_path / "a", suffix, X[:3])
    if beside == "0.png":
        for number in range(3):
            Image.new("RGB", (8, 8)).save(tmp_path / f"a/{number}.png")
    else:
        (tmp_path / "a" / beside).touch()
    _, notes, variant = read(tmp_path / "a", tmp_path)
    assert variant == "samples"
    assert [one["not_read"] for one in noted(notes, "not-read")] == [3 if beside == "0.png" else 1]


@pytest.mark.parametrize("suffix", [".h5", ".npz"])
@pytest.mark.parametrize("relation", ["samples", "parts"])
def test_texts_in_files_are_said_to_be_left_out(tmp_path, suffix, relation):
    (tmp_path / "a").mkdir()
    for number in range(3):
        x, text = X[number : number + 1], np.array(["some", "one"])
        if suffix == ".npz":
            np.savez(tmp_path / f"a/{number}.npz", x=x, name=text, objects=np.array([{}]))
        else:
            with h5py.File(tmp_path / f"a/{number}.h5", "w") as file:
                file["x"], file["name"] = x, text.astype("S") if relation == "samples" else np.zeros(())
    batch, notes, _ = read(tmp_path / "a", tmp_path, files=relation)
    assert [*batch] == ["x"]
    assert [len(values) for values in noted(notes, "not-read")] == [1]


@pytest.mark.parametrize("write", ["hdf5", "hdf5 groups", "zarr"])
def test_attributes_that_may_be_labels_are_said_to_be_left_out(tmp_path, write):
    (tmp_path / "a").mkdir()
    for number in range(3):
        attributes = {"label": number, "units": "mm"}
        if write == "zarr":
            array = zarr.create_group(tmp_path / f"a/{number}").create_array("x", data=X[: number + 1])
            array.attrs.update(attributes)
        else:
            name, group = (f"{number}.h5", "") if write == "hdf5" else ("all.h5", f"p{number}/")
            with h5py.File(tmp_path / "a" / name, "a") as file:
                file[f"{group}x"] = X[: number + 1]
                file[f"{group}x"].attrs.update(attributes, _FillValue=-1)
    data = tmp_path / "a" / "all.h5" if write == "hdf5 groups" else tmp_path / "a"
    (note,) = (one for one in open_source(data).notes if one.kind == "not-read")
    assert note.values == {"attributes": 1}
    assert "label" in note.message


def test_parts_with_other_fields_are_named(tmp_path):
    folder = folder_of(tmp_path / "a", ".h5", X[:3, :, 0], "part{}")
    with h5py.File(folder / "part1.h5", "a") as opened:
        opened["z"] = np.zeros(9)
    with refused_as("missing-array", SourceError, path=folder / "part1.h5"):
        add(folder, "parts:of=hdf5", data_dir=tmp_path / "data")


@pytest.mark.parametrize(
    ("write", "cause"),
    [
        (lambda file: np.savez(file, x=X[3]), "missing-array"),
        (lambda file: np.savez(file, x=X[3, :, 0], y=1), "unequal-shapes"),
        (lambda file: np.savez(file, x=np.array([{}]), y=1), "missing-array"),
        (lambda file: file.write_bytes(file.with_name("2.npz").read_bytes()[:200]), "damaged"),
    ],
    ids=["lacking", "of another shape", "pickled", "cut off"],
)
def test_a_file_that_differs_is_named(tmp_path, write, cause):
    folder = folder_of(tmp_path / "a", ".npz", X, writers=SAMPLES)
    write(folder / "3.npz")
    refused(folder, tmp_path, cause, path=folder / "3.npz")


def test_a_sample_that_loses_an_array_is_named(tmp_path):
    folder = folder_of(tmp_path / "a", ".npz", X[:3], writers=SAMPLES)
    schema = Samples().infer_schema(folder)
    np.savez(folder / "1.npz", y=1)
    with Samples().open(folder, schema) as reader, refused_as("corrupt-artifact", found="none"):
        reader.placement()


def test_links_of_a_download_cache_to_its_blobs_are_followed(tmp_path):
    repository = tmp_path / "hub/datasets--a--b"
    folder = repository / "snapshots/1f3a/data"
    folder.mkdir(parents=True)
    folder_of(repository / "blobs", ".npz", X[:3], "{}f", SAMPLES)
    for row in range(3):
        (folder / f"{row}.npz").symlink_to(f"../../../blobs/{row}f.npz")
    np.testing.assert_array_equal(read(folder, tmp_path)[0]["x"], X[:3])
    (folder / "3.npz").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_bytes(b"")
    refused(folder, tmp_path, "link-outside")


def test_links_to_one_file_are_not_read_twice(tmp_path):
    folder_of(tmp_path / "hub/blobs", ".npy", [X])
    for revision in ("a1", "b2"):
        folder = tmp_path / "hub/snapshots" / revision
        folder.mkdir(parents=True)
        (folder / "x.npy").symlink_to(tmp_path / "hub/blobs/0.npy")
    error = refused(tmp_path / "hub", tmp_path, "same-file")
    assert len(open_source(error.hint.split()[-1]).schema.fields) == 1


# ── tokens ──

TOKENS = np.arange(70_000, dtype=np.uint16) % 50_000


def test_shards_of_tokens_with_and_without_headers_are_parts(tmp_path):
    header = np.zeros(256, np.int32)
    header[:3] = 20240520, 1, len(TOKENS)
    folder_of(tmp_path / "a", ".npy", [TOKENS[:2049]], "shard_1")
    (tmp_path / "a/shard_0.bin").write_bytes(header.tobytes() + TOKENS.tobytes())
    batch, notes, variant = read(tmp_path / "a", tmp_path)
    assert variant == "parts:of=tokens"
    assert batch["tokens"].shape == (68 + 2, 1025)
    np.testing.assert_array_equal(batch["tokens"][-1], TOKENS[1024:2049])
    assert [note.values["left_over"] for note in notes] == [len(TOKENS) - 68 * 1024 - 1]


def test_a_vocabulary_beside_tokens_is_not_read(tmp_path):
    (tmp_path / "a").mkdir()
    for name, count in {"val.bin": 3000, "meta.pkl": 2000, "prepare.py": 7}.items():
        (tmp_path / "a" / name).write_bytes(TOKENS[:count].tobytes())
    with refused_as("unrecognized", SourceError, match="--format parts:of=tokens"):
        add(tmp_path / "a", data_dir=tmp_path / "data")
    notes = []
    add(tmp_path / "a", "parts:of=tokens", data_dir=tmp_path / "data", warn=notes.append)
    assert {"files": 3, "not_read": 2, ".pkl": 1, ".py": 1} in [one.values for one in notes]


@pytest.mark.parametrize(("size", "cause"), [(800, "too-few-tokens"), (801, "source")])
def test_a_short_or_odd_shard_of_tokens_is_named_with_what_to_type(tmp_path, size, cause):
    (tmp_path / "a").mkdir()
    for number, length in enumerate((size, None)):
        (tmp_path / f"a/shard_{number}.bin").write_bytes(TOKENS.tobytes()[:length])
    for file in ("meta.pkl", "README.md"):
        (tmp_path / "a" / file).write_bytes(b"")
    with refused_as(cause, SourceError, path=str(tmp_path / "a/shard_0.bin")) as caught:
        add(tmp_path / "a", data_dir=tmp_path / "data")
    if cause == "too-few-tokens":
        manifest, _ = add(tmp_path / "a", caught.value.hint.split()[-1], data_dir=tmp_path / "data")
        assert manifest.schema.fields[0].typed == "tokens=uint16[400]"


def test_shards_of_tokens_in_npy_say_how_windows_are_read(tmp_path):
    folder, notes = folder_of(tmp_path / "a", ".npy", [TOKENS[:2000]] * 3), []
    refused(folder, tmp_path, "several-readings", hint=has("parts:of=tokens"))
    folder = folder_of(tmp_path / "b", ".npy", [TOKENS[:20_000], TOKENS[:20_001]], "shard_{}")
    add(folder, data_dir=tmp_path / "data", warn=notes.append)
    (hint,) = [note.hint for note in notes if note.kind == "single-numbers"]
    with refused_as("not-a-file", SourceError) as caught:
        add(folder, "tokens", data_dir=tmp_path / "data")
    for name, said in enumerate((hint.split(";")[0], caught.value.hint)):
        manifest, _ = add(folder, said.split()[-1], name=f"windows-{name}", data_dir=tmp_path / "data")
        assert manifest.schema.fields[0].typed == "tokens=uint16[1025]"


# ── HDF5 files that hold data in others ──

CHUNKS = {"chunks": (2, 2)}
LAYOUTS = {"contiguous": {}, "chunked": CHUNKS, "packed": {**CHUNKS, "compression": "gzip"}}
NAMES = [f"raw/p{number}.h5" for number in range(3)]


def raw_files(folder, **options):
    """Write three files with five rows of x each, below a folder."""
    (folder / "raw").mkdir(parents=True)
    for number, name in enumerate(NAMES):
        hdf5(folder / name, X[number, :5], **options)


def virtual(folder, names=NAMES, shape=(15, 2), place=lambda n: slice(5 * n, 5 * n + 5), part=...):
    layout = h5py.VirtualLayout(shape, "f8")
    for number, name in enumerate(names):
        layout[place(number)] = h5py.VirtualSource(name, "x", (5, 2))[part]
    with h5py.File(folder / "all.h5", "w") as opened:
        opened.create_virtual_dataset("x", layout)


def of_virtual(folder, inner, write):
    """Make all of the data those of another file, which is written first."""
    write(folder)
    (folder / "all.h5").rename(folder / inner)
    layout = h5py.VirtualLayout((15, 2), "f8")
    layout[:] = h5py.VirtualSource(inner, "x", (15, 2))
    with h5py.File(folder / "all.h5", "w") as opened:
        opened.create_virtual_dataset("x", layout)


def linked(folder, name, target):
    with h5py.File(folder / "all.h5", "w") as opened:
        opened[name] = h5py.ExternalLink(NAMES[1], target)


ROWS = X[:3, :5].reshape(15, 2)
COMPOSED = {  # how a file is composed of others, its rows, and whether they have places in these
    "end to end": (virtual, ROWS, True),
    "parts of rows": (
        lambda folder: virtual(folder, NAMES, (6, 2), lambda n: slice(2 * n, 2 * n + 2), slice(1, 3)),
        X[:3, 1:3].reshape(6, 2),
        "contiguous",
    ),
    "stacked": (lambda folder: virtual(folder, NAMES, (3, 5, 2), lambda n: n), X[:3, :5], False),
    "side by side": (
        lambda folder: virtual(folder, NAMES, (5, 6), lambda n: (slice(None), slice(2 * n, 2 * n + 2))),
        np.concatenate(X[:3, :5], 1),
        False,
    ),
    "of a virtual one": (lambda folder: of_virtual(folder, "inner.h5", virtual), ROWS, False),
    "a link": (lambda folder: linked(folder, "x", "/x"), X[1, :5], True),
    "a link to a group": (lambda folder: linked(folder, "p", "/"), X[1, :5], True),
}


def assert_read_where_it_lies(folder, tmp_path, rows, placed, names):
    """Check rows and files of `all.h5`, and that a change of one of these is detected."""
    batch, _, variant = read(folder / "all.h5", tmp_path)
    np.testing.assert_array_equal(next(iter(batch.values())), rows)
    manifest, _ = add(folder / "all.h5", data_dir=tmp_path / "data", overwrite=True)
    with manifest.opener(variant)() as reader:
        places = reader.placement()
    assert bool(places) == placed
    assert {one.name for one in manifest.files_of(variant)} >= {"all.h5", *names}
    (folder / "raw" / names[0]).touch()
    with refused_as("changed"):
        manifest.opener(variant)
    return places


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("how", COMPOSED)
def test_data_of_other_hdf5_files_are_read_where_they_lie(tmp_path, how, layout):
    compose, rows, runs = COMPOSED[how]
    raw_files(tmp_path / "a", **LAYOUTS[layout])
    compose(tmp_path / "a")
    placed = layout != "packed" and runs in (True, layout)
    assert_read_where_it_lies(tmp_path / "a", tmp_path, rows, placed, ["p1.h5"])


def in_raw_files(folder, sizes=(240,), names=("raw/p0.bin", "raw/p1.bin")):
    """Describe 15 rows of 16 bytes in raw files, behind 8 bytes each, and write these."""
    (folder / "raw").mkdir(parents=True, exist_ok=True)
    with h5py.File(folder / "all.h5", "w") as file:
        external = [(name, 8, size) for name, size in zip(names, sizes, strict=False)]
        file.create_dataset("x", (15, 2), "f8", external=external)
    stored = ROWS.tobytes()
    for name, size in zip(names, sizes, strict=False):
        (folder / name).write_bytes(b"8 before" + stored[:size])
        stored = stored[size:]


@pytest.mark.parametrize(("sizes", "placed"), [((240,), True), ((80, 160), True), ((88, 152), False)])
def test_raw_files_of_an_hdf5_file_are_read_beside_it(tmp_path, monkeypatch, sizes, placed):
    in_raw_files(tmp_path / "a", sizes)
    in_raw_files(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/raw/p0.bin").write_bytes(bytes(300))
    monkeypatch.chdir(tmp_path / "elsewhere")  # where HDF5 looks for raw files by default
    names = [f"p{number}.bin" for number in range(len(sizes))]
    places = assert_read_where_it_lies(tmp_path / "a", tmp_path, ROWS, placed, names)
    if placed:
        number, offset = places["x"].locate(np.array([14]))
        stored = places["x"].files[number[0]].read_bytes()
        assert np.frombuffer(stored, "f8", 2, int(offset[0])).tolist() == ROWS[14].tolist()


def outside(folder, link):
    """Name a file outside the folder, or a link to it."""
    hdf5(folder.parent / "p3.h5", X[0, :5])
    if link:
        (folder / NAMES[2]).unlink()
        (folder / NAMES[2]).symlink_to(folder.parent / "p3.h5")
    virtual(folder, [*NAMES[:2], NAMES[2] if link else "../p3.h5"])


NOT_THERE = {
    "raw missing": ("missing-file", lambda folder: (in_raw_files(folder), (folder / "raw/p0.bin").unlink())),
    "raw shorter": (
        "not-stored",
        lambda folder: (in_raw_files(folder), (folder / "raw/p0.bin").write_bytes(bytes(247))),
    ),
    "raw outside": ("external-data", lambda folder: in_raw_files(folder, names=["../p0.bin"])),
    "raw in virtual": ("external-data", lambda folder: of_virtual(folder, "whole.h5", in_raw_files)),
    "missing": ("missing-file", lambda folder: (virtual(folder), (folder / NAMES[2]).unlink())),
    "shorter": ("not-stored", lambda folder: (virtual(folder), hdf5(folder / NAMES[2], X[0, :4]))),
    "partly covered": ("not-stored", lambda folder: virtual(folder, NAMES[:2])),
    "outside": ("external-data", lambda folder: outside(folder, link=False)),
    "a link outside": ("link-outside", lambda folder: outside(folder, link=True)),
}


@pytest.mark.parametrize(("cause", "make"), NOT_THERE.values(), ids=NOT_THERE)
def test_fill_values_in_place_of_data_are_never_read(tmp_path, cause, make):
    raw_files(tmp_path / "a")
    make(tmp_path / "a")
    refused(tmp_path / "a/all.h5", tmp_path, cause)


def test_a_folder_with_a_file_that_is_composed_of_the_others_is_refused(tmp_path):
    raw_files(tmp_path / "a")
    virtual(tmp_path / "a")
    with refused_as("several-readings", SourceError, path=tmp_path / "a/all.h5"):
        add(tmp_path / "a", "parts:of=hdf5", data_dir=tmp_path / "data")


# ── groups ──


def groups_of(path, lengths):
    """Write a group of x and y per number, as robomimic does; return all rows of x."""
    with contextlib.ExitStack() as stack:
        if path.suffix == ".zarr":
            group = zarr.open_group(path, mode="w")
        else:
            group = stack.enter_context(h5py.File(path, "w"))
            group["mask/train"] = [b"demo_0", b"demo_1"]
        for number, length in enumerate(lengths):
            group[f"data/demo_{number}/obs/x"] = X[number, :length]
            group[f"data/demo_{number}/y"] = np.full(length, number)
    return np.concatenate([X[number, :length] for number, length in enumerate(lengths)])


@pytest.mark.parametrize(("suffix", "form"), [(".hdf5", "hdf5"), (".zarr", "zarr")])
def test_groups_of_a_file_are_parts(tmp_path, suffix, form):
    rows = groups_of(tmp_path / f"a{suffix}", [3 + number % 4 for number in range(12)])
    batch, notes, variant = read(tmp_path / f"a{suffix}", tmp_path)
    assert (variant, [*batch]) == (f"parts:of={form}", ["obs_x", "y"])
    np.testing.assert_array_equal(batch["obs_x"], rows)  # in natural order: demo_2 before demo_10
    assert noted(notes, "files") == [{"groups": 12, "relation": "parts"}]
    assert noted(notes, "not-read") == [{"arrays": 1}] * (form == "hdf5")


@pytest.mark.parametrize(
    ("relation", "fields"),
    [
        ("samples", {"obs_x": (3, 4, 2)}),
        ("parts", {"obs_x": (12, 2)}),
        ("fields", {"data_demo_0_obs_x": (4, 2)}),
    ],
)
def test_groups_that_may_be_read_in_several_ways_are_asked_for(tmp_path, relation, fields):
    groups_of(tmp_path / "a.h5", [4, 4, 4])
    refused(tmp_path / "a.h5", tmp_path, "several-readings", hint=has(f"--files {relation}"))
    batch, _, _ = read(tmp_path / "a.h5", tmp_path, files=relation)
    assert {name: batch[name].shape for name in fields} == fields


def test_a_group_per_patient_with_one_number_each_is_a_sample(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as opened:
        for number, name in enumerate(("anna", "bert", "carl")):
            opened[f"{name}/slices"], opened[f"{name}/age"] = X[number, : 3 + number], 30 + number
    batch, _, variant = read(tmp_path / "a.h5", tmp_path)
    assert (variant, batch["age"].tolist()) == ("samples", [30, 31, 32])
    np.testing.assert_array_equal(batch["slices"].values, np.concatenate([X[n, : 3 + n] for n in range(3)]))


def patients_in_hdf5(path):
    path.mkdir()
    for number in range(3):
        with h5py.File(path / f"patient{number}.h5", "w") as opened:
            opened["ct"], opened["label"] = X[number, : 3 + number], np.arange(3 + number)
            opened["version"], opened["name"] = 2, "anna"


def patients_in_zarr(path):
    group = zarr.open_group(path, mode="w")
    for number in range(3):
        group[f"patient{number}/ct"] = X[number, : 3 + number]
        group[f"patient{number}/label"] = np.arange(3 + number)
        group.create_array(f"patient{number}/version", data=np.array(2))


@pytest.mark.parametrize("write", [patients_in_hdf5, patients_in_zarr])
def test_scalars_beside_arrays_of_one_length_do_not_make_samples_of_patients(tmp_path, write):
    write(tmp_path / "a")
    for path, left_out in ((tmp_path / "a", True), (f"{tmp_path / 'a'}::ct,label", False)):
        batch, notes, variant = read(path, tmp_path)
        assert variant.startswith("parts:of=")
        np.testing.assert_array_equal(batch["ct"], np.concatenate([X[n, : 3 + n] for n in range(3)]))
        assert batch["label"].tolist() == [0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 3, 4]
        assert [note.kind for note in notes] == ["files", *["not-read"] * left_out]


def test_an_empty_part_is_named(tmp_path):
    patients_in_hdf5(tmp_path / "a")
    with h5py.File(tmp_path / "a/patient1.h5", "a") as opened:
        del opened["ct"], opened["label"]
        opened["ct"], opened["label"] = X[0, :0], np.arange(0)
    with refused_as("empty-array", SourceError, path=str(tmp_path / "a/patient1.h5")):
        add(tmp_path / "a", data_dir=tmp_path / "data")


def test_a_group_without_any_array_of_the_others_is_left_out(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as opened:
        opened["meta/mean"], opened["#refs#/a"] = np.zeros(7), np.zeros(2)
        for number in range(3):
            opened[f"p{number}/x"] = X[number, : 3 + number]
    batch, notes, _ = read(tmp_path / "a.h5", tmp_path, files="parts")
    np.testing.assert_array_equal(batch["x"], np.concatenate([X[n, : 3 + n] for n in range(3)]))
    assert [len(one.values) for one in notes if one.kind == "not-read"] == [1]


@pytest.mark.parametrize("lacking", [True, False], ids=["lacking", "dtype"])
def test_the_group_that_differs_from_the_others_is_named(tmp_path, lacking):
    with h5py.File(tmp_path / "a.h5", "w") as opened:
        for number in range(5):
            opened[f"p{number}/x"] = X[number, : 3 + number % 3]
            if number < 4 or not lacking:
                opened[f"p{number}/y"] = np.arange(3 + number % 3, dtype=np.int8 if number == 4 else np.int64)
    with refused_as("unlike-groups", SourceError, problem=has("p4")):
        add(tmp_path / "a.h5", data_dir=tmp_path / "data")


@pytest.mark.parametrize("selected", ["train", "train/x,train/y"])
def test_one_of_alike_groups_is_selected(tmp_path, selected):
    groups = {"train": X[:8], "test": X[8:]}
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, rows in groups.items():
            file[f"{name}/x"], file[f"{name}/y"] = rows, np.arange(len(rows))
    batch, _, _ = read(f"{tmp_path / 'a.h5'}::{selected}", tmp_path)
    np.testing.assert_array_equal(batch["train_x"], groups["train"])
    batch, _, variant = read(f"{tmp_path / 'a.h5'}::x", tmp_path)  # of each group
    assert (variant, [*batch], len(batch["x"])) == ("parts:of=hdf5", ["x"], 12)


def test_scalars_of_a_zarr_group_are_left_out_unless_they_are_named(tmp_path):
    group = zarr.open_group(tmp_path / "a.zarr", mode="w")
    group["x"] = X
    group.create_array("version", data=np.array(2))
    batch, notes, _ = read(tmp_path / "a.zarr", tmp_path)
    assert ([*batch], [note.values for note in notes]) == (["x"], [{"arrays": 1}])
    with refused_as("no-sample-axis", SourceError):
        open_source(f"{tmp_path / 'a.zarr'}::version")


@pytest.mark.parametrize("stores", [("a",), ("a/1.zarr", "a/2.zarr")], ids=["groups", "folders"])
def test_samples_are_not_made_of_what_holds_several(tmp_path, stores):
    for store in stores:
        patients_in_zarr(tmp_path / store)
    with refused_as("several-readings", SourceError, hint=has("--files parts")):
        open_source(tmp_path / "a", files="samples")


# ── what is said ──


def splits_in_groups(path):
    with h5py.File(path / "a", "w") as file:
        file["train/x"], file["test/x"] = X[:8], X[8:]


def splits_in_folders(path):
    for split in ("train", "validation"):
        folder_of(path / "a" / split, ".npy", [X, np.arange(len(X))], "f{}")


def splits_of_tokens(path):
    (path / "a").mkdir()
    for name in ("fineweb_train_000001", "fineweb_val_000000"):
        TOKENS.tofile(path / "a" / f"{name}.bin")


def splits_of_images(path):
    for split in ("train", "val"):
        for kind in ("images", "labels"):  # as YOLO has them
            (path / "a" / kind / split).mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(path / "a/images" / split / "0.png")
        (path / "a/labels" / split / "0.txt").write_text("0 0.5 0.5 1 1")


@pytest.mark.parametrize("write", [splits_in_groups, splits_in_folders, splits_of_tokens, splits_of_images])
def test_splits_that_are_joined_are_said(tmp_path, write):
    notes = []
    write(tmp_path)
    add(tmp_path / "a", data_dir=tmp_path / "data", warn=notes.append)
    (splits,) = noted(notes, "several-splits")
    assert len(splits) == 2
    assert len(noted(open_source(tmp_path / "a").notes, "several-splits")) == 1


def test_columns_that_are_names_of_folders_are_said(tmp_path):
    for year in (2020, 2021):
        (tmp_path / f"a/year={year}").mkdir(parents=True)
        pq.write_table(pa.table({"x": [1.0, 2.0]}), tmp_path / f"a/year={year}/0.parquet")
    notes = []
    add(tmp_path / "a", data_dir=tmp_path / "data", warn=notes.append)
    assert noted(notes, "not-read") == [{"columns": 1}]


@pytest.mark.parametrize(
    ("suffix", "word"),
    [(".bin", "parts:of=tokens"), (".mat", "loadmat"), (".nii.gz", "nibabel"), (".nc", "a/0.nc")],
)
def test_a_folder_of_files_of_one_kind_says_how_they_are_read(tmp_path, suffix, word):
    (tmp_path / "a").mkdir()
    for number in range(2):
        (tmp_path / f"a/{number}{suffix}").write_bytes(bytes(100))
    with refused_as("unrecognized", SourceError, hint=has(word)):
        open_source(tmp_path / "a")


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_tables_in_text_in_a_folder_are_parts(tmp_path, suffix):
    (tmp_path / "a").mkdir()
    head, line = {"csv": ("n,r\n", "{},0.5\n"), "jsonl": ("", '{{"n": {}, "r": 0.5}}\n')}[suffix]
    for number in (1, 2, 10):
        (tmp_path / f"a/part{number}.{suffix}").write_text(head + line.format(number) * number)
    (tmp_path / "a/README.md").write_text("what they are")
    source = open_source(tmp_path / "a")
    (batch,) = source.batches()
    assert batch["n"].tolist() == [1] + [2] * 2 + [10] * 10
    assert [note.values for note in source.notes] == [{"files": 4, "not_read": 1, ".md": 1}]
    with refused_as("unrecognized", SourceError, hint=has("iobench prepare --source")):
        add(tmp_path / "a", data_dir=tmp_path / "data")
    (tmp_path / f"a/part3.{suffix}").write_text("n,z\n1,2\n" if suffix == "csv" else '{"n": 1}\n')
    with refused_as("missing-array" if suffix == "csv" else "empty-cell", SourceError):
        open_source(tmp_path / "a")


@pytest.mark.parametrize("command", [("add",), ("prepare", "--format", "npy", "--source")])
def test_a_line_says_whether_all_was_read(tmp_path, inside, command):
    folder = folder_of(tmp_path / "a", ".npy", X)
    words = (*command, folder, "--data-dir", tmp_path / "data")
    assert "read: 12 files, all that they hold" in inside(*words).stderr
    assert json.loads(inside(*words, "--json").stdout)["read"] == {"files": 12, "complete": True}
    hdf5(tmp_path / "a.h5", X, np.arange(12))
    selected = inside(*words[:-3], f"{tmp_path / 'a.h5'}::x", *words[-2:], "--json")
    assert json.loads(selected.stdout)["read"] == {"files": 1, "complete": False}
    (folder / "notes.md").write_text("")
    done = inside(*words, "--overwrite")
    assert "read: 12 files, and something was left out" in done.stderr
    assert "1 of 13 files: 1 .md" in done.stderr
    printed = json.loads(inside(*words, "--overwrite", "--json").stdout)
    assert printed["read"] == {"files": 12, "complete": False}
    (note,) = [note for note in printed["notes"] if note["kind"] == "not-read"]
    assert note["values"] == {"files": 13, "not_read": 1, ".md": 1}
