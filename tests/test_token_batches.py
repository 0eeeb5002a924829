"""Batches by a budget of tokens: every sample once, within the budget, the same from every loader."""

import json
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kinds import refused_as
from ragged_cases import HOLDERS, RaggedSource
from record_cases import delivered, run_once
from stream_loaders import stream_loader

import iobench
from iobench import RunOptions
from iobench.base.errors import InvalidSettings
from iobench.bench.case_grid import cases_of, skip_notes
from iobench.dataset import verify as sample_lengths_module
from iobench.dataset.verify import sample_lengths
from iobench.loading import division
from iobench.loading.division import TokenBudget
from iobench.loading.order import ORDERS, Order
from iobench.stream.epoch_position import EpochPosition, RemainingBatches

SAMPLES, TOKENS = 203, 900
LENGTHS = np.random.default_rng(3).choice([0, 1, 2, 40, 700, 1500], SAMPLES)
LONGEST = np.maximum(LENGTHS, LENGTHS[::-1])  # of a sample's two ragged fields
LOADERS = ("native", "dataloader", "dataloader:num_workers=1", "stream", "spdl", "torchdata")
every_order = pytest.mark.parametrize("kind_of_order", ORDERS)


@pytest.fixture(scope="module")
def ragged(tmp_path_factory):
    return iobench.prepare(RaggedSource(LENGTHS), HOLDERS, data_dir=tmp_path_factory.mktemp("budget"))[0]


def rows_in(batches, samples):
    return [np.arange(samples)[rows].tolist() for rows in batches]


def within(order, lengths, tokens):
    return replace(order, budget=TokenBudget(tokens, np.array(lengths, np.int64)))


ORDER = st.builds(
    Order,
    st.sampled_from(ORDERS),
    batch_size=st.integers(1, 9),
    seed=st.integers(0, 2**40),
    block_rows=st.integers(1, 9),
    window_batches=st.integers(1, 4),
)
DRAWN = {
    "lengths": st.lists(st.integers(0, 30) | st.just(10**6), min_size=1, max_size=120),
    "order": ORDER,
    "tokens": st.integers(1, 200),
    "epoch": st.integers(0, 5),
}


@settings(deadline=None)
@given(**DRAWN)
@example(lengths=[2, 3, 1, 4, 0], order=Order(), tokens=5, epoch=0)  # batches use all of the budget
def test_batches_are_as_large_as_the_budget_allows_and_in_the_same_order_as_others(
    lengths, order, tokens, epoch
):
    samples = len(lengths)
    batches = rows_in(within(order, lengths, tokens).batches(samples, epoch), samples)
    assert [*chain(*batches)] == [*chain(*rows_in(order.batches(samples, epoch), samples))]
    sums = [sum(lengths[row] for row in batch) for batch in batches]
    assert all(own <= tokens or len(batch) == 1 for own, batch in zip(sums, batches, strict=True))
    firsts = [lengths[batch[0]] for batch in batches[1:]]
    assert all(own + first > tokens for own, first in zip(sums, firsts, strict=False))


def test_an_order_that_is_drawn_in_pieces_has_the_same_batches(monkeypatch):
    def batches():
        return rows_in(within(Order("random", seed=3), LENGTHS, TOKENS).batches(SAMPLES, 0), SAMPLES)

    expected = batches()
    monkeypatch.setattr(division, "PIECE_ROWS", 7)
    assert batches() == expected


@settings(deadline=None)
@given(**DRAWN, world_size=st.integers(1, 5))
def test_ranks_have_as_many_batches_and_no_sample_twice(lengths, order, tokens, epoch, world_size):
    samples = len(lengths)
    ranks = [
        within(replace(order, rank=r, world_size=world_size), lengths, tokens) for r in range(world_size)
    ]
    alone = len(within(order, lengths, tokens).batches(samples, epoch))
    if -(-alone // world_size) > samples // world_size:  # a rank would have an empty batch
        with refused_as("uneven-batches", InvalidSettings):
            ranks[0].batches(samples, epoch)
        return
    parts = [one.batches(samples, epoch) for one in ranks]
    assert {len(part) for part in parts} == {ranks[0].length(samples, epoch)}
    rows = [row for part in parts for batch in rows_in(part, samples) for row in batch]
    assert sorted(rows) == list(range(samples))
    sizes = [len(rows) for part in parts for rows in rows_in(part, samples)]
    assert min(sizes) > 0
    kept = [replace(one, drop_last=True).batches(samples, epoch) for one in ranks]
    assert {len(part) for part in kept} == {(alone - 1) // world_size}


@settings(deadline=None, max_examples=200)
@given(
    **DRAWN, legs=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 200), st.integers(0, 9)), max_size=3)
)
def test_each_sample_comes_once_over_resumes_with_other_ranks_and_budgets(
    lengths, order, tokens, epoch, legs
):
    samples, consumed = len(lengths), []
    position = EpochPosition.start(within(order, lengths, tokens), samples, epoch)
    for world_size, own_tokens, stop in [*legs, (1, tokens, samples)]:
        ranks = [
            within(replace(order, rank=r, world_size=world_size), lengths, own_tokens)
            for r in range(world_size)
        ]
        try:
            batches = [rows_in(RemainingBatches(one, samples, position), samples) for one in ranks]
        except InvalidSettings:
            continue  # load_state_dict refuses these ranks
        stop = min(stop, len(batches[0]))
        consumed += [row for part in batches for batch in part[:stop] for row in batch]
        position = position.after(ranks[-1], samples, stop)
    assert not position.remaining
    assert sorted(consumed) == list(range(samples))


