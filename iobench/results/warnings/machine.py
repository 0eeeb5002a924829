"""What the machine did meanwhile: other work, its own limits and pace, its device and its software."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from iobench.base.thresholds import STEAL
from iobench.base.units import rate_text
from iobench.results import limits, others, stats
from iobench.results.record import Record
from iobench.results.warnings._warning import MORE_ROUNDS, Cases, Check, RunWarning

NEIGHBOURS = 0.05  # of the data, read from the same disk by others
REACH_OF_LIMITS = 0.3  # of the median look at one, from the first quartile to the third
SHARED = 0.8  # of what hosts give by themselves, added up: less of it together, and they share something
REACH_OF_PACE = 0.1  # of the median pace of processors, from the first quartile to the third


def _steal(groups: Cases) -> RunWarning | None:
    parts = {
        key: statistics.median(
            (r.processor.steal_s or 0) / r.timing.epochs_s / (r.machine.cores or 1) for r in rounds
        )
        for key, rounds in groups.items()
    }
    robbed = [key for key, part in parts.items() if part > STEAL]
    if not robbed:
        return None
    took = f"the hypervisor gave {max(parts.values()):.0%} of the processors' time to others"
    return RunWarning("steal", f"{took}; run again at another hour, or {MORE_ROUNDS}", robbed)


def _neighbours(groups: Cases) -> RunWarning | None:
    found = {
        key: others.often(list(map(_read_by_others, rounds)), NEIGHBOURS) for key, rounds in groups.items()
    }
    busy = {key: seen for key, seen in found.items() if seen is not None}
    if not busy:
        return None
    amount = f"other processes read as much as {max(most for _, most in busy.values()):.0%} of the data"
    return RunWarning(
        "neighbours",
        f"{amount} from the same disk meanwhile; see which with 'pidstat -d 1', and stop them",
        list(busy),
    )


def _sign(sign: others.Sign) -> Check:
    """A sign of other work in enough rounds of some case to move its median."""

    def check(groups: Cases) -> RunWarning | None:
        found = {key: sign.often([r.others for r in rounds]) for key, rounds in groups.items()}
        busy = {key: seen for key, seen in found.items() if seen is not None}
        if not busy:
            return None
        worst = max(busy, key=lambda key: busy[key][1])
        return RunWarning(sign.kind, sign.said(busy[worst], len(groups[worst])), list(busy))

    return check


def _shared_between_hosts(groups: Cases) -> RunWarning | None:
    """Limits of several hosts that are less together than what each gave by itself adds up to."""
    parts = {
        (limit.name, limit.bytes_per_s / limit.alone_bytes_per_s)
        for rounds in groups.values()
        for limit in (record.limit for record in rounds)
        if limit is not None and limit.alone_bytes_per_s
    }
    name, part = min(parts, key=lambda one: one[1], default=("", 1.0))
    if part > SHARED:
        return None
    return RunWarning(
        "shared",
        f"the hosts share the {name}: together they got {part:.0%} of what each gets by itself added up; "
        "more hosts will not read faster from it",
    )


def _unsteady_limits(groups: Cases) -> RunWarning | None:
    """Limits of the machine itself that changed while a run went on."""
    by_run: dict[str, list[Record]] = {}
    for record in (record for rounds in groups.values() for record in rounds):
        by_run.setdefault(record.run, []).append(record)
    seen = [(name, looks) for run in by_run.values() for name, looks in limits.looks(run).items()]
    reach, name, looks = max(((_reach(looks), name, looks) for name, looks in seen), default=(0.0, "", []))
    if reach < REACH_OF_LIMITS:
        return None
    ends = f"{rate_text(min(looks))}B/s and {rate_text(max(looks))}B/s"
    return RunWarning(
        "limits",
        f"what the machine itself can do changed while the run went on: the {name} gave between {ends}; "
        "stop other work, and measure again",
    )


def _unsteady_pace(groups: Cases) -> RunWarning | None:
    """Processors that ran now faster, now slower, which neither steal nor other processes tell."""
    every = (record.processor.pace_per_s for rounds in groups.values() for record in rounds)
    paces = [pace for pace in every if pace]
    if len(paces) < stats.ENOUGH or _reach(paces) < REACH_OF_PACE:
        return None
    slow, *_, fast = statistics.quantiles(paces, n=10, method="inclusive")
    return RunWarning(
        "processors",
        f"the processors ran unevenly: plain Python took {fast / slow:.1f} times as long beside some rounds "
        "as beside others, because of heat or of neighbours behind a hypervisor; measure again at another "
        f"hour, or {MORE_ROUNDS}",
    )


def _throttled_device(groups: Cases) -> RunWarning | None:
    reasons = {
        key: {str(why) for r in rounds for s in r.snapshots or () for why in s.get("gpu_throttled") or ()}
        for key, rounds in groups.items()
    }
    slowed = [key for key, whys in reasons.items() if whys]
    if not slowed:
        return None
    named = ", ".join(sorted(set().union(*reasons.values())))
    return RunWarning(
        "device throttled",
        f"the device ran below its clocks although it had work ({named}); cool it or raise its power limit",
        slowed,
    )


def _mixed_software(groups: Cases) -> RunWarning | None:
    """Rounds of one case that other versions of something made."""
    mixed, named = [], set()
    for key, rounds in groups.items():
        software = [
            {**r.machine.versions, "kernel": r.machine.kernel, "python": r.machine.python} for r in rounds
        ]
        differing = {name for one in software for name in one if one.get(name) != software[0].get(name)}
        if differing:
            mixed.append(key)
            named |= differing
    if not mixed:
        return None
    said = f"its rounds were made with different versions of {', '.join(sorted(named))}"
    return RunWarning("versions", f"{said}; compare the runs instead ('iobench compare')", mixed)


def _reach(looks: Sequence[float]) -> float:
    """How far the middle half of some looks reaches, as a part of their median."""
    if len(looks) < 3:
        return 0.0
    low, middle, high = statistics.quantiles(looks, method="inclusive")
    return (high - low) / middle


def _read_by_others(record: Record) -> float:
    """Bytes that others read from the same disk, per logical byte."""
    if record.disk.device_read_bytes is None or record.disk.read_bytes is None:
        return 0.0
    return max(0, record.disk.device_read_bytes - record.disk.read_bytes) / record.timing.logical_bytes


CHECKS: tuple[Check, ...] = (
    _steal,
    _neighbours,
    _sign(others.PROCESSORS),
    _sign(others.MEMORY),
    _shared_between_hosts,
    _unsteady_limits,
    _unsteady_pace,
    _throttled_device,
    _mixed_software,
)
