"""Format webdataset: its own library reads and writes the same shards; damaged or hostile archives."""

import io
import os
import re
import shlex
import tarfile

import numpy as np
import pytest
from kinds import has, refused_as
from ragged_cases import batch_of, samples

from iobench import formats
from iobench.base.errors import CorruptArtifact, SourceError, UnsupportedSchema
from iobench.contrib.loaders.webdataset import SampleDecoder
from iobench.dataset.add import add
from iobench.dataset.sources import open_source
from iobench.formats import VARIES, Field, ListedSpans, Schema
from iobench.loading.user_errors import PortableError
from iobench.testing.cases import SCHEMA, assert_rows, assert_same, read_all, store
from iobench.testing.placements import assert_placements

WEBDATASET = formats.get("webdataset")


def read_by_webdataset(folder):
    """Return the keys and the arrays of each sample, as webdataset's own library decodes them."""
    library = pytest.importorskip("webdataset")
    shards = sorted(map(str, folder.glob("*.tar")))
    samples = list(library.WebDataset(shards, shardshuffle=False).decode())
    names = [name for name in samples[0] if name.endswith(".npy")]
    return [one["__key__"] for one in samples], {name[:-4]: [one[name] for one in samples] for name in names}


def pack(path, files, change=lambda info: None, layout=tarfile.DEFAULT_FORMAT):
    """Write an archive of these files; `change` may alter the header of each."""
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w", format=layout) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            change(info)
            archive.addfile(info, io.BytesIO(content))
    return path


def rows(name, content, count=4):
    """Return a file of the same content for each sample."""
    return {f"{row:03d}.{name}": content for row in range(count)}


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.fixture(autouse=True)
def two_samples_of_a_piece(monkeypatch):
    """Files are listed two samples at a time; the contract suite has them in one piece."""
    monkeypatch.setattr("iobench.contrib.formats.webdataset.tar.PIECE", 2)


CLS = Field("cls", (), "int64")
FILES = {f"{row:03d}.x.npy": npy(np.full(3, row, np.int16)) for row in range(4)}


@pytest.mark.parametrize(("shard_bytes", "files"), [(1, 23), (20_000, 6), (1 << 26, 1)])
def test_webdataset_reads_what_we_write(tmp_path, shard_bytes, files):
    artifact = store(formats.get("webdataset", shard_bytes=shard_bytes), tmp_path / "a", SCHEMA)
    assert len(list(artifact.path.iterdir())) == files
    keys, read = read_by_webdataset(artifact.path)
    assert keys == [f"{row:09d}" for row in range(23)]
    assert read.keys() == artifact.source.keys()
    assert_rows({name: np.stack(arrays) for name, arrays in read.items()}, artifact.source, slice(None))


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """Shards that webdataset wrote."""
    library, folder = pytest.importorskip("webdataset"), tmp_path_factory.mktemp("others")
    with library.ShardWriter(f"{folder}/train-%06d.tar", maxcount=20, verbose=0) as sink:
        for i in range(50):
            array = np.arange(12, dtype="float32").reshape(3, 4) + i
            fields = {"input-x.npy": array, "cls": 300 * i - 7, "raw": array.tobytes()}
            sink.write({"__key__": f"part/{i:05d}"} | fields)
    return folder


def test_shards_of_webdataset_are_read_in_place(others):
    assert WEBDATASET.sniff(others)
    expected = np.arange(12, dtype="float32").reshape(3, 4) + np.arange(50, dtype="float32")[:, None, None]
    with refused_as("fields-needed", problem=has(".raw")):
        WEBDATASET.infer_schema(others)
    fields = (Field("input_x", (3, 4), "float32"), Field("cls", (), "int64"), Field("raw", (12,), "float32"))
    schema = WEBDATASET.infer_schema(others, fields)
    assert schema == Schema(50, fields)
    with WEBDATASET.open(others, schema) as reader:
        batch = reader.batch(np.array([49, 0, 20, 19, 20]))
        assert_same(batch["input_x"], expected[[49, 0, 20, 19, 20]])
        assert_same(batch["raw"], expected[[49, 0, 20, 19, 20]].reshape(-1, 12))
        assert_same(batch["cls"], 300 * np.array([49, 0, 20, 19, 20]) - 7)
        assert_same(reader.sample(33)["cls"], np.array(300 * 33 - 7))
        assert reader.placement().keys() == {"input_x", "raw"}
        assert [blocks.fields for blocks in reader.blocks()] == [("cls",)]


