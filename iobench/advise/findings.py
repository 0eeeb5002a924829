"""Findings of a recommendation: the choice, its reasons and costs, its basis, alternatives, and failures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from iobench import formats
from iobench.advise import answer
from iobench.advise.answer import DECIDED, NOT_BOTTLENECK, TIED, UNDECIDED
from iobench.advise.candidates import default_case
from iobench.advise.checks import decoding
from iobench.advise.choice import WORTH_IT, Choice, choose, default_of, finalists_of, measured_case, rounds_of
from iobench.advise.code import loader_code, prepare_code
from iobench.advise.measured_data import MeasuredData, other_samples
from iobench.advise.recommendation import FASTEST, PARETO, Finalist, Recommendation
from iobench.advise.requirements import Requirements
from iobench.advise.search import SearchResult, cost_of, labels_of, rate_of, texts_of
from iobench.base.finding import Finding
from iobench.base.text import enumerated, utc_now
from iobench.base.units import bytes_text, counted, percent_text, seconds_text, shape_text, three_digits
from iobench.bench.case import Case
from iobench.bench.outcome import Run
from iobench.dataset.manifest import Manifest
from iobench.results import stats
from iobench.results.metrics import mib_text
from iobench.results.run_warning import LONGER, RunWarning, Values
from iobench.results.verdict import ratio_text
from iobench.results.warnings import MACHINE_KINDS, warnings_of


def costs(
    result: SearchResult, use: Finalist, default: Finalist | None, requirements: Requirements
) -> Iterator[Finding]:
    """Yield what it takes to write the data in the format to use, and when that pays off."""
    used = use.value("memory_bytes")
    memory = answer.memory(used)
    if not formats.parse(use.format).lossless and (default is None or use.format != default.format):
        message = f"{use.format} decodes to other pixels than the default: 'iobench add' says how different"
        yield Finding("other-pixels", message, values={"format": use.format})
    if use.format in result.data.added:
        message = "Your data are in that format already: nothing has to be written"
        yield Finding("stored-already", message + (f"; it uses {memory}" if memory else ""))
        return
    values: Values = {"write_s": use.write_s, "disk_bytes": use.disk_bytes}
    own_bytes, more = result.data.own_bytes, ""
    if own_bytes is not None:
        values["disk_ratio"] = ratio = use.disk_bytes / own_bytes
        more = f", {three_digits(ratio)} × your files"
    decoding = ", decoding included," if result.data.decoding_s else ""
    message = (
        f"Writing all {bytes_text(result.data.full_bytes)} takes {seconds_text(use.write_s)}{decoding} and "
        f"{bytes_text(use.disk_bytes)} on disk{more}" + (f"; reading uses {memory}" if memory else "")
    )
    yield Finding("cost", message, values={**values, "memory_bytes": used or 0})
    if result.data.source is not None and result.data.source.losses:
        yield Finding("conversion-loses", f"Conversion loses: {'; '.join(result.data.source.losses)}")
    if use.against_default is not None and default is not None:
        if use.format == default.format and not default.unknown_files:
            message = "The default reads the same format: only the loader changes"
            yield Finding("same-format", message, values={"format": use.format})
        else:
            yield break_even(result, use, default, requirements)


def break_even(result: SearchResult, use: Finalist, default: Finalist, requirements: Requirements) -> Finding:
    """Return the epochs after which writing the data pays off, from the interval of the gain."""
    samples = result.data.manifest.schema.samples * result.data.scale
    against, unknown = use.against_default, "The break-even point is unknown"
    ratio = None if against is None else against.ratio
    if ratio is None or ratio.low is None or ratio.high is None:
        return Finding("break-even-unknown", f"{unknown}: too few rounds")
    saved_s = [samples / default.rate * (1 - 1 / end) for end in (ratio.low, ratio.high)]
    if min(saved_s) <= 0:
        message = f"{unknown}: the interval of the gain includes no gain at all"
        return Finding("break-even-unknown", message)
    epochs = sorted(use.write_s / one for one in saved_s)
    ends = dict.fromkeys(f"{one:.1f}" for one in epochs)
    within = f"{' to '.join(ends)} epochs" if epochs[1] > 1 else "less than one epoch"
    planned = requirements.epochs
    late = f", more than the {counted(planned, 'epoch')} of the training" if epochs[0] > planned else ""
    values: Values = {"epochs_low": epochs[0], "epochs_high": epochs[1], "planned_epochs": planned}
    return Finding("break-even", f"Writing the data pays off after {within}{late}", values=values)


SAME = 1.1  # ratio of speeds over half the samples and over all, up to which nothing is reported
CROPPED = (3, 224, 224)  # usual shape of images that are scaled to one
LARGER = 1.05  # ratio of the full data to the sample, from which on figures are extrapolated


def basis(result: SearchResult) -> Iterator[Finding]:
    """Yield how well the measurements represent the full data."""
    schema, data = result.data.manifest.schema, result.data
    if data.source is not None and data.source.description.get("kind") == "images":
        yield image_size(data)
    if data.manifest.url:  # nothing is written to an object store
        names = ", ".join(data.added)
        message = f"Only the formats at the address were compared ({names})"
        command = "'iobench prepare … --format A --format B --to …'"
        hint = f"to compare others, upload all to a new address: {command}"
        yield Finding("formats-at-address", message, hint, {"formats": names})
    if data.scale >= LARGER:
        where = "in the same store" if data.manifest.url else f"on the same disk with a {data.cache} cache"
        message = (
            f"Measured on {bytes_text(schema.logical_bytes)} {where}; costs of all "
            f"{bytes_text(data.full_bytes)} are extrapolated {three_digits(data.scale)}-fold: rough"
        )
        values: Values = {"measured_bytes": schema.logical_bytes, "scale": data.scale}
        yield Finding("extrapolated", message, values=values)
    if data.source is not None and _stored_bytes(data.manifest):
        yield disk_notice(data)
    yield from _size_dependence(result)


def image_size(data: MeasuredData) -> Finding:
    """Return what becomes of the sizes of images, and what that costs."""
    schema = data.manifest.schema
    if schema.extents:
        cropped = data.full_bytes * schema.samples * math.prod(CROPPED) / schema.logical_bytes
        shape, sizes = shape_text(CROPPED), (bytes_text(data.full_bytes), bytes_text(cropped))
        message = (
            f"Each image keeps its size: {sizes[0]} of pixels; scaled and cropped to {shape}, {sizes[1]}"
        )
        hint = f"--sample-shape {shape} compares that, and random crops of the files themselves"
        return Finding("image-sizes", message, hint, {"bytes": data.full_bytes, "cropped_bytes": cropped})
    shape = shape_text(schema.fields[0].shape)
    message = f"Each image was scaled and cropped to {shape}"
    hint = f"StreamLoader takes random crops of the files themselves: images:shape={shape},crop=random"
    return Finding("image-shape", message, hint, {"shape": shape})


def _size_dependence(result: SearchResult) -> Iterator[Finding]:
    """Yield that the speed depends on the number of samples, if rounds over half of them show it."""
    key = next(key for key, roles in result.roles.items() if FASTEST in roles)
    half = [one.samples_per_s for one in result.half_size.valid_records] if result.half_size else []
    whole = [one.samples_per_s for one in rounds_of(result.final, key)]
    ratio = stats.ratio(half, whole) if half and whole else None
    if ratio is None or ratio.low is None or ratio.high is None:
        return
    if ratio.low > SAME or ratio.high < 1 / SAME:
        label = texts_of(result.finalists)[key]
        times = f"On half as many samples {label} is {ratio_text(ratio, 'as fast')}"
        message = f"{times}: its speed depends on the amount of data"
        yield Finding("size-dependent", message, values={"case": label, "ratio": ratio.median})


def disk_notice(data: MeasuredData) -> Finding:
    """Return the size and the place of the sample, and other samples of the same source."""
    stored, root = _stored_bytes(data.manifest), data.manifest.root
    count = counted(len(data.manifest.artifacts), "format")
    message = f"The sample stays in {root} for the next time: {bytes_text(stored)} in {count}"
    values: Values = {"folder": str(root), "bytes": stored}
    if others := [f"{one.root} ({bytes_text(_stored_bytes(one))})" for one in other_samples(data)]:
        message += f". Other samples of it: {enumerated(others)}"
        values["other_samples"] = len(others)
    return Finding("sample-on-disk", message, "delete the folder when you no longer need it", values)


def _stored_bytes(manifest: Manifest) -> int:
    return sum(one.stored_bytes for one in manifest.artifacts.values() if not one.added)


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
        _without_step(headline(choice, finalists, result.data), choice.use, requirements),
        *(certainty(choice) if changes else ()),
        *missing,
        *result.notes,
        *time_limited(result.race),
        *limit_share(choice.use),
        *padding(result),
        *_waiting(result, choice.use, finalists, requirements, case.batch_size),
        *(costs(result, choice.use, _baseline(finalists, result.data), requirements) if changes else ()),
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
            *answer.skipped_together(result.skipped),
            *skipped_cases(result.race),
            *_failed(result.final, ", final rounds"),
            *(_failed(result.with_step, ", with the step") if result.with_step else ()),
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
    message = "; ".join(
        [late[0].message, *(f"{one.message[:1].lower()}{one.message[1:]}" for one in late[1:])]
    )
    hint = f"--max-time {math.ceil(seconds / 10) * 10} gives time for more"
    kinds = ", ".join(one.kind for one in late)
    joined = Finding("time-limited", message, hint, {"kinds": kinds, "needed_s": seconds})
    return [findings[0], joined, *(one for one in findings[1:] if one not in late)]


def headline(choice: Choice, finalists: Sequence[Finalist], data: MeasuredData) -> Finding:
    """Return what to use and its gain over the default, which reads the user's own files if it can."""
    use, default = choice.use, default_of(finalists)
    if _baseline(finalists, data) is None and default is not None:
        first = f"Use {use.text}" if choice.outcome in (DECIDED, TIED) else "Undecided"
        message = f"{first}: the gain is unknown, because your own files were not measured"
        return Finding("no-baseline", message, values={"use": use.text})
    what = describe_default(default, data)
    if choice.outcome == NOT_BOTTLENECK:
        wait_share = use.wait_share or 0.0
        evidence = f"with {use.text}, {what}, the device waits {wait_share:.1%} of the time"
        return answer.not_bottleneck(evidence, {"use": use.text, "wait_share": wait_share})
    if default is None and choice.outcome == UNDECIDED:
        message = f"Undecided: {use.text} was not compared with the default"
        return Finding("undecided", message, values={"use": use.text})
    if default is None:
        return Finding("no-baseline", f"Use {use.text}", values={"use": use.text})
    others = [one.against_default for one in finalists if one.against_default is not None]
    values: Values = {"default": default.text}
    better = [one for one in finalists if one.significantly_better]
    if choice.outcome == UNDECIDED and better:
        first = max(better, key=lambda one: one.rate).text
        message = (
            f"Undecided: {first} was faster than {default.text}, {what}, which no final rounds confirmed"
        )
        return Finding("undecided", message, values={**values, "use": use.text})
    if choice.outcome == UNDECIDED and not answer.is_undecided(others):
        why = "no other was faster, in too few rounds to be sure" if others else "no other was measured"
        return Finding("undecided", f"Undecided: compared with {default.text}, {what}, {why}", values=values)
    if use is default or use.against_default is None:
        return answer.keep(f"{use.text}, {what}", others, len(others), values=values)
    baseline, training = f"with {default.text}, {what}", "training is " if use.step_decides else ""
    tied = choice.outcome == TIED
    return answer.gain(use.text, use.against_default.ratio, baseline, values, tied, training)


