"""Padded and packed batches of samples that differ in length: from every loader, each byte verified."""

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import record_cases
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from kinds import kind
from ragged_cases import collating
from record_cases import run_once

import iobench
from iobench import RunOptions
from iobench.base.errors import InvalidSettings, IobenchError, LoaderFailed, WrongContent
from iobench.bench.case_grid import cases_of
from iobench.contrib.loaders import grain as grain_loader
from iobench.contrib.loaders.grain import PACKERS
from iobench.dataset.sources import GeneratedLengths
from iobench.formats import Field, Ragged, offsets_of
from iobench.loading.collate import Collate, Dense, SampleList, best_fit
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


def chosen(ways):
    return {"order": ("sequential",), "batch_size": (64,), "collate": ways}


def run(manifest, tmp_path, loaders, ways, **options):
    return run_once(manifest, ("all",), loaders, tmp_path / "records.jsonl", **chosen(ways), **options)


def delivered(manifest, tmp_path, loaders, ways):
    out = tmp_path / "records.jsonl"
    return record_cases.delivered(manifest, ("all",), loaders, out, isolate=False, **chosen(ways))


def fields(dtype, lengths, inner=()):
    """A ragged field of these lengths without zeros, so that padding differs from it."""
    lengths = np.asarray(lengths, np.int64)
    values = np.arange(lengths.sum() * math.prod(inner)).reshape(-1, *inner) % 100 + 1
    return Ragged(torch.from_numpy(values.astype(dtype)), torch.from_numpy(offsets_of(lengths)))


def samples_of(field):
    return [field.values[a:b] for a, b in zip(field.offsets[:-1], field.offsets[1:], strict=True)]


def same(one, other):
    return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())


