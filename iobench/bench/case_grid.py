"""Cases of a run: every combination that is possible of what was asked for, and why others are not."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from iobench import formats
from iobench.base.errors import InvalidOption, InvalidSettings
from iobench.base.finding import Finding
from iobench.base.text import enumerated
from iobench.base.units import counted
from iobench.bench.case import COLD_OBJECTS, REMOTE, WARM_OBJECTS, Case, content_of
from iobench.bench.options import RunOptions
from iobench.dataset.manifest import Manifest, missing_libraries
from iobench.formats import Format, Schema
from iobench.loading import loaders
from iobench.loading.batching import BLOCK_BYTES, WINDOW_BYTES, Batching
from iobench.loading.collate import EXAMPLES, JAGGED, Collate
from iobench.loading.loaders import Loader
from iobench.loading.order import refuse_ragged


def requested_variants(manifest: Manifest, words: Sequence[str]) -> list[str]:
    """Return the variants of a dataset, those that are named or all that can be read here."""
    every, missing = list(manifest.artifacts), missing_libraries(manifest)
    if "all" in words and every and len(missing) == len(every):
        raise next(iter(missing.values()))
    usable = [variant for variant in every if variant not in missing]
    named = usable if "all" in words else [formats.parse(word).variant for word in words]
    for variant in named:
        if variant not in every:
            manifest.opener(variant)  # raises the error for an artifact that is missing
    return list(dict.fromkeys(named))


def requested_loaders(options: RunOptions) -> Iterator[Loader]:
    """Yield every requested loader with each combination of the plain options that it has."""
    named = [(word, loaders.parse(word)) for word in requested_words(options)[0]]
    if not named:
        expected = f"{', '.join(loaders.names())} or all"
        raise InvalidSettings("no loader was named", kind="no-loaders", expected=expected)
    for name in options.loader_options:
        if not any(name in loader.settable for _, loader in named):
            shown = ", ".join(dict.fromkeys(loader.display_name for _, loader in named))
            hint = "'iobench loaders' lists the options of each loader"
            raise InvalidSettings(f"{shown}: no option {name}", kind="unknown-option", hint=hint)
    for word, loader in named:
        given = {pair.partition("=")[0] for pair in word.partition(":")[2].split(",")}
        valid, problems = grid_of(loader, options, given)
        if not valid:
            raise problems[0]
        yield from valid
        tuned = loader.recommended_variant() if options.recommended_options and word == loader.name else None
        if tuned is not None:
            yield loaders.parse(tuned)


def requested_words(options: RunOptions) -> tuple[list[str], list[str]]:
    """Return the requested loaders, each once, and why loaders of `all` cannot be used here."""
    if "all" not in options.loader:
        return list(dict.fromkeys(options.loader)), []
    known = {one["name"]: one["usable"] for one in loaders.describe()}
    named = [word for word in options.loader if word != "all"]
    words = [*named, *(name for name, usable in known.items() if usable == "yes" and name not in named)]
    return words, [usable for usable in known.values() if usable != "yes"]


def grid_of(
    loader: Loader, options: RunOptions, given: Container[str] = ()
) -> tuple[list[Loader], list[InvalidOption | InvalidSettings]]:
    """Return the loader with each valid combination of plain options, and the errors of the others.

    Without the options that are `given` in its word.
    """
    every = options.loader_options.items()
    values = {name: value for name, value in every if name in loader.settable and name not in given}
    valid, problems = [], list[InvalidOption | InvalidSettings]()
    for combination in itertools.product(*values.values()):
        try:
            valid.append(replace(loader, **dict(zip(values, combination, strict=True))))
        except (InvalidOption, InvalidSettings) as error:
            problems.append(error)
    return valid, problems


def multi_rank_obstacle(loader: Loader, isolate: bool | None) -> InvalidSettings | None:
    """Return why a loader cannot be measured over several ranks; None if it can."""
    if loader.ranks_obstacle:
        return loader.ranks_obstacle
    if isolate or (loader.isolated and isolate is None):
        problem = "each of its cases needs a process of its own, which ranks do not provide"
        return InvalidSettings(problem, kind="ranks-isolated", hint="add --no-isolate")
    return None


def multi_rank_cases(cases: Sequence[Case], world_size: int, isolate: bool | None, named: bool) -> list[Case]:
    """Return the cases that `world_size` ranks can measure.

    Raises InvalidSettings if a case trains a model, or if its loader cannot be measured over ranks and was
    `named` by the user.
    """
    ranks, possible = f"over {counted(world_size, 'rank')}", list[Case]()
    for case in cases:
        if case.model != "none":
            problem = f"--model {case.model} {ranks}: ranks do not train a shared model"
            hint = "give --step-ms, the time that your training step takes"
            raise InvalidSettings(problem, kind="ranks-model", hint=hint)
        obstacle = multi_rank_obstacle(case.loader, isolate)
        if obstacle is None:
            possible.append(case)
        elif named:
            raise obstacle.changed(problem=f"--loader {case.loader.display_name} {ranks}: {obstacle.problem}")
    return possible


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
    own = loader.on(combination["device"])
    return Case(manifest.name, content_of(manifest), variant=variant, loader=own, **combination)


def _isolated(options: RunOptions, grid: Sequence[Loader]) -> bool:
    """Return whether cases have processes of their own: all of them if one needs it."""
    foreign = [loader.display_name for loader in grid if loader.user_defined]
    if foreign and options.isolate is False:
        problem = f"{foreign[0]} needs a process of its own"
        raise InvalidSettings(problem, kind="conflicting-options", hint="remove --no-isolate")
    return any(loader.isolated for loader in grid) if options.isolate is None else options.isolate


def _combinations(options: RunOptions, devices: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield each combination of the facets that options give, by the names of Case's fields."""
    facets = {spec.name for spec in fields(Case)} - {"loader", "device"}
    given = {spec.name: getattr(options, spec.name) for spec in fields(options) if spec.name in facets}
    values = {name: value if isinstance(value, tuple) else (value,) for name, value in given.items()}
    steps = [value / 1000 for value in options.step_ms]
    for combination in itertools.product(devices, *values.values(), steps):
        yield dict(zip(("device", *values, "step_s"), combination, strict=True))


