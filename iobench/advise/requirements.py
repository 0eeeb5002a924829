"""Requirements that decide which format and loader to use."""

from __future__ import annotations

from dataclasses import dataclass, field

from iobench.base.errors import InvalidSettings
from iobench.base.options import LIMITS
from iobench.base.text import enumerated
from iobench.bench.options import DEVICE_HELP, MODELS, check_declared, command_option
from iobench.loading.order import ORDERS
from iobench.results.parts import PRICES_HELP, Prices

MAX_TIME_S = 300.0
MIN_TIME_S = 10.0
EPOCHS = 90  # of a training, as for ImageNet
INSTALLED, CORE = "installed", "core"
ONLY = (INSTALLED, CORE)
SIZES = (1, 1 << 63)  # of data, in bytes


@dataclass(frozen=True)
class Requirements:
    """Training that a format and a loader are recommended for.

    Each field is declared once: `iobench recommend` and the reference are made from them.

    Raises
    ------
    InvalidSettings
        A value is out of range, unknown, or excludes another.
    """

    device: str = command_option("auto", DEVICE_HELP)
    order: str = command_option("random", f"Order of the samples: {', '.join(ORDERS)}.", choices=ORDERS)
    batch_size: int | tuple[int, ...] = command_option(
        256, "Samples in a batch; of a list like 64,256 the fastest size.", limits=LIMITS["batch_size"]
    )
    full_bytes: int | None = command_option(
        None, "Size of the full data, like 2TiB. [default: as given]", limits=SIZES, in_bytes=True
    )
    step_ms: float = command_option(
        0.0, "Milliseconds of a training step over a batch of the first size; other sizes in proportion."
    )
    model: str = command_option(
        "none", f"Model whose training step is measured and run: {', '.join(MODELS)}.", choices=MODELS
    )
    step: str = command_option(
        "",
        "Your own training step to measure: a function like train.py:step that takes a batch, a dict of "
        "tensors.",
    )
    epochs: int = command_option(EPOCHS, "Epochs of the training.", limits=(1, LIMITS["epoch"][1]))
    max_disk_bytes: int | None = command_option(
        None, "Disk space for the full data, like 500GiB.", limits=SIZES, in_bytes=True, parameter="max_disk"
    )
    min_shuffle: float | None = command_option(
        None,
        "Least shuffle quality, 0 to 1; below 1, block order takes part. [default: 1; 0 with --order block]",
    )
    formats: tuple[str, ...] = command_option(
        ("all",),
        "Format or variant to consider; repeatable. [default: all]",
        repeatable=True,
        parameter="format",
    )
    loaders: tuple[str, ...] = command_option(
        ("all",),
        "Loader with its options to consider; repeatable. [default: all installed]",
        repeatable=True,
        parameter="loader",
    )
    only: str = command_option(
        INSTALLED,
        "Packages to consider: installed, or core (only those installed with iobench).",
        choices=ONLY,
    )
    prices: str = command_option("", PRICES_HELP)
    max_time_s: float = command_option(MAX_TIME_S, "Seconds for the search.", parameter="max_time")
    seed: int = command_option(0, "Seed of the random order.", limits=LIMITS["seed"])
    measured_ms: tuple[float, ...] = field(default=(), repr=False)  # of a step, for each batch size

    def __post_init__(self) -> None:
        check_declared(self)
        if self.prices:
            Prices.parse(self.prices)
        _check_range("--max-time", self.max_time_s, MIN_TIME_S, float("inf"), f"{MIN_TIME_S:g} s or more")
        _check_range("--step-ms", self.step_ms, 0, float("inf"), "milliseconds, 0 or more")
        if not self.batch_sizes:
            raise InvalidSettings("batch_size", kind="missing-option", expected="at least one", found="none")
        if self.min_shuffle is None:
            return
        if self.order == "sequential":
            problem, hint = "--min-shuffle with sequential order", "use it with --order random or block"
            raise InvalidSettings(problem, kind="conflicting-options", hint=hint)
        if not 0 <= self.min_shuffle <= 1:
            value = f"{self.min_shuffle:g}"
            raise InvalidSettings("--min-shuffle", kind="out-of-range", expected="0 to 1", found=value)

    @property
    def has_unknown_step(self) -> bool:
        """True if the step is a model or a function, whose time has to be measured."""
        return self.model != "none" or bool(self.step)

    @property
    def orders(self) -> tuple[str, ...]:
        """Orders that take part. Block order joins random order where a partial shuffle is enough."""
        if self.order == "random" and self.required_shuffle < 1:
            return ("random", "block")
        return (self.order,)

    @property
    def required_shuffle(self) -> float:
        """Least shuffle quality of batches, 0 to 1."""
        if self.min_shuffle is not None:
            return self.min_shuffle
        return 1.0 if self.order == "random" else 0.0

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Batch sizes that take part."""
        return (self.batch_size,) if isinstance(self.batch_size, int) else self.batch_size

    def step_s(self, batch_size: int) -> float:
        """Return the seconds of a training step over a batch of one of the sizes."""
        if self.measured_ms:
            return self.measured_ms[self.batch_sizes.index(batch_size)] / 1000
        return self.step_ms / 1000 * batch_size / self.batch_sizes[0]

    def describe(self, cache: str) -> str:
        """Return the requirements in one line, with the state of the page cache."""
        name = f" ({self.step or self.model}, measured here)" if self.has_unknown_step else ""
        steps = enumerated([f"{1000 * self.step_s(size):.3g}" for size in self.batch_sizes])
        step = f"step of {steps} ms{name}" if self.step_ms else "no training step"
        sizes = enumerated([str(size) for size in self.batch_sizes])
        why = " (the data do not fit in memory)" if cache == "cold" else ""
        return (
            f"batch size {sizes}, {' or '.join(self.orders)} order, {step}, {cache} cache{why}, "
            f"{self.epochs} epochs, at most {self.max_time_s:g} s"
        )


def _check_range(option: str, value: float, low: float, high: float, expected: str) -> None:
    if not low <= value < high:
        raise InvalidSettings(option, kind="out-of-range", expected=expected, found=f"{value:g}")
