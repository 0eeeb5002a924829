"""Options of a run, and the cases made of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from iobench import formats
from iobench.base.errors import InvalidOption, InvalidSettings
from iobench.base.finding import Finding
from iobench.base.text import enumerated
from iobench.base.units import counted
from iobench.bench import strategies
from iobench.bench.case import REMOTE, ROUND_SECONDS, Case
from iobench.bench.multi_rank import multi_rank_cases, multi_rank_obstacle
from iobench.bench.part import LEAST_WINDOW
from iobench.bench.run_option import check_declared, run_option
from iobench.bench.strategies import DEFAULT_ROUNDS, MAX_TIME_S, Strategy
from iobench.dataset.manifest import Manifest, missing_libraries
from iobench.formats import Schema
from iobench.host import page_cache
from iobench.loading import loaders
from iobench.loading.batching import BLOCK_BYTES, WINDOW_BYTES
from iobench.loading.collate import JAGGED, WAYS, Collate
from iobench.loading.loaders import DEFAULT_LOADERS, Loader
from iobench.loading.number_limits import LIMITS
from iobench.loading.order import ORDERS, refuse_ragged
from iobench.results.cases import context_of

MODELS = ("none", "mlp", "cnn")
TIMEOUT_S = 120.0
MOST_STEP_MS = 60_000.0


@dataclass(frozen=True)
class RunOptions:
    """Options of a run, each declared once: `iobench run` and the reference are made from these fields.

    Every valid combination of the tuples is a case. A field that `Case` has too is the case's facet.

    Raises
    ------
    InvalidSettings
        If a value is out of range or options exclude each other.
    """

    format: tuple[str, ...] = run_option(
        ("all",), "Format or variant of the dataset, or all; repeatable. [default: all]", repeatable=True
    )
    loader: tuple[str, ...] = run_option(
        DEFAULT_LOADERS,
        "Loader with its options, like dataloader:num_workers=4,fetch=batch, or all; repeatable. "
        f"'iobench loaders' lists them. [default: {', '.join(DEFAULT_LOADERS)}]",
        repeatable=True,
    )
    recommended_options: bool = run_option(
        False, "Add each loader with the options that its documentation recommends."
    )
    device: tuple[str, ...] = run_option(("auto",), "Target devices: auto, cpu, cuda, cuda:1, …; a list.")
    cache: tuple[str, ...] = run_option(
        ("warm",), "Page cache: warm, cold, or both as warm,cold.", choices=page_cache.MODES
    )
    sudo: bool = run_option(False, "Drop the page cache with sudo -n.")
    order: tuple[str, ...] = run_option(
        ("random",), f"Order of samples: {', '.join(ORDERS)}; a list.", choices=ORDERS
    )
    batch_size: tuple[int, ...] = run_option(
        (256,), "Samples per batch; a list.", limits=LIMITS["batch_size"]
    )
    block_bytes: tuple[int, ...] = run_option(
        (BLOCK_BYTES,), "Block order: bytes per block; a list.", limits=LIMITS["block_bytes"], in_bytes=True
    )
    window_bytes: tuple[int, ...] = run_option(
        (WINDOW_BYTES,),
        "Block order: bytes of the shuffle window; a list.",
        limits=LIMITS["window_bytes"],
        in_bytes=True,
    )
    collate: tuple[str, ...] = run_option(
        (JAGGED,),
        f"Batches of samples that differ in length: {WAYS}; a list.",
    )
    model: tuple[str, ...] = run_option(
        ("none",), f"Training step on each batch: {', '.join(MODELS)}; a list.", choices=MODELS
    )
    step_ms: tuple[float, ...] = run_option(
        (0.0,), "Milliseconds of a simulated training step on each batch; a list."
    )
    rounds: str = run_option(
        str(DEFAULT_ROUNDS),
        "Timed rounds per case; auto: until all are precise; decisive: 3, then of those that may be fastest.",
    )
    max_time: float | None = run_option(
        None,
        "Verify and measure in this many seconds: both become parts of an epoch where whole ones take "
        "longer, and cases that there is no time for are skipped. "
        f"[default: {MAX_TIME_S:g} with --rounds auto or decisive]",
    )
    max_batches: int | None = run_option(
        None,
        "Measure this many batches of an epoch per round, drawn from the whole dataset, and extrapolate; at "
        f"least {LEAST_WINDOW} times what the loader reads ahead. [default: by --round-seconds]",
        limits=LIMITS["max_batches"],
    )
    round_seconds: float = run_option(
        ROUND_SECONDS,
        "Where an epoch takes longer than this many seconds, measure a part of one per round, drawn from the "
        "whole dataset, and extrapolate; the content is verified by part, too.",
    )
    warmup: int = run_option(1, "Untimed epochs per case; the first verifies the content.")
    isolate: bool | None = run_option(
        None, "Run each case in its own process. [default: if a loader of the run needs it]"
    )
    timeout: float = run_option(
        TIMEOUT_S, "Kill the process of a case after this many seconds without a batch."
    )
    limits: bool = run_option(True, "Measure the hardware limits of each case.")
    headroom: bool = run_option(False, "Also time the loop over batches that are already on the device.")
    strict: bool = run_option(False, "Synchronize the device after each training step.")
    profile: bool = run_option(False, "Split epochs into stages and sample the machine.")
    trace: bool = run_option(False, "Write a Chrome trace of the first batches of each case.")
    seed: int = run_option(
        0, "Seed of the sample order, the case order and the model.", limits=LIMITS["seed"]
    )
    loader_options: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # values by option, for
    # every loader that has the option and was named without it

    def __post_init__(self) -> None:
        check_declared(self)
        check_steps(self.step_ms, self.model)
        for word in self.collate:
            Collate.parse(word)
        if self.headroom and not any(self.step_ms) and not any(name != "none" for name in self.model):
            raise InvalidSettings(
                "--headroom needs a training step", kind="missing-option", hint="add --step-ms or --model"
            )
        if self.warmup < 1:
            raise InvalidSettings(
                "--warmup: the first untimed epoch verifies the content",
                kind="out-of-range",
                expected="at least 1",
                found=self.warmup,
            )
        for flag, seconds in (("--timeout", self.timeout), ("--round-seconds", self.round_seconds)):
            if not 0 < seconds < float("inf"):
                expected = "a number of seconds above 0"
                raise InvalidSettings(flag, kind="out-of-range", expected=expected, found=seconds)
        if self.max_batches is not None and self.round_seconds != ROUND_SECONDS:
            raise InvalidSettings(
                "--max-batches and --round-seconds both limit a round",
                kind="conflicting-options",
                hint="give only one of them",
            )
        if self.sudo and "cold" not in self.cache:
            raise InvalidSettings(
                "--sudo drops the page cache for cold rounds, and the run has none",
                kind="missing-option",
                hint="add --cache cold",
            )
        blocks = (self.block_bytes, self.window_bytes)
        if "block" not in self.order and blocks != ((BLOCK_BYTES,), (WINDOW_BYTES,)):
            raise InvalidSettings(
                "--block-size and --window-size apply to block order only",
                kind="conflicting-options",
                expected="--order block",
                found=", ".join(self.order),
            )
        self.strategy()  # raises if the rounds are invalid

    def strategy(self, cases: Sequence[Case] = ()) -> Strategy:
        """Return the number of rounds of the cases, and when they end."""
        contexts = {case.key: context_of(case.facets) for case in cases}
        return strategies.parse(self.rounds, self.max_time, contexts)


def check_steps(step_ms: Sequence[float], models: Sequence[str]) -> None:
    """Raise InvalidSettings if a simulated step's length is out of range, or if there is a model too."""
    for value in step_ms:
        if not 0 <= value <= MOST_STEP_MS:
            raise InvalidSettings(
                "--step-ms",
                kind="out-of-range",
                expected=f"0 to {MOST_STEP_MS:g} milliseconds",
                found=f"{value:g}",
            )
    if any(step_ms) and any(model != "none" for model in models):
        raise InvalidSettings(
            "--step-ms simulates a training step, and --model is one",
            kind="conflicting-options",
            hint="give only one of them",
        )


