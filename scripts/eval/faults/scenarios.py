"""Calls of prepare that are interrupted, and checks of the dataset after that."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import iobench
from eval.faults.children import run_or_raise
from eval.faults.targets import generated
from iobench import Manifest
from iobench.dataset import index_cache
from iobench.dataset.checksum import Checksum

NAME, SMALL = "d", 4096  # the name of the dataset; its size in elements
LOADER = """
import torch
from torch.utils.data import DataLoader, TensorDataset

def make_loader():
    return DataLoader(TensorDataset(torch.zeros(400, 8)), batch_size=16, num_workers=2)
"""


class Inconsistent(Exception):
    """A dataset is neither in its old nor in its new state."""


@dataclass(frozen=True)
class PrepareCall:
    """The arguments of one call of prepare."""

    seed: int
    variants: tuple[str, ...]
    overwrite: bool = False
    beside: tuple[str, ...] = ()  # variants of another call, which must be able to store the data, too

    def __call__(self, data_dir: Path, elements: int = SMALL) -> None:
        """Call prepare."""
        source = self._source(elements)
        iobench.prepare(source, self.variants, data_dir=data_dir, name=NAME, overwrite=self.overwrite)

    def _source(self, elements: int) -> iobench.Synthetic:
        """Return data that all variants can store."""
        return generated((*self.variants, *self.beside), elements, self.seed)

    def content(self, elements: int) -> int:
        """Return the checksum of the data."""
        source = self._source(elements)
        check = Checksum(source.schema)
        for batch in source.batches():
            check.add(batch)
        return check.content


@dataclass(frozen=True)
class Scenario:
    """A dataset that one call wrote, optionally changed since, and the call that is interrupted."""

    name: str
    before: PrepareCall | None
    call: PrepareCall
    change: Callable[[Path], None] = lambda root: None
    damaged: str | None = None  # the variant that the change damages

    @property
    def label(self) -> str:
        """The name and the variants."""
        return f"{self.name} of {' '.join(self.call.variants)}"

    def make(self, data_dir: Path, elements: int = SMALL) -> None:
        """Create the data folder as it is before the call."""
        data_dir.mkdir(parents=True)
        if self.before is not None:
            self.before(data_dir, elements)
            self.change(data_dir / NAME)

    def check(self, data_dir: Path, elements: int = SMALL) -> PrepareCall | None:
        """Return the call whose data are complete on disk, None before any data; raise Inconsistent."""
        root = data_dir / NAME
        if self.before is None and not (root / "manifest.json").exists():
            return None
        manifest = Manifest.load(root)
        present = self._present_call(manifest, elements)
        wrong = {variant: problem for variant, problem in iobench.verify(manifest).items() if problem}
        if self.damaged and (self.before is None or present is self.before):
            wrong.pop(self.damaged, None)  # it was damaged before the call
        if wrong:
            raise Inconsistent(f"listed in the manifest but damaged: {wrong}")
        return present

    def _present_call(self, manifest: Manifest, elements: int) -> PrepareCall:
        listed, requested = set(manifest.artifacts), set(self.call.variants)
        earlier = set(self.before.variants) if self.before else set()
        same = self.before is None or self.before.seed == self.call.seed
        if self.before and manifest.content == self.before.content(elements) and listed == earlier:
            return self.before
        if manifest.content == self.call.content(elements):
            complete = listed == requested | (earlier if same else set())
            if complete or (same and not self.call.overwrite and earlier <= listed <= earlier | requested):
                return self.call
        raise Inconsistent(f"neither old nor new: {sorted(listed)} of content {manifest.content:016x}")


def check_retry(scenario: Scenario, data_dir: Path, call: PrepareCall, elements: int = SMALL) -> None:
    """Call prepare again; raise Inconsistent unless it leaves complete artifacts and no other file."""
    call(data_dir, elements)
    root, manifest = data_dir / NAME, Manifest.load(data_dir / NAME)
    wrong = {variant: problem for variant, problem in iobench.verify(manifest).items() if problem}
    if wrong or not set(call.variants) <= set(manifest.artifacts):
        raise Inconsistent(f"damaged after the next prepare: {wrong or sorted(manifest.artifacts)}")
    folders = {artifact.folder for artifact in manifest.artifacts.values()}
    left = {path.name for path in root.iterdir()} - {".lock", "manifest.json", index_cache.FOLDER, *folders}
    left |= {path.name for path in (root / index_cache.FOLDER).glob("*") if path.stem not in folders}
    if left:
        raise Inconsistent(f"files left behind: {sorted(left)}")


def truncate(variant: str, root: Path) -> None:
    """Truncate one artifact, which the next prepare has to repair."""
    file = max(Manifest.load(root).files_of(variant), key=lambda path: path.stat().st_size)
    os.truncate(file, file.stat().st_size // 2)


def scenarios(formats: Sequence[str]) -> list[Scenario]:
    """Return the scenarios: a new dataset, an addition, replacements and a repair."""
    some, rest = tuple(formats[:1]), tuple(formats)
    old, new = PrepareCall(0, rest), PrepareCall(1, rest, overwrite=True)
    return [
        Scenario("new", None, old),
        Scenario("add", PrepareCall(0, some, beside=rest), old),
        Scenario("overwrite", old, new),
        Scenario("overwrite with the same data", old, PrepareCall(0, some, overwrite=True, beside=rest)),
        Scenario("repair", old, old, functools.partial(truncate, rest[0]), damaged=rest[0]),
    ]


def replacing(formats: Sequence[str]) -> Scenario:
    """Return the scenario that replaces all artifacts."""
    return next(one for one in scenarios(formats) if one.name == "overwrite")


class ScenarioCopies:
    """Copies of a scenario's initial data folder, one for each trial."""

    def __init__(self, scenario: Scenario, folder: Path, elements: int = SMALL) -> None:
        self.scenario, self.folder, self.elements, self._count = scenario, folder, elements, 0
        run_or_raise(functools.partial(scenario.make, folder / "before", elements))

    def fresh(self) -> Path:
        """Return a new copy of the initial data folder and delete the last one."""
        if self._count:
            shutil.rmtree(self.folder / str(self._count))
        self._count += 1
        return Path(shutil.copytree(self.folder / "before", self.folder / str(self._count), symlinks=True))
