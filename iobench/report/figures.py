"""Records → rows of plain values, one list for each chart and its table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from iobench.loading.stages import STAGES
from iobench.report.context import Context, varied
from iobench.results.record import Record
from iobench.results.stats import Estimate
from iobench.results.summary import CaseSummary

Row = dict[str, Any]
MIB = 2**20


def cases(context: Context) -> list[Row]:
    """Each case's speed with its interval, its limit, and whether it can be told from the fastest."""
    verdict = context.summary.verdict
    rows = []
    for case in context.summary.cases:
        rank = "fastest" if verdict and case.label == verdict.fastest else "slower"
        rank = "not told apart from it" if verdict and case.label in verdict.rivals else rank
        rows.append(
            {
                "case": case.label,
                **_interval("MiB/s", case.bytes_per_s, MIB),
                **_interval("samples/s", case.samples_per_s, 1),
                "limit": case.limit,
                "limit MiB/s": case.limit_bytes_per_s and case.limit_bytes_per_s / MIB,
                "reached": case.limit_share,
                "rounds": case.rounds,
                "standing": rank,
            }
        )
    return rows


def rounds(context: Context) -> list[Row]:
    """Every round, and how it compares with its case's median."""
    middle = {case.label: case.bytes_per_s.median for case in context.summary.cases}
    return [
        {
            "case": record.case["label"],
            "round": record.round,
            "MiB/s": record.bytes_per_s / MIB,
            "of the median": record.bytes_per_s / middle[record.case["label"]],
            "seconds": record.epoch_s,
            "when": record.time,
        }
        for record in context.records
    ]


def cold_and_warm(contexts: Sequence[Context]) -> list[Row]:
    """The speed of cases that were measured both ways, all else being equal; a row for each way."""
    groups: dict[object, dict[str, Row]] = {}
    for context in contexts:
        rest = tuple((name, value) for name, value in context.facets.items() if name != "cache")
        for case in context.summary.cases:
            mode = context.first.cache["mode"]
            row = {"case": case.label, "cache": mode, **_interval("MiB/s", case.bytes_per_s, MIB)}
            groups.setdefault((rest, case.label), {})[mode] = row
    return [row for group in groups.values() if len(group) > 1 for _, row in sorted(group.items())]


def against(records: Sequence[Record], what: str) -> list[Row]:
    """The speed of whatever was measured at several values of one thing, all else being equal."""
    series: dict[object, dict[Any, list[Record]]] = {}
    for record in records:
        values = dict(varied(record))
        value = values.pop(what)
        if what == "dataset bytes":
            values.pop("sample bytes")
        about = (record.case["variant"], record.case["loader"], record.case.get("fetch"))
        key = (about, record.cache["mode"], record.case.get("order"), record.device, tuple(values.values()))
        series.setdefault(key, {}).setdefault(value, []).append(record)
    several = {key: points for key, points in series.items() if len(points) > 1}
    names = _series_names(list(several))
    return [
        {
            "series": names[key],
            what: value,
            "MiB/s": statistics.median(r.bytes_per_s for r in points[value]) / MIB,
            "samples/s": statistics.median(r.samples_per_s for r in points[value]),
            "rounds": len(points[value]),
        }
        for key, points in several.items()
        for value in sorted(points, key=lambda v: (v is None, v))
    ]


def _series_names(keys: list[Any]) -> dict[Any, str]:
    """What sets each series apart, in words."""
    constant = [len({key[place] for key in keys}) == 1 for place in range(1, 4)]
    names = {}
    for key in keys:
        variant, loader, fetch = key[0]
        kind = f"{variant} · {loader}" + (f", {fetch} fetch" if loader == "dataloader" else "")
        rest = [str(key[place]) for place in range(1, 4) if not constant[place - 1]]
        names[key] = ", ".join([kind, *rest])
    return names


def stages(context: Context) -> list[Row]:
    """Median seconds and share of each stage of each profiled case."""
    rows = []
    for case in context.summary.cases:
        whole = sum((case.stages or {}).values())
        for number, stage in enumerate(STAGES):
            if case.stages and (seconds := case.stages[stage]):
                name = stage.replace("_", " ")
                share = seconds / whole
                rows.append(
                    {"case": case.label, "stage": name, "seconds": seconds, "share": share, "place": number}
                )
    return rows


