"""From what was measured to what to use: the choice, why, what it costs and when it has paid."""

from __future__ import annotations

import math
from collections.abc import Iterator

from iobench.base.text import enumerated
from iobench.base.units import MIB, bytes_text, counted, percent_text, seconds_text, three_digits
from iobench.dataset.manifest import Manifest
from iobench.recommendation.alternatives import (
    alternatives,
    case_labels,
    failed_later,
    raced,
    time_limited,
    untried,
    without_default,
)
from iobench.recommendation.choice import Choice, choose
from iobench.recommendation.code import loader_code, prepare_code
from iobench.recommendation.finalists import WORTH_IT, measured, rounds_of
from iobench.recommendation.measured_data import Data, other_samples
from iobench.recommendation.requirements import Requirements
from iobench.recommendation.result import Finalist, Recommendation, now
from iobench.recommendation.search import DEFAULT, FASTEST, Found
from iobench.results import stats
from iobench.results.stats import Comparison, Estimate
from iobench.results.verdict import ratio_text
from iobench.results.warnings import OF_THE_MACHINE, warnings_of

SPEAKS_AGAINST = (*OF_THE_MACHINE, "residency", "reclaimed", "opening")  # rounds are few: the answer says so
LONGER = "give a longer --max-time"  # which has rounds for as long as that
BUSY, LITTLE = 0.8, 0.5  # processors, and how much of a limit: so decoding is what a case waits for
FEW_BATCHES = 20  # in an epoch, of which the first wait is a large part


def answer(found: Found, requirements: Requirements) -> Recommendation:
    """The recommendation that the finalists' fresh rounds support."""
    candidates = measured(found)
    choice = choose(found, candidates)
    use = choice.use
    case = next(case for case in found.finalists if case.key == use.key)
    default = next((one for one in candidates if DEFAULT in one.roles), None)
    sentences = [
        _headline(choice, default, len(candidates) == 1, bool(found.data.added)),
        *([] if default else without_default(found)),
        *time_limited(found.race, requirements.max_time_s),
        *found.remarks,
        *_why(use),
        *_feeding(found, use, default, requirements, case.batch_size),
        *_costs(found, use, default, requirements),
        *_rests_on(found),
    ]
    records = [str(run.path) for run in (found.race, found.final, found.stepped, found.halved) if run]
    return Recommendation(
        choice.outcome,
        use,
        candidates,
        sentences,
        list(alternatives(found, use)),
        [*found.not_tried, *untried(found.race, requirements.max_time_s), *failed_later(found)],
        prepare_code(found.data, case),
        loader_code(found.data, case, requirements.epochs),
        records,
        found.data.manifest.name,
        raced(found),
        now(),
        list(_warnings(found)),
    )


def _warnings(found: Found) -> Iterator[str]:
    """What speaks against the fresh rounds: other work on the machine, and caches in another state."""
    records = [made for run in (found.final, found.stepped) if run for made in run.valid_records]
    for warning in warnings_of(records, more_rounds=LONGER):
        if warning.kind in SPEAKS_AGAINST:
            yield warning.sentence


def _headline(choice: Choice, default: Finalist | None, alone: bool, anew: bool) -> str:
    """What to use, by how much, and how sure that is; `anew` where the default read no file of the user's."""
    use = choice.use
    if choice.outcome == "fed":
        return (
            f"Loading is not your problem: with {use.label}, which people use by default, the device waits "
            f"{use.waits:.1%} of the time, and no loader can bring more than that."
        )
    if alone:
        return f"Nothing but {use.label} could be measured, so there is nothing to choose from."
    told = ""
    if use.against_default is not None and default is not None:
        what = "with it training is " if use.trained_per_s else ""
        told = f": {what}{ratio_text(use.against_default.ratio)} as fast as {default.label}, the default"
        told += ", over a sample written anew" if anew else ""
        if use.decisive_rounds >= stats.ENOUGH and use.against_default.outcome not in ("faster", "slower"):
            told += ", which may be no difference at all"
    return f"Use {use.label}{told}.{_how_sure(choice)}"


def _how_sure(choice: Choice) -> str:
    """What else might be as fast, and why this one was taken; nothing where it is surely the fastest."""
    use, others = choice.use, ", ".join(one.label for one in choice.tied)
    if choice.instead_of is not None:
        return (
            f" It is surely faster than the default, which cannot be said of {choice.instead_of.label} "
            f"({three_digits(choice.instead_of.decisive_per_s.median / use.decisive_per_s.median)} times its "
            f"median samples/s): that varied too much. Not told from the fastest: {others}."
        )
    if choice.tied and use.decisive_rounds < stats.ENOUGH:
        return (
            f" That rests on {counted(use.decisive_rounds, 'round')}, too few to be sure, so it counts as "
            f"tied with {others}: {LONGER}."
        )
    if choice.tied:
        return (
            f" Its speed cannot be told from that of {others}; of what came within {WORTH_IT:.0%} of the "
            "fastest it costs least."
        )
    return ""


def _why(use: Finalist) -> Iterator[str]:
    if use.reached is None:
        return
    speed, share = f"Why: it delivers {three_digits(use.bytes_per_s / MIB)} MiB/s", percent_text(use.reached)
    if use.decoding is not None and use.decoding >= BUSY and use.reached < LITTLE:
        yield (
            f"{speed}: decoding takes the processors, {use.decoding:.1f} of which it kept busy. The lowest "
            f"limit of this machine on its way ({use.limit}) is far off: that is {share} of it."
        )
    else:
        yield f"{speed}, {share} of what this machine can do here (limit: {use.limit})."


