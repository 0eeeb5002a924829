"""Words of a recommendation: the choice, its reasons and costs, its basis, alternatives, and failures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from iobench import formats
from iobench.advise import answer
from iobench.advise.answer import DECIDED, NOT_BOTTLENECK, TIED, UNDECIDED
from iobench.advise.candidates import default_case, packages_of
from iobench.advise.checks import decoding
from iobench.advise.code import loader_code, prepare_code
from iobench.advise.measured_data import MeasuredData, other_samples
from iobench.advise.recommendation import PARETO, Finalist, Recommendation
from iobench.advise.requirements import Requirements
from iobench.advise.search import (
    WORTH_IT,
    Choice,
    SearchResult,
    choose,
    default_of,
    finalists_of,
    labels_of,
    measured_case,
    rate_of,
    rounds_of,
    texts_of,
)
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

# kinds of warnings that matter here: few rounds are reported by the answer itself
RELEVANT = (
    *(*MACHINE_KINDS, "low-residency", "page-reclaim", "read-on-open", "short-window"),
    "unverified-content",
)
BUSY, LITTLE = 0.8, 0.5  # cores, and share of a limit: a case with more and less is bound by decoding
FEW_BATCHES = 20  # in an epoch, of which the first wait is a large part
WELL_FILLED = 0.8  # share of real elements in padded batches, from which on packing saves little
SAME = 1.1  # ratio of speeds over half the samples and over all, up to which nothing is reported
CROPPED = (3, 224, 224)  # usual shape of images that are scaled to one
LARGER = 1.05  # ratio of the full data to the sample, from which on figures are extrapolated
CLOSE = 0.9  # of the fastest, from which on an alternative is worth naming
WORTH_NAMING = 1.1  # times the default, from which on another way to read the user's own files is
SMALLER = 0.95  # of the bytes, below which one is
SLOW = 0.1  # of the speed, below which the time says more
MAX_CLOSE = 3


def recommendation_of(result: SearchResult, requirements: Requirements) -> Recommendation:
    """Return the recommendation that the final rounds support."""
    data, finalists = result.data, finalists_of(result)
    default, choice = default_of(finalists), choose(result, finalists)
    missing = missing_default(result) if default is None else None
    if not result.confirmed or (missing is not None and missing.values["why"] != EXCLUDED):
        choice = Choice(UNDECIDED, default or choice.use)
    changes = choice.outcome in (DECIDED, TIED)
    case = next(case for case in result.finalists if case.key == choice.use.key)
    findings = [
        _without_step(headline(choice, finalists, data), choice.use, requirements),
        *(start_up(default, data) if changes else ()),
        *time_limited(result, choice, requirements.max_time_s),
        *(certainty(choice) if changes else ()),
        *([missing] if missing is not None else ()),
        *incomplete(result),
        *limit_share(choice.use),
        *padding(result),
        *_waiting(result, choice.use, default, requirements, case.batch_size),
        *(costs(result, choice.use, _baseline(default, data), requirements) if changes else ()),
        *basis(result),
    ]
    runs = result.race, result.final, result.with_step, result.half_size
    return Recommendation(
        outcome=choice.outcome,
        use=choice.use,
        finalists=finalists,
        findings=findings,
        alternatives=list(alternatives(result, choice.use)),
        skipped=[
            *answer.skipped_together(result.skipped),
            *skipped_cases(result.race),
            *_failed(result.final, ", final rounds"),
            *(_failed(result.with_step, ", with the step") if result.with_step else ()),
        ],
        prepare=prepare_code(data, case) if changes else "",
        code=loader_code(data, case, requirements.epochs) if changes else "",
        records=list(dict.fromkeys(str(run.path) for run in runs if run and run.records)),
        dataset=data.manifest.name,
        raced=raced_formats(result),
        time=utc_now(),
        confirmed=result.confirmed,
        warnings=relevant_warnings(result),
    )


def relevant_warnings(result: SearchResult) -> list[RunWarning]:
    """Return the warnings about the final rounds that concern the machine, the page cache and the content."""
    records = [one for run in (result.final, result.with_step) if run for one in run.valid_records]
    return [one for one in warnings_of(records, more_rounds=LONGER) if one.kind in RELEVANT]


def headline(choice: Choice, finalists: Sequence[Finalist], data: MeasuredData) -> Finding:
    """Return what to use and its gain over the default, which reads the user's own files if it can."""
    use, default = choice.use, default_of(finalists)
    changes = choice.outcome in (DECIDED, TIED)
    if default is not None and _baseline(default, data) is None:
        first = f"Use {use.text}" if changes else "Undecided"
        message = f"{first}: the gain is unknown, because your own files were not measured"
        return Finding("no-baseline", message, values={"use": use.text})
    what = describe_default(default, data)
    if choice.outcome == NOT_BOTTLENECK:
        wait_share = use.wait_share or 0.0
        evidence = f"with {use.text}, {what}, the device waits {wait_share:.1%} of the time"
        return answer.not_bottleneck(evidence, {"use": use.text, "wait_share": wait_share})
    if default is None:
        if changes:
            return Finding("no-baseline", f"Use {use.text}", values={"use": use.text})
        message = f"Undecided: {use.text} was not compared with the default"
        return Finding("undecided", message, values={"use": use.text})
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
    baseline, subject = f"with {default.text}, {what}", "training is " if use.step_decides else ""
    subject += "up to " if first_wait(default, data) >= MUCH_WAITING else ""
    tied = choice.outcome == TIED
    return answer.gain(use.text, use.against_default.ratio, baseline, values, tied, subject)


