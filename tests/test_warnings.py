"""What speaks against figures is said; what does not, is not."""

import dataclasses

import pytest
from record_cases import MIB, SAMPLES, rounds_of

from iobench.base import thresholds
from iobench.results.parts import LimitPart, OthersPart
from iobench.results.warnings import RunWarning, warnings_of

STEADY = [1000, 1010, 990, 1005, 995]
DATA = SAMPLES * MIB


@pytest.fixture(autouse=True)
def rounds_as_long_as_in_a_run(monkeypatch):
    monkeypatch.setattr(thresholds, "ROUND_S", 0.2)


def kinds(records):
    return [warning.kind for warning in warnings_of(records)]


def changed(records, part, **changes):
    """The records with some fields of a part of each changed."""
    return [
        dataclasses.replace(record, **{part: dataclasses.replace(getattr(record, part), **changes)})
        for record in records
    ]


def cold(records, **state):
    return changed(records, "cache", mode="cold", method="drop_caches", residency=0.0, **state)


def with_snapshots(records, snapshots):
    return [dataclasses.replace(record, snapshots=snapshots) for record in records]


def with_limit(records, limit):
    return [dataclasses.replace(record, limit=limit) for record in records]


def with_looks(mib_per_s):
    """Rounds of a run during which the machine gave so much."""
    return [
        dataclasses.replace(record, limit=dataclasses.replace(record.limit, now_bytes_per_s=now * MIB))
        for record, now in zip(rounds_of(STEADY), mib_per_s, strict=True)
    ]


def with_paces(paces):
    """Rounds beside which processors ran so fast."""
    return [
        dataclasses.replace(record, processor=dataclasses.replace(record.processor, pace_per_s=pace))
        for record, pace in zip(rounds_of(STEADY), paces, strict=True)
    ]


def with_others(shares, figure="processors"):
    """Rounds during which others did so much."""
    return [
        dataclasses.replace(record, others=OthersPart(**{figure: share}))
        for record, share in zip(rounds_of(STEADY), shares, strict=True)
    ]


@pytest.mark.parametrize("records", [rounds_of(STEADY), cold(rounds_of(STEADY)), rounds_of(STEADY * 20), []])
def test_steady_rounds_leave_no_warning(records):
    assert kinds(records) == []


BACKED = {"prefault_bytes_per_s": 0.4e9}
LIMIT = LimitPart(name="page cache", bytes_per_s=500.0 * MIB)
UP = [700, 800, 900, 1000, 1100, 1200]


