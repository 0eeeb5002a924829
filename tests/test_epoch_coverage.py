"""The share of an epoch that all rounds cover, against their rows counted one by one."""

from dataclasses import replace

import numpy as np
import pytest

import iobench
from iobench.bench.epoch import MOST_EPOCHS
from iobench.bench.options import RunOptions
from iobench.bench.part import Part, WindowTimer
from iobench.loading.order import ORDERS, Order
from iobench.results import columns, record_file
from iobench.results.metrics import epoch_share_text
from iobench.results.summary import covered_share, summarise

SAMPLES, BATCH, PARTS, ROUNDS = 40_000, 4, 2, 5


@pytest.fixture(scope="module")
def part(images, tmp_path_factory):
    """A record of a round that is a part of an epoch."""
    path = tmp_path_factory.mktemp("coverage") / "r.jsonl"
    chosen = {"batch_size": (2,), "max_batches": 10, "device": ("cpu",)}
    options = RunOptions(("npy",), ("native",), rounds="1", limits=False, **chosen)
    iobench.run(images, options, out=path)
    return record_file.read(path)[0][0]


def rounds_of(part, kind, count=ROUNDS):
    """Return records of rounds of two parts each, and the rows that came in at least one."""
    order, made, rows = Order(kind, BATCH, 7, block_rows=4, window_batches=16), [], np.zeros(SAMPLES, bool)
    cut = Part.of(order, 2, 300, order.length(SAMPLES, 0))
    for number in range(1, count + 1):
        window = WindowTimer(cut, lambda: None)
        for epoch in range(number * MOST_EPOCHS, number * MOST_EPOCHS + PARTS):
            batches = window.part_of(order.batches(SAMPLES, epoch), order, epoch)
            for batch in window.over(iter(batches), int, False) if kind != "sequential" else batches:
                rows[batch] = True
        window.batches, window.samples = PARTS * cut.count, 1
        partial = window.partial(PARTS, (1, 1.0), (SAMPLES, order.length(SAMPLES, 0)))
        timing = replace(part.timing, partial=partial, epochs=PARTS)
        made.append(replace(part, round=number, timing=timing, case={**part.case, "order": kind}))
    return made, rows.mean()


@pytest.mark.parametrize("kind", ORDERS)
def test_the_share_of_all_rounds_is_that_of_their_rows(part, kind):
    rounds, true = rounds_of(part, kind)
    assert covered_share(rounds) == pytest.approx(true, abs=1e-9 if kind == "sequential" else 0.02)
    assert true < sum(one.timing.partial.batches for one in rounds) * BATCH / SAMPLES, "some rows came twice"


def test_runs_with_one_seed_read_the_same_rows(part):
    rounds, _ = rounds_of(part, "random")
    assert covered_share([*rounds, *rounds]) == covered_share(rounds)


def test_an_unknown_order_claims_nothing(part):
    rounds, _ = rounds_of(part, "random", count=2)
    partial = replace(rounds[1].timing.partial, starts=None)
    other = replace(rounds[1], timing=replace(rounds[1].timing, partial=partial))
    assert covered_share([rounds[0], other]) is None
    whole = replace(rounds[1], timing=replace(rounds[1].timing, partial=None))
    assert covered_share([rounds[0], whole]) is None


def test_the_table_tells_the_share_of_a_round_and_of_all(part):
    rounds, _ = rounds_of(part, "random")
    (case,) = summarise(rounds).cases
    (cell,) = dict(columns.metric_columns([case]))["part"]
    assert cell.endswith(f" %, in all rounds {epoch_share_text(case.covered)}")


@pytest.mark.parametrize(
    ("share", "text"), [(0.0412, "4.1 %"), (0.6199, "61 %"), (0.9999, "99 %"), (1.0, "100 %")]
)
def test_a_share_is_rounded_down(share, text):
    assert epoch_share_text(share) == text
