"""Padded and packed batches of samples that differ in length: from every loader, each byte verified."""

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from kinds import refused_as
from ragged_cases import collated, collated_run, collating, columns_of, not_zero, of_list, volumes

import iobench
from iobench import RunOptions
from iobench.base.errors import InvalidSettings, IobenchError, LoaderFailed, WrongContent
from iobench.bench.case_grid import cases_of
from iobench.contrib.loaders import grain as grain_loader
from iobench.contrib.loaders.grain import PACKERS
from iobench.dataset.sources import GeneratedLengths
from iobench.formats import Field, Ragged, Schema
from iobench.formats.ragged import element_mask
from iobench.loading.collate import Collate, Dense, best_fit
from iobench.loading.user_errors import PortableError

WAYS = ("list", "pad", "pad:multiple=16", "pad:to=96", "pack:best-fit=100", "pack:100")
WHOLE = "pack:best-fit=100"
LOADERS = ("native", "dataloader", "dataloader:fetch=batch", "stream", "spdl", "torchdata", "grain")
WITH_WORKERS = (
    "dataloader:num_workers=1",
    "torchdata:fetch=batch,num_workers=1,method=process",
    "torchdata:api=stateful,num_workers=1",
    "grain:num_workers=1",
)
MOST = 90
FIELDS = (Field("label", (), "int64"), Field("tokens", (-1,), "uint16"))
SOUND = (Field("sound", (-1, 2), "bfloat16"),)
DTYPES = ("uint8", "uint16", "int64", "float32", "bool")


@pytest.fixture(scope="module")
def ragged(tmp_path_factory):
    """A dataset whose samples have 0 to 90 tokens."""
    source = GeneratedLengths(FIELDS, f"uniform:0,{MOST}", 100_000)
    return iobench.prepare(source, ["npy"], data_dir=tmp_path_factory.mktemp("collate"))[0]


def plain(tensor):
    """Return a tensor as numbers that every release of torch compares."""
    return tensor.to(torch.float64)


def assert_ends(batch, parted):
    """Assert that samples end to end are those of a batch."""
    assert parted.values.dtype == batch["x"].values.dtype
    assert torch.equal(plain(parted.values), plain(batch["x"].values))
    assert parted.offsets.tolist() == batch["x"].offsets.tolist()


@pytest.mark.parametrize("axes", [1, 2, 3])
@given(
    st.data(),
    st.sampled_from(DTYPES),
    st.sampled_from([(), (3,), (2, 3)]),
    st.sampled_from(["pad", "pad:multiple=8", "pad:to=24"]),
)
def test_padding_is_behind_each_axis_of_each_sample(axes, data, dtype, inner, word):
    size = st.integers(0, 24 if axes == 1 else 7)
    extents = data.draw(st.lists(st.tuples(*[size] * axes), min_size=1, max_size=8))
    schema, batch = volumes(dtype, extents, inner)
    way, longest = Collate.parse(word).over(schema), np.max(extents, 0)
    expected = {"pad": longest, "pad:multiple=8": -(-longest // 8) * 8, "pad:to=24": np.full(axes, 24)}[word]
    for dense in (way(batch)["x"], way.column("x", columns_of(batch))):
        assert dense.values.shape == (len(extents), *expected, *inner)
        assert dense.extents.tolist() == [list(one) for one in extents]
        assert (len(dense), dense.total) == (len(extents), len(batch["x"].values))
        assert dense.nbytes == batch["x"].nbytes
        left = dense.values.clone()
        for row, (extent, own) in enumerate(zip(extents, batch["x"].split(), strict=True)):
            place = (row, *map(slice, extent))
            assert torch.equal(*(plain(one) for one in (left[place], own.reshape(*extent, *inner))))
            left[place] = 0
        assert not left.to(torch.int64).any()
        parted, padding = dense.parted()
        assert_ends(batch, parted)
        assert len(padding) + len(parted.values) == dense.values.numel() // math.prod(inner)
        assert int(element_mask(dense.extents, dense.values.shape[1 : 1 + axes]).sum()) == dense.total


@given(
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 60), min_size=1, max_size=12),
    st.sampled_from([(), (2,), (2, 3)]),
    st.sampled_from(["pack:7", "pack:1000", "pack:best-fit=7", "pack:best-fit=64"]),
)
@example("uint16", [5, 4, 3, 20], (2,), "pack:best-fit=7")
def test_packed_rows_hold_the_samples_and_zeros(dtype, lengths, inner, word):
    _, batch = volumes(dtype, [(length,) for length in lengths], inner)
    way = Collate.parse(word)
    for dense in (way(batch)["x"], way.column("x", columns_of(batch))):
        assert (dense.total, dense.lengths.tolist()) == (sum(lengths), lengths)
        parted, padding = dense.parted()
        assert_ends(batch, parted)
        assert not padding.to(torch.int64).any()
        assert dense.nbytes == batch["x"].nbytes
        rows, length = dense.values.shape[:2]
        assert (length, dense.values.shape[2:]) == (way.length, inner)
        starts = dense.starts.tolist()
        if way.best_fit:
            for start, size in zip(starts, lengths, strict=True):
                left = length - start % length
                assert size <= left or left == length < size, "cut without need"
        else:
            assert starts == batch["x"].offsets[:-1].tolist()
            assert 0 <= rows * length - sum(lengths) < length


