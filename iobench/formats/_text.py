"""Other people's names and libraries' messages, short enough for one line; this room has no other's."""

from __future__ import annotations

from collections.abc import Collection

LISTED = 8


def shortened(text: str, limit: int = 80) -> str:
    """The text, or its beginning and `…` where it has more than `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def listed(names: Collection[str]) -> str:
    """Names one after the other, each shortened; of many only the first, and how many more there are."""
    shown = ", ".join(shortened(name, 40) for name, _ in zip(names, range(LISTED), strict=False))
    return shown + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")


def reason(error: BaseException) -> str:
    """The first line of an error's message, shortened, or the error's name where it has none."""
    lines = str(error).strip().splitlines()
    return shortened(lines[0], 200) if lines else type(error).__name__
