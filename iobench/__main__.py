"""`iobench`, and `python -m iobench`: Ctrl-C ends it with one line and 130, from the first moment on."""

import os
import signal
import sys
from types import FrameType

from iobench.base.errors import (
    INTERRUPTED,
)

SAID = b"iobench: interrupted\n"


def main() -> None:
    """Run the command line. Where whoever started it has Ctrl-C ignored, it stays ignored."""
    heeded = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    if heeded:
        signal.signal(signal.SIGINT, _leave)
    from iobench.terminal.cli import main as command_line

    try:
        if heeded:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        command_line()
    except KeyboardInterrupt:
        os.write(2, SAID)
        sys.exit(INTERRUPTED)
    finally:
        if heeded:  # it has ended, but for what Python does at exit
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _leave(number: int, frame: FrameType | None) -> None:
    """End at once: while modules are imported nothing is at stake, and some swallow the exception."""
    os.write(2, SAID)
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