def waits(context: Context) -> list[Row]:
    """How long `next()` blocked, in milliseconds, by percentile."""
    return [
        {"case": case.label, "what": what, "ms": seconds * 1000}
        for case in context.summary.cases
        for what, seconds in (
            ("p50", case.wait_p50_s),
            ("p99", case.wait_p99_s),
            ("first batch", case.first_batch_s),
        )
        if seconds > 0
    ]


def costs(context: Context) -> list[Row]:
    """Processor seconds per GiB and peak memory of each case."""
    return [
        {
            "case": case.label,
            "CPU s/GiB": case.cpu_s_per_gib,
            "memory MiB": case.memory_bytes and case.memory_bytes / MIB,
            "GPU MiB": case.gpu_allocated_bytes and case.gpu_allocated_bytes / MIB,
            "disk MiB": case.disk_bytes and case.disk_bytes / MIB,
            "disk/data": case.read_amplification,
        }
        for case in context.summary.cases
    ]


def sizes(context: Context) -> list[Row]:
    """Each variant's stored size beside the speed of its fastest case."""
    best = _best(context, context.summary.cases)
    return [
        {
            "format": variant,
            "stored MiB": record.dataset["stored_bytes"] / MIB,
            "MiB/s": case.bytes_per_s.median / MIB,
            "case": case.label,
        }
        for variant, (case, record) in best.items()
        if record.dataset.get("stored_bytes")
    ]


def break_even(context: Context) -> list[Row]:
    """After how many epochs writing a format has paid for itself, when the data is in another one.

    Writing time over the time that an epoch, opening included, of the fastest case of the one saves over
    that of the other.
    """
    rows: list[Row] = []
    by_epoch = sorted(context.summary.cases, key=lambda case: _epoch_s(context, case.label))
    best = _best(context, by_epoch)
    for have in best:
        for want, (_, fast) in best.items():
            write_s = fast.dataset.get("write_s")
            if have == want or write_s is None:
                continue
            epoch = {which: _epoch_s(context, best[which][0].label) for which in (have, want)}
            saved = epoch[have] - epoch[want]
            rows.append(
                {
                    "from": have,
                    "to": want,
                    "write s": write_s,
                    "saved s": saved,
                    "epochs": write_s / saved if saved > 0 else None,
                }
            )
    return rows


def system(records: Sequence[Record]) -> list[Row]:
    """What the monitor saw, second by second, and during which case's round."""
    snapshots = [(look, record) for record in records for look in record.system or []]
    if not snapshots:
        return []
    began = min(look["time"] for look, _ in snapshots)
    rows = []
    for look, record in sorted(snapshots, key=lambda pair: float(pair[0]["time"])):
        inside = 0 <= _ended(record) - look["time"] <= record.epoch_s
        rows.append(
            {
                "seconds": look["time"] - began,
                "case": record.case["label"] if inside else "between rounds",
                "processors": statistics.fmean(look["cores"]),
                "busiest core": max(look["cores"]),
                "waiting for disk": look["iowait"],
                "disk MiB/s": _scaled(look["disk_bytes_per_s"]),
                "disk queue": look["disk_queue"],
                "GPU": look["gpu"],
                "GPU memory MiB": _scaled(look["gpu_memory_bytes"]),
            }
        )
    return rows


def _ended(record: Record) -> float:
    return datetime.fromisoformat(record.time).timestamp()


def _scaled(value: float | None) -> float | None:
    return None if value is None else value / MIB


def _best(context: Context, cases: Sequence[CaseSummary]) -> dict[str, Any]:
    """By variant, its first case and one of that case's records."""
    best: dict[str, Any] = {}
    for case in cases:
        record = next(r for r in context.records if r.case["label"] == case.label)
        best.setdefault(case.case["variant"], (case, record))
    return best


def _epoch_s(context: Context, label: str) -> float:
    return statistics.median(r.open_s + r.epoch_s for r in context.records if r.case["label"] == label)


def _interval(name: str, estimate: Estimate, unit: float) -> Row:
    low, high = ((None if end is None else end / unit) for end in (estimate.low, estimate.high))
    return {name: estimate.median / unit, f"{name} low": low, f"{name} high": high}
