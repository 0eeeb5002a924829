"""Options of a run, and the declaration of options of commands."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from iobench.base.errors import InvalidSettings
from iobench.base.options import LIMITS, check_number
from iobench.bench.case import ROUND_SECONDS, Case
from iobench.bench.part import LEAST_WINDOW
from iobench.bench.policies import AUTO, DECISIVE, DEFAULT_ROUNDS, MAX_TIME_S, StoppingRule, rule_of
from iobench.host import page_cache
from iobench.loading.batching import BLOCK_BYTES, WINDOW_BYTES
from iobench.loading.collate import JAGGED, WAYS, Collate
from iobench.loading.loaders import DEFAULT_LOADERS
from iobench.loading.order import ORDERS
from iobench.results.cases import context_of
from iobench.results.parts import PRICES_HELP, Prices

DEVICE_HELP = "Target device: auto, cpu, cuda, cuda:1, …"


def command_option(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    limits: tuple[int, int] | None = None,
    in_bytes: bool = False,
    repeatable: bool = False,
    parameter: str | None = None,
) -> Any:
    """Declare a dataclass field as an option of a command, of which CommandOption explains the rest.

    The field's annotation is bool, int, float or str, one of them ``| None``, or a tuple of one of them, or
    either, which is typed as a list with commas. `parameter` is the option's name on the command line, as a
    Python name, if it is not the field's.
    """
    shape = {"in_bytes": in_bytes, "repeatable": repeatable, "named": parameter}
    return dataclasses.field(
        default=default, metadata={"help": help, "choices": choices, "limits": limits, **shape}
    )


@dataclass(frozen=True)
class CommandOption:
    """One declared option: its name, the type of its values, and how it is typed."""

    name: str
    type: type
    is_tuple: bool
    or_none: bool
    default: Any
    help: str  # one line for `--help` and the reference
    choices: tuple[str, ...]  # allowed values; empty for any
    limits: tuple[int, int] | None  # minimum and maximum
    in_bytes: bool  # values are typed as sizes such as `1MiB`, and the name ends in `size`, not `bytes`
    repeatable: bool  # it is typed once for each value, because a value may contain commas
    named: str | None

    @property
    def parameter(self) -> str:
        """The option's name on the command line, as a Python name."""
        return self.named or (self.name.replace("_bytes", "_size") if self.in_bytes else self.name)

    @property
    def flag(self) -> str:
        """The option as it is typed."""
        return flag_of(self.parameter)


def flag_of(name: str) -> str:
    """Return an option as it is typed."""
    return f"--{name.replace('_', '-')}"


def check_above_zero(**options: float | None) -> None:
    """Raise InvalidSettings for an option that is not a finite number above 0."""
    for name, value in options.items():
        if value is not None and not 0 < value < math.inf:
            expected = "a number above 0"
            raise InvalidSettings(flag_of(name), kind="out-of-range", expected=expected, found=f"{value:g}")


def declared(cls: type) -> tuple[CommandOption, ...]:
    """Return the options that a dataclass declares with `command_option`, in order."""
    hints, options = typing.get_type_hints(cls), list[CommandOption]()
    for spec in (spec for spec in dataclasses.fields(cls) if spec.metadata):
        hint = hints[spec.name]
        members = typing.get_args(hint) if typing.get_origin(hint) is types.UnionType else (hint,)
        listed = [one for one in members if typing.get_origin(one) is tuple]
        kind = typing.get_args(listed[0])[0] if listed else members[0]
        shape = bool(listed), type(None) in members
        options.append(CommandOption(spec.name, kind, *shape, spec.default, **spec.metadata))
    return tuple(options)


