"""Several files as one dataset: parts, samples or fields, as their shapes and names say."""

import gzip
import io
import json

import h5py
import numpy as np
import pytest
import torch
import zarr
from kinds import has, kind, refused_as
from PIL import Image

import iobench
from iobench.base.errors import SourceError
from iobench.dataset.add import add
from iobench.dataset.samples import Samples
from iobench.dataset.sources import open_source

X = np.random.default_rng(0).random((12, 9, 2))


def npy(file, x):
    np.save(file, x)


def packed(file, x):
    stream = io.BytesIO()
    np.save(stream, x)
    file.write_bytes(gzip.compress(stream.getvalue()))


def npz(file, x):
    np.savez(file, x=x, y=len(file.stem))


def pt(file, x):
    torch.save({"x": torch.from_numpy(x), "y": len(file.stem)}, file)


def safetensors(file, x):
    numpy = pytest.importorskip("safetensors.numpy")
    numpy.save_file({"x": x, "y": np.array(len(file.stem))}, file)


def hdf5(file, x, **options):
    with h5py.File(file, "w") as opened:
        opened.create_dataset("x", data=x, **options)


def hdf5_sample(file, x):
    hdf5(file, x)
    with h5py.File(file, "a") as opened:
        opened["y"] = len(file.stem)


WRITERS = {".npy": npy, ".npy.gz": packed, ".npz": npz, ".pt": pt, ".safetensors": safetensors, ".h5": hdf5}
SAMPLES = WRITERS | {".h5": hdf5_sample}


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
    assert [one.values for one in notes if one.kind == "files"] == [
        one.values for one in source.notes if one.kind == "files"
    ]
    with manifest.opener(row.variant)() as reader:
        batch = reader.batch(slice(None))
        order = np.random.default_rng(1).permutation(len(reader))
        mixed = reader.batch(order)
        sample = reader.sample(len(reader) - 1)
    assert [field.typed for field in source.schema.fields] == [
        field.typed for field in manifest.schema.fields
    ]
    prepared = {name: [part[name] for part in source.batches()] for name in batch}
    loader = iobench.StreamLoader(manifest.root, format=row.variant, batch_size=5, order="sequential")
    streamed = list(loader)
    for name, array in batch.items():
        if hasattr(array, "offsets"):
            assert (
                np.concatenate([part.values for part in prepared[name]]).tobytes() == array.values.tobytes()
            )
            assert mixed[name].values.tobytes() == array[order].values.tobytes()
            values = torch.cat([part[name].values for part in streamed]).numpy()
            assert values.tobytes() == array.values.tobytes()
            continue
        np.testing.assert_array_equal(np.concatenate(prepared[name]), array)
        np.testing.assert_array_equal(mixed[name], array[order])
        np.testing.assert_array_equal(sample[name], array[-1])
        np.testing.assert_array_equal(torch.cat([part[name] for part in streamed]).numpy(), array)
    return batch, notes, row.variant


@pytest.mark.parametrize("suffix", SAMPLES)
def test_each_numbered_file_is_a_sample(tmp_path, suffix):
    batch, notes, variant = read(folder_of(tmp_path / "a", suffix, X, writers=SAMPLES), tmp_path)
    assert variant == "samples"
    np.testing.assert_array_equal(batch["x"], X)  # in natural order: 2 before 10
    if "y" in batch:
        assert batch["y"].tolist() == [1] * 10 + [2] * 2
    told = [] if "y" in batch and suffix != ".h5" else [{"files": 12, "relation": "samples"}]
    assert [note.values for note in notes if note.kind == "files"] == told


@pytest.mark.parametrize("options", [{}, {"chunks": (3, 2)}, {"chunks": (3, 2), "compression": "gzip"}])
def test_hdf5_files_of_several_lengths_are_parts(tmp_path, options):
    for number in range(1, 12):
        (tmp_path / "a").mkdir(exist_ok=True)
        hdf5(tmp_path / f"a/patient{number}.h5", X[number, : 3 + number % 5], **options)
    batch, notes, variant = read(tmp_path / "a", tmp_path)
    assert variant == "parts:of=hdf5"
    np.testing.assert_array_equal(batch["x"], np.concatenate([X[n, : 3 + n % 5] for n in range(1, 12)]))
    assert [note.values for note in notes if note.kind == "files"] == [{"files": 11, "relation": "parts"}]


