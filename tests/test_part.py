import gc
import json
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kinds import kind as error_kind

import iobench
from iobench.base.errors import LoaderFailed
from iobench.bench.case_grid import cases_of
from iobench.bench.epoch import COLLECTED_S, RoundSpec, epoch_request, measure
from iobench.bench.options import RunOptions
from iobench.bench.part import LEAST_WINDOW, Part, WindowTimer
from iobench.bench.run import run
from iobench.loading import loaders
from iobench.loading.host_to_device import HostToDevice
from iobench.loading.loaders import Job
from iobench.loading.order import ORDERS, Order
from iobench.results import columns, record_file
from iobench.results.summary import summarise

BATCH = 2
CPU = HostToDevice(torch.device("cpu"), False)


class Loop:
    """A simulated loader that reads ahead and a consumer, with a clock in nanoseconds.

    A batch takes `made` to make and `used` to use; the first one takes `start` more. At most `ahead`
    batches wait for the consumer.
    """

    def __init__(self, made, used, start, ahead):
        self.made, self.used, self.start, self.ahead, self.now = made, used, start, ahead, 0

    def batches(self, count):
        """Yield batches of one sample, and let the clock run until the last one is used."""
        finished, taken = [], []
        for number in range(count):
            begin = finished[-1] if finished else self.now + self.start
            room = taken[number - self.ahead] if number >= self.ahead else 0
            finished.append(max(begin, room) + self.made)
            self.now = max(self.now, finished[-1])
            taken.append(self.now)
            yield number
            self.now += self.used

    def whole(self, count):
        """Return how long an epoch takes."""
        began = self.now
        for _ in self.batches(count):
            pass
        return self.now - began


@given(
    order=st.builds(Order, st.sampled_from(ORDERS), window_batches=st.integers(1, 9)),
    ahead=st.integers(0, 40),
    batches=st.integers(1, 500),
    epoch=st.integers(1, 3000),
)
def test_a_window_has_whole_buffers_before_and_after_it(order, ahead, batches, epoch):
    part = Part.of(order, ahead, batches, epoch)
    if part is None:
        least = max(batches, LEAST_WINDOW * max(1, ahead)) + 2 * max(1, ahead)
        assert epoch <= least + 2 * order.window_batches
        return
    assert part.lead >= max(1, ahead)
    assert part.window >= max(batches, LEAST_WINDOW * ahead)
    assert part.count == part.lead + part.window + part.trail < epoch
    assert part.trail >= max(1, ahead)
    if order.kind == "block":
        assert part.lead % order.window_batches == part.window % order.window_batches == 0


def consumed(timer, batches, own=False):
    """Return the number of batches of one sample that come through a timer."""
    came = []
    came.extend(timer.over(batches, lambda: len(came), own))
    return len(came)


@given(
    made=st.integers(1, 1000),
    used=st.integers(1, 1000),
    start=st.integers(0, 10**6),
    ahead=st.integers(1, 12),
    cut=st.booleans(),
)
def test_an_epoch_follows_from_a_part_of_it(made, used, start, ahead, cut):
    part, epoch = Part.of(Order(), ahead, 1, 2000), 2000
    loop = Loop(made, used, start, ahead)
    timer = WindowTimer(part, lambda: None, lambda: loop.now)
    samples = consumed(timer, loop.batches(epoch if cut else part.count), cut)
    assert samples == timer.batches == (part.end if cut else part.count)
    result = timer.partial(1, (samples, loop.now / 1e9), (epoch, epoch))
    assert result.epoch_s == pytest.approx(Loop(made, used, start, ahead).whole(epoch) / 1e9, rel=0.01)


@pytest.mark.parametrize("delivered", [0, 1, 5])
def test_a_loader_that_ends_before_the_window_does_is_refused(delivered):
    part = Part.of(Order(), 1, 1, 100)
    timer = WindowTimer(part, lambda: None)
    early = error_kind("ended-early", found=str(delivered))
    with pytest.raises(LoaderFailed, check=early):
        consumed(timer, iter(range(delivered)), own=True)