def check_declared(options: Any) -> None:
    """Raise InvalidSettings if a value is not among its option's choices, or outside its limits."""
    for spec in declared(type(options)):
        value = getattr(options, spec.name)
        for one in value if isinstance(value, tuple) else (value,):
            if one is None and spec.or_none:
                continue
            if spec.choices and one not in spec.choices:
                expected = " or ".join(spec.choices)
                raise InvalidSettings(spec.flag, kind="unknown-choice", expected=expected, found=repr(one))
            if spec.limits:
                check_number(spec.flag, one, *spec.limits)


MODELS = ("none", "mlp", "cnn")
BATCH_SIZE = (256,)
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

    format: tuple[str, ...] = command_option(
        ("all",), "Format or variant of the dataset, or all. [default: all]", repeatable=True
    )
    loader: tuple[str, ...] = command_option(
        DEFAULT_LOADERS,
        "Loader with its options, like dataloader:num_workers=4,fetch=batch, or all. "
        f"'iobench loaders' lists them. [default: {', '.join(DEFAULT_LOADERS)}]",
        repeatable=True,
    )
    recommended_options: bool = command_option(
        False, "Add each loader with the options that its documentation recommends."
    )
    device: tuple[str, ...] = command_option(("auto",), "Target devices: auto, cpu, cuda, cuda:1, ….")
    cache: tuple[str, ...] = command_option(
        ("warm",), "Page cache: warm, cold, or both as warm,cold.", choices=page_cache.MODES
    )
    object_cache: tuple[int, ...] = command_option(
        (0,),
        "Object store: most bytes of its objects that a case keeps on the disk of the dataset's folder, like "
        "10GiB, or 0. --cache cold is then its first epoch, warm a later one.",
        limits=LIMITS["object_cache"],
        in_bytes=True,
    )
    sudo: bool = command_option(False, "Drop the page cache with sudo -n.")
    order: tuple[str, ...] = command_option(
        ("random",), f"Order of samples: {', '.join(ORDERS)}.", choices=ORDERS
    )
    batch_size: tuple[int, ...] = command_option(
        BATCH_SIZE, "Samples per batch.", limits=LIMITS["batch_size"]
    )
    batch_tokens: int | None = command_option(
        None,
        "Of samples that differ in length, in place of --batch-size: a batch takes samples until the next "
        "would exceed so many elements.",
        limits=LIMITS["batch_tokens"],
    )
    block_bytes: tuple[int, ...] = command_option(
        (BLOCK_BYTES,), "Block order: bytes per block.", limits=LIMITS["block_bytes"], in_bytes=True
    )
    window_bytes: tuple[int, ...] = command_option(
        (WINDOW_BYTES,),
        "Block order: bytes of the shuffle window.",
        limits=LIMITS["window_bytes"],
        in_bytes=True,
    )
    collate: tuple[str, ...] = command_option((JAGGED,), f"Batches of samples that differ in length: {WAYS}.")
    model: tuple[str, ...] = command_option(
        ("none",), f"Training step on each batch: {', '.join(MODELS)}.", choices=MODELS
    )
    step_ms: tuple[float, ...] = command_option(
        (0.0,), "Milliseconds of a simulated training step on each batch."
    )
    rounds: str = command_option(
        str(DEFAULT_ROUNDS),
        "Timed rounds per case; auto: until all are precise; decisive: 3, then of those that may be fastest.",
    )
    max_time: float | None = command_option(
        None,
        "Verify and measure in this many seconds: both become parts of an epoch where whole ones take "
        "longer, and cases that there is no time for are skipped. "
        f"[default: {MAX_TIME_S:g} with --rounds auto or decisive]",
    )
    max_batches: int | None = command_option(
        None,
        "Measure this many batches of an epoch per round, drawn from the whole dataset, and extrapolate; at "
        f"least {LEAST_WINDOW} times what the loader reads ahead. [default: by --round-seconds]",
        limits=LIMITS["max_batches"],
    )
    round_seconds: float = command_option(
        ROUND_SECONDS,
        "Where an epoch takes longer than this many seconds, measure a part of one per round, drawn from the "
        "whole dataset, and extrapolate; the content is verified by part, too.",
    )
    warmup: int = command_option(1, "Untimed epochs per case; the first verifies the content.")
    isolate: bool | None = command_option(
        None, "Run each case in its own process. [default: if a loader of the run needs it]"
    )
    timeout: float = command_option(
        TIMEOUT_S, "Kill the process of a case after this many seconds without a batch."
    )
    limits: bool = command_option(True, "Measure the hardware limits of each case.")
    headroom: bool = command_option(False, "Also time the loop over batches that are already on the device.")
    prices: str = command_option("", PRICES_HELP)
    strict: bool = command_option(False, "Synchronize the device after each training step.")
    profile: bool = command_option(False, "Split epochs into stages and sample the machine.")
    trace: bool = command_option(False, "Write a Chrome trace of the first batches of each case.")
    seed: int = command_option(
        0, "Seed of the sample order, the case order and the model.", limits=LIMITS["seed"]
    )
    loader_options: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # values by option, for
    # every loader that has the option and was named without it

    def __post_init__(self) -> None:
        check_declared(self)
        check_steps(self.step_ms, self.model)
        for word in self.collate:
            Collate.parse(word)
        if self.warmup < 1:
            problem = "--warmup: the first untimed epoch verifies the content"
            raise InvalidSettings(problem, kind="out-of-range", expected="at least 1", found=self.warmup)
        check_above_zero(timeout=self.timeout, round_seconds=self.round_seconds, max_time=self.max_time)
        if self.prices:
            Prices.parse(self.prices)
        self._check_combination()
        self.stopping_rule()  # raises if the rounds are invalid

    def _check_combination(self) -> None:
        if self.headroom and not any(self.step_ms) and not any(name != "none" for name in self.model):
            raise InvalidSettings(
                "--headroom needs a training step", kind="missing-option", hint="add --step-ms or --model"
            )
        if self.batch_tokens is not None and self.batch_size != BATCH_SIZE:
            raise _conflict("--batch-tokens and --batch-size both limit a batch")
        if self.max_batches is not None and self.round_seconds != ROUND_SECONDS:
            raise _conflict("--max-batches and --round-seconds both limit a round")
        if self.sudo and "cold" not in self.cache:
            problem = "--sudo drops the page cache for cold rounds, and the run has none"
            raise InvalidSettings(problem, kind="missing-option", hint="add --cache cold")
        blocks = (self.block_bytes, self.window_bytes)
        if "block" not in self.order and blocks != ((BLOCK_BYTES,), (WINDOW_BYTES,)):
            problem, found = "--block-size and --window-size apply to block order only", ", ".join(self.order)
            expected = "--order block"
            raise InvalidSettings(problem, kind="conflicting-options", expected=expected, found=found)

    @property
    def seconds(self) -> float:
        """Time for everything."""
        if self.max_time is not None:
            return self.max_time
        return MAX_TIME_S if self.rounds in (AUTO, DECISIVE) else math.inf

    def stopping_rule(self, cases: Sequence[Case] = ()) -> StoppingRule:
        """Return what ends the rounds of the cases."""
        return rule_of(self.rounds, {case.key: context_of(case.facets) for case in cases})


def check_steps(step_ms: Sequence[float], models: Sequence[str]) -> None:
    """Raise InvalidSettings if a simulated step's length is out of range, or if there is a model too."""
    for value in step_ms:
        if not 0 <= value <= MOST_STEP_MS:
            expected = f"0 to {MOST_STEP_MS:g} milliseconds"
            raise InvalidSettings("--step-ms", kind="out-of-range", expected=expected, found=f"{value:g}")
    if any(step_ms) and any(model != "none" for model in models):
        raise _conflict("--step-ms simulates a training step, and --model is one")


def _conflict(problem: str) -> InvalidSettings:
    return InvalidSettings(problem, kind="conflicting-options", hint="give only one of them")
