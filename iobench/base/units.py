"""Sizes and figures as people write and read them."""

from __future__ import annotations

import math
import re
from decimal import Decimal, InvalidOperation

from iobench.base.text import shortened

KIB, MIB, GIB = 2**10, 2**20, 2**30
_BYTES = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": 2**40}
_BYTES |= {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}

MAX_DIGITS = 18
MAX_AXES = 31  # of one sample; with that of samples, 32 is what HDF5 has


def parse_elements(text: str, item_bytes: int) -> int:
    """How many elements a size means: a plain number is elements, one with a unit is bytes.

    `1e7`, `2_000_000`, `4GiB`. ValueError, in words, for what is not a positive whole number.
    """
    shown = repr(shortened(text))
    match = re.fullmatch(r"\s*([0-9_.eE+-]+)\s*([A-Za-z]*)\s*", text)
    unit = match[2] if match else ""
    if match is None or (unit and unit not in _BYTES):
        units = f"; units are {', '.join(_BYTES)}" if unit else ""
        raise ValueError(
            f"{shown} is not a size; write elements like 1e7, or bytes like 4GiB or 500MB{units}"
        )
    try:
        number = Decimal(match[1])
    except InvalidOperation:
        raise ValueError(f"{shown} is not a number; write elements like 1e7 or bytes like 4GiB") from None
    if number.adjusted() > MAX_DIGITS or (unit and number * _BYTES[unit] >= 10 ** (MAX_DIGITS + 1)):
        raise ValueError(f"{shown} is more than any disk holds")
    if unit:
        number *= _BYTES[unit]
    if number <= 0 or number != int(number):
        raise ValueError(f"{shown} is not a positive whole number of {'bytes' if unit else 'elements'}")
    if unit and number < item_bytes:
        raise ValueError(f"{shown} is less than one element of {item_bytes} bytes")
    return int(number) // item_bytes if unit else int(number)


def parse_rate(text: str) -> float:
    """Bytes per second: `100Gbit/s`, `12.5GB/s`, `10GiB/s`; ValueError, in words, for what is none."""
    match = re.fullmatch(r"\s*([0-9.]+)\s*([A-Za-z]+)/s\s*", text)
    units = {**_BYTES, **{f"{prefix}bit": 1000**power / 8 for power, prefix in enumerate("kMGT", 1)}}
    try:
        found = float(match[1]) * units[match[2]] if match else 0.0
    except (KeyError, ValueError):
        found = 0.0
    if not 0 < found < math.inf:
        raise ValueError(f"{shortened(text)!r} is not a bandwidth; write it like 100Gbit/s or 12.5GB/s")
    return found


def parse_shape(text: str) -> tuple[int, ...]:
    """The shape written as `128`, `3x224x224` or `3,224,224`; ValueError, in words, where it is none."""
    shown = repr(shortened(text))
    if not re.fullmatch(r"\s*[0-9]+\s*([x,]\s*[0-9]+\s*)*", text):
        raise ValueError(f"{shown} is not a shape; write it like 128 or 3x224x224")
    parts = [part.strip().lstrip("0") for part in re.split(r"[x,]", text)]
    if not all(parts):
        raise ValueError(f"{shown} is not a shape: an axis of 0 holds nothing")
    if len(parts) > MAX_AXES:
        raise ValueError(f"{shown} is not a shape that can be stored: {len(parts)} axes, at most {MAX_AXES}")
    if max(map(len, parts)) > MAX_DIGITS or math.prod(map(int, parts)) >= 10**MAX_DIGITS:
        raise ValueError(
            f"{shown} is not a shape that can be stored: it has more elements than any disk holds"
        )
    return tuple(map(int, parts))


def bytes_text(count: float) -> str:
    """A number of bytes with the IEC unit that suits it: `512 B`, `38.1 MiB`."""
    if count < 1024:
        return f"{count:.0f} B"
    power = min(5, int(math.log(count, 1024)))
    return f"{three_digits(count / 1024**power)} {'KMGTP'[power - 1]}iB"


def seconds_text(seconds: float) -> str:
    """A time with the unit that suits it: `12 µs`, `3.40 ms`, `1.25 s`."""
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms")):
        if seconds < limit:
            return f"{three_digits(seconds * factor)} {unit}"
    return f"{three_digits(seconds)} s"


def percent_text(part: float) -> str:
    """A part as percent; what would round to none of it is `<1%`."""
    return "<1%" if 0 < part < 0.005 else f"{part:.0%}"


def rate_text(per_second: float) -> str:
    """A rate with k, M or G in place of zeros: `950`, `16.2 k`, `1.42 M`."""
    for factor, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if per_second >= factor:
            return f"{three_digits(per_second / factor)}{unit}"
    return three_digits(per_second)


def three_digits(value: float) -> str:
    """A number rounded to about three significant digits, without an exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def parse_percent(text: str) -> float:
    """The fraction written as `5%`; ValueError, in words, for what is not between 0 and 100 %."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*", text)
    if match is None or float(match[1]) >= 100:
        raise ValueError(f"{text!r} is not a percentage below 100, like 5%")
    return float(match[1]) / 100


def counted(count: int, noun: str, plural: str = "") -> str:
    """A number of things: `1 case`, `5 cases`, `2 batches`."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"