def cases_of(
    manifest: Manifest, options: RunOptions, devices: Sequence[str], world_size: int = 1
) -> list[Case]:
    """Return the cases of a run over a dataset, without invalid combinations.

    `devices` are devices that exist here. Raises InvalidSettings, InvalidOption, UnknownFormat or
    ManifestError if a requested case is impossible, or if no case is left.
    """
    if manifest.url and "cold" in options.cache:
        raise InvalidSettings(
            "--cache cold with a dataset in an object store, which no page cache holds",
            kind="conflicting-options",
            hint="omit --cache",
        )
    variants = _variants(manifest, options.format)
    grid = list(_loaders(options))
    _check_ragged(manifest.schema, grid, options)
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
        raise InvalidSettings(_no_cases(manifest, variants, grid, options.order), kind="no-cases")
    isolated = _isolated(options, [case.loader for case in cases])
    # the same for all, so that they remain comparable
    cases = [replace(case, isolated=isolated, world_size=world_size) for case in cases]
    return list({case.key: case for case in cases}.values())


def _check_ragged(schema: Schema, grid: Sequence[Loader], options: RunOptions) -> None:
    """Raise InvalidSettings for samples that differ in length if no loader delivers them, or with a model.

    Raises it also for a way to collate them if there are none.
    """
    if any(model != "none" for model in options.model):
        refuse_ragged(schema, "--model", hint="use --step-ms")
    if options.collate != (JAGGED,) and not schema.ragged:
        raise InvalidSettings(
            "--collate is for samples that differ in length",
            kind="conflicting-options",
            expected="a field like tokens=uint16[*]",
            found="fields of fixed shape",
            hint="omit --collate",
        )
    foreign = [loader.display_name for loader in grid if loader.user_defined]
    if options.collate != (JAGGED,) and foreign:
        raise InvalidSettings(
            f"--collate with {foreign[0]}, which makes its batches itself",
            kind="conflicting-options",
            hint="omit --collate, or run it by itself",
        )
    if not any(loader.ragged for loader in grid):
        grid[0].check_schema(schema)


