"""Text for people: escaped where it is untrusted, shortened, enumerated."""

from __future__ import annotations

import difflib
import itertools
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime

# Controls, invisible and bidirectional formatting, undecodable bytes, line and paragraph separators.
_INVISIBLE = ("Cc", "Cf", "Cs", "Zl", "Zp")
LISTED = 8  # names that `listed` shows
ENUMERATED = 3  # names that `enumerated` shows


def utc_now(to: str = "seconds") -> str:
    """Return the current time as files hold it: ISO 8601, UTC, to the second or as `isoformat` says."""
    return datetime.now(UTC).isoformat(timespec=to)


def printable(text: str) -> str:
    r"""Escape the characters that a terminal interprets or hides, such as `\x1b`, `\x0a`, `\u202e`.

    A byte of a file name that is not UTF-8 appears as that byte, such as `\xff`.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(c) if unicodedata.category(c) in _INVISIBLE else c for c in text)


def _escaped(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # surrogateescape: a byte that could not be decoded
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def shortened(text: str, limit: int = 80) -> str:
    """Cut a text to `limit` characters, the last of which is then `…`."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def listed(names: Collection[str]) -> str:
    """Join names with commas, each shortened; after the first 8, only the number of the others."""
    shown = ", ".join(shortened(name, 40) for name, _ in zip(names, range(LISTED), strict=False))
    return shown + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")


def suggestion(name: str, known: Collection[str]) -> str:
    """Return `did you mean …? ` with the known name that is spelled most like another; empty if none is."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {shortened(close[0], 40)}? " if close else ""


def numbered(name: str, first: int = 2, between: str = "_") -> Iterator[str]:
    """Yield a name, and then it with a number behind it: `x`, `x_2`, `x_3` and so on."""
    yield name
    yield from (f"{name}{between}{number}" for number in itertools.count(first))


def enumerated(names: Collection[str], most: int = ENUMERATED) -> str:
    """Join distinct names for a sentence: `a`, `a and b`, `a, b, c and 4 more`."""
    unique = list(dict.fromkeys(names))
    shown, more = unique[:most], len(unique) - most
    *several, last = [*shown, f"{more} more"] if more > 0 else shown
    return f"{', '.join(several)} and {last}" if several else last


def is_numeric(cells: Iterable[str | None]) -> bool:
    """Return whether all cells of a column are figures."""
    return all(not cell or cell.lstrip("<")[:1].isdigit() or cell == "–" for cell in cells)


def reason(error: BaseException) -> str:
    """Return the first line of an error's message, shortened, or the class's name if there is none.

    For an OSError it is the reason alone, without the error number and the path.
    """
    message = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    lines = message.strip().splitlines()
    return shortened(lines[0], 200) if lines else type(error).__name__