@pytest.mark.parametrize("axes", [1, 2, 3])
@given(st.data())
def test_a_list_holds_a_tensor_of_each_sample_s_shape(axes, data):
    extents = data.draw(st.lists(st.tuples(*[st.integers(0, 5)] * axes), min_size=1, max_size=5))
    schema, batch = volumes("uint8", extents, (3,))
    way = Collate.parse("list").over(schema)
    for one in (way(batch)["x"], way.column("x", columns_of(batch))):
        assert [tuple(tensor.shape) for tensor in one.tensors] == [(*extent, 3) for extent in extents]
        assert one.extents.tolist() == [list(extent) for extent in extents]
        assert (one.shape, one.nbytes) == ((len(extents), *[-1] * axes), batch["x"].nbytes)
        parted, padding = one.to(torch.float32).parted()
        assert padding is None
        assert_ends({"x": batch["x"].to(torch.float32)}, parted)
        elsewhere, _ = one.to("meta").parted()
        assert elsewhere.offsets.device == elsewhere.values.device == torch.device("meta")


def test_jagged_stays_values_and_offsets_with_the_extents():
    schema, batch = volumes("uint8", [(2, 3), (0, 4)])
    way = Collate().over(schema)
    assert way(batch) is batch
    assert_ends(batch, way.column("x", columns_of(batch)))


def test_a_field_of_that_name_beside_one_axis_is_no_extents():
    fields = (Field("x", (-1,), "uint8"), Field("x_extents", (2,), "int32"))
    way = Collate.parse("pad").over(Schema(2, fields, totals={"x": 3}))
    x = Ragged(torch.ones(3, dtype=torch.uint8), torch.tensor([0, 1, 3]))
    assert way({"x": x, "x_extents": torch.full((2, 2), 7)})["x"].values.tolist() == [[1, 0], [1, 1]]


@pytest.mark.parametrize("extents", [[(3,), (9,)], [(2, 9), (4, 4)]])
def test_a_sample_that_is_too_long_is_an_error_with_its_length(extents):
    schema, batch = volumes("int64", extents)
    way = Collate.parse("pad:to=8").over(schema)
    with refused_as("too-long", LoaderFailed, found="9"):
        way(batch)
    with pytest.raises(PortableError) as caught:
        way.column("x", columns_of(batch))
    assert caught.value.unwrap().kind == "too-long"


@pytest.mark.parametrize("word", ["list", "pad"])
def test_extents_of_another_length_are_refused_by_sample(word):
    schema, batch = volumes("uint8", [(2, 3), (4, 4)])
    columns, way = columns_of(batch), Collate.parse(word).over(schema)
    batch["x_extents"][1] = columns["x_extents"][1] = torch.tensor([5, 3])
    with refused_as("wrong-extents", match="sample 1", expected="a product of 16", found="5 x 3"):
        way(batch)
    with pytest.raises(PortableError) as portable:
        way.column("x", columns)
    assert portable.value.unwrap().kind == "wrong-extents"


@pytest.mark.parametrize(
    ("lengths", "starts", "rows"),
    [
        ([4, 8, 1, 4, 2, 1], [10, 0, 18, 14, 8, 19], 2),
        ([5, 6, 4, 5], [10, 0, 6, 15], 2),
        ([3, 25, 5], [30, 0, 25], 4),
        ([10, 0, 10], [0, 10, 10], 2),
        ([0, 0], [0, 0], 0),
    ],
)
def test_each_sample_goes_where_the_least_space_is_left(lengths, starts, rows):
    assert best_fit(lengths, 10) == (starts, rows)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=60), st.integers(1, 40))