def first_wait(default: Finalist, data: MeasuredData) -> float:
    """Return the share of the default's epoch in which it waits for its first batch."""
    epoch_s = data.manifest.schema.samples / default.rate
    return (default.decisive.value("first_batch_s") or 0.0) / epoch_s


def start_up(default: Finalist | None, data: MeasuredData) -> Iterator[Finding]:
    """Yield that the default's epoch is mostly the start of its workers, so that more data gain less."""
    if default is not None and (share := first_wait(default, data)) >= MUCH_WAITING:
        message = f"{min(share, 1):.0%} of an epoch with {default.text} is the wait for its first batch"
        hint = "give more data than these: the gain is smaller with them"
        yield Finding("start-up", message, hint, {"share": share})


def _without_step(first: Finding, use: Finalist, requirements: Requirements) -> Finding:
    """Return the answer, which begins with what was asked and not done: rounds with the training step."""
    if not requirements.step_ms or use.step_decides:
        return first
    step = f"of {requirements.step_ms:.3g} ms " if requirements.model == "none" else ""
    message = f"Loading alone, as no time was left for the step {step}that hides much of it: {first.message}"
    return replace(first, message=message)


def _baseline(default: Finalist | None, data: MeasuredData) -> Finalist | None:
    """Return the default, unless it reads other files than the user's, which take longer to read."""
    return None if data.own_unmeasured and not (default and default.user_defined) else default


def describe_default(default: Finalist | None, data: MeasuredData) -> str:
    """Return what the default stands for."""
    if default is not None and default.user_defined:
        return "your own loader"
    if default is not None and default.format == data.own_format:
        return "a request per sample" if data.manifest.url else "your files as they are"
    return "your data as arrays in memory" if data.own_bytes is not None else "the default"


MUCH_WAITING = 0.3  # share of an epoch
EXCLUDED, NO_TIME = "excluded", "no-time"  # reasons why there is no default


def missing_default(result: SearchResult) -> Finding | None:
    """Return why there is no comparison with the default; None where there is one."""
    default = default_case(result.race.cases, result.data.own_format)
    subject = "No comparison with the default (DataLoader, sample by sample)"
    if default is None:
        return Finding("no-baseline", f"{subject}: it did not take part", values={"why": EXCLUDED})
    final = result.final_case(default).key
    error = result.race.failures.get(default.key) or result.final.failures.get(final)
    if error is not None:
        return Finding("no-baseline", f"{subject}: it failed ({error})", values={"why": error.kind})
    if not rounds_of(result.final, final):
        return Finding("no-baseline", f"{subject}: no time was left", values={"why": NO_TIME})
    return None


def time_limited(result: SearchResult, choice: Choice, max_time_s: float) -> Iterator[Finding]:
    """Yield all that more time would change, in one line."""
    late = list(_late(result, choice))
    if late:
        kinds, (first, *others) = ", ".join(kind for kind, _ in late), [message for _, message in late]
        message = "; ".join([first, *(f"{one[:1].lower()}{one[1:]}" for one in others)])
        needed_s = max_time_s + max(max_time_s, result.step_s)
        hint = f"--max-time {math.ceil(needed_s / 10) * 10} gives time for more"
        yield Finding("time-limited", message, hint, {"kinds": kinds, "needed_s": needed_s})


