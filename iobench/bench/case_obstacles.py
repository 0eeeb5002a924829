"""Obstacles: options that exclude each other, and why loaders, formats and orders make no case."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from iobench import formats
from iobench.base.errors import InvalidSettings
from iobench.base.finding import Finding
from iobench.base.text import enumerated
from iobench.base.units import counted
from iobench.bench.multi_rank import multi_rank_obstacle
from iobench.bench.options import RunOptions
from iobench.bench.requested import invalid_options, requested_variants, requested_words
from iobench.dataset.manifest import Manifest, missing_libraries
from iobench.formats import Format, Schema
from iobench.loading import loaders
from iobench.loading.collate import EXAMPLES, JAGGED, Collate
from iobench.loading.loaders import Loader
from iobench.loading.order import refuse_ragged


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
        raise InvalidSettings(
            "--object-cache with a dataset on a disk", kind="conflicting-options", hint="omit --object-cache"
        )


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
            raise InvalidSettings(
                f"{option} with {foreign[0].display_name}, which makes its batches itself",
                kind="conflicting-options",
                hint=f"omit {option}{', or run it by itself' * (len(foreign) < len(grid))}",
            )
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
        notes += [_skipped("invalid-options", str(one)) for one in invalid_options(loader, options)]
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