def _without_step(first: Finding, use: Finalist, requirements: Requirements) -> Finding:
    """Return the answer, which begins with what was asked and not done: rounds with the training step."""
    if not requirements.step_ms or use.step_decides:
        return first
    step = f"of {requirements.step_ms:.3g} ms " if requirements.model == "none" else ""
    message = f"Loading alone, as no time was left for the step {step}that hides much of it: {first.message}"
    return replace(first, message=message)


def _baseline(finalists: Sequence[Finalist], data: MeasuredData) -> Finalist | None:
    """Return the default, unless it reads other files than the user's, which take longer to read."""
    default = default_of(finalists)
    return None if data.own_unmeasured and not (default and default.user_defined) else default


def describe_default(default: Finalist | None, data: MeasuredData) -> str:
    """Return what the default stands for."""
    if default is not None and default.user_defined:
        return "your own loader"
    if default is not None and default.format == data.own_format:
        return "a request per sample" if data.manifest.url else "your files as they are"
    return "your data as arrays in memory" if data.own_bytes is not None else "the default"


def certainty(choice: Choice) -> Iterator[Finding]:
    """Yield what else may be as fast, and why it was not chosen; nothing where the choice is significant."""
    use, others = choice.use, ", ".join(one.text for one in choice.tied)
    if use.decisive.rounds < stats.MIN_ROUNDS:
        yield Finding("few-rounds", f"Only {counted(use.decisive.rounds, 'round')} of each", values={})
    values: Values = {"tied": others, "count": len(choice.tied)}
    if choice.instead_of is not None:
        other = choice.instead_of
        ratio = other.rate / use.rate
        message = (
            f"Chosen over {other.text} (median {three_digits(ratio)} × as high) because only its gain over "
            f"the default is significant. Tied with the fastest: {others}"
        )
        more: Values = {"instead_of": other.text, "ratio": ratio}
        yield Finding("significant-gain", message, values={**values, **more})
    elif choice.tied and use.decisive.rounds < stats.ENOUGH_ROUNDS:
        message = f"Tied with {others}: {counted(use.decisive.rounds, 'round')} are too few for a decision"
        yield Finding("few-rounds", message, values={**values, "rounds": use.decisive.rounds})
    elif choice.tied:
        message = f"Tied with {others}; it costs least of those within {WORTH_IT:.0%} of the fastest"
        yield Finding("tied", message, values=values)


