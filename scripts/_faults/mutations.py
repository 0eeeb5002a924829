"""JSON in which something has another type, range, name or depth."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

RAW = "RAW:"  # what follows it goes into the file as it is, without quotes
VALUES: list[Any] = [
    *(None, True, False, 0, 1, 2, -1, 255, 10**9, 10**12, 2**63, 10**30, 10**400, 0.0, 0.5, -1.5, 1e300),
    *("", "x", "npy", "1", "\0", "\ud800", "\n", "é", "../x", "/etc/passwd", "x" * 300, "x" * 100_000),
    *([], {}, [None], [1, 2], [[1]], [1] * 33, [10**9] * 5, {"x": 1}, {"": {}}, {"name": "x"}),
    *(RAW + text for text in ("NaN", "Infinity", "-Infinity", "1e999", "9" * 5000, "[" * 90_000, "01")),
    *(RAW + "[" * depth + "]" * depth for depth in (20, 900, 100_000)),
    *(RAW + '{"x":' * depth + "1" + "}" * depth for depth in (20, 900)),
]


def mutated(body: dict[str, Any], chance: random.Random) -> str:
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
            holder[key + "\ue000"] = copy.deepcopy(holder[key])  # a mark that `text_of` takes away
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


def text_of(body: dict[str, Any]) -> str:
    """The body as JSON, with what is marked as raw put in raw and doubled keys really double."""
    text = json.dumps(body).replace("\\ue000", "")
    for raw in (value for value in VALUES if isinstance(value, str) and value.startswith(RAW)):
        text = text.replace(json.dumps(raw), raw[len(RAW) :])
    return text