@every_order
@pytest.mark.parametrize("rank", [{}, {"rank": 1, "world_size": 2}])
def test_stream_loader_resumes_with_the_next_batch_wherever_it_stopped(ragged, kind_of_order, rank):
    def one():
        blocks = {"block_bytes": 4096, "window_bytes": 32768}
        options = {"order": kind_of_order, "batch_tokens": TOKENS, "seed": 4, **blocks, **rank}
        return stream_loader(ragged.root, format="npy", **options)

    def lengths(loader):
        return [batch["tokens"].offsets.diff().tolist() for batch in loader]

    whole, whole_second = (lengths(loader := one()), lengths(loader))
    assert len(one()) == len(whole)
    for stop in (0, 1, len(whole) // 2, len(whole)):
        first, again = one(), one()
        state = first.state_dict()
        for _, _ in zip(range(stop), first, strict=False):
            state = first.state_dict()
        again.load_state_dict(json.loads(json.dumps(state)))
        assert lengths(again) == whole[stop:]
        assert lengths(again) == whole_second


@pytest.mark.parametrize("name", HOLDERS)
def test_the_lengths_are_known_from_every_format(ragged, name, monkeypatch):
    expected = LONGEST
    np.testing.assert_array_equal(sample_lengths(ragged.opener(name)), expected)
    monkeypatch.setattr(sample_lengths_module, "placed_lengths", lambda reader: None)
    read = replace(ragged.opener(name), index=None)
    np.testing.assert_array_equal(sample_lengths(read), expected)


def test_every_loader_delivers_the_same_batches_and_each_is_verified(ragged, tmp_path):
    drawn = {"order": ORDERS, "batch_tokens": TOKENS, "batch_size": (256,), "isolate": False}
    records = delivered(ragged, ("npy", "lmdb"), LOADERS, tmp_path / "records.jsonl", **drawn)
    assert len(records) == 2 * len(LOADERS) * len(ORDERS)
    assert {record.case["batch_tokens"] for record in records} == {TOKENS}


def test_a_part_of_an_epoch_is_measured_where_epochs_differ_in_their_batches(tmp_path):
    lengths = np.random.default_rng(0).integers(1, 200, 5000)
    manifest, _ = iobench.prepare(RaggedSource(lengths), ["npy"], data_dir=tmp_path)
    options = {"order": ("random",), "batch_tokens": 1000, "max_batches": 300, "round_seconds": 3.0}
    result = run_once(manifest, ("npy",), ("stream", "native"), tmp_path / "records.jsonl", **options)
    assert result.records
    assert all(record.timing.partial is not None for record in result.records)


def test_the_budget_is_a_facet_and_the_mean_is_the_batch_size(ragged):
    (case,) = cases_of(ragged, RunOptions(format=("npy",), loader=("native",), batch_tokens=TOKENS), ["cpu"])
    assert case.facets["batch_tokens"] == TOKENS
    assert case.batch_size == int(TOKENS / LENGTHS.mean()) < SAMPLES
    (other,) = cases_of(ragged, RunOptions(format=("npy",), loader=("native",)), ["cpu"])
    assert "batch_tokens" not in other.facets


def test_what_a_budget_cannot_apply_to_is_refused(ragged, images):
    tokens = {"format": ("all",), "batch_tokens": TOKENS}
    with refused_as("conflicting-options", InvalidSettings):
        RunOptions(batch_tokens=TOKENS, batch_size=(64,))
    with refused_as("conflicting-options", InvalidSettings):
        cases_of(images, RunOptions(**tokens), ["cpu"])
    with refused_as("conflicting-options", InvalidSettings):
        stream_loader(images.root, format="npy", batch_tokens=TOKENS)
    with refused_as("conflicting-options", InvalidSettings, hint="omit --batch-tokens"):
        cases_of(ragged, RunOptions(**tokens, loader=("grain",)), ["cpu"])
    both = RunOptions(**tokens, loader=("grain", "native"))
    assert {case.loader.name for case in cases_of(ragged, both, ["cpu"])} == {"native"}
    assert "own-batches" in {note.values["reason"] for note in skip_notes(ragged, both)}
