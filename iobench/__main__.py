"""Entry point of `iobench` and `python -m iobench`: Ctrl-C exits with one line and 130 from the start."""

import codecs
import contextlib
import io
import os
import signal
import sys
from types import FrameType

from iobench.base import INTERRUPTED

PLAIN = {"×": "x", "–": "-", "—": "-", "…": "...", "·": "-", "→": "->", "≤": "<=", "≥": ">="}
MESSAGE = b"iobench: interrupted\n"


def main() -> None:
    """Run the command line. If the parent process ignores Ctrl-C, it stays ignored."""
    handled = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    if handled:
        signal.signal(signal.SIGINT, _leave)
    _open_output()
    from iobench.terminal.cli import main as command_line

    try:
        if handled:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        command_line()
    except KeyboardInterrupt:
        os.write(2, MESSAGE)
        sys.exit(INTERRUPTED)
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            os.dup2(2, 1)  # what a user's code prints at the exit is no result
        if handled:  # nothing is left but Python's own exit
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _open_output() -> None:
    """Discard what is printed to a closed stream, and replace characters that an encoding lacks."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115 - stays open
    codecs.register_error("iobench", _replacement)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="iobench")


def _replacement(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(PLAIN.get(c, "?") for c in error.object[error.start : error.end]), error.end


def _leave(number: int, frame: FrameType | None) -> None:
    """Exit at once: during imports there is nothing to save, and some modules swallow the exception."""
    os.write(2, MESSAGE)
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
