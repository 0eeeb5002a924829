"""Warnings: each reason not to believe a figure alone, and none without a reason."""

import dataclasses
import json

import pytest
from record_cases import MIB, SAMPLES, STEADY, rounds_of, varied

from iobench.base import thresholds
from iobench.base.finding import Finding
from iobench.base.machine import BackgroundLoad, MachineDisk, Snapshot
from iobench.results.parts import ContentCheckPart, LimitPart, PartialEpoch
from iobench.results.record_file import plain
from iobench.results.run_warning import MORE_ROUNDS, RunWarning
from iobench.results.warnings import warnings_of

DATA = SAMPLES * MIB


@pytest.fixture(autouse=True)
def rounds_as_long_as_in_a_run(monkeypatch):
    monkeypatch.setattr(thresholds, "ROUND_S", 0.2)


def kinds(records):
    return [warning.kind for warning in warnings_of(records)]


def steady(**changes):
    return rounds_of(STEADY, **changes)


def cold(speeds=STEADY, cache=(), **changes):
    state = {"mode": "cold", "method": "drop_caches", "residency": 0.0, **dict(cache)}
    return rounds_of(speeds, cache=state, **changes)


def throttled(*reasons):
    shots = [Snapshot(time=0.0, cores=[0.5], iowait=0.0, gpu_throttled=one) for one in reasons]
    return steady(snapshots=shots)


def limits(*mib_per_s):
    return varied("limit", "now_bytes_per_s", [one * MIB for one in mib_per_s])


def cpu_speeds(*paces):
    return varied("processor", "cpu_speed_per_s", paces)


def background(*shares, figure="processors"):
    return [
        dataclasses.replace(one, background=BackgroundLoad(**{figure: share}))
        for one, share in zip(steady(), shares, strict=True)
    ]


def in_parts(share, read_share, order="random", **disk):
    """Return cold rounds that deliver this share of the samples, and read that share of the files."""
    whole, stored = SAMPLES / share, int(DATA / share)
    part = PartialEpoch(batches=1, epoch_batches=9, epoch_s=whole / STEADY[0], epoch_samples=whole)
    read = int(read_share * stored)
    return cold(
        chosen={"order": order},
        timing={"partial": part},
        disk={"read_bytes": read, "device_read_bytes": read, **disk},
        dataset={"stored_bytes": stored},
    )