def limit_share(use: Finalist) -> Iterator[Finding]:
    """Yield the share of the lowest hardware limit that the case reaches."""
    if use.limit_share is None or use.limit is None:
        return
    rate = use.bytes_per_s.median
    speed = f"{use.text} delivers {mib_text(rate)} MiB/s"
    share = f"{percent_text(use.limit_share)} of the limit of this machine ({use.limit})"
    values: Values = {"bytes_per_s": rate, "limit_share": use.limit_share, "limit": use.limit}
    cores = use.decoding_cores
    if cores is not None and cores >= BUSY and use.limit_share < LITTLE:
        message = f"{speed}, bound by decoding, which keeps {cores:.1f} cores busy; {share}"
        hint = decoding.decoder_hint(formats.parse(use.format))
        yield Finding("decoding-bound", message, hint, {**values, "cores": cores})
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
        message += f" ({default.wait_share:.1%} with {default.text})"
        values["default_wait_share"] = default.wait_share
    kept_busy = use.wait_share < WORTH_IT
    message += "" if kept_busy else "; no measured case keeps it busy"
    yield Finding("step-fed" if kept_busy else "step-starved", message, values=values)
    batches = math.ceil(result.data.manifest.schema.samples / batch_size)
    if batches < FEW_BATCHES:
        message = f"An epoch has only {counted(batches, 'batch', 'batches')} here"
        more = "with more data the share of the first wait is smaller"
        yield Finding("short-epoch", f"{message}: {more}", values={"batches": batches})


