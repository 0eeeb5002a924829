"""Run command lines of iobench inside a child that has everything imported."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from eval.faults.children import MAX_MESSAGE
from iobench.terminal import cli

EXIT_CODES = (0, 1, 2, 130)


@dataclass(frozen=True)
class CliResult:
    """Exit code, stdout and stderr of a command line."""

    code: int
    stdout: str
    stderr: str

    @property
    def problem(self) -> str | None:
        """A violation of the rules: documented exit codes, and an error as one last line on stderr."""
        last = self.stderr.rstrip("\n").rpartition("\n")[2]
        if self.code not in EXIT_CODES or "Traceback" in self.stderr:
            return f"exit {self.code}: {self.stderr[-MAX_MESSAGE:]}"
        if self.code in (1, 2) and not (last.startswith("iobench: ") and len(last) < MAX_MESSAGE):
            return f"exit {self.code}, last line {last[:MAX_MESSAGE]!r}"
        if any(ord(character) < 32 for character in last):
            return f"control character in {last!r}"
        return None


def run_cli(*arguments: str) -> CliResult:
    """Run a command line in this process, a child."""
    sys.argv = ["iobench", *arguments]
    code: object = 0
    with _captured(1) as stdout, _captured(2) as stderr:
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
    return CliResult(int(str(code)), stdout[0], stderr[0])


def expect(arguments: Sequence[str], *parts: str) -> None:
    """Run a command line that must succeed; AssertionError unless all parts are in its stdout."""
    result = run_cli(*arguments)
    assert result.problem is None, f"{' '.join(arguments)}: {result.problem}"
    for part in parts:
        output = f"{result.stdout[:2000]} {result.stderr[:500]}"
        assert part in result.stdout, f"{' '.join(arguments)}: no {part!r} in the output: {output}"


@contextmanager
def _captured(descriptor: int) -> Iterator[list[str]]:
    captured: list[str] = []
    stream = sys.stdout if descriptor == 1 else sys.stderr
    stream.flush()
    original = os.dup(descriptor)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), descriptor)
        try:
            yield captured
        finally:
            stream.flush()
            os.dup2(original, descriptor)
            os.close(original)
            file.seek(0)
            captured.append(file.read().decode(errors="backslashreplace"))