def test_folders_in_one_format_are_parts(tmp_path):
    for number in (10, 9):
        folder_of(tmp_path / f"a/e{number}", ".npy", [X[number], X[number, :, 0]], "f{}")
    batch, notes, variant = read(tmp_path / "a", tmp_path)
    assert variant == "parts"  # of npy
    assert [note.values for note in notes] == [{"folders": 2, "relation": "parts"}]
    np.testing.assert_array_equal(batch["f0"], np.concatenate([X[9], X[10]]))


def test_shards_of_tokens_with_and_without_headers_are_parts(tmp_path):
    tokens, header = np.arange(70_000, dtype=np.uint16) % 50_000, np.zeros(256, np.int32)
    header[:3] = 20240520, 1, len(tokens)
    (tmp_path / "a").mkdir()
    (tmp_path / "a/shard_0.bin").write_bytes(header.tobytes() + tokens.tobytes())
    np.save(tmp_path / "a/shard_1.npy", tokens[:2049])
    batch, notes, variant = read(tmp_path / "a", tmp_path)
    assert variant == "parts:of=tokens"
    assert batch["tokens"].shape == (68 + 2, 1025)
    np.testing.assert_array_equal(batch["tokens"][-1], tokens[1024:2049])
    assert [note.values["left_over"] for note in notes] == [len(tokens) - 68 * 1024 - 1]


def test_a_vocabulary_beside_tokens_is_not_read(tmp_path):
    tokens, notes = np.arange(3000, dtype=np.uint16), []
    (tmp_path / "a").mkdir()
    for name, content in {"val.bin": tokens, "meta.pkl": tokens[:2000], "prepare.py": tokens[:7]}.items():
        (tmp_path / "a" / name).write_bytes(content.tobytes())
    with refused_as("unrecognized", SourceError, match="--format parts:of=tokens"):
        add(tmp_path / "a", data_dir=tmp_path / "data")
    add(tmp_path / "a", "parts:of=tokens", data_dir=tmp_path / "data", warn=notes.append)
    assert {"files": 3, "not_read": 2, ".pkl": 1, ".py": 1} in [one.values for one in notes]


@pytest.mark.parametrize("beside", ["convert.log", "save.py", "README.rst"])
def test_what_is_no_data_beside_samples_is_counted(tmp_path, beside):
    folder_of(tmp_path / "a", ".npz", [X[0], X[1]], "x{}")
    (tmp_path / "a" / beside).touch()
    _, notes, variant = read(tmp_path / "a", tmp_path)
    assert variant == "samples"
    assert [one.values["not_read"] for one in notes if one.kind == "not-read"] == [1]


@pytest.mark.parametrize(("size", "cause"), [(800, "too-few-tokens"), (801, "source")])
def test_a_short_or_odd_shard_of_tokens_is_named_with_what_to_type(tmp_path, size, cause):
    tokens = (np.arange(70_000) % 50_000).astype(np.uint16).tobytes()
    (tmp_path / "a").mkdir()
    for number, length in enumerate((size, len(tokens))):
        (tmp_path / f"a/shard_{number}.bin").write_bytes(tokens[:length])
    for file in ("meta.pkl", "README.md"):
        (tmp_path / "a" / file).write_bytes(b"")
    with refused_as(cause, SourceError, path=str(tmp_path / "a/shard_0.bin")) as caught:
        add(tmp_path / "a", data_dir=tmp_path / "data")
    if cause == "too-few-tokens":
        manifest, _ = add(tmp_path / "a", caught.value.hint.split()[-1], data_dir=tmp_path / "data")
        assert manifest.schema.fields[0].typed == "tokens=uint16[400]"


