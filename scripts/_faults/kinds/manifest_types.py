"""Manifests in which something has another type or range: refused in one line, or readable."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import iobench
from _faults.attacked import Whole, done, grouped
from _faults.children import complaint, forked, is_a_line, limit_memory
from _faults.mutations import mutated, text_of
from _faults.others import others
from _faults.prepares import NAME, Call
from _faults.registry import Outcome, Trials, kind
from iobench import Manifest

LIMIT_BYTES = 1 << 30  # of memory beyond what is there: nothing small may ask for more


@kind("manifests-by-type")
def by_type(trials: Trials) -> Iterator[Outcome]:
    """Manifests of every format, and of data that were added.

    One to three of their values, keys or items are replaced.
    """
    groups = trials.sample(grouped(trials.chance), quick=2)
    bodies = [body for group in groups for body in _bodies(trials.folder, group)]
    for number in trials.some(full=600, quick=40):
        what, root, body = bodies[number % len(bodies)]
        body = copy.deepcopy(body)
        told = [mutated(body, trials.chance) for _ in range(trials.chance.choice((1, 1, 1, 2, 3)))]
        (root / "manifest.json").write_text(text_of(body))
        ended = forked(functools.partial(_read, root))
        yield f"manifest {number}, {what}: {'; '.join(told)}", complaint(ended)


def _bodies(folder: Path, group: list[str]) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """Manifests of prepared and of added data, with their content."""
    label = " ".join(group)
    data_dir = folder / f"prepared {label}"
    done(functools.partial(Call(0, tuple(group)), data_dir))
    yield f"prepared {label}", data_dir / NAME, _body(data_dir / NAME)
    for data in others(Whole(folder / label, group[:1], samples=30), folder / f"others {label}"):
        data_dir = folder / f"added {label}"
        done(functools.partial(data.add, data_dir))
        yield f"added {group[0]}", data_dir / NAME, _body(data_dir / NAME)


def _body(root: Path) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((root / "manifest.json").read_text())
    return body


def _read(root: Path) -> None:
    """Read the manifest and, where that goes, everything that it lists."""
    limit_memory(LIMIT_BYTES)
    manifest = Manifest.load(root)
    for problem in iobench.verify(manifest).values():
        assert problem is None or is_a_line(str(problem)), problem
    manifest.save()
    assert Manifest.load(manifest.root) == manifest