def _late(result: SearchResult, choice: Choice) -> Iterator[tuple[str, str]]:
    race, final, stepped = result.race, result.final, result.with_step
    rounds, count = choice.use.decisive.rounds, counted(choice.use.decisive.rounds, "round")
    if choice.outcome in (DECIDED, TIED) and rounds < stats.MIN_ROUNDS:
        yield "few-rounds", f"Only {count} of each"
    if choice.tied and choice.instead_of is None and rounds < stats.ENOUGH_ROUNDS:
        yield "few-rounds", f"Tied with {_names(choice.tied)}: {count} are too few for a decision"
    missing = missing_default(result)
    if missing is not None and missing.values["why"] == NO_TIME:
        yield "default-no-time", missing.message
    if not result.confirmed and result.ended is None:
        yield "no-final-rounds", "No time was left for final rounds"
    elif result.confirmed and final.skipped:
        yield "finalists-skipped", f"There was no time for the final rounds of {_skipped(final)}"
    if result.step_s:
        measured = len(stepped.cases) if stepped else 0
        which = f"all but {counted(measured, 'case')}" if measured else "all cases"
        needed = f"these need about {seconds_text(result.step_s)}"
        yield "no-time-for-step", f"No time for rounds with the step of {which}: {needed}"
    if stepped and stepped.skipped and not final.skipped:
        yield "finalists-skipped", f"There was no time for the rounds with the step of {_skipped(stepped)}"
    if race.skipped:
        yield "time-limited", f"Tried {len(race.cases) - len(race.skipped)} of {len(race.cases)} cases"


def _skipped(run: Run) -> str:
    names = texts_of(run.cases)
    return answer.some([names[key] for key in run.skipped])


def _names(finalists: Sequence[Finalist]) -> str:
    return ", ".join(one.text for one in finalists)


def certainty(choice: Choice) -> Iterator[Finding]:
    """Yield what else may be as fast, and why it was not chosen; nothing where the choice is significant."""
    use, others = choice.use, _names(choice.tied)
    values: Values = {"tied": others, "count": len(choice.tied)}
    if choice.instead_of is not None:
        other = choice.instead_of
        ratio = other.rate / use.rate
        message = (
            f"Chosen over {other.text} (median {three_digits(ratio)} × as high) because only its gain over "
            f"the default is significant. Tied with the fastest: {others}"
        )
        yield Finding("tied", message, values={**values, "instead_of": other.text, "ratio": ratio})
    elif choice.tied and use.decisive.rounds >= stats.ENOUGH_ROUNDS:
        message = f"Tied with {others}; it costs least of those within {WORTH_IT:.0%} of the fastest"
        yield Finding("tied", message, values=values)


def incomplete(result: SearchResult) -> Iterator[Finding]:
    """Yield the rounds that Ctrl-C or an error ended."""
    if result.ended is not None:
        rounds, error = result.ended
        if isinstance(error, KeyboardInterrupt):
            message = f"Interrupted in the {rounds}: the answer rests on what was measured until then"
            yield Finding("interrupted", message)
        else:
            yield Finding("stopped", f"The {rounds} ended early: {error}", values={"error": error.kind})


def limit_share(use: Finalist) -> Iterator[Finding]:
    """Yield the share of the lowest hardware limit that the case reaches."""
    if use.limit_share is None or use.limit is None:
        return
    rate = use.bytes_per_s.median
    speed = f"{use.text} delivers {mib_text(rate)} MiB/s"
    share = f"{percent_text(use.limit_share)} of the limit of this machine ({use.limit})"
    values: Values = {"bytes_per_s": rate, "limit_share": use.limit_share, "limit": use.limit}
    cores, bound, hint = use.decoding_cores, "", None
    if cores is not None and cores >= BUSY and use.limit_share < LITTLE:
        bound, values["cores"] = f"bound by decoding, which keeps {cores:.1f} cores busy; ", cores
        hint = decoding.decoder_hint(formats.parse(use.format))
    yield Finding("limit-share", f"{speed}, {bound}{share}", hint, values)


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
    result: SearchResult, use: Finalist, default: Finalist | None, requirements: Requirements, batch_size: int
) -> Iterator[Finding]:
    if use.wait_share is None:
        return
    step_ms, first = 1000 * requirements.step_s(batch_size), requirements.batch_sizes[0]
    scaled = batch_size != first and not requirements.measured_ms
    origin = f" (scaled from {requirements.step_ms:.3g} ms over {first} samples)" if scaled else ""
    message = f"With a step of {step_ms:.3g} ms{origin} the device waits {use.wait_share:.1%} of the time"
    values: Values = {"step_ms": step_ms, "wait_share": use.wait_share}
    if default is not None and default is not use and default.wait_share is not None:
        message += f" ({default.wait_share:.1%} with {default.text})"
        values["default_wait_share"] = default.wait_share
    if use.wait_share >= WORTH_IT:
        message += "; no measured case keeps it busy"
    yield Finding("wait-share", message, values=values)
    batches = math.ceil(result.data.manifest.schema.samples / batch_size)
    if batches < FEW_BATCHES:
        message = f"An epoch has only {counted(batches, 'batch', 'batches')} here"
        more = "with more data the share of the first wait is smaller"
        yield Finding("basis", f"{message}: {more}", values={"batches": batches})