def test_shards_of_tokens_in_npy_are_asked_for(tmp_path):
    folder = folder_of(tmp_path / "a", ".npy", [np.arange(2000, dtype=np.uint16)] * 3)
    with refused_as("several-readings", SourceError, hint=has("parts:of=tokens")):
        open_source(folder)
    assert add(folder, "parts:of=tokens", data_dir=tmp_path / "data")[0].schema.samples == 3


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
    (left,) = [note for note in notes if note.kind == "not-read"]
    assert left.values == {"files": 48, "not_read": 12, ".txt": 12}
    (folder / "7.cls").unlink()
    with refused_as("missing-label", SourceError):
        open_source(folder)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_files_of_several_lengths_are_samples_of_several_lengths(tmp_path, save):
    (tmp_path / "a").mkdir()
    samples = [X[row, : 3 + row % 4] for row in range(6)]
    for row, sample in enumerate(samples):
        save(tmp_path / f"a/{row}.npz", x=sample, y=row)
    batch, _, variant = read(tmp_path / "a", tmp_path)
    assert (variant, batch["y"].tolist()) == ("samples", list(range(6)))
    np.testing.assert_array_equal(batch["x"].values, np.concatenate(samples))


@pytest.mark.parametrize(
    ("relation", "shape"), [("samples", (3, 9, 2)), ("parts", (27, 2)), ("fields", (9, 2))]
)
def test_files_that_may_be_read_in_several_ways_are_asked_for(tmp_path, relation, shape):
    folder = tmp_path / "a"
    for row, name in enumerate(("left", "middle", "right")):
        folder_of(folder, ".npy", X[row : row + 1], name)
    for opened in (open_source, lambda folder: add(folder, data_dir=tmp_path / "data")):
        with refused_as("several-readings", SourceError, hint=has(f"--files {relation}")):
            opened(folder)
    batch, _, _ = read(folder, tmp_path, files=relation)
    assert next(iter(batch.values())).shape == shape
    assert len(batch) == (3 if relation == "fields" else 1)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".pt", ".h5"])
def test_files_that_are_named_as_parts_are_joined(tmp_path, suffix):
    writers = {".npz": lambda file, x: np.savez(file, x=x), ".pt": lambda file, x: pt_parts(file, x)}
    folder = folder_of(tmp_path / "a", suffix, [X[:8, 0], X[8:, 0]], "part-{}", WRITERS | writers)
    batch, notes, _ = read(folder, tmp_path)
    np.testing.assert_array_equal(batch["x"], X[:, 0])
    assert notes[0].values["relation"] == "parts"


def pt_parts(file, x):
    torch.save({"x": torch.from_numpy(x)}, file)


def test_arrays_of_one_length_and_several_kinds_are_fields(tmp_path):
    batch, _, variant = read(folder_of(tmp_path / "a", ".npy", [X, X[:, 0, 0]], "f{}"), tmp_path)
    assert (variant, [*batch]) == ("npy", ["f0", "f1"])


def test_the_splits_of_one_folder_need_folders_of_their_own(tmp_path):
    folder = folder_of(tmp_path / "a", ".npy", [X, X[:, 0, 0]], "f{}_train")
    folder_of(folder, ".npy", [X[:3], X[:3, 0, 0]], "f{}_test")
    with refused_as("unequal-shapes", SourceError, hint=has("folder of its own")):
        open_source(folder)


def test_numbered_arrays_that_differ_in_a_later_axis_are_no_fields(tmp_path):
    folder = folder_of(tmp_path / "a", ".npy", [X[:2, :, :n] for n in (1, 2, 1)], "patient{}")
    with refused_as("unequal-shapes", SourceError, hint=has("moveaxis(x, 2, 0)")):
        open_source(folder)
    batch, _, variant = read(folder, tmp_path, files="fields")
    assert (variant, len(batch)) == ("npy", 3)


def test_files_whose_other_arrays_differ_in_length_are_read_by_name(tmp_path):
    (tmp_path / "a").mkdir()
    for number in range(2):
        with h5py.File(tmp_path / f"a/{number}.nc", "w") as file:
            file["x"], file["lat"] = X[: 3 + number], np.arange(5.0)
            file.create_dataset("crs", (), "i4")  # never written, as NetCDF's conventions have it
    manifest = add(f"{tmp_path / 'a'}::x", data_dir=tmp_path / "data")[0]
    with manifest.opener("parts:of=hdf5")() as reader:
        np.testing.assert_array_equal(reader.batch(slice(0, 7))["x"], np.concatenate([X[:3], X[:4]]))
    with h5py.File(tmp_path / "a/0.nc", "a") as file:
        del file["lat"]
    assert [field.name for field in open_source(tmp_path / "a/0.nc").schema.fields] == ["x"]


