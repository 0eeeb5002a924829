"""What decides which format and loader to use."""

from __future__ import annotations

from dataclasses import dataclass, field

from iobench.base.errors import (
    InvalidSettings,
)
from iobench.base.text import enumerated
from iobench.bench.options import MODELS
from iobench.loading.order import LIMITS, ORDERS, check_number, check_setting

MAX_TIME_S = 300.0
LEAST_TIME_S = 10.0
EPOCHS = 90  # of a training, as ImageNet's is
INSTALLED, CORE = "installed", "core"
ONLY = (INSTALLED, CORE)


@dataclass(frozen=True)
class Requirements:
    """What a person trains with; each default is said aloud by `told`.

    `full_bytes`: logical bytes of the data that will be trained on, where these are a sample of them.
    `batch_size`: of several, the one that is fastest. `step_ms`: what a training step takes, over a batch of
    the first size, and in proportion over others; `model`, one of ours, or `step`, a callable like
    `train.py:step` that is given a batch on the device, have it measured over each size.
    `max_disk_bytes`: room on the disk for all data. `min_shuffle`: how random batches have to be, 1 being
    a full shuffle: below that, block order takes part; by default 1, and anything where block order is asked
    for. `formats`, `loaders`: variants that take part, or
    all. `only`: of what is `installed`, or of the `core`, which needs nothing but iobench.
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
    max_time_s: float = MAX_TIME_S
    seed: int = 0
    measured_ms: tuple[float, ...] = field(default=(), repr=False)  # a step's, over a batch of each size

    def __post_init__(self) -> None:
        check_number("epochs", self.epochs, 1, LIMITS["epoch"][1])
        if not LEAST_TIME_S <= self.max_time_s < float("inf"):
            raise InvalidSettings(
                f"max-time {self.max_time_s:g} is too short to prove, race and measure again; "
                f"give {LEAST_TIME_S:g} seconds or more"
            )
        if not 0 <= self.step_ms < float("inf"):
            raise InvalidSettings(f"step-ms {self.step_ms:g} is not a number of milliseconds, 0 or more")
        if self.model not in MODELS:
            raise InvalidSettings(f"model {self.model!r} is not one of {', '.join(MODELS)}")
        if not self.batch_sizes:
            raise InvalidSettings("batch_size: give at least one")
        for batch_size in self.batch_sizes:
            check_setting("batch_size", batch_size)
        if self.only not in ONLY:
            raise InvalidSettings(f"only {self.only!r} is not one of {', '.join(ONLY)}")
        if self.order not in ORDERS:
            raise InvalidSettings(f"order {self.order!r} is not one of {', '.join(ORDERS)}")
        check_setting("seed", self.seed)
        if self.min_shuffle is not None and self.order == "sequential":
            raise InvalidSettings("min-shuffle is for order random or block, not sequential")
        if self.min_shuffle is not None and not 0 <= self.min_shuffle <= 1:
            raise InvalidSettings(f"min-shuffle {self.min_shuffle:g} is not in 0..1")
        for name in ("full_bytes", "max_disk_bytes"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise InvalidSettings(f"{name} {value} is below 1")

    @property
    def names_step(self) -> bool:
        """Whether there is a model or a callable whose time is not known before it was measured."""
        return self.model != "none" or bool(self.step)

    @property
    def orders(self) -> tuple[str, ...]:
        """Orders that take part: blocks are no worse than random order for who does not ask for it."""
        return ("random", "block") if self.order == "random" and self.least_shuffle < 1 else (self.order,)

    @property
    def least_shuffle(self) -> float:
        """How random batches have to be at least, 0 to 1."""
        if self.min_shuffle is not None:
            return self.min_shuffle
        return 1.0 if self.order == "random" else 0.0

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Every size of a batch that takes part."""
        return (self.batch_size,) if isinstance(self.batch_size, int) else self.batch_size

    def step_s(self, batch_size: int) -> float:
        """Seconds of a training step over a batch of one of the sizes."""
        if self.measured_ms:
            return self.measured_ms[self.batch_sizes.index(batch_size)] / 1000
        return self.step_ms / 1000 * batch_size / self.batch_sizes[0]

    def told(self, cold: bool) -> str:
        """What all of it comes to, in one sentence."""
        named = f" ({self.step or self.model}, as measured here)" if self.names_step else ""
        steps = enumerated([f"{1000 * self.step_s(size):.3g}" for size in self.batch_sizes])
        step = f"a step of {steps} ms{named}" if self.step_ms else "no training step"
        sizes = enumerated([str(size) for size in self.batch_sizes])
        cache = "a cold cache, since the data do not fit this machine's memory" if cold else "a warm cache"
        return (
            f"batches of {sizes} in {' or '.join(self.orders)} order, {step}, {cache}, "
            f"{self.epochs} epochs, at most {self.max_time_s:g} s"
        )
