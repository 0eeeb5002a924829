"""Warnings: each reason not to believe a figure alone, and none without a reason."""

import dataclasses
import json

import pytest
from record_cases import MIB, SAMPLES, STEADY, rounds_of

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


def changed(records, part, **changes):
    """Return the records with some fields of a part changed."""
    return [
        dataclasses.replace(record, **{part: dataclasses.replace(getattr(record, part), **changes)})
        for record in records
    ]


def cold(records, **state):
    return changed(records, "cache", mode="cold", method="drop_caches", residency=0.0, **state)


def snapshot(**figures):
    return Snapshot(time=0.0, cores=[0.5], iowait=0.0, **figures)


def with_snapshots(records, snapshots):
    return [dataclasses.replace(record, snapshots=snapshots) for record in records]


def with_limit(records, limit):
    return [dataclasses.replace(record, limit=limit) for record in records]


def with_limit_samples(mib_per_s):
    """Return rounds of a run with these samples of the machine's limit."""
    return [
        dataclasses.replace(record, limit=dataclasses.replace(record.limit, now_bytes_per_s=now * MIB))
        for record, now in zip(rounds_of(STEADY), mib_per_s, strict=True)
    ]


def with_cpu_speeds(paces):
    """Return rounds with these CPU speeds."""
    return [
        dataclasses.replace(record, processor=dataclasses.replace(record.processor, cpu_speed_per_s=pace))
        for record, pace in zip(rounds_of(STEADY), paces, strict=True)
    ]


def in_parts(share, read_share, order="random"):
    """Return cold rounds that deliver this share of the samples, and read that share of the files."""
    whole = SAMPLES / share
    part = PartialEpoch(batches=1, epoch_batches=9, epoch_s=whole / STEADY[0], epoch_samples=whole)
    rounds = changed(cold(rounds_of(STEADY, chosen={"order": order})), "timing", partial=part)
    stored, read = int(DATA / share), int(read_share * DATA / share)
    rounds = changed(rounds, "disk", read_bytes=read, device_read_bytes=read)
    return changed(rounds, "dataset", stored_bytes=stored)


def with_background(shares, figure="processors"):
    """Return rounds under this background load."""
    return [
        dataclasses.replace(record, background=BackgroundLoad(**{figure: share}))
        for record, share in zip(rounds_of(STEADY), shares, strict=True)
    ]


@pytest.mark.parametrize("records", [rounds_of(STEADY), cold(rounds_of(STEADY)), rounds_of(STEADY * 20), []])
def test_steady_rounds_leave_no_warning(records):
    assert kinds(records) == []


REMOTE = MachineDisk(file_system="nfs4", remote=True)
BACKED = {"prefault_bytes_per_s": 0.4e9}
LIMIT = LimitPart(name="page cache", bytes_per_s=500.0 * MIB)
UP = [700, 800, 900, 1000, 1100, 1200]


