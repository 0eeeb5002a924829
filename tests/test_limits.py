"""Hardware limits: their measurement, the lowest one of a case, and their display."""

import errno
import itertools
import json
import os
import shutil
from collections import Counter
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import Arrays, complaint, open_files, require_disk
from kinds import complaint_kind
from record_cases import a_case, a_record

import iobench
from iobench import RunOptions
from iobench.base.thresholds import LOWER_CACHE_SPEEDUP
from iobench.bench import limits as case_limits
from iobench.bench.limits import CaseLimits, DecodeLimit
from iobench.host import hardware_limits, memory
from iobench.host.hardware_limits import Limit, LowerCacheProbe
from iobench.host.io_engines import DirectUnavailable
from iobench.host.memory import PAGE
from iobench.loading import loaders as known_loaders
from iobench.results import record_file, summary
from iobench.results.metrics import row_of
from iobench.results.parts import LimitPart
from iobench.results.warnings import warnings_of
from iobench.stream.pipeline import GROUP_BYTES

SECONDS = 0.01
LOADERS, SLOTS = known_loaders.DEFAULT_LOADERS, 5
MIB = 1 << 20
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("limits")
    require_disk(folder)
    path = folder / "file"
    path.write_bytes(os.urandom(3 * MIB + 100))
    return path


@pytest.fixture
def noted(monkeypatch):
    """Return what lets a function note its arguments and its results, and their list."""

    def noted(owner, name):
        function, calls = getattr(owner, name), []

        def noting(*arguments):
            calls.append((arguments, function(*arguments)))
            return calls[-1][1]

        monkeypatch.setattr(owner, name, noting)
        return calls

    return noted


@pytest.fixture
def no_direct_reads(monkeypatch):
    def refuse(path):
        raise DirectUnavailable(f"{path}: no O_DIRECT")

    monkeypatch.setattr(hardware_limits, "open_direct", refuse)


MEASURES = {
    "disk": lambda file: hardware_limits.sequential_read(file, SECONDS),
    "disk, random": lambda file: hardware_limits.random_read(file, 700, SECONDS),
    "page cache": lambda file: hardware_limits.page_cache_read(file, 100_000, 3, 2, SECONDS),
    "gather": lambda file: hardware_limits.gather_rows(file, 700, None, 100_000, 2, SECONDS),
    "memory copy": lambda file: hardware_limits.memory_copy(100_000, 3, 2, SECONDS),
}


@pytest.mark.parametrize("name", MEASURES)
def test_each_limit_is_a_rate_with_its_name_and_its_method_also_of_a_few_bytes(file, tmp_path, name):
    small = tmp_path / "small"
    for size in (None, 1, PAGE - 1, PAGE, 2 * PAGE + 1):
        small.write_bytes(bytes(size or 0))
        limit = MEASURES[name](small if size else file)
        assert (limit.name, limit.bytes_per_s > 0) == (name, True)
        assert limit.how


