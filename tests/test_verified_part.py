"""A case is verified over what it delivers: whole epochs, or the part that a round is."""

import itertools
import os
import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import image_arrays, prepared
from hypothesis import given
from hypothesis import strategies as st
from kinds import kind

import iobench
from iobench.base.errors import LoaderFailed, WrongContent
from iobench.bench import content_check
from iobench.bench.budget import Budget
from iobench.bench.case import ROUND_SECONDS
from iobench.bench.case_grid import cases_of
from iobench.bench.content_check import SampleCoverage
from iobench.bench.options import RunOptions
from iobench.bench.part import Proof, RoundLengths, TimeLimit
from iobench.dataset import checksum, index_cache, sandbox, verify
from iobench.dataset import manifest as manifest_module
from iobench.dataset import verify as verify_module
from iobench.dataset.manifest import Manifest
from iobench.dataset.verify import RereadHashes
from iobench.loading.loaders.native import NativeEpochs
from iobench.results import columns, record_file
from iobench.results.summary import summarise
from iobench.results.warnings import warnings_of

BATCH = 2
NEVER_WHOLE = 1e-6  # seconds


class Partly:
    """Hashes of which only some were kept."""

    def __init__(self, hashes, kept):
        self._hashes, self._kept = np.asarray(hashes, np.int64), np.asarray(kept, bool)

    def of(self, rows):
        assert self.known(rows).all()
        return self._hashes[rows]

    def known(self, rows):
        return self._kept[rows]


def run(manifest, folder, *loaders, budget=None, **more):
    """Run two rounds of parts over native batches of two."""
    chosen = {"batch_size": (BATCH,), "rounds": "2", "limits": False, "device": ("cpu",), **more}
    options = RunOptions(("npy",), loaders or ("native",), **chosen)
    return iobench.run(manifest, options, out=folder / "r.jsonl", budget=budget)


def spoiled(monkeypatch, change):
    """Have the native loader deliver other batches: `change` is given the rows, and what reads a batch."""
    epoch = NativeEpochs.epoch

    def changed(self, request):
        return (change(rows, lambda some: next(epoch(self, [some]))) for rows in request)

    monkeypatch.setattr(NativeEpochs, "epoch", changed)


def error_of(result):
    (error,) = result.failures.values()
    assert not result.records
    return error


@pytest.mark.parametrize("order", ["sequential", "random", "block"])
@pytest.mark.parametrize("limit", [{"max_batches": 10}, {"round_seconds": NEVER_WHOLE}])
def test_the_part_that_was_verified_is_in_the_record_and_in_the_table(images, tmp_path, order, limit):
    blocks = {"block_bytes": (1,), "window_bytes": (1,)} if order == "block" else {}
    result = run(images, tmp_path, order=(order,), **limit, **blocks)
    assert not result.failures
    one = record_file.read(result.path)[0][0]
    # two are read ahead, on either side of the window; a time limit ends after the first batch
    verified = BATCH * (2 + 10 + 2) if "max_batches" in limit else BATCH
    assert one.content_check.verified_samples == verified
    assert one.timing.partial.batches == one.timing.epochs * (2 + 10 + 2)
    table = dict(columns.metric_columns(summarise(result.records).cases))
    assert table["verified"] == [f"{verified} of 203"]


def test_short_epochs_are_whole_and_verified_as_a_whole(images, tmp_path):
    (one, _) = run(images, tmp_path).records
    assert one.content_check is None
    assert one.timing.partial is None
    assert "round_seconds" not in one.case
    limited = run(images, tmp_path, round_seconds=NEVER_WHOLE).records[0]
    assert limited.case["round_seconds"] == NEVER_WHOLE


def test_time_that_is_over_after_the_last_batch_leaves_no_part(images, tmp_path):
    one = run(images, tmp_path, batch_size=(256,), round_seconds=NEVER_WHOLE).records[0]
    assert one.verified is None


def test_a_wrong_row_in_the_part_is_named(images, tmp_path, monkeypatch):
    def flipped(rows, read):
        batch = read(rows)
        batch["x"][rows == wrong] ^= 1
        return batch

    job_rows = cases_of(images, RunOptions(("npy",), ("native",), batch_size=(BATCH,)), ["cpu"])[0].job(
        images
    )
    wrong = int(job_rows.order.batches(203, 0)[5][1])
    spoiled(monkeypatch, flipped)
    for limit in ({"max_batches": 10}, {}):
        error = error_of(run(images, tmp_path, **limit))
        assert kind("wrong-row")(error)
        assert f"row {wrong} " in error.problem


