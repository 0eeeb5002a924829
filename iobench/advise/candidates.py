"""Cases that take part in the race, and the reasons why others do not."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from iobench import formats
from iobench.advise.requirements import CORE, Requirements
from iobench.base.errors import InvalidSettings, IobenchError, MissingDependency
from iobench.base.finding import Finding
from iobench.base.units import bytes_text
from iobench.bench.case import Case
from iobench.bench.case_grid import cases_of
from iobench.bench.options import RunOptions
from iobench.dataset.manifest import Manifest
from iobench.formats import Schema
from iobench.loading import loaders
from iobench.results.run_warning import Values

DEFAULT_LOADER, DEFAULT_FORMAT = "dataloader", "npy"
BUILT_IN = ("stream", "native", DEFAULT_LOADER)  # without a process per case, so they come first
FOR_STORES = "stream:threads=8,in_flight=128"  # more in flight than by default
MAX_REASONS = 4  # in the error for an empty set
CORE_PACKAGES = {"torch", "tensordict", "numpy", "h5py", "lmdb"}  # installed with iobench
MARGIN = 1.05  # of the disk limit, for estimates


@dataclass
class CandidateSet:
    """The cases that take part, and why others were skipped."""

    cases: list[Case]
    skipped: list[Finding]


def loader_words(requirements: Requirements, remote: bool = False) -> list[str]:
    """Return the loaders with their common settings: defaults, recommended options, one worker per core.

    The user's own functions restrict nothing. For a `remote` dataset they are the built-in ones, a request
    per sample last and only by workers: one batch of it may take all the time for verification.

    Loaders whose content is verified quickly come first: with little time only these can be raced.
    """
    own = [word for word in requirements.loaders if loaders.is_target(word)]
    named = [word for word in requirements.loaders if word not in (*own, "all")]
    if named and "all" not in requirements.loaders:
        return sorted([*own, *named], key=lambda word: word.partition(":")[0] not in BUILT_IN[:2])
    cores = len(os.sched_getaffinity(0))
    usual = f"{DEFAULT_LOADER}:num_workers={cores}"
    by_batch = [f"{DEFAULT_LOADER}:fetch=batch", f"{usual},fetch=batch"]
    if remote:
        return [*own, FOR_STORES, *BUILT_IN[:2], *by_batch, usual]
    built_in = [*own, *BUILT_IN, by_batch[0], usual, by_batch[1]]
    if requirements.only == CORE:
        return built_in
    others = [name for name in loaders.names() if name not in BUILT_IN]
    return [*built_in, *others, *filter(None, map(_with_recommended_options, others))]


def _with_recommended_options(name: str) -> str | None:
    """Return a loader with the options its documentation recommends; None where these are the defaults."""
    try:
        return loaders.class_of(name).recommended_variant()
    except IobenchError:
        return None  # a broken package: the loader itself is reported as skipped


def storable_variants(schema: Schema, requirements: Requirements) -> tuple[list[str], list[Finding]]:
    """Return the format variants that can hold such samples on the disk, and why others cannot."""
    variants, skipped = [], list[Finding]()
    for word in formats.names() if "all" in requirements.formats else requirements.formats:
        try:
            format = formats.parse(word)
            if "all" in requirements.formats and not format.offered:
                continue
            format.check_schema(schema)
            scale = (requirements.full_bytes or 0) / schema.logical_bytes or 1
            bound = format.size_bound(schema) * scale
        except IobenchError as error:
            if "all" not in requirements.formats:
                raise
            skipped.append(skipped_by(error, format=word))
            continue
        limit = requirements.max_disk_bytes
        if limit is not None and bound > MARGIN * limit:
            skipped.append(_disk_limit(format.variant, bound, limit, "up to "))
            continue
        if requirements.only != CORE or formats.type_of(format.name).library in CORE_PACKAGES:
            variants.append(format.variant)  # candidate_set says why the others are skipped
    return variants, skipped


def candidate_set(
    manifest: Manifest, requirements: Requirements, device: str, cache: str, added: Sequence[str] = ()
) -> CandidateSet:
    """Return every case that fits the requirements, the default first, then built-in loaders.

    `added` are the variants of the user's own files. They take part, and the first is the default's.
    InvalidSettings if no case fits (``nothing-fits``).
    """
    words = requirements.formats
    if "all" not in words:
        words = tuple(dict.fromkeys([*words, *added]))
    for word in requirements.formats:
        if word != "all":
            formats.parse(word)  # an unknown format is reported once, not for each loader
    limit, scale = requirements.max_disk_bytes, (requirements.full_bytes or 0) / manifest.schema.logical_bytes
    too_large = {
        variant: _disk_limit(variant, one.stored_bytes * (scale or 1), limit)
        for variant, one in manifest.artifacts.items()
        if limit is not None and not one.added and one.stored_bytes * (scale or 1) > limit
    }
    options = RunOptions(
        format=words,
        order=requirements.orders,
        batch_size=requirements.batch_sizes,
        cache=(cache,),
        seed=requirements.seed,
    )
    cases, reasons = _cases_by_loader(manifest, requirements, options, device)
    cases = [case for case in cases if case.variant not in too_large]
    skipped = [*too_large.values(), *reasons]
    if requirements.only == CORE:
        cases = [case for case in cases if not packages_of(case)]
        message = "formats and loaders that need other packages are excluded by --only core"
        skipped.insert(0, Finding("excluded", message))
    required = requirements.required_shuffle
    for order in requirements.orders:
        if (quality := _shuffle_of(manifest, requirements, order)) < required:
            message = f"{order} order: shuffle quality {quality:.2f}, less than --min-shuffle {required:g}"
            values: Values = {"order": order, "shuffle_quality": quality, "required": required}
            skipped.insert(0, Finding("excluded", message, values=values))
            cases = [case for case in cases if case.order != order]
    if not cases:
        why = "; ".join(one.sentence for one in skipped[:MAX_REASONS]) or "no format is prepared"
        more = len(skipped) - MAX_REASONS
        also = f"; and {more} more" if more > 0 else ""
        raise InvalidSettings(f"nothing fits the requirements: {why}{also}", kind="nothing-fits")
    first = default_case(cases, next(iter(added), None))  # the others are compared with it
    ordered = [*([first, *_likely_rivals(cases, first, added[1:])] if first else []), *cases]
    return CandidateSet(list({case.key: case for case in ordered}.values()), skipped)


def _likely_rivals(cases: Sequence[Case], default: Case, decoders: Sequence[str]) -> list[Case]:
    """Return the cases to compare with the default first: the likeliest winner, then without a conversion.

    These are stream over the default format, stream over the user's files with other `decoders`, the
    built-in loaders over the default's own, and native over the default format. Where other programs keep
    the processors busy, a loader without threads wins.
    """
    likely = [("stream", DEFAULT_FORMAT), *(("stream", variant) for variant in decoders)]
    likely += [*((word, default.variant) for word in BUILT_IN[:2]), (BUILT_IN[1], DEFAULT_FORMAT)]
    alike = [case for case in cases if (case.order, case.batch_size) == (default.order, default.batch_size)]
    return [
        case
        for word, variant in likely
        for case in alike
        if (loader_word(case), case.variant) == (word, variant)
    ]


def skipped_by(error: IobenchError, prefix: str = "", **values: str) -> Finding:
    """Return the finding for a format or loader that an error excludes."""
    return Finding(error.kind, prefix + str(error.changed(hint=None)), error.hint, dict(values))


def _cases_by_loader(
    manifest: Manifest, requirements: Requirements, options: RunOptions, device: str
) -> tuple[list[Case], list[Finding]]:
    cases, reasons = list[Case](), dict[str, Finding]()
    for word in loader_words(requirements, bool(manifest.url)):
        try:
            cases += cases_of(manifest, replace(options, loader=(word,)), [device])
        except IobenchError as error:
            if word in requirements.loaders:
                raise
            named = isinstance(error, MissingDependency) or str(error).startswith(f"loader {word} ")
            prefix = "" if named else f"loader {word}: "
            reasons.setdefault(word.partition(":")[0], skipped_by(error, prefix, loader=word))
    return cases, list(reasons.values())


def _shuffle_of(manifest: Manifest, requirements: Requirements, order: str) -> float:
    """Return the lowest shuffle quality of an order's batches: see `iobench.loading.order`."""
    if order == "random":
        return 1.0
    schema, loader = manifest.schema, loaders.get(DEFAULT_LOADER)
    cases = [Case("", "", "", loader, order=order, batch_size=size) for size in requirements.batch_sizes]
    return min(case.row_order(schema).shuffle_quality(schema.samples) for case in cases)