def assert_files(path):
    """Assert that an archive holds the samples of FILES."""
    schema = WEBDATASET.infer_schema(path)
    assert schema == Schema(4, (Field("x", (3,), "int16"),))
    assert read_all(WEBDATASET, path, schema)["x"][:, 0].tolist() == [0, 1, 2, 3]


def test_long_names_are_read_back(tmp_path):
    schema = Schema(12, (Field("x" * 180, (2,), "int8"), Field("y", (), "float64")))
    artifact = store(WEBDATASET, tmp_path / "a", schema)
    assert_rows(read_all(WEBDATASET, artifact.path, schema), artifact.source, slice(None))
    with tarfile.open(artifact.path / "000000.tar") as archive:
        assert archive.getnames()[22:] == [f"000000011.{'x' * 180}.npy", "000000011.y.npy"]


@pytest.mark.parametrize("layout", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_kind_of_header_is_read(tmp_path, layout):
    folder = "f" * 120 + "/" if layout != tarfile.USTAR_FORMAT else "f" * 90 + "/" + "g" * 50 + "/"
    files = {folder + name: content for name, content in FILES.items()}
    assert_files(pack(tmp_path / "a.tar", files, lambda info: setattr(info, "mtime", 1.5), layout))


def test_the_size_in_a_pax_header_counts(tmp_path):
    stored = b""
    for name, content in FILES.items():
        info = tarfile.TarInfo(name)
        info.pax_headers = {"size": str(len(content))}  # in the file's own header it is 0
        stored += info.tobuf(tarfile.PAX_FORMAT) + content + bytes(-len(content) % tarfile.BLOCKSIZE)
    (tmp_path / "a.tar").write_bytes(stored + bytes(2 * tarfile.BLOCKSIZE))
    assert_files(tmp_path / "a.tar")


@pytest.mark.parametrize("layout", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_the_long_name_of_a_folder_is_not_applied_to_a_file(tmp_path, layout):
    def is_folder(info):
        info.type = tarfile.DIRTYPE if info.name.startswith("f") else tarfile.REGTYPE

    files = {}
    for name, content in FILES.items():
        files |= {"f" * 120 + name: b"", name: content}
    assert_files(pack(tmp_path / "a.tar", files, is_folder, layout))


@pytest.mark.parametrize("length", [b"0", b"-7", b"99", b"9" * 5000])
def test_a_pax_header_of_another_length_is_corrupt(tmp_path, length):
    def is_header(info):
        info.type = b"x" if info.name == "header" else b"0"

    files = {"header": length + b" path=abcdef\n", "000.x.npy": FILES["000.x.npy"]}
    path = pack(tmp_path / "a.tar", files, is_header)
    with refused_as("corrupt-artifact", match="pax header", path=path):
        WEBDATASET.infer_schema(path)


def named(name):
    return lambda info: setattr(info, "name", name)


def typed(value):
    def change(info):
        info.type, info.linkname = value, "/etc/passwd"

    return change


def sparse(info):
    info.pax_headers = {"GNU.sparse.major": "1"}


CHANGED = {
    "absolute": (named("/000.x.npy"), "unsafe-path", "/000.x.npy"),
    "above": (named("a/../../000.x.npy"), "unsafe-path", "../000.x.npy"),
    "hard link": (typed(tarfile.LNKTYPE), "not-a-file", "hard link"),
    "symbolic link": (typed(tarfile.SYMTYPE), "not-a-file", "symbolic link"),
    "pipe": (typed(tarfile.FIFOTYPE), "not-a-file", "type b'6'"),
    "sparse": (sparse, "not-a-file", "sparse file"),
}


@pytest.mark.parametrize(("change", "cause", "found"), CHANGED.values(), ids=CHANGED)
def test_members_other_than_regular_files_inside_are_refused(tmp_path, change, cause, found):
    path = pack(tmp_path / "a.tar", FILES, change)
    with refused_as(cause, path=path, found=has(found)):
        WEBDATASET.infer_schema(path)


ADDED = {
    "another shape": ({"009.x.npy": npy(np.zeros((3, 1), np.int16))}, "unequal-shapes", "int16 (3, 1)"),
    "more axes": ({"009.x.npy": npy(np.zeros((3, 2), np.int16))}, "unequal-shapes", "int16 (3, 2)"),
    "another dtype": ({"009.x.npy": npy(np.zeros(3, np.int32))}, "unequal-shapes", "int32 (3,)"),
    "objects": ({"009.x.npy": npy(np.array([{}, {}, {}]))}, "unsupported-dtype", "|O"),
    "big-endian": ({"009.x.npy": npy(np.zeros(3, ">i2"))}, "byte-order", ">i2"),
    "nothing": ({"009.x.npy": b""}, "corrupt-artifact", ".npy file"),
    "missing": ({"009.y.npy": npy(np.zeros(3))}, "missing-files", ".y.npy"),
    "no label": ({"000.cls": b"1", "002.cls": b"2"}, "missing-files", "001 has no .cls"),
    "no label at the end": (rows("cls", b"1", 3), "missing-files", "003 has no .cls"),
    "two": ({"003.X.npy": npy(np.zeros(3))}, "repeated-file", "two files .x.npy"),
    "with and without .npy": (rows("x", npy(np.zeros(3))), "name-clash", "x"),
    "no elements": (rows("y.npy", npy(np.zeros(0))), "empty", "y"),
    "other images": (rows("webp", b"RIFF"), "unsupported-image", "PNG"),
    "raw bytes of one size": (rows("raw", bytes(8)), "fields-needed", "8 bytes: --field 'raw=DTYPE[SHAPE]'"),
    "texts": (
        {f"{row:03}.txt": bytes(row + 1) for row in range(4)},
        "fields-needed",
        "--field 'txt=uint8[*]'",
    ),
    "beside others": (
        rows("raw", bytes(8)),
        "fields-needed",
        "select the other fields: --field 'x=int16[3]'",
    ),
}


@pytest.mark.parametrize(("more", "cause", "part"), ADDED.values(), ids=ADDED)
def test_files_that_do_not_fit_into_the_samples_are_refused(tmp_path, more, cause, part):
    with refused_as(cause) as error:
        WEBDATASET.infer_schema(pack(tmp_path / "a.tar", dict(sorted((FILES | more).items()))))
    assert part in str(error.value)


def test_a_file_that_some_samples_lack_is_left_out_by_the_option_of_the_hint(tmp_path):
    path = pack(tmp_path / "a.tar", {"000.cls": b"1"} | FILES)
    with refused_as("missing-files", path=path) as error:
        WEBDATASET.infer_schema(path)
    assert error.value.hint.endswith(": --field 'x=int16[3]'")
    x = Field("x", (3,), "int16")
    assert WEBDATASET.infer_schema(path, [x]) == Schema(4, (x,))
    (note,) = WEBDATASET.notes(path, Schema(4, (x,)))
    assert (note.kind, note.values) == ("not-read", {"files": 1})
    with pytest.raises(CorruptArtifact, match=r"001 .* \.cls"):
        WEBDATASET.infer_schema(path, [x, CLS])


def test_the_hint_scales_images_that_differ_in_size(tmp_path, inside):
    files = pictures("png", ((5, 4), (6, 4)))[0] | {f"{row:06d}.json": b"{}" for row in range(4)}
    path = pack(tmp_path / "a/x.tar", dict(sorted(files.items())))
    with refused_as("fields-needed") as error:
        WEBDATASET.infer_schema(path)
    words = re.search(r": (--format .+?), or ", error.value.hint)[1]
    done = inside("add", path, *shlex.split(words), "--data-dir", tmp_path / "data")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("folders", "count"), [(["cat", "dog"], 2), (["all", "all"], None)])
def test_folders_in_an_archive_are_said_to_be_no_labels(tmp_path, folders, count):
    names = [f"{folder}/{number}.X.npy" for number, folder in enumerate(folders)]
    path = pack(tmp_path / "a.tar", dict.fromkeys(names, npy(np.zeros(3))))
    notes = WEBDATASET.notes(path, WEBDATASET.infer_schema(path))
    assert [(note.kind, note.values) for note in notes] == (
        [("folders-in-archive", {"folders": count})] if count else []
    )


def pictures(kind, sizes=((5, 4),), mode="RGB", rows=4):
    """Return image files with labels, and the pixels that Pillow decodes from them."""
    image = pytest.importorskip("PIL.Image")
    files, pixels, rng = {}, [], np.random.default_rng(1)
    for row in range(rows):
        width, height = sizes[row % len(sizes)]
        file = io.BytesIO()
        noise = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        image.fromarray(noise).convert(mode).save(file, {"png": "PNG"}.get(kind, "JPEG"))
        files |= {f"{row:06d}.{kind}": file.getvalue(), f"{row:06d}.cls": b"%d" % (row % 3)}
        pixels.append(np.asarray(image.open(io.BytesIO(file.getvalue()))))
    return files, pixels


@pytest.mark.parametrize(("kind", "mode"), [("png", "RGB"), ("jpg", "RGB"), ("jpeg", "L")])
def test_images_are_decoded_as_they_are_read(tmp_path, kind, mode):
    files, pixels = pictures(kind, mode=mode)
    path, fields = pack(tmp_path / "a.tar", files), (Field(kind, pixels[0].shape, "uint8"), CLS)
    schema = WEBDATASET.infer_schema(path)
    assert schema == Schema(4, fields)
    expected = {kind: np.stack(pixels), "cls": np.arange(4) % 3}
    with WEBDATASET.open(path, schema) as reader:
        assert_rows(reader.batch(np.array([3, 0, 3])), expected, [3, 0, 3])
        assert_rows(reader.sample(2), expected, 2)
        assert_placements(reader, expected)


@pytest.mark.parametrize(
    ("sizes", "mode", "cause", "row", "found"),
    [
        (((5, 4), (6, 4)), "RGB", "unequal-shapes", 1, "(4, 6, 3)"),
        (((5, 4), (5, 4), (5, 4), (6, 4)), "RGB", "unequal-shapes", 3, "(4, 6, 3)"),
        (((5, 4),), "CMYK", "unsupported-image", 0, "CMYK"),
    ],
    ids=["sizes", "later size", "pixels"],
)
def test_images_of_another_size_or_mode_are_refused_by_name(tmp_path, sizes, mode, cause, row, found):
    files, _ = pictures("jpg", sizes, mode)
    path = pack(tmp_path / "a.tar", files)
    with refused_as(cause, path=path, found=found, problem=has(f"jpg of sample {row}")) as caught:
        WEBDATASET.infer_schema(path)
    if cause == "unequal-shapes":
        assert caught.value.expected == "(4, 5, 3)"
        assert caught.value.hint.endswith("--field 'jpg=uint8[*]' --field cls=int64")
        fields = (Field("jpg", (VARIES,), "uint8"), Field("cls", (), "int64"))
        schema = WEBDATASET.infer_schema(path, fields)
        with WEBDATASET.open(path, schema) as reader:
            read = [reader.sample(row)["jpg"].tobytes() for row in range(4)]
            assert read == [files[f"{row:06d}.jpg"] for row in range(4)]


def unusual(array):
    """Return a .npy file with another header than NumPy's own for the same array."""
    file = io.BytesIO()
    np.lib.format.write_array_header_2_0(file, np.lib.format.header_data_from_array_1_0(array))
    return file.getvalue() + array.tobytes()


@pytest.mark.parametrize("stored", [npy, unusual])
def test_arrays_of_several_lengths_are_samples_of_several_lengths(tmp_path, stored):
    arrays = [np.arange(2 * length, dtype=np.float32).reshape(length, 2) for length in (3, 3, 0, 100_000)]
    path = pack(tmp_path / "a.tar", {f"{row}.x.npy": stored(array) for row, array in enumerate(arrays)})
    schema = WEBDATASET.infer_schema(path)
    assert schema == Schema(4, (Field("x", (VARIES, 2), "float32"),), totals={"x": 100_006})
    with WEBDATASET.open(path, schema) as reader:
        assert samples(reader.batch(np.array([3, 2, 0]))["x"]) == [arrays[row].tobytes() for row in (3, 2, 0)]
        assert isinstance(reader.placement()["x"], ListedSpans)


@pytest.mark.parametrize("stored", [npy, unusual])
def test_an_array_with_too_few_or_too_many_bytes_is_corrupt(tmp_path, stored):
    for change in (lambda content: content[:-2], lambda content: content + b"\0", lambda c: c + b"\0\0"):
        files = {f"{row}.x.npy": stored(np.zeros(row, np.int16)) for row in (1, 2, 9)}
        path = pack(tmp_path / "a.tar", files | {"9.x.npy": change(files["9.x.npy"])})
        with pytest.raises(CorruptArtifact, match="of sample 2"):
            WEBDATASET.infer_schema(path)


def test_webdataset_reads_samples_of_several_lengths(tmp_path):
    schema, batch = batch_of([3, 0, 500, 1])
    formats.get("webdataset", shard_bytes=6000).write(tmp_path / "a", schema, [batch])
    assert len(list((tmp_path / "a").iterdir())) == 4
    tokens = read_by_webdataset(tmp_path / "a")[1]["tokens"]
    assert [len(one) for one in tokens] == [3, 0, 500, 1]
    assert_same(np.concatenate(tokens), batch["tokens"].values)


@pytest.mark.parametrize(
    ("field", "found", "hint"),
    [
        (Field("png", (5, 5, 3), "uint8"), "png=uint8[4,5,3]", "--field 'png=uint8[4,5,3]'"),
        (Field("cls", (), "float32"), "cls=int64", "--field cls=int64"),
        (Field("x", (4,), "int16"), "x=int16[3]", "--field 'x=int16[3]'"),
        (Field("x", (VARIES, 3), "int16"), "x=int16[3]", "--field 'x=int16[3]'"),
        (Field("raw", (2,), "int16"), "3 bytes", ""),
    ],
    ids=["image", "number", "npy", "ragged", "raw"],
)
def test_an_option_that_differs_from_the_data_is_refused(tmp_path, field, found, hint):
    files = pictures("png")[0] | {f"000{name}": content for name, content in FILES.items()}
    files |= {f"{row:06d}.raw": bytes(3) for row in range(4)}
    path = pack(tmp_path / "a.tar", dict(sorted(files.items())))
    with refused_as("fields-differ", path=path, found=found, problem=has(field.typed)) as caught:
        WEBDATASET.infer_schema(path, (field,))
    assert caught.value.hint.endswith(hint)
    if field.name == "raw":
        assert caught.value.expected == "4 bytes"
    WEBDATASET.infer_schema(path, (Field("raw", (3,), "uint8"),))


def test_a_damaged_or_replaced_image_is_corrupt(tmp_path):
    files, _ = pictures("jpg")
    schema = WEBDATASET.infer_schema(pack(tmp_path / "a.tar", files))
    whole, other = files["000002.jpg"], pictures("jpg", ((2000, 2000),), rows=1)[0]["000000.jpg"]
    for content in (whole[: len(whole) // 2], other, b"\x89PNG", b""):
        path = pack(tmp_path / "b.tar", files | {"000002.jpg": content})
        with WEBDATASET.open(path, schema) as reader:
            reader.sample(1)
            with refused_as("corrupt-artifact", path=path, expected=has("jpg of sample 2", "5 x 4")):
                reader.sample(2)


def test_names_that_differ_only_in_case_are_stored_with_a_number(tmp_path):
    names = {
        "Label": "label_4",
        "label": "label",
        "label_3": "label_3",
        "LABEL": "label_2",
        "Данные": "данные",
    }
    schema = Schema(3, tuple(Field(name, (), "int8") for name in names))
    assert WEBDATASET.renamed(schema) == {name: own for name, own in names.items() if name != own}
    artifact = store(WEBDATASET, tmp_path / "a", schema)
    assert_rows(read_all(WEBDATASET, artifact.path, schema), artifact.source, slice(None))
    read = read_by_webdataset(artifact.path)[1]
    for name, own in names.items():
        assert_same(np.stack(read[own]), artifact.source[name])


def test_text_in_place_of_an_integer_is_corrupt(tmp_path):
    path = pack(tmp_path / "a.tar", {"0.cls": b"7", "1.cls": b"cat"})
    schema = WEBDATASET.infer_schema(path)
    wrong = refused_as("not-a-number", path=path, expected=has("cls of sample 1"))
    with wrong, WEBDATASET.open(path, schema) as reader:
        reader.batch(slice(None))


def test_a_header_with_a_size_beyond_the_file_is_corrupt(tmp_path):
    path = pack(tmp_path / "a.tar", FILES)
    stored = bytearray(path.read_bytes())
    stored[124:136] = b"\x80" + (1 << 60).to_bytes(11, "big")
    path.write_bytes(stored)
    with refused_as("wrong-checksum", path=path, expected=has("byte 0")):
        WEBDATASET.infer_schema(path)


@pytest.mark.parametrize(
    ("left", "expected", "found"),
    [
        (512 + 100, "134 bytes", "100"),
        (1024 + 100, "byte 1024", "100 bytes"),
        (1024, "two empty blocks", "no such end"),
    ],
    ids=["member", "header", "end"],
)
def test_a_truncated_archive_is_reported_as_such(tmp_path, left, expected, found):
    path = pack(tmp_path / "a.tar", FILES)
    os.truncate(path, left)
    with refused_as("truncated", path=path, expected=has(expected), found=has(found), hint=has()):
        WEBDATASET.infer_schema(path)


@pytest.mark.parametrize("piece", [1, 1 << 16])
def test_a_flipped_bit_in_any_header_is_detected(tmp_path, monkeypatch, piece):
    monkeypatch.setattr("iobench.contrib.formats.webdataset.tar.HEADERS", piece)
    path = pack(tmp_path / "a.tar", FILES)
    stored = path.read_bytes()
    with tarfile.open(path) as archive:
        headers = [info.offset for info in archive]
    for place in {*range(headers[1], headers[1] + 512, 7)} - {headers[1] + 154}:  # the checksum's terminator
        path.write_bytes(stored[:place] + bytes([stored[place] ^ 4]) + stored[place + 1 :])
        with pytest.raises(CorruptArtifact):
            WEBDATASET.infer_schema(path)


SIZES = ((90, 130), (60, 40), (30, 50), (17, 90))


@pytest.mark.parametrize(
    "options", ["shape=3x20x16", "shape=20x16,dct_scaling=yes", "shape=20x16x3,decoder=simplejpeg"]
)
def test_images_of_any_size_are_scaled_as_in_a_folder(tmp_path, options):
    if "simplejpeg" in options:
        pytest.importorskip("simplejpeg")
    files, _ = pictures("jpg", SIZES)
    (tmp_path / "folder/one").mkdir(parents=True)
    for name, content in files.items():
        if name.endswith("jpg"):
            (tmp_path / "folder/one" / name).write_bytes(content)
    read = []
    for path, variant in ((tmp_path / "folder", "images"), (pack(tmp_path / "a.tar", files), "webdataset")):
        fmt = formats.parse(f"{variant}:{options}")
        schema = fmt.infer_schema(path)
        with fmt.open(path, schema) as reader:
            read.append(reader.batch(np.array([3, 0, 1, 2]))["image" if variant == "images" else "jpg"])
            kinds = [note.kind for note in fmt.notes(path, schema)]
            assert kinds == ["other-pixels"] * (not fmt.lossless)
    assert_same(*read)
    with refused_as("read-only-variant", UnsupportedSchema):
        fmt.check_schema(schema)


def test_shards_are_a_source_at_a_sample_shape(tmp_path):
    path = pack(tmp_path / "a.tar", pictures("jpg", SIZES)[0])
    with refused_as("unequal-shapes", SourceError, hint=has("--sample-shape")):
        open_source(path)
    source = open_source(path, (3, 20, 16))
    own, faster = source.in_place()[1], source.other_decoders()
    assert (own, source.decodes) == ("webdataset:shape=3x20x16", True)
    fmt = formats.parse(own)
    with fmt.open(path, fmt.infer_schema(path)) as reader:
        assert_same(next(source.batches())["jpg"], reader.batch(slice(0, 4))["jpg"])
    assert faster == fmt.other_decoders() != ()
    assert (
        open_source(pack(tmp_path / "b.tar", pictures("png", SIZES)[0]), (3, 20, 16)).other_decoders() == ()
    )


def test_webdataset_s_loader_decodes_as_the_format_and_names_a_damaged_image(tmp_path):
    files, _ = pictures("jpg", SIZES, rows=40)
    path = pack(tmp_path / "train/a.tar", files)
    variant = "webdataset:shape=3x20x16"
    manifest, _ = add(path.parent, variant, name="shards", data_dir=tmp_path / "data")
    decoder = SampleDecoder(manifest.opener(variant))
    sample = {"__key__": "000007", "jpg": files["000007.jpg"], "cls": files["000007.cls"]}
    with manifest.opener(variant)() as reader:
        assert_same(decoder(sample)[0], reader.sample(7)["jpg"])
    with pytest.raises(PortableError) as caught:
        decoder(sample | {"jpg": b"\xff\xd8\xff"})
    assert caught.value.unwrap().kind == "unsupported-image"
