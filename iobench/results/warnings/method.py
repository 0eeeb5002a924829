"""Warnings about the method: another path or order than requested, or a figure that cannot be right."""

from __future__ import annotations

import statistics

from iobench.results.run_warning import LONGER, MORE_ROUNDS, Cases, Check, RunWarning

MIN_SHUFFLE_QUALITY = 0.5
MAX_PROFILING_SHARE = 0.01  # of an epoch


def _above_limit(groups: Cases) -> RunWarning | None:
    """Warn if a case was faster than its measured limit, so that the limit was measured too low."""
    ratios = {
        key: statistics.median(r.bytes_per_s for r in rounds) / max(limits)
        for key, rounds in groups.items()
        if (limits := [r.limit.bytes_per_s for r in rounds if r.limit])
    }
    above = {key: ratio for key, ratio in ratios.items() if ratio > 1}
    if not above:
        return None
    return RunWarning(
        "above-limit",
        f"faster than its measured limit ({max(above.values()):.2f} ×), even after measuring it again",
        list(above),
        (MORE_ROUNDS,),
        {"ratio": max(above.values())},
    )


def _profiling_cost(groups: Cases) -> RunWarning | None:
    """Warn if `--profile` itself took more than 1 % of an epoch."""
    costs = {
        key: statistics.median((r.timing.profiling_s or 0) / r.timing.epochs_s for r in rounds)
        for key, rounds in groups.items()
    }
    costly = [key for key, cost in costs.items() if cost > MAX_PROFILING_SHARE]
    if not costly:
        return None
    return RunWarning(
        "profiling-cost",
        f"--profile itself took {max(costs.values()):.1%} of the epoch",
        costly,
        ("give a larger --batch-size",),
        {"share": max(costs.values())},
    )


def _sample_coverage(groups: Cases) -> RunWarning | None:
    """Warn if a loader dropped or repeated samples in an epoch, counted by the content check."""
    checks = {key: rounds[0].content_check for key, rounds in groups.items()}
    lossy = {key: check for key, check in checks.items() if check and (check.dropped or check.repeated)}
    if not lossy:
        return None
    samples = max(groups[key][0].dataset.samples or 0 for key in lossy)
    counts = {name: max(getattr(check, name) for check in lossy.values()) for name in ("dropped", "repeated")}
    counted = " and ".join(f"{name} {count:,}" for name, count in counts.items() if count)
    return RunWarning(
        "sample-coverage",
        f"{counted} of {samples:,} samples in an epoch: two epochs need not train on the same ones",
        list(lossy),
        values={**counts, "samples": samples},
    )


def _loader_order(groups: Cases) -> RunWarning | None:
    """Warn if a loader's own order is not the stored one, or shuffles only a little."""
    checks = {key: rounds[0].content_check for key, rounds in groups.items()}
    unordered = [key for key, check in checks.items() if check and check.in_order is False]
    qualities = {
        key: check.shuffle_quality
        for key, check in checks.items()
        if check and check.shuffle_quality is not None and check.shuffle_quality < MIN_SHUFFLE_QUALITY
    }
    if not unordered and not qualities:
        return None
    parts = ["samples did not arrive in stored order"] if unordered else []
    if qualities:
        parts.append(f"its shuffle quality is only {min(qualities.values()):.0%} of a full shuffle")
    return RunWarning(
        "loader-order",
        "; ".join(parts),
        [*unordered, *qualities],
        values={"shuffle_quality": min(qualities.values())} if qualities else {},
    )


def _short_window(groups: Cases) -> RunWarning | None:
    """Warn if --max-time ended a round before its window was long enough."""
    short = [
        key for key, rounds in groups.items() if any((p := r.timing.partial) and p.short for r in rounds)
    ]
    message = "--max-time ended a round early: its figure includes more of the loader's start"
    return RunWarning("short-window", message, short, (LONGER,)) if short else None


def _gds_inactive(groups: Cases) -> RunWarning | None:
    """Warn if KvikIO read through the host, because GPUDirect Storage was not active."""
    modes = {key: (rounds[0].case.get("options") or {}).get("mode") for key, rounds in groups.items()}
    inactive = [
        key for key, rounds in groups.items() if rounds[0].case["loader"] == "gds" and modes[key] == "posix"
    ]
    message = "GPUDirect Storage was not active: KvikIO read with POSIX calls, through the host"
    return RunWarning("gds-inactive", message, inactive) if inactive else None


CHECKS: tuple[Check, ...] = (
    _above_limit,
    _profiling_cost,
    _sample_coverage,
    _loader_order,
    _short_window,
    _gds_inactive,
)
