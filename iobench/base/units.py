"""Parsing and formatting of sizes, shapes, rates, times and percentages."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation

from iobench.base.errors import InvalidSettings
from iobench.base.text import shortened

KIB, MIB, GIB = 2**10, 2**20, 2**30
_BYTES = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": 2**40}
_BYTES |= {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}

MAX_DIGITS = 18
MAX_AXES = 31  # of one sample; HDF5 allows 32 with the axis of samples


def parse_elements(text: str, item_bytes: int = 1) -> int:
    """Parse a size such as `1e7`, `2_000_000` or `4GiB` into elements: one with a unit counts bytes.

    InvalidSettings if it is no positive whole number (`invalid-size`), is less than one element or larger
    than any disk (`out-of-range`).
    """
    shown = repr(shortened(text))
    match = re.fullmatch(r"\s*([0-9_.eE+-]+)\s*([A-Za-z]*)\s*", text)
    unit = match[2] if match else ""
    hint = "write elements like 1e7, or bytes like 4GiB or 500MB"
    if match is None or (unit and unit not in _BYTES):
        units = f"; units are {', '.join(_BYTES)}" if unit else ""
        raise InvalidSettings(f"{shown} is not a size", kind="invalid-size", hint=hint + units)
    try:
        number = Decimal(match[1])
    except InvalidOperation:
        raise InvalidSettings(f"{shown} is not a number", kind="invalid-size", hint=hint) from None
    if number.adjusted() > MAX_DIGITS or (unit and number * _BYTES[unit] >= 10 ** (MAX_DIGITS + 1)):
        raise InvalidSettings(f"{shown} is larger than any disk", kind="out-of-range")
    if unit:
        number *= _BYTES[unit]
    if number <= 0 or number != int(number):
        whole = f"a positive whole number of {'bytes' if unit else 'elements'}"
        raise InvalidSettings(f"{shown} is not {whole}", kind="invalid-size")
    if unit and number < item_bytes:
        raise InvalidSettings(f"{shown} is less than one element of {item_bytes} bytes", kind="out-of-range")
    return int(number) // item_bytes if unit else int(number)


def parse_shape(text: str, may_vary: bool = False) -> tuple[int, ...]:
    """Parse a shape such as `128`, `3x224x224` or `3,224,224`; if it `may_vary`, also `*x*x3`, with -1 for *.

    Raises InvalidSettings if the text is no shape, or none that every format can store.
    """
    shown, size = repr(shortened(text)), r"\s*([0-9]+|\*)\s*" if may_vary else r"\s*[0-9]+\s*"
    if not re.fullmatch(rf"{size}([x,]{size})*", text):
        raise InvalidSettings(
            f"{shown} is not a shape", kind="invalid-shape", hint="write it like 128 or 3x224x224"
        )
    parts = [part.strip().lstrip("0") for part in re.split(r"[x,]", text)]
    if not all(parts):
        raise InvalidSettings(f"{shown} has an axis of size 0", kind="invalid-shape")
    if len(parts) > MAX_AXES:
        raise InvalidSettings(
            f"{shown} has too many axes",
            kind="too-many-axes",
            expected=f"at most {MAX_AXES} axes",
            found=len(parts),
        )
    fixed = [part for part in parts if part != "*"]
    if max(map(len, parts)) > MAX_DIGITS or math.prod(map(int, fixed)) >= 10**MAX_DIGITS:
        raise InvalidSettings(f"{shown} has more elements than fit on any disk", kind="out-of-range")
    return tuple(-1 if part == "*" else int(part) for part in parts)


def shape_text(shape: Iterable[int]) -> str:
    """Return a shape as it is typed, like `3x224x224`, with * for -1."""
    return "x".join("*" if size == -1 else str(size) for size in shape)


def bytes_text(count: float) -> str:
    """Format a number of bytes with an IEC unit: `512 B`, `38.1 MiB`."""
    if count < 1024:
        return f"{count:.0f} B"
    power = min(5, int(math.log(count, 1024)))
    return f"{three_digits(count / 1024**power)} {'KMGTP'[power - 1]}iB"


def bytes_unit(largest: float) -> tuple[str, int]:
    """Return the unit, from MiB on, that shows a number of bytes without thousands, and its bytes."""
    power = max(2, min(5, int(math.log(max(largest, 1), 1024))))
    return f"{'KMGTP'[power - 1]}iB", 1024**power


def bytes_word(count: int) -> str:
    """Write a number of bytes as it is typed, in the largest unit that divides it: `64MiB`."""
    factor, unit = max((factor, unit) for unit, factor in _BYTES.items() if count % factor == 0)
    return f"{count // factor}{unit}"


def seconds_text(seconds: float) -> str:
    """Format a time with a fitting unit: `12 µs`, `3.40 ms`, `1.25 s`."""
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms")):
        if seconds < limit:
            return f"{three_digits(seconds * factor)} {unit}"
    return f"{three_digits(seconds)} s"


def percent_text(share: float) -> str:
    """Format a share as a percentage; below 0.5 % it is `<1%`."""
    return "<1%" if 0 < share < 0.005 else f"{share:.0%}"


def rate_text(per_second: float) -> str:
    """Format a rate with an SI prefix: `950`, `16.2 k`, `1.42 M`."""
    for factor, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if per_second >= factor:
            return f"{three_digits(per_second / factor)}{unit}"
    return three_digits(per_second)


def heading_of(figure: str) -> str:
    """Return a figure's name in words, without the unit at its end."""
    for unit in ("_bytes_per_s", "_bytes", "_s"):
        figure = figure.removesuffix(unit)
    return figure.replace("_", " ")


def text_of(figure: str, value: float) -> str | None:
    """Format a value by the unit at the end of its figure's name; None without a unit."""
    if figure.endswith("_bytes_per_s"):
        return f"{bytes_text(value)}/s"
    if figure.endswith("_bytes"):
        return bytes_text(value)
    if figure.endswith("_s"):
        return seconds_text(value) if value >= 0 else f"-{seconds_text(-value)}"
    return None


def three_digits(value: float) -> str:
    """Format a number with about three significant digits, without an exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def price_text(value: float) -> str:
    """Format a price with three significant digits, however small: `12.5`, `0.000716`."""
    if value >= 0.1 or not value:
        return three_digits(value)
    return f"{value:.{2 - math.floor(math.log10(value))}f}"


def parse_percent(text: str) -> float:
    """Parse a percentage such as `5%` into a fraction; raises InvalidSettings unless it is below 100 %."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*", text)
    if match is None or float(match[1]) >= 100:
        raise InvalidSettings(
            f"{shortened(text)!r} is not a percentage below 100",
            kind="invalid-percentage",
            hint="write it like 5%",
        )
    return float(match[1]) / 100


def counted(count: int, noun: str, plural: str = "") -> str:
    """Format a count with its noun: `1 case`, `5 cases`, `2 batches`."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"
