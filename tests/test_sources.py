"""Sources: generated data, the user's arrays and images, and one-line errors for everything else."""

import gzip
import io
import os
import pickle
import tarfile
import zipfile
from typing import ClassVar

import h5py
import lz4.frame
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import scipy
from conftest import enlarge
from faults import hostile_sources as hostile
from kinds import has, kind, refused_as
from PIL import Image
from safetensors.numpy import save_file
from scipy.io import netcdf_file, savemat

import iobench
from iobench import Synthetic, open_source
from iobench.base.errors import SourceError
from iobench.dataset.sources.source import BATCH_BYTES, checked, prefetched
from iobench.formats import DTYPES, NUMPY_DTYPES, Field


def everything(source):
    """All samples of a source, after the promises about its batches were checked."""
    batches = list(checked(source))
    assert all(sum(a.nbytes for a in batch.values()) <= BATCH_BYTES for batch in batches)
    assert all(array.flags.c_contiguous for batch in batches for array in batch.values())
    return {f.name: np.concatenate([batch[f.name] for batch in batches]) for f in source.schema.fields}


def refused(path, name=None, *arguments):
    """Return the error, of this kind, with which a source is refused when it is opened or read."""
    with pytest.raises(SourceError, check=name and kind(name)) as error:
        everything(open_source(path, *arguments))
    assert error.value.path.startswith(str(path))
    assert "/proc/" not in str(error.value)
    assert "\n" not in str(error.value)
    return error.value


FIELDS = {
    "images": np.arange(60_000, dtype=np.uint8).reshape(1000, 4, 15),
    "labels": np.arange(1000),
    "weights": np.linspace(0, 1, 1000, dtype=">f4"),
}
FORTRAN = FIELDS | {"images": np.asfortranarray(FIELDS["images"])}


SIX = {"x": np.arange(6.0)}


def as_parquet(path, columns=SIX):
    pq.write_table(pa.table(columns), path)


def as_arrow(path, columns=SIX):
    table = pa.table(columns)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def as_csv(path, columns=SIX):
    pa.csv.write_csv(pa.table(columns), path)


def as_tar(path):
    with tarfile.open(path, "w") as archive:
        for row in range(6):
            entry = tarfile.TarInfo(f"{row}.x")
            entry.size = 8
            archive.addfile(entry, io.BytesIO(np.float64(row).tobytes()))


LINKED = {
    "train.parquet": as_parquet,
    "train.arrow": as_arrow,
    "train.safetensors": lambda path: save_file(SIX, path),
    "train.csv": as_csv,
    "train.tar": as_tar,
}


@pytest.mark.parametrize("name", LINKED)
def test_a_link_of_a_cache_is_read_by_its_own_name(tmp_path, name):
    """As huggingface_hub stores files: blobs named by their content, and links to them."""
    (tmp_path / "blobs").mkdir()
    LINKED[name](tmp_path / "blobs" / name)
    (tmp_path / "blobs" / name).rename(tmp_path / "blobs/4f1a")
    (tmp_path / name).symlink_to("blobs/4f1a")
    if name == "train.tar":
        fields = (Field("x", (), "float64"),)
    else:
        source, fields = open_source(tmp_path / name), ()
        assert source.name == "train"
        np.testing.assert_array_equal(everything(source)["x"], np.arange(6.0))
    if name != "train.csv":
        manifest, _ = iobench.add(tmp_path / name, fields=fields, data_dir=tmp_path / "data")
        assert (manifest.root.name, manifest.schema.samples) == ("train", 6)