@pytest.mark.parametrize("limit", [{"max_batches": 10}, {}])
def test_rows_that_change_places_are_named(images, tmp_path, monkeypatch, limit):
    monkeypatch.setattr(content_check, "PIECE", 7)  # compared and searched in pieces

    def swapped(rows, read):
        return read(rows[::-1].copy())

    spoiled(monkeypatch, swapped)
    error = error_of(run(images, tmp_path, **limit))
    assert kind("wrong-order")(error)
    assert error.expected != error.found


@pytest.mark.parametrize("limit", [{"max_batches": 10}, {}])
@pytest.mark.parametrize(("stop", "kinds"), [(5, "ended-early"), (13, "wrong-count")])
def test_a_loader_that_ends_early_is_an_error(images, tmp_path, monkeypatch, limit, stop, kinds):
    epoch = NativeEpochs.epoch
    monkeypatch.setattr(NativeEpochs, "epoch", lambda self, rows: epoch(self, rows[:stop]))
    error = error_of(run(images, tmp_path, **limit))
    assert error.kind == (kinds if limit else "wrong-count")
    assert isinstance(error, LoaderFailed if error.kind == "ended-early" else WrongContent)


def test_a_loader_that_ends_before_its_time_is_an_error(images, tmp_path, monkeypatch):
    """A part ends early only when its time is over."""
    epoch = NativeEpochs.epoch
    monkeypatch.setattr(NativeEpochs, "epoch", lambda self, rows: epoch(self, rows[:20]))
    monkeypatch.setattr(TimeLimit, "over", lambda self, batches: batches)
    assert error_of(run(images, tmp_path, round_seconds=NEVER_WHOLE)).kind == "wrong-count"


def test_rows_without_a_kept_hash_are_not_called_verified(images, tmp_path, monkeypatch):
    found = content_check.hashes_in_time

    def some(*arguments):
        return Partly(found(*arguments).of(slice(0, 203)), np.arange(203) < kept)

    monkeypatch.setattr(content_check, "hashes_in_time", some)
    kept = 100
    assert run(images, tmp_path).records[0].content_check.verified_samples == 100
    kept = 0
    (finding,) = run(images, tmp_path).records[0].content_check.unverified
    assert finding.kind == "no-hashes"


@pytest.fixture
def no_list(tmp_path, monkeypatch):
    """A dataset whose list of hashes is gone, and which takes too long to read."""
    manifest = prepared(tmp_path, image_arrays(), ["npy", "webdataset"])
    for file in (manifest.root / index_cache.FOLDER).glob(f"*.{verify.NAME}"):
        file.unlink()
    monkeypatch.setattr(manifest_module, "READ_BYTES_PER_S", 0)
    monkeypatch.setattr(verify, "stored_hashes", None)  # would read all
    return manifest


@pytest.mark.parametrize("limit", [{"max_batches": 10}, {"round_seconds": NEVER_WHOLE}, {}])
def test_without_a_list_only_the_rows_of_the_part_are_read_again(no_list, tmp_path, monkeypatch, limit):
    rows, of = [], RereadHashes.of

    def counted(self, some):
        rows.extend(some)
        return of(self, some)

    monkeypatch.setattr(RereadHashes, "of", counted)
    one = run(no_list, tmp_path, **limit).records[0]
    if not limit:
        assert one.content_check is None, "the sums of a whole epoch are the manifest's"
        return
    assert one.content_check.verified_samples == len(rows) < 60
    (reason,) = one.content_check.unverified
    assert reason.kind == "no-list"


def test_without_a_list_a_wrong_row_of_the_part_is_named(no_list, tmp_path, monkeypatch):
    spoiled(monkeypatch, lambda rows, read: read(rows[::-1].copy()))
    assert kind("wrong-row")(error_of(run(no_list, tmp_path, max_batches=10)))


def test_without_a_list_rows_that_changed_places_on_the_disk_fail_the_sums_of_an_epoch(no_list, tmp_path):
    for file in no_list.files_of("npy"):
        before = file.stat()
        np.save(file, np.load(file)[::-1])
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    error = error_of(run(no_list, tmp_path))
    assert kind("wrong-order")(error)
    assert error.expected != error.found


def test_without_a_list_an_order_that_is_the_loaders_own_is_not_verified(no_list, tmp_path):
    options = RunOptions(("webdataset",), ("webdataset",), rounds="1", limits=False, max_batches=2)
    (one,) = iobench.run(
        no_list, replace(options, batch_size=(BATCH,), isolate=False), out=tmp_path / "r.jsonl"
    ).records
    assert [reason.kind for reason in one.content_check.unverified] == ["no-list"]


