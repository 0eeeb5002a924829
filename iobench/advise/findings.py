"""Findings of a recommendation: the choice and its reasons."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from iobench.advise import sentences
from iobench.advise.alternatives import (
    alternatives,
    failed_in_final,
    missing_default,
    raced_formats,
    skipped_cases,
    time_limited,
)
from iobench.advise.basis import basis
from iobench.advise.choice import WORTH_IT, Choice, choose, default_of, finalists_of
from iobench.advise.code import loader_code, prepare_code
from iobench.advise.costs import costs
from iobench.advise.measured_data import MeasuredData
from iobench.advise.recommendation import Finalist, Recommendation
from iobench.advise.requirements import Requirements
from iobench.advise.search import SearchResult
from iobench.advise.sentences import DECIDED, NOT_BOTTLENECK, TIED, UNDECIDED
from iobench.base.finding import Finding
from iobench.base.text import utc_now
from iobench.base.units import counted, percent_text, three_digits
from iobench.results import stats
from iobench.results.metrics import mib_text
from iobench.results.run_warning import LONGER, RunWarning, Values
from iobench.results.warnings import MACHINE_KINDS, warnings_of

# kinds of warnings that matter here: few rounds are reported by the answer itself
RELEVANT = (
    *(*MACHINE_KINDS, "low-residency", "page-reclaim", "read-on-open", "short-window"),
    "unverified-content",
)
BUSY, LITTLE = 0.8, 0.5  # cores, and share of a limit: a case with more and less is bound by decoding
FEW_BATCHES = 20  # in an epoch, of which the first wait is a large part
WELL_FILLED = 0.8  # share of real elements in padded batches, from which on packing saves little

SHORT_OF_TIME = (
    *("time-limited", "few-rounds", "default-no-time", "no-final-rounds"),
    *("finalists-skipped", "no-time-for-step"),
)


def recommendation_of(result: SearchResult, requirements: Requirements) -> Recommendation:
    """Return the recommendation that the final rounds support."""
    finalists = finalists_of(result)
    choice = choose(result, finalists)
    missing = list(missing_default(result)) if default_of(finalists) is None else []
    if not result.confirmed or any(one.kind in ("default-no-time", "default-failed") for one in missing):
        choice = Choice(UNDECIDED, default_of(finalists) or choice.use)
    changes = choice.outcome in (DECIDED, TIED)
    case = next(case for case in result.finalists if case.key == choice.use.key)
    findings = [
        headline(choice, finalists, result.data),
        *(certainty(choice) if changes else ()),
        *missing,
        *result.notes,
        *time_limited(result.race),
        *limit_share(choice.use),
        *padding(result),
        *_waiting(result, choice.use, finalists, requirements, case.batch_size),
        *(costs(result, choice.use, default_of(finalists), requirements) if changes else ()),
        *basis(result),
    ]
    runs = (result.race, result.final, result.with_step, result.half_size)
    return Recommendation(
        outcome=choice.outcome,
        use=choice.use,
        finalists=finalists,
        findings=one_time_hint(findings, requirements.max_time_s),
        alternatives=list(alternatives(result, choice.use)),
        skipped=[
            *sentences.skipped_together(result.skipped),
            *skipped_cases(result.race),
            *failed_in_final(result),
        ],
        prepare=prepare_code(result.data, case) if changes else "",
        code=loader_code(result.data, case, requirements.epochs) if changes else "",
        records=list(dict.fromkeys(str(run.path) for run in runs if run)),
        dataset=result.data.manifest.name,
        raced=raced_formats(result),
        time=utc_now(),
        confirmed=result.confirmed,
        warnings=relevant_warnings(result),
    )


def relevant_warnings(result: SearchResult) -> list[RunWarning]:
    """Return the warnings about the final rounds that concern the machine, the page cache and the content."""
    records = [one for run in (result.final, result.with_step) if run for one in run.valid_records]
    return [one for one in warnings_of(records, more_rounds=LONGER) if one.kind in RELEVANT]


def one_time_hint(findings: Sequence[Finding], max_time_s: float) -> list[Finding]:
    """Return the findings with all that more time would change in one line, after the answer."""
    late = [one for one in findings[1:] if one.kind in SHORT_OF_TIME]
    if not late:
        return list(findings)
    needed = [one.values.get("needed_s") for one in late]
    seconds = max([2 * max_time_s, *(float(one) for one in needed if one is not None)])
    joined = Finding(
        "time-limited",
        "; ".join([late[0].message, *(f"{one.message[:1].lower()}{one.message[1:]}" for one in late[1:])]),
        hint=f"--max-time {math.ceil(seconds / 10) * 10} gives time for more",
        values={"kinds": ", ".join(one.kind for one in late), "needed_s": seconds},
    )
    return [findings[0], joined, *(one for one in findings[1:] if one not in late)]


def headline(choice: Choice, finalists: Sequence[Finalist], data: MeasuredData) -> Finding:
    """Return what to use and its gain over the default, which reads the user's own files if it can."""
    use, default = choice.use, default_of(finalists)
    what = describe_default(default, data)
    if choice.outcome == NOT_BOTTLENECK:
        wait_share = use.wait_share or 0.0
        evidence = f"with {use.label}, {what}, the device waits {wait_share:.1%} of the time"
        return sentences.not_bottleneck(evidence, {"use": use.label, "wait_share": wait_share})
    if default is None and choice.outcome == UNDECIDED:
        message = f"Undecided: {use.label} was not compared with the default"
        return Finding("undecided", message, values={"use": use.label})
    if default is None:
        return Finding("no-baseline", f"Use {use.label}", values={"use": use.label})
    others = [one.against_default for one in finalists if one.against_default is not None]
    values: Values = {"default": default.label}
    better = [one for one in finalists if one.significantly_better]
    if choice.outcome == UNDECIDED and better:
        first = max(better, key=lambda one: one.decisive_per_s.median).label
        message = (
            f"Undecided: {first} was faster than {default.label}, {what}, which no final rounds confirmed"
        )
        return Finding("undecided", message, values={**values, "use": use.label})
    if choice.outcome == UNDECIDED and not sentences.is_undecided(others):
        why = "no other was faster, in too few rounds to be sure" if others else "no other was measured"
        return Finding("undecided", f"Undecided: compared with {default.label}, {what}, {why}", values=values)
    if use is default or use.against_default is None:
        return sentences.keep(f"{use.label}, {what}", others, len(others), values=values)
    baseline, training = f"with {default.label}, {what}", "training is " if use.trained_per_s else ""
    tied = choice.outcome == TIED
    return sentences.gain(use.label, use.against_default.ratio, baseline, values, tied, training)