class TestSynthetic:
    def test_is_the_same_for_a_seed_and_another_for_another(self):
        first, again, other = (everything(Synthetic(10_000, seed=seed))["x"] for seed in (7, 7, 8))
        np.testing.assert_array_equal(first, again)
        assert (first != other).mean() > 0.9

    def test_more_of_it_begins_with_the_same_samples(self):
        """Blocks are full batches, so data of one seed differ only in where they end."""
        rows = BATCH_BYTES // 512
        small, large = (everything(Synthetic(n * 128))["x"] for n in (rows + 5, 2 * rows))
        np.testing.assert_array_equal(small[:rows], large[:rows])

    def test_its_first_numbers_never_change(self):
        """Equal descriptions promise equal data, on every machine and with every NumPy."""
        assert everything(Synthetic(4, (2,), "uint8"))["x"].tolist() == [[95, 130], [194, 217]]
        bits = everything(Synthetic(4, (2,), "float32", seed=3))["x"].view(np.uint32)
        assert bits.tolist() == [[1062190786, 1034905808], [1043840844, 1047690868]]

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_makes_every_dtype_and_drops_the_incomplete_sample(self, dtype):
        source = Synthetic(1003, (2, 5), dtype)
        x = everything(source)["x"]
        assert (x.shape, x.dtype, source.schema.samples) == ((100, 2, 5), dtype, 100)
        assert len(np.unique(x)) > (1 if dtype == "bool" else 50)
        if x.dtype.kind == "f":
            assert 0 <= x.min() <= x.max() <= 1

    @pytest.mark.parametrize("dtype", ["uint8", "int64", "float32"])
    @pytest.mark.parametrize("fraction", [0, 0.25, 0.5, 0.9, 1])
    def test_a_codec_saves_as_much_as_compressibility_says(self, dtype, fraction):
        sample = everything(Synthetic(3 * 16_384, (16_384,), dtype, compressibility=fraction))["x"][1]
        packed = len(lz4.frame.compress(sample.tobytes())) / sample.nbytes
        assert packed == pytest.approx(1 - fraction, abs=0.03)

    @pytest.mark.parametrize("shape", [(), (3, 0)])
    def test_a_sample_without_elements_is_refused(self, shape):
        with refused_as("invalid-shape", SourceError):
            Synthetic(9, shape)


class TestNpy:
    ARRAYS: ClassVar = {
        **{dtype: np.arange(60).reshape(12, 5).astype(dtype) for dtype in NUMPY_DTYPES},
        "big-endian": np.arange(30, dtype=">f4").reshape(10, 3),
        "big-endian 1-D": np.arange(30, dtype=">i8"),
        "Fortran order": np.asfortranarray(np.arange(120).reshape(10, 4, 3)),
        "several batches": np.arange(2_400_000).reshape(-1, 4),
    }

    @pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
    def test_every_dtype_and_layout_comes_back_in_native_order(self, tmp_path, array):
        np.save(tmp_path / "a.npy", array)
        x = everything(open_source(tmp_path / "a.npy"))["x"]
        np.testing.assert_array_equal(x, array)
        assert x.dtype == array.dtype.newbyteorder("=")


def test_nothing_is_unpickled(tmp_path):
    trap, sprung = hostile.Trap(tmp_path / "sprung"), tmp_path / "sprung"
    objects = np.array([trap, None], dtype=object)
    np.save(tmp_path / "objects.npy", objects, allow_pickle=True)
    np.savez(tmp_path / "objects.npz", x=np.arange(2), bad=objects)
    for name in ("plain.npy", "plain.npz"):
        (tmp_path / name).write_bytes(pickle.dumps(trap))
    with zipfile.ZipFile(tmp_path / "member.npz", "w") as archive:
        archive.writestr("x.npy", pickle.dumps(trap))
    causes = {"objects.npy": "unsupported-dtype", "objects.npz": "unsupported-dtype"}
    causes |= {"plain.npy": "unreadable", "plain.npz": "damaged", "member.npz": "damaged"}
    for name, cause in causes.items():
        refused(tmp_path / name, cause)
    assert not sprung.exists()
    np.load(tmp_path / "objects.npy", allow_pickle=True)
    assert sprung.exists(), "the trap works"


