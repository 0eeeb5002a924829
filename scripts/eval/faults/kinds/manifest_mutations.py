"""Mutated manifests: each must be read or end with one error line."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path

import iobench
from eval.faults.children import is_one_line, limit_memory, run_or_raise, tried
from eval.faults.foreign_data import foreign_data
from eval.faults.mutations import mutations, text_of
from eval.faults.registry import Outcome, Trials, kind
from eval.faults.scenarios import NAME, PrepareCall
from eval.faults.targets import VerifiedDatasets, random_groups
from iobench import Manifest

LIMIT_BYTES = 1 << 30  # of additional memory: a small file must not need more


@kind("manifest-mutations")
def manifests(trials: Trials) -> Iterator[Outcome]:
    """Replace one to three values, keys or items in manifests of prepared and of added data."""
    groups = trials.sample(random_groups(trials.rng), quick=2)
    roots = [root for group in groups for root in _datasets(trials.folder, group)]
    bodies = [json.loads((root / "manifest.json").read_text()) for root in roots]
    for number, body, changes in mutations(bodies, trials.numbers(full=600, quick=40), trials.rng):
        root = roots[number % len(roots)]
        (root / "manifest.json").write_text(text_of(body))
        yield tried(f"manifest {number}, {root.parent.name}: {changes}", _read, root)


def _datasets(folder: Path, group: list[str]) -> Iterator[Path]:
    """Prepare and add data, and yield the folders of the datasets."""
    label = " ".join(group)
    data_dir = folder / f"prepared {label}"
    run_or_raise(functools.partial(PrepareCall(0, tuple(group)), data_dir))
    yield data_dir / NAME
    datasets = VerifiedDatasets(folder / label, group[:1], samples=30)
    for data in foreign_data(datasets, folder / f"foreign {label}"):
        data_dir = folder / f"added {label}"
        run_or_raise(functools.partial(data.add, data_dir))
        yield data_dir / NAME


def _read(root: Path) -> None:
    """Read the manifest and, if that succeeds, verify everything that it lists."""
    limit_memory(LIMIT_BYTES)
    manifest = Manifest.load(root)
    for problem in iobench.verify(manifest).values():
        assert problem is None or is_one_line(str(problem)), problem
    manifest.save()
    assert Manifest.load(manifest.root) == manifest