@pytest.mark.parametrize("write", ["hdf5", "hdf5 groups", "zarr"])
def test_attributes_that_may_be_labels_are_said_to_be_left_out(tmp_path, write):
    for number in range(3):
        if write == "zarr":
            group = zarr.create_group(tmp_path / f"a/{number}")
            array = group.create_array("x", data=X[: number + 1])
            array.attrs.update(label=number, units="mm")
        else:
            (tmp_path / "a").mkdir(exist_ok=True)
            name, group = (f"{number}.h5", "") if write == "hdf5" else ("all.h5", f"p{number}/")
            with h5py.File(tmp_path / "a" / name, "a") as file:
                file[f"{group}x"] = X[: number + 1]
                file[f"{group}x"].attrs.update(label=number, units="mm", _FillValue=-1)
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


def lacking(folder):
    np.savez(folder / "3.npz", x=X[3])


def of_another_shape(folder):
    np.savez(folder / "3.npz", x=X[3, :, 0], y=1)


def pickled(folder):
    np.savez(folder / "3.npz", x=np.array([{}]), y=1)


def cut_off(folder):
    (folder / "3.npz").write_bytes((folder / "2.npz").read_bytes()[:200])


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lacking, "missing-array"),
        (of_another_shape, "unequal-shapes"),
        (pickled, "missing-array"),
        (cut_off, "damaged"),
    ],
)
def test_a_file_that_differs_is_named(tmp_path, change, cause):
    folder = folder_of(tmp_path / "a", ".npz", X)
    change(folder)
    with refused_as(cause, SourceError, path=folder / "3.npz"):
        open_source(folder)


def test_links_of_a_download_cache_to_its_blobs_are_followed(tmp_path):
    repository = tmp_path / "hub/datasets--a--b"
    folder = repository / "snapshots/1f3a/data"
    folder.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for row in range(3):
        np.savez(tmp_path / "x.npz", x=X[row], y=row)
        (tmp_path / "x.npz").rename(repository / f"blobs/{row}f")
        (folder / f"{row}.npz").symlink_to(f"../../../blobs/{row}f")
    assert read(folder, tmp_path)[0]["y"].tolist() == [0, 1, 2]
    (folder / "3.npz").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_bytes(b"")
    with refused_as("link-outside", SourceError):
        open_source(folder)


CHUNKS = {"chunks": (2, 2)}
LAYOUTS = {"contiguous": {}, "chunked": CHUNKS, "packed": {**CHUNKS, "compression": "gzip"}}


def raw_files(folder, **options):
    """Write three files with five rows of x each, below a folder; return their names."""
    (folder / "raw").mkdir(parents=True)
    for number in range(3):
        hdf5(folder / f"raw/p{number}.h5", X[number, :5], **options)
    return [f"raw/p{number}.h5" for number in range(3)]


def virtual(file, names, shape=(15, 2), place=lambda number: slice(5 * number, 5 * number + 5), part=...):
    layout = h5py.VirtualLayout(shape, "f8")
    for number, name in enumerate(names):
        layout[place(number)] = h5py.VirtualSource(name, "x", (5, 2))[part]
    with h5py.File(file, "w") as opened:
        opened.create_virtual_dataset("x", layout)
    return file


def end_to_end(folder, names):
    return virtual(folder / "all.h5", names), X[:3, :5].reshape(15, 2)


def parts_of_rows(folder, names):
    file = virtual(folder / "all.h5", names, (6, 2), lambda n: slice(2 * n, 2 * n + 2), slice(1, 3))
    return file, X[:3, 1:3].reshape(6, 2)


def stacked(folder, names):
    return virtual(folder / "all.h5", names, (3, 5, 2), lambda number: number), X[:3, :5]


def side_by_side(folder, names):
    file = virtual(folder / "all.h5", names, (5, 6), lambda n: (slice(None), slice(2 * n, 2 * n + 2)))
    return file, np.concatenate(X[:3, :5], 1)