@pytest.mark.parametrize(
    ("kind", "records"),
    [
        ("rounds", rounds_of(STEADY[:4])),
        ("rounds", rounds_of(STEADY[:1])),
        ("short", changed(rounds_of(STEADY), "timing", epochs_s=0.15)),
        ("spread", rounds_of([1000, 1300, 700, 1200, 850])),
        ("drift", rounds_of(UP)),
        ("drift", rounds_of(UP[::-1])),
        ("drift", cold(rounds_of(UP))),
        ("throttled", cold(rounds_of(UP[::-1]))),
        ("first round", rounds_of([500, *STEADY])),
        ("first round", rounds_of([2000, *STEADY])),
        ("below", cold(rounds_of(STEADY), below_s=[2e-4, 1e-4])),
        ("backed", cold(rounds_of(STEADY), **BACKED)),
        (
            "eviction",
            changed(cold(rounds_of(STEADY)), "cache", method="drop_caches on a, posix_fadvise on b"),
        ),
        ("residency", changed(rounds_of(STEADY), "cache", residency=0.8)),
        ("unverified", changed(rounds_of(STEADY), "cache", residency=None)),
        ("opening", cold(changed(rounds_of(STEADY), "disk", opening_bytes=DATA // 2))),
        ("reclaimed", changed(rounds_of(STEADY), "disk", read_bytes=DATA // 2, device_read_bytes=DATA // 2)),
        ("steal", changed(rounds_of(STEADY), "processor", steal_s=0.05)),
        ("neighbours", changed(rounds_of(STEADY), "disk", device_read_bytes=DATA // 2)),
        ("limit", with_limit(rounds_of(STEADY), LIMIT)),
        ("limits", with_looks([10_000, 9000, 3000, 2900, 9500])),
        ("other work", with_others([0.0, 0.0, 0.0, 0.5, 0.5])),
        ("processors", with_paces([3300, 3200, 1900, 1850, 3350])),
        ("memory", with_others([0.5] * 5, "memory_stalled")),
        ("profile", changed(rounds_of(STEADY), "timing", spans_s=0.05)),
        ("device throttled", with_snapshots(rounds_of(STEADY), [{"gpu_throttled": ["power cap"]}])),
    ],
)
def test_each_reason_to_warning_is_said_alone_and_tells_what_helps(kind, records):
    assert kinds(records) in ([kind], ["spread", kind])  # what drifts differs as well
    said = warnings_of(records)[-1].sentence
    assert "\n" not in said
    assert any(mark in said for mark in (";", ":")), "what happened, and then what helps"


@pytest.mark.parametrize(
    "records",
    [
        cold(rounds_of(STEADY), below_s=[1e-4, 1e-4]),
        cold(rounds_of(STEADY), below_s=None),
        cold(changed(rounds_of(STEADY), "disk", opening_bytes=DATA // 10)),
        changed(rounds_of(STEADY), "disk", opening_bytes=DATA // 2),  # a warm one, whatever it was for
        cold(rounds_of(STEADY), prefault_bytes_per_s=9e9),
        changed(changed(rounds_of(STEADY), "processor", steal_s=None), "disk", read_bytes=None),
        cold(changed(rounds_of(STEADY), "disk", read_bytes=DATA, device_read_bytes=int(1.01 * DATA))),
        with_limit(rounds_of(STEADY), None),
        with_looks([10_000, 9900, 9000, 9500, 9700]),
        with_others([0.05] * 5),
        with_paces([3300, 3200, 3350, 3310, 3250]),
        with_paces([None, None, 3350, 100, None]),
        with_others([0.0] * 5, "cpu_stalled"),
        with_others([None] * 5),
        with_snapshots(rounds_of(STEADY), [{"gpu_throttled": None}, {"gpu_throttled": []}, {}]),
    ],
)
def test_what_is_in_order_or_unknown_is_not_warned_of(records):
    assert kinds(records) == []


def test_warnings_about_several_cases_are_one_that_names_some_of_them():
    records = [
        record
        for variant in ("npy", "hdf5", "lmdb", "memmap")
        for record in changed(rounds_of(STEADY, variant=variant), "timing", epochs_s=0.15)
    ]
    (found,) = warnings_of(records)
    assert len(found.cases) == 4
    assert found.sentence.startswith(
        "npy · native; hdf5 · native; lmdb · native and 1 more: rounds as short as 150 ms"
    )


def test_a_drift_of_the_machine_shows_through_cases_that_scatter():
    fast = rounds_of([1000, 950, 900, 850, 800, 760, 710])
    slow = rounds_of([103, 94, 91, 84, 81, 75, 72], variant="lmdb")
    assert next(warning for warning in warnings_of(fast + slow) if warning.kind == "drift").cases == []


def test_a_warning_about_all_names_nobody():
    assert RunWarning("k", "said").sentence == "said"


def test_each_state_of_the_cache_has_a_course_of_its_own():
    falling = [1200, 1100, 1000, 900, 800, 700]
    frozen = [dataclasses.replace(r, case={**r.case, "cache": "cold"}) for r in cold(rounds_of(falling))]
    found = {warning.kind: warning.cases for warning in warnings_of([*frozen, *rounds_of(falling[::-1])])}
    assert found["throttled"] == ["npy · native, cold cache"] or found["drift"]


def test_rounds_of_several_versions_are_warned_of():
    newer = [
        dataclasses.replace(
            r, round=r.round + 5, machine=dataclasses.replace(r.machine, versions={"torch": "9"})
        )
        for r in rounds_of(STEADY)
    ]
    (said,) = [w for w in warnings_of([*rounds_of(STEADY), *newer]) if w.kind == "versions"]
    assert "different versions of" in said.sentence
    assert "torch" in said.sentence
