"""Fields whose samples differ in length: schema, format npy, checksums, generated lengths, command line."""

import dataclasses
import operator

import numpy as np
import pytest
from conftest import installed_formats
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kinds import refused_as
from ragged_cases import AUDIO, HOLDERS, LABEL, TOKENS, assert_reads, batch_of, pictures_of, samples

from iobench import formats
from iobench.base.errors import SourceError, UnsupportedSchema
from iobench.dataset.checksum import Checksum
from iobench.dataset.sources import GeneratedLengths
from iobench.formats import Ragged, Schema
from iobench.loading.tensors import tensors_of
from iobench.testing.corruption import Bomb

VARIANTS = [
    *HOLDERS,
    "hdf5:chunk_bytes=0",
    "hdf5:chunk_bytes=64,compression=gzip",
    "lmdb:codec=lz4",
    "mds:shard_bytes=1",
    "litdata:chunk_bytes=1",
    "webdataset:shard_bytes=1",
    "tfrecord:shard_bytes=1",
    "zarr:chunk_bytes=1024,shard_bytes=4096,codec=zstd",
    "arrow:batch_bytes=64",
    "parquet:row_group_bytes=64,codec=zstd",
]


def written(name, path, schema, batch):
    """Write samples in two batches and return the format."""
    cut = schema.samples // 2
    halves = [{n: a[part] for n, a in batch.items()} for part in (slice(0, cut), slice(cut, None))]
    fmt = formats.parse(name)
    fmt.check_schema(schema)
    fmt.write(path, schema, halves)
    return fmt


def in_reverse(lengths):
    """Return samples of several axes: images whose heights are these, and whose widths are the reverse."""
    return pictures_of([*zip(lengths, lengths[::-1], strict=True)])


def any_area(lengths):
    """Return whether one of these samples has an element."""
    return any(map(operator.mul, lengths, lengths[::-1]))


MADE = pytest.mark.parametrize("made", [batch_of, in_reverse])


