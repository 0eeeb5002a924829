"""Diagnosis: from the measurements of a loop to a verdict, advice and tables."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from iobench.advise import answer
from iobench.advise.answer import Answer
from iobench.advise.checks.call_costs import Profile
from iobench.advise.checks.evidence import Advice, Evidence
from iobench.advise.checks.loop_stats import LoopStats
from iobench.advise.checks.sample_checks import where_the_time_goes
from iobench.advise.checks.setting_checks import MORE_WORKERS
from iobench.advise.checks.table import CHECKS
from iobench.advise.settings.candidate import (
    UNSENDABLE,
    Candidate,
    candidates_table,
    compare_to_baseline,
    unsuccessful,
)
from iobench.base.finding import Finding
from iobench.base.thresholds import ROUND_S
from iobench.base.units import bytes_text, counted, rate_text, seconds_text, three_digits
from iobench.results import history
from iobench.results.display import Block, Columns
from iobench.results.metrics import mib_text
from iobench.results.record_file import plain
from iobench.results.run_warning import RunWarning, Values
from iobench.results.stats import Estimate

MEASURABLE_S = 0.05  # shorter loops have no usable processor time: the system counts it in 10 ms


def loop_table(stats: LoopStats, alone: bool = False) -> Columns:
    """Return the names and figures of a loop; `alone` where nothing was done with the batches."""
    names, figures = zip(*_rows(stats, alone), strict=True)
    return [("", list(names)), ("", list(figures))]


def loops_table(loops: Sequence[LoopStats]) -> Columns:
    """Return the main figures of several loops: the first, and the last eleven."""
    shown = sorted({0, *range(len(loops))[-MOST_LOOPS + 1 :]})
    unit = "samples/s" if any(loop.samples for loop in loops) else "batches/s"
    figures: dict[str, list[str | None]] = {
        "loop": [f"{number + 1}" for number in shown],
        "batches": [f"{loops[number].batches:,}" for number in shown],
        unit: [rate_text(loops[number].rate) for number in shown],
        "MiB/s": [mib_text(loops[number].bytes_per_s) for number in shown],
        "first batch": [seconds_text(loops[number].first_wait_s) for number in shown],
        "waiting": [f"{loops[number].wait_share:.0%}" for number in shown],
        "wait p99": [seconds_text(loops[number].wait_p99_s) for number in shown],
    }
    if any(loop.rank_waits for loop in loops):
        slowest = [loops[number].slowest for number in shown]
        figures["slowest rank"] = [
            None if rank is None else f"{rank}: {share:.0%}" for rank, share in slowest
        ]
    return list(figures.items())


def all_loops(loops: Sequence[LoopStats]) -> Iterator[Block]:
    """Yield a verdict on all loops of a training together, and a table of them."""
    verdict = verdict_on_all(loops)
    yield Block("answer", [verdict.sentence, f"Next: {_next_step(verdict, [], '', 0.0)}"])
    yield Block("table", columns=loops_table(loops))


def verdict_on_all(loops: Sequence[LoopStats]) -> Finding:
    """Return the verdict on several loops; each counts by its time after the first batch, a short one not."""
    count, judged = counted(len(loops), "loop"), [loop for loop in loops if not _is_short(loop)]
    times = [loop.wait_s + loop.step_s for loop in judged]
    if not sum(times):
        return Finding("too-short", f"Too short for a verdict: {count}")
    share = sum(loop.wait_s for loop in judged) / sum(times)
    slowest = sum(time_s * loop.slowest[1] for time_s, loop in zip(times, judged, strict=True)) / sum(times)
    kind, statement = _judged(slowest)
    waits = f"in {count} {_waiter(judged[-1])} waited {share:.0%} of the time"
    if any(loop.rank_waits for loop in judged):
        waits += f", the slowest rank {slowest:.0%}"
    first = seconds_text(sum(loop.first_wait_s for loop in loops))
    values: Values = {"wait_share": share, "slowest_wait_share": slowest}
    return Finding(kind, f"{statement}: {waits}, and {first} for first batches", values=values)


def _rows(stats: LoopStats, alone: bool) -> Iterator[tuple[str, str]]:
    loader = stats.loader
    text = f"{loader.class_name}{f' over {loader.dataset}' if loader.dataset else ''}"
    if loader.workers is not None:
        text += f", {counted(loader.workers, 'worker')}, batch size {loader.batch_size}"
    yield "loader", text
    if not stats.batches:
        yield "batches", f"none in {seconds_text(stats.elapsed_s)}"
        return
    count = f"{stats.batches:,} of {bytes_text(stats.bytes / stats.batches)}, {stats.samples:,} samples"
    yield "batches", f"{count} in {seconds_text(stats.elapsed_s)}"
    yield "first batch", seconds_text(stats.first_wait_s)
    if stats.batches > 1:  # the figures of those after the first
        speed = f"{rate_text(stats.rate)} {'samples' if stats.samples else 'batches'}/s"
        yield "after that", f"{speed}, {bytes_text(stats.bytes_per_s)}/s"
        if not alone:
            waited = f"{seconds_text(stats.wait_s)}, {stats.wait_share:.0%}"
            yield "waiting", f"{waited}; the step {seconds_text(stats.step_s)}"
        waits = (stats.wait_p50_s, stats.wait_p99_s, stats.wait_max_s)
        yield "wait p50, p99, max", ", ".join(map(seconds_text, waits))
    if stats.elapsed_s >= MEASURABLE_S:
        used = f"{stats.cpu_s / stats.elapsed_s:.0%} of a core"
        workers = f", {counted(stats.workers, 'worker')} {stats.worker_cpu_s / stats.elapsed_s:.0%}"
        yield "CPU", used + (workers if stats.workers else "")
    if stats.iowait is not None:
        yield "I/O wait", f"{stats.iowait:.0%} of all cores"
    if stats.background.processors is not None:
        yield "background CPU", f"{stats.background.processors:.0%} of all cores"
    if stats.disk_bytes is not None:
        yield "from disk", bytes_text(stats.disk_bytes)
    if stats.gpu is not None:
        yield "GPU", f"{stats.gpu:.0%} busy, below half {stats.gpu_low or 0:.0%} of the time"
    if stats.memory_bytes is not None:
        growth = stats.memory_growth_bytes or 0
        grew = f", grew by {bytes_text(growth)}" if growth > 0 else ""
        yield "memory", f"{bytes_text(stats.memory_bytes)} of all processes{grew}"


def profile_table(profile: Profile) -> Columns:
    """Return the functions that took most of a process's time."""
    functions = profile.functions
    return [
        (f"{profile.where}, {seconds_text(profile.total_s)}", [one.name for one in functions]),
        ("own time", [f"{one.share:.0%}" for one in functions]),
        ("calls", [f"{one.calls:,}" for one in functions]),
    ]