@pytest.mark.parametrize("name", ["native", "stream", "dataloader:num_workers=2,fetch=batch"])
@pytest.mark.parametrize("kind", ORDERS)
def test_a_round_delivers_the_rows_of_its_part(images, name, kind):
    loader = loaders.parse(name).on("cpu")
    job = Job(images.opener("npy"), Order(kind, 1, block_rows=2, window_batches=2))
    sums = []
    measured = measure(
        loader, job, CPU, RoundSpec(3, lambda batch: sums.append(int(batch["x"].sum())), 0.0, batches=7)
    )
    part = measured.timing.partial
    if name == "stream":  # holds more than these data have
        assert part is None
        return
    assert part.batches == len(sums) < part.epoch_batches == part.epoch_samples == images.schema.samples
    ahead = Part.of(job.order, loader.read_ahead, 7, images.schema.samples)
    window = WindowTimer(ahead, lambda: None)
    with images.opener("npy")() as reader:
        rows = epoch_request(loader, job, 3 * 10_000, window)
        assert sums == [int(reader.batch(one)["x"].sum()) for one in rows]
    parts = [np.concatenate([np.r_[one] for one in epoch_request(loader, job, n, window)]) for n in range(20)]
    assert len({rows[0] for rows in parts}) > 5, "each round has a part of its own"


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """A dataset of 203 samples whose loader has an order of its own."""
    source, folder = iobench.Synthetic(203 * 4, (4,)), tmp_path_factory.mktemp("shards")
    return iobench.prepare(source, ["webdataset"], data_dir=folder)[0]


@pytest.mark.parametrize(
    ("name", "limit_s", "cut"),
    [
        *(("native", limit_s, cut) for limit_s, cut in ((0.02, True), (600.0, False), (np.inf, False))),
        *(("webdataset", limit_s, cut) for limit_s, cut in ((0.02, True), (600.0, False))),
    ],
)
def test_an_epoch_that_is_no_longer_than_a_part_is_cut_off_too(images, shards, name, limit_s, cut):
    opener = images.opener("npy") if name == "native" else shards.opener(name)
    spec = RoundSpec(3, lambda batch: time.sleep(0.02), 0.0, batches=1000, limit_s=limit_s)
    timing = measure(loaders.parse(name).on("cpu"), Job(opener, Order("random", 29)), CPU, spec).timing
    partial = timing.partial
    assert (partial is not None and partial.short) == cut == (timing.samples < 203)
    if name == "native" and cut:
        assert partial.batches < partial.epoch_batches == 7
        assert partial.epoch_s > 7 * 0.02


def parted(name, loader, rounds="1", **chosen):
    """Return options of a run whose rounds are parts of an epoch."""
    return RunOptions(format=(name,), loader=(loader,), rounds=rounds, limits=False, **chosen)


def test_records_say_what_part_a_round_was_and_their_case_has_its_own_key(images, tmp_path):
    options = parted("npy", "native", rounds="2", batch_size=(BATCH,), max_batches=10)
    result = run(images, options, out=tmp_path / "r.jsonl")
    one = record_file.read(result.path)[0][0]
    samples = images.schema.samples
    assert one.case["max_batches"] == 10
    assert one.timing.partial.epoch_samples == samples
    (cell,) = dict(columns.metric_columns(summarise([one]).cases))["part"]
    assert cell.endswith("%")
    assert one.epochs == one.timing.samples / samples
    assert one.samples_per_s == pytest.approx(samples / one.epoch_s)
    whole = cases_of(images, parted("npy", "native"), ["cpu"])[0]
    assert "max_batches" not in whole.facets
    assert one.settings_key != whole.key
    assert json.loads(result.path.read_text().splitlines()[0])["timing"]["partial"]["epoch_batches"] == 102


