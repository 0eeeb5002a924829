"""Errors of a user's own code: message, line and traceback; and errors on the way out of a worker."""

from __future__ import annotations

import base64
import pickle
import re
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from iobench.base.errors import IobenchError, TargetError
from iobench.base.text import listed, suggestion
from iobench.host.system_errors import system_error

WORKER_DIED = "DataLoader worker"  # torch's message begins with it, and gives no class of its own
TORCH_ADVICE = ". Details are lost due to multiprocessing."  # behind that message
# in the message of an error that a worker of torch raised
TRACEBACK = "Traceback (most recent call last):\n"
WORKER_TRACEBACK = f"Original {TRACEBACK}"
WORKER_FRAME = re.compile(r'^ +File "(.+)", line (\d+)', re.M)
WORKER_ERROR = re.compile(re.escape(TRACEBACK) + r"(?: .*\n)*(?P<line>.+)")
USER_ERRORS = (Exception, SystemExit)  # a user's code may raise anything, and call sys.exit
OURS = f"{Path(__file__).parent.parent}/"
# not of the user's: Python's own modules, installed ones, and the launcher of each loop over a loader
PYTHON = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
INSTALLED = ("/site-packages/", "/dist-packages/")
LAUNCHERS = tuple(f"{folder}{name}/" for folder in INSTALLED for name in ("torch", "typer", "click"))


def target_error(problem: str, error: BaseException, kind: str | None = None) -> TargetError:
    """Return a TargetError with the traceback of the user's own code."""
    usual = "ended-process" if isinstance(error, SystemExit) else "raised"
    ended = str(error).startswith(WORKER_DIED) and "signal" not in str(error)
    hint = "the worker ended itself, as by sys.exit; num_workers=0 shows where" if ended else None
    failure = TargetError(problem, kind=kind or usual, hint=hint)
    failure.traceback = traceback_of(error)
    return failure


def no_function(module: str, name: str, defined: Sequence[str]) -> TargetError:
    """Return the error for a function that a file or module does not define, with those that it does."""
    return TargetError(
        f"defines no function {name!r}",
        kind="no-callable",
        path=module,
        found=listed(defined) or "none",
        hint=suggestion(name, defined).rstrip() or f"name one that is defined as 'def {name}(…)'",
    )


def loader_error(error: BaseException, after: str = "") -> TargetError:
    """Return the TargetError for an error that a user's loader raised, `after` some batches."""
    if refused := system_error(error):
        return refused.converted(TargetError)
    return target_error(f"the loader {outcome(error, after)}", error)


@contextmanager
def loader_errors() -> Iterator[None]:
    """Turn any error of a user's loader into a TargetError, with the error as its cause."""
    try:
        yield
    except TargetError:
        raise
    except USER_ERRORS as error:
        raise loader_error(error) from error


def traceback_of(error: BaseException) -> str:
    """Return the traceback of the user's own code, from its first frame on; empty without one."""
    text = str(error)
    if text.startswith(WORKER_DIED):  # raised by a signal's handler, wherever this process was
        return ""
    if WORKER_TRACEBACK in text:  # the frames of this process are those of torch
        _, *parts = text.rstrip().split(TRACEBACK)
        return "".join(TRACEBACK + part[_start_of_own(part) :] for part in parts) + "\n"
    formatted = _of_user(traceback.TracebackException.from_exception(error))
    return "".join(formatted.format()) if formatted is not None else ""


def location(error: BaseException) -> str:
    """Return the innermost line of the user's code in the traceback, as `train.py:12`, or an empty string."""
    if str(error).startswith(WORKER_DIED):
        return ""
    frames = WORKER_FRAME.findall(str(error).strip())  # of a worker
    if outside := [frame for frame in frames if _is_own(frame[0])]:
        return f"{Path(outside[-1][0]).name}:{outside[-1][1]}"
    stack = _without_iobench(traceback.TracebackException.from_exception(error).stack)
    own = [frame for frame in stack if _is_own(frame.filename)] or stack
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""


def _start_of_own(traceback: str) -> int:
    """Return where the user's code begins in a traceback of a worker; its start if none is there."""
    frames = list(WORKER_FRAME.finditer(traceback))
    own = _first_own([frame[1] for frame in frames])
    return 0 if own is None else frames[own].start()


def _of_user(error: traceback.TracebackException | None) -> traceback.TracebackException | None:
    """Let the stacks of an error and its causes begin with the user's code; None without any of it."""
    if error is None:
        return None
    frames = _without_iobench(error.stack)
    own = _first_own([frame.filename for frame in frames])
    error.stack = traceback.StackSummary.from_list([] if own is None else frames[own:])
    error.__cause__, error.__context__ = _of_user(error.__cause__), _of_user(error.__context__)
    is_syntax = hasattr(error, "offset")  # in a file of the user's; `exc_type` is deprecated from 3.13 on
    return error if error.stack or error.__cause__ or error.__context__ or is_syntax else None


def _first_own(files: Sequence[str]) -> int | None:
    """Return the position of the first frame of the user's own file, or else of a package of his."""
    own = [number for number, file in enumerate(files) if _is_own(file)]
    packages = [
        number
        for number, file in enumerate(files)
        if any(folder in file for folder in INSTALLED) and not any(name in file for name in LAUNCHERS)
    ]
    return min(own or packages, default=None)


def _is_own(file: str) -> bool:
    return not file.startswith((OURS, "<frozen", *PYTHON)) and not any(folder in file for folder in INSTALLED)


def _without_iobench(stack: traceback.StackSummary) -> list[traceback.FrameSummary]:
    return [frame for frame in stack if not frame.filename.startswith(OURS)]


def outcome(error: BaseException, after: str = "") -> str:
    """Return what the user's code did, for a sentence that begins with its name, `after` some batches."""
    if isinstance(error, SystemExit):
        return f"ended the process{after}: sys.exit({'' if error.code is None else repr(error.code)})"
    message = first_line(str(error), type(error).__name__)
    return f"raised {type(error).__name__}{after}" + (f": {message}" if message else "")


def first_line(message: str, name: str = "") -> str:
    """Return the first line of an error's message, without the name of its class.

    If torch put a worker's traceback into it, the line is that of the worker's error.
    """
    workers = list(WORKER_ERROR.finditer(message)) if WORKER_TRACEBACK in message else []
    line = workers[-1]["line"] if workers else message.strip().partition("\n")[0].partition(TORCH_ADVICE)[0]
    return re.sub(rf"^(?:\w+\.)*{re.escape(name)}(?:: |$)", "", line) if workers else line


class PortableError(Exception):
    """An IobenchError as text, which keeps its fields on the way out of a worker of torch's DataLoader.

    torch sends the class and the formatted traceback of a worker's exception. The parent calls the class with
    that text, and an IobenchError made in this way has lost its fields. This one holds the pickled error at
    the end of its text. torch's pin-memory thread, torchdata's nodes and RayLoader's actors pass errors on in
    the same way.
    """

    @classmethod
    def wrap(cls, error: IobenchError) -> PortableError:
        """Return an error whose text ends with a pickled IobenchError."""
        return cls(f"{error.kind} {base64.b64encode(pickle.dumps(error)).decode()}")

    def unwrap(self) -> IobenchError:
        """Return the IobenchError, also from a text that ends with the original one."""
        error: IobenchError = pickle.loads(base64.b64decode(str(self).split()[-1]))
        return error
