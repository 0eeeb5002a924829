"""Studies: a published experiment, its options and its result."""

from __future__ import annotations

import importlib
import os
import pkgutil
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, TypeVar

import psutil

from iobench.base.errors import InvalidSettings
from iobench.dataset.manifest import Manifest
from iobench.dataset.prepare import prepare
from iobench.dataset.sources import Synthetic
from iobench.host import page_cache
from iobench.results.display import Block, table
from iobench.results.run_warning import RunWarning, background_warnings, warning_blocks
from iobench.studies._claims import ClaimResult, Claims
from iobench.studies._rounds import Measurements

T = TypeVar("T")
SCRATCH = "scratch-"
QUICK = RunWarning(
    "quick-sizes",
    "with --quick sizes, variation between rounds hides many differences",
    hints=("repeat the study without --quick for reliable verdicts",),
)


@dataclass(frozen=True)
class StudyOptions:
    """Sizes and folder of a study."""

    data_dir: Path  # data folder; studies keep their datasets in `studies` below it
    quick: bool  # whether sizes are small
    device: str  # device that batches go to
    on_status: Callable[[str], None] = field(default=lambda text: None, compare=False)  # gets each status

    @property
    def folder(self) -> Path:
        """Folder of the studies' datasets, apart from the user's own."""
        return self.data_dir / "studies"

    @property
    def warmup(self) -> int:
        """Number of warm-up rounds."""
        return 0 if self.quick else 1

    @property
    def gpu(self) -> bool:
        """True if batches go to an accelerator."""
        return self.device != "cpu"

    def sized(self, published: T, quick: T) -> T:
        """Return the published size or the quick one."""
        return quick if self.quick else published


@dataclass(frozen=True)
class Reference:
    """A publication: title, author, and the year and address if they are known."""

    title: str
    author: str
    year: int | None = None
    address: str | None = None

    def __str__(self) -> str:
        known = [f"“{self.title}”", self.author, *([str(self.year)] if self.year else [])]
        return ", ".join([*known, *([self.address] if self.address else [])])

    @property
    def unknown(self) -> str:
        """The fields that are not known, in words; empty if all are known."""
        return " and ".join(name for name in ("year", "address") if getattr(self, name) is None)


@dataclass(frozen=True)
class StudyResult:
    """The claims of a study with their verdicts, and all measurements."""

    kind: ClassVar = "study"
    derived: ClassVar = ("warnings", "kind")

    name: str  # the study
    source: str  # its reference
    setup: str  # sizes and settings, in words
    measurements: Measurements  # all rounds of all contenders
    claims: list[ClaimResult]  # a verdict on each claim
    machine: dict[str, Any]  # has at least `cpu`
    time: str  # start of the study, ISO 8601 in UTC
    quick: bool = False  # whether sizes were small

    @property
    def warnings(self) -> list[RunWarning]:
        """Reasons not to rely on the verdicts."""
        background = background_warnings(self.measurements.background)
        return [*([QUICK] if self.quick else []), *background]

    def blocks(self) -> Iterator[Block]:
        """Yield the verdicts, the claims with their evidence, the measurements, and what was repeated."""
        counts = Counter(one.verdict for one in self.claims)
        yield Block("answer", [", ".join(f"{count} {verdict}" for verdict, count in counts.items())])
        yield Block("list", [f"{one.sentence}; {one.evidence}" for one in self.claims], "Claims")
        titles, *rows = self.measurements.table()
        yield table(titles, rows)
        yield Block("text", [self.source, self.setup])
        yield from warning_blocks(self.warnings)


@dataclass(frozen=True)
class Study:
    """A published experiment: how to repeat it here, and the claims that it makes."""

    reference: Reference  # the publication
    question: str  # the question that it answers
    setup: Callable[[StudyOptions], str]  # sizes and settings, in words
    measure: Callable[[StudyOptions], Measurements]  # runs the experiment
    verdicts: Callable[[Claims], dict[str, ClaimResult]]  # on each claim, which is one sentence; pure
    part: str = ""  # part of the publication that is repeated; empty for all of it

    def evaluate(self, measured: Measurements) -> list[ClaimResult]:
        """Return a verdict on each claim."""
        verdicts = self.verdicts(Claims(measured))
        return [replace(result, claim=claim) for claim, result in verdicts.items()]

    @property
    def source(self) -> str:
        """The reference and the part of it, in words."""
        return f"{self.reference}: {self.part}" if self.part else str(self.reference)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def names() -> list[str]:
    """Return the names of all studies: one module of this folder each."""
    here = importlib.import_module("iobench.studies")
    modules = (module.name for module in pkgutil.iter_modules(here.__path__))
    return [name.replace("_", "-") for name in modules if not name.startswith("_")]


def study_of(name: str) -> Study:
    """Return the study of a name; InvalidSettings (`unknown-study`) if there is none."""
    if name not in names():
        raise InvalidSettings(
            f"unknown study {name!r}", kind="unknown-study", expected=f"one of {', '.join(names())}"
        )
    study: Study = importlib.import_module(f"iobench.studies.{name.replace('-', '_')}").STUDY
    return study


@contextmanager
def scratch(options: StudyOptions) -> Iterator[Path]:
    """Yield a temporary folder, and remove folders that killed studies left behind."""
    options.folder.mkdir(parents=True, exist_ok=True)
    for stale in options.folder.glob(f"{SCRATCH}*"):
        if not psutil.pid_exists(int(stale.name.split("-")[1])):
            shutil.rmtree(stale, ignore_errors=True)
    with TemporaryDirectory(dir=options.folder, prefix=f"{SCRATCH}{os.getpid()}-") as folder:
        yield Path(folder)


def warm_dataset(options: StudyOptions, source: Synthetic, variants: Sequence[str], name: str) -> Manifest:
    """Prepare a dataset in the folder of studies, and bring its files into the page cache."""
    manifest = prepare(source, variants, data_dir=options.folder, name=name)[0]
    page_cache.warm([file for variant in variants for file in manifest.files_of(variant)])
    return manifest


IO_EVALUATION = Reference("DataLoader and TensorDict: an IO evaluation", "a project of PyTorch practitioners")
FASTER_LOADING = Reference("Faster data loading in PyTorch", "a practitioner's tutorial", 2019)
MEMORY_SETTINGS = Reference(
    "Who is faster: PyTorch's memory-related settings", "a practitioner's measurements"
)
IO_BOTTLENECK = Reference(
    "Stuck in the I/O bottleneck", "a practitioner's report on PNG, HDF5 and LMDB for small batches"
)
DATALOADER_INDEXING = Reference(
    "DataLoader far slower than indexing", "an issue of PyTorch", 2025, "github.com/pytorch/pytorch#154318"
)
DISTRIBUTED_LOADER = Reference(
    "Dpex: a distributed drop-in DataLoader on Ray", "a practitioner's project and its measurements"
)