def of_virtual(folder, names):
    virtual(folder / "inner.h5", names)
    layout = h5py.VirtualLayout((15, 2), "f8")
    layout[:] = h5py.VirtualSource("inner.h5", "x", (15, 2))
    with h5py.File(folder / "all.h5", "w") as opened:
        opened.create_virtual_dataset("x", layout)
    return folder / "all.h5", X[:3, :5].reshape(15, 2)


def linked(folder, names):
    with h5py.File(folder / "all.h5", "w") as opened:
        opened["x"] = h5py.ExternalLink(names[1], "/x")
    return folder / "all.h5", X[1, :5]


def linked_group(folder, names):
    with h5py.File(folder / "all.h5", "w") as opened:
        opened["p"] = h5py.ExternalLink(names[1], "/")
    return folder / "all.h5", X[1, :5]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "make", [end_to_end, parts_of_rows, stacked, side_by_side, of_virtual, linked, linked_group]
)
def test_data_of_other_hdf5_files_are_read_where_they_lie(tmp_path, make, layout):
    file, rows = make(tmp_path / "a", raw_files(tmp_path / "a", **LAYOUTS[layout]))
    batch, _, variant = read(file, tmp_path)
    np.testing.assert_array_equal(next(iter(batch.values())), rows)
    manifest, _ = add(file, data_dir=tmp_path / "data", overwrite=True)
    with manifest.opener(variant)() as reader:
        known = reader.placement()
    runs = make in (end_to_end, linked, linked_group) or (make is parts_of_rows and layout == "contiguous")
    assert bool(known) == (runs and layout != "packed")
    files = {one.name for one in manifest.files_of(variant)}
    assert files >= {"all.h5", "p1.h5"}
    (tmp_path / "a/raw/p1.h5").touch()
    with pytest.raises(iobench.base.errors.CorruptArtifact, check=kind("changed")):
        manifest.opener(variant)


def missing(folder, names):
    (folder / names[2]).unlink()
    return virtual(folder / "all.h5", names)


def shorter(folder, names):
    hdf5(folder / names[2], X[0, :4])
    return virtual(folder / "all.h5", names)


def partly_covered(folder, names):
    return virtual(folder / "all.h5", names[:2])


def outside(folder, names):
    hdf5(folder.parent / "p3.h5", X[0, :5])
    return virtual(folder / "all.h5", [*names[:2], "../p3.h5"])


def link_outside(folder, names):
    hdf5(folder.parent / "p3.h5", X[0, :5])
    (folder / names[2]).unlink()
    (folder / names[2]).symlink_to(folder.parent / "p3.h5")
    return virtual(folder / "all.h5", names)


def in_raw_files(folder, sizes=(240,), names=("raw/p0.bin", "raw/p1.bin")):
    """Describe 15 rows of 16 bytes in raw files, behind 8 bytes each, and write these."""
    (folder / "raw").mkdir(parents=True, exist_ok=True)
    with h5py.File(folder / "all.h5", "w") as file:
        external = [(name, 8, size) for name, size in zip(names, sizes, strict=False)]
        file.create_dataset("x", (15, 2), "f8", external=external)
    stored = X[:3, :5].tobytes()
    for name, size in zip(names, sizes, strict=False):
        (folder / name).write_bytes(b"8 before" + stored[:size])
        stored = stored[size:]
    return folder / "all.h5"


@pytest.mark.parametrize(("sizes", "placed"), [((240,), True), ((80, 160), True), ((88, 152), False)])
def test_raw_files_of_an_hdf5_file_are_read_beside_it(tmp_path, monkeypatch, sizes, placed):
    file, rows = in_raw_files(tmp_path / "a", sizes), X[:3, :5].reshape(15, 2)
    in_raw_files(tmp_path / "elsewhere", (240,))
    (tmp_path / "elsewhere/raw/p0.bin").write_bytes(bytes(300))
    monkeypatch.chdir(tmp_path / "elsewhere")  # where HDF5 looks for raw files by default
    batch, _, variant = read(file, tmp_path)
    np.testing.assert_array_equal(batch["x"], rows)
    manifest, _ = add(file, data_dir=tmp_path / "data", overwrite=True)
    names = {"all.h5", *(f"p{number}.bin" for number in range(len(sizes)))}
    assert {one.name for one in manifest.files_of(variant)} == names
    with manifest.opener(variant)() as reader:
        assert bool(reader.placement()) == placed
        if placed:
            number, offset = reader.placement()["x"].locate(np.array([14]))
            stored = reader.placement()["x"].files[number[0]].read_bytes()
            assert np.frombuffer(stored, "f8", 2, int(offset[0])).tolist() == rows[14].tolist()
    (tmp_path / "a/raw/p0.bin").touch()
    with pytest.raises(iobench.base.errors.CorruptArtifact, check=kind("changed")):
        manifest.opener(variant)