REMOTE = MachineDisk(file_system="nfs4", remote=True)
LIMIT = LimitPart(name="page cache", bytes_per_s=500.0 * MIB)
UP = [700, 800, 900, 1000, 1100, 1200]
SCATTERED = [1000, 1300, 700, 1200, 850]
OTHERS_READ = {"device_read_bytes": DATA // 2}


@pytest.mark.parametrize(
    ("loader", "threads", "named"), [("native", 4, 1), ("native", 1, 0), ("stream", 4, 0)]
)
def test_threads_of_torch_are_named_where_they_may_scatter_rounds(loader, threads, named):
    (warning,) = warnings_of(rounds_of(SCATTERED, loader=loader, processor={"torch_threads": threads}))
    assert sum("OMP_NUM_THREADS=1" in hint for hint in warning.hints) == named


@pytest.mark.parametrize(
    ("kind", "records"),
    [
        ("few-rounds", rounds_of(STEADY[:4])),
        ("few-rounds", rounds_of(STEADY[:1])),
        ("short-rounds", steady(timing={"epochs_s": 0.15})),
        ("round-spread", rounds_of(SCATTERED)),
        ("drift", rounds_of(UP)),
        ("drift", rounds_of(UP[::-1])),
        ("drift", cold(UP)),
        ("disk-throttling", cold(UP[::-1])),
        ("first-round", rounds_of([500, *STEADY])),
        ("first-round", rounds_of([2000, *STEADY])),
        ("lower-cache", cold(cache={"lower_cache_p50_s": [2e-4, 1e-4]})),
        ("remote-cache", cold(machine={"disk": REMOTE})),
        ("hypervisor-memory", cold(cache={"prefault_bytes_per_s": 0.4e9})),
        ("mixed-eviction", cold(cache={"method": "drop_caches on a, posix_fadvise on b"})),
        ("low-residency", steady(cache={"residency": 0.8})),
        ("unknown-residency", steady(cache={"residency": None})),
        ("read-on-open", cold(disk={"opening_bytes": DATA // 2})),
        ("page-reclaim", steady(disk={"read_bytes": DATA // 2, **OTHERS_READ})),
        ("cold-part", in_parts(share=0.1, read_share=0.8)),
        ("cold-part", in_parts(share=0.1, read_share=0.2, order="block")),
        ("cpu-steal", background(0.0, 0.0, 0.05, 0.05, 0.05, figure="steal")),
        ("suspended", steady(processor={"suspended_s": 5.0})),
        ("background-disk", steady(disk=OTHERS_READ)),
        ("above-limit", steady(limit=LIMIT)),
        ("unstable-limits", limits(10_000, 9000, 3000, 2900, 9500)),
        ("background-cpu", background(0.0, 0.0, 0.0, 0.5, 0.5)),
        ("unstable-cpu-speed", cpu_speeds(3300, 3200, 1900, 1850, 3350)),
        ("memory-pressure", background(*[0.5] * 5, figure="memory_stalled")),
        ("profiling-cost", steady(timing={"profiling_s": 0.05})),
        ("device-throttling", throttled(["power cap"])),
    ],
)
def test_each_reason_is_a_warning_alone_with_hints_and_values(kind, records):
    assert kinds(records) in ([kind], ["round-spread", kind])  # drifting rounds differ, too
    warning = warnings_of(records)[-1]
    assert "\n" not in warning.sentence
    assert warning.hints
    assert not any(hint in warning.message for hint in warning.hints)
    assert all(hint in warning.sentence for hint in warning.hints)
    assert warning.values or kind == "unknown-residency"
    assert json.loads(json.dumps(plain(warning)))["kind"] == kind


@pytest.mark.parametrize(
    "records",
    [
        [],
        steady(),
        cold(),
        rounds_of(STEADY * 20),
        cold(cache={"lower_cache_p50_s": [1e-4, 1e-4]}),
        cold(cache={"prefault_bytes_per_s": 9e9}),
        cold(disk={"opening_bytes": DATA // 10}),
        steady(disk={"opening_bytes": DATA // 2}),  # a warm case
        steady(cache={"residency": None, "method": thresholds.PART_WARMED}),
        steady(cache={"mode": "remote"}, disk=OTHERS_READ),  # in an object store: no disk that others read
        background(0.0, 0.0, 0.0, 0.05, 0.05, figure="steal"),  # too seldom to move a median
        background(*[None] * 5, figure="steal"),
        cold(disk={"read_bytes": DATA, "device_read_bytes": int(1.01 * DATA)}),
        in_parts(share=0.1, read_share=0.11),
        in_parts(share=0.1, read_share=0.2, order="sequential"),
        in_parts(share=0.1, read_share=0.8, read_bytes=None),
        steady(limit=None),
        limits(10_000, 9900, 9000, 9500, 9700),
        background(*[0.05] * 5),
        cpu_speeds(3300, 3200, 3350, 3310, 3250),
        cpu_speeds(None, None, 3350, 100, None),
        background(*[0.0] * 5, figure="cpu_stalled"),
        background(*[None] * 5),
        throttled(None, []),
    ],
)
def test_normal_or_unknown_figures_are_no_warning(records):
    assert kinds(records) == []


def test_a_warning_about_several_cases_names_some_of_them():
    records = [
        record
        for variant in ("npy", "hdf5", "lmdb", "memmap")
        for record in steady(variant=variant, timing={"epochs_s": 0.15})
    ]
    (warning,) = warnings_of(records)
    assert (warning.kind, len(warning.cases)) == ("short-rounds", 4)
    assert warning.values["seconds"] == 0.15
    assert [case in warning.sentence for case in warning.cases] == [True, True, False, False]


def test_content_that_was_not_verified_is_one_warning_per_reason_with_its_cases():
    loaders = {"native": "no-hashes", "stream": "no-hashes", "dataloader": "other-order"}
    parts = {loader: ContentCheckPart(unverified=[Finding(why, why)]) for loader, why in loaders.items()}
    records = [
        one for name in (*loaders, "spdl") for one in steady(loader=name, content_check=parts.get(name))
    ]
    assert {one.kind for one in warnings_of(records)} == {"unverified-content"}
    cases = {one.values["reasons"]: one.cases for one in warnings_of(records)}
    assert cases == {"no-hashes": ["npy · native", "npy · stream"], "other-order": ["npy · dataloader"]}


def test_a_drift_of_the_machine_is_found_in_scattered_cases():
    fast = rounds_of([1000, 950, 900, 850, 800, 760, 710])
    slow = rounds_of([103, 94, 91, 84, 81, 75, 72], variant="lmdb")
    assert next(warning for warning in warnings_of(fast + slow) if warning.kind == "drift").cases == []


def test_a_warning_about_all_cases_names_none_and_its_hints_are_alternatives():
    assert RunWarning("k", "message").sentence == "message"
    assert RunWarning("k", "message", ["case"], ("a", "b", "c")).sentence == "message (case); a, b or c"


def test_a_command_replaces_the_hint_for_more_rounds():
    records = rounds_of(SCATTERED)
    longer = "give a longer --max-time"
    (usual,), (other,) = warnings_of(records), warnings_of(records, more_rounds=longer)
    assert MORE_ROUNDS in usual.hints
    assert other.hints == tuple(longer if h == MORE_ROUNDS else h for h in usual.hints)
    assert (other.kind, other.message, other.values) == (usual.kind, usual.message, usual.values)


def test_each_state_of_the_cache_has_its_own_drift():
    frozen = cold(UP[::-1], chosen={"cache": "cold"})
    by_kind = {one.kind: one.cases for one in warnings_of([*frozen, *rounds_of(UP)])}
    assert by_kind["disk-throttling"] == ["npy · native, cold cache"]


def test_rounds_of_several_versions_are_warned_of():
    newer = steady(machine={"versions": {"torch": "9"}})
    (warning,) = [w for w in warnings_of([*steady(), *newer]) if w.kind == "mixed-versions"]
    assert "torch" in warning.values["software"].split(", ")
