"""Ways to call prepare, and whether a dataset is whole after one of them was struck."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import iobench
from _faults.attacked import done, holds
from iobench import Manifest
from iobench.dataset import index_cache
from iobench.dataset.checksum import Checksum

NAME, SMALL = "d", 4096  # the latter in elements


class NotWhole(Exception):
    """What is wrong with a dataset."""


@dataclass(frozen=True)
class Call:
    """The arguments of one prepare."""

    seed: int
    variants: tuple[str, ...]
    overwrite: bool = False
    images: bool = False  # for variants that hold no vectors, here or in another call

    def __call__(self, data_dir: Path, elements: int = SMALL) -> None:
        """Make it."""
        source = self._source(elements)
        iobench.prepare(source, self.variants, data_dir=data_dir, name=NAME, overwrite=self.overwrite)

    def _source(self, elements: int) -> iobench.Synthetic:
        """Vectors, or images where a variant holds no vectors."""
        vectors = iobench.Synthetic(elements, (16,), seed=self.seed)
        if not self.images and all(holds(variant, vectors.schema) for variant in self.variants):
            return vectors
        return iobench.Synthetic(elements, (8, 8, 3), "uint8", self.seed)

    def content(self, elements: int) -> int:
        """The checksum of its data."""
        source = self._source(elements)
        check = Checksum(source.schema)
        for batch in source.batches():
            check.add(batch)
        return check.content


@dataclass(frozen=True)
class Scenario:
    """A dataset as one call left it, perhaps changed since, and the call that is struck."""

    name: str
    before: Call | None
    call: Call
    change: Callable[[Path], None] = lambda root: None
    damaged: str | None = None  # the variant that the change damages

    @property
    def label(self) -> str:
        """Its name, and what is prepared in it."""
        return f"{self.name} of {' '.join(self.call.variants)}"

    def make(self, data_dir: Path, elements: int = SMALL) -> None:
        """Make the data folder as it is before the call."""
        data_dir.mkdir(parents=True)
        if self.before is not None:
            self.before(data_dir, elements)
            self.change(data_dir / NAME)

    def check(self, data_dir: Path, elements: int = SMALL) -> Call | None:
        """The call whose data are there, whole; None where nothing is yet. NotWhole says what is not."""
        root = data_dir / NAME
        if self.before is None and not (root / "manifest.json").exists():
            return None
        manifest = Manifest.load(root)
        there = self._there(manifest, elements)
        wrong = {variant: problem for variant, problem in iobench.verify(manifest).items() if problem}
        if self.damaged and (self.before is None or there is self.before):
            wrong.pop(self.damaged, None)  # as it was, if it still is
        if wrong:
            raise NotWhole(f"listed, but not right: {wrong}")
        return there

    def _there(self, manifest: Manifest, elements: int) -> Call:
        found, wanted = set(manifest.artifacts), set(self.call.variants)
        had = set(self.before.variants) if self.before else set()
        same = self.before is None or self.before.seed == self.call.seed
        if self.before and manifest.content == self.before.content(elements) and found == had:
            return self.before
        if manifest.content == self.call.content(elements):
            whole = found == wanted | (had if same else set())
            if whole or (same and not self.call.overwrite and had <= found <= had | wanted):
                return self.call
        raise NotWhole(f"neither old nor new: {sorted(found)} of content {manifest.content:016x}")


def go_on(scenario: Scenario, data_dir: Path, call: Call, elements: int = SMALL) -> None:
    """Prepare again, which must need no help and leave what it lists, whole, and nothing else."""
    call(data_dir, elements)
    root, manifest = data_dir / NAME, Manifest.load(data_dir / NAME)
    wrong = {variant: problem for variant, problem in iobench.verify(manifest).items() if problem}
    if wrong or not set(call.variants) <= set(manifest.artifacts):
        raise NotWhole(f"prepared again, but not right: {wrong or sorted(manifest.artifacts)}")
    folders = {artifact.folder for artifact in manifest.artifacts.values()}
    left = {path.name for path in root.iterdir()} - {".lock", "manifest.json", index_cache.FOLDER, *folders}
    left |= {path.name for path in (root / index_cache.FOLDER).glob("*") if path.stem not in folders}
    if left:
        raise NotWhole(f"left behind: {sorted(left)}")


def truncate(variant: str, root: Path) -> None:
    """Damage one artifact so that its repair is asked for."""
    file = max(Manifest.load(root).files_of(variant), key=lambda path: path.stat().st_size)
    os.truncate(file, file.stat().st_size // 2)


def scenarios(formats: Sequence[str]) -> list[Scenario]:
    """A fresh prepare, one that adds, one that repairs, and those that replace."""
    some, rest = tuple(formats[:1]), tuple(formats)
    images = not all(holds(one, iobench.Synthetic(SMALL, (16,)).schema) for one in rest)
    old, new = Call(0, rest, images=images), Call(1, rest, overwrite=True, images=images)
    return [
        Scenario("fresh", None, old),
        Scenario("add", Call(0, some, images=images), old),
        Scenario("overwrite", old, new),
        Scenario("overwrite by the same", old, Call(0, some, overwrite=True, images=images)),
        Scenario("repair", old, old, functools.partial(truncate, rest[0]), damaged=rest[0]),
    ]


def replacing(formats: Sequence[str]) -> Scenario:
    """One that replaces all that is there."""
    return next(one for one in scenarios(formats) if one.name == "overwrite")


class Ground:
    """Copies of a scenario's beginning, one for each trial."""

    def __init__(self, scenario: Scenario, folder: Path, elements: int = SMALL) -> None:
        self.scenario, self.folder, self.elements, self._count = scenario, folder, elements, 0
        done(functools.partial(scenario.make, folder / "before", elements))

    def fresh(self) -> Path:
        """A data folder as it is before the call."""
        if self._count:
            shutil.rmtree(self.folder / str(self._count))
        self._count += 1
        return Path(shutil.copytree(self.folder / "before", self.folder / str(self._count), symlinks=True))