def test_a_loader_with_an_order_of_its_own_is_cut_at_the_end_of_the_window(shards, tmp_path):
    options = parted("webdataset", "webdataset", batch_size=(BATCH,), max_batches=10)
    (one,) = run(shards, options, out=tmp_path / "r.jsonl").records
    assert one.timing.samples == one.timing.epochs * BATCH * (2 + 10)  # a lead and the window
    assert one.timing.partial.batches == one.timing.epochs * (2 + 10)
    (cell,) = dict(columns.metric_columns(summarise([one]).cases))["part"]
    assert cell.endswith("%, head of the epoch")


def test_an_epoch_that_is_not_longer_than_a_part_is_measured_as_a_whole(images, tmp_path):
    (one,) = run(images, parted("npy", "native", max_batches=100), out=tmp_path / "r.jsonl").records
    assert one.timing.partial is None
    assert one.epochs == one.timing.epochs


def test_parts_are_drawn_from_the_whole_dataset_and_differ_from_round_to_round():
    samples, count = 10_000, 20
    for kind in ORDERS:
        order, starts, rows = Order(kind, BATCH, block_rows=4, window_batches=2), set(), set()
        for epoch in range(50):
            batches = order.batches(samples, epoch)
            part = batches[order.part(len(batches), epoch, count)]
            own = [int(row) for one in part for row in np.arange(samples)[one]]
            assert len(set(own)) == len(own) == count * BATCH == part.samples
            starts.add(own[0])
            rows.update(own)
            if kind == "sequential":
                assert own == list(range(own[0], own[0] + len(own)))
        assert len(starts) > 40
        assert max(rows) - min(rows) > 0.9 * samples


@pytest.mark.parametrize("delivered", [1, 5, 10, 13])
def test_a_whole_epoch_of_ones_own_loader_has_any_number_of_batches(delivered):
    timer = WindowTimer(Part.whole(4, 10), lambda: None)
    assert consumed(timer, iter(range(delivered)), own=True) == delivered
    assert not timer.short


@pytest.mark.parametrize("batches", [3, 6, 40])
def test_a_whole_epoch_of_ones_own_loader_ends_in_time_however_many_batches_it_has(batches):
    loop = Loop(made=1, used=0, start=0, ahead=1)
    timer = WindowTimer(Part.whole(1, 2), lambda: None, lambda: loop.now, 6.5 / 1e9)
    assert consumed(timer, loop.batches(batches), own=True) == min(batches, 7)
    assert timer.short == (batches == 40)


@pytest.mark.parametrize(
    ("limit", "came", "rate"),
    [(100, 14, 1), (8.5, 9, 1), (1.5, 1, 1 / 6)],  # the loader's start counts only where the lead is late
)
def test_a_window_ends_with_its_time(limit, came, rate):
    loop = Loop(made=1, used=0, start=5 if came == 1 else 0, ahead=1)
    window = WindowTimer(Part(2, 10, 2), lambda: None, lambda: loop.now, limit / 1e9)
    assert consumed(window, loop.batches(14)) == came
    assert window.samples / window.ns == rate
    assert window.short == (came < 14)


@pytest.mark.parametrize("makes", [True, False])
def test_a_short_round_lasts_until_a_full_collection_that_is_due(tmp_path, makes):
    manifest, _ = iobench.prepare(iobench.Synthetic(64, (4,)), ["npy"], data_dir=tmp_path)
    job, held = Job(manifest.opener("npy"), Order("random", 1)), []
    young, middle, old = gc.get_threshold()
    due = (old + 6) * young * middle  # objects, after which a full collection may follow
    kept = [[] for _ in range(6 * due)]  # but not before new ones are a quarter of all

    def consume(batch):
        held.extend([] for _ in range(makes * due // 16))

    gc.collect()
    before = gc.get_stats()[2]["collections"]
    spec = RoundSpec(1, consume, seconds=1e-9, ended=held.clear)
    timing = measure(loaders.get("native"), job, CPU, spec).timing
    collections = gc.get_stats()[2]["collections"] - before
    assert len(kept) == 6 * due
    if makes:
        assert timing.epochs > 1
        assert collections == 1 or timing.epochs_s > COLLECTED_S
    else:
        assert timing.epochs == 1