def _feeding(
    found: Found, use: Finalist, default: Finalist | None, requirements: Requirements, batch_size: int
) -> Iterator[str]:
    if use.waits is None:
        return
    step_ms, first = 1000 * requirements.step_s(batch_size), requirements.batch_sizes[0]
    scaled = batch_size != first and not requirements.measured_ms
    like = f" (in proportion: {requirements.step_ms:.3g} ms over {first} samples)" if scaled else ""
    said = f"With a step of {step_ms:.3g} ms{like} the device waits for data {use.waits:.1%} of the time"
    if default is not None and default is not use and default.waits is not None:
        said += f" ({default.waits:.1%} with {default.label})"
    yield said + ("." if use.waits < WORTH_IT else ": nothing that was tried keeps it busy.")
    batches = math.ceil(found.data.manifest.schema.samples / batch_size)
    if batches < FEW_BATCHES:
        yield (
            f"An epoch has only {counted(batches, 'batch', 'batches')} here, so that its first wait counts "
            "for much: with more data a smaller part of the time is waited."
        )


def _costs(found: Found, use: Finalist, default: Finalist | None, requirements: Requirements) -> Iterator[str]:
    memory = f"{bytes_text(use.memory_bytes)} of memory" if use.memory_bytes else ""
    if found.data.lies_there(use.format):
        yield "Your data lie in that format already: nothing is written anew" + (
            f", and it takes {memory}." if memory else "."
        )
        return
    yield (
        f"It costs {seconds_text(use.write_s)} to write all {bytes_text(found.data.full_bytes)} in that "
        f"format, {bytes_text(use.stored_bytes)} on disk" + (f", {memory}." if memory else ".")
    )
    if use.against_default is not None and default is not None:
        if use.format == default.format:
            yield "The default reads the same format: only the loader changes, and nothing is written anew."
        else:
            yield _break_even(found, use, default, requirements)


def _break_even(found: Found, use: Finalist, default: Finalist, requirements: Requirements) -> str:
    """After how many epochs writing the data anew has paid, from both ends of the interval."""
    samples = found.data.manifest.schema.samples * found.data.scale
    ratio = (use.against_default or Comparison(Estimate(1, None, None), "")).ratio
    before_s = samples / default.decisive_per_s.median
    if ratio.low is None or ratio.high is None:
        return "After how many epochs that has paid cannot be told: too few rounds."
    saved = [before_s * (1 - 1 / ratio.low), before_s * (1 - 1 / ratio.high)]
    if min(saved) <= 0:
        return "Whether writing the data anew ever pays cannot be told: the interval includes no gain at all."
    epochs = sorted(use.write_s / one for one in saved)
    said = f"Writing has paid after {epochs[0]:.1f} to {epochs[1]:.1f} epochs of training"
    late = f", longer than the {counted(requirements.epochs, 'epoch')} of yours" if epochs[0] > requirements.epochs else ""
    return f"{said}{late}."


def _rests_on(found: Found) -> Iterator[str]:
    """How far what was measured stands for the real data."""
    schema, data = found.data.manifest.schema, found.data
    if data.added:
        name, own = data.source.name if data.source else "", enumerated(data.added)
        yield (
            f"Your own files were not timed: a sample of them was written anew, in {own} too, and yours may "
            f"be laid out alternatives. 'iobench run --name {name}' measures them as they are."
        )
    if data.source is not None and data.source.description.get("kind") == "images":
        shape = "x".join(map(str, schema.fields[0].shape))
        yield f"Each image was scaled and cropped to {shape}, which --sample-shape changes."
    if data.scale >= 1.05:
        yield (
            f"All this was measured on {bytes_text(schema.logical_bytes)}, on the same disk with a "
            f"{data.cache} cache; what is said of all {bytes_text(data.full_bytes)} is "
            f"{three_digits(data.scale)} times as much."
        )
    if data.source is not None:
        yield _disk_notice(data)
    key = next(key for key, roles in found.roles.items() if FASTEST in roles)
    rates = [made.samples_per_s for made in found.halved.valid_records] if found.halved is not None else []
    whole = list(rounds_of(found.final, key).values())
    if rates and whole:
        ratio = stats.ratio(rates, whole)
        same = ratio.low is not None and ratio.high is not None and ratio.low > 0.9 and ratio.high < 1.1
        verdict = (
            "so its speed does not depend on how much data there is"
            if same
            else "so more data may be read at another speed"
        )
        label = case_labels(found.finalists)[key]
        yield f"On half as many samples {label} is {ratio_text(ratio)} as fast, {verdict}."


def _disk_notice(data: Data) -> str:
    """What the sample takes and where, and what others of the same name lie beside it."""
    stored, root = _stored(data.manifest), data.manifest.root
    said = (
        f"The sample takes {bytes_text(stored)} in {counted(len(data.manifest.artifacts), 'format')} and "
        f"stays in {root} for the next time: delete that folder when you need it no longer."
    )
    if left := [f"{one.root} ({bytes_text(_stored(one))})" for one in other_samples(data)]:
        said += f" Other samples of it, which iobench wrote, lie in {enumerated(left)}: delete them likewise."
    return said


def _stored(manifest: Manifest) -> int:
    return sum(one.stored_bytes for one in manifest.artifacts.values() if not one.added)
