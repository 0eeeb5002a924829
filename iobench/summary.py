"""Records → one summary per arm, and the sentence that answers the question."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from iobench import stats
from iobench.cache import WARM_LIMIT
from iobench.record import Record
from iobench.stats import Estimate, Verdict
from iobench.units import bytes_text


@dataclass(frozen=True)
class ArmSummary:
    """Medians over an arm's rounds; the two rates with their 95 % intervals."""

    label: str
    arm: dict[str, Any]
    rounds: int
    samples_per_s: Estimate
    bytes_per_s: Estimate
    open_s: float
    first_batch_s: float
    wait_p50_s: float
    wait_p99_s: float
    wait_share: float  # of the epoch, blocked in next()
    cpu_s_per_gib: float
    disk_bytes: float | None  # None, as the two below, where the kernel keeps no account
    read_amplification: float | None  # disk bytes per logical byte
    memory_bytes: int | None  # the most of all rounds
    gpu_allocated_bytes: int | None
    gpu_reserved_bytes: int | None
    residency: float | None  # the lowest before a round if warm, the highest if cold
    loss: float | None  # of the last round
    limit: str | None  # the lowest on its way, None where none was measured
    limit_bytes_per_s: float | None  # the highest found in any round
    limit_share: float | None  # the rate over that
    shuffledness: float | None  # of block order


@dataclass(frozen=True)
class Summary:
    """All arms, fastest first, and the verdict over them; None without records."""

    arms: list[ArmSummary]
    verdict: Verdict | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        verdict = asdict(self.verdict) if self.verdict else None
        return {"arms": [asdict(arm) for arm in self.arms], "verdict": verdict}


def summarise(records: Sequence[Record]) -> Summary:
    """One summary per arm, fastest first, and which is fastest."""
    by_arm: dict[str, list[Record]] = {}
    for record in records:
        by_arm.setdefault(record.arm["label"], []).append(record)
    arms = sorted(map(_arm, by_arm.values()), key=lambda arm: arm.samples_per_s.median, reverse=True)
    rates = {label: [r.samples_per_s for r in rounds] for label, rounds in by_arm.items()}
    return Summary(arms, stats.verdict(rates) if rates else None)


def sentence(verdict: Verdict) -> str:
    """The verdict in words."""
    if verdict.ratio is None:
        return f"{verdict.fastest} is the only arm: there is nothing to compare it with."
    ratio = verdict.ratio
    interval = "too few rounds for an interval"
    if ratio.low is not None:
        interval = f"95 % interval {ratio.low:.2f} to {ratio.high:.2f}"
    figures = f"{ratio.median:.2f} × ({interval})"
    if verdict.outcome == "faster":
        return f"Fastest: {verdict.fastest}, {figures} as fast as {verdict.runner_up}."
    if verdict.outcome == "equivalent":
        return f"Equally fast within 5 %: {verdict.fastest} and {verdict.runner_up}, {figures}."
    advice = "more --rounds or a larger dataset may decide it"
    if ratio.low is None:
        advice = f"give --rounds {stats.FEWEST} or more"
    return f"Inconclusive between {verdict.fastest} and {verdict.runner_up}: {figures}; {advice}."


def warnings(records: Sequence[Record]) -> list[str]:
    """What a reader of the figures has to know: arms that were not as warm as they should be."""
    found = []
    for arm in summarise(records).arms:
        mode = next(r.cache["mode"] for r in records if r.arm["label"] == arm.label)
        if mode == "warm" and arm.residency is None:
            found.append(f"{arm.label}: nobody can tell if its files were in memory; run as their owner.")
        elif mode == "warm" and arm.residency is not None and arm.residency < WARM_LIMIT:
            found.append(
                f"{arm.label}: only {arm.residency:.0%} of its files was in memory before a round, so it was "
                "not warm; free memory or prepare less data."
            )
        elif mode == "warm" and (arm.read_amplification or 0) > 1 - WARM_LIMIT:
            found.append(
                f"{arm.label}: a round read {bytes_text(arm.disk_bytes or 0)} from disk although its files "
                "were in memory before it; something takes pages out of memory."
            )
        if (arm.limit_share or 0) > 1:
            found.append(
                f"{arm.label}: faster than the limit measured for it ({arm.limit}), also when that was "
                "measured again, so the true limit is higher; give more --rounds."
            )
    return found


def _arm(rounds: Sequence[Record]) -> ArmSummary:
    last = rounds[-1]

    def median(name: str) -> float:
        return float(statistics.median(getattr(record, name) for record in rounds))

    limit = max((r.limit for r in rounds if r.limit), key=lambda found: found["bytes_per_s"], default=None)
    disk_bytes = None if last.disk_bytes is None else median("disk_bytes")
    return ArmSummary(
        label=last.arm["label"],
        arm=last.arm,
        rounds=len(rounds),
        samples_per_s=stats.estimate([r.samples_per_s for r in rounds]),
        bytes_per_s=stats.estimate([r.bytes_per_s for r in rounds]),
        open_s=median("open_s"),
        first_batch_s=median("first_batch_s"),
        wait_p50_s=median("wait_p50_s"),
        wait_p99_s=median("wait_p99_s"),
        wait_share=statistics.median(r.wait_s / r.epoch_s for r in rounds),
        cpu_s_per_gib=median("cpu_s") / (last.logical_bytes / 2**30),
        disk_bytes=disk_bytes,
        read_amplification=None if disk_bytes is None else disk_bytes / last.logical_bytes,
        memory_bytes=_largest([r.memory_bytes for r in rounds]),
        gpu_allocated_bytes=_largest([r.gpu_allocated_bytes for r in rounds]),
        gpu_reserved_bytes=_largest([r.gpu_reserved_bytes for r in rounds]),
        residency=_extreme_residency(rounds),
        loss=last.loss,
        limit=limit["name"] if limit else None,
        limit_bytes_per_s=limit["bytes_per_s"] if limit else None,
        limit_share=median("bytes_per_s") / limit["bytes_per_s"] if limit else None,
        shuffledness=last.shuffledness,
    )


def _largest(values: Sequence[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _extreme_residency(rounds: Sequence[Record]) -> float | None:
    values: list[float | None] = [r.cache["residency"] for r in rounds]
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return min(known) if rounds[0].cache["mode"] == "warm" else max(known)
