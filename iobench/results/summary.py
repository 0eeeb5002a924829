"""Records → one summary per case, and the sentence that answers the question."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from iobench.loading.stages import STAGES
from iobench.results import stats
from iobench.results.record import Record
from iobench.results.stats import Estimate, Verdict
from iobench.results.warnings import RunWarning, warnings


@dataclass(frozen=True)
class CaseSummary:
    """Medians over a case's rounds; the two rates with their 95 % intervals."""

    label: str
    case: dict[str, Any]
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
    stages: dict[str, float] | None  # median seconds of each, see iobench.stages
    beside_s: float | None  # that threads read beside, all together
    spans_share: float | None  # of the epoch, that telling the stages apart cost


@dataclass(frozen=True)
class Summary:
    """All cases, fastest first, and the verdict over them; None without records."""

    cases: list[CaseSummary]
    verdict: Verdict | None
    warnings: list[RunWarning]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        verdict = asdict(self.verdict) if self.verdict else None
        warnings = [{**asdict(warning), "sentence": warning.sentence} for warning in self.warnings]
        return {"cases": [asdict(case) for case in self.cases], "verdict": verdict, "warnings": warnings}


def summarise(records: Sequence[Record], smallest: float = stats.WORTH_NAMING) -> Summary:
    """One summary per case, fastest first, which is fastest, and what speaks against all that.

    Differences below `smallest` (a fraction) are not called any.
    """
    by_case: dict[str, list[Record]] = {}
    for record in records:
        by_case.setdefault(record.case["label"], []).append(record)
    cases = sorted(map(_case, by_case.values()), key=lambda case: case.samples_per_s.median, reverse=True)
    rates = {label: {(r.run, r.round): r.samples_per_s for r in rounds} for label, rounds in by_case.items()}
    return Summary(cases, stats.verdict(rates, smallest) if rates else None, warnings(records))


def sentence(verdict: Verdict) -> str:
    """The verdict in words."""
    if verdict.ratio is None:
        return f"{verdict.fastest} is the only case: there is nothing to compare it with."
    figures = ratio_text(verdict.ratio, verdict.correction)
    if verdict.outcome == "faster":
        return f"Fastest: {verdict.fastest}, {figures} as fast as {verdict.runner_up}."
    more = len(verdict.rivals) - 1
    named = f"{verdict.fastest} and {verdict.runner_up}" + (f" (and {more} more)" if more > 0 else "")
    if verdict.outcome == "equivalent":
        return f"Equally fast within {verdict.smallest:.0%}: {named}, {figures}."
    advice = "more --rounds or a larger dataset may decide it"
    if verdict.ratio.low is None:
        advice = f"give --rounds {stats.ENOUGH} or more"
    return f"Inconclusive between {named}: {figures}; {advice}."


def ratio_text(ratio: Estimate, correction: str | None = None) -> str:
    """A ratio with its interval, and what was done about many comparisons."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.median:.2f} × (too few rounds for an interval)"
    corrected = f"; {correction}" if correction else ""
    return f"{ratio.median:.2f} × (95 % interval {ratio.low:.2f} to {ratio.high:.2f}{corrected})"


def _case(rounds: Sequence[Record]) -> CaseSummary:
    last = rounds[-1]

    def median(name: str) -> float:
        return float(statistics.median(getattr(record, name) for record in rounds))

    limit = max((r.limit for r in rounds if r.limit), key=lambda found: found["bytes_per_s"], default=None)
    disk_bytes = None if last.disk_bytes is None else median("disk_bytes")
    return CaseSummary(
        label=last.case["label"],
        case=last.case,
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
        **_profile([r for r in rounds if r.stages]),
    )


def _profile(rounds: Sequence[Record]) -> dict[str, Any]:
    if not rounds:
        return {"stages": None, "beside_s": None, "spans_share": None}
    return {
        "stages": {
            stage: statistics.median((r.stages or {}).get(stage, 0.0) for r in rounds) for stage in STAGES
        },
        "beside_s": statistics.median(r.beside_s or 0.0 for r in rounds),
        "spans_share": statistics.median((r.spans_s or 0.0) / r.epoch_s for r in rounds),
    }


def _largest(values: Sequence[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _extreme_residency(rounds: Sequence[Record]) -> float | None:
    values: list[float | None] = [r.cache["residency"] for r in rounds]
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return min(known) if rounds[0].cache["mode"] == "warm" else max(known)