CLOSE = 0.9  # of the fastest, from which on an alternative is worth naming
WORTH_NAMING = 1.1  # times the default, from which on another way to read the user's own files is
SMALLER = 0.95  # of the bytes, below which one is
SLOW = 0.1  # of the speed, below which the time says more
MAX_CLOSE = 3


def raced_formats(result: SearchResult) -> list[Finalist]:
    """Return each format by its fastest case in the race, fastest first, and if it is Pareto-optimal."""
    measured = _measured(result.race)
    names = labels_of([case for case, _ in measured])
    best: dict[str, Finalist] = {}
    for case, _ in sorted(measured, key=lambda one: -one[1]):
        if case.variant not in best:
            rounds = rounds_of(result.race, case.key)
            one = measured_case(result, case, names[case.key], rounds, ())
            best[case.variant] = replace(one, format=case.variant)
    merits = {variant: (one.rate, -one.disk_bytes) for variant, one in best.items()}
    return [
        one
        if any(stats.dominates(other, merits[variant]) for other in merits.values())
        else replace(one, roles=[PARETO])
        for variant, one in best.items()
    ]


def alternatives(result: SearchResult, use: Finalist) -> Iterator[Finding]:
    """Yield cases to use if something else matters more than speed, from the race."""
    measured = _measured(result.race)
    best = max(rate for _, rate in measured)
    manifest, names = result.data.manifest, texts_of([case for case, _ in measured])
    close = [(case, rate) for case, rate in measured if rate >= CLOSE * best]
    used = next(case for case in result.race.cases if result.final_case(case).key == use.key)
    yield from _smallest(result, used)
    plain = [(case, rate) for case, rate in measured if cost_of(case, manifest)[0] == 0]
    if plain and cost_of(used, manifest)[0]:
        case, rate = max(plain, key=lambda one: one[1])
        yield _alternative("no-packages", "nothing to install", names[case.key], rate / best)
    yield from _without_conversion(result, used)
    for word in {case.loader.variant: case for case in result.finalists if case.loader.user_defined}:
        message = f"Your own loader: 'iobench diagnose {word}' tries what would make it faster as it is"
        yield Finding("own-loader", message, values={"loader": word})
    shuffled = [(case, rate) for case, rate in measured if case.order == "random"]
    if used.order == "block" and shuffled:
        case, rate = max(shuffled, key=lambda one: one[1])
        yield _alternative("full-shuffle", "full shuffle", names[case.key], rate / best)
    # the final rounds say more about finalists
    left = [names[case.key] for case, _ in close if result.final_case(case).key not in result.roles]
    if left:
        named = "; ".join(left[:MAX_CLOSE])
        message = f"Also within {1 - CLOSE:.0%} of the fastest in the race: {named}"
        yield Finding("close-in-race", message, values={"cases": named, "count": len(left)})