def check_caches(manifest: Manifest, options: RunOptions) -> None:
    """Raise InvalidSettings for a cold cache of objects without a cache, and a cache without objects."""
    cached = any(options.object_cache)
    if manifest.url and "cold" in options.cache and not cached:
        raise InvalidSettings(
            "--cache cold with a dataset in an object store, which no page cache holds",
            kind="conflicting-options",
            hint="omit --cache, or add --object-cache to measure the first epoch with an object cache",
        )
    if cached and not manifest.url:
        problem = "--object-cache with a dataset on a disk"
        raise InvalidSettings(problem, kind="conflicting-options", hint="omit --object-cache")


def check_ragged(schema: Schema, grid: Sequence[Loader], options: RunOptions) -> None:
    """Raise InvalidSettings for samples that differ in length if no loader delivers them, or with a model.

    Raises it also for a way to make batches of them if there are none, or if loaders cannot follow it.
    """
    if any(model != "none" for model in options.model):
        refuse_ragged(schema, "--model", hint="use --step-ms")
    given = {"--collate": options.collate != (JAGGED,), "--batch-tokens": options.batch_tokens is not None}
    foreign = [loader for loader in grid if loader.user_defined]
    if given["--batch-tokens"] and all(loader.iterable_style for loader in grid):
        foreign = list(grid)
    for option in (name for name, is_given in given.items() if is_given):
        if not schema.ragged:
            raise InvalidSettings(
                f"{option} is for samples that differ in length",
                kind="conflicting-options",
                expected="a field like tokens=uint16[*]",
                found="fields of fixed shape",
                hint=f"omit {option}",
            )
        if foreign:
            problem = f"{option} with {foreign[0].display_name}, which makes its batches itself"
            hint = f"omit {option}{', or run it by itself' * (len(foreign) < len(grid))}"
            raise InvalidSettings(problem, kind="conflicting-options", hint=hint)
    for word in options.collate:
        Collate.parse(word).over(schema)
    if not any(loader.ragged for loader in grid):
        grid[0].check_schema(schema)


def no_cases(manifest: Manifest, variants: Sequence[str], grid: Sequence[Loader], options: RunOptions) -> str:
    """Return why these loaders, formats, orders and ways to make batches give no case."""
    orders = options.order
    names, in_order = enumerated([loader.variant for loader in grid]), f"in {' or '.join(orders)} order"
    subject = f"{'loader' if len(grid) == 1 else 'loaders'} {names}"
    if not any(order in loader.orders for loader in grid for order in orders):
        return f"{subject} cannot read {in_order}"
    ways = [Collate.parse(word) for word in options.collate]
    if not any(loader.collates(way) for loader in grid for way in ways):
        others = [word for word in EXAMPLES if any(loader.collates(Collate.parse(word)) for loader in grid)]
        asked = " or ".join(options.collate)
        return f"{subject} cannot make batches by --collate {asked}; give --collate {' or '.join(others)}"
    if not any(loader.reads_at(manifest.url) for loader in grid):
        return "; ".join(_elsewhere(grid, manifest.url))
    if any(options.object_cache) and not any(cacheable(one, manifest, v) for one in grid for v in variants):
        return _uncached(names)
    what = f"none of {enumerated(variants)}" if variants else "no format"
    verb = "reads" if len(grid) == 1 else "read"
    return f"dataset {manifest.name}: {subject} {verb} {what} {in_order}"