def raw_missing(folder, names):
    file = in_raw_files(folder)
    (folder / "raw/p0.bin").unlink()
    return file


def raw_shorter(folder, names):
    file = in_raw_files(folder)
    (folder / "raw/p0.bin").write_bytes(bytes(247))
    return file


def raw_outside(folder, names):
    return in_raw_files(folder, names=["../p0.bin"])


def virtual_of_raw(folder, names):
    in_raw_files(folder).rename(folder / "whole.h5")
    layout = h5py.VirtualLayout((15, 2), "f8")
    layout[:] = h5py.VirtualSource("whole.h5", "x", (15, 2))
    with h5py.File(folder / "all.h5", "w") as opened:
        opened.create_virtual_dataset("x", layout)
    return folder / "all.h5"


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (raw_missing, "missing-file"),
        (raw_shorter, "not-stored"),
        (raw_outside, "external-data"),
        (virtual_of_raw, "external-data"),
        (missing, "missing-file"),
        (shorter, "not-stored"),
        (partly_covered, "not-stored"),
        (outside, "external-data"),
        (link_outside, "link-outside"),
    ],
)
def test_fill_values_in_place_of_data_are_never_read(tmp_path, make, cause):
    file = make(tmp_path / "a", raw_files(tmp_path / "a"))
    for opened in (open_source, lambda file: add(file, data_dir=tmp_path / "data")):
        with refused_as(cause, SourceError):
            opened(file)


def test_a_folder_with_a_file_that_is_composed_of_the_others_is_refused(tmp_path):
    names = raw_files(tmp_path / "a")
    file = virtual(tmp_path / "a/all.h5", names)
    with refused_as("several-readings", SourceError, path=file):
        add(tmp_path / "a", "parts:of=hdf5", data_dir=tmp_path / "data")


def groups_of(file, lengths, equal=False):
    """Write a group of x and y per number, as robomimic does; return all rows of x."""
    with h5py.File(file, "w") as opened:
        for number, length in enumerate(lengths):
            opened[f"data/demo_{number}/obs/x"] = X[number, :length]
            opened[f"data/demo_{number}/y"] = np.full(length, number)
        opened["mask/train"] = [b"demo_0", b"demo_1"]
    return np.concatenate([X[number, :length] for number, length in enumerate(lengths)])


def test_groups_of_a_file_are_parts(tmp_path):
    lengths = [3 + number % 4 for number in range(12)]
    rows = groups_of(tmp_path / "a.hdf5", lengths)
    batch, notes, variant = read(tmp_path / "a.hdf5", tmp_path)
    assert (variant, [*batch]) == ("parts:of=hdf5", ["obs_x", "y"])
    np.testing.assert_array_equal(batch["obs_x"], rows)  # in natural order: demo_2 before demo_10
    assert {note.kind: note.values for note in notes} == {
        "files": {"groups": 12, "relation": "parts"},
        "not-read": {"arrays": 1},
    }


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
    for opened in (open_source, lambda file: add(file, data_dir=tmp_path / "data")):
        with refused_as("several-readings", SourceError, hint=has(f"--files {relation}")):
            opened(tmp_path / "a.h5")
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
    group = pytest.importorskip("zarr").open_group(path, mode="w")
    for number in range(3):
        group[f"patient{number}/ct"], group[f"patient{number}/label"] = (
            X[number, : 3 + number],
            np.arange(3 + number),
        )
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


