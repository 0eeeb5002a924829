"""Command lines, typed inside a child that has what they need loaded already, and how they ended."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from _faults.children import LINE
from iobench.terminal import cli

CODES = (0, 1, 2, 130)


@dataclass(frozen=True)
class Typed:
    """A command line's exit code, and what came on stdout and stderr."""

    code: int
    shown: str
    said: str

    @property
    def problem(self) -> str | None:
        """What is bad about it: it has to end with a code of ours, and to say why in one line, its last."""
        last = self.said.rstrip("\n").rpartition("\n")[2]
        if self.code not in CODES or "Traceback" in self.said:
            return f"exit {self.code}: {self.said[-LINE:]}"
        if self.code in (1, 2) and not (last.startswith("iobench: ") and len(last) < LINE):
            return f"exit {self.code}, and its last line is {last[:LINE]!r}"
        if any(ord(character) < 32 for character in last):
            return f"a control character in {last!r}"
        return None


def typed(*arguments: str) -> Typed:
    """Run a command line to its end in this process; for children."""
    sys.argv = ["iobench", *arguments]
    code: object = 0
    with _into_file(1) as shown, _into_file(2) as said:
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
    return Typed(int(str(code)), shown[0], said[0])


def expect(arguments: Sequence[str], *parts: str) -> None:
    """AssertionError where a command line ends badly, or shows none of these parts of an answer."""
    found = typed(*arguments)
    assert found.problem is None, f"{' '.join(arguments)}: {found.problem}"
    for part in parts:
        shown = f"{found.shown[:2000]} {found.said[:500]}"
        assert part in found.shown, f"{' '.join(arguments)}: no {part!r} in what it shows: {shown}"


@contextmanager
def _into_file(descriptor: int) -> Iterator[list[str]]:
    found: list[str] = []
    stream = sys.stdout if descriptor == 1 else sys.stderr
    stream.flush()
    kept = os.dup(descriptor)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), descriptor)
        try:
            yield found
        finally:
            stream.flush()
            os.dup2(kept, descriptor)
            os.close(kept)
            file.seek(0)
            found.append(file.read().decode(errors="backslashreplace"))
