"""Mutations of JSON (other types, ranges, names and depths) and of any bytes."""

from __future__ import annotations

import copy
import json
import random
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from crc32c import crc32c

from iobench.contrib.formats.tfrecord import masked

RAW = "RAW:"  # the rest goes into the file unquoted
VALUES: list[Any] = [
    *(None, True, False, 0, 1, 2, -1, 255, 10**9, 10**12, 2**63, 10**30, 10**400, 0.0, 0.5, -1.5, 1e300),
    *("", "x", "npy", "1", "\0", "\ud800", "\n", "é", "../x", "/etc/passwd", "x" * 300, "x" * 100_000),
    *([], {}, [None], [1, 2], [[1]], [1] * 33, [10**9] * 5, {"x": 1}, {"": {}}, {"name": "x"}),
    *(RAW + text for text in ("NaN", "Infinity", "-Infinity", "1e999", "9" * 5000, "[" * 90_000, "01")),
    *(RAW + "[" * depth + "]" * depth for depth in (20, 900, 100_000)),
    *(RAW + '{"x":' * depth + "1" + "}" * depth for depth in (20, 900)),
]
INTEGERS = [struct.Struct(order + code) for order in "<>" for code in "BHIQ"]
NUMBERS = (
    *(0, 1, 7, 8, 127, 128, 255, 65535),
    *(2**power + more for power in (31, 32, 40, 62, 63) for more in (-1, 0)),
)


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


def mutations(
    bodies: Sequence[dict[str, Any]], numbers: Iterable[int], rng: random.Random
) -> Iterator[tuple[int, dict[str, Any], str]]:
    """Yield copies of the bodies in turn, each with one to three changes: number, copy and description."""
    for number in numbers:
        body = copy.deepcopy(bodies[number % len(bodies)])
        yield number, body, "; ".join(mutated(body, rng) for _ in range(rng.choice((1, 1, 1, 2, 3))))


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


def changed(name: str, content: bytes, other: bytes, rng: random.Random) -> bytes:
    """Return the content of a file with one to four changes; `other` is that of a file to take a part of."""
    if name.endswith((".json", ".jsonl")) and rng.random() < 0.5:
        lines = content.split(b"\n") if name.endswith("l") else [content]
        number = rng.randrange(len(lines))
        try:
            body = json.loads(lines[number])
            for _ in range(rng.choice((1, 1, 2))):
                mutated(body, rng)
            lines[number] = text_of(body).encode(errors="surrogatepass")
            return b"\n".join(lines)
        except (ValueError, TypeError, AttributeError, RecursionError):
            pass  # no JSON any more, or no object
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        rng.choice(CHANGES)(data, other, place(len(data), rng), rng)
    return bytes(data) if rng.random() < 0.5 else repaired(name, data)


def place(size: int, rng: random.Random) -> int:
    """Return an offset in a file, most often in its head or its end, where indexes are."""
    part = rng.choice((16, 128, 600, size, size))
    offset = rng.randrange(max(1, min(part, size)))
    return offset if rng.random() < 0.7 else max(0, size - 1 - offset)


def _bit(data: bytearray, other: bytes, at: int, rng: random.Random) -> None:
    data[at : at + 1] = bytes(byte ^ 1 << rng.randrange(8) for byte in data[at : at + 1])


def _bytes(data: bytearray, other: bytes, at: int, rng: random.Random) -> None:
    data[at : at + rng.choice((1, 1, 4, 16))] = rng.choice((b"\0", b"\xff", rng.randbytes(1))) * rng.choice(
        (1, 1, 4, 16)
    )


def _number(data: bytearray, other: bytes, at: int, rng: random.Random) -> None:
    """Set an integer, or change it a little."""
    packed = rng.choice(INTEGERS)
    if at + packed.size > len(data):
        return
    at -= at % packed.size if rng.random() < 0.5 else 0
    value = (
        packed.unpack_from(data, at)[0] + rng.randrange(-9, 10) if rng.random() < 0.4 else rng.choice(NUMBERS)
    )
    packed.pack_into(data, at, (value if rng.random() < 0.8 else -value) % (1 << 8 * packed.size))


def _digits(data: bytearray, other: bytes, at: int, rng: random.Random) -> None:
    """Replace a number in text."""
    numbers = [*re.finditer(rb"-?\d+", data)]
    if numbers:
        start, end = rng.choice(numbers).span()
        data[start:end] = str(rng.choice((*NUMBERS, -1, 10**30, 1.5))).encode()


def _cut(data: bytearray, other: bytes, at: int, rng: random.Random) -> None:
    del data[at : at + rng.choice((1, 2, 8, 64, len(data)))]


def _splice(data: bytearray, other: bytes, at: int, rng: random.Random) -> None:
    """Insert or overwrite with a range of a file."""
    source = other if rng.random() < 0.5 else bytes(data)
    start, length = place(len(source), rng), rng.choice((1, 4, 16, 64, 512))
    part = source[start : start + length]
    data[at : at + (len(part) if rng.random() < 0.5 else 0)] = part


CHANGES = (_bit, _bytes, _number, _number, _digits, _cut, _splice)


def repaired(name: str, data: bytearray) -> bytes:
    """Return it with right checksums of a tar's heads or of TFRecords."""
    if name.endswith(".tar"):
        for head in range(0, len(data) - 511, 512):
            if data[head + 257 : head + 262] == b"ustar":
                data[head + 148 : head + 156] = b" " * 8
                data[head + 148 : head + 156] = b"%06o\0 " % sum(data[head : head + 512])
    at = 0
    while "tfrecord" in name and at + 16 <= len(data):
        size = int.from_bytes(data[at : at + 8], "little")
        for start, end in ((at, at + 8), (at + 12, at + 12 + size)):
            if end + 4 <= len(data):
                data[end : end + 4] = masked(crc32c(bytes(data[start:end]))).to_bytes(4, "little")
        at += 16 + size
    return bytes(data)