def test_the_slots_of_the_page_cache_are_many_enough_to_leave_a_processors_cache(file, monkeypatch, noted):
    """Every slot is filled before the first one is filled again."""
    monkeypatch.setattr(hardware_limits, "IN_TURN_BYTES", 2 * MIB)
    rings = noted(hardware_limits, "slots_in_turn")
    result = hardware_limits.page_cache_read(file, 100_000, 3, 1, SECONDS)
    hardware_limits.page_cache_read(file, 8 * MIB, 3, 1, SECONDS)
    (_, small), (_, large) = rings
    assert 100_000 * len(small) > 1.9 * MIB
    assert len({slot.ctypes.data % PAGE for slot in small}) == 1
    assert len({slot.ctypes.data // PAGE for slot in small}) == len(small)
    assert "1.91 MiB" in result.how
    assert len(large) == 3


@pytest.mark.parametrize(
    "measure",
    [
        hardware_limits.sequential_read,
        partial(hardware_limits.random_read, size=700),
        hardware_limits.plain_reads,
        hardware_limits.mapped_reads,
    ],
)
def test_one_read_is_measured_however_short_the_time(file, measure):
    assert measure(file, seconds=1e-9).bytes_per_s > 0


@pytest.mark.parametrize(("size", "pages"), [(700, 1), (PAGE, 1), (PAGE + 1, 2)])
def test_random_reads_are_of_whole_pages_at_many_places_within_the_file(file, noted, size, pages):
    asked = noted(hardware_limits, "measure_reads")
    result = hardware_limits.random_read(file, size, SECONDS)
    assert result.bytes_per_s == pytest.approx(size * result.reads_per_s), "only those asked for count"
    assert len(np.unique(np.concatenate([offsets for (_, offsets, *_), _ in asked]))) > 10
    for (_, offsets, length, *_), _ in asked:
        assert length == pages * PAGE
        assert (offsets % PAGE == 0).all()
        assert offsets.max() + length <= file.stat().st_size
        assert len(np.unique(offsets)) > 500


@pytest.mark.parametrize("name", ["disk", "disk, random"])
def test_limits_of_the_disk_leave_nothing_open_and_raise_without_direct_reads(file, request, name):
    before = open_files(file)
    MEASURES[name](file)
    assert open_files(file) == before
    request.getfixturevalue("no_direct_reads")
    with pytest.raises(DirectUnavailable):
        MEASURES[name](file)


def test_single_reads_are_timed_twice_over_the_same_places(file, noted):
    reads = noted(os, "preadv")
    result = hardware_limits.probe_lower_cache(file, reads=50)
    places = [offset for (_, _, offset), _ in reads]
    assert result.first_s > 0
    assert result.second_s > 0
    assert len(set(places)) > 25
    assert places[-100:-50] == places[-50:]


@pytest.mark.parametrize(
    ("first", "second", "detected"),
    [
        (200e-6, 100e-6, True),
        (100e-6, 100e-6, False),
        (100e-6, 100e-6 / LOWER_CACHE_SPEEDUP + 1e-6, False),
        (100e-6, 300e-6, False),
    ],
)
def test_only_reads_that_get_faster_reveal_a_lower_cache(first, second, detected):
    probe = LowerCacheProbe(first, second)
    assert probe.detected == detected
    assert not detected or ("200 µs" in probe.sentence and "100 µs" in probe.sentence)


class Figures:
    """Limits with rates set by the test, in MB/s, and the calls that measured them."""

    def __init__(self, monkeypatch):
        self.rates = {"disk": 1000, "disk, random": 50, "page cache": 8000, "host to device": 12000}
        self.rates["gather"] = 1e12
        self.asked, self.no_direct = [], False
        self.now, self.took_s = 100.0, 0.001
        monkeypatch.setattr(case_limits, "time", SimpleNamespace(monotonic=lambda: self.now))
        for name, called in {
            "disk": "sequential_read",
            "disk, random": "random_read",
            "page cache": "page_cache_read",
            "gather": "gather_rows",
            "host to device": "host_to_device",
        }.items():
            monkeypatch.setattr(hardware_limits, called, partial(self.measure, name))
        monkeypatch.setattr(case_limits, "pick_device", torch.device)

    def measure(self, name, *arguments):
        self.asked.append((name, *arguments))
        self.now += self.took_s
        if self.no_direct and name.startswith("disk"):
            raise DirectUnavailable
        return Limit(name, "fake", self.rates[name] * 1e6)

    def names(self):
        return [name for name, *_ in self.asked]


@pytest.fixture
def figures(monkeypatch):
    return Figures(monkeypatch)


def warm(variant="npy", loader="native", **chosen):
    return a_case(variant, loader, **chosen)


def cold(variant="npy", **chosen):
    return a_case(variant, chosen.pop("loader", "native"), cache="cold", **chosen)


def lowest(result):
    return result.name, result.bytes_per_s / 1e6


def sampled(manifest, *cases):
    """Return the limits of a run of these cases, sampled once."""
    limits = CaseLimits(manifest, cases)
    limits.sample()
    return limits


def limit_of(manifest, case):
    return sampled(manifest, case).lowest_for(case)


@pytest.fixture
def due(monkeypatch):
    """Make every sample of limits due."""
    monkeypatch.setattr(case_limits, "EVERY_S", -1.0)
    monkeypatch.setattr(case_limits, "REST", -1)


@pytest.mark.parametrize("order", ["sequential", "random"])
@pytest.mark.parametrize("took_s", [0.1, 0.5])
def test_samples_of_all_limits_take_a_tenth_of_the_time(figures, images, order, took_s):
    figures.took_s = took_s
    limits = sampled(images, warm(order=order))
    resources, began = set(figures.names()), figures.now
    figures.asked.clear()
    while figures.now < began + 100:
        limits.sample()
        figures.now += 0.2
    assert set(figures.names()) == resources
    assert 0.02 < took_s * len(figures.asked) / (figures.now - began) <= 0.1


@pytest.mark.parametrize(
    ("case", "rates", "free", "name"),
    [
        (warm(), {}, 0, "page cache"),
        (warm(order="random"), {"gather": 6000}, 0, "gather"),
        (warm(order="block"), {"gather": 6000}, 0, "gather"),
        (warm(device="cuda"), {"host to device": 100}, 0, "host to device"),
        (warm(device="cuda"), {"host to device": 20_000}, 0, "page cache"),
        (cold(), {}, 10**9, "disk"),
        (cold("lmdb"), {}, 10**9, "disk"),
        (cold(order="random"), {}, 10**5, "disk, random"),  # less than the data
        (cold(order="random"), {}, 10**9, "disk"),  # then it may be read in order and picked from memory
        (cold(order="block"), {}, 10**5, "disk"),
    ],
)
def test_the_slowest_resource_on_its_path_limits_a_case(
    figures, images, monkeypatch, case, rates, free, name
):
    monkeypatch.setattr(memory, "free_memory", lambda: free)
    figures.rates |= rates
    result, measured = limit_of(images, case), set(figures.names())
    stored = sum(file.stat().st_size for file in images.files_of(case.variant))
    factor = images.schema.logical_bytes / stored if case.cache == "cold" else 1
    assert lowest(result) == (name, pytest.approx(figures.rates[name] * factor))
    medium = {"page cache"} if case.cache == "warm" else {name}
    shuffled = {"gather"} if case.cache == "warm" and case.order != "sequential" else set()
    assert measured - {"host to device"} == medium | shuffled
    rows = [asked[2:4] for asked in figures.asked if asked[0] in ("gather", "disk, random")]
    assert {size for size, _ in rows} <= {images.schema.sample_bytes}
    if shuffled:
        assert {rows for _, rows in rows} == {(64 << 20) // 776 if case.order == "block" else None}


@pytest.fixture
def jpegs(tmp_path):
    """Return a dataset of images, also in a file each."""
    pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (40, 64, 64, 3), dtype=np.uint8)
    return iobench.prepare(Arrays(x=pixels), ["npy", "images"], data_dir=tmp_path / "data")[0]


def test_where_samples_are_decoded_one_by_one_that_is_the_limit(figures, jpegs, monkeypatch):
    threads = []

    def calls_per_s(decode, count, seconds):
        decode(7)
        threads.append(count)
        return 30.0

    monkeypatch.setattr(case_limits, "calls_per_s", calls_per_s)
    limits = sampled(jpegs, warm(), warm("images"))
    assert lowest(limits.lowest_for(warm())) == ("page cache", 8000)
    assert lowest(limits.lowest_for(warm("images"))) == ("decoding", 30 * 64 * 64 * 3 / 1e6)
    assert set(threads) == {len(os.sched_getaffinity(0))}


@pytest.mark.parametrize(("name", "decode_s"), [("decoding", pytest.approx(0.02)), ("page cache", None)])
def test_the_time_to_decode_a_sample_follows_from_that_limit_alone(name, decode_s):
    record = a_record(40, limit=LimitPart(name=name, bytes_per_s=50 * MIB))  # samples of 1 MiB
    assert row_of(record)["decode_s"] == decode_s


def fifty_calls(call, threads, seconds):
    """Stand in for `calls_per_s`: as many calls on any machine."""
    for number in range(50):
        call(number)
    return 1.0


def test_the_samples_that_are_decoded_are_spread_over_the_data(jpegs, monkeypatch):
    taken = []
    monkeypatch.setattr(case_limits, "calls_per_s", fifty_calls)
    opener = jpegs.opener("images")
    with opener() as reader:
        monkeypatch.setattr(type(reader), "batch", lambda reader, rows: taken.append(rows.start))
    DecodeLimit(opener)(SECONDS)
    assert len(set(taken)) > 35
    assert np.diff(sorted({0, *taken, 40})).max() <= 2


def test_a_gather_takes_every_row_once_in_the_order_of_its_windows(file, monkeypatch):
    taken = []
    monkeypatch.setattr(hardware_limits, "calls_per_s", fifty_calls)
    monkeypatch.setattr(np, "take", lambda source, rows, *rest, **more: taken.append(rows))
    hardware_limits.gather_rows(file, 700, 100, 70_000, 1, SECONDS)
    rows, count = np.concatenate(taken), file.stat().st_size // 700 // 100 * 100
    np.testing.assert_array_equal(np.sort(rows[:count].reshape(-1, 100)), np.arange(count).reshape(-1, 100))
    assert (np.diff(rows[:100]) != 1).any()


@pytest.mark.parametrize(
    ("loader", "batch_size", "slot_samples", "slots"),
    [
        ("native", 50, 50, 2),
        ("dataloader", 50, 50, 2),
        ("native", 10**6, 203, 2),
        ("stream", 50, GROUP_BYTES // (50 * 776) * 50, SLOTS),
        ("stream", 10**6, GROUP_BYTES // (203 * 776) * 203, SLOTS),
    ],
)
def test_the_page_cache_is_copied_into_what_the_loader_fills(
    figures, images, loader, batch_size, slot_samples, slots
):
    limit_of(images, warm(loader=loader, batch_size=batch_size))
    assert figures.asked
    for _, file, slot_bytes, number, *_ in figures.asked:
        assert file == max(images.files_of("npy"), key=lambda path: path.stat().st_size)
        assert (slot_bytes, number) == (slot_samples * images.schema.sample_bytes, slots)


def test_each_resource_has_one_limit_for_all_cases_of_a_run(figures, images):
    cases = [
        case
        for variant in images.artifacts
        for case in (cold(variant), warm(variant), warm(variant, "stream"), warm(variant, batch_size=7))
    ]
    known = sampled(images, *cases)
    files = {file for name, file, *_ in figures.asked}
    assert files == {max((f for v in images.artifacts for f in images.files_of(v)), key=os.path.getsize)}
    assert {known.lowest_for(case).bytes_per_s for case in cases if case.cache == "warm"} == {8000e6}
    lowest_limits = [known.lowest_for(case) for case in cases]
    stored = {round(limit.bytes_per_s / limit.logical_per_byte) for limit in lowest_limits}
    assert stored == {8 * 10**9, 10**9}


def test_the_limit_is_the_best_of_all_methods_and_later_samples_use_it(images, monkeypatch, due):
    small, large = warm(batch_size=7), warm(batch_size=50)
    asked = []

    def page_cache(file, size, slots, threads, seconds):
        asked.append((size, threads))
        return Limit("page cache", "", 1e12 / size / threads)

    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(6))
    monkeypatch.setattr(hardware_limits, "page_cache_read", page_cache)
    known = sampled(images, small, large)
    sizes = [case.batch_size * images.schema.sample_bytes for case in (small, large)]
    assert Counter(asked) == dict.fromkeys(itertools.product(sizes, (1, 6)), case_limits.FIRST_SAMPLES)
    assert known.lowest_for(large).bytes_per_s == known.lowest_for(small).bytes_per_s == 1e12 / min(sizes)
    asked.clear()
    known.sample()
    assert asked == [(min(sizes), 1)]


def test_a_machine_that_gets_slower_keeps_its_limit_and_has_a_lower_latest_sample(figures, images, due):
    known, case = CaseLimits(images, [warm()]), warm()
    seen = []
    for rate in (8000, 2000, 9000):
        figures.rates["page cache"] = rate
        known.sample()
        limit = known.lowest_for(case)
        seen.append((limit.bytes_per_s / 1e6, limit.now_bytes_per_s / 1e6))
    assert seen == [(8000, 8000), (8000, 2000), (9000, 9000)]


@pytest.mark.parametrize(
    ("loader", "expected"),
    [("native:pin_memory=yes", True), ("native:pin_memory=no", False), ("stream", True)],
)
def test_memory_is_copied_to_the_device_as_the_case_does_it(figures, images, loader, expected):
    limit_of(images, cold(loader=loader, device="cuda"))
    asked = [one for one in figures.asked if one[0] == "host to device"]
    assert {(one[1], one[3]) for one in asked} == {(CUDA, expected)}


def test_a_resource_sampled_a_moment_ago_is_not_measured_again(figures, images):
    known = sampled(images, warm(), warm("memmap"))
    before = len(figures.asked)
    known.sample()
    known.lowest_for(warm())
    known.lowest_for(warm("memmap"))
    assert len(figures.asked) == before


def test_measuring_again_only_raises_limits_and_takes_longer(figures, images):
    one = cold(device="cuda")
    known = sampled(images, one)
    short = figures.asked[-1][-1]
    before = lowest(known.lowest_for(one))
    figures.rates |= {"disk": 500, "host to device": 20_000}
    assert lowest(known.remeasure(one)) == before  # of 1000
    assert figures.asked[-1][-1] > short
    figures.rates["disk"] = 30_000
    assert known.remeasure(one).name == case_limits.TO_DEVICE
    assert known.lowest_for(one).bytes_per_s == 20_000e6


def test_without_direct_reads_the_disk_has_no_limit(figures, images):
    figures.no_direct = True
    assert limit_of(images, cold()) is None
    assert sampled(images, cold()).remeasure(cold()) is None
    assert limit_of(images, cold(device="cuda")).name == case_limits.TO_DEVICE
    assert limit_of(images, warm()).name == "page cache"


def test_a_lower_cache_is_probed_where_direct_reads_are_possible(images, monkeypatch):
    monkeypatch.setattr(hardware_limits, "probe_lower_cache", lambda file: LowerCacheProbe(2e-4, 1e-4))
    assert CaseLimits(images, [cold()]).lower_cache() == LowerCacheProbe(2e-4, 1e-4)
    for error in (DirectUnavailable, OSError):

        def refuse(file, error=error):
            raise error

        monkeypatch.setattr(hardware_limits, "probe_lower_cache", refuse)
        assert CaseLimits(images, [cold()]).lower_cache() is None


@pytest.fixture
def measure(tmp_path):
    """iobench.run of npy on the CPU."""

    def call(manifest, loaders=("native",), rounds=1, **options):
        chosen = {"cache": (options.pop("cache", "warm"),), "device": ("cpu",), **options}
        asked = RunOptions(("npy",), tuple(loaders), rounds=str(rounds), **chosen)
        return iobench.run(manifest, asked, out=tmp_path / "records.jsonl")

    return call


def test_each_record_has_the_limit_of_its_case(figures, images, measure, monkeypatch):
    figures.rates["page cache"] = 10**9
    monkeypatch.delattr(CaseLimits, "remeasure")  # of a limit that is exceeded
    result = measure(images, LOADERS, rounds=2)
    expected = LimitPart(name="page cache", how="fake", bytes_per_s=1e15, now_bytes_per_s=1e15)
    assert [one.limit for one in result.records] == [expected] * 2 * len(LOADERS)
    assert record_file.read(result.path)[0] == result.records


def test_without_limits_nothing_is_measured_and_records_have_none(figures, by_file, images, measure):
    (one,) = measure(images, limits=False, cache="cold").records
    assert (one.limit, figures.asked) == (None, [])


@pytest.mark.parametrize("found", [1e3, 1e15])
def test_a_limit_that_was_exceeded_is_measured_again_and_warned_of_if_it_stays_so(
    figures, images, measure, monkeypatch, found
):
    remeasure = CaseLimits.remeasure

    def again(self, case):
        figures.rates["page cache"] = found / 1e6
        return remeasure(self, case)

    figures.rates["page cache"] = 1e-3
    monkeypatch.setattr(CaseLimits, "remeasure", again)
    result = measure(images, rounds=2)
    assert [one.limit.bytes_per_s for one in result.records] == [found] * 2
    (case,) = summary.summarise(result.records).cases
    assert (case.limit, case.value("limit_bytes_per_s")) == ("page cache", found)
    assert case.limit_share == pytest.approx(case.bytes_per_s.median / found)
    warned = [one.cases for one in warnings_of(result.records) if one.kind == "above-limit"]
    assert warned == [["npy · native"]] * (case.limit_share > 1)


def test_of_all_rounds_the_highest_limit_counts(figures, images, measure):
    result = measure(images, rounds=3)
    rates = [1e9, 9e15, 2e9]
    records = [
        replace(one, limit=replace(one.limit, bytes_per_s=rate))
        for one, rate in zip(result.records, rates, strict=True)
    ]
    (case,) = summary.summarise(records).cases
    assert case.value("limit_bytes_per_s") == 9e15
    (case,) = summary.summarise([replace(one, limit=None) for one in records]).cases
    assert (case.limit, case.value("limit_bytes_per_s"), case.limit_share) == (None, None, None)


def test_a_cold_run_notes_a_lower_cache(figures, by_file, images, measure, monkeypatch):
    monkeypatch.setattr(hardware_limits, "probe_lower_cache", lambda file: LowerCacheProbe(2e-4, 1e-4))
    result = measure(images, cache="cold")
    (note,) = result.notes
    assert (note.kind, note.values) == ("lower-cache", {"first_s": 2e-4, "second_s": 1e-4})
    assert result.records[0].cache.lower_cache_p50_s == [2e-4, 1e-4]
    assert "lower-cache" in [warning.kind for warning in warnings_of(result.records)]
    assert measure(images, cache="warm").notes == []


def run(inside, manifest, *arguments):
    common = ("--data-dir", manifest.root.parent, "--device", "cpu", "--rounds", 1)
    return inside("run", *common, "--format", "npy", "--loader", "native", *arguments)


def headings(done):
    """The headings of the table, which may be cut into several blocks."""
    return "  ".join(line for line in done.stdout.splitlines() if line.startswith("format"))


@pytest.mark.parametrize("order", ["sequential", "block"])
def test_only_block_order_has_a_shuffle_quality_and_no_column_is_for_limits(images, inside, tmp_path, order):
    blocks = ("--block-size", "8KiB", "--window-size", "40KiB") if order == "block" else ()
    chosen = ("--order", order, *blocks, "--batch-size", 20, "--no-limits")
    done = run(inside, images, *chosen, "--out", tmp_path / "r.jsonl")
    assert done.returncode == 0, done.stderr
    assert "limit" not in headings(done)
    assert ("shuffle quality" in headings(done)) == (order == "block")
    (one,) = record_file.read(tmp_path / "r.jsonl")[0]
    assert (one.shuffle_quality is not None) == (order == "block")
    if order == "block":
        assert 0 < one.shuffle_quality < 1
        assert f"{one.shuffle_quality:.0%}" in done.stdout


@pytest.mark.parametrize("option", ["--block-size", "--window-size"])
@pytest.mark.parametrize("value", ["large", "0", "-1MiB", "1.5", "1XB", ""])
def test_invalid_sizes_of_blocks_are_a_usage_error(images, inside, option, value):
    done = run(inside, images, f"{option}={value}")
    assert complaint_kind(done, 2) in ("invalid-size", "out-of-range")
    assert option in complaint(done, 2)


def show_limits(inside, manifest, *arguments):
    return inside("limits", "--data-dir", manifest.root.parent, "--seconds", "0.002", *arguments)


def test_limits_are_a_table_of_all_measurements(images, inside):
    require_disk(images.root)
    done = show_limits(inside, images, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split()[0] == "limit"
    assert {"MiB/s", "reads/s"} <= set(lines[0].split())
    for name in ("disk", "disk, random", "page cache", "memory copy"):
        assert any(line.startswith(f"{name} ") for line in lines)
    for size in ("4.00 KiB", "776 B"):  # of random reads: a page, and a sample
        (random,) = [line for line in lines if line.startswith("disk, random ") and size in line]
        assert random.split().count("random") == 1
    assert lines[-1].count("µs") + lines[-1].count("ms") >= 1  # the probe for a lower cache
    assert images.name in done.stderr
    assert str(images.root.parent) in done.stderr


@pytest.mark.parametrize("direct", [True, False])
def test_limits_as_json_are_alone_on_stdout_and_a_note_says_what_is_missing(images, inside, request, direct):
    require_disk(images.root)
    if not direct:
        request.getfixturevalue("no_direct_reads")
    done = show_limits(inside, images, "--device", "cpu", "--name", images.name, "--json")
    result = json.loads(done.stdout, parse_constant=pytest.fail)
    assert set(result) == {"limits", "notes"}
    missing = set() if direct else {"disk, random"}
    assert {one["name"] for one in result["limits"]} == set(MEASURES) - missing
    assert all(one["bytes_per_s"] > 0 for one in result["limits"])
    assert len([one for one in result["limits"] if one["reads_per_s"]]) == 2 * direct
    assert any("past the page cache" in one["how"] for one in result["limits"]) == direct
    (note,) = result["notes"]
    if direct:
        assert (note["kind"], set(note["values"])) == ("lower-cache", {"first_s", "second_s"})
    else:
        assert note["kind"] == "no-disk-limits"
        assert note["message"].endswith("no O_DIRECT")
    assert str(images.root.parent) not in done.stderr


def test_limits_of_a_device_are_both_ways_pinned_and_pageable(images, monkeypatch):
    asked = []
    for name in ("host_to_device", "device_to_host"):

        def measure(device, size, pinned, seconds, name=name):
            asked.append((name, pinned))
            return Limit(name, "", 1.0)

        monkeypatch.setattr(hardware_limits, name, measure)
    case_limits.survey(images, CUDA, 32, 0.002)
    assert sorted(asked) == [(n, p) for n in ("device_to_host", "host_to_device") for p in (False, True)]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("--batch-size", "0"), "out-of-range"),
        (("--batch-size", "-3"), "out-of-range"),
        (("--batch-size", "some"), "usage"),
        (("--seconds", "0"), "out-of-range"),
        (("--seconds", "-1"), "out-of-range"),
        (("--seconds", "nan"), "out-of-range"),
        (("--seconds", "inf"), "out-of-range"),
        (("--seconds", "long"), "usage"),
        (("--device", "tpu"), "unknown-device"),
        (("--format", "npy"), "usage"),
    ],
)
def test_invalid_options_of_limits_are_a_usage_error(images, inside, monkeypatch, arguments, name):
    monkeypatch.setattr(case_limits, "survey", lambda *arguments, **options: case_limits.Survey())
    done = inside("limits", "--data-dir", images.root.parent, *arguments)
    assert complaint_kind(done, 2) == name
    option, value = arguments
    assert (value if option == "--device" else option) in complaint(done, 2)
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("harm", "options", "kind", "named"),
    [
        (lambda made: None, ("--device", "cuda:99"), "device-unavailable", "cuda:99"),
        (lambda made: made.files_of("memmap")[-1].unlink(), (), "missing-file", "memmap"),
        (lambda made: (made.artifacts.clear(), made.save()), (), "no-artifacts", ""),
        (lambda made: shutil.rmtree(made.root), (), "no-dataset", "iobench prepare"),
        (lambda made: None, ("--name", "other"), "no-dataset", "other"),
    ],
)
def test_limits_of_what_is_not_here_are_an_error_that_names_it(
    own_images, inside, harm, options, kind, named
):
    harm(own_images)
    done = show_limits(inside, own_images, *(options or ("--device", "cpu")))
    assert (complaint_kind(done), done.stdout) == (kind, "")
    assert named in complaint(done, 1)


def broken(*arguments):
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_limits_of_a_disk_that_fails_are_an_error(images, inside, monkeypatch):
    monkeypatch.setattr(hardware_limits, "sequential_read", broken)
    assert complaint_kind(show_limits(inside, images, "--device", "cpu")) == "read-error"


def test_a_limit_that_cannot_be_measured_does_not_end_a_run(by_file, images, measure, monkeypatch):
    monkeypatch.setattr(hardware_limits, "sequential_read", broken)
    result = measure(images, rounds=2, cache="cold")
    assert len(result.records) == 2
    assert not result.failures
