"""Cases of a run: every combination that is possible of what was asked for, and why others are not."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from iobench import formats
from iobench.base.errors import InvalidOption, InvalidSettings
from iobench.base.finding import Finding
from iobench.base.text import enumerated
from iobench.base.units import counted
from iobench.bench.case import COLD_OBJECTS, REMOTE, WARM_OBJECTS, Case, content_of
from iobench.bench.options import RunOptions
from iobench.dataset.manifest import Manifest, missing_libraries
from iobench.formats import Schema
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
    request = _Request(manifest, options, variants, world_size)
    request.refuse_ranks(grid)
    cases = [
        _case(manifest, variant, loader, drawn)
        for drawn in _combinations(options, devices)
        for variant in variants
        for loader in grid
        if not request.obstacle(variant, loader, drawn)
    ]
    if not cases:
        reasons = [why for _, why in request.reasons(grid)]
        raise InvalidSettings(f"dataset {manifest.name}: {'; '.join(reasons)}", kind="no-cases")
    isolated = _isolated(options, [case.loader for case in cases])
    # the same for all, so that they remain comparable
    cases = [replace(case, isolated=isolated, world_size=world_size) for case in cases]
    return list({case.key: case for case in cases}.values())


def _combinations(options: RunOptions, devices: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield each combination of the facets that options give, by the names of Case's fields."""
    facets = {spec.name for spec in fields(Case)} - {"loader", "device"}
    given = {spec.name: getattr(options, spec.name) for spec in fields(options) if spec.name in facets}
    values = {name: value if isinstance(value, tuple) else (value,) for name, value in given.items()}
    steps = [value / 1000 for value in options.step_ms]
    for combination in itertools.product(devices, *values.values(), steps):
        yield dict(zip(("device", *values, "step_s"), combination, strict=True))


def _case(manifest: Manifest, variant: str, loader: Loader, drawn: dict[str, Any]) -> Case:
    """Return the case of a combination, without the facets that do not apply to it."""
    facets = dict(drawn)
    if facets["batch_tokens"] is not None:
        divided = Batching(batch_tokens=facets["batch_tokens"])
        facets["batch_size"] = divided.mean_batch_size(manifest.schema)
    if facets["order"] != "block":
        facets |= {"block_bytes": BLOCK_BYTES, "window_bytes": WINDOW_BYTES}
    if not manifest.schema.ragged:
        facets["collate"] = None
    if manifest.url:
        facets["cache"] = OBJECT_CACHES[facets["cache"]] if facets["object_cache"] else REMOTE
    own = loader.on(facets["device"])
    return Case(manifest.name, content_of(manifest), variant=variant, loader=own, **facets)


UNREAD = {"order", "format"}  # a loader with no other obstacle reads nothing of what was asked for


@dataclass(frozen=True)
class _Request:
    """Request for cases of a dataset, and the reasons why combinations of it make none."""

    manifest: Manifest
    options: RunOptions
    variants: Sequence[str]
    world_size: int

    def obstacle(self, variant: str, loader: Loader, drawn: Mapping[str, Any]) -> str:
        """Return the reason why a combination makes no case; empty if it makes one."""
        manifest, added = self.manifest, self.manifest.added.get(variant)
        in_part = added is not None and added.samples is not None  # a library would read all of the files
        obstacles = {
            "address": not loader.reads_at(manifest.url),
            "order": drawn["order"] not in loader.orders,
            "format": not loader.reads(formats.parse(variant)),
            "first-rows": in_part and bool(loader.format_names),
            "ragged": bool(manifest.schema.ragged) and not loader.ragged,
            "collate": not loader.collates(Collate.parse(drawn["collate"])),
            "own-batches": drawn["batch_tokens"] is not None and loader.iterable_style,
            "unknown-files": loader.own_data and drawn["cache"] == "cold",
            "object-cache": bool(drawn["object_cache"]) and not _cacheable(loader, manifest, variant),
            "ranks": self._over_ranks(loader) is not None,
        }
        return next((reason for reason, applies in obstacles.items() if applies), "")

    def reasons(self, grid: Sequence[Loader]) -> Iterator[tuple[str, str]]:
        """Yield why loaders make no case, or none of some formats: a reason, and a sentence with it."""
        elsewhere, idle, orders = list[Loader](), list[Loader](), set[str]()
        alone: dict[str, list[str]] = {}  # loaders that ranks cannot use, by the cause
        combinations = list(_combinations(self.options, ("cpu",)))
        for loader in grid:
            met: dict[str, dict[str, None]] = {}  # variants, by reason
            for drawn, variant in itertools.product(combinations, self.variants):
                met.setdefault(self.obstacle(variant, loader, drawn), {})[variant] = None
            if "address" in met:
                elsewhere.append(loader)
            elif met.keys() <= UNREAD:
                idle.append(loader)
                orders |= met.keys()
            else:
                read = {variant for reason in met.keys() - UNREAD for variant in met[reason]}
                if obstacle := self._over_ranks(loader) if "ranks" in met else None:
                    alone.setdefault(str(obstacle), []).append(loader.display_name)
                for reason, concerned in met.items():
                    some = f" of {enumerated([*concerned])}" if len(concerned) < len(read) else ""
                    if why := self._sentence(reason, loader, some):
                        yield reason, why
        for cause, names in alone.items():
            yield "ranks", f"{', '.join(names)} over {counted(self.world_size, 'rank')}: {cause}"
        for why in _elsewhere(elsewhere, self.manifest.url):
            yield "address", why
        if idle:
            who, verb = ", ".join(one.variant for one in idle), "reads" if len(idle) == 1 else "read"
            asked = f"in {' or '.join(self.options.order)} order"
            what = f"none of {', '.join(self.variants)}" if self.variants else "no format"
            why = f"{who} cannot read {asked}" if orders == {"order"} else f"{who} {verb} {what} {asked}"
            yield "reads-nothing", why

    def _sentence(self, reason: str, loader: Loader, some: str) -> str:
        """Return why a loader makes no case of `some` formats that it reads; empty if that needs no word."""
        match reason:
            case "ragged":
                return f"{loader.variant}: samples differ in length ({self.manifest.schema.ragged[0].typed})"
            case "collate":
                ways = [word for word in EXAMPLES if loader.collates(Collate.parse(word))]
                refused = [word for word in self.options.collate if not loader.collates(Collate.parse(word))]
                cannot = f"cannot make batches by --collate {' or '.join(refused)}"
                return f"{loader.variant} {cannot}; give --collate {' or '.join(ways)}"
            case "own-batches":
                return f"{loader.variant} makes its batches itself, without --batch-tokens"
            case "unknown-files":
                return f"{loader.display_name} with a cold cache: iobench does not know which files it reads"
            case "object-cache":
                reads = "a client of its own reads, without the cache of --object-cache"
                return f"{loader.display_name}{some} at this address: {reads}"
        return ""

    def _over_ranks(self, loader: Loader) -> InvalidSettings | None:
        return multi_rank_obstacle(loader, self.options.isolate) if self.world_size > 1 else None

    def refuse_ranks(self, grid: Sequence[Loader]) -> None:
        """Raise InvalidSettings for what ranks cannot do: train a model, or use a loader that was named."""
        ranks = f"over {counted(self.world_size, 'rank')}"
        models = [model for model in self.options.model if model != "none"]
        if self.world_size > 1 and models:
            problem = f"--model {models[0]} {ranks}: ranks do not train a shared model"
            hint = "give --step-ms, the time that your training step takes"
            raise InvalidSettings(problem, kind="ranks-model", hint=hint)
        for loader in grid if "all" not in self.options.loader else ():
            if obstacle := self._over_ranks(loader):
                problem = f"--loader {loader.display_name} {ranks}: {obstacle.problem}"
                raise obstacle.changed(problem=problem)