def test_data_in_an_object_store_have_no_disk_that_others_read():
    read = changed(rounds_of(STEADY), "disk", device_read_bytes=DATA // 2)
    assert not kinds(changed(read, "cache", mode="remote"))


@pytest.mark.parametrize(
    ("loader", "threads", "named"), [("native", 4, 1), ("native", 1, 0), ("stream", 4, 0)]
)
def test_threads_of_torch_are_named_where_they_may_scatter_rounds(loader, threads, named):
    scattered = rounds_of([1000, 1300, 700, 1200, 850], loader=loader)
    (warning,) = warnings_of(changed(scattered, "processor", torch_threads=threads))
    assert sum("OMP_NUM_THREADS=1" in hint for hint in warning.hints) == named


@pytest.mark.parametrize(
    ("kind", "records"),
    [
        ("few-rounds", rounds_of(STEADY[:4])),
        ("few-rounds", rounds_of(STEADY[:1])),
        ("short-rounds", changed(rounds_of(STEADY), "timing", epochs_s=0.15)),
        ("round-spread", rounds_of([1000, 1300, 700, 1200, 850])),
        ("drift", rounds_of(UP)),
        ("drift", rounds_of(UP[::-1])),
        ("drift", cold(rounds_of(UP))),
        ("disk-throttling", cold(rounds_of(UP[::-1]))),
        ("first-round", rounds_of([500, *STEADY])),
        ("first-round", rounds_of([2000, *STEADY])),
        ("lower-cache", cold(rounds_of(STEADY), lower_cache_p50_s=[2e-4, 1e-4])),
        ("remote-cache", cold(changed(rounds_of(STEADY), "machine", disk=REMOTE))),
        ("hypervisor-memory", cold(rounds_of(STEADY), **BACKED)),
        (
            "mixed-eviction",
            changed(cold(rounds_of(STEADY)), "cache", method="drop_caches on a, posix_fadvise on b"),
        ),
        ("low-residency", changed(rounds_of(STEADY), "cache", residency=0.8)),
        ("unknown-residency", changed(rounds_of(STEADY), "cache", residency=None)),
        ("read-on-open", cold(changed(rounds_of(STEADY), "disk", opening_bytes=DATA // 2))),
        (
            "page-reclaim",
            changed(rounds_of(STEADY), "disk", read_bytes=DATA // 2, device_read_bytes=DATA // 2),
        ),
        ("cold-part", in_parts(share=0.1, read_share=0.8)),
        ("cold-part", in_parts(share=0.1, read_share=0.2, order="block")),
        ("cpu-steal", with_background([0.0, 0.0, 0.05, 0.05, 0.05], "steal")),
        ("suspended", changed(rounds_of(STEADY), "processor", suspended_s=5.0)),
        ("background-disk", changed(rounds_of(STEADY), "disk", device_read_bytes=DATA // 2)),
        ("above-limit", with_limit(rounds_of(STEADY), LIMIT)),
        ("unstable-limits", with_limit_samples([10_000, 9000, 3000, 2900, 9500])),
        ("background-cpu", with_background([0.0, 0.0, 0.0, 0.5, 0.5])),
        ("unstable-cpu-speed", with_cpu_speeds([3300, 3200, 1900, 1850, 3350])),
        ("memory-pressure", with_background([0.5] * 5, "memory_stalled")),
        ("profiling-cost", changed(rounds_of(STEADY), "timing", profiling_s=0.05)),
        ("device-throttling", with_snapshots(rounds_of(STEADY), [snapshot(gpu_throttled=["power cap"])])),
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
        cold(rounds_of(STEADY), lower_cache_p50_s=[1e-4, 1e-4]),
        cold(rounds_of(STEADY), lower_cache_p50_s=None),
        cold(changed(rounds_of(STEADY), "disk", opening_bytes=DATA // 10)),
        changed(rounds_of(STEADY), "disk", opening_bytes=DATA // 2),  # a warm case
        cold(rounds_of(STEADY), prefault_bytes_per_s=9e9),
        changed(rounds_of(STEADY), "cache", residency=None, method=thresholds.PART_WARMED),
        changed(changed(rounds_of(STEADY), "cache", mode="remote"), "disk", device_read_bytes=DATA // 2),
        with_background([0.0, 0.0, 0.0, 0.05, 0.05], "steal"),  # too seldom to move a median
        changed(with_background([None] * 5, "steal"), "disk", read_bytes=None),
        cold(changed(rounds_of(STEADY), "disk", read_bytes=DATA, device_read_bytes=int(1.01 * DATA))),
        in_parts(share=0.1, read_share=0.11),
        in_parts(share=0.1, read_share=0.2, order="sequential"),
        changed(in_parts(share=0.1, read_share=0.8), "disk", read_bytes=None),
        with_limit(rounds_of(STEADY), None),
        with_limit_samples([10_000, 9900, 9000, 9500, 9700]),
        with_background([0.05] * 5),
        with_cpu_speeds([3300, 3200, 3350, 3310, 3250]),
        with_cpu_speeds([None, None, 3350, 100, None]),
        with_background([0.0] * 5, "cpu_stalled"),
        with_background([None] * 5),
        with_snapshots(rounds_of(STEADY), [snapshot(), snapshot(gpu_throttled=[])]),
    ],
)
def test_normal_or_unknown_figures_are_no_warning(records):
    assert kinds(records) == []


def test_a_warning_about_several_cases_names_some_of_them():
    records = [
        record
        for variant in ("npy", "hdf5", "lmdb", "memmap")
        for record in changed(rounds_of(STEADY, variant=variant), "timing", epochs_s=0.15)
    ]
    (warning,) = warnings_of(records)
    assert (warning.kind, len(warning.cases)) == ("short-rounds", 4)
    assert warning.values["seconds"] == 0.15
    assert [case in warning.sentence for case in warning.cases] == [True, True, False, False]


def test_content_that_was_not_verified_is_one_warning_per_reason_with_its_cases():
    loaders = {"native": "no-hashes", "stream": "no-hashes", "dataloader": "other-order"}
    parts = {loader: ContentCheckPart(unverified=[Finding(why, why)]) for loader, why in loaders.items()}
    records = [
        dataclasses.replace(record, content_check=parts.get(loader))
        for loader in (*loaders, "spdl")
        for record in rounds_of(STEADY, loader=loader)
    ]
    assert {one.kind for one in warnings_of(records)} == {"unverified-content"}
    cases = {one.values["reasons"]: one.cases for one in warnings_of(records)}
    assert cases == {"no-hashes": ["npy · native", "npy · stream"], "other-order": ["npy · dataloader"]}


def test_a_drift_of_the_machine_is_found_in_scattered_cases():
    fast = rounds_of([1000, 950, 900, 850, 800, 760, 710])
    slow = rounds_of([103, 94, 91, 84, 81, 75, 72], variant="lmdb")
    assert next(warning for warning in warnings_of(fast + slow) if warning.kind == "drift").cases == []


def test_a_warning_about_all_cases_names_none():
    assert RunWarning("k", "message").sentence == "message"


def test_hints_are_alternatives_after_the_message():
    warning = RunWarning("k", "message", ["case"], ("a", "b", "c"))
    assert warning.sentence.endswith("; a, b or c")


def test_a_command_replaces_the_hint_for_more_rounds():
    records = rounds_of([1000, 1300, 700, 1200, 850])
    longer = "give a longer --max-time"
    (usual,), (other,) = warnings_of(records), warnings_of(records, more_rounds=longer)
    assert MORE_ROUNDS in usual.hints
    assert other.hints == tuple(longer if h == MORE_ROUNDS else h for h in usual.hints)
    assert (other.kind, other.message, other.values) == (usual.kind, usual.message, usual.values)


def test_each_state_of_the_cache_has_its_own_drift():
    falling = [1200, 1100, 1000, 900, 800, 700]
    frozen = [dataclasses.replace(r, case={**r.case, "cache": "cold"}) for r in cold(rounds_of(falling))]
    by_kind = {one.kind: one.cases for one in warnings_of([*frozen, *rounds_of(falling[::-1])])}
    frozen_case = "npy · native, cold cache"
    assert by_kind["disk-throttling"] == [frozen_case] or by_kind["drift"]


def test_rounds_of_several_versions_are_warned_of():
    newer = [
        dataclasses.replace(
            r, round=r.round + 5, machine=dataclasses.replace(r.machine, versions={"torch": "9"})
        )
        for r in rounds_of(STEADY)
    ]
    (warning,) = [w for w in warnings_of([*rounds_of(STEADY), *newer]) if w.kind == "mixed-versions"]
    assert "torch" in warning.values["software"].split(", ")