def skip_notes(manifest: Manifest, options: RunOptions, world_size: int = 1) -> list[Finding]:
    """Return a note (kind `skipped`) for everything requested that makes no case.

    `values["reason"]` is `missing-dependency` (a loader of `all` or a prepared format whose library is not
    installed), `reads-nothing` (a loader that reads none of the formats in any of the orders), `ragged` (a
    loader that does not deliver samples that differ in length), `own-batches` (one that makes its batches
    itself, with --batch-tokens), `ranks` (several ranks cannot use it),
    `address` (a loader that reads datasets on a disk, or at other addresses than this one),
    `object-cache` (a loader that reads an address by a client of its own),
    `invalid-options` (options that exclude each other), or `unknown-files` (cold rounds of a loader whose
    files are unknown).
    """
    words, missing = requested_words(options)
    without = missing_libraries(manifest) if "all" in options.format else {}
    notes = [_skipped("missing-dependency", why) for why in (*missing, *map(str, without.values()))]
    named = [loaders.parse(word) for word in words]
    notes += [_skipped("address", why) for why in _elsewhere(named, manifest.url)]
    here = [one for one in named if one.reads_at(manifest.url)]
    variants = [formats.parse(word) for word in requested_variants(manifest, options.format)]
    orders = options.order
    idle = [one for one in here if not {*orders} & {*one.orders} or not any(map(one.reads, variants))]
    for loader in here:
        if loader not in idle:
            notes += _obstacles(loader, manifest, options, world_size)
        notes += [_skipped("invalid-options", str(one)) for one in grid_of(loader, options)[1]]
        if loader.own_data and "cold" in options.cache:
            why = f"{loader.display_name} with a cold cache: iobench does not know which files it reads"
            notes.append(_skipped("unknown-files", why))
    if idle:
        read = f"{', '.join(one.variant for one in variants)} in {' or '.join(orders)} order"
        verb = "reads" if len(idle) == 1 else "read"
        why = f"{', '.join(one.variant for one in idle)}: {verb} none of {read}"
        notes.append(_skipped("reads-nothing", why))
    return notes


def _obstacles(loader: Loader, manifest: Manifest, options: RunOptions, world_size: int) -> Iterator[Finding]:
    """Yield why a loader that reads some of the formats makes no case, or none of some of them."""
    if manifest.schema.ragged and not loader.ragged:
        found = manifest.schema.ragged[0].typed
        yield _skipped("ragged", f"{loader.variant}: samples differ in length ({found})")
    elif options.batch_tokens is not None and loader.iterable_style:
        yield _skipped("own-batches", f"{loader.variant} makes its batches itself, without --batch-tokens")
    elif world_size > 1 and (obstacle := multi_rank_obstacle(loader, options.isolate)):
        why = f"{loader.display_name} over {counted(world_size, 'rank')}: {obstacle}"
        yield _skipped("ranks", why)
    elif any(options.object_cache):
        variants = [formats.parse(word) for word in requested_variants(manifest, options.format)]
        for why in _without_cache(loader, manifest, variants):
            yield _skipped("object-cache", why)


def cacheable(loader: Loader, manifest: Manifest, variant: str) -> bool:
    """Return whether iobench's own client requests what a loader reads of a variant in an object store."""
    remote = manifest.artifacts[variant].remote
    return remote is not None and remote.placed and loader.requests_ranges(manifest.url)


def _without_cache(loader: Loader, manifest: Manifest, variants: Iterable[Format]) -> Iterator[str]:
    """Yield a sentence about the formats that a loader reads without an object cache, if there are any."""
    read = [one.variant for one in variants if loader.reads(one)]
    uncached = [variant for variant in read if not cacheable(loader, manifest, variant)]
    if uncached:
        of = f" of {enumerated(uncached)}" if len(uncached) < len(read) else ""
        yield _uncached(f"{loader.display_name}{of}")


def _skipped(reason: str, sentence: str) -> Finding:
    return Finding("skipped", f"skipped: {sentence}", values={"reason": reason})


def _uncached(names: str) -> str:
    return f"{names} at this address: a client of its own reads, without the cache of --object-cache"


def _elsewhere(grid: Iterable[Loader], url: str) -> Iterator[str]:
    """Yield where the loaders that cannot read at an address can: one sentence for each set of places."""
    names: dict[tuple[str, ...], list[str]] = {}
    for loader in grid:
        if not loader.reads_at(url):
            schemes = ("", *loader.schemes) if loader.on_disk else loader.schemes
            names.setdefault(schemes, []).append(loader.display_name)
    for schemes, alike in names.items():
        verb = "reads" if len(set(alike)) == 1 else "read"
        here = _place(url.partition("://")[0])
        yield f"{enumerated(alike)} {verb} datasets {enumerated([*map(_place, schemes)])}, not {here}"


def _place(scheme: str) -> str:
    return f"at {scheme}://" if scheme else "on a disk"