@pytest.mark.parametrize("change", [lambda file: file.__delitem__("p4/y"), None], ids=["lacking", "dtype"])
def test_the_group_that_differs_from_the_others_is_named(tmp_path, change):
    with h5py.File(tmp_path / "a.h5", "w") as opened:
        for number in range(5):
            opened[f"p{number}/x"] = X[number, : 3 + number % 3]
            rows = np.arange(3 + number % 3)
            opened[f"p{number}/y"] = rows.astype(np.int8) if number == 4 and change is None else rows
        if change is not None:
            change(opened)
    with refused_as("unlike-groups", SourceError, problem=has("p4")):
        add(tmp_path / "a.h5", data_dir=tmp_path / "data")


def test_an_empty_part_is_named(tmp_path):
    patients_in_hdf5(tmp_path / "a")
    with h5py.File(tmp_path / "a/patient1.h5", "a") as opened:
        del opened["ct"], opened["label"]
        opened["ct"], opened["label"] = X[0, :0], np.arange(0)
    with refused_as("empty-array", SourceError, path=str(tmp_path / "a/patient1.h5")):
        add(tmp_path / "a", data_dir=tmp_path / "data")


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


def test_scalars_of_a_zarr_group_are_left_out_unless_they_are_named(tmp_path):
    group = pytest.importorskip("zarr").open_group(tmp_path / "a.zarr", mode="w")
    group["x"] = X
    group.create_array("version", data=np.array(2))
    batch, notes, _ = read(tmp_path / "a.zarr", tmp_path)
    assert ([*batch], [note.values for note in notes]) == (["x"], [{"arrays": 1}])
    with refused_as("no-sample-axis", SourceError):
        open_source(f"{tmp_path / 'a.zarr'}::version")


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


def test_a_sample_that_loses_an_array_is_named(tmp_path):
    (tmp_path / "a").mkdir()
    for number in range(3):
        np.savez(tmp_path / f"a/{number}.npz", x=X[number], y=number)
    schema = Samples().infer_schema(tmp_path / "a")
    np.savez(tmp_path / "a/1.npz", y=1)
    with Samples().open(tmp_path / "a", schema) as reader, refused_as("corrupt-artifact", found="none"):
        reader.placement()


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
    assert [len(note.values) for note in notes if note.kind == "not-read"] == [1]


def test_links_to_one_file_are_not_read_twice(tmp_path):
    blob = tmp_path / "hub/blobs/0"
    blob.parent.mkdir(parents=True)
    with open(blob, "wb") as file:
        np.save(file, X)
    for revision in ("a1", "b2"):
        folder = tmp_path / "hub/snapshots" / revision
        folder.mkdir(parents=True)
        (folder / "x.npy").symlink_to(blob)
    for opened in (open_source, lambda folder: add(folder, data_dir=tmp_path / "data")):
        with refused_as("same-file", SourceError) as caught:
            opened(tmp_path / "hub")
    assert len(open_source(caught.value.hint.split()[-1]).schema.fields) == 1


def splits_in_groups(path):
    with h5py.File(path / "a.h5", "w") as file:
        file["train/x"], file["test/x"] = X[:8], X[8:]
    return path / "a.h5"


def splits_in_folders(path):
    for split in ("train", "validation"):
        folder = path / "a" / split
        folder.mkdir(parents=True)
        np.save(folder / "x.npy", X)
        np.save(folder / "y.npy", np.arange(len(X)))
    return path / "a"


def splits_of_tokens(path):
    (path / "a").mkdir()
    for name in ("fineweb_train_000001", "fineweb_val_000000"):
        (np.arange(60_000) % 50_000).astype(np.uint16).tofile(path / "a" / f"{name}.bin")
    return path / "a"


def splits_of_images(path):
    for split in ("train", "val"):
        for kind_of in ("images", "labels"):  # as YOLO has them
            (path / "a" / kind_of / split).mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(path / "a/images" / split / "0.png")
        (path / "a/labels" / split / "0.txt").write_text("0 0.5 0.5 1 1")
    return path / "a"


