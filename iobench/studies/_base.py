"""What a study is: a published experiment, done here, and claims that its rounds answer."""

from __future__ import annotations

import importlib
import os
import pkgutil
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import psutil

from iobench.base.errors import (
    InvalidSettings,
)
from iobench.results import others
from iobench.studies._turns import Measurements

HOLDS, FAILS, UNKNOWN = "holds here", "does not hold here", "cannot tell"
SCRATCH = "scratch-"


@dataclass(frozen=True)
class StudyOptions:
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
    def gpu(self) -> bool:
        """Whether batches go to a GPU, of whatever make."""
        return self.device != "cpu"


@dataclass(frozen=True)
class Reference:
    """What was published: its title and author, the year and the address where they are known."""

    title: str
    author: str
    year: int | None = None
    address: str | None = None

    def __str__(self) -> str:
        known = [f"“{self.title}”", self.author, *([str(self.year)] if self.year else [])]
        return ", ".join([*known, *([self.address] if self.address else [])])

    @property
    def unknown(self) -> str:
        """What nobody here knows of it, in words; empty where nothing is missing."""
        missing = [name for name in ("year", "address") if getattr(self, name) is None]
        return f"its {' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} not known here" * bool(
            missing
        )


@dataclass(frozen=True)
class Answer:
    """A published claim, whether it holds on this machine, why one says so, and on what data that rests."""

    claim: str
    answer: str
    because: str
    data: str = ""  # empty where no data were timed

    @property
    def sentence(self) -> str:
        """The answer as it may be quoted: never without what it rests on."""
        return f"{self.answer}{f', measured on {self.data}' if self.data else ''}: {self.claim}"

    def in_full(self, quick: bool) -> Answer:
        """The same with a word on the data where they were of quick sizes."""
        return replace(self, data=f"{self.data} (--quick sizes)") if quick and self.data else self


@dataclass(frozen=True)
class Result:
    """A study's answers, with what they rest on."""

    name: str
    source: str
    about: str  # sizes and settings, in words
    found: Measurements
    answers: list[Answer]
    machine: dict[str, Any]
    time: str
    quick: bool = False

    @property
    def warnings(self) -> list[str]:
        """Why one should not rely on it, where one should not."""
        small = (
            "quick sizes are so small that what varies from round to round hides many differences; "
            "for answers to rely on, do the study without --quick"
        )
        return [*([small] if self.quick else []), *others.said(self.found.others, "turns")]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "kind": "study"}


class Study(ABC):
    """A published experiment: how to do it here, and what it claims."""

    reference: ClassVar[Reference]
    part: ClassVar[str] = ""  # of the reference, where it is not all of it
    question: ClassVar[str]

    @property
    def source(self) -> str:
        """The reference, and which part of it, in words."""
        return f"{self.reference}: {self.part}" if self.part else str(self.reference)

    @abstractmethod
    def about(self, options: StudyOptions) -> str:
        """Sizes and settings, in words."""

    @abstractmethod
    def measure(self, options: StudyOptions) -> Measurements:
        """Do the experiment."""

    @abstractmethod
    def answers(self, found: Measurements) -> list[Answer]:
        """What the rounds say about each claim; pure."""


def cores() -> int:
    """How many processors may be used, which decides what workers bring."""
    return len(os.sched_getaffinity(0))


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


@contextmanager
def scratch(options: StudyOptions) -> Iterator[Path]:
    """A folder for as long as the block runs; what studies that were killed have left is removed first."""
    options.folder.mkdir(parents=True, exist_ok=True)
    for left in options.folder.glob(f"{SCRATCH}*"):
        if not psutil.pid_exists(int(left.name.split("-")[1])):
            shutil.rmtree(left, ignore_errors=True)
    with TemporaryDirectory(dir=options.folder, prefix=f"{SCRATCH}{os.getpid()}-") as folder:
        yield Path(folder)