class TestNpz:
    def test_a_name_that_begins_with_a_slash_is_a_name(self, tmp_path):
        np.savez(tmp_path / "a.npz", **{"/x": np.arange(6).reshape(3, 2)})
        source = open_source(tmp_path / "a.npz")
        assert [f.shape for f in source.schema.fields] == [(2,)]
        np.testing.assert_array_equal(next(iter(everything(source).values())), np.arange(6).reshape(3, 2))

    @pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
    @pytest.mark.parametrize("fields", [FIELDS, FORTRAN], ids=["C order", "Fortran order"])
    def test_several_fields_come_back_together(self, tmp_path, save, fields, monkeypatch):
        monkeypatch.setattr("iobench.dataset.sandbox.BATCH_BYTES", 10_000)
        save(tmp_path / "a.npz", **fields)
        arrays = everything(open_source(tmp_path / "a.npz"))
        assert list(arrays) == list(fields)
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, fields[name])
            assert array.dtype.isnative
            assert array.flags.writeable

    def test_names_that_no_format_can_hold_are_changed(self, tmp_path):
        names = {"class": "f_class", "shape": "f_shape", "to": "f_to", "2nd": "f_2nd", "é": "é", "a b": "a_b"}
        np.savez(tmp_path / "a.npz", **{name: np.arange(3) for name in names})
        assert [f.name for f in open_source(tmp_path / "a.npz").schema.fields] == list(names.values())

    def test_a_sparse_matrix_is_named_with_its_conversion(self, tmp_path):
        scipy.sparse.save_npz(tmp_path / "a.npz", scipy.sparse.eye(3, format="csr"))
        assert "scipy.sparse.load_npz" in refused(tmp_path / "a.npz", "sparse").hint

    def test_a_truncated_member_is_refused(self, tmp_path):
        np.save(tmp_path / "x.npy", np.arange(100))
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
            archive.writestr("x.npy", (tmp_path / "x.npy").read_bytes()[:-8])
        refused(tmp_path / "a.npz", "truncated")

    @pytest.mark.filterwarnings("ignore:Duplicate name")
    def test_a_name_that_occurs_twice_is_refused(self, tmp_path):
        np.save(tmp_path / "x.npy", np.arange(4))
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
            archive.write(tmp_path / "x.npy", "x.npy")
            archive.write(tmp_path / "x.npy", "x.npy")
        assert "x: " in refused(tmp_path / "a.npz", "name-clash").problem


class TestHdf5File:
    def test_datasets_in_groups_become_fields(self, tmp_path):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["train/images"] = np.arange(240, dtype=np.uint8).reshape(20, 4, 3)
            file["train/meta/label"] = np.arange(20, dtype=">i4")
            file.create_dataset("mask", data=np.arange(20) % 2 == 0, chunks=(3,), compression="gzip")
        arrays = everything(open_source(tmp_path / "a.h5"))
        assert {n: a.dtype.name for n, a in arrays.items()} == {
            "mask": "bool",
            "train_images": "uint8",
            "train_meta_label": "int32",
        }
        np.testing.assert_array_equal(arrays["train_images"].ravel(), np.arange(240))
        np.testing.assert_array_equal(arrays["train_meta_label"], np.arange(20))
        np.testing.assert_array_equal(arrays["mask"], np.arange(20) % 2 == 0)


def as_hdf5(path, arrays):
    with h5py.File(path, "w") as file:
        for name, data in arrays.items():
            file[name] = data


SAVE = {"npy": lambda path, arrays: np.save(path, arrays["x"]), "h5": as_hdf5}
SAVE["npz"] = lambda path, arrays: np.savez(path, **arrays)
UNSTORABLE = {  # arrays by name, kinds of files with them, and the kind of the error
    "nothing": ({}, "npz h5", "no-arrays"),
    "no samples": ({"x": np.zeros((0, 3))}, "npy npz h5", "empty-array"),
    "no elements": ({"x": np.zeros((3, 0))}, "npy", "empty-array"),
    "a scalar": ({"x": np.float32(3)}, "npy h5", "no-sample-axis"),
    "a scalar beside an array": ({"x": np.zeros(3), "y": np.float32(1)}, "npz", "no-sample-axis"),
    "an empty dataset": ({"x": h5py.Empty("f4")}, "h5", "no-sample-axis"),
    "several lengths": ({"x": np.zeros(3), "y": np.zeros(4)}, "npz h5", "unequal-lengths"),
    "long numbers": ({"x": np.zeros(3, "complex256")}, "npy h5", "unsupported-dtype"),
    "text": ({"x": np.array(["one", "two"])}, "npy", "unsupported-dtype"),
    "a list of text": ({"x": ["one", "two"]}, "h5", "unsupported-dtype"),
    "time": ({"x": np.zeros(3, "datetime64[s]")}, "npy", "unsupported-dtype"),
}


