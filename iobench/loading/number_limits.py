"""Limits of the numbers that a user gives."""

from __future__ import annotations

from iobench.base.errors import InvalidSettings

# minimum and maximum
LIMITS = {
    "batch_size": (1, 1 << 40),
    "batch_tokens": (1, 1 << 40),
    "block_bytes": (1, 1 << 40),
    "window_bytes": (1, 1 << 40),
    "seed": (0, (1 << 63) - 1),  # torch takes no more
    "epoch": (0, (1 << 63) - 1),
    "threads": (1, 1024),
    "max_batches": (1, 1 << 40),
    "object_cache": (0, 1 << 60),
}


def check_number(name: str, value: object, least: int, most: int) -> None:
    """Raise InvalidSettings, naming the setting, unless `value` is an int from `least` to `most`."""
    if type(value) is not int:
        raise InvalidSettings(name, kind="not-a-number", expected="an integer", found=repr(value))
    if not least <= value <= most:
        limit = f"at least {least}" if value < least else f"at most {most}"
        raise InvalidSettings(name, kind="out-of-range", expected=limit, found=value)


def check_setting(name: str, value: object) -> None:
    """Raise InvalidSettings unless a number that a user gives is an int within its LIMITS."""
    check_number(name, value, *LIMITS[name])