@MADE
@pytest.mark.parametrize("name", VARIANTS)
@settings(deadline=None, max_examples=settings().max_examples // 5)
@given(st.lists(st.sampled_from([0, 1, 2, 7, 300]), min_size=2, max_size=12).filter(any_area), st.data())
@example([0, 1, 70_000, 0], None)
def test_what_was_written_is_read(tmp_path_factory, name, made, lengths, data):
    path = tmp_path_factory.mktemp("ragged") / "a"
    schema, batch = made(lengths)
    fmt = written(name, path, schema, batch)
    rows = data.draw(st.lists(st.integers(0, len(lengths) - 1))) if data else [2, 0, 2]
    first = schema.ragged[0].name
    with fmt.open(path, schema) as reader:
        some = (slice(None), slice(1, 2), slice(1, 1), slice(2, 0, -1), np.array(rows, np.int64))
        assert_reads(reader, batch, *some)
        for own in map(reader.batch, some):  # no views of files
            assert all(own[field.name].values.flags.writeable for field in schema.ragged)
        for row in (-1, len(lengths)):
            with pytest.raises(IndexError):
                reader.sample(row)
        labels = np.empty(1, np.int64)
        reader.read(slice(1, 2), {"label": labels})
        assert labels == batch["label"][1]
        with pytest.raises(ValueError, match="differ in length"):
            reader.read(slice(0, 1), {first: np.empty(1, np.uint16)})
    with pytest.raises(ValueError, match="closed"):
        reader.batch(slice(0, 1))


@pytest.mark.parametrize("name", HOLDERS)
def test_a_dataset_of_ragged_fields_alone(tmp_path, name):
    _, batch = batch_of([3, 0, 5])
    only = Schema(3, (TOKENS,), totals={"tokens": 8})
    formats.get(name).write(tmp_path / "a", only, [{"tokens": batch["tokens"]}])
    with formats.get(name).open(tmp_path / "a", only) as reader:
        assert samples(reader.batch(slice(None))["tokens"]) == samples(batch["tokens"])
        assert reader.sample(2)["tokens"].tobytes() == samples(batch["tokens"])[2]


@pytest.mark.parametrize("name", HOLDERS)
def test_an_array_of_offsets_takes_no_field_s_name(tmp_path, name):
    fields = (TOKENS, dataclasses.replace(LABEL, name="tokens_offsets"))
    schema = Schema(2, fields, totals={"tokens": 3})
    tokens = Ragged(np.arange(3, dtype=np.uint16), np.array([0, 1, 3]))
    formats.get(name).write(tmp_path / "a", schema, [{"tokens": tokens, "tokens_offsets": np.array([7, 8])}])
    with formats.get(name).open(tmp_path / "a", schema) as reader:
        read = reader.batch(slice(None))
        assert samples(read["tokens"]) == samples(tokens)
        assert read["tokens_offsets"].tolist() == [7, 8]


@MADE
@pytest.mark.parametrize("name", [name for name in installed_formats() if name not in HOLDERS])
def test_other_formats_refuse_them(name, made):
    schema, _ = made([1, 2])
    with pytest.raises(UnsupportedSchema) as error:
        formats.get(name).check_schema(schema)
    assert error.value.kind == "ragged" or formats.class_of(name).holds_ragged
    assert schema.ragged[0].typed in str(error.value)


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 40), max_size=12), st.sampled_from([1, 8]), st.sampled_from(["tokens", "audio"])
)
@example([16, 5], 8, "tokens")
def test_padded_and_nested_tensors_hold_each_sample(lengths, multiple, name):
    field = tensors_of(batch_of(lengths)[1])[name]
    padded = field.padded(7, multiple)
    assert padded.dtype == field.values.dtype
    assert padded.shape[1] == -(-max(lengths, default=0) // multiple) * multiple
    for row, expected in zip(padded.numpy(), samples(field), strict=True):
        count = len(expected) // row[:1].nbytes if len(row) else 0
        assert row[:count].tobytes() == expected
        assert (row[count:] == 7).all()
    if lengths:
        nested = field.nested()
        assert [one.numpy().tobytes() for one in nested.unbind()] == samples(field)
        assert nested.values().data_ptr() == field.values.data_ptr()  # a view


@settings(deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(1, 5))
def test_a_sample_has_one_hash_in_any_batch_and_library(lengths, size):
    schema, batch = batch_of(lengths)
    hashes = Checksum(schema).hashes(batch)
    parts = [slice(low, low + size) for low in range(0, len(lengths), size)]
    pieces = [Checksum(schema).hashes({n: a[part] for n, a in batch.items()}) for part in parts]
    assert np.concatenate(pieces).tolist() == hashes.tolist()
    assert Checksum(schema).hashes(tensors_of(batch)).tolist() == hashes.tolist()


def test_every_change_of_a_sample_changes_its_hash_and_no_other():
    schema, batch = batch_of([3, 0, 5, 4])
    values, offsets = batch["tokens"].values, batch["tokens"].offsets
    values[7] = 0  # the last of sample 2
    swapped, bit = values.copy(), values.copy()
    swapped[[3, 4]] = swapped[[4, 3]]
    bit[3] ^= 1 << 15
    later, earlier = offsets + np.array([0, 0, 0, 1, 0]), offsets - np.array([0, 0, 0, 1, 0])
    expected = Checksum(schema).hashes(batch)
    for other, wrong in (
        (Ragged(swapped, offsets), [2]),
        (Ragged(bit, offsets), [2]),
        (Ragged(values, later), [2, 3]),
        (Ragged(values, earlier), [2, 3]),  # a zero at the end counts, by the length
    ):
        hashes = Checksum(schema).hashes({**batch, "tokens": other})
        assert np.flatnonzero(hashes != expected).tolist() == wrong


def test_values_in_another_field_are_another_sample():
    fields = (TOKENS, dataclasses.replace(TOKENS, name="other"))
    schema = Schema(1, fields, totals={"tokens": 2, "other": 2})
    a, b = (Ragged(np.array(pair, np.uint16), np.array([0, 2])) for pair in ((1, 2), (3, 4)))
    check = Checksum(schema)
    assert check.hashes({"tokens": a, "other": b}) != check.hashes({"tokens": b, "other": a})


@pytest.mark.parametrize(
    ("offsets", "sample"),
    [
        ([0, 5, 3, 9], "sample 1"),
        ([0, 12, 12, 9], "sample 1"),
        ([0, 3, 5, 8], "cover"),
        ([1, 3, 5, 9], "cover"),
    ],
)
def test_wrong_offsets_are_refused_by_sample(tmp_path, offsets, sample):
    schema = Schema(3, (TOKENS,), totals={"tokens": 9})
    fmt, field = formats.get("npy"), Ragged(np.zeros(9, np.uint16), np.array([0, 3, 5, 9]))
    fmt.write(tmp_path / "a", schema, [{"tokens": field}])
    np.save(tmp_path / "a" / "tokens_offsets.npy", np.array(offsets, np.int64))
    with refused_as("wrong-offsets", match=sample):
        fmt.open(tmp_path / "a", schema)


def test_generated_lengths_are_seeded_and_fill_the_size(tmp_path):
    for text in ("lognormal:50,1.2", "uniform:0,90"):
        one, same, other = (GeneratedLengths([TOKENS, LABEL], text, 100_000, seed) for seed in (1, 1, 2))
        assert one.schema == same.schema != other.schema
        assert one.schema.totals == {"tokens": 100_000}
        assert sum(len(batch["tokens"].values) for batch in one.batches()) == 100_000
    np.save(tmp_path / "lengths.npy", np.array([3, 0, 4]))
    source = GeneratedLengths([AUDIO], f"file:{tmp_path / 'lengths.npy'}", 0)
    assert next(iter(source.batches()))["audio"].offsets.tolist() == [0, 3, 3, 7]
    np.save(tmp_path / "lengths.npy", np.array([3, -1, 4]))
    with refused_as("invalid-lengths", SourceError, match="sample 1"):
        GeneratedLengths([AUDIO], f"file:{tmp_path / 'lengths.npy'}", 0)
    for text in ("lognormal:x", "uniform:5,1", "zipf:1,2", "lognormal:512"):
        with refused_as("invalid-lengths", SourceError):
            GeneratedLengths([TOKENS], text, 1000)


def test_a_file_of_lengths_is_not_unpickled(tmp_path):
    file = tmp_path / "lengths.npy"
    np.save(file, np.array([Bomb(tmp_path / "exploded")]), allow_pickle=True)
    with refused_as("invalid-lengths", SourceError, path=str(file)):
        GeneratedLengths([AUDIO], f"file:{file}", 0)
    assert not (tmp_path / "exploded").exists()
