"""HDF5 files whose data are elsewhere are refused, and the targets of their links are not opened."""

import os
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest
from kinds import has, refused_as

from iobench import formats
from iobench.base.errors import CorruptArtifact
from iobench.formats import Field, Schema
from iobench.testing.cases import SCHEMA, read_all, store
from iobench.testing.placements import assert_placements

HDF5 = formats.get("hdf5")


@pytest.fixture
def artifact(tmp_path):
    return store(formats.get("hdf5", chunk_bytes=0), tmp_path / "a", SCHEMA)


@pytest.fixture
def file(artifact):
    """The artifact's file, opened for writing, without its label."""
    with h5py.File(artifact.path / "data.h5", "r+") as file:
        del file["label"]
        yield file


@pytest.fixture
def elsewhere(tmp_path):
    """Another HDF5 file with the same label."""
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["label"] = np.zeros(SCHEMA.samples, "int64")
    return tmp_path / "other.h5"


def external(file, elsewhere):
    raw = elsewhere.with_name("secret.bin")
    raw.write_bytes(bytes(8 * SCHEMA.samples))
    file.create_dataset("label", (SCHEMA.samples,), "int64", external=[(str(raw), 0, 8 * SCHEMA.samples)])


def virtual(file, elsewhere):
    layout = h5py.VirtualLayout((SCHEMA.samples,), "int64")
    layout[:] = h5py.VirtualSource(str(elsewhere), "label", (SCHEMA.samples,))
    file.create_virtual_dataset("label", layout)


def link(file, elsewhere):
    file["label"] = h5py.ExternalLink(str(elsewhere), "label")


def soft_link_over_another(file, elsewhere):
    file["other"] = h5py.ExternalLink(str(elsewhere), "/")
    file["label"] = h5py.SoftLink("/other/label")


@pytest.mark.parametrize(
    ("leave", "refusal", "target"),
    [
        (external, "external-data", "secret.bin"),
        (virtual, "external-data", "other.h5"),
        (link, "corrupt-artifact", "label"),
        (soft_link_over_another, "corrupt-artifact", "/other/label"),
    ],
)
def test_data_outside_the_file_is_refused(artifact, file, elsewhere, leave, refusal, target):
    leave(file, elsewhere)
    file.close()
    with refused_as(refusal, path=artifact.path / "data.h5", found=has(target)) as error:
        artifact.open()
    assert str(error.value).count(str(artifact.path)) == 1


