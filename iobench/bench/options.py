"""Options of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from iobench.base.errors import InvalidSettings
from iobench.bench import run_strategies
from iobench.bench.case import ROUND_SECONDS, Case
from iobench.bench.command_option import check_above_zero, check_declared, command_option
from iobench.bench.part import LEAST_WINDOW
from iobench.bench.run_strategies import MAX_TIME_S
from iobench.bench.strategy import DEFAULT_ROUNDS, Strategy
from iobench.host import page_cache
from iobench.loading.batching import BLOCK_BYTES, WINDOW_BYTES
from iobench.loading.collate import JAGGED, WAYS, Collate
from iobench.loading.loaders import DEFAULT_LOADERS
from iobench.loading.number_limits import LIMITS
from iobench.loading.order import ORDERS
from iobench.results.cases import context_of
from iobench.results.prices import PRICES_HELP, Prices

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
        ("all",), "Format or variant of the dataset, or all; repeatable. [default: all]", repeatable=True
    )
    loader: tuple[str, ...] = command_option(
        DEFAULT_LOADERS,
        "Loader with its options, like dataloader:num_workers=4,fetch=batch, or all; repeatable. "
        f"'iobench loaders' lists them. [default: {', '.join(DEFAULT_LOADERS)}]",
        repeatable=True,
    )
    recommended_options: bool = command_option(
        False, "Add each loader with the options that its documentation recommends."
    )
    device: tuple[str, ...] = command_option(("auto",), "Target devices: auto, cpu, cuda, cuda:1, …; a list.")
    cache: tuple[str, ...] = command_option(
        ("warm",), "Page cache: warm, cold, or both as warm,cold.", choices=page_cache.MODES
    )
    object_cache: tuple[int, ...] = command_option(
        (0,),
        "Object store: most bytes of its objects that a case keeps on the disk of the dataset's folder, like "
        "10GiB, or 0; a list. --cache cold is then its first epoch, warm a later one.",
        limits=LIMITS["object_cache"],
        in_bytes=True,
    )
    sudo: bool = command_option(False, "Drop the page cache with sudo -n.")
    order: tuple[str, ...] = command_option(
        ("random",), f"Order of samples: {', '.join(ORDERS)}; a list.", choices=ORDERS
    )
    batch_size: tuple[int, ...] = command_option(
        BATCH_SIZE, "Samples per batch; a list.", limits=LIMITS["batch_size"]
    )
    batch_tokens: int | None = command_option(
        None,
        "Of samples that differ in length, in place of --batch-size: a batch takes samples until the next "
        "would exceed so many elements.",
        limits=LIMITS["batch_tokens"],
    )
    block_bytes: tuple[int, ...] = command_option(
        (BLOCK_BYTES,), "Block order: bytes per block; a list.", limits=LIMITS["block_bytes"], in_bytes=True
    )
    window_bytes: tuple[int, ...] = command_option(
        (WINDOW_BYTES,),
        "Block order: bytes of the shuffle window; a list.",
        limits=LIMITS["window_bytes"],
        in_bytes=True,
    )
    collate: tuple[str, ...] = command_option(
        (JAGGED,),
        f"Batches of samples that differ in length: {WAYS}; a list.",
    )
    model: tuple[str, ...] = command_option(
        ("none",), f"Training step on each batch: {', '.join(MODELS)}; a list.", choices=MODELS
    )
    step_ms: tuple[float, ...] = command_option(
        (0.0,), "Milliseconds of a simulated training step on each batch; a list."
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
            raise InvalidSettings(
                "--warmup: the first untimed epoch verifies the content",
                kind="out-of-range",
                expected="at least 1",
                found=self.warmup,
            )
        check_above_zero(timeout=self.timeout, round_seconds=self.round_seconds, max_time=self.max_time)
        if self.prices:
            Prices.parse(self.prices)
        self._check_combination()
        self.strategy()  # raises if the rounds are invalid

    def _check_combination(self) -> None:
        """Raise InvalidSettings for options that exclude or need each other."""
        if self.headroom and not any(self.step_ms) and not any(name != "none" for name in self.model):
            raise InvalidSettings(
                "--headroom needs a training step", kind="missing-option", hint="add --step-ms or --model"
            )
        if self.batch_tokens is not None and self.batch_size != BATCH_SIZE:
            raise InvalidSettings(
                "--batch-tokens and --batch-size both limit a batch",
                kind="conflicting-options",
                hint="give only one of them",
            )
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

    def strategy(self, cases: Sequence[Case] = ()) -> Strategy:
        """Return the number of rounds of the cases, and when they end."""
        contexts = {case.key: context_of(case.facets) for case in cases}
        return run_strategies.parse(self.rounds, self.max_time, contexts)


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