def test_best_fit_takes_few_rows(lengths, length):
    _, rows = best_fit(lengths, length)
    least = -(-sum(lengths) // length)
    assert least <= rows <= max(least, 2 * least - 1) + sum(one > length for one in lengths)


WRONG = ("", "padded", "pad:", "pad:to=0", "pad:to=-1", "pack", "pack:0", "pad:length=3", "pack:best-fit")
CROPS = ("crop:224x224", "resize:224x224", "random-resized-crop:224")  # which are options of formats


@pytest.mark.parametrize("word", [*WRONG, "pack:to=9", *CROPS])
def test_other_words_are_refused(word):
    with refused_as("unknown-choice", InvalidSettings) as caught:
        RunOptions(collate=(word,))
    assert ("images:shape=" in (caught.value.hint or "")) == (word in CROPS)


def test_every_loader_delivers_each_way_verified(ragged, tmp_path):
    records = collated(ragged, tmp_path, LOADERS, WAYS)
    assert len(records) == len(LOADERS) * len(WAYS)
    assert {record.case["collate"] for record in records} == set(WAYS)
    for record in records:
        assert record.timing.logical_bytes == record.timing.epochs * ragged.schema.logical_bytes
    in_order = [one for one in records if one.case["loader"] != "grain"]
    by_way = {way: {one.content_check.fill for one in in_order if one.case["collate"] == way} for way in WAYS}
    assert all(len(fills) == 1 for fills in by_way.values())
    (listed,), (pad,), (multiple,), (fixed,), (whole,), (packed,) = (by_way[way] for way in WAYS)
    assert listed == pad
    assert fixed < multiple < pad < whole <= packed < 1


@pytest.mark.parametrize("fields", [FIELDS, SOUND])
@pytest.mark.parametrize("packer", PACKERS)
def test_rows_that_grain_packs_hold_every_sample_whole(tmp_path, fields, packer):
    source = GeneratedLengths(fields, f"uniform:0,{MOST}", 10_000)
    manifest, _ = iobench.prepare(source, ["memmap"], data_dir=tmp_path)
    words = (f"grain:packing={packer}", f"grain:packing={packer},num_workers=1")
    records = collated(manifest, tmp_path, words[: 1 + (fields is FIELDS)], (WHOLE,), "memmap")
    for record in records:
        assert record.timing.logical_bytes == record.timing.epochs * manifest.schema.logical_bytes
        assert 0.7 < record.content_check.fill < 1


@pytest.mark.parametrize("part", ["_segment_ids", "_positions"])
def test_wrong_segments_of_grain_are_found(monkeypatch, ragged, tmp_path, part):
    columns = grain_loader.packed_columns

    def shifted(name, rows):
        values, *parts = columns(name, rows)
        at = ("_segment_ids", "_positions").index(part)
        parts[at] = np.where(parts[0] > 0, np.roll(parts[at], 1, axis=1), 0)
        return [values, *parts]

    monkeypatch.setattr(grain_loader, "packed_columns", shifted)
    made = collated_run(ragged, tmp_path, ("grain:packing=best-fit",), (WHOLE,), isolate=False)
    assert [type(error) for error in made.failures.values()] == [WrongContent]


def test_grain_packs_no_sample_that_is_longer_than_a_row(ragged, tmp_path):
    words = ("grain:packing=best-fit", "grain:packing=first-fit,num_workers=1")
    made = collated_run(ragged, tmp_path, words, ("pack:best-fit=50",), isolate=False)
    assert [error.kind for error in made.failures.values()] == ["too-long"] * 2


@pytest.mark.parametrize("way", ["jagged", "pad", "pack:100"])
def test_grain_packs_only_samples_that_stay_whole(ragged, way):
    with pytest.raises(InvalidSettings) as caught:
        cases_of(ragged, RunOptions(loader=("grain:packing=best-fit",), collate=(way,)), ["cpu"])
    assert caught.value.kind == "no-cases"
    assert "--collate pack:best-fit=2048" in str(caught.value)
    loader = ("grain:packing=best-fit", "grain")
    (case,) = cases_of(ragged, RunOptions(loader=loader, collate=(way,), order=("random",)), ["cpu"])
    assert case.loader.packing is None


@pytest.mark.parametrize("words", [WITH_WORKERS[:1], WITH_WORKERS[1:]])
def test_workers_collate(ragged, tmp_path, words):
    assert len(collated(ragged, tmp_path, words, ("pad",))) == len(words)


def test_a_worker_of_grain_that_pads_nothing_imports_no_torch(ragged):
    pytest.importorskip("grain")
    code = (
        "import sys; from pathlib import Path; from iobench import Manifest\n"
        "from iobench.contrib.loaders.grain import GrainSource\n"
        "source = GrainSource(Manifest.load(Path(sys.argv[1])).opener('npy'))\n"
        "assert source[0].keys() == {'label', 'tokens'}\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(ragged.root)], check=True)


def test_bfloat16_with_an_inner_axis_comes_from_every_loader(tmp_path):
    source = GeneratedLengths(SOUND, f"uniform:0,{MOST}", 10_000)
    manifest, _ = iobench.prepare(source, ["memmap"], data_dir=tmp_path)
    records = collated(manifest, tmp_path, LOADERS, ("pad", "pack:100", WHOLE), "memmap")
    assert len(records) == 3 * len(LOADERS)


def test_the_fill_of_padding_is_known_before_padding(ragged, tmp_path):
    records = collated(ragged, tmp_path, ("native",), ("jagged", "pad"))
    assert len({record.content_check.fill for record in records}) == 1


def test_the_way_is_a_facet_where_samples_differ_in_length(ragged, tmp_path):
    fixed, _ = iobench.prepare(iobench.Synthetic(1000, (4,)), ["npy"], data_dir=tmp_path)
    assert all("collate" not in case.facets for case in cases_of(fixed, RunOptions(), ["cpu"]))
    cases = [
        case for way in ("jagged", "pad") for case in cases_of(ragged, RunOptions(collate=(way,)), ["cpu"])
    ]
    assert {case.facets["collate"] for case in cases} == {"jagged", "pad"}
    assert len({case.key for case in cases}) == len(cases)


def shorter(dense):
    """Move an element from one sample to another."""
    lengths = dense.lengths.clone()
    lengths[int(lengths.argmax())] -= 1
    lengths[int(lengths.argmin())] += 1
    return replace(dense, lengths=lengths)


def cut(dense):
    """Lose the last element of the longest sample."""
    lengths = dense.lengths.clone()
    lengths[int(lengths.argmax())] -= 1
    return replace(dense, lengths=lengths)


@pytest.mark.parametrize(
    ("ways", "change"),
    [
        *((("pad:to=96", "pack:100", WHOLE), change) for change in (not_zero, shorter, cut)),
        (("list",), of_list(lambda tensors: tensors[:-1])),
        (("list",), of_list(lambda tensors: tensors[::-1])),
    ],
)
def test_a_changed_batch_fails_its_case(ragged, tmp_path, monkeypatch, change, ways):
    monkeypatch.setattr(Collate, "__call__", collating(change))
    result = collated_run(ragged, tmp_path, ("native",), ways)
    assert not result.records
    assert [type(error) for error in result.failures.values()] == [WrongContent] * len(ways)


def test_a_loader_that_does_not_collate_fails_its_case(ragged, tmp_path, monkeypatch):
    monkeypatch.setattr(Collate, "__call__", lambda self, batch: batch)
    (error,) = collated_run(ragged, tmp_path, ("native",), ("pad",)).failures.values()
    assert error.kind == "not-collated"


def test_too_long_fails_the_case_alone(ragged, tmp_path):
    words = ("native", "dataloader:num_workers=2", "spdl", "torchdata")
    result = collated_run(ragged, tmp_path, words, ("pad:to=50", "pad"))
    assert len(result.records) == len(words)
    assert {failure.kind for failure in result.failures.values()} == {"too-long"}


def test_data_of_one_length_and_own_loaders_are_refused(ragged, tmp_path):
    manifest, _ = iobench.prepare(iobench.Synthetic(1000, (4,)), ["npy"], data_dir=tmp_path / "fixed")
    target = tmp_path / "train.py"
    target.write_text("def make_loader():\n    return []\n")
    for data, words in ((manifest, ("native",)), (ragged, (f"{target}:make_loader",))):
        with pytest.raises(IobenchError) as caught:
            collated_run(data, tmp_path, words, ("pad",))
        assert caught.value.kind == "conflicting-options"


def test_dense_moves_as_a_whole():
    dense = Dense(torch.ones(2, 3), torch.tensor([3, 1]), 4)
    moved = dense.to(torch.float64)
    assert (moved.values.dtype, moved.total, len(moved), moved.starts) == (torch.float64, 4, 2, None)
    packed = replace(dense, starts=torch.tensor([0, 3])).to(torch.float64)
    assert packed.starts.dtype == packed.lengths.dtype == torch.float64