@pytest.mark.parametrize("write", [splits_in_groups, splits_in_folders, splits_of_tokens, splits_of_images])
def test_splits_that_are_joined_are_said(tmp_path, write):
    path, notes = write(tmp_path), []
    add(path, data_dir=tmp_path / "data", warn=notes.append)
    (splits,) = [note for note in notes if note.kind == "several-splits"]
    assert len(splits.values) == 2
    assert [note.kind for note in open_source(path).notes].count("several-splits") == 1


@pytest.mark.parametrize("stores", [("a",), ("a/1.zarr", "a/2.zarr")], ids=["groups", "folders"])
def test_samples_are_not_made_of_what_holds_several(tmp_path, stores):
    for store in stores:
        patients_in_zarr(tmp_path / store)
    with refused_as("several-readings", SourceError, hint=has("--files parts")):
        open_source(tmp_path / "a", files="samples")


def test_columns_that_are_names_of_folders_are_said(tmp_path):
    parquet, pa = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    for year in (2020, 2021):
        (tmp_path / f"a/year={year}").mkdir(parents=True)
        parquet.write_table(pa.table({"x": [1.0, 2.0]}), tmp_path / f"a/year={year}/0.parquet")
    notes = []
    add(tmp_path / "a", data_dir=tmp_path / "data", warn=notes.append)
    (note,) = [note for note in notes if note.kind == "not-read"]
    assert note.values == {"columns": 1}


def test_shards_of_tokens_in_npy_say_how_windows_are_read(tmp_path):
    folder, notes = tmp_path / "a", []
    folder.mkdir()
    for number in range(3):
        np.save(folder / f"shard_{number}.npy", np.arange(20_000 + number, dtype=np.uint16))
    add(folder, data_dir=tmp_path / "data", warn=notes.append)
    (hint,) = [note.hint for note in notes if note.kind == "single-numbers"]
    with refused_as("not-a-file", SourceError) as caught:
        add(folder, "tokens", data_dir=tmp_path / "data")
    for name, said in enumerate((hint.split(";")[0], caught.value.hint)):
        manifest, _ = add(folder, said.split()[-1], name=f"windows-{name}", data_dir=tmp_path / "data")
        assert manifest.schema.fields[0].typed == "tokens=uint16[1025]"


def test_groups_of_a_zarr_store_are_parts(tmp_path):
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(tmp_path / "a.zarr", mode="w")
    for number in range(12):
        group.create_array(f"data/demo_{number}/x", data=X[number, : 3 + number % 4])
    batch, notes, variant = read(tmp_path / "a.zarr", tmp_path)
    assert variant == "parts:of=zarr"
    np.testing.assert_array_equal(batch["x"], np.concatenate([X[n, : 3 + n % 4] for n in range(12)]))
    assert notes[0].values == {"groups": 12, "relation": "parts"}


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_tables_in_text_in_a_folder_are_parts(tmp_path, suffix):
    (tmp_path / "a").mkdir()
    lines = {"csv": "{},0.5\n", "jsonl": '{{"n": {}, "r": 0.5}}\n'}[suffix]
    for number in (1, 2, 10):
        head = "n,r\n" if suffix == "csv" else ""
        (tmp_path / f"a/part{number}.{suffix}").write_text(head + lines.format(number) * number)
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
    other = hdf5_sample(tmp_path / "a.h5", X) or tmp_path / "a.h5"
    selected = inside(*words[:-3], f"{other}::x", *words[-2:], "--json")
    assert json.loads(selected.stdout)["read"] == {"files": 1, "complete": False}
    (folder / "notes.md").write_text("")
    done = inside(*words, "--overwrite")
    assert "read: 12 files, and something was left out" in done.stderr
    assert "1 of 13 files: 1 .md" in done.stderr


def test_pictures_beside_arrays_are_counted_and_change_nothing(tmp_path):
    for name, save in (("a", np.save), ("b", lambda file, x: np.savez(f"{file}.npz", x=x))):
        (tmp_path / name).mkdir()
        for number in range(5):
            save(tmp_path / name / str(number), np.full((4, 4), number))
            Image.new("RGB", (8, 8)).save(tmp_path / name / f"{number}.png")
        source = open_source(tmp_path / name)
        assert (source.schema.samples, source.schema.fields[0].shape) == (5, (4, 4))
        assert [one.values[".png"] for one in source.notes if one.kind == "not-read"] == [5]