def describe_default(default: Finalist | None, data: MeasuredData) -> str:
    """Return what the default stands for."""
    if default is not None and default.user_defined:
        return "your own loader"
    if default is not None and default.format == data.own_format:
        return "a request per sample" if data.manifest.url else "your files as they are"
    return "your data as arrays in memory" if data.own_bytes is not None else "the default"


def certainty(choice: Choice) -> Iterator[Finding]:
    """Yield what else may be as fast, and why it was not chosen; nothing where the choice is significant."""
    use, others = choice.use, ", ".join(one.label for one in choice.tied)
    if use.decisive_rounds < stats.MIN_ROUNDS:
        yield Finding("few-rounds", f"Only {counted(use.decisive_rounds, 'round')} of each", values={})
    values: Values = {"tied": others, "count": len(choice.tied)}
    if choice.instead_of is not None:
        other = choice.instead_of
        ratio = other.decisive_per_s.median / use.decisive_per_s.median
        yield Finding(
            "significant-gain",
            f"Chosen over {other.label} (median {three_digits(ratio)} × as high) because only its gain over "
            f"the default is significant. Tied with the fastest: {others}",
            values={**values, "instead_of": other.label, "ratio": ratio},
        )
    elif choice.tied and use.decisive_rounds < stats.ENOUGH_ROUNDS:
        message = f"Tied with {others}: {counted(use.decisive_rounds, 'round')} are too few for a decision"
        yield Finding("few-rounds", message, values={**values, "rounds": use.decisive_rounds})
    elif choice.tied:
        message = f"Tied with {others}; it costs least of those within {WORTH_IT:.0%} of the fastest"
        yield Finding("tied", message, values=values)


