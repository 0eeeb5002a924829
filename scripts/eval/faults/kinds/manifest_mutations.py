"""Mutated manifests: each must be read or end with one error line."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import iobench
from eval.faults.children import failure_of, is_one_line, limit_memory, run_forked, run_or_raise
from eval.faults.foreign_data import foreign_data
from eval.faults.mutations import mutated, text_of
from eval.faults.registry import Outcome, Trials, kind
from eval.faults.scenarios import NAME, PrepareCall
from eval.faults.targets import VerifiedDatasets, random_groups
from iobench import Manifest

LIMIT_BYTES = 1 << 30  # of additional memory: a small file must not need more


@kind("manifest-mutations")
def manifests(trials: Trials) -> Iterator[Outcome]:
    """Replace one to three values, keys or items in manifests of prepared and of added data."""
    groups = trials.sample(random_groups(trials.rng), quick=2)
    bodies = [body for group in groups for body in _bodies(trials.folder, group)]
    for number in trials.numbers(full=600, quick=40):
        what, root, body = bodies[number % len(bodies)]
        body = copy.deepcopy(body)
        changes = [mutated(body, trials.rng) for _ in range(trials.rng.choice((1, 1, 1, 2, 3)))]
        (root / "manifest.json").write_text(text_of(body))
        result = run_forked(functools.partial(_read, root))
        yield f"manifest {number}, {what}: {'; '.join(changes)}", failure_of(result)


def _bodies(folder: Path, group: list[str]) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """Prepare and add data, and yield the manifests."""
    label = " ".join(group)
    data_dir = folder / f"prepared {label}"
    run_or_raise(functools.partial(PrepareCall(0, tuple(group)), data_dir))
    yield f"prepared {label}", data_dir / NAME, _body(data_dir / NAME)
    for data in foreign_data(
        VerifiedDatasets(folder / label, group[:1], samples=30), folder / f"foreign {label}"
    ):
        data_dir = folder / f"added {label}"
        run_or_raise(functools.partial(data.add, data_dir))
        yield f"added {group[0]}", data_dir / NAME, _body(data_dir / NAME)


def _body(root: Path) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((root / "manifest.json").read_text())
    return body


def _read(root: Path) -> None:
    """Read the manifest and, if that succeeds, verify everything that it lists."""
    limit_memory(LIMIT_BYTES)
    manifest = Manifest.load(root)
    for problem in iobench.verify(manifest).values():
        assert problem is None or is_one_line(str(problem)), problem
    manifest.save()
    assert Manifest.load(manifest.root) == manifest
