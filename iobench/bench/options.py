"""What a run is asked for, and the cases that follow from it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from iobench import formats
from iobench.base.errors import (
    InvalidOption,
    InvalidSettings,
)
from iobench.base.text import enumerated
from iobench.base.units import counted
from iobench.bench.case import Case
from iobench.bench.over_ranks import alone, over_ranks
from iobench.bench.plan import DEFAULT_ROUNDS, RoundPlan
from iobench.dataset.manifest import Manifest, unusable
from iobench.host import cache
from iobench.loading import loaders
from iobench.loading.loaders import DEFAULT_LOADERS, Loader
from iobench.loading.order import BLOCK_BYTES, ORDERS, WINDOW_BYTES, check_setting

MODELS = ("none", "mlp", "cnn")
TIMEOUT_S = 120.0
MOST_STEP_MS = 60_000.0


@dataclass(frozen=True)
class RunOptions:
    """A run as it was asked for; each tuple makes cases, one for every combination that fits together.

    `format` and `loader` are variants or `all`: every prepared format, every loader that is installed
    and reads what is asked for. `loader_options` are options of loaders by name, for
    every loader that has them and whose own word does not say otherwise. `rounds` is a number, or
    `auto`: as many as it takes, within `max_time` seconds. `tuned`: each loader that is named without
    options takes part once more, with those that its documentation advises.
    """

    format: tuple[str, ...] = ("all",)
    loader: tuple[str, ...] = DEFAULT_LOADERS
    device: tuple[str, ...] = ("auto",)
    cache: tuple[str, ...] = ("warm",)
    order: tuple[str, ...] = ("random",)
    batch_size: tuple[int, ...] = (256,)
    block_bytes: tuple[int, ...] = (BLOCK_BYTES,)
    window_bytes: tuple[int, ...] = (WINDOW_BYTES,)
    model: tuple[str, ...] = ("none",)
    step_ms: tuple[float, ...] = (0.0,)
    seed: int = 0
    tuned: bool = False
    loader_options: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    rounds: str = str(DEFAULT_ROUNDS)
    max_time: float | None = None
    warmup: int = 1
    timeout: float = TIMEOUT_S
    isolate: bool | None = None  # all cases or none; by default all where a loader of the run asks for it
    sudo: bool = False
    limits: bool = True
    headroom: bool = False  # replay batches that are on the device beside each case
    strict: bool = False
    profile: bool = False
    trace: bool = False

    def __post_init__(self) -> None:
        for name, known in (("cache", cache.MODES), ("order", ORDERS), ("model", MODELS)):
            for value in getattr(self, name):
                if value not in known:
                    raise InvalidSettings(f"{name} {value!r} is not one of {', '.join(known)}")
        for name in ("batch_size", "block_bytes", "window_bytes"):
            for value in getattr(self, name):
                check_setting(name, value)
        check_setting("seed", self.seed)
        check_steps(self.step_ms, self.model)
        if self.headroom and not any(self.step_ms) and not any(name != "none" for name in self.model):
            raise InvalidSettings("headroom is that of a training step: give --step-ms or --model with it")
        if self.warmup < 1:
            raise InvalidSettings(
                f"warmup {self.warmup} is below 1: the first untimed round proves the content"
            )
        if not 0 < self.timeout < float("inf"):
            raise InvalidSettings(f"timeout {self.timeout} is not a number of seconds above 0")
        if self.sudo and "cold" not in self.cache:
            raise InvalidSettings(
                "--sudo drops the page cache for cold rounds, and none is asked for: add --cache cold"
            )
        blocks = (self.block_bytes, self.window_bytes)
        if "block" not in self.order and blocks != ((BLOCK_BYTES,), (WINDOW_BYTES,)):
            raise InvalidSettings(
                f"--block-size and --window-size are for order block, not {', '.join(self.order)}"
            )
        self.plan  # noqa: B018 - says what is wrong with the rounds

    @property
    def plan(self) -> RoundPlan:
        """How many rounds."""
        return RoundPlan.parse(self.rounds, self.max_time)


def check_steps(step_ms: Sequence[float], models: Sequence[str]) -> None:
    """InvalidSettings where a step is of no length that can be, or is asked for beside a model."""
    for value in step_ms:
        if not 0 <= value <= MOST_STEP_MS:
            raise InvalidSettings(f"step-ms {value:g} is not in 0..{MOST_STEP_MS:g}")
    if any(step_ms) and any(model != "none" for model in models):
        raise InvalidSettings("step-ms stands in for a training step, and a model is one: give one of them")


def cases_of(
    manifest: Manifest, options: RunOptions, devices: Sequence[str], world_size: int = 1
) -> list[Case]:
    """The cases of a run over a dataset, on devices that are there, without those that do not fit together.

    InvalidSettings, InvalidOption, UnknownFormat or ManifestError where one is asked for that cannot
    be, or where none is left.
    """
    variants = _variants(manifest, options.format)
    grid = list(_loaders(options))
    found = [
        case
        for combination in _combinations(options, devices)
        for variant in variants
        for loader in grid
        if (case := _case(manifest, variant, loader, options, combination)) is not None
    ]
    if world_size > 1:
        found = over_ranks(found, world_size, options.isolate, named="all" not in options.loader)
    if not found:
        raise InvalidSettings(
            f"no case to measure in dataset {manifest.name}: "
            f"{enumerated([loader.variant for loader in grid])} "
            f"{'reads' if len(grid) == 1 else 'read'} none of "
            f"{enumerated(variants) if variants else 'its formats'} in {' or '.join(options.order)} order"
        )
    apart = _apart(options, [case.loader for case in found])
    # alike, or they could not be compared
    found = [replace(case, isolated=apart, world_size=world_size) for case in found]
    return list({case.key: case for case in found}.values())


def _case(
    manifest: Manifest, variant: str, loader: Loader, options: RunOptions, combination: dict[str, Any]
) -> Case | None:
    """The case of this combination; None where loader, format and order do not fit."""
    if combination["order"] not in loader.orders or not loader.reads(formats.parse(variant)):
        return None
    if combination["order"] != "block":
        combination = {**combination, "block_bytes": BLOCK_BYTES, "window_bytes": WINDOW_BYTES}
    if loader.own_data and combination["cache"] == "cold":
        return None
    return Case(
        dataset=manifest.name,
        content=f"{manifest.content or 0:016x}",
        variant=variant,
        loader=loader.on(combination["device"]),
        seed=options.seed,
        strict=options.strict,
        profile=options.profile,
        **combination,
    )


def _apart(options: RunOptions, grid: Sequence[Loader]) -> bool:
    """Whether each case has a process of its own: all of them where one needs it, or they do not compare."""
    foreign = [loader.called for loader in grid if loader.foreign]
    if foreign and options.isolate is False:
        raise InvalidSettings(f"{foreign[0]} needs a process of its own: leave out --no-isolate")
    return any(loader.isolated for loader in grid) if options.isolate is None else options.isolate


def _combinations(options: RunOptions, devices: Sequence[str]) -> Iterator[dict[str, Any]]:
    names = ("cache", "order", "batch_size", "block_bytes", "window_bytes", "model")
    steps = [value / 1000 for value in options.step_ms]
    for values in itertools.product(devices, *(getattr(options, name) for name in names), steps):
        yield dict(zip(("device", *names, "step_s"), values, strict=True))


def _variants(manifest: Manifest, wanted: Sequence[str]) -> list[str]:
    every, missing = list(manifest.artifacts), unusable(manifest)
    if "all" in wanted and every and len(missing) == len(every):
        raise next(iter(missing.values()))
    usable = [variant for variant in every if variant not in missing]
    named = usable if "all" in wanted else [formats.parse(word).variant for word in wanted]
    for variant in named:
        if variant not in every:
            manifest.opener(variant)  # raises what to do about it
    return list(dict.fromkeys(named))


def _loaders(options: RunOptions) -> Iterator[Loader]:
    """Every loader asked for, with each combination of those plain options that it has."""
    named = [(word, loaders.parse(word)) for word in _words(options)[0]]
    if not named:
        raise InvalidSettings(f"no loader to measure with; known: {', '.join(loaders.names())}, all")
    has = {loader.called: loader.settable for _, loader in named}
    for name in options.loader_options:
        if not any(name in known for known in has.values()):
            raise InvalidSettings(
                f"{name} is no option of {', '.join(dict.fromkeys(loader.called for _, loader in named))}"
            )
    for word, loader in named:
        said = {pair.partition("=")[0] for pair in word.partition(":")[2].split(",")}
        free = {
            name: values
            for name, values in options.loader_options.items()
            if name in has[loader.called] and name not in said
        }
        found, problems = _grid(loader, free)
        if not found:
            raise problems[0]
        yield from found
        if options.tuned and word == loader.name and (tuned := loader.tuned()) is not None:
            yield loaders.parse(tuned)


def left_out(manifest: Manifest, options: RunOptions, world_size: int = 1) -> list[str]:
    """A sentence for whatever was asked for and makes no case.

    Loaders of `all` that are not installed and prepared formats whose library is not, loaders that read none
    of the formats in any of the orders, those that several ranks cannot have, combinations of a loader's
    options that do not go together, and cold rounds over unknown files.
    """
    words, missing = _words(options)
    gone = unusable(manifest) if "all" in options.format else {}
    found, idle = [*missing, *map(str, gone.values())], []
    variants = [formats.parse(word) for word in _variants(manifest, options.format)]
    for loader in map(loaders.parse, words):
        if not set(options.order) & set(loader.orders) or not any(map(loader.reads, variants)):
            idle.append(loader.variant)
        elif world_size > 1 and (why := alone(loader, options.isolate)):
            found.append(f"{loader.called} over {counted(world_size, 'rank')}: {why}")
        own = {name: values for name, values in options.loader_options.items() if name in loader.settable}
        found += [str(problem) for problem in _grid(loader, own)[1]]
        if loader.own_data and "cold" in options.cache:
            found.append(f"{loader.called} with a cold cache: nobody can tell which files it reads")
    if idle:
        read = f"{', '.join(one.variant for one in variants)} in {' or '.join(options.order)} order"
        found.append(f"{', '.join(idle)}: {'reads' if len(idle) == 1 else 'read'} none of {read}")
    return [f"left out: {sentence}" for sentence in found]


def _words(options: RunOptions) -> tuple[list[str], list[str]]:
    """The loaders that are meant, each once, and why those of `all` are not that cannot be used here."""
    if "all" not in options.loader:
        return list(dict.fromkeys(options.loader)), []
    known = {one["name"]: one["usable"] for one in loaders.describe()}
    named = [word for word in options.loader if word != "all"]
    found = [*named, *(name for name, usable in known.items() if usable == "yes" and name not in named)]
    return found, [usable for usable in known.values() if usable != "yes"]


def _grid(
    loader: Loader, values: Mapping[str, Sequence[Any]]
) -> tuple[list[Loader], list[InvalidOption | InvalidSettings]]:
    """The loader with each combination of values that goes together, and what is wrong with the others."""
    found, problems = [], list[InvalidOption | InvalidSettings]()
    for combination in itertools.product(*values.values()):
        try:
            found.append(replace(loader, **dict(zip(values, combination, strict=True))))
        except (InvalidOption, InvalidSettings) as error:
            problems.append(error)
    return found, problems
