"""Formats tokens and megatron: files of tokens as other programs write them, read in windows."""

import json
import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kinds import complaint_kind, has, refused_as

import iobench
from iobench import formats, open_source
from iobench.base.errors import InvalidOption, UnsupportedSchema
from iobench.contrib.formats.tokens import HEADER_BYTES
from iobench.formats import Field, Schema
from iobench.testing.cases import assert_rows, assert_same
from iobench.testing.placements import assert_placements

TOKENS, MEGATRON = formats.get("tokens"), formats.get("megatron")
VOCABULARY = 50_257  # GPT-2's
SEQUENCES, DOCUMENTS = (5, 0, 7, 1, 9), (0, 2, 2, 5)
CODES = {"uint16": 8, "int32": 4}
HEADER = 9 + 8 + 1 + 8 + 8  # bytes of Megatron's index before its arrays


def ids(count, dtype="uint16", vocabulary=VOCABULARY):
    return np.random.default_rng(count).integers(0, vocabulary, count).astype(dtype)


def as_nanogpt(folder, tokens):
    """Write a file as nanoGPT's prepare.py."""
    tokens.tofile(folder / "train.bin")
    return folder / "train.bin"


def as_megatron(folder, tokens, lengths=None):
    """Write a file and an index as Megatron's IndexedDatasetBuilder."""
    tokens.tofile(folder / "corpus_text_document.bin")
    lengths = np.array([len(tokens)] if lengths is None else lengths, np.int32)
    borders = np.array([0, len(lengths)] if len(lengths) == 1 else DOCUMENTS, np.int64)
    pointers = (np.cumsum(lengths) - lengths) * tokens.itemsize
    with open(folder / "corpus_text_document.idx", "wb") as file:
        file.write(b"MMIDIDX\x00\x00" + struct.pack("<QB", 1, CODES[tokens.dtype.name]))
        file.write(struct.pack("<QQ", len(lengths), len(borders)))
        for array in (lengths, pointers.astype(np.int64), borders):
            file.write(array.tobytes())
    return folder / "corpus_text_document.bin"


WRITERS = {"tokens": as_nanogpt, "megatron": as_megatron}


