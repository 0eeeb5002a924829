"""Mutations of JSON: other types, ranges, names and depths."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

RAW = "RAW:"  # the rest goes into the file unquoted
VALUES: list[Any] = [
    *(None, True, False, 0, 1, 2, -1, 255, 10**9, 10**12, 2**63, 10**30, 10**400, 0.0, 0.5, -1.5, 1e300),
    *("", "x", "npy", "1", "\0", "\ud800", "\n", "é", "../x", "/etc/passwd", "x" * 300, "x" * 100_000),
    *([], {}, [None], [1, 2], [[1]], [1] * 33, [10**9] * 5, {"x": 1}, {"": {}}, {"name": "x"}),
    *(RAW + text for text in ("NaN", "Infinity", "-Infinity", "1e999", "9" * 5000, "[" * 90_000, "01")),
    *(RAW + "[" * depth + "]" * depth for depth in (20, 900, 100_000)),
    *(RAW + '{"x":' * depth + "1" + "}" * depth for depth in (20, 900)),
]


def mutated(body: dict[str, Any], rng: random.Random) -> str:
    """Mutate the body at a random place; return a description."""
    holder, key, path = _random_place(body, rng)
    if isinstance(holder, dict):
        mutation = rng.choice(("value", "value", "value", "value", "gone", "renamed", "added", "twice"))
        if mutation == "gone":
            del holder[key]
        elif mutation == "renamed":
            holder[rng.choice(("x", "", "../x", "\ud800", "y" * 300))] = holder.pop(key)
        elif mutation == "added":
            holder["more"] = rng.choice(VALUES)
        elif mutation == "twice":
            holder[key + "\ue000"] = copy.deepcopy(
                holder[key]
            )  # `text_of` removes this character, so that the key is there twice
    else:
        mutation = rng.choice(("value", "value", "gone", "again"))
        if mutation == "gone":
            del holder[key]
        elif mutation == "again":
            holder.extend([holder[key]] * rng.choice((1, 40)))
    if mutation == "value":
        holder[key] = rng.choice(VALUES)
        return f"{path} = {str(holder[key])[:40]!r}"
    return f"{path} {mutation}"


def _random_place(body: dict[str, Any], rng: random.Random) -> tuple[Any, Any, str]:
    """Choose a value: its container, its key or index, and its path."""
    places: list[tuple[Any, Any, str]] = []

    def visit(holder: Any, above: str) -> None:
        for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
            path = f"{above}.{str(key)[:40]}"
            places.append((holder, key, path))
            if isinstance(holder[key], (dict, list)):
                visit(holder[key], path)

    visit(body, "$")
    return rng.choice(places) if places else ({"x": 0}, "x", "$")


def text_of(body: dict[str, Any]) -> str:
    """Return the body as JSON, with RAW values unquoted and doubled keys."""
    text = json.dumps(body).replace("\\ue000", "")
    for raw in (value for value in VALUES if isinstance(value, str) and value.startswith(RAW)):
        text = text.replace(json.dumps(raw), raw[len(RAW) :])
    return text
