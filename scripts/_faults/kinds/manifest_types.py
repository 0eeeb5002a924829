"""Manifests in which something has another type or range: refused in one line, or readable."""

from __future__ import annotations

import copy
import functools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import iobench
from _faults.children import CRASHED, DONE, REFUSED, forked, limit_memory
from _faults.prepares import NAME, Call, to_version_1
from _faults.registry import Outcome, Trials, kind
from iobench import Manifest

RAW = "RAW:"  # what follows it goes into the file as it is, without quotes
VALUES: list[Any] = [
    *(None, True, False, 0, 1, 2, -1, 255, 10**9, 10**12, 2**63, 10**30, 10**400, 0.0, 0.5, -1.5, 1e300),
    *("", "x", "npy", "1", "\0", "\ud800", "\n", "é", "../x", "/etc/passwd", "x" * 300, "x" * 100_000),
    *([], {}, [None], [1, 2], [[1]], [1] * 33, [10**9] * 5, {"x": 1}, {"": {}}, {"name": "x"}),
    *(RAW + text for text in ("NaN", "Infinity", "-Infinity", "1e999", "9" * 5000, "[" * 90_000, "01")),
    *(RAW + "[" * depth + "]" * depth for depth in (20, 900, 100_000)),
    *(RAW + '{"x":' * depth + "1" + "}" * depth for depth in (20, 900)),
]
LIMIT_BYTES = 1 << 30  # of memory beyond what is there: nothing small may ask for more
LINE = 2000  # characters of an error


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
    for number in trials.some(full=500, quick=120):
        data_dir, body = bodies[number % 2]
        body = copy.deepcopy(body)
        told = [_mutated(body, trials.chance) for _ in range(trials.chance.choice((1, 1, 1, 2, 3)))]
        (data_dir / NAME / "manifest.json").write_text(_text(body))
        ended = forked(functools.partial(_read, data_dir))
        what = f"manifest {number}, version {number % 2 + 1}: " + "; ".join(told)
        good = ended.code == DONE or (ended.code == REFUSED and _is_a_line(ended.said))
        last = ended.said[-LINE:] if ended.code == CRASHED else ended.said[:LINE]
        yield what, None if good else f"it ended with {ended.code}: {last}"


def _read(data_dir: Path) -> None:
    """Read the manifest and, where that goes, everything that it lists."""
    limit_memory(LIMIT_BYTES)
    manifest = iobench.find_dataset(data_dir, NAME)
    for problem in iobench.verify(manifest).values():
        assert problem is None or _is_a_line(problem), problem
    manifest.save()
    assert Manifest.load(manifest.root) == manifest


def _is_a_line(text: str) -> bool:
    return 0 < len(text) < LINE and "\n" not in text


def _mutated(body: dict[str, Any], chance: random.Random) -> str:
    """Change something somewhere in the body; says what."""
    holder, key, path = _somewhere(body, chance)
    if isinstance(holder, dict):
        deed = chance.choice(("value", "value", "value", "value", "gone", "renamed", "added", "twice"))
        if deed == "gone":
            del holder[key]
        elif deed == "renamed":
            holder[chance.choice(("x", "", "../x", "\ud800", "y" * 300))] = holder.pop(key)
        elif deed == "added":
            holder["more"] = chance.choice(VALUES)
        elif deed == "twice":
            holder[key + "\ue000"] = copy.deepcopy(holder[key])  # a mark that `_text` takes away
    else:
        deed = chance.choice(("value", "value", "gone", "again"))
        if deed == "gone":
            del holder[key]
        elif deed == "again":
            holder.extend([holder[key]] * chance.choice((1, 40)))
    if deed == "value":
        holder[key] = chance.choice(VALUES)
        return f"{path} = {str(holder[key])[:40]!r}"
    return f"{path} {deed}"


def _somewhere(body: dict[str, Any], chance: random.Random) -> tuple[Any, Any, str]:
    """A place in the body: what holds it, its key or number there, and the way to it."""
    places: list[tuple[Any, Any, str]] = []

    def visit(holder: Any, above: str) -> None:
        for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
            path = f"{above}.{str(key)[:40]}"
            places.append((holder, key, path))
            if isinstance(holder[key], (dict, list)):
                visit(holder[key], path)

    visit(body, "$")
    return chance.choice(places) if places else ({"x": 0}, "x", "$")


def _text(body: dict[str, Any]) -> str:
    """The body as JSON, with what is marked as raw put in raw and doubled keys really double."""
    text = json.dumps(body).replace("\\ue000", "")
    for raw in (value for value in VALUES if isinstance(value, str) and value.startswith(RAW)):
        text = text.replace(json.dumps(raw), raw[len(RAW) :])
    return text
