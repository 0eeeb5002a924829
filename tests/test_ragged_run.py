"""Samples that differ in length from a dataset to batches, records and a report, each byte verified."""

import json

import numpy as np
import pytest
import torch
from conftest import damage
from kinds import kind
from record_cases import came_once, run_once

import iobench
from iobench.base.errors import InvalidSettings
from iobench.dataset.sources import GeneratedLengths
from iobench.formats import Field, Ragged, RaggedReader
from iobench.host.device import device_of
from iobench.loading import loaders
from iobench.loading.inspection import Replay

LOADERS = (
    "native",
    "dataloader:fetch=sample",
    "dataloader:fetch=batch",
    "dataloader:num_workers=2,fetch=sample",
    "stream",
    "spdl",
    "torchdata:fetch=sample",
    "torchdata:fetch=batch,num_workers=2,method=process",
    "torchdata:api=stateful,num_workers=2,fetch=sample",
)
WITH_OWN_ORDER = ("grain", "grain:num_workers=2")  # and no block order
FIELDS = (Field("tokens", (-1,), "uint16"), Field("label", (), "int64"), Field("weight", (2,), "float32"))


@pytest.fixture(scope="module")
def ragged(tmp_path_factory):
    """A dataset whose samples have 0 to 90 tokens."""
    source = GeneratedLengths(FIELDS, "uniform:0,90", 20_000)
    return iobench.prepare(source, ["npy"], data_dir=tmp_path_factory.mktemp("ragged"))[0]


def run(manifest, tmp_path, *loaders, **options):
    return run_once(manifest, ("npy",), loaders, tmp_path / "records.jsonl", batch_size=(64,), **options)


@pytest.mark.parametrize("order", ["sequential", "random", "block"])
def test_every_case_is_verified_and_counts_real_bytes(ragged, tmp_path, order):
    words = LOADERS if order == "block" else (*LOADERS, *WITH_OWN_ORDER)
    result = run(ragged, tmp_path, *words, order=(order,))
    assert not result.failures
    assert len(result.records) == len(words)
    assert came_once(result.records)
    for record in result.records:
        timing = record.timing
        assert timing.partial is None
        assert timing.logical_bytes == timing.epochs * ragged.schema.logical_bytes


@pytest.mark.parametrize("loader", ["native", "dataloader"])
def test_fill_and_lengths_are_those_of_the_samples(ragged, tmp_path, loader):
    (record,) = run(ragged, tmp_path, loader, order=("sequential",)).records
    with ragged.opener("npy")() as reader:
        lengths = np.diff(reader.batch(slice(0, len(reader)))["tokens"].offsets)
    padded = sum(len(some) * some.max() for some in np.split(lengths, range(64, len(lengths), 64)))
    found = record.content_check
    assert found.fill == pytest.approx(lengths.sum() / padded)
    assert [found.length_p50, found.length_p99] == pytest.approx(np.quantile(lengths, [0.5, 0.99]))


def test_batches_are_values_and_offsets(ragged):
    with ragged.opener("npy")() as reader:
        expected = reader.batch(slice(0, 64))
    for loader in LOADERS:
        batch = next(iobench.batches(ragged.root, format="npy", loader=loader, batch_size=64))
        assert list(batch) == [field.name for field in FIELDS]
        for name in ("values", "offsets"):
            tensor, array = (getattr(one["tokens"], name) for one in (batch, expected))
            np.testing.assert_array_equal(tensor.numpy(), array, strict=True)
        np.testing.assert_array_equal(batch["label"].numpy(), expected["label"], strict=True)


def shortened(field):
    """Drop the last element of the longest sample."""
    lengths = np.diff(field.offsets)
    row = int(lengths.argmax())
    values = np.delete(field.values, field.offsets[row + 1] - 1)
    return Ragged(values, field.offsets - (np.arange(len(field.offsets)) > row))


def swapped(field):
    """Exchange the two first samples."""
    rows = np.arange(len(field))
    rows[:2] = rows[1::-1]
    return field[rows]


def shifted(field):
    """Move one inner offset by one element."""
    row = int(np.diff(field.offsets)[1:].argmax()) + 1
    return Ragged(field.values, field.offsets + (np.arange(len(field.offsets)) == row))


def beyond(field):
    """Let the last offset be behind the values."""
    return Ragged(field.values, field.offsets + (np.arange(len(field.offsets)) == len(field)))