UNSHARDED = "every-rank-reads-all"
PLACES = ("dominating-library", "own-lines")  # kinds of findings that name where the time goes
BOTTLENECK = 0.10  # of the time spent waiting: below this, loading is not the bottleneck
MOST = 0.5  # of the time, from which on it is
NOTHING_FASTER = Finding("nothing-faster", "No other setting that was tried is faster")
COMMAND = re.compile("'(iobench [^']+)'")  # in a hint
MOST_LOOPS = 12  # in a table
MIN_BATCHES, MIN_S = 3, 0.05  # shorter loops support no verdict


@dataclass(frozen=True, kw_only=True)
class Diagnosis(Answer):
    """A verdict on a loop, and advice, the largest gain first.

    Only what makes a loader deliver wrong samples precedes the verdict. The outcome is ``bottleneck``,
    ``costs-time``, ``not-bottleneck``, ``too-short``, ``loader-alone`` or ``empty``.
    """

    loop: LoopStats
    next_step: str  # what to type, or to do, after it
    bottleneck: bool | None  # loading costs at least 10 % of the time; None without a step
    alone: bool = False  # the loop did nothing with its batches
    candidates: list[Candidate] = field(default_factory=list)  # that were tried; the first is the baseline
    profiles: list[Profile] = field(default_factory=list)  # of the main process and the workers

    @property
    def verdict(self) -> Finding:
        """Verdict on the loop."""
        return next(one for one in self.findings if one.kind == self.outcome)

    @property
    def advice(self) -> list[Advice]:
        """Changes, the largest gain first."""
        return [one for one in self.findings if isinstance(one, Advice)]

    def lead(self) -> tuple[list[str], list[Finding]]:
        """Return the verdict, the cause that matters most with its remedy, and the next step."""
        shown = [one for one in self.findings if one.kind in (UNSHARDED, self.outcome) or _is_unsafe(one)]
        others = [one for one in self.findings if one not in shown]
        main = next((one for one in others if isinstance(one, Advice) or one.kind in PLACES), None)
        lines = [one.sentence for one in shown]
        if main is not None:
            others.remove(main)
            remedy = main.remedy if isinstance(main, Advice) else main.hint
            lines += [f"Cause: {main.message}", *([f"Remedy: {remedy}"] if remedy else [])]
        return [*lines, f"Next: {self.next_step}"], others

    def tables(self) -> Iterator[Columns]:
        """Yield the figures of the loop, the settings that were tried, and the profiles."""
        yield loop_table(self.loop, self.alone)
        if any(one.tried for one in self.candidates):
            yield candidates_table(self.candidates, compare_to_baseline(self.candidates))
        yield from (profile_table(one) for one in self.profiles if one.functions)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row with the figures of the loop."""
        return [history.flattened(plain(self.loop))]


def diagnose(evidence: Evidence, alone: bool = False, target: str = "", max_time_s: float = 0.0) -> Diagnosis:
    """Return the diagnosis of a loop, which did nothing with its batches if it was `alone`.

    `target` is what `iobench diagnose` was given, and `max_time_s` its time.
    """
    loop, candidates, against = evidence.loop, evidence.candidates, evidence.against
    bottleneck = None if alone or _is_short(loop) else loop.slowest[1] >= BOTTLENECK
    warnings = evidence.background_warnings
    if evidence.slowdown is not None:  # whatever its settings
        times = f"each turn took longer than the one before, {evidence.slowdown:.1f} × in total"
        why = ("look for what the loader keeps from epoch to epoch",)
        message, values = f"{times}: settings cannot be compared", Values({"ratio": evidence.slowdown})
        warnings = [*warnings, RunWarning("slowing-down", message, hints=why, values=values)]
    slow = alone or bottleneck
    checks = [one for one in CHECKS.values() if slow or one.unsafe or one.always]
    found = [one for check in checks if (one := check.advice(evidence)) is not None]
    unsendable = any(one.kind == UNSENDABLE for one in evidence.skipped)
    advice = _ranked([one for one in found if not (unsendable and one.kind == MORE_WORKERS)])
    unsafe = [*filter(None, [_unsharded(loop)]), *filter(_is_unsafe, advice)]
    advice = [one for one in advice if one not in unsafe]
    raced = candidates[0].rate if candidates else 0.0
    verdict = _verdict(loop, bottleneck, alone, advice, raced if loop.elapsed_s < ROUND_S else 0.0)
    best = [answer.headroom(Estimate(loop.headroom, None, None))] if loop.headroom is not None else []
    explained = any(CHECKS[one.kind].work or CHECKS[one.kind].explains for one in advice)
    where = list(where_the_time_goes(evidence)) if slow and not explained else []
    tried = any(one.rates for one in candidates[1:])
    nothing = []
    if tried and slow and not advice:
        others = list(against.values())
        nothing = [NOTHING_FASTER]
        if answer.is_undecided(others):  # there were too few rounds to tell
            fastest = max(against, key=lambda name: against[name].ratio.median)
            nothing = [answer.undecided("the baseline", others, {}, fastest)]
    unknown = filter(None, (one.unknown() for one in evidence.profiles))
    late = [*unknown, *evidence.skipped, *unsuccessful(candidates)]
    return Diagnosis(
        outcome=verdict.kind,
        findings=[*unsafe, verdict, *best, *advice, *nothing, *where],
        skipped=late,
        warnings=warnings,
        loop=loop,
        next_step=_next_step(verdict, [*unsafe, *advice, *nothing, *late], target, max_time_s),
        bottleneck=bottleneck,
        alone=alone,
        candidates=list(candidates),
        profiles=list(evidence.profiles),
    )


def _ranked(advice: Sequence[Advice]) -> list[Advice]:
    """Return the advice that remains: the largest measured gain first, then what takes most of the time.

    Work for each sample makes garbage itself: where it is named, only a race proves that collecting matters.
    """
    named = any(CHECKS[one.kind].work for one in advice)
    implied = [one for one in advice if one.kind == "repeated-work"]
    implied += [one for one in advice if one.kind == "garbage-collection" and not one.gain]
    left = [one for one in advice if not (named and one in implied)]
    fewer = next((one.gain for one in left if one.kind == "workers-cost" and one.gain), None)

    def expected(one: Advice) -> float:
        """Return the expected gain; that of whole batches without workers is theirs for the most part."""
        gain, drops = _expected(one), one.kind == "per-sample" and not one.values["num_workers"]
        return 0.99 * fewer if fewer and drops and fewer < gain < fewer**2 else gain

    return sorted(left, key=lambda one: (-expected(one), -float(one.values.get("share", 0.0))))


def _expected(advice: Advice) -> float:
    """Return the gain as it was measured, or seen in too few rounds, or the most possible; 0 without one."""
    values = advice.values
    return advice.gain or float(values.get("undecided", values.get("bound", 0.0)))


def _is_unsafe(finding: Finding) -> bool:
    return finding.kind in CHECKS and CHECKS[finding.kind].unsafe


def _unsharded(loop: LoopStats) -> Finding | None:
    """Return that every rank reads every sample; None if the loader is sharded, or may be."""
    if loop.ranks == 1 or loop.loader.sharded:
        return None
    proved = loop.same_on_ranks
    own_parts = proved is False and loop.loader.in_order  # each rank's dataset holds other samples
    if not proved and (loop.loader.sharded is None or own_parts):
        return None
    same, unsharded = (
        "ranks received the same first batch",
        "no sampler takes the rank's share of its dataset",
    )
    why = same if proved else unsharded
    remedy = (
        "shard it with DistributedSampler(dataset), or let Accelerate or a Trainer do so and watch its loader"
        if loop.loader.dataset is not None and not loop.loader.iterable
        else "let it yield the rank's own samples"
    )
    message = f"Every rank reads every sample: {why} ({loop.ranks} ranks)"
    unless = "" if proved else ", unless that dataset holds the rank's samples alone"
    return Finding(UNSHARDED, message, remedy + unless, {"ranks": loop.ranks})


def _next_step(verdict: Finding, others: Sequence[Finding], target: str, max_time_s: float) -> str:
    loader = target or "train.py:make_loader"
    if verdict.kind == "not-bottleneck":
        return "make the step faster; loading keeps up with it"
    if not target:
        return f"'iobench diagnose {loader}', a function that returns this loader, measures what would help"
    decided = any(isinstance(one, Advice) and one.gain for one in others)
    late = not decided and any(one.kind in ("undecided", "no-time") for one in others)
    if verdict.kind == "too-short" or late:
        return f"'iobench diagnose {loader} --max-time {math.ceil(2 * max_time_s)}' has time to decide"
    if command := next((found[0] for one in others if (found := COMMAND.findall(one.hint or ""))), ""):
        return f"'{command}'"
    if any(isinstance(one, Advice) for one in others):
        return f"change it, and 'iobench diagnose {loader} --no-variants' shows its new speed"
    return f"'iobench tune {loader} --step-ms MS' says if a training step of MS milliseconds waits for it"


def _verdict(
    loop: LoopStats, bottleneck: bool | None, alone: bool, advice: Sequence[Advice], raced: float = 0.0
) -> Finding:
    """Return the verdict; `raced` is the loader's rate in longer rounds, if it is higher than the loop's."""
    if loop.batches == 0:
        ended = f"raised {loop.raised} before its first batch" if loop.raised else "yielded no batches"
        return Finding("empty", f"The loader {ended}")
    unit = "samples" if loop.samples else "batches"
    rate = max(loop.rate, raced)
    speed = f"{rate_text(rate)} {unit}/s"
    values: Values = {f"{unit}_per_s": rate, "batches": loop.batches}
    if loop.samples:
        values["bytes_per_s"] = bytes_per_s = rate * loop.bytes / loop.samples
        speed += f", {bytes_text(bytes_per_s)}/s"
    if alone and loop.batches > 1:
        best = max((one.gain for one in advice if one.gain), default=None)
        can = f"This loader can be {three_digits(best)} × as fast" if best else "This loader can be faster"
        message = f"{can}: alone it delivers {speed}" if advice else f"The loader alone delivers {speed}"
        return Finding("loader-alone", message, values=values | ({"gain": best} if best else {}))
    if alone or bottleneck is None:
        took = f"{counted(loop.batches, 'batch', 'batches')} in {seconds_text(loop.elapsed_s)}"
        return Finding("too-short", f"Too short for a verdict: {took}", values=values)
    kind, statement = _judged(loop.slowest[1])
    waits = f"{_waiter(loop)} waits {loop.wait_share:.0%} of the time"
    values |= {"wait_share": loop.wait_share, "device": loop.device}
    if (slowest := loop.slowest)[0] is not None:
        waits += f", rank {slowest[0]} {slowest[1]:.0%}"
        values |= {"slowest_rank": slowest[0], "slowest_wait_share": slowest[1]}
    return Finding(kind, f"{statement}: {waits} ({speed})", values=values)


def _is_short(loop: LoopStats) -> bool:
    return loop.batches < MIN_BATCHES or loop.elapsed_s < MIN_S


def _judged(wait_share: float) -> tuple[str, str]:
    if wait_share >= MOST:
        return "bottleneck", "Loading is the bottleneck"
    if wait_share >= BOTTLENECK:
        return "costs-time", "Loading costs time"
    return "not-bottleneck", "Loading is not the bottleneck"


def _waiter(loop: LoopStats) -> str:
    return "the step" if loop.device == "cpu" else f"{loop.device} (by its own clock)"