def _no_cases(
    manifest: Manifest, variants: Sequence[str], grid: Sequence[Loader], orders: Sequence[str]
) -> str:
    """Return why these loaders, formats and orders give no case."""
    names, in_order = enumerated([loader.variant for loader in grid]), f"in {' or '.join(orders)} order"
    subject = f"{'loader' if len(grid) == 1 else 'loaders'} {names}"
    if not any(order in loader.orders for loader in grid for order in orders):
        return f"{subject} cannot read {in_order}"
    what = f"none of {enumerated(variants)}" if variants else "no format"
    verb = "reads" if len(grid) == 1 else "read"
    return f"dataset {manifest.name}: {subject} {verb} {what} {in_order}"


def _case(
    manifest: Manifest, variant: str, loader: Loader, options: RunOptions, combination: dict[str, Any]
) -> Case | None:
    """Return the case of this combination; None if loader, format and order do not fit."""
    if combination["order"] not in loader.orders or not loader.reads(formats.parse(variant)):
        return None
    if manifest.schema.ragged and not loader.ragged:
        return None
    added = manifest.added.get(variant)
    if added is not None and added.samples is not None and loader.format_names:
        return None  # its library would read all of the files
    if combination["order"] != "block":
        combination = {**combination, "block_bytes": BLOCK_BYTES, "window_bytes": WINDOW_BYTES}
    if loader.own_data and combination["cache"] == "cold":
        return None
    if not manifest.schema.ragged:
        combination = {**combination, "collate": None}
    if manifest.url:
        if loader.format_names:
            return None  # its library would look for files
        combination = {**combination, "cache": REMOTE}
    return Case(
        dataset=manifest.name,
        content=f"{manifest.content or 0:016x}",
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


def _variants(manifest: Manifest, words: Sequence[str]) -> list[str]:
    every, missing = list(manifest.artifacts), missing_libraries(manifest)
    if "all" in words and every and len(missing) == len(every):
        raise next(iter(missing.values()))
    usable = [variant for variant in every if variant not in missing]
    named = usable if "all" in words else [formats.parse(word).variant for word in words]
    for variant in named:
        if variant not in every:
            manifest.opener(variant)  # raises the error for an artifact that is missing
    return list(dict.fromkeys(named))


def _loaders(options: RunOptions) -> Iterator[Loader]:
    """Yield every requested loader with each combination of the plain options that it has."""
    named = [(word, loaders.parse(word)) for word in _words(options)[0]]
    if not named:
        raise InvalidSettings(
            "no loader was named", kind="no-loaders", expected=f"{', '.join(loaders.names())} or all"
        )
    has = {loader.display_name: loader.settable for _, loader in named}
    for name in options.loader_options:
        if not any(name in known for known in has.values()):
            raise InvalidSettings(
                f"{', '.join(dict.fromkeys(loader.display_name for _, loader in named))}: no option {name}",
                kind="unknown-option",
                hint="'iobench loaders' lists the options of each loader",
            )
    for word, loader in named:
        given = {pair.partition("=")[0] for pair in word.partition(":")[2].split(",")}
        free = {
            name: values
            for name, values in options.loader_options.items()
            if name in has[loader.display_name] and name not in given
        }
        valid, problems = _grid(loader, free)
        if not valid:
            raise problems[0]
        yield from valid
        if (
            options.recommended_options
            and word == loader.name
            and (tuned := loader.recommended_variant()) is not None
        ):
            yield loaders.parse(tuned)


def skip_notes(manifest: Manifest, options: RunOptions, world_size: int = 1) -> list[Finding]:
    """Return a note (kind `skipped`) for everything requested that makes no case.

    `values["reason"]` is `missing-dependency` (a loader of `all` or a prepared format whose library is not
    installed), `reads-nothing` (a loader that reads none of the formats in any of the orders), `ragged` (a
    loader that does not deliver samples that differ in length), `ranks` (several ranks cannot use it),
    `invalid-options` (options that exclude each other), or `unknown-files` (cold rounds of a loader whose
    files are unknown).
    """
    words, missing = _words(options)
    without = missing_libraries(manifest) if "all" in options.format else {}
    notes = [_skipped("missing-dependency", why) for why in (*missing, *map(str, without.values()))]
    idle = []
    variants = [formats.parse(word) for word in _variants(manifest, options.format)]
    for loader in map(loaders.parse, words):
        if not set(options.order) & set(loader.orders) or not any(map(loader.reads, variants)):
            idle.append(loader.variant)
        elif manifest.schema.ragged and not loader.ragged:
            found = manifest.schema.ragged[0].typed
            notes.append(_skipped("ragged", f"{loader.variant}: samples differ in length ({found})"))
        elif world_size > 1 and (obstacle := multi_rank_obstacle(loader, options.isolate)):
            notes.append(
                _skipped("ranks", f"{loader.display_name} over {counted(world_size, 'rank')}: {obstacle}")
            )
        own = {name: values for name, values in options.loader_options.items() if name in loader.settable}
        notes += [_skipped("invalid-options", str(problem)) for problem in _grid(loader, own)[1]]
        if loader.own_data and "cold" in options.cache:
            why = f"{loader.display_name} with a cold cache: iobench does not know which files it reads"
            notes.append(_skipped("unknown-files", why))
    if idle:
        read = f"{', '.join(one.variant for one in variants)} in {' or '.join(options.order)} order"
        why = f"{', '.join(idle)}: {'reads' if len(idle) == 1 else 'read'} none of {read}"
        notes.append(_skipped("reads-nothing", why))
    return notes


def _skipped(reason: str, sentence: str) -> Finding:
    return Finding("skipped", f"skipped: {sentence}", values={"reason": reason})


def _words(options: RunOptions) -> tuple[list[str], list[str]]:
    """Return the requested loaders, each once, and why loaders of `all` cannot be used here."""
    if "all" not in options.loader:
        return list(dict.fromkeys(options.loader)), []
    known = {one["name"]: one["usable"] for one in loaders.describe()}
    named = [word for word in options.loader if word != "all"]
    words = [*named, *(name for name, usable in known.items() if usable == "yes" and name not in named)]
    return words, [usable for usable in known.values() if usable != "yes"]


def _grid(
    loader: Loader, values: Mapping[str, Sequence[Any]]
) -> tuple[list[Loader], list[InvalidOption | InvalidSettings]]:
    """Return the loader with each valid combination of values, and the errors of the others."""
    valid, problems = [], list[InvalidOption | InvalidSettings]()
    for combination in itertools.product(*values.values()):
        try:
            valid.append(replace(loader, **dict(zip(values, combination, strict=True))))
        except (InvalidOption, InvalidSettings) as error:
            problems.append(error)
    return valid, problems
