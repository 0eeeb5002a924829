"""Grid of cases: every valid combination of the options of a run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from iobench import formats
from iobench.base.errors import InvalidSettings
from iobench.bench.case import COLD_OBJECTS, REMOTE, WARM_OBJECTS, Case, content_of
from iobench.bench.case_obstacles import cacheable, check_caches, check_ragged, no_cases
from iobench.bench.multi_rank import multi_rank_cases
from iobench.bench.options import RunOptions
from iobench.bench.requested import requested_loaders, requested_variants
from iobench.dataset.manifest import Manifest
from iobench.loading.batching import BLOCK_BYTES, WINDOW_BYTES, Batching
from iobench.loading.collate import Collate
from iobench.loading.loaders import Loader

OBJECT_CACHES = {"warm": WARM_OBJECTS, "cold": COLD_OBJECTS}


def cases_of(
    manifest: Manifest, options: RunOptions, devices: Sequence[str], world_size: int = 1
) -> list[Case]:
    """Return the cases of a run over a dataset, without invalid combinations.

    `devices` are devices that exist here. Raises InvalidSettings, InvalidOption, UnknownFormat or
    ManifestError if a requested case is impossible, or if no case is left.
    """
    check_caches(manifest, options)
    variants = requested_variants(manifest, options.format)
    grid = list(requested_loaders(options))
    check_ragged(manifest.schema, grid, options)
    cases = [
        case
        for combination in _combinations(options, devices)
        for variant in variants
        for loader in grid
        if (case := _case(manifest, variant, loader, options, combination)) is not None
    ]
    if world_size > 1:
        cases = multi_rank_cases(cases, world_size, options.isolate, named="all" not in options.loader)
    if not cases:
        raise InvalidSettings(no_cases(manifest, variants, grid, options), kind="no-cases")
    isolated = _isolated(options, [case.loader for case in cases])
    # the same for all, so that they remain comparable
    cases = [replace(case, isolated=isolated, world_size=world_size) for case in cases]
    return list({case.key: case for case in cases}.values())


def _case(
    manifest: Manifest, variant: str, loader: Loader, options: RunOptions, combination: dict[str, Any]
) -> Case | None:
    """Return the case of this combination; None if loader, format and order do not fit."""
    if combination["order"] not in loader.orders or not loader.reads(formats.parse(variant)):
        return None
    if manifest.schema.ragged and not loader.ragged:
        return None
    if not loader.collates(Collate.parse(combination["collate"])):
        return None
    added = manifest.added.get(variant)
    if added is not None and added.samples is not None and loader.format_names:
        return None  # its library would read all of the files
    if combination["batch_tokens"] is not None:
        if loader.iterable_style:
            return None  # it makes its batches itself
        divided = Batching(batch_tokens=combination["batch_tokens"])
        combination = {**combination, "batch_size": divided.mean_batch_size(manifest.schema)}
    if combination["order"] != "block":
        combination = {**combination, "block_bytes": BLOCK_BYTES, "window_bytes": WINDOW_BYTES}
    if loader.own_data and combination["cache"] == "cold":
        return None
    if not manifest.schema.ragged:
        combination = {**combination, "collate": None}
    if not loader.reads_at(manifest.url):
        return None
    if manifest.url:
        cached = bool(combination["object_cache"])
        if cached and not cacheable(loader, manifest, variant):
            return None
        combination = {**combination, "cache": OBJECT_CACHES[combination["cache"]] if cached else REMOTE}
    return Case(
        dataset=manifest.name,
        content=content_of(manifest),
        variant=variant,
        loader=loader.on(combination["device"]),
        **combination,
    )


def _isolated(options: RunOptions, grid: Sequence[Loader]) -> bool:
    """Return whether cases have processes of their own: all of them if one needs it."""
    foreign = [loader.display_name for loader in grid if loader.user_defined]
    if foreign and options.isolate is False:
        raise InvalidSettings(
            f"{foreign[0]} needs a process of its own", kind="conflicting-options", hint="remove --no-isolate"
        )
    return any(loader.isolated for loader in grid) if options.isolate is None else options.isolate


def _combinations(options: RunOptions, devices: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield each combination of the facets that options give, by the names of Case's fields."""
    facets = {spec.name for spec in fields(Case)} - {"loader", "device"}
    given = {spec.name: getattr(options, spec.name) for spec in fields(options) if spec.name in facets}
    values = {name: value if isinstance(value, tuple) else (value,) for name, value in given.items()}
    steps = [value / 1000 for value in options.step_ms]
    for combination in itertools.product(devices, *values.values(), steps):
        yield dict(zip(("device", *values, "step_s"), combination, strict=True))
