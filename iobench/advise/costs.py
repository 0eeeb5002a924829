"""Findings about the cost of writing the data in another format, and its break-even point."""

from __future__ import annotations

from collections.abc import Iterator

from iobench import formats
from iobench.advise import sentences
from iobench.advise.recommendation import Finalist
from iobench.advise.requirements import Requirements
from iobench.advise.search import SearchResult
from iobench.base.finding import Finding
from iobench.base.units import bytes_text, counted, seconds_text, three_digits
from iobench.results.run_warning import Values


def costs(
    result: SearchResult, use: Finalist, default: Finalist | None, requirements: Requirements
) -> Iterator[Finding]:
    """Yield what it takes to write the data in the format to use, and when that pays off."""
    memory = sentences.memory(use.memory_bytes)
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
    yield Finding(
        "cost",
        f"Writing all {bytes_text(result.data.full_bytes)} takes {seconds_text(use.write_s)}{decoding} and "
        f"{bytes_text(use.disk_bytes)} on disk{more}" + (f"; reading uses {memory}" if memory else ""),
        values={**values, "memory_bytes": use.memory_bytes or 0},
    )
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
    ends = dict.fromkeys(f"{one:.1f}" for one in epochs)
    within = f"{' to '.join(ends)} epochs" if epochs[1] > 1 else "less than one epoch"
    message = f"Writing the data pays off after {within}"
    planned = requirements.epochs
    late = f", more than the {counted(planned, 'epoch')} of the training" if epochs[0] > planned else ""
    return Finding(
        "break-even",
        message + late,
        values={"epochs_low": epochs[0], "epochs_high": epochs[1], "planned_epochs": planned},
    )
