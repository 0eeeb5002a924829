"""Findings of a recommendation: the choice, its reasons, its cost and its break-even point."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from iobench import formats
from iobench.advise import sentences
from iobench.advise.alternatives import (
    alternatives,
    case_labels,
    failed_in_final,
    missing_default,
    raced_formats,
    skipped_cases,
    time_limited,
)
from iobench.advise.choice import WORTH_IT, Choice, choose, finalists_of, rounds_of
from iobench.advise.code import loader_code, prepare_code
from iobench.advise.measured_data import MeasuredData, other_samples
from iobench.advise.recommendation import Finalist, Recommendation, now
from iobench.advise.requirements import Requirements
from iobench.advise.search import DEFAULT, FASTEST, SearchResult
from iobench.advise.sentences import DECIDED, LONGER, NOT_BOTTLENECK, TIED, UNDECIDED, Values
from iobench.base.finding import Finding
from iobench.base.text import enumerated
from iobench.base.units import MIB, bytes_text, counted, percent_text, seconds_text, three_digits
from iobench.dataset.manifest import Manifest
from iobench.results import stats
from iobench.results.run_warning import RunWarning
from iobench.results.verdict import ratio_text
from iobench.results.warnings import MACHINE_KINDS, warnings_of

# kinds of warnings that matter here: few rounds are reported by the answer itself
RELEVANT = (*MACHINE_KINDS, "low-residency", "page-reclaim", "read-on-open")
BUSY, LITTLE = 0.8, 0.5  # cores, and share of a limit: a case with more and less is bound by decoding
FEW_BATCHES = 20  # in an epoch, of which the first wait is a large part
LARGER = 1.05  # ratio of the full data to the sample, from which on figures are extrapolated

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
        *(_certainty(choice) if changes else ()),
        *missing,
        *result.notes,
        *time_limited(result.race),
        *limit_share(choice.use),
        *_waiting(result, choice.use, finalists, requirements, case.batch_size),
        *(_costs(result, choice.use, finalists, requirements) if changes else ()),
        *_basis(result),
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
        records=[str(run.path) for run in runs if run],
        dataset=result.data.manifest.name,
        raced=raced_formats(result),
        time=now(),
        confirmed=result.confirmed,
        warnings=relevant_warnings(result),
    )


def relevant_warnings(result: SearchResult) -> list[RunWarning]:
    """Return the warnings about the final rounds that concern the machine and the page cache."""
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
        "; ".join(one.message for one in late),
        hint=f"--max-time {math.ceil(seconds / 10) * 10} gives time for more",
        values={"kinds": ", ".join(one.kind for one in late), "needed_s": seconds},
    )
    return [findings[0], joined, *(one for one in findings[1:] if one not in late)]


def default_of(finalists: Sequence[Finalist]) -> Finalist | None:
    """Return the default; None if it is no finalist."""
    return next((one for one in finalists if DEFAULT in one.roles), None)


def headline(choice: Choice, finalists: Sequence[Finalist], data: MeasuredData) -> Finding:
    """Return what to use and its gain over the default, which reads the user's own files if it can."""
    use, default = choice.use, default_of(finalists)
    what = _today(default, data)
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


def _today(default: Finalist | None, data: MeasuredData) -> str:
    """Return what the default stands for."""
    if default is not None and default.user_defined:
        return "your own loader"
    if default is not None and default.format == data.own_format:
        return "your files as they are"
    return "your data as arrays in memory" if data.own_bytes is not None else "the default"


def _certainty(choice: Choice) -> Iterator[Finding]:
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
    speed = f"It delivers {three_digits(use.bytes_per_s / MIB)} MiB/s"
    share = f"{percent_text(use.limit_share)} of the limit of this machine ({use.limit})"
    values: Values = {"bytes_per_s": use.bytes_per_s, "limit_share": use.limit_share, "limit": use.limit}
    cores = use.decoding_cores
    if cores is not None and cores >= BUSY and use.limit_share < LITTLE:
        message = f"{speed}, bound by decoding, which keeps {cores:.1f} cores busy; {share}"
        yield Finding("decoding-bound", message, values={**values, "cores": cores})
    else:
        yield Finding("limit-share", f"{speed}, {share}", values=values)


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


