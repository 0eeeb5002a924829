"""Manifests in which something has another type or range: refused in one line, or readable."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import iobench
from _faults.children import complaint, forked, is_a_line, limit_memory
from _faults.mutations import mutated, text_of
from _faults.prepares import NAME, Call, to_version_1
from _faults.registry import Outcome, Trials, kind
from iobench import Manifest

LIMIT_BYTES = 1 << 30  # of memory beyond what is there: nothing small may ask for more


@kind("manifests-by-type")
def by_type(trials: Trials) -> Iterator[Outcome]:
    """Manifests of both versions with one to three of their values, keys or items replaced."""
    bodies: list[tuple[Path, dict[str, Any]]] = []
    for version in (1, 2):
        data_dir = trials.folder / str(version)
        Call(0, ("npy", "lmdb", "hdf5:compression=gzip"))(data_dir)
        if version == 1:
            to_version_1(data_dir / NAME)
        bodies.append((data_dir, json.loads((data_dir / NAME / "manifest.json").read_text())))
    for number in trials.some(full=500, quick=100):
        data_dir, body = bodies[number % 2]
        body = copy.deepcopy(body)
        told = [mutated(body, trials.chance) for _ in range(trials.chance.choice((1, 1, 1, 2, 3)))]
        (data_dir / NAME / "manifest.json").write_text(text_of(body))
        ended = forked(functools.partial(_read, data_dir))
        what = f"manifest {number}, version {number % 2 + 1}: " + "; ".join(told)
        yield what, complaint(ended)


def _read(data_dir: Path) -> None:
    """Read the manifest and, where that goes, everything that it lists."""
    limit_memory(LIMIT_BYTES)
    manifest = iobench.find_dataset(data_dir, NAME)
    for problem in iobench.verify(manifest).values():
        assert problem is None or is_a_line(problem), problem
    manifest.save()
    assert Manifest.load(manifest.root) == manifest