@pytest.mark.parametrize("name", WRITERS)
@settings(deadline=None, max_examples=60)
@given(st.integers(0, 90), st.integers(2, 20), st.data(), st.sampled_from(["uint16", "other"]))
@example(17, 17, None, "uint16")
@example(16, 17, None, "uint16")
@example(33, 17, None, "uint16")
@example(32, 17, None, "uint16")
def test_windows_of_any_length_and_stride(name, count, window, data, dtype):
    """A file of any number of tokens has no window, exactly one, or several and some tokens left over."""
    stride = data.draw(st.one_of(st.none(), st.integers(1, window))) if data else None
    dtype = {"tokens": "uint32", "megatron": "int32"}[name] if dtype == "other" else dtype
    tokens, step = ids(count, dtype), stride or window - 1
    fmt = formats.get(name, window=window, stride=stride, **({"dtype": dtype} if name == "tokens" else {}))
    with tempfile.TemporaryDirectory() as folder:
        file = WRITERS[name](Path(folder), tokens)
        if count < window:
            with refused_as("too-few-tokens", path=file, found=count):
                fmt.infer_schema(file)
            return
        expected = {"tokens": np.lib.stride_tricks.sliding_window_view(tokens, window)[::step]}
        samples = len(expected["tokens"])
        schema = fmt.infer_schema(file)
        assert schema == Schema(samples, (Field("tokens", (window,), dtype),))
        left = {note.values["left_over"] for note in fmt.notes(file, schema) if note.kind == "not-read"}
        assert left == {count - (samples - 1) * step - window} - {0}
        rows = np.random.default_rng(0).integers(0, samples, 9)
        with fmt.open(file, schema) as reader:
            assert_placements(reader, expected)
            for chosen in (rows, slice(0, samples), slice(samples // 2, samples)):
                assert_rows(reader.batch(chosen), expected, chosen)
                assert_rows(reader.native(chosen), expected, chosen)
            assert_same(reader.sample(int(rows[0]))["tokens"], expected["tokens"][rows[0]])


@pytest.mark.parametrize("name", WRITERS)
def test_windows_that_overlap_are_written_as_the_file_that_they_come_from(name, tmp_path):
    tokens = ids(91)
    file = WRITERS[name](tmp_path, tokens)
    fmt = formats.parse(f"{name}:window=19,stride=8{',dtype=uint16' if name == 'tokens' else ''}")
    schema = fmt.infer_schema(file)
    with fmt.open(file, schema) as reader:
        windows = reader.batch(slice(None))["tokens"]
    fmt.write(tmp_path / "a", schema, ({"tokens": part} for part in (windows[:4], windows[:0], windows[4:])))
    assert fmt.data_file(tmp_path / "a").read_bytes() == file.read_bytes()
    with fmt.open(tmp_path / "a", schema) as reader:
        assert_rows(reader.batch(slice(None)), {"tokens": windows}, slice(None))
    for row, place in ((0, 18), (6, 3)):  # within a batch, and between two
        other = windows.copy()
        other[row, place] += 1
        with refused_as("windows-differ", UnsupportedSchema):
            fmt.write(tmp_path / f"b{row}", schema, ({"tokens": part} for part in (other[:6], other[6:])))


def test_only_windows_of_tokens_are_written():
    for shapes in ([()], [(4, 2)], [(4,), (4,)]):
        fields = tuple(Field(f"x{number}", shape, "uint16") for number, shape in enumerate(shapes))
        with refused_as("not-windows", UnsupportedSchema):
            TOKENS.check_schema(Schema(3, fields))
    schema = Schema(3, (Field("x", (4,), "uint16"),))
    for options in ({"stride": 5}, {"window": 5}):
        with refused_as("not-windows", UnsupportedSchema):
            formats.get("tokens", **options).check_schema(schema)
    with refused_as("unsupported-dtype", UnsupportedSchema, found="uint16"):
        formats.get("tokens", dtype="uint32").check_schema(schema)
    with refused_as("conflicting-options", InvalidOption):
        formats.get("tokens", window=9, stride=10)


CONTENTS = {
    "GPT-2": (ids(40_000), "uint16"),
    "Llama 3": (ids(40_000, "uint32", 128_256), "uint32"),
    "64 bits": (ids(40_000, "uint64", 128_256), "uint64"),
    "characters": (ids(40_000, vocabulary=65), "uint16"),
    "bases": (ids(40_000, vocabulary=4), None),
    "padding": (np.zeros(40_000, np.uint16), None),
    "an odd number": (ids(39_999, vocabulary=4), "uint16"),
    "short": (ids(60, "uint32"), None),
}


@pytest.mark.parametrize(("tokens", "dtype"), CONTENTS.values(), ids=CONTENTS)
def test_the_dtype_is_inferred_only_where_one_alone_fits(tokens, dtype, tmp_path):
    file = as_nanogpt(tmp_path, tokens)
    if dtype is None:
        with refused_as("unknown-dtype", path=file, hint=has("dtype=")):
            TOKENS.infer_schema(file)
        assert not TOKENS.sniff(file)
    else:
        schema = TOKENS.infer_schema(file)
        assert schema.fields == (Field("tokens", (1025,), dtype),)
        assert [note.values for note in TOKENS.notes(file, schema) if note.kind == "inferred-dtype"] == [
            {"dtype": dtype}
        ]
        assert TOKENS.sniff(file)
    told = formats.get("tokens", dtype="uint16", window=30)
    assert told.infer_schema(file).fields[0].dtype == "uint16"
    assert "inferred-dtype" not in {note.kind for note in told.notes(file, told.infer_schema(file))}


def test_other_numbers_are_not_taken_for_tokens(tmp_path):
    rng = np.random.default_rng(0)
    others = (rng.bytes(1 << 20), rng.random(1 << 16, np.float32).tobytes(), ids(1000).tobytes(), b"")
    for number, content in enumerate(others):
        file = tmp_path / f"{number}.bin"
        file.write_bytes(content)
        assert not TOKENS.sniff(file)
    assert not TOKENS.sniff(as_megatron(tmp_path, ids(40_000)))
    assert not TOKENS.sniff(tmp_path)
    assert TOKENS.sniff(as_nanogpt(tmp_path, ids(40_000)))
    (tmp_path / "index.json").write_text("{}")  # the folder is LitData's, whose chunks are .bin files
    assert not TOKENS.sniff(tmp_path / "train.bin")


def as_llm_c(file, tokens):
    header = np.zeros(256, np.int32)
    header[:3] = *((20240520, 1) if tokens.dtype == "uint16" else (20240801, 7)), len(tokens)
    assert header.nbytes == HEADER_BYTES
    file.write_bytes(header.tobytes() + tokens.tobytes())


def as_npy(file, tokens):
    with file.open("wb") as opened:
        np.save(opened, tokens)


@pytest.mark.parametrize(
    ("write", "dtype"), [(as_llm_c, "uint16"), (as_llm_c, "uint32"), (as_npy, "uint16"), (as_npy, "int32")]
)
def test_a_file_with_a_header_is_read_after_it(write, dtype, tmp_path):
    tokens, file, fmt = ids(1100, dtype), tmp_path / "train.bin", formats.get("tokens", window=11)
    write(file, tokens)
    assert fmt.sniff(file) == (write is as_llm_c)
    schema = fmt.infer_schema(file)
    assert {note.kind for note in fmt.notes(file, schema)} == {"not-read"}
    with fmt.open(file, schema) as reader:
        windows = np.lib.stride_tricks.sliding_window_view(tokens, 11)[::10]
        assert_rows(reader.batch(slice(None)), {"tokens": windows}, slice(None))
        assert_placements(reader, {"tokens": windows})
    other = Schema(schema.samples, (Field("tokens", (11,), "uint8"),))
    with refused_as("corrupt-artifact", path=file):
        formats.get("tokens", window=11, dtype="uint8").open(file, other)
    file.write_bytes(file.read_bytes()[:-4])
    with refused_as("corrupt-artifact", path=file):
        fmt.infer_schema(file)


def test_an_npy_file_of_numbers_is_no_file_of_tokens_unless_that_is_said(tmp_path):
    file, npy = tmp_path / "t.npy", formats.get("npy")
    np.save(file, ids(1100))
    (note,) = open_source(file).notes
    assert (note.kind, note.values) == ("single-numbers", {"samples": 1100, "dtype": "uint16"})
    assert npy.notes(file, npy.infer_schema(file)) == [note]
    np.save(file, ids(1100).reshape(-1, 2))
    with refused_as("corrupt-artifact", path=file):
        TOKENS.infer_schema(file)


def test_megatron_is_recognized_by_its_index(tmp_path):
    file = as_megatron(tmp_path, ids(22), SEQUENCES)
    index = file.with_suffix(".idx")
    assert MEGATRON.sniff(file)
    assert MEGATRON.sniff(index)
    with refused_as("index-file", path=index, hint=has(str(file))):
        MEGATRON.infer_schema(index)
    fmt = formats.get("megatron", window=5)
    schema = fmt.infer_schema(file)
    assert {n.kind: n.values.get("documents") for n in fmt.notes(file, schema)} == {
        "not-read": None,
        "documents": 3,
    }
    index.write_bytes(b"PK" + index.read_bytes()[2:])
    assert not MEGATRON.sniff(file)
    index.unlink()
    assert not MEGATRON.sniff(file)
    with refused_as("corrupt-artifact", path=index):
        fmt.open(file, schema)


def packed(place, form, value):
    """Return a change of the index: a value at a place."""

    def change(content):
        return content[:place] + struct.pack(form, value) + content[place + struct.calcsize(form) :]

    return change


POINTERS, BORDERS = HEADER + 4 * len(SEQUENCES), HEADER + 12 * len(SEQUENCES)
LIES = {
    "version": packed(9, "<Q", 2),
    "dtype": packed(17, "<B", 9),
    "twice as wide": packed(17, "<B", CODES["int32"]),
    "more sequences": packed(18, "<Q", 6),
    "very many sequences": packed(18, "<Q", 1 << 60),
    "more documents": packed(26, "<Q", 5),
    "a longer sequence": packed(HEADER, "<i", 6),
    "a longer last sequence": packed(HEADER + 16, "<i", 10),
    "a negative length": packed(HEADER + 4, "<i", -1),
    "a pointer beyond the file": packed(POINTERS + 8, "<q", 1 << 40),
    "a last pointer beyond the file": packed(POINTERS + 32, "<q", 1 << 62),
    "a negative pointer": packed(POINTERS, "<q", -2),
    "a pointer inside a token": packed(POINTERS + 32, "<q", 27),
    "a border beyond the sequences": packed(BORDERS + 24, "<q", 6),
    "a falling border": packed(BORDERS + 8, "<q", 3),
    "a first border": packed(BORDERS, "<q", 1),
    "cut off": lambda content: content[:-1],
    "half a header": lambda content: content[:20],
    "nothing": lambda content: b"",
}


@pytest.mark.parametrize("change", LIES.values(), ids=LIES)
def test_an_index_that_lies_is_one_clear_error(change, tmp_path):
    fmt = formats.get("megatron", window=5)
    file = as_megatron(tmp_path, ids(22), SEQUENCES)
    schema, index = fmt.infer_schema(file), file.with_suffix(".idx")
    index.write_bytes(change(index.read_bytes()))
    for refuse in (fmt.infer_schema, lambda path: (fmt.check(path, schema), fmt.open(path, schema))):
        with refused_as("corrupt-artifact", expected=has()) as error:
            refuse(file)
        assert Path(error.value.path) in (index, file)
        assert error.value.found is not None


def test_tokens_are_added_prepared_and_measured_as_one_types_it(tmp_path, inside):
    file, data = as_nanogpt(tmp_path, ids(60_001)), ("--data-dir", tmp_path / "data")
    done = inside("add", file, *data, "--name", "own")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("inferred-dtype") == done.stderr.count("no window") == 1
    both = ("--format", "npy", "--format", "tokens:stride=1024")
    done = inside("prepare", "--name", "own", *both, *data)
    assert done.returncode == 0, done.stderr
    manifest = iobench.find_dataset(tmp_path / "data")
    (written,) = (one for one in manifest.files_of("tokens:stride=1024") if one.suffix == ".bin")
    assert written.read_bytes() == file.read_bytes()[: 2 * (58 * 1024 + 1)]  # the same stream
    loaders = ("--loader", "dataloader", "--loader", "native", "--loader", "stream")
    done = inside("run", "--name", "own", *loaders, "--batch-size", 8, "--order", "random", *data, "--json")
    assert done.returncode == 0, done.stderr
    (context,) = json.loads(done.stdout)["contexts"]
    assert len(context["cases"]) == 9
    for case in context["cases"]:
        rates = {name: metric["median"] for name, metric in case["metrics"].items() if metric}
        assert rates["tokens_per_s"] == pytest.approx(1025 * rates["samples_per_s"])


def test_the_format_of_a_source_can_be_told(tmp_path, inside):
    file, data = as_nanogpt(tmp_path, ids(200, vocabulary=4)), ("--data-dir", tmp_path / "data")
    assert complaint_kind(inside("prepare", "--source", file, *data)) == "unrecognized"
    told = ("--source-format", "tokens:window=17,dtype=uint16")
    assert complaint_kind(inside("prepare", *told, *data), 2) == "conflicting-options"
    assert complaint_kind(inside("recommend", *told, *data), 2) == "missing-option"
    done = inside("prepare", "--source", file, *told, "--format", "npy", *data)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("no window") == 1
    source = open_source(file, format="tokens:window=17,dtype=uint16")
    assert source.schema == Schema(12, (Field("tokens", (17,), "uint16"),))
    assert source.in_place() == (file, "tokens:window=17,dtype=uint16")
