"""Requirements that decide which format and loader to use."""

from __future__ import annotations

from dataclasses import dataclass, field

from iobench.base.errors import InvalidSettings
from iobench.base.text import enumerated
from iobench.bench.options import MODELS
from iobench.loading.number_limits import LIMITS, check_number, check_setting
from iobench.loading.order import ORDERS
from iobench.results.prices import Prices

MAX_TIME_S = 300.0
MIN_TIME_S = 10.0
EPOCHS = 90  # of a training, as for ImageNet
INSTALLED, CORE = "installed", "core"
ONLY = (INSTALLED, CORE)


@dataclass(frozen=True)
class Requirements:
    """Training that a format and a loader are recommended for.

    Attributes
    ----------
    device : str
        Device name, such as ``cpu``, ``cuda:0`` or ``auto``.
    order : str
        ``sequential``, ``random`` or ``block``.
    batch_size : int or tuple of int
        Samples in a batch; of several sizes, the fastest is chosen.
    full_bytes : int, optional
        Logical bytes of the full data, where only a sample of them is given.
    step_ms : float
        Milliseconds of a training step over a batch of the first size, in proportion for other sizes.
    model : str
        Built-in model whose step is measured for each size.
    step : str
        User's step, such as ``train.py:step``, measured for each size; it is given a batch on the device.
    epochs : int
        Epochs of the training.
    max_disk_bytes : int, optional
        Disk space for all of the data.
    min_shuffle : float, optional
        Least shuffle quality, 0 to 1. Below 1, block order takes part. Default: 1 for random order, 0 for
        block order.
    formats, loaders : tuple of str
        Variants that take part, or ``all``.
    only : str
        ``installed``, or ``core`` for what needs no packages but iobench's own.
    prices : str
        Prices of the object store, as for `iobench run`.
    max_time_s : float
        Seconds for everything.
    seed : int
        Seed of the random order.

    Raises
    ------
    InvalidSettings
        A value is out of range, unknown, or excludes another.
    """

    device: str = "auto"
    order: str = "random"
    batch_size: int | tuple[int, ...] = 256
    full_bytes: int | None = None
    step_ms: float = 0.0
    model: str = "none"
    step: str = ""
    epochs: int = EPOCHS
    max_disk_bytes: int | None = None
    min_shuffle: float | None = None
    formats: tuple[str, ...] = ("all",)
    loaders: tuple[str, ...] = ("all",)
    only: str = INSTALLED
    prices: str = ""
    max_time_s: float = MAX_TIME_S
    seed: int = 0
    measured_ms: tuple[float, ...] = field(default=(), repr=False)  # of a step, for each batch size

    def __post_init__(self) -> None:
        if self.prices:
            Prices.parse(self.prices)
        check_number("epochs", self.epochs, 1, LIMITS["epoch"][1])
        _check_range("--max-time", self.max_time_s, MIN_TIME_S, float("inf"), f"{MIN_TIME_S:g} s or more")
        _check_range("--step-ms", self.step_ms, 0, float("inf"), "milliseconds, 0 or more")
        for option, value, known in (
            ("--model", self.model, MODELS),
            ("--only", self.only, ONLY),
            ("--order", self.order, ORDERS),
        ):
            if value not in known:
                raise InvalidSettings(
                    option, kind="unknown-choice", expected=f"one of {', '.join(known)}", found=repr(value)
                )
        if not self.batch_sizes:
            raise InvalidSettings("batch_size", kind="missing-option", expected="at least one", found="none")
        for batch_size in self.batch_sizes:
            check_setting("batch_size", batch_size)
        check_setting("seed", self.seed)
        if self.min_shuffle is not None and self.order == "sequential":
            raise InvalidSettings(
                "--min-shuffle with sequential order",
                kind="conflicting-options",
                hint="use it with --order random or block",
            )
        if self.min_shuffle is not None and not 0 <= self.min_shuffle <= 1:
            value = f"{self.min_shuffle:g}"
            raise InvalidSettings("--min-shuffle", kind="out-of-range", expected="0 to 1", found=value)
        for name in ("full_bytes", "max_disk_bytes"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise InvalidSettings(name, kind="out-of-range", expected="at least 1", found=value)

    @property
    def has_unknown_step(self) -> bool:
        """True if the step is a model or a function, whose time has to be measured."""
        return self.model != "none" or bool(self.step)

    @property
    def orders(self) -> tuple[str, ...]:
        """Orders that take part: block order joins random order where a partial shuffle is enough."""
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
    """Raise InvalidSettings for a number below `low`, not below `high`, or NaN."""
    if not low <= value < high:
        raise InvalidSettings(option, kind="out-of-range", expected=expected, found=f"{value:g}")