def _costs(
    result: SearchResult, use: Finalist, finalists: Sequence[Finalist], requirements: Requirements
) -> Iterator[Finding]:
    memory, default = sentences.memory(use.memory_bytes), default_of(finalists)
    if not formats.parse(use.format).lossless and (default is None or use.format != default.format):
        message = f"{use.format} decodes to other pixels than the default: 'iobench add' says how different"
        yield Finding("other-pixels", message, values={"format": use.format})
    if result.data.stored_already(use.format):
        message = "Your data are in that format already: nothing has to be written"
        yield Finding("stored-already", message + (f"; it uses {memory}" if memory else ""))
        return
    values: Values = {"write_s": use.write_s, "disk_bytes": use.disk_bytes}
    own_bytes, more = result.data.own_bytes, ""
    if own_bytes is not None:
        values["disk_ratio"] = ratio = use.disk_bytes / own_bytes
        more = f", {three_digits(ratio)} × your files"
    yield Finding(
        "cost",
        f"Writing all {bytes_text(result.data.full_bytes)} takes {seconds_text(use.write_s)} and "
        f"{bytes_text(use.disk_bytes)} on disk{more}" + (f"; reading uses {memory}" if memory else ""),
        values={**values, "memory_bytes": use.memory_bytes or 0},
    )
    if result.data.source is not None and result.data.source.losses:
        yield Finding("conversion-loses", f"Conversion loses: {'; '.join(result.data.source.losses)}")
    if use.against_default is not None and default is not None:
        if use.format == default.format:
            message = "The default reads the same format: only the loader changes"
            yield Finding("same-format", message, values={"format": use.format})
        else:
            yield break_even(result, use, default, requirements)


def break_even(result: SearchResult, use: Finalist, default: Finalist, requirements: Requirements) -> Finding:
    """Return the epochs after which writing the data pays off, from the interval of the gain."""
    samples = result.data.manifest.schema.samples * result.data.scale
    low, high = (
        (use.against_default.ratio.low, use.against_default.ratio.high)
        if use.against_default is not None
        else (None, None)
    )
    before_s = samples / default.decisive_per_s.median
    if low is None or high is None:
        return Finding("break-even-unknown", "The break-even point is unknown: too few rounds")
    saved_s = [before_s * (1 - 1 / low), before_s * (1 - 1 / high)]
    if min(saved_s) <= 0:
        return Finding(
            "break-even-unknown",
            "The break-even point is unknown: the interval of the gain includes no gain at all",
        )
    epochs = sorted(use.write_s / one for one in saved_s)
    message = f"Writing the data pays off after {epochs[0]:.1f} to {epochs[1]:.1f} epochs"
    planned = requirements.epochs
    late = f", more than the {counted(planned, 'epoch')} of the training" if epochs[0] > planned else ""
    return Finding(
        "break-even",
        message + late,
        values={"epochs_low": epochs[0], "epochs_high": epochs[1], "planned_epochs": planned},
    )


def _basis(result: SearchResult) -> Iterator[Finding]:
    """Yield how well the measurements represent the full data."""
    schema, data = result.data.manifest.schema, result.data
    if data.source is not None and data.source.description.get("kind") == "images":
        shape = "x".join(map(str, schema.fields[0].shape))
        message = (
            f"Each image was scaled and cropped to {shape}; no other crop can be taken from what is written"
        )
        yield Finding("image-shape", message, "--sample-shape changes that", {"shape": shape})
    if data.scale >= LARGER:
        yield Finding(
            "extrapolated",
            f"Measured on {bytes_text(schema.logical_bytes)} on the same disk with a {data.cache} cache; "
            f"costs of all {bytes_text(data.full_bytes)} are extrapolated "
            f"{three_digits(data.scale)}-fold: rough",
            values={"measured_bytes": schema.logical_bytes, "scale": data.scale},
        )
    if data.source is not None:
        yield disk_notice(data)
    yield from _size_dependence(result)


def _size_dependence(result: SearchResult) -> Iterator[Finding]:
    """Yield whether the speed depends on the number of samples, from rounds over half of them."""
    key = next(key for key, roles in result.roles.items() if FASTEST in roles)
    half = [one.samples_per_s for one in result.half_size.valid_records] if result.half_size else []
    whole = list(rounds_of(result.final, key).values())
    if half and whole:
        ratio = stats.ratio(half, whole)
        same = ratio.low is not None and ratio.high is not None and ratio.low > 0.9 and ratio.high < 1.1
        verdict = (
            "its speed does not depend on the amount of data"
            if same
            else "its speed may depend on the amount of data"
        )
        label = case_labels(result.finalists)[key]
        yield Finding(
            "size-independent" if same else "size-dependent",
            f"On half as many samples {label} is {ratio_text(ratio, 'as fast')}: {verdict}",
            values={"case": label, "ratio": ratio.median},
        )


def disk_notice(data: MeasuredData) -> Finding:
    """Return the size and the place of the sample, and other samples of the same source."""
    stored, root = _stored_bytes(data.manifest), data.manifest.root
    message = (
        f"The sample stays in {root} for the next time: {bytes_text(stored)} in "
        f"{counted(len(data.manifest.artifacts), 'format')}"
    )
    values: Values = {"folder": str(root), "bytes": stored}
    if others := [f"{one.root} ({bytes_text(_stored_bytes(one))})" for one in other_samples(data)]:
        message += f". Other samples of it: {enumerated(others)}"
        values["other_samples"] = len(others)
    return Finding("sample-on-disk", message, "delete the folder when you no longer need it", values)


def _stored_bytes(manifest: Manifest) -> int:
    return sum(one.stored_bytes for one in manifest.artifacts.values() if not one.added)