def limit_share(use: Finalist) -> Iterator[Finding]:
    """Yield the share of the lowest hardware limit that the case reaches."""
    if use.limit_share is None or use.limit is None:
        return
    speed = f"{use.label} delivers {mib_text(use.bytes_per_s)} MiB/s"
    share = f"{percent_text(use.limit_share)} of the limit of this machine ({use.limit})"
    values: Values = {"bytes_per_s": use.bytes_per_s, "limit_share": use.limit_share, "limit": use.limit}
    cores = use.decoding_cores
    if cores is not None and cores >= BUSY and use.limit_share < LITTLE:
        message = f"{speed}, bound by decoding, which keeps {cores:.1f} cores busy; {share}"
        yield Finding("decoding-bound", message, values={**values, "cores": cores})
    else:
        yield Finding("limit-share", f"{speed}, {share}", values=values)


def padding(result: SearchResult) -> Iterator[Finding]:
    """Yield how much of padded batches would be zeros, for samples that differ in length.

    Not of bytes, which are encoded files unless several axes vary.
    """
    manifest = result.data.manifest
    checks = [one.content_check for run in (result.race, result.final) for one in run.valid_records]
    fills = [one.fill for one in checks if one is not None and one.fill is not None]
    pixels = manifest.schema.extents
    encoded = all(one.dtype == "uint8" and one.name not in pixels for one in manifest.schema.ragged)
    if not fills or min(fills) > WELL_FILLED or encoded:
        return
    ways, batches = ("pad", "padded") if pixels else ("pad,pack:2048", "padded and packed")
    yield Finding(
        "padding",
        f"Padded to the longest of a batch, {percent_text(1 - min(fills))} of the elements would be zeros",
        f"'iobench run --name {manifest.name} --collate {ways}' measures {batches} batches",
        {"fill": min(fills)},
    )


def _waiting(
    result: SearchResult,
    use: Finalist,
    finalists: Sequence[Finalist],
    requirements: Requirements,
    batch_size: int,
) -> Iterator[Finding]:
    if use.wait_share is None:
        return
    default = default_of(finalists)
    step_ms, first = 1000 * requirements.step_s(batch_size), requirements.batch_sizes[0]
    scaled = batch_size != first and not requirements.measured_ms
    origin = f" (scaled from {requirements.step_ms:.3g} ms over {first} samples)" if scaled else ""
    message = f"With a step of {step_ms:.3g} ms{origin} the device waits {use.wait_share:.1%} of the time"
    values: Values = {"step_ms": step_ms, "wait_share": use.wait_share}
    if default is not None and default is not use and default.wait_share is not None:
        message += f" ({default.wait_share:.1%} with {default.label})"
        values["default_wait_share"] = default.wait_share
    kept_busy = use.wait_share < WORTH_IT
    message += "" if kept_busy else "; no measured case keeps it busy"
    yield Finding("step-fed" if kept_busy else "step-starved", message, values=values)
    batches = math.ceil(result.data.manifest.schema.samples / batch_size)
    if batches < FEW_BATCHES:
        yield Finding(
            "short-epoch",
            f"An epoch has only {counted(batches, 'batch', 'batches')} here: with more data the share of the "
            "first wait is smaller",
            values={"batches": batches},
        )