def costs(
    result: SearchResult, use: Finalist, default: Finalist | None, requirements: Requirements
) -> Iterator[Finding]:
    """Yield what it takes to write the data in the format to use, and when that pays off."""
    data, used = result.data, use.value("memory_bytes")
    memory = answer.memory(used)
    if not formats.parse(use.format).lossless and (default is None or use.format != default.format):
        message = f"{use.format} decodes to other pixels than the default: 'iobench add' says how different"
        yield Finding("other-pixels", message, values={"format": use.format})
    values: Values = {"write_s": use.write_s, "disk_bytes": use.disk_bytes, "memory_bytes": used or 0}
    if use.format in data.added:
        message = "Your data are in that format already: nothing has to be written"
        message += f"; it uses {memory}" if memory else ""
        yield Finding("cost", message, values={**values, "write_s": 0.0})
        return
    more = ""
    if data.own_bytes is not None:
        values["disk_ratio"] = ratio = use.disk_bytes / data.own_bytes
        more = f", {three_digits(ratio)} × your files"
    decoding = ", decoding included," if data.decoding_s else ""
    message = (
        f"Writing all {bytes_text(data.full_bytes)} takes {seconds_text(use.write_s)}{decoding} and "
        f"{bytes_text(use.disk_bytes)} on disk{more}" + (f"; reading uses {memory}" if memory else "")
    )
    yield Finding("cost", message, values=values)
    if data.source is not None and data.source.losses:
        yield Finding("conversion-loses", f"Conversion loses: {'; '.join(data.source.losses)}")
    if use.against_default is not None and default is not None:
        yield break_even(result, use, default, requirements)


def break_even(result: SearchResult, use: Finalist, default: Finalist, requirements: Requirements) -> Finding:
    """Return the epochs after which writing the data pays off, from the interval of the gain."""
    if use.format == default.format and not default.unknown_files:
        return Finding("break-even", "The default reads the same format: only the loader changes")
    if result.data.scale >= LARGER and first_wait(default, result.data) >= MUCH_WAITING:
        return Finding("break-even", "The break-even point is unknown: so few data were measured")
    samples = result.data.manifest.schema.samples * result.data.scale
    ends = use.against_default.ratio.ends if use.against_default is not None else None
    saved_s = [samples / default.rate * (1 - 1 / end) for end in ends or ()]
    if not saved_s or min(saved_s) <= 0:
        why = "the interval of the gain includes no gain at all" if saved_s else "too few rounds"
        return Finding("break-even", f"The break-even point is unknown: {why}")
    epochs = sorted(use.write_s / one for one in saved_s)
    texts = dict.fromkeys(f"{one:.1f}" for one in epochs)
    within = f"{' to '.join(texts)} epochs" if epochs[1] > 1 else "less than one epoch"
    planned = requirements.epochs
    late = f", more than the {counted(planned, 'epoch')} of the training" if epochs[0] > planned else ""
    values: Values = {"epochs_low": epochs[0], "epochs_high": epochs[1], "planned_epochs": planned}
    return Finding("break-even", f"Writing the data pays off after {within}{late}", values=values)


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
        yield Finding("basis", message, hint, {"formats": names})
    if data.scale >= LARGER:
        where = "in the same store" if data.manifest.url else f"on the same disk with a {data.cache} cache"
        message = (
            f"Measured on {bytes_text(schema.logical_bytes)} {where}; costs of all "
            f"{bytes_text(data.full_bytes)} are extrapolated {three_digits(data.scale)}-fold: rough"
        )
        values: Values = {"measured_bytes": schema.logical_bytes, "scale": data.scale}
        yield Finding("basis", message, values=values)
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
    return Finding("image-sizes", message, hint, {"shape": shape})


def _size_dependence(result: SearchResult) -> Iterator[Finding]:
    """Yield that the speed depends on the number of samples, if rounds over half of them show it."""
    key = result.fastest.key
    half = [one.samples_per_s for one in result.half_size.valid_records] if result.half_size else []
    whole = [one.samples_per_s for one in rounds_of(result.final, key)]
    ratio = stats.ratio(half, whole) if half and whole else None
    if ratio is None or ratio.low is None or ratio.high is None:
        return
    if ratio.low > SAME or ratio.high < 1 / SAME:
        label = texts_of(result.finalists)[key]
        times = f"On half as many samples {label} is {ratio_text(ratio, 'as fast')}"
        message = f"{times}: its speed depends on the amount of data"
        yield Finding("basis", message, values={"case": label, "ratio": ratio.median})


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


