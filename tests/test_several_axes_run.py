"""Samples that differ in size along several axes: collated, delivered by every loader, each byte verified."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import record_cases
import torch
from hypothesis import given
from hypothesis import strategies as st
from kinds import refused_as
from ragged_cases import PictureSource, collating, pictures_of
from record_cases import run_once

import iobench
from iobench.base.errors import InvalidSettings, LoaderFailed
from iobench.formats import Field, Ragged, RaggedReader, Schema, array_of, with_extents
from iobench.formats.ragged import element_mask
from iobench.loading.collate import Collate, SampleList
from iobench.loading.tensors import tensors_of
from iobench.loading.user_errors import PortableError

LOADERS = ("native", "dataloader", "dataloader:fetch=batch", "stream", "spdl", "torchdata", "grain")
WITH_WORKERS = ("dataloader:num_workers=2", "dataloader:num_workers=2,fetch=batch")
WAYS = ("jagged", "list", "pad", "pad:multiple=8", "pad:to=24")
SIZES = st.integers(0, 20)
DTYPES = ("uint8", "uint16", "float32", "bool")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A dataset of images of 0 to 20 pixels along each side."""
    extents = np.random.default_rng(1).integers(0, 21, (300, 2))
    return iobench.prepare(
        PictureSource(extents), ["npy", "webdataset"], data_dir=tmp_path_factory.mktemp("pictures")
    )[0]


def chosen(ways, **others):
    return {"order": ("sequential",), "batch_size": (64,), "collate": ways, **others}


def delivered(manifest, tmp_path, loaders, ways, formats=("npy",)):
    out = tmp_path / "records.jsonl"
    return record_cases.delivered(manifest, formats, loaders, out, isolate=False, **chosen(ways))


def run(manifest, tmp_path, loader, way):
    return run_once(manifest, ("npy",), (loader,), tmp_path / "records.jsonl", **chosen((way,)))


def volumes(dtype, extents, inner=()):
    """A schema and a batch of a field of these extents without zeros, so that padding differs from it."""
    extents = np.array(extents, np.int32)
    lengths = extents.prod(1, dtype=np.int64)
    values = np.arange(lengths.sum() * math.prod(inner)).reshape(-1, *inner) % 100 + 1
    offsets = np.concatenate([[0], lengths.cumsum()])
    field = Ragged(torch.from_numpy(values.astype(dtype)), torch.from_numpy(offsets))
    fields = with_extents([Field("x", (*[-1] * extents.shape[1], *inner), dtype)])
    schema = Schema(len(extents), fields, totals={"x": int(lengths.sum())})
    return schema, {"x": field, "x_extents": torch.from_numpy(extents)}


def columns_of(batch):
    """The tensors of each sample, as a Dataset returns them."""
    lengths = batch["x"].offsets.diff().tolist()
    return {"x": list(batch["x"].values.split(lengths)), "x_extents": list(batch["x_extents"])}


several = pytest.mark.parametrize("axes", [2, 3])