@pytest.mark.parametrize(
    ("name", "suffix"), [(name, suffix) for name, row in UNSTORABLE.items() for suffix in row[1].split()]
)
def test_arrays_that_no_format_stores_are_refused(tmp_path, name, suffix):
    arrays, _, cause = UNSTORABLE[name]
    SAVE[suffix](tmp_path / f"a.{suffix}", arrays)
    error = refused(tmp_path / f"a.{suffix}", cause)
    assert suffix == "npy" or not arrays or any(one in str(error) for one in arrays)


class TestImages:
    @pytest.fixture
    def folder(self, tmp_path):
        """Two labels; a red, a green and a half black, half white image."""
        for label in ("cat", "dog"):
            (tmp_path / "pets" / label).mkdir(parents=True)
        Image.new("RGB", (8, 8), (255, 0, 0)).save(tmp_path / "pets/dog/1.png")
        Image.new("RGB", (30, 20), (0, 128, 0)).save(tmp_path / "pets/cat/1.jpg", quality=95)
        halves = np.zeros((8, 16), np.uint8)
        halves[:, 8:] = 255
        Image.fromarray(halves).save(tmp_path / "pets/cat/2.PNG")
        (tmp_path / "pets/cat/notes.txt").write_text("not an image")
        (tmp_path / "pets/.cache").mkdir()
        return tmp_path / "pets"

    def test_labels_and_files_are_in_order(self, folder):
        source = open_source(folder, (3, 8, 8))
        arrays = everything(source)
        assert (source.name, source.labels) == ("pets", ["cat", "dog"])
        assert arrays["y"].tolist() == [0, 0, 1]
        assert (arrays["x"].shape, arrays["x"].dtype) == ((3, 3, 8, 8), np.uint8)
        np.testing.assert_allclose(arrays["x"][0, :, 4, 4], [0, 128, 0], atol=3)
        np.testing.assert_array_equal(
            arrays["x"][2].transpose(1, 2, 0), np.broadcast_to([255, 0, 0], (8, 8, 3))
        )

    @pytest.mark.parametrize("shape", [(8, 8), (1, 8, 8)])
    def test_lost_colors_are_noted(self, folder, shape):
        (folder / "cat/notes.txt").unlink()

        def gray(shape):
            return [one.hint for one in open_source(folder, shape).notes if one.kind == "gray"]

        assert gray(shape) == ["give --sample-shape 3x8x8 to keep them"]
        assert any("gray" in one for one in open_source(folder, shape).losses)
        assert not gray((3, 8, 8))
        for name in ("dog/1.png", "cat/1.jpg"):
            (folder / name).unlink()
        (folder / "dog/2.png").write_bytes((folder / "cat/2.PNG").read_bytes())
        assert not gray(shape)

    @pytest.mark.parametrize("shape", [(3, 6, 10), (6, 10, 3), (6, 10), (1, 6, 10), (6, 10, 1)])
    def test_every_layout_holds_the_same_image(self, folder, shape):
        x = everything(open_source(folder, shape))["x"]
        assert x.shape == (3, *shape)
        grey = {3: lambda a: a.transpose(1, 2, 0) if shape[0] == 3 else a, 2: lambda a: a[..., None]}[
            len(shape)
        ](x[1])
        np.testing.assert_array_equal(grey.reshape(6, 10, -1)[:, 0], 0)
        np.testing.assert_array_equal(grey.reshape(6, 10, -1)[:, -1], 255)

    @pytest.mark.parametrize(
        ("shape", "loses"), [((3, 20, 30), False), ((3, 20, 29), True), ((19, 30), True)]
    )
    def test_crops_are_lost_only_of_images_larger_than_the_samples(self, folder, shape, loses):
        crops = f"samples are {' × '.join(map(str, shape))}: random crops of the larger originals are gone"
        assert (crops in open_source(folder, shape).losses) == loses

    def test_images_that_cannot_be_opened_lose_nothing(self, folder):
        for path in folder.rglob("*.*"):
            if path.is_file():
                path.write_bytes(b"no image")
        assert open_source(folder, (3, 4, 4)).losses == ()

    def test_the_shorter_side_is_resized_and_the_middle_kept(self, folder):
        x = everything(open_source(folder, (4, 4)))["x"]
        np.testing.assert_array_equal(x[1][:, [0, 3]], [[0, 255]] * 4)  # 16 x 8 becomes 8 x 4, middle 4 x 4
        assert x[1].shape == (4, 4)

    def test_the_default_shape_is_that_of_imagenet(self, folder):
        assert open_source(folder).schema.field("x").shape == (3, 224, 224)

    @pytest.mark.parametrize(
        ("name", "harm", "cause"),
        [
            ("dog/1.png", lambda whole: b"", None),
            ("dog/1.png", lambda whole: b"hello", None),
            ("dog/1.png", lambda whole: b"\x89PNG\r\n\x1a\n" + bytes(40), None),
            ("cat/1.jpg", lambda whole: whole[: len(whole) // 2], "undecodable"),
        ],
        ids=["empty", "text", "no header", "truncated"],
    )
    def test_an_unreadable_image_is_named(self, folder, name, harm, cause):
        (folder / name).write_bytes(harm((folder / name).read_bytes()))
        assert refused(folder, cause, (8, 8)).path == str(folder / name)

    def test_an_image_of_too_many_pixels_is_refused_with_the_limit(self, folder):
        Image.new("RGB", (9, 9)).save(folder / "dog/2.png")
        enlarge(folder / "dog/2.png")
        error = refused(folder, "too-many-pixels", (8, 8))
        assert error.path == str(folder / "dog/2.png")
        assert "178,956,970" in error.problem

    def test_damaged_images_are_skipped_and_counted_if_asked(self, folder):
        whole = (folder / "cat/1.jpg").read_bytes()
        (folder / "cat/1.jpg").write_bytes(whole[: len(whole) // 2])
        source = open_source(folder, (3, 8, 8), on_error="skip")
        left_out, note = source.notes
        assert (left_out.kind, left_out.values[".txt"]) == ("not-read", 1)
        assert (note.kind, note.values["skipped"]) == ("damaged-skipped", 1)
        assert "1.jpg" in note.message
        assert everything(source)["y"].tolist() == [0, 1]
        assert source.in_place() is None
        for path in folder.glob("*/*.*"):
            path.write_bytes(b"")
        with refused_as("no-images", SourceError):
            open_source(folder, (3, 8, 8), on_error="skip")
        np.save(folder / "a.npy", np.arange(3))
        with refused_as("conflicting-options", SourceError):
            open_source(folder / "a.npy", on_error="skip")

    @pytest.mark.parametrize("shape", [(128,), (5, 6, 7), (2, 3, 8, 8)])
    def test_a_shape_that_is_not_an_images_is_refused(self, folder, shape):
        with refused_as("invalid-shape", SourceError):
            open_source(folder, shape)

    def test_a_changed_folder_is_other_data(self, folder):
        before = open_source(folder, (8, 8)).description
        assert open_source(folder, (8, 8)).description == before
        Image.new("L", (4, 4)).save(folder / "dog/3.png")
        assert open_source(folder, (8, 8)).description != before


class TestTables:
    """Columns and keys whose type only later lines tell; integers beyond float64."""

    @pytest.mark.parametrize(
        ("numbers", "dtype"),
        [
            ([2**63 + 1, 2**63 + 3], np.uint64),
            ([1, 2**64 - 1], np.uint64),
            ([2**53 + 1, -(2**62) - 1], np.int64),
            (["1e300", 2**70, "0.5"], np.float64),  # which float64 holds
        ],
    )
    def test_large_integers_come_back(self, tmp_path, numbers, dtype):
        (tmp_path / "a.csv").write_text("n,other\n" + "".join(f"{number},true\n" for number in numbers))
        read = everything(open_source(tmp_path / "a.csv"))["n"]
        assert read.dtype == dtype
        assert read.tolist() == [float(one) if dtype is np.float64 else one for one in numbers]

    @pytest.mark.parametrize("numbers", [[2**53 + 1, "0.5"], [-1, 2**63 + 1], [2**64 + 1, 1]])
    @pytest.mark.parametrize("apart", [False, True], ids=["together", "in-two-files"])
    def test_integers_that_would_be_rounded_are_refused(self, tmp_path, numbers, apart):
        for number, some in enumerate([numbers[:1], numbers[1:]] if apart else [numbers]):
            (tmp_path / f"{number}.csv").write_text("n\n" + "".join(f"{one}\n" for one in some))
        refused(tmp_path if apart else tmp_path / "0.csv", "rounded")

    @pytest.mark.parametrize("lines", [['{"n": 9223372036854775809}'], ['{"n": [9007199254740993, 0.5]}']])
    def test_integers_of_json_that_would_be_rounded_are_refused(self, tmp_path, lines):
        (tmp_path / "a.jsonl").write_text("\n".join(lines))
        refused(tmp_path / "a.jsonl", "rounded")

    def test_the_file_with_the_integer_is_named(self, tmp_path):
        for number, one in enumerate((1, 2**53 + 1, 0.5)):
            (tmp_path / f"{number}.csv").write_text(f"n\n{one}\n")
        assert refused(tmp_path, "rounded").path == str(tmp_path / "1.csv")

    def test_the_file_of_broken_lines_is_named(self, tmp_path):
        (tmp_path / "1.jsonl").write_text('{"n": 1}\n')
        (tmp_path / "2.jsonl").write_text('{"n": [1}\n')
        assert refused(tmp_path, "not-a-table").path == str(tmp_path / "2.jsonl")

    def test_parquet_files_may_have_their_columns_in_any_order(self, tmp_path):
        columns = {"x": np.arange(4.0), "n": np.arange(4)}
        for number, names in enumerate((["x", "n"], ["n", "x"])):
            (tmp_path / f"{number}").mkdir()
            table = pa.table({name: columns[name] + number for name in names})
            pq.write_table(table, tmp_path / f"{number}/0.parquet")
        read = everything(open_source(tmp_path))
        for name, values in columns.items():
            np.testing.assert_array_equal(read[name], np.concatenate([values, values + 1]))

    def test_integers_in_one_file_and_fractions_in_the_next_are_fractions(self, tmp_path):
        (tmp_path / "1.csv").write_text("n\n1\n2\n")
        (tmp_path / "2.csv").write_text("n\n0.5\n")
        assert everything(open_source(tmp_path))["n"].tolist() == [1, 2, 0.5]

    @pytest.mark.parametrize(
        "later", [{"x": ["text"]}, {"x": [1.0]}, {"y": [1]}], ids=["text", "type", "lacking"]
    )
    def test_the_parquet_file_that_differs_is_named(self, tmp_path, later):
        pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "a.parquet")
        pq.write_table(pa.table(later), tmp_path / "b.parquet")
        assert "b.parquet" in str(refused(tmp_path))


class TestPaths:
    @pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.h5", "folder"])
    def test_a_missing_path_is_reported(self, tmp_path, name):
        refused(tmp_path / name, "missing-file")

    @pytest.mark.parametrize("name", ["a.xyz", "a"])
    def test_an_unknown_suffix_names_the_known_ones(self, tmp_path, name):
        (tmp_path / name).write_text("1,2\n")
        hint = refused(tmp_path / name, "unrecognized").hint
        assert all(suffix in hint for suffix in (".npy", ".npz", ".pt", ".csv", ".h5", ".hdf5"))

    def test_a_sample_shape_is_for_images(self, tmp_path):
        np.save(tmp_path / "a.npy", np.arange(3))
        refused(tmp_path / "a.npy", "conflicting-options", (3, 4))

    @pytest.mark.parametrize(
        ("file", "name"),
        [
            ("my data.npy", "my_data"),
            ("-x.npy", "x"),
            ("été.npy", "t"),
            ("_.npy", "dataset"),
            ("results.npy", "dataset"),
        ],
    )
    def test_a_file_gives_its_dataset_a_name(self, tmp_path, file, name):
        np.save(tmp_path / file, np.arange(3))
        assert open_source(tmp_path / file).name == name

    def test_a_touched_file_is_other_data(self, tmp_path):
        np.save(tmp_path / "a.npy", np.arange(3))
        before = open_source(tmp_path / "a.npy").description
        assert open_source(tmp_path / "a.npy").description == before
        os.utime(tmp_path / "a.npy", (1, 1))
        assert open_source(tmp_path / "a.npy").description != before


class TestPrefetched:
    def test_an_error_is_raised_where_batches_are_read(self):
        def broken():
            yield 1
            raise SourceError("broken")

        batches = prefetched(broken())
        assert next(batches) == 1
        with pytest.raises(SourceError, match="broken"):
            next(batches)

    def test_ends_when_the_consumer_stops(self):
        made = []
        batches = prefetched(made.append(i) or i for i in range(1000))
        next(batches)
        batches.close()
        assert len(made) < 10


class TestMatlab:
    ARRAYS: ClassVar = {
        "x": np.arange(60, dtype="f4").reshape(20, 3),
        "row": np.arange(20.0)[None],
        "column": np.arange(20, dtype="i2")[:, None],
        "mask": np.arange(20) % 2 == 0,
    }

    @pytest.mark.parametrize("options", [{}, {"do_compression": True}, {"format": "4"}])
    def test_arrays_come_back_and_vectors_have_one_axis(self, tmp_path, options):
        wanted = {name: self.ARRAYS[name] for name in (["x"] if "format" in options else self.ARRAYS)}
        savemat(tmp_path / "a.mat", wanted, **options)
        arrays = everything(open_source(tmp_path / "a.mat"))
        assert arrays.keys() == wanted.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, wanted[name].reshape(array.shape))
            assert (array.ndim, array.dtype) == (2 if name == "x" else 1, wanted[name].dtype)

    def test_what_is_no_array_is_refused_with_the_selection_of_the_others(self, tmp_path):
        savemat(tmp_path / "a.mat", {"x": np.zeros((3, 2)), "name": "text", "more": {"a": 1}})
        assert "::x" in refused(tmp_path / "a.mat", "unsupported-dtype").hint
        assert everything(open_source(f"{tmp_path}/a.mat::x"))["x"].shape == (3, 2)
        savemat(tmp_path / "a.mat", {"x": scipy.sparse.eye(3, format="csc")})
        assert 'x=m["x"].toarray()' in refused(tmp_path / "a.mat", "unsupported-dtype").hint

    @pytest.mark.parametrize("labels", [np.arange(10)[:, None], np.arange(10)[None]])
    def test_samples_along_the_last_axis_are_named_with_the_conversion(self, tmp_path, monkeypatch, labels):
        """As SVHN: images of shape (32, 32, 3, N), labels of shape (N, 1)."""
        monkeypatch.chdir(tmp_path)
        savemat("a.mat", {"X": np.arange(40).reshape(2, 2, 10), "y": labels})
        code = refused(tmp_path / "a.mat", "unequal-lengths").hint.partition("convert it: ")[2]
        exec(code, {"scipy": scipy, "numpy": np})
        arrays = everything(open_source(tmp_path / "a.npz"))
        assert {name: array.shape for name, array in arrays.items()} == {"X": (10, 2, 2), "y": (10,)}


def as_gzip_chunks(path):
    with h5py.File(path, "w") as file:
        noise = np.random.default_rng(0).random(9000)
        file.create_dataset("x", data=noise, chunks=(1000,), compression="gzip")


STORED = {
    "a.npy": lambda path: np.save(path, np.arange(1000)),
    "a.npz": lambda path: np.savez(path, **FIELDS),
    "b.npz": lambda path: np.savez_compressed(path, **FIELDS),
    "a.h5": as_gzip_chunks,
    "a.mat": lambda path: savemat(path, TestMatlab.ARRAYS, do_compression=True),
}


@pytest.mark.parametrize("name", STORED)
def test_damage_is_refused(tmp_path, name):
    path = tmp_path / name
    STORED[name](path)
    whole = path.read_bytes()
    middle = len(whole) // 2
    pieces = [b"", b"hello", whole[:100], whole[:middle], whole[:-40]]
    if name != "a.npy":  # whose values may be any
        pieces.append(whole[:middle] + b"?" * 200 + whole[middle + 200 :])
    for piece in pieces:
        path.write_bytes(piece)
        refused(path, "damaged" if name.endswith(".npz") else None)


@pytest.mark.parametrize("samples", [None, 20])
def test_classic_netcdf_is_read_as_it_is_stored(tmp_path, samples):
    with netcdf_file(tmp_path / "a.nc", "w") as file:
        file.createDimension("time", samples)
        file.createDimension("at", 3)
        x = file.createVariable("x", "i2", ("time", "at"))
        x[:] = np.arange(60).reshape(20, 3)
        x.scale_factor = 0.5
        file.createVariable("y", "f8", ("time",))[:] = np.arange(20)
    source = open_source(tmp_path / "a.nc")
    assert [note.values for note in source.notes] == [{"field": "x", "scale_factor": "0.5"}]
    arrays = everything(source)
    np.testing.assert_array_equal(arrays["x"], np.arange(60).reshape(20, 3))
    np.testing.assert_array_equal(arrays["y"], np.arange(20.0))


def zarr_in_zip(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/zarr.json", "{}")


GZIP = gzip.compress(bytes(99), mtime=0)


@pytest.mark.parametrize(
    ("name", "content", "cause", "word"),
    [
        ("train.tfrecord", GZIP, "compressed", "gunzip -k train.tfrecord"),
        ("train.tar", GZIP, "compressed", "gunzip -k train.tar"),
        ("train.npy.gz", GZIP, "compressed", "gunzip -k train.npy.gz"),
        ("a.zip", zarr_in_zip, "compressed", "unzip a.zip -d a.zarr"),
        ("a.arff", b"@relation a", "unrecognized", "scipy.io.arff.loadarff"),
        ("a.txt", b"1 3:0.5 7:1.2\n", "unrecognized", "sklearn.datasets.load_svmlight_file"),
        ("a9a", b"-1.5 1:1 22:-1e-3 \n+1 1:2", "unrecognized", "sklearn.datasets.load_svmlight_file"),
        ("a.json", b"[{}]", "unrecognized", "pandas.read_json"),
        ("a.pkl", b"", "unrecognized", "pandas.read_pickle"),
        ("a.xlsx", zarr_in_zip, "unrecognized", "pandas.read_excel"),
        ("a.png", b"", "unrecognized", "folder"),
        ("a.wav", b"", "unrecognized", "folder"),
    ],
)
def test_files_that_are_not_read_are_named_for_what_they_are(tmp_path, name, content, cause, word):
    if callable(content):
        content(tmp_path / name)
    else:
        (tmp_path / name).write_bytes(content)
    assert word in refused(tmp_path / name, cause).hint
    with refused_as(cause, SourceError, hint=has(word)):
        iobench.add(tmp_path / name, data_dir=tmp_path / "data")