def _smallest(result: SearchResult, used: Case) -> Iterator[Finding]:
    """Yield the fastest case that takes the least disk space, if that is less than the recommended one's."""
    rates = _best_known(result)
    cases = [case for case in result.race.cases if case.key in rates]
    stored = {case.key: result.data.full_stored_bytes(case.variant) for case in cases}
    smallest = min(cases, key=lambda case: (stored[case.key], -rates[case.key]))
    size, speed = stored[smallest.key] / stored[used.key], rates[smallest.key] / max(rates.values())
    if size < SMALLER:
        label = texts_of(cases)[smallest.key]
        yield _alternative("smallest", "least disk space", label, speed, size)


def _without_conversion(result: SearchResult, used: Case) -> Iterator[Finding]:
    """Yield the fastest way to read the user's own files, if it is not the recommended one."""
    data, rates = result.data, _best_known(result)
    default = default_case(result.race.cases, data.own_format)
    own = [case for case in result.race.cases if case.variant in data.added and case.key in rates]
    if default is None or default.key not in rates or not own or used.variant in data.added:
        return
    fastest = max(own, key=lambda case: rates[case.key])
    gain, speed = (rates[fastest.key] / rates[one.key] for one in (default, used))
    if gain >= WORTH_NAMING:
        label = texts_of(result.race.cases)[fastest.key]
        other = "" if formats.parse(fastest.variant).lossless else " (its pixels differ)"
        times = f"{three_digits(gain)} × the default, {_speed_text(speed)}"
        values: Values = {"case": label, "gain": gain, "speed": speed}
        yield Finding("no-conversion", f"Without a conversion: {label}{other}, {times}", values=values)


def _best_known(result: SearchResult) -> dict[str, float]:
    """Return the samples/s of cases by key: of the final rounds, or else of the race."""
    final = {case.key: rate_of(result.final, result.final_case(case).key) for case in result.race.cases}
    return {key: rate for key, one in final.items() if (rate := one or rate_of(result.race, key))}


def _alternative(kind: str, aim: str, case: str, speed: float, size: float | None = None) -> Finding:
    part, more = ("", {}) if size is None else (f"{size:.0%} of the bytes, ", {"size": size})
    message = f"For {aim}: {case}, {part}{_speed_text(speed)}"
    return Finding(kind, message, values={"case": case, "speed": speed, **more})


def _speed_text(speed: float) -> str:
    """Return a share of the fastest speed; of small shares the time, which a percentage rounds to nothing."""
    return f"{speed:.0%} of the speed" if speed >= SLOW else f"takes {three_digits(1 / speed)} × as long"


def time_limited(race: Run) -> Iterator[Finding]:
    """Yield the finding for cases that the race had no time for."""
    if race.skipped:
        tried, cases = len(race.cases) - len(race.skipped), len(race.cases)
        message = f"Tried {tried} of {cases} cases"
        yield Finding("time-limited", message, values={"tried": tried, "cases": cases})


def skipped_cases(race: Run) -> Iterator[Finding]:
    """Yield the cases that failed in the race, or that there was no time for."""
    labels = texts_of(race.cases)
    yield from _failed(race, "")
    yield from answer.no_time([labels[key] for key in race.skipped])


def missing_default(result: SearchResult) -> Iterator[Finding]:
    """Yield why there is no comparison with the default; nothing where there is one."""
    default = default_case(result.race.cases, result.data.own_format)
    subject = "No comparison with the default (DataLoader, sample by sample)"
    if default is None:
        yield Finding("default-excluded", f"{subject}: it did not take part")
        return
    final = result.final_case(default).key
    failures = {**result.race.failures, **result.final.failures}
    if (error := failures.get(default.key) or failures.get(final)) is not None:
        yield Finding("default-failed", f"{subject}: it failed ({error})", values={"error": error.kind})
    elif not any(one.settings_key == final for one in result.final.valid_records):
        yield Finding("default-no-time", f"{subject}: no time was left")


def _failed(run: Run, when: str) -> Iterator[Finding]:
    labels = texts_of(run.cases)
    return answer.failures([(labels[key], error) for key, error in run.failures.items()], when)


def _measured(race: Run) -> list[tuple[Case, float]]:
    return [(case, rate) for case in race.cases if (rate := rate_of(race, case.key))]
