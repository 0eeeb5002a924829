"""What every format promises, whatever its options: one suite over all of them."""

import json
import multiprocessing
import os
import pickle
import shutil
import tempfile
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from format_cases import SCHEMA, assert_rows, assert_same, read_all, store, variants
from hypothesis import example, given, settings
from hypothesis import strategies as st

from iobench import formats
from iobench.formats import DTYPES, CorruptArtifact, Field, Schema

SAMPLES = SCHEMA.samples
INDICES = np.array([22, 0, 7, 7, 3, 22])

contract = settings(max_examples=50, deadline=None, derandomize=True)


@pytest.fixture(scope="module", params=variants(), ids=lambda fmt: fmt.variant)
def fmt(request):
    return request.param


@pytest.fixture(scope="module")
def artifact(fmt, tmp_path_factory):
    return store(fmt, tmp_path_factory.mktemp("artifact") / "a", SCHEMA)


@pytest.fixture(scope="module")
def reader(artifact):
    with artifact.open() as reader:
        yield reader


@pytest.fixture
def damaged(artifact, tmp_path):
    return shutil.copytree(artifact.path, tmp_path / "damaged")


@pytest.fixture(scope="module")
def elsewhere():
    """Calls a function in a spawned process, which a wild read may kill without ending the tests."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield lambda function, *args: pool.submit(function, *args).result()


def column(native, name):
    """A field of a native batch: a dict or a tensorclass."""
    return native[name] if isinstance(native, dict) else getattr(native, name)


def files_of(path):
    return sorted(file for file in path.rglob("*") if file.is_file() and file.stat().st_size)


# --- content ---------------------------------------------------------------------------------

field_lists = st.lists(
    st.tuples(st.lists(st.integers(1, 5), max_size=3), st.sampled_from(DTYPES)), min_size=1, max_size=4
)


@contract
@given(st.integers(1, 20), field_lists, st.lists(st.integers(0, 9), max_size=4), st.data())
def test_any_schema_in_any_batches_comes_back_in_order(fmt, samples, specs, batch_sizes, data):
    fields = tuple(Field(f"f{i}", tuple(shape), dtype) for i, (shape, dtype) in enumerate(specs))
    rows = data.draw(st.lists(st.integers(0, samples - 1), max_size=30))
    with tempfile.TemporaryDirectory() as folder:
        artifact = store(fmt, Path(folder, "a"), Schema(samples, fields), batch_sizes)
        with artifact.open() as reader:
            assert_rows(reader.batch(slice(None)), artifact.source, slice(None))
            assert_rows(reader.batch(np.array(rows, np.int64)), artifact.source, rows)


def test_every_dtype_as_scalar_and_as_array(fmt, tmp_path):
    fields = [Field(f"{dtype}_{len(shape)}", shape, dtype) for dtype in DTYPES for shape in ((), (3, 2))]
    artifact = store(fmt, tmp_path / "a", Schema(7, tuple(fields)))
    with artifact.open() as reader:
        assert_rows(reader.batch(slice(None)), artifact.source, slice(None))
        for row in range(7):
            assert_rows(reader.sample(row), artifact.source, row)
        assert_rows(reader.batch([6, 0, 6]), artifact.source, [6, 0, 6])


def test_fields_of_odd_sizes(fmt, tmp_path):
    shapes = {"three": (3,), "one": (), "five": (5,), "seven": (7, 1)}
    fields = tuple(Field(name, shape, "uint8") for name, shape in shapes.items())
    artifact = store(fmt, tmp_path / "a", Schema(11, (*fields, Field("wide", (), "float64"))))
    with artifact.open() as reader:
        assert_rows(reader.batch(slice(2, 9)), artifact.source, slice(2, 9))
        assert_rows(reader.batch([10, 1]), artifact.source, [10, 1])


def test_one_sample(fmt, tmp_path):
    artifact = store(fmt, tmp_path / "a", replace(SCHEMA, samples=1))
    with artifact.open() as reader:
        assert len(reader) == 1
        assert_rows(reader.batch([0, 0]), artifact.source, [0, 0])
        assert_rows(reader.sample(0), artifact.source, 0)


def test_samples_larger_than_a_page_and_a_chunk(fmt, tmp_path):
    artifact = store(fmt, tmp_path / "a", Schema(9, (Field("image", (3, 100, 33), "uint8"),)))
    with artifact.open() as reader:
        assert_rows(reader.batch(slice(1, 8)), artifact.source, slice(1, 8))
        assert_rows(reader.batch([8, 0, 4, 0]), artifact.source, [8, 0, 4, 0])


@pytest.mark.parametrize("name", ["data", "schema", "meta", "keys", "names", "batch_size", "dtype", "type"])
def test_names_that_a_library_uses_itself(fmt, tmp_path, name):
    artifact = store(fmt, tmp_path / "a", Schema(4, (Field(name, (2,), "int16"), Field("x", (), "uint8"))))
    with artifact.open() as reader:
        assert_rows(reader.batch(slice(None)), artifact.source, slice(None))
        assert_same(column(reader.native(np.array([3, 0])), name), artifact.source[name][[3, 0]])


def test_length_and_schema(reader):
    assert len(reader) == SAMPLES
    assert reader.schema == SCHEMA


# --- rows ------------------------------------------------------------------------------------


@contract
@given(st.lists(st.integers(0, SAMPLES - 1), max_size=40))
@example([])
@example([22, 0, 7, 7, 3, 22])
def test_indices_in_any_order_with_duplicates(artifact, reader, rows):
    assert_rows(reader.batch(np.array(rows, np.int64)), artifact.source, rows)


@contract
@given(st.slices(SAMPLES))
@example(slice(None))
@example(slice(5, 5))
@example(slice(9, 2))
@example(slice(-4, None))
@example(slice(20, 1000))
@example(slice(None, None, 3))
@example(slice(None, None, -1))
@example(slice(18, 3, -4))
def test_slices_as_numpy_means_them(artifact, reader, rows):
    assert_rows(reader.batch(rows), artifact.source, rows)


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "uint64"])
def test_indices_of_any_integer_dtype(artifact, reader, dtype):
    assert_rows(reader.batch(INDICES.astype(dtype)), artifact.source, INDICES)


@pytest.mark.parametrize("rows", [[-1], [SAMPLES], [0, SAMPLES], [3, -1, 2], [2**62]])
def test_rows_outside_are_index_errors(reader, rows):
    with pytest.raises(IndexError):
        reader.batch(np.array(rows))


@pytest.mark.parametrize("rows", [[1.0], [[1]], [True], np.zeros((0, 2), np.int64), ["1"]])
def test_rows_that_are_not_one_axis_of_integers_are_value_errors(reader, rows):
    with pytest.raises(ValueError):
        reader.batch(np.array(rows))


# --- out -------------------------------------------------------------------------------------


def garbage(count):
    out = SCHEMA.empty(count)
    for array in out.values():
        array.reshape(-1).view(np.uint8)[:] = 0xA5 if array.dtype != bool else 1
    return out


@pytest.mark.parametrize("rows", [slice(4, 10), slice(20, 2, -3), INDICES], ids=["slice", "step", "indices"])
def test_out_is_wholly_overwritten_and_stays_the_callers(artifact, reader, rows):
    out = garbage(6)
    for _ in range(2):
        reader.read(rows, out)
        assert_rows(out, artifact.source, rows)
        out.update(garbage(6))
        for array in out.values():
            array[...] = 1
    with artifact.open() as fresh:
        assert_rows(fresh.batch(slice(None)), artifact.source, slice(None))


@pytest.mark.parametrize("rows", [slice(4, 10), INDICES], ids=["slice", "indices"])
def test_out_may_hold_some_of_the_fields(artifact, reader, rows):
    for names in (["mask"], ["label", "rgb"], []):
        out = {name: garbage(6)[name] for name in names}
        reader.read(rows, out)
        for name in names:
            assert_same(out[name], artifact.source[name][rows])


@pytest.mark.parametrize(
    "wrong",
    [
        np.empty((5, 2, 5), "float32"),
        np.empty((6, 5, 2), "float32"),
        np.empty((6, 10), "float32"),
        np.empty((6, 2, 5), "int32"),
        np.empty((6, 2, 5), ">f4"),
        np.empty((6, 2, 5), "float32", order="F"),
        np.empty((12, 2, 5), "float32")[::2],
    ],
    ids=["count", "shape", "flat", "dtype", "byte order", "fortran", "strided"],
)
@pytest.mark.parametrize("rows", [slice(4, 10), INDICES], ids=["slice", "indices"])
def test_out_of_the_wrong_kind_is_a_value_error(reader, rows, wrong):
    with pytest.raises(ValueError, match="signal"):
        reader.read(rows, {"signal": wrong})


def test_out_with_an_unknown_field_is_a_key_error(reader):
    with pytest.raises(KeyError, match="depth"):
        reader.read(slice(0, 1), {"depth": np.empty(1)})


# --- sample and native -----------------------------------------------------------------------


def test_sample_is_one_row_of_every_field(artifact, reader):
    for row in range(SAMPLES):
        sample = reader.sample(row)
        assert list(sample) == list(artifact.source)
        assert_rows(sample, artifact.source, row)


@pytest.mark.parametrize("rows", [slice(4, 10), INDICES], ids=["slice", "indices"])
def test_announcing_random_order_changes_no_content(artifact, rows):
    with artifact.format.open(artifact.path, artifact.schema, random=True) as reader:
        assert_rows(reader.batch(rows), artifact.source, rows)
        assert_rows(reader.sample(3), artifact.source, 3)


def test_sample_past_the_end_is_an_index_error(reader):
    with pytest.raises(IndexError):
        reader.sample(SAMPLES)


@pytest.mark.parametrize(
    "rows", [slice(4, 10), slice(None, None, 5), INDICES], ids=["slice", "step", "indices"]
)
def test_native_batches_hold_the_same(artifact, reader, rows):
    native = reader.native(rows)
    for name, array in artifact.source.items():
        assert_same(column(native, name), array[rows])


def test_native_of_memmap_is_a_tensorclass(tmp_path):
    from tensordict import is_tensorclass

    artifact = store(formats.get("memmap"), tmp_path / "a", SCHEMA)
    with artifact.open() as reader:
        native = reader.native(INDICES)
        assert is_tensorclass(native)
        assert native.batch_size == (6,)
        assert_same(native.get("rgb"), artifact.source["rgb"][INDICES])


# --- opening, closing, sharing ---------------------------------------------------------------


def open_and_read(pickled, rows):
    fmt, path, schema = pickle.loads(pickled)
    with fmt.open(path, schema) as reader:
        return reader.batch(rows)


def test_a_spawned_process_opens_from_pickled_parts(artifact, elsewhere):
    parts = pickle.dumps((artifact.format, artifact.path, artifact.schema))
    assert_rows(elsewhere(open_and_read, parts, INDICES), artifact.source, INDICES)


def test_threads_read_one_reader_at_once(artifact, reader):
    def read(seed):
        rng = np.random.default_rng(seed)
        for _ in range(20):
            start = int(rng.integers(SAMPLES))
            for rows in (rng.integers(0, SAMPLES, 9), slice(start, start + 7)):
                assert_rows(reader.batch(rows), artifact.source, rows)
            assert_rows(reader.sample(start), artifact.source, start)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(8)))


def test_readers_of_one_artifact_live_apart(artifact):
    first, second = artifact.open(), artifact.open()
    assert_rows(first.batch(INDICES), artifact.source, INDICES)
    first.close()
    assert_rows(second.batch(INDICES), artifact.source, INDICES)
    second.close()
    with artifact.open() as third:
        assert_rows(third.batch(INDICES), artifact.source, INDICES)


def test_a_closed_reader_reads_no_more(artifact):
    reader = artifact.open()
    reader.close()
    reader.close()
    for read in (reader.batch, reader.native):
        for rows in (slice(0, 2), INDICES):
            with pytest.raises(ValueError):
                read(rows)
    with pytest.raises(ValueError):
        reader.sample(0)


def test_a_new_artifact_is_not_taken_for_an_open_old_one_in_its_place(fmt, tmp_path):
    old = store(fmt, tmp_path / "a", replace(SCHEMA, samples=3))
    with old.open() as old_reader:
        shutil.rmtree(old.path)
        new = store(fmt, tmp_path / "a", SCHEMA)
        with new.open() as new_reader:
            assert_rows(new_reader.batch(slice(None)), new.source, slice(None))
            assert_rows(old_reader.batch(slice(None)), old.source, slice(None))


# --- on disk ---------------------------------------------------------------------------------


def test_extents_point_at_every_sample(artifact, reader):
    for name, extent in (reader.extents or {}).items():
        width, stored = SCHEMA.field(name).sample_bytes, extent.path.read_bytes()
        for row in range(SAMPLES):
            begin = extent.offset + row * extent.stride
            assert stored[begin : begin + width] == artifact.source[name][row].tobytes()


def test_extents_cover_all_fields_or_are_none(reader):
    assert reader.extents is None or reader.extents.keys() == {f.name for f in SCHEMA.fields}


@pytest.mark.parametrize("variant", ["npy", "memmap", "hdf5:chunk_bytes=0"])
def test_raw_layouts_have_extents(variant, tmp_path):
    with store(formats.parse(variant), tmp_path / "a", SCHEMA).open() as reader:
        assert reader.extents


@pytest.mark.parametrize("sample_bytes", [1, 100, 512, 2048, 5120, 150_000])
def test_size_bound_holds_for_random_data(fmt, tmp_path, sample_bytes):
    samples = min(20_000, 4_000_000 // sample_bytes)
    fields = (Field("blob", (sample_bytes,), "uint8"),)
    artifact = store(fmt, tmp_path / "a", Schema(samples, fields))
    stored = sum(file.stat().st_blocks * 512 for file in files_of(artifact.path))
    assert stored <= fmt.size_bound(artifact.schema)
    shutil.rmtree(artifact.path)


# --- damage ----------------------------------------------------------------------------------


def test_a_truncated_file_is_corrupt(artifact, damaged, elsewhere):
    for file in files_of(damaged):
        content = file.read_bytes()
        for size in (len(content) - 1, len(content) // 2, 0):
            os.truncate(file, size)
            assert elsewhere(read_all, artifact.format, damaged, SCHEMA) is None, (file.name, size)
            file.write_bytes(content)


def test_a_longer_file_is_corrupt_or_reads_the_same(artifact, damaged, elsewhere):
    for file in files_of(damaged):
        content = file.read_bytes()
        file.write_bytes(content + b"!")
        found = elsewhere(read_all, artifact.format, damaged, SCHEMA)
        if found is not None:
            assert_rows(found, artifact.source, slice(None))
        file.write_bytes(content)


def test_a_missing_file_is_corrupt(artifact, damaged):
    for file in files_of(damaged):
        content = file.read_bytes()
        file.unlink()
        assert read_all(artifact.format, damaged, SCHEMA) is None, file.name
        file.write_bytes(content)


def test_a_missing_artifact_is_corrupt(fmt, tmp_path):
    with pytest.raises(CorruptArtifact):
        fmt.open(tmp_path / "nothing", SCHEMA)


@pytest.mark.parametrize("start", [b"", b"PK\x03\x04", b"\x93NUMPY\x01\x00", b"\x80\x04"])
def test_garbage_is_corrupt_unless_a_file_is_nothing_but_samples(artifact, reader, damaged, elsewhere, start):
    bare = {extent.path.name for extent in (reader.extents or {}).values() if extent.offset == 0}
    for file in files_of(damaged):
        content = file.read_bytes()
        file.write_bytes((start + np.random.default_rng(1).bytes(len(content)))[: len(content)])
        found = elsewhere(read_all, artifact.format, damaged, SCHEMA)
        assert (found is None) == (file.name not in bare), file.name
        file.write_bytes(content)


def with_signal(**changes):
    return replace(
        SCHEMA, fields=tuple(replace(f, **changes) if f.name == "signal" else f for f in SCHEMA.fields)
    )


@pytest.mark.parametrize(
    "schema",
    [
        replace(SCHEMA, samples=SAMPLES + 1),
        replace(SCHEMA, samples=SAMPLES - 1),
        replace(SCHEMA, fields=(*SCHEMA.fields, Field("depth", (), "uint8"))),
        with_signal(name="sound"),
        with_signal(shape=(5, 2)),
        with_signal(shape=(10,)),
        with_signal(dtype="int32"),
        with_signal(dtype="float64"),
    ],
    ids=["more", "fewer", "extra field", "name", "shape", "flat", "dtype", "width"],
)
def test_another_schema_is_corrupt(artifact, elsewhere, schema):
    assert elsewhere(read_all, artifact.format, artifact.path, schema) is None


@pytest.mark.parametrize("variant", ["npy", "memmap", "hdf5", "hdf5:chunk_bytes=4096,compression=gzip"])
def test_a_damaged_byte_is_corrupt_or_other_content(variant, tmp_path):
    artifact = store(formats.parse(variant), tmp_path / "a", SCHEMA)
    for file in files_of(artifact.path):
        content = file.read_bytes()
        for place in range(0, min(len(content), 2000), 5):
            file.write_bytes(content[:place] + b"(" + content[place + 1 :])
            read_all(artifact.format, artifact.path, SCHEMA)
        file.write_bytes(content)


# --- nothing is unpickled --------------------------------------------------------------------


class Bomb:
    """Creates a file when unpickled."""

    def __init__(self, fuse):
        self.fuse = fuse

    def __reduce__(self):
        return os.mkdir, (str(self.fuse),)


def test_a_pickle_beside_the_files_is_left_alone(artifact, damaged, tmp_path):
    (damaged / "other.pickle").write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
    read_all(artifact.format, damaged, SCHEMA)
    assert not (tmp_path / "exploded").exists()


def test_a_pickle_in_place_of_a_file_is_corrupt(artifact, reader, damaged, tmp_path, elsewhere):
    for file in files_of(damaged):
        content = file.read_bytes()
        file.write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
        assert elsewhere(read_all, artifact.format, damaged, SCHEMA) is None
        assert not (tmp_path / "exploded").exists()
        file.write_bytes(content)


def test_memmap_whose_description_asks_for_a_pickle_is_corrupt(tmp_path):
    from tensordict import NonTensorData

    artifact = store(formats.get("memmap"), tmp_path / "a", SCHEMA)
    meta = artifact.path / "meta.json"
    described = json.loads(meta.read_text()) | {"_type": str(NonTensorData), "_class": None}
    meta.write_text(json.dumps(described))
    (artifact.path / "other.pickle").write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
    with pytest.raises(CorruptArtifact):
        artifact.open()
    assert not (tmp_path / "exploded").exists()


def test_npy_of_objects_is_corrupt_and_not_unpickled(tmp_path):
    artifact = store(formats.get("npy"), tmp_path / "a", SCHEMA)
    objects = np.array([Bomb(tmp_path / "exploded")] * SAMPLES, dtype=object)
    np.save(artifact.path / "label.npy", objects, allow_pickle=True)
    with pytest.raises(CorruptArtifact):
        artifact.open()
    assert not (tmp_path / "exploded").exists()


def test_npy_in_fortran_order_is_corrupt(tmp_path):
    artifact = store(formats.get("npy"), tmp_path / "a", SCHEMA)
    np.save(artifact.path / "signal.npy", np.asfortranarray(artifact.source["signal"]))
    with pytest.raises(CorruptArtifact):
        artifact.open()


def test_a_damaged_lz4_frame_is_corrupt(tmp_path):
    artifact = store(formats.get("lmdb", codec="lz4"), tmp_path / "a", SCHEMA)
    data = artifact.path / "data.mdb"
    data.write_bytes(data.read_bytes().replace(b"\x04\x22\x4d\x18", b"frog"))
    assert read_all(artifact.format, artifact.path, SCHEMA) is None