def test_data_that_were_touched_are_read_in_part_where_all_would_take_too_long(images, tmp_path, monkeypatch):
    seen, read = [], sandbox.hashes

    def noted(data, schema, hashed, report):
        seen.append(hashed.count)
        return read(data, schema, hashed, report)

    monkeypatch.setattr(sandbox, "hashes", noted)
    monkeypatch.setattr(checksum, "HASHED_BYTES", 1)
    monkeypatch.setattr(manifest_module, "READ_BYTES_PER_S", 4)
    monkeypatch.setattr(verify_module, "READ_BYTES_PER_S", 4)
    monkeypatch.setattr(Manifest, "unchanged", lambda self, variant: False)
    assert not run(images, tmp_path, max_batches=10).failures
    assert 0 < max(seen) < 10


hashes = st.lists(st.integers(-3, 3), max_size=30)


@given(hashes, st.lists(hashes, max_size=5), st.lists(st.booleans(), min_size=30, max_size=30))
def test_samples_are_counted_whatever_the_pieces(stored, delivered, kept):
    kept = kept[: len(stored)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(content_check, "PIECE", 4)
        batches = [np.array(one, np.int64) for one in delivered]
        cover = SampleCoverage(Partly(stored, kept), len(stored), batches)
    due = Counter(one for one, known in zip(stored, kept, strict=True) if known)
    came = Counter(one for batch in delivered for one in batch)
    assert cover.complete == all(kept)
    assert cover.verified == sum(count for one, count in came.items() if due[one])
    assert cover.foreign == (sum(count for one, count in came.items() if not due[one]) if all(kept) else 0)
    assert cover.repeated == sum(max(0, count - due[one]) for one, count in came.items() if due[one])
    assert cover.dropped == sum(max(0, count - came[one]) for one, count in due.items())


@pytest.mark.parametrize(("seconds", "count"), [(0.5, 1), (3.0, 4), (60.0, 5)])
def test_time_limits_end_an_epoch_after_its_first_batch_at_the_earliest(seconds, count):
    limit = TimeLimit(seconds, itertools.count().__next__)  # a second for each batch
    assert list(limit.over(iter(range(5)))) == list(range(count))
    assert limit.ended == (count < 5)


def test_rounds_are_as_long_as_the_speed_of_a_case_allows(images):
    def case(**more):
        options = RunOptions(("npy",), ("native",), batch_size=(BATCH,), **more)
        return cases_of(images, options, ["cpu"])[0]

    usual, lengths = case(), RoundLengths(images.schema)
    assert lengths.batches(usual) is None
    lengths.proved(usual, Proof(None, batch_s=0.02, sample_s=0.01))  # an epoch of 2.03 s
    assert lengths.batches(usual) is None
    assert lengths.round_s(usual) == pytest.approx(2.03)
    lengths.limit_s = 1.0
    assert lengths.batches(usual) == 50
    assert lengths.batch_s(usual) == 0.02
    assert lengths.round_s(usual) == pytest.approx(1.0 + 2 * 2 * 0.02)
    half = SimpleNamespace(epoch_s=2.03 / 2)
    lengths.measured(usual, half)  # hashing took half of the time
    assert lengths.batches(usual) == 100
    explicit = case(max_batches=7)
    lengths.proved(explicit, Proof(None, batch_s=0.02, sample_s=0.01))
    assert lengths.batches(explicit) == 7
    assert usual.round_seconds == ROUND_SECONDS


def test_what_there_is_no_time_for_is_skipped_with_its_reason(images, tmp_path):
    """Time counts from the beginning of the command."""
    budget = Budget(60.0, began=time.monotonic() - 100.0)
    result = run(images, tmp_path, "native", "stream", "dataloader", max_time=60.0, budget=budget)
    assert not result.failures
    assert len(result.records) == 1, "the first case, whatever the time"
    reasons = [one.values["reason"] for one in result.notes if one.kind == "skipped"]
    assert reasons == ["no-time"] * 2
    assert len(result.skipped) == 2


def test_the_first_case_is_cut_where_it_is_too_slow_for_the_time(images, tmp_path, monkeypatch):
    def late(rows, read):
        time.sleep(0.1)
        return read(rows)

    spoiled(monkeypatch, late)
    result = run(images, tmp_path, max_time=4.0, max_batches=80)  # these take 8 s
    (one,) = result.records
    assert one.timing.partial.short
    assert 2 < one.timing.partial.batches < 80
    assert BATCH / 1.0 < one.samples_per_s <= BATCH / 0.1
    assert [warning.kind for warning in warnings_of([one])].count("short-window") == 1