def packages_of(case: Case) -> set[str]:
    """Return the packages that a case needs beyond those of iobench and of the user's own loader."""
    if case.loader.user_defined:
        return set()
    needed = {formats.type_of(formats.parse(case.variant).name).library, type(case.loader).library}
    return needed - CORE_PACKAGES


def loader_word(case: Case) -> str:
    """Return the loader of a case as it is typed, without options that follow from the device."""
    if case.loader.user_defined:
        return case.loader.variant
    plain = type(case.loader)()
    free, decided = plain.options, plain.on(case.device).options
    same = {name: free[name] for name, value in case.loader.options.items() if value == decided[name]}
    return replace(case.loader, **same).variant


def default_case(cases: Sequence[Case], own: str | None = None) -> Case | None:
    """Return the case that others are compared with: the user's own function, or DataLoader by sample.

    DataLoader reads the user's `own` files, if they are measured, with a worker per core, as is usual; else
    the default format, or the first one, with its defaults.
    """
    functions = [case for case in cases if case.loader.user_defined]
    if functions:
        return next((case for case in functions if case.variant == own), functions[0])
    plain = [case for case in cases if loader_word(case) == DEFAULT_LOADER and case.order != "block"]
    if own is None:
        return next((case for case in plain if case.variant == DEFAULT_FORMAT), plain[0] if plain else None)
    usual = f"{DEFAULT_LOADER}:num_workers={len(os.sched_getaffinity(0))}"
    with_workers = [case for case in cases if loader_word(case) == usual and case.order != "block"]
    over_own = [case for case in [*with_workers, *plain] if case.variant == own]
    return over_own[0] if over_own else default_case(cases)


def _disk_limit(variant: str, disk_bytes: float, limit: int, bound: str = "") -> Finding:
    message = f"{variant}: {bound}{bytes_text(disk_bytes)} on disk, more than {bytes_text(limit)}"
    values: Values = {"format": variant, "disk_bytes": disk_bytes, "limit_bytes": limit}
    return Finding("excluded", message, values=values)