@pytest.mark.parametrize(
    ("change", "wrong"),
    [(shortened, "wrong-row"), (swapped, "wrong-row"), (shifted, "wrong-row"), (beyond, "wrong-offsets")],
)
@pytest.mark.parametrize("loader", ["native", "dataloader:fetch=batch"])
def test_a_changed_batch_fails_its_case(ragged, tmp_path, monkeypatch, loader, change, wrong):
    original = RaggedReader.batch

    def batch(self, rows):
        whole = original(self, rows)
        return {**whole, "tokens": change(whole["tokens"])}

    monkeypatch.setattr(RaggedReader, "batch", batch)
    (error,) = run(ragged, tmp_path, loader).failures.values()
    assert kind(wrong)(error)


def without_last(self, row, convert, original=RaggedReader.sample):
    """Return a sample, the hundredth without its last element."""
    whole = original(self, row, convert)
    return {**whole, "tokens": whole["tokens"][:-1]} if row == 100 else whole


def in_reverse(self, rows, original=RaggedReader.batch):
    """Return a batch of the rows in reverse."""
    return original(self, np.asarray(rows)[::-1])


@pytest.mark.parametrize(
    ("method", "changed", "loader", "wrong"),
    [("sample", without_last, "dataloader", "wrong-row"), ("batch", in_reverse, "native", "wrong-order")],
)
def test_a_changed_sample_or_order_fails_its_case(
    ragged, tmp_path, monkeypatch, method, changed, loader, wrong
):
    monkeypatch.setattr(RaggedReader, method, changed)
    (error,) = run(ragged, tmp_path, loader, order=("random",)).failures.values()
    assert kind(wrong)(error)


def test_other_loaders_and_models_refuse_them(ragged, tmp_path, monkeypatch):
    monkeypatch.setattr(loaders.class_of("spdl"), "ragged", False)
    with pytest.raises(InvalidSettings, match=r"loader spdl .*tokens=uint16", check=kind("ragged")):
        run(ragged, tmp_path, "spdl")
    with pytest.raises(InvalidSettings, match="--model", check=kind("ragged")):
        run(ragged, tmp_path, "native", model=("mlp",))
    with pytest.raises(InvalidSettings, match="loader spdl", check=kind("ragged")):
        next(iobench.batches(ragged.root, format="npy", loader="spdl"))
    result = run(ragged, tmp_path, "native", "spdl")
    assert not result.failures
    assert {case.loader.name for case in result.cases} == {"native"}
    assert [note.values["reason"] for note in result.notes if note.kind == "skipped"] == ["ragged"]


def test_a_replay_holds_copies():
    batch = {"tokens": Ragged(torch.ones(3), torch.tensor([0, 1, 3]))}
    replay = Replay(device_of(torch.device("cpu")))
    replay.hold(batch)
    batch["tokens"].values.zero_()
    assert replay.held[0]["tokens"].values.tolist() == [1, 1, 1]


def test_the_step_s_headroom_holds_them(ragged, tmp_path):
    (record,) = run(ragged, tmp_path, "native", step_ms=(1.0,), headroom=True).records
    assert record.headroom_samples_per_s > 0


@pytest.mark.parametrize(
    ("field", "shown"), [("tokens=uint16[*]", "tokens uint16 *"), ("image=uint8[*,*,3]", "image uint8 *x*x3")]
)
def test_prepare_run_report_and_verify_on_the_command_line(tmp_path, inside, field, shown):
    def command(*words, code=0):
        done = inside(*words, "--data-dir", tmp_path)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    fields = ("--fields", f"{field},label=int64", "--lengths", "uniform:0,40")
    assert f"{shown}, label int64" in command("prepare", *fields, "--size", "1e5")
    out, page = tmp_path / "records.jsonl", tmp_path / "report.html"
    words = ("native", "dataloader", "dataloader:fetch=batch", "dataloader:num_workers=2", "stream")
    loaders = [part for word in words for part in ("--loader", word)]
    measured = ("--format", "npy", "--format", "lmdb", *loaders, "--collate", "jagged,list,pad:multiple=8")
    run = ("run", *measured, "--device", "cpu", "--rounds", "1", "--batch-size", "16", "--out", out)
    assert "dataloader" in command(*run)
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(records) == 2 * 3 * len(words)
    assert all(0 < record["content_check"]["fill"] < 1 for record in records)
    command("report", out, "--out", page)
    assert "fetch batch" in page.read_text()
    assert "npy: intact" in command("verify")
    damage(*tmp_path.glob(f"*/npy-*/{field.partition('=')[0]}.npy"))
    assert "other content" in command("verify", code=1)