def test_a_link_to_a_pipe_does_not_hang(artifact, file, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    file["label"] = h5py.ExternalLink(str(tmp_path / "pipe"), "label")
    file.close()
    assert read_all(artifact.format, artifact.path, SCHEMA) is None


# Locations of samples


SAMPLES = 23
ROWS = np.random.default_rng(4).integers(0, 50, (SAMPLES, 6), np.int32)
FIELD = Schema(SAMPLES, (Field("x", (6,), "int32"),))


def stored(tmp_path, fill=ROWS, file=None, **options):
    """A reader of an array that h5py wrote with these options."""
    (tmp_path / "a").mkdir()
    with h5py.File(tmp_path / "a" / "data.h5", "w", **file or {}) as made:
        dataset = made.create_dataset("x", ROWS.shape, ROWS.dtype, **options)
        dataset[: len(fill)] = fill
    return HDF5.open(tmp_path / "a", FIELD)


PLAIN = [{"chunks": (rows, 6)} for rows in (1, 4, 5, 23)]
FILTERED = [
    {"chunks": (rows, 6), **filters}
    for rows in (5, 23)
    for filters in ({"compression": "gzip"}, {"shuffle": True}, {"compression": "gzip", "shuffle": True})
]
NOWHERE = [
    {"chunks": (5, 6), "fill": ROWS[:12]},  # a chunk that was never written
    {"chunks": (5, 3)},  # samples in several chunks
    {"chunks": (5, 6), "compression": "lzf"},  # a filter of HDF5's own
    {"chunks": (5, 6), "fletcher32": True},
    {"chunks": (5, 6), "file": {"userblock_size": 512}},
]
LAYOUTS = [((1, 0), PLAIN), ((0, 1), FILTERED), ((0, 0), NOWHERE)]


@pytest.mark.parametrize(
    ("located", "options"), [(counts, options) for counts, group in LAYOUTS for options in group]
)
def test_rows_have_a_placement_or_blocks_or_only_the_library_reads_them(tmp_path, located, options):
    with stored(tmp_path, **options) as reader:
        assert (len(reader.placement()), len(reader.blocks())) == located
        assert_placements(reader, {"x": ROWS})
        fill = options.get("fill", ROWS)
        np.testing.assert_array_equal(reader.batch(slice(None))["x"][: len(fill)], fill)


def test_a_chunk_with_a_skipped_filter_is_decoded_without_it(tmp_path):
    stored(tmp_path, chunks=(23, 6), compression="gzip").close()
    with h5py.File(tmp_path / "a" / "data.h5", "r+") as file:
        file["x"].id.write_direct_chunk((0, 0), ROWS[::-1].tobytes(), filter_mask=1)
    with HDF5.open(tmp_path / "a", FIELD) as reader:
        assert len(reader.blocks()) == 1
        assert_placements(reader, {"x": ROWS[::-1]})
        np.testing.assert_array_equal(reader.batch(slice(None))["x"], ROWS[::-1])


def test_a_block_that_inflates_beyond_a_chunk_is_corrupt_and_not_decoded(tmp_path):
    with stored(tmp_path, chunks=(23, 6), compression="gzip") as reader:
        (blocks,) = reader.blocks()
    chunk_bytes, out = ROWS.nbytes, {"x": np.empty((SAMPLES, 6), np.int32)}
    with pytest.raises(CorruptArtifact) as error:
        blocks.decode(0, memoryview(zlib.compress(bytes(50 << 20))), out)
    assert f"{chunk_bytes} bytes" in error.value.expected
    assert f"{chunk_bytes + 1} bytes" in error.value.found


@pytest.mark.parametrize("packed", [False, True])
def test_bools_that_are_stored_as_larger_numbers_are_read_by_the_library(tmp_path, packed):
    """As a C program writes them; NumPy's have one byte."""
    data, file = np.random.default_rng(0).random((10, 3)) > 0.5, tmp_path / "c.h5"
    kind = h5py.h5t.enum_create(h5py.h5t.STD_I32LE)
    for value, name in enumerate((b"FALSE", b"TRUE")):
        kind.enum_insert(name, value)
    with h5py.File(file, "w") as made:
        space = h5py.h5s.create_simple((10, 3))
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        if packed:
            plist.set_chunk((4, 3))
            plist.set_deflate(4)
        made_id = h5py.h5d.create(made.id, b"x", kind, space, plist)
        h5py.Dataset(made_id)[...] = data
    schema = HDF5.infer_schema(file)
    with HDF5.open(file, schema) as reader:
        np.testing.assert_array_equal(reader.batch(slice(None))["x"], data)
        assert reader.placement() == {}
        assert list(reader.blocks()) == []


def test_compressed_chunks_of_several_samples_are_noted(tmp_path):
    file, rows = tmp_path / "c.h5", np.zeros((40, 3), "float32")
    with h5py.File(file, "w") as made:
        made.create_dataset("slow", data=rows, chunks=(8, 3), compression="gzip")
        made.create_dataset("single", data=rows, chunks=(1, 3), compression="gzip")
        made.create_dataset("plain", data=rows, chunks=(8, 3))
    (note,) = HDF5.notes(file, HDF5.infer_schema(file))
    assert (note.kind, note.values) == ("compressed-chunks", {"field": "slow", "samples": 8})
    others = Path(f"{file}::single,plain")
    assert HDF5.notes(others, HDF5.infer_schema(others)) == []


@pytest.mark.parametrize("size", [512, 4096])
def test_a_file_behind_a_user_block_is_recognized_and_located(tmp_path, size):
    """As MATLAB 7.3 writes them."""
    file = tmp_path / "a.mat"
    with h5py.File(file, "w", userblock_size=size) as made:
        made["x"] = ROWS
        made["x"].attrs["MATLAB_class"] = np.bytes_("int32")
    assert HDF5.sniff(file)
    assert [note.kind for note in HDF5.notes(file, FIELD)] == ["matlab-order"]
    with HDF5.open(file, HDF5.infer_schema(file)) as reader:
        np.testing.assert_array_equal(reader.batch(slice(None))["x"], ROWS)
        assert_placements(reader, {"x": ROWS})


def test_arrays_of_matlab_that_differ_in_length_have_code_that_transposes_them(tmp_path, monkeypatch):
    x, y = np.arange(12.0).reshape(4, 3), np.arange(4.0).reshape(4, 1)
    with h5py.File(tmp_path / "a.mat", "w") as made:
        for name, array in {"x": x, "y": y}.items():
            made[name] = array.T
            made[name].attrs["MATLAB_class"] = np.bytes_("double")
    with refused_as("unequal-lengths", hint=has("numpy.savez")) as caught:
        HDF5.infer_schema(tmp_path / "a.mat")
    monkeypatch.chdir(tmp_path)
    exec(caught.value.hint.partition("convert it: ")[2], {"h5py": h5py, "numpy": np})
    with np.load("a.npz") as converted:
        np.testing.assert_array_equal(converted["x"], x)
        np.testing.assert_array_equal(converted["y"], y)


def test_attributes_that_say_what_the_numbers_stand_for_are_noted(tmp_path):
    """NetCDF's; xarray marks each array of floats with NaN, which hides nothing."""
    file = tmp_path / "a.nc"
    with h5py.File(file, "w") as made:
        for name, attributes in {
            "packed": {"scale_factor": 0.5, "add_offset": np.array([3.0]), "_FillValue": np.int32(-9)},
            "floats": {"_FillValue": np.float32("nan")},
        }.items():
            made[name] = ROWS
            made[name].attrs.update(attributes)
    (note,) = HDF5.notes(file, HDF5.infer_schema(file))
    values = {"field": "packed", "scale_factor": "0.5", "add_offset": "3.0", "_FillValue": "-9"}
    assert (note.kind, note.values) == ("not-decoded", values)


def test_what_has_no_axis_of_samples_is_left_out_with_one_line(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["x"] = ROWS
        file["version"], file["name"], file["none"] = 3, "text", h5py.Empty("f4")
        file["empty"], file["names"] = np.zeros((0, 3)), ["a", "b"]
        file["to"] = file["x"].ref
    schema = HDF5.infer_schema(path)
    assert [field.name for field in schema.fields] == ["x"]
    (note,) = HDF5.notes(path, schema)
    assert (note.kind, note.values) == ("not-read", {"datasets": 6})
    with HDF5.open(path, schema) as reader:
        np.testing.assert_array_equal(reader.batch(slice(None))["x"], ROWS)
    with refused_as("no-sample-axis"):
        HDF5.infer_schema(Path(f"{path}::version"))


def test_text_with_a_row_per_sample_is_an_error(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["text"] = ROWS, ["text"] * SAMPLES
    with refused_as("unsupported-dtype", hint=has("::x")):
        HDF5.infer_schema(tmp_path / "a.h5")


@pytest.mark.parametrize("options", [{}, {"chunks": (4,)}, {"chunks": (4,), "compression": "gzip"}])
def test_members_of_a_compound_type_are_fields(tmp_path, options):
    kinds = [("a", "f4"), ("b", "i8"), ("c", "f4", 3), ("d", "?")]
    table = np.zeros(SAMPLES, kinds)
    table["a"], table["b"], table["c"] = np.arange(SAMPLES), -np.arange(SAMPLES), ROWS[:, :3]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("t", data=table, **options)
    schema = HDF5.infer_schema(tmp_path / "a.h5")
    assert [field.name for field in schema.fields] == ["t_a", "t_b", "t_c", "t_d"]
    with HDF5.open(tmp_path / "a.h5", schema) as reader:
        for rows in (slice(2, 9), np.array([5, 0, 5])):
            batch = reader.batch(rows)
            for name in table.dtype.names:
                np.testing.assert_array_equal(batch[f"t_{name}"], table[name][rows])
        assert reader.sample(3)["t_c"].tolist() == table["c"][3].tolist()
        assert_placements(reader, {f"t_{name}": table[name] for name in table.dtype.names})
        assert len(reader.placement()) == (0 if "compression" in options else 4)


def test_split_files_are_named_for_what_they_are(tmp_path):
    with h5py.File(tmp_path / "a", "w", driver="split") as file:
        file["x"] = ROWS
    for path in tmp_path.iterdir():
        with refused_as("split-files"):
            HDF5.infer_schema(path)


def test_samples_along_another_axis_are_seen_by_the_length_of_the_labels(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"] = np.zeros((12, 300)), np.zeros(300)
    with refused_as("unequal-lengths", hint=has("axis 1 of x")):
        HDF5.infer_schema(tmp_path / "a.h5")
