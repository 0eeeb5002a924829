"""Damaged artifacts of every format, and data of others: one line or right content, whoever reads them."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from pathlib import Path

import iobench
from _faults.attacked import Whole, done, variants
from _faults.children import complaint, forked
from _faults.deeds import DEEDS, damage
from _faults.others import Others, others
from _faults.reading import WAYS, assert_right
from _faults.registry import Outcome, Trials, kind
from iobench.dataset import index_cache

TIMES = {True: ", times preserved", False: ""}


@kind("damages")
def damages(trials: Trials) -> Iterator[Outcome]:
    """Every damage to every variant, met by every way to read."""
    every = [
        (variant, way, deed)
        for variant in trials.sample(variants(), quick=8)
        for way in WAYS
        for deed in DEEDS
    ]
    trials.chance.shuffle(every)
    chosen = [every[number % len(every)] for number in trials.some(full=900, quick=24)]
    whole = Whole(trials.folder / "whole", dict.fromkeys(variant for variant, _, _ in chosen))
    strangers = [file for variant in whole.variants for file in whole.files(variant)]
    for number, (variant, way, deed) in enumerate(chosen):
        root, stays = trials.folder / str(number) / "d", trials.chance.random() < 0.5
        whole.copy(variant, root)
        files = [root / file.relative_to(whole.of(variant).root) for file in whole.files(variant)]
        file = damage(deed, files, strangers, stays, trials.chance)
        ended = forked(functools.partial(_read, root, variant, way))
        where = f"{variant}'s index" if index_cache.FOLDER in file.parts else variant
        yield f"{number}: {deed} in {file.name} of {where}{TIMES[stays]}, {way}", complaint(ended)
        shutil.rmtree(root.parent)


def _read(root: Path, variant: str, way: str) -> None:
    read = WAYS[way]
    read(root, variant)
    if getattr(read, "proves", False):
        assert_right(root, variant)


@kind("damages-of-others")
def damages_of_others(trials: Trials) -> Iterator[Outcome]:
    """Data of others, damaged before they are added or converted, or after they were added."""
    wanted = trials.sample(variants(), quick=3)
    every = others(Whole(trials.folder / "whole", wanted), trials.folder / "others")
    strangers = [file for data in every for file in data.files]
    ways = [*WAYS, "converted"]
    for number in trials.some(full=200, quick=5):
        data = every[number % len(every)].copy(trials.folder / str(number) / "theirs")
        way, deed, stays = trials.chance.choice(ways), trials.chance.choice(list(DEEDS)), False
        after = way != "converted" and trials.chance.random() < 0.4
        if after:
            done(functools.partial(data.add, trials.folder / str(number)))
            stays = trials.chance.random() < 0.5
        file = damage(deed, data.files, strangers, stays, trials.chance)
        ended = forked(functools.partial(_use, data, trials.folder / str(number), way, after))
        when = f"after it was added{TIMES[stays]}" if after else "before"
        yield f"{number}: {deed} in {file.name} of others' {data.variant} {when}, {way}", complaint(ended)
        shutil.rmtree(trials.folder / str(number))


def _use(data: Others, data_dir: Path, way: str, added: bool) -> None:
    """What is added, damaged as it may be, is what it was when it was added."""
    if way == "converted":
        iobench.prepare(iobench.open_source(data.path), ("npy",), data_dir=data_dir, name="converted")
        return
    if not added:
        data.add(data_dir)
    variant = iobench.find_dataset(data_dir, "d").artifacts.popitem()[0]
    WAYS[way](data_dir / "d", variant)