@given(
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 60), min_size=1, max_size=12),
    st.sampled_from([(), (2,), (2, 3)]),
    st.sampled_from(
        ["pad", "pad:multiple=16", "pad:to=64", "pack:7", "pack:1000", "pack:best-fit=7", "pack:best-fit=64"]
    ),
)
@example("uint16", [5, 4, 3, 20], (2,), "pack:best-fit=7")
@example("uint16", [16, 5], (), "pad:multiple=16")
def test_dense_batches_hold_the_samples_and_zeros(dtype, lengths, inner, word):
    field, way = fields(dtype, lengths, inner), Collate.parse(word)
    for dense in (way({"x": field})["x"], way.column("x", {"x": samples_of(field)})):
        assert (len(dense), dense.total) == (len(lengths), sum(lengths))
        assert dense.lengths.tolist() == lengths
        parted, padding = dense.parted()
        assert same(parted.values, field.values)
        assert parted.offsets.tolist() == field.offsets.tolist()
        assert not padding.to(torch.int64).any()
        assert dense.nbytes == field.nbytes
        rows, length = dense.values.shape[:2]
        assert dense.values.shape[2:] == inner
        if word.startswith("pad"):
            least = {"pad": max(lengths), "pad:to=64": 64}
            assert (rows, length) == (len(lengths), least.get(word, -(-max(lengths) // 16) * 16))
            continue
        assert length == way.length
        starts = dense.starts.tolist()
        if way.best_fit:
            for start, size in zip(starts, lengths, strict=True):
                left = length - start % length
                assert size <= left or left == length < size, "cut without need"
        else:
            assert starts == field.offsets[:-1].tolist()
            assert 0 <= rows * length - sum(lengths) < length


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


def test_fixed_fields_stay_as_they_are():
    fixed = torch.arange(4)
    assert Collate.parse("pad")({"x": fixed})["x"] is fixed


def test_a_sample_that_is_too_long_is_an_error_with_its_length():
    way, field = Collate.parse("pad:to=8"), fields("int64", [3, 9])
    with pytest.raises(LoaderFailed) as caught:
        way({"x": field})
    assert (caught.value.kind, caught.value.found) == ("too-long", "9")
    with pytest.raises(PortableError) as caught:
        way.column("x", {"x": samples_of(field)})
    assert caught.value.unwrap().kind == "too-long"


@pytest.mark.parametrize(
    "word",
    [
        "",
        "padded",
        "pad:",
        "pad:to=0",
        "pad:to=-1",
        "pack",
        "pack:0",
        "pad:length=3",
        "pack:best-fit",
        "pack:to=9",
    ],
)
def test_other_words_are_refused(word):
    with pytest.raises(InvalidSettings) as caught:
        RunOptions(collate=(word,))
    assert caught.value.kind == "unknown-choice"


@pytest.mark.parametrize("way", ["crop:224x224", "resize:224x224", "random-resized-crop:224"])
def test_crops_are_options_of_formats(way):
    with pytest.raises(InvalidSettings, check=kind("unknown-choice")) as caught:
        Collate.parse(way)
    assert "images:shape=" in caught.value.hint


def test_every_loader_delivers_each_way_verified(ragged, tmp_path):
    records = delivered(ragged, tmp_path, LOADERS, WAYS)
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
    records = delivered(manifest, tmp_path, words[: 1 + (fields is FIELDS)], (WHOLE,))
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
    made = run(ragged, tmp_path, ("grain:packing=best-fit",), (WHOLE,), isolate=False)
    assert [type(error) for error in made.failures.values()] == [WrongContent]


def test_grain_packs_no_sample_that_is_longer_than_a_row(ragged, tmp_path):
    words = ("grain:packing=best-fit", "grain:packing=first-fit,num_workers=1")
    made = run(ragged, tmp_path, words, ("pack:best-fit=50",), isolate=False)
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
    assert len(delivered(ragged, tmp_path, words, ("pad",))) == len(words)


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
    assert len(delivered(manifest, tmp_path, LOADERS, ("pad", "pack:100", "pack:best-fit=100"))) == 3 * len(
        LOADERS
    )


def test_the_fill_of_padding_is_known_before_padding(ragged, tmp_path):
    jagged, padded = (
        run(ragged, tmp_path, ("native",), (way,)).records[0].content_check.fill for way in ("jagged", "pad")
    )
    assert jagged == padded


def test_the_way_is_a_facet_where_samples_differ_in_length(ragged, tmp_path):
    fixed, _ = iobench.prepare(iobench.Synthetic(1000, (4,)), ["npy"], data_dir=tmp_path)
    assert all("collate" not in case.facets for case in cases_of(fixed, RunOptions(), ["cpu"]))
    cases = [
        case for way in ("jagged", "pad") for case in cases_of(ragged, RunOptions(collate=(way,)), ["cpu"])
    ]
    assert {case.facets["collate"] for case in cases} == {"jagged", "pad"}
    assert len({case.key for case in cases}) == len(cases)


def not_zero(dense):
    """Write into the first padding."""
    values = dense.values.clone()
    index, inside = values.flatten(0, 1), torch.arange(values.shape[1]) < dense.lengths[:, None]
    if dense.starts is not None:
        ends = (dense.starts + dense.lengths).tolist()
        inside = torch.zeros(len(index), dtype=torch.bool)
        for start, end in zip(dense.starts.tolist(), ends, strict=True):
            inside[start:end] = True
    index[int((~inside.flatten()).nonzero()[0])] = 1
    return replace(dense, values=values)


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


@pytest.mark.parametrize("change", [not_zero, shorter, cut])
@pytest.mark.parametrize("way", ["pad:to=96", "pack:100", "pack:best-fit=100"])
def test_a_changed_batch_fails_its_case(ragged, tmp_path, monkeypatch, change, way):
    monkeypatch.setattr(Collate, "__call__", collating(change))
    result = run(ragged, tmp_path, ("native",), (way,))
    assert not result.records
    assert {type(error) for error in result.failures.values()} == {WrongContent}


@pytest.mark.parametrize("change", [lambda one: one[:-1], lambda one: one[::-1]])
def test_a_changed_list_fails_its_case(ragged, tmp_path, monkeypatch, change):
    monkeypatch.setattr(Collate, "__call__", collating(lambda one: SampleList(change(one.tensors))))
    result = run(ragged, tmp_path, ("native",), ("list",))
    assert not result.records
    assert {type(error) for error in result.failures.values()} == {WrongContent}


def test_a_list_holds_a_tensor_of_each_sample():
    field = fields("uint16", [3, 0, 5], (2,))
    for one in (
        Collate.parse("list")({"x": field})["x"],
        Collate.parse("list").column("x", {"x": samples_of(field)}),
    ):
        assert [tuple(tensor.shape) for tensor in one.tensors] == [(3, 2), (0, 2), (5, 2)]
        assert (len(one), one.nbytes) == (3, field.nbytes)
        parted, padding = one.to(torch.float64).parted()
        assert padding is None
        assert same(parted.values, field.values.to(torch.float64))
        assert parted.offsets.tolist() == field.offsets.tolist()
        elsewhere, _ = one.to("meta").parted()
        assert elsewhere.offsets.device == elsewhere.values.device == torch.device("meta")


def test_a_loader_that_does_not_collate_fails_its_case(ragged, tmp_path, monkeypatch):
    monkeypatch.setattr(Collate, "__call__", lambda self, batch: batch)
    (error,) = run(ragged, tmp_path, ("native",), ("pad",)).failures.values()
    assert error.kind == "not-collated"


def test_too_long_fails_the_case_alone(ragged, tmp_path):
    words = ("native", "dataloader:num_workers=2", "spdl", "torchdata")
    result = run(ragged, tmp_path, words, ("pad:to=50", "pad"))
    assert len(result.records) == len(words)
    assert {failure.kind for failure in result.failures.values()} == {"too-long"}


def test_data_of_one_length_and_own_loaders_are_refused(ragged, tmp_path):
    manifest, _ = iobench.prepare(iobench.Synthetic(1000, (4,)), ["npy"], data_dir=tmp_path / "fixed")
    target = tmp_path / "train.py"
    target.write_text("def make_loader():\n    return []\n")
    for data, words in ((manifest, ("native",)), (ragged, (f"{target}:make_loader",))):
        with pytest.raises(IobenchError) as caught:
            run(data, tmp_path, words, ("pad",))
        assert caught.value.kind == "conflicting-options"


def test_dense_moves_as_a_whole():
    dense = Dense(torch.ones(2, 3), torch.tensor([3, 1]), 4)
    moved = dense.to(torch.float64)
    assert (moved.values.dtype, moved.total, len(moved), moved.starts) == (torch.float64, 4, 2, None)
    packed = replace(dense, starts=torch.tensor([0, 3])).to(torch.float64)
    assert packed.starts.dtype == packed.lengths.dtype == torch.float64