@several
@given(st.data(), st.sampled_from(DTYPES), st.sampled_from([(), (3,), (2, 3)]), st.sampled_from(WAYS[2:]))
def test_padding_is_behind_each_axis_of_each_sample(axes, data, dtype, inner, word):
    size = st.integers(0, 7)
    extents = data.draw(st.lists(st.tuples(*[size] * axes), min_size=1, max_size=5))
    schema, batch = volumes(dtype, extents, inner)
    way = Collate.parse(word).over(schema)
    longest = np.max(extents, 0)
    expected = {"pad": longest, "pad:multiple=8": -(-longest // 8) * 8, "pad:to=24": np.full(axes, 24)}[word]
    for dense in (way(batch)["x"], way.column("x", columns_of(batch))):
        assert dense.values.shape == (len(extents), *expected, *inner)
        assert dense.extents.tolist() == [list(one) for one in extents]
        assert (dense.total, dense.nbytes) == (len(batch["x"].values), batch["x"].nbytes)
        begins = batch["x"].offsets.tolist()
        left = dense.values.clone()
        for row, extent in enumerate(extents):
            place = (row, *map(slice, extent))
            own = batch["x"].values[begins[row] : begins[row + 1]].reshape(*extent, *inner)
            assert (array_of(dense.values[place]) == array_of(own)).all()
            left[place] = 0
        assert not left.to(torch.int64).any()
        parted, padding = dense.parted()
        assert (array_of(parted.values) == array_of(batch["x"].values)).all()
        assert parted.offsets.tolist() == begins
        assert len(padding) + len(parted.values) == dense.values.numel() // math.prod(inner)
        mask = element_mask(dense.extents, dense.values.shape[1 : 1 + axes])
        assert int(mask.sum()) == dense.total


@several
@given(st.data())
def test_a_list_holds_a_tensor_of_each_sample_s_shape(axes, data):
    extents = data.draw(st.lists(st.tuples(*[st.integers(0, 5)] * axes), min_size=1, max_size=5))
    schema, batch = volumes("uint8", extents, (3,))
    way = Collate.parse("list").over(schema)
    for one in (way(batch)["x"], way.column("x", columns_of(batch))):
        assert [tuple(tensor.shape) for tensor in one.tensors] == [(*extent, 3) for extent in extents]
        assert one.extents.tolist() == [list(extent) for extent in extents]
        assert one.shape == (len(extents), *[-1] * axes)
        parted, padding = one.to(torch.float32).parted()
        assert padding is None
        assert (parted.values == batch["x"].values).all()
        assert parted.offsets.tolist() == batch["x"].offsets.tolist()


def test_jagged_stays_values_and_offsets_with_the_extents():
    schema, batch = volumes("uint8", [(2, 3), (0, 4)])
    way = Collate().over(schema)
    assert way(batch) is batch
    one = way.column("x", columns_of(batch))
    assert one.values.tolist() == batch["x"].values.tolist()
    assert one.offsets.tolist() == [0, 6, 6]


def test_a_field_of_that_name_beside_one_axis_is_no_extents():
    fields = (Field("x", (-1,), "uint8"), Field("x_extents", (2,), "int32"))
    way = Collate.parse("pad").over(Schema(2, fields, totals={"x": 3}))
    x = Ragged(torch.ones(3, dtype=torch.uint8), torch.tensor([0, 1, 3]))
    assert way({"x": x, "x_extents": torch.full((2, 2), 7)})["x"].values.tolist() == [[1, 0], [1, 1]]


@pytest.mark.parametrize("word", ["list", "pad"])
def test_extents_of_another_length_are_refused_by_sample(word):
    schema, batch = volumes("uint8", [(2, 3), (4, 4)])
    way = Collate.parse(word).over(schema)
    batch["x_extents"][1] = torch.tensor([5, 3])
    with refused_as("wrong-extents", match="sample 1") as error:
        way(batch)
    assert (error.value.expected, error.value.found) == ("a product of 16", "5 x 3")
    with pytest.raises(PortableError) as portable:
        way.column("x", columns_of(batch))
    assert portable.value.unwrap().kind == "wrong-extents"


def test_a_side_that_is_too_long_is_an_error():
    schema, batch = volumes("uint8", [(2, 9), (4, 4)])
    with refused_as("too-long", LoaderFailed, found="9"):
        Collate.parse("pad:to=8").over(schema)(batch)


def test_they_cannot_be_packed(pictures, tmp_path):
    with refused_as("conflicting-options", InvalidSettings, match=r"image=uint8\[\*,\*,3\]"):
        run(pictures, tmp_path, "native", "pack:100")


def test_every_loader_delivers_each_way_verified(pictures, tmp_path):
    records = delivered(pictures, tmp_path, LOADERS, WAYS)
    assert len(records) == len(LOADERS) * len(WAYS)
    by_way = {way: {one.content_check.fill for one in records if one.case["collate"] == way} for way in WAYS}
    assert by_way["jagged"] == by_way["list"] == by_way["pad"]
    assert max(by_way["pad:to=24"]) < min(by_way["pad"])


def test_workers_collate_them(pictures, tmp_path):
    assert len(delivered(pictures, tmp_path, WITH_WORKERS, ("list", "pad"))) == 2 * len(WITH_WORKERS)


def test_webdataset_collates_them(pictures, tmp_path):
    pytest.importorskip("webdataset")
    records = delivered(pictures, tmp_path, ("webdataset",), ("list", "pad"), ("webdataset",))
    assert len(records) == 2


def turned(batch):
    """Exchange heights and widths: the lengths stay the same."""
    return {**batch, "image_extents": np.ascontiguousarray(batch["image_extents"][:, ::-1])}


def swapped(batch):
    """Exchange the extents of two samples."""
    extents = batch["image_extents"].copy()
    extents[[0, 1]] = extents[[1, 0]]
    return {**batch, "image_extents": extents}


@pytest.mark.parametrize("way", ["jagged", "pad", "list"])
@pytest.mark.parametrize("change", [turned, swapped])
def test_other_extents_fail_their_case(pictures, tmp_path, monkeypatch, change, way):
    original = RaggedReader.batch
    monkeypatch.setattr(RaggedReader, "batch", lambda self, rows: change(original(self, rows)))
    (error,) = run(pictures, tmp_path, "native", way).failures.values()
    assert error.kind == ("wrong-row" if change is turned else "wrong-extents")


def not_zero(dense):
    """Write into the first padding."""
    values = dense.values.clone()
    mask = element_mask(dense.extents, values.shape[1:3])
    values[tuple((~mask).nonzero()[0])] = 1
    return replace(dense, values=values)


def transposed(dense):
    """Exchange the axes of all images, and say so."""
    return replace(dense, values=dense.values.movedim(1, 2), lengths=dense.lengths.flip(1))


def untold(dense):
    """Exchange the axes of all images."""
    return replace(dense, values=dense.values.movedim(1, 2))


@pytest.mark.parametrize(
    ("change", "wrong"), [(not_zero, "wrong-padding"), (transposed, "wrong-extents"), (untold, None)]
)
def test_changed_padding_fails_its_case(pictures, tmp_path, monkeypatch, change, wrong):
    monkeypatch.setattr(Collate, "__call__", collating(change))
    (error,) = run(pictures, tmp_path, "native", "pad:to=24").failures.values()
    assert wrong is None or error.kind == wrong


@pytest.mark.parametrize(
    "change", [lambda one: one.movedim(0, 1), lambda one: one.flatten(0, 1)[None], lambda one: one.flip(0)]
)
def test_changed_shapes_in_a_list_fail_their_case(pictures, tmp_path, monkeypatch, change):
    collated = collating(lambda one: SampleList(tuple(map(change, one.tensors)), 2))
    monkeypatch.setattr(Collate, "__call__", collated)
    assert run(pictures, tmp_path, "native", "list").failures


def test_batches_have_values_offsets_and_extents(pictures):
    schema, expected = pictures.schema, None
    with pictures.opener("npy")() as reader:
        expected = tensors_of(reader.batch(slice(0, 64)))
    for loader in (*LOADERS[:4], *WITH_WORKERS):
        batch = next(iobench.batches(pictures.root, format="npy", loader=loader, batch_size=64))
        assert list(batch) == [field.name for field in schema.fields]
        assert torch.equal(batch["image_extents"], expected["image_extents"])
        assert torch.equal(batch["image"].values, expected["image"].values)
        assert torch.equal(batch["image"].offsets, expected["image"].offsets)


def test_hashes_depend_on_the_extents():
    from iobench.dataset.checksum import Checksum

    schema, batch = pictures_of([(2, 3), (4, 4), (6, 0)])
    hashes = Checksum(schema).hashes(batch)
    other = Checksum(schema).hashes(turned(batch))
    assert (hashes != other).tolist() == [True, False, True]
    assert Checksum(schema).hashes(tensors_of(batch)).tolist() == hashes.tolist()


def test_prepare_run_and_verify_on_the_command_line(tmp_path, inside):
    def command(*words):
        done = inside(*words, "--data-dir", tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    fields = ("--fields", "image=uint8[*,*,3],label=int64", "--lengths", "uniform:0,40", "--size", "1e5")
    assert "*x*x3" in command("prepare", *fields)
    out = tmp_path / "records.jsonl"
    words = ("native", "dataloader", "dataloader:num_workers=2", "stream")
    loaders = [part for word in words for part in ("--loader", word)]
    measured = ("--format", "npy", *loaders, "--collate", "jagged,list,pad:multiple=8", "--device", "cpu")
    command("run", *measured, "--rounds", "1", "--batch-size", "16", "--out", out)
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(records) == 3 * len(words)
    assert all(0 < record["content_check"]["fill"] < 1 for record in records)
    command("verify")