def raced_formats(result: SearchResult) -> list[Finalist]:
    """Return each format by its fastest case in the race, fastest first, and if it is Pareto-optimal."""
    rates = {case.key: rate for case in result.race.cases if (rate := rate_of(result.race, case.key))}
    measured = [case for case in result.race.cases if case.key in rates]
    names, best = labels_of(measured), dict[str, Finalist]()
    for case in sorted(measured, key=lambda case: -rates[case.key]):
        if case.variant not in best:
            one = measured_case(result, case, names[case.key], rounds_of(result.race, case.key), ())
            best[case.variant] = replace(one, format=case.variant)
    merits = {variant: (one.rate, -one.disk_bytes) for variant, one in best.items()}
    return [
        one
        if any(stats.dominates(other, merits[variant]) for other in merits.values())
        else replace(one, roles=[PARETO])
        for variant, one in best.items()
    ]


def alternatives(result: SearchResult, use: Finalist) -> Iterator[Finding]:
    """Yield cases to use if something else matters more than speed."""
    data, names = result.data, texts_of(result.race.cases)
    rates = {case.key: rate for case in result.race.cases if (rate := result.rate(case))}
    cases, best = [case for case in result.race.cases if case.key in rates], max(rates.values())
    used = next(case for case in result.race.cases if result.final_case(case).key == use.key)

    def alternative(aim: str, among: Sequence[Case], size: float | None = None) -> Finding:
        fastest = max(among, key=lambda case: rates[case.key])
        name, speed = names[fastest.key], rates[fastest.key] / best
        part, more = ("", {}) if size is None else (f"{size:.0%} of the bytes, ", {"size": size})
        message = f"For {aim}: {name}, {part}{_speed_text(speed)}"
        return Finding("alternative", message, values={"for": aim, "case": name, "speed": speed, **more})

    stored = {case.key: data.full_stored_bytes(case.variant) for case in cases}
    least = min(stored.values())
    if least < SMALLER * stored[used.key]:
        small = [case for case in cases if stored[case.key] == least]
        yield alternative("least disk space", small, least / stored[used.key])
    plain = [case for case in cases if not packages_of(case)]
    if plain and packages_of(used):
        yield alternative("nothing to install", plain)
    yield from _without_conversion(result, used, rates)
    for word in {case.loader.variant: case for case in result.finalists if case.loader.user_defined}:
        message = f"Your own loader: 'iobench diagnose {word}' tries what would make it faster as it is"
        yield Finding("alternative", message, values={"for": "your own loader", "case": word})
    shuffled = [case for case in cases if case.order == "random"]
    if used.order == "block" and shuffled:
        yield alternative("full shuffle", shuffled)
    # the final rounds say more about finalists
    raced = {case.key: rate_of(result.race, case.key) or 0.0 for case in cases}
    others = [case for case in cases if result.final_case(case).key not in result.roles]
    close = [names[case.key] for case in others if raced[case.key] >= CLOSE * max(raced.values())]
    if close:
        named = "; ".join(close[:MAX_CLOSE])
        message = f"Also within {1 - CLOSE:.0%} of the fastest in the race: {named}"
        yield Finding("alternative", message, values={"for": "speed", "case": named, "count": len(close)})


def _without_conversion(result: SearchResult, used: Case, rates: Mapping[str, float]) -> Iterator[Finding]:
    data = result.data
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
        values: Values = {"for": "no conversion", "case": label, "gain": gain, "speed": speed}
        yield Finding("alternative", f"Without a conversion: {label}{other}, {times}", values=values)


def _speed_text(speed: float) -> str:
    """Return a share of the fastest speed; of small shares the time, which a percentage rounds to nothing."""
    return f"{speed:.0%} of the speed" if speed >= SLOW else f"takes {three_digits(1 / speed)} × as long"


def skipped_cases(race: Run) -> Iterator[Finding]:
    """Yield the cases that failed in the race, or that there was no time for."""
    labels = texts_of(race.cases)
    yield from _failed(race, "")
    yield from answer.no_time([labels[key] for key in race.skipped])


def _failed(run: Run, when: str) -> Iterator[Finding]:
    labels = texts_of(run.cases)
    return answer.failures([(labels[key], error) for key, error in run.failures.items()], when)
