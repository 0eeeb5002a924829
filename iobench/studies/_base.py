"""What a study is: contenders that take turns, and claims that their rounds answer."""

from __future__ import annotations

import importlib
import os
import pkgutil
import shutil
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
import psutil

from iobench.errors import InvalidSettings
from iobench.host import interrupts
from iobench.results import stats
from iobench.units import bytes_text, seconds_text

HOLDS, FAILS, UNKNOWN = "holds here", "does not hold here", "cannot tell"
ROUNDS = 5
SCRATCH = "scratch-"

Rounds = dict[str, list[float]]  # a figure of each contender, round by round


@dataclass(frozen=True)
class Took:
    """What a contender's turn took, and figures beside, by names that end in their unit."""

    seconds: float
    noted: dict[str, float] = field(default_factory=dict)


Contender = Callable[[], Took]  # runs once


@dataclass(frozen=True)
class Options:
    """How large a study is, and where its data lies."""

    data_dir: Path
    quick: bool
    device: str
    on_status: Callable[[str], None] = field(default=lambda text: None, compare=False)

    @property
    def folder(self) -> Path:
        """Where studies keep datasets, apart from the user's own."""
        return self.data_dir / "studies"

    @property
    def warmup(self) -> int:
        """Rounds of many epochs that do not count."""
        return 0 if self.quick else 1

    @property
    def cuda(self) -> bool:
        """Whether there is a GPU to move to."""
        return self.device.startswith("cuda")


@dataclass(frozen=True)
class Answer:
    """A published claim, whether it holds on this machine, and why one says so."""

    claim: str
    answer: str
    because: str


@dataclass(frozen=True)
class Found:
    """What a study measured: each contender's rounds, figure by figure, and what is not by contender."""

    seconds: Rounds
    noted: dict[str, Rounds] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)

    def note(self, contender: str, took: Took) -> None:
        """Add a turn of a contender."""
        self.seconds.setdefault(contender, []).append(took.seconds)
        for figure, value in took.noted.items():
            self.noted.setdefault(figure, {}).setdefault(contender, []).append(value)

    def of(self, figure: str) -> Found:
        """The same with a noted figure, which must be in seconds, in place of the whole time."""
        return Found(self.noted[figure], figures=self.figures)

    def table(self) -> list[list[str]]:
        """Titles, and a row for each contender: time with its 95 % interval, rounds, medians of the rest."""
        titles = ["contender", "median", "95 %", "rounds", *map(_title, self.noted)]
        return [titles, *([name, *self._row(name)] for name in self.seconds)]

    def _row(self, name: str) -> list[str]:
        seconds = stats.estimate(self.seconds[name])
        ends = [seconds_text(end) for end in (seconds.low, seconds.high) if end is not None]
        noted = [_text(figure, self.median(figure, name)) for figure in self.noted]
        rounds = str(len(self.seconds[name]))
        return [seconds_text(seconds.median), " – ".join(ends) or "–", rounds, *noted]

    def median(self, figure: str, contender: str) -> float | None:
        """The median of a noted figure; None where it was not noted."""
        values = self.noted.get(figure, {}).get(contender)
        return statistics.median(values) if values else None


@dataclass(frozen=True)
class Result:
    """A study's answers, with what they rest on."""

    name: str
    source: str
    about: str  # sizes and settings, in words
    found: Found
    answers: list[Answer]
    machine: dict[str, Any]
    time: str
    quick: bool = False

    @property
    def warning(self) -> str | None:
        """Why one should not rely on it, where one should not."""
        if not self.quick:
            return None
        return "quick sizes measure the moment as much as the contenders; without --quick it tells more"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "kind": "study"}


class Study(ABC):
    """A published experiment: how to do it here, and what it claims."""

    source: ClassVar[str]
    question: ClassVar[str]

    @abstractmethod
    def about(self, options: Options) -> str:
        """Sizes and settings, in words."""

    @abstractmethod
    def measure(self, options: Options) -> Found:
        """Do the experiment."""

    @abstractmethod
    def answers(self, found: Found) -> list[Answer]:
        """What the rounds say about each claim; pure."""


def names() -> list[str]:
    """Every study: one module of this folder each."""
    here = importlib.import_module("iobench.studies")
    found = (module.name for module in pkgutil.iter_modules(here.__path__))
    return [name.replace("_", "-") for name in found if not name.startswith("_")]


def study_of(name: str) -> Study:
    """The study of that name; InvalidSettings lists those there are."""
    if name not in names():
        raise InvalidSettings(f"unknown study {name!r}; known: {', '.join(names())}")
    module = importlib.import_module(f"iobench.studies.{name.replace('-', '_')}")
    found: Study = module.STUDY
    return found


def interleave(
    contenders: Mapping[str, Contender],
    rounds: int = ROUNDS,
    warmup: int = 1,
    on_status: Callable[[str], None] = lambda text: None,
) -> Found:
    """What each contender took in rounds in which all take turns; warm-up rounds do not count.

    Each round has an order of its own: who comes after whom matters (memory that one has given back
    is quick to get for the next).
    """
    found, shuffle = Found({name: [] for name in contenders}), np.random.Generator(np.random.PCG64(0))
    with interrupts.deferred() as check_interrupt:
        for number in range(1 - warmup, rounds + 1):
            on_status(f"round {number} of {rounds}" if number > 0 else "warming up")
            for name in shuffle.permutation(list(contenders)).tolist():
                took = contenders[name]()
                check_interrupt()
                if number > 0:
                    found.note(name, took)
    return found


@contextmanager
def scratch(options: Options) -> Iterator[Path]:
    """A folder for as long as the block runs; what studies that were killed have left is removed first."""
    options.folder.mkdir(parents=True, exist_ok=True)
    for left in options.folder.glob(f"{SCRATCH}*"):
        if not psutil.pid_exists(int(left.name.split("-")[1])):
            shutil.rmtree(left, ignore_errors=True)
    with TemporaryDirectory(dir=options.folder, prefix=f"{SCRATCH}{os.getpid()}-") as folder:
        yield Path(folder)


def together(parts: Sequence[Found], **figures: Any) -> Found:
    """What several takings of turns found, as one."""
    whole = Found({}, figures=figures)
    for part in parts:
        whole.seconds.update(part.seconds)
        for figure, rounds in part.noted.items():
            whole.noted.setdefault(figure, {}).update(rounds)
    return whole


def timed(work: Callable[[], Any]) -> Contender:
    """Work as a contender."""

    def run() -> Took:
        before = time.perf_counter()
        work()
        return Took(time.perf_counter() - before)

    return run


def _title(figure: str) -> str:
    """A figure's name without the unit at its end."""
    return figure.removesuffix("_per_s").removesuffix("_s").removesuffix("_bytes").replace("_", " ")


def _text(figure: str, value: float | None) -> str:
    if value is None:
        return "–"
    if figure.endswith("_bytes_per_s"):
        return f"{bytes_text(value)}/s"
    if figure.endswith("_bytes"):
        return bytes_text(value)
    return seconds_text(value) if figure.endswith("_s") else f"{value:.0%}"
