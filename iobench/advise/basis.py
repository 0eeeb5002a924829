"""Findings about how well the measurements of a recommendation represent the full data."""

from __future__ import annotations

import math
from collections.abc import Iterator

from iobench.advise.alternatives import case_labels
from iobench.advise.choice import rounds_of
from iobench.advise.measured_data import MeasuredData, other_samples
from iobench.advise.recommendation import FASTEST
from iobench.advise.search import SearchResult
from iobench.base.finding import Finding
from iobench.base.text import enumerated
from iobench.base.units import bytes_text, counted, shape_text, three_digits
from iobench.dataset.manifest import Manifest
from iobench.results import stats
from iobench.results.run_warning import Values
from iobench.results.verdict import ratio_text

SAME = 1.1  # ratio of speeds over half the samples and over all, up to which nothing is reported
CROPPED = (3, 224, 224)  # usual shape of images that are scaled to one
LARGER = 1.05  # ratio of the full data to the sample, from which on figures are extrapolated


def basis(result: SearchResult) -> Iterator[Finding]:
    """Yield how well the measurements represent the full data."""
    schema, data = result.data.manifest.schema, result.data
    if data.source is not None and data.source.description.get("kind") == "images":
        yield image_size(data)
    if data.manifest.url:
        yield formats_at_address(data)
    if data.scale >= LARGER:
        where = "in the same store" if data.manifest.url else f"on the same disk with a {data.cache} cache"
        yield Finding(
            "extrapolated",
            f"Measured on {bytes_text(schema.logical_bytes)} {where}; "
            f"costs of all {bytes_text(data.full_bytes)} are extrapolated "
            f"{three_digits(data.scale)}-fold: rough",
            values={"measured_bytes": schema.logical_bytes, "scale": data.scale},
        )
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
    whole = list(rounds_of(result.final, key).values())
    if half and whole:
        ratio = stats.ratio(half, whole)
        if ratio.low is None or ratio.high is None or (ratio.low <= SAME and ratio.high >= 1 / SAME):
            return  # no difference that matters, or none that so few rounds show
        label = case_labels(result.finalists)[key]
        yield Finding(
            "size-dependent",
            f"On half as many samples {label} is {ratio_text(ratio, 'as fast')}: its speed depends on the "
            "amount of data",
            values={"case": label, "ratio": ratio.median},
        )


def formats_at_address(data: MeasuredData) -> Finding:
    """Return that nothing is written to an object store, so that only its formats were compared."""
    names = ", ".join(data.added)
    return Finding(
        "formats-at-address",
        f"Only the formats at the address were compared ({names})",
        "to compare others, upload all to a new address: 'iobench prepare … --format A --format B --to …'",
        {"formats": names},
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
