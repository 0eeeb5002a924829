"""Corrupted artifacts and foreign data: readers must return right content or one error line."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from pathlib import Path

import iobench
from eval.faults.children import run_or_raise, tried
from eval.faults.corruptions import CORRUPTIONS, corrupt
from eval.faults.foreign_data import ForeignData, foreign_data
from eval.faults.reading import READERS, VERIFYING, assert_right
from eval.faults.registry import Outcome, Trials, kind
from eval.faults.targets import VerifiedDatasets, variants
from iobench.dataset import index_cache

TIMES = {True: ", times preserved", False: ""}


@kind("corruption")
def prepared_data(trials: Trials) -> Iterator[Outcome]:
    """Corrupt prepared variants in every way and read them with every reader."""
    every = [
        (variant, way, corruption)
        for variant in trials.sample(variants(), quick=8)
        for way in READERS
        for corruption in CORRUPTIONS
    ]
    trials.rng.shuffle(every)
    chosen = [every[number % len(every)] for number in trials.numbers(full=900, quick=24)]
    datasets = VerifiedDatasets(trials.folder / "whole", dict.fromkeys(variant for variant, _, _ in chosen))
    foreign_files = [file for variant in datasets.variants for file in datasets.files(variant)]
    for number, (variant, way, corruption) in enumerate(chosen):
        root, keep_times = trials.folder / str(number) / "d", trials.rng.random() < 0.5
        datasets.copy(variant, root)
        files = [
            root / file.relative_to(datasets.manifest_for(variant).root) for file in datasets.files(variant)
        ]
        file = corrupt(corruption, files, foreign_files, keep_times, trials.rng)
        where = f"{variant}'s index" if index_cache.FOLDER in file.parts else variant
        fault = f"{number}: {corruption} in {file.name} of {where}{TIMES[keep_times]}, {way}"
        yield tried(fault, _read, root, variant, way)
        shutil.rmtree(root.parent)


def _read(root: Path, variant: str, way: str) -> None:
    READERS[way](root, variant)
    if way in VERIFYING:
        assert_right(root, variant)


@kind("corruption-foreign")
def external_data(trials: Trials) -> Iterator[Outcome]:
    """Corrupt foreign data before they are added or converted, or after they were added."""
    chosen = trials.sample(variants(), quick=3)
    every = foreign_data(VerifiedDatasets(trials.folder / "whole", chosen), trials.folder / "foreign")
    foreign_files = [file for data in every for file in data.files]
    ways = [*READERS, "converted"]
    for number in trials.numbers(full=200, quick=5):
        data = every[number % len(every)].copy(trials.folder / str(number) / "data")
        way, corruption, keep_times = trials.rng.choice(ways), trials.rng.choice(CORRUPTIONS), False
        after = way != "converted" and trials.rng.random() < 0.4
        if after:
            run_or_raise(functools.partial(data.add, trials.folder / str(number)))
            keep_times = trials.rng.random() < 0.5
        file = corrupt(corruption, data.files, foreign_files, keep_times, trials.rng)
        when = f"after it was added{TIMES[keep_times]}" if after else "before it was added"
        fault = f"{number}: {corruption} in {file.name} of foreign {data.variant} {when}, {way}"
        yield tried(fault, _use, data, trials.folder / str(number), way, after)
        shutil.rmtree(trials.folder / str(number))


def _use(data: ForeignData, data_dir: Path, way: str, added: bool) -> None:
    """Convert the data, or add them if they were not added, and read them."""
    if way == "converted":
        iobench.prepare(iobench.open_source(data.path), ("npy",), data_dir=data_dir, name="converted")
        return
    if not added:
        data.add(data_dir)
    variant = iobench.find_dataset(data_dir, "d").artifacts.popitem()[0]
    READERS[way](data_dir / "d", variant)
