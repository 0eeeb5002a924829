"""Text from outside (names of files, datasets and fields, messages of libraries) made fit to be shown."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection

# Controls, invisible and bidirectional formatting, undecodable bytes, line and paragraph separators.
_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
LISTED = 8
ENUMERATED = 3


def printable(text: str) -> str:
    r"""The text with all that a terminal would obey or hide written out: `\x1b`, `\x0a`, `\u202e`.

    A byte of a file name that is not UTF-8 appears as that byte, like `\xff`.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(c) if unicodedata.category(c) in _UNSEEN else c for c in text)


def _escaped(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # how Python holds a byte that it could not decode
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def shortened(text: str, limit: int = 80) -> str:
    """The text, or its beginning and `…` where it has more than `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def listed(names: Collection[str]) -> str:
    """Names one after the other, each shortened; of many only the first, and how many more there are."""
    shown = ", ".join(shortened(name, 40) for name, _ in zip(names, range(LISTED), strict=False))
    return shown + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")


def enumerated(names: Collection[str], most: int = ENUMERATED) -> str:
    """Different names as a sentence has them: `a`, `a and b`, `a, b, c and 4 more`."""
    unique = list(dict.fromkeys(names))
    shown, more = unique[:most], len(unique) - most
    *several, last = [*shown, f"{more} more"] if more > 0 else shown
    return f"{', '.join(several)} and {last}" if several else last


def reason(error: BaseException) -> str:
    """The first line of an error's message, shortened, or the error's name where it has none.

    Of what the operating system refused only why: neither its number nor the path, which the sentence has.
    """
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    lines = said.strip().splitlines()
    return shortened(lines[0], 200) if lines else type(error).__name__