def _elsewhere(grid: Iterable[Loader], url: str) -> Iterator[str]:
    """Yield where the loaders that cannot read at an address can: one sentence for each set of places."""
    names: dict[tuple[str, ...], list[str]] = {}
    for loader in grid:
        schemes = ("", *loader.schemes) if loader.on_disk else loader.schemes
        names.setdefault(schemes, []).append(loader.display_name)
    for schemes, alike in names.items():
        verb = "reads" if len(set(alike)) == 1 else "read"
        here = _place(url.partition("://")[0])
        yield f"{enumerated(alike)} {verb} datasets {enumerated([*map(_place, schemes)])}, not {here}"


def _place(scheme: str) -> str:
    return f"at {scheme}://" if scheme else "on a disk"


def skip_notes(manifest: Manifest, options: RunOptions, world_size: int = 1) -> list[Finding]:
    """Return a note (kind `skipped`) for everything requested that makes no case.

    `values["reason"]` is `missing-dependency` (a loader of `all` or a prepared format whose library is not
    installed), `reads-nothing` (a loader that reads none of the formats in any of the orders), `ragged` (a
    loader that does not deliver samples that differ in length), `collate` (one that cannot make batches of
    them in this way), `own-batches` (one that makes its batches itself, with --batch-tokens), `ranks`
    (several ranks cannot use it), `address` (a loader that reads datasets on a disk, or at other addresses
    than this one), `object-cache` (a loader that reads an address by a client of its own),
    `invalid-options` (options that exclude each other), or `unknown-files` (cold rounds of a loader whose
    files are unknown).
    """
    words, missing = requested_words(options)
    without = missing_libraries(manifest) if "all" in options.format else {}
    reasons = [("missing-dependency", why) for why in (*missing, *map(str, without.values()))]
    named, variants = [*map(loaders.parse, words)], requested_variants(manifest, options.format)
    reasons += _Request(manifest, options, variants, world_size).reasons(named)
    here = [loader for loader in named if loader.reads_at(manifest.url)]
    reasons += [("invalid-options", str(one)) for loader in here for one in grid_of(loader, options)[1]]
    return [Finding("skipped", f"skipped: {why}", values={"reason": reason}) for reason, why in reasons]


def _isolated(options: RunOptions, grid: Sequence[Loader]) -> bool:
    """Return whether cases have processes of their own: all of them if one needs it."""
    foreign = [loader.display_name for loader in grid if loader.user_defined]
    if foreign and options.isolate is False:
        problem = f"{foreign[0]} needs a process of its own"
        raise InvalidSettings(problem, kind="conflicting-options", hint="remove --no-isolate")
    return any(loader.isolated for loader in grid) if options.isolate is None else options.isolate


def _cacheable(loader: Loader, manifest: Manifest, variant: str) -> bool:
    """Return whether iobench's own client requests what a loader reads of a variant in an object store."""
    remote = manifest.artifacts[variant].remote
    return remote is not None and remote.placed and loader.requests_ranges(manifest.url)


def multi_rank_obstacle(loader: Loader, isolate: bool | None) -> InvalidSettings | None:
    """Return why a loader cannot be measured over several ranks; None if it can."""
    if loader.ranks_obstacle:
        return loader.ranks_obstacle
    if isolate or (loader.isolated and isolate is None):
        problem = "each of its cases needs a process of its own, which ranks do not provide"
        return InvalidSettings(problem, kind="ranks-isolated", hint="add --no-isolate")
    return None


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
