"""The command line: its commands and exit codes. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import ast
import atexit
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from iobench.base import INTERRUPTED
from iobench.base.credentials import scrubbed
from iobench.base.errors import InvalidOption, InvalidSettings, IobenchError, TargetError, UnknownFormat
from iobench.base.text import printable, shortened
from iobench.host.rank_info import RankInfo
from iobench.host.system_errors import system_error
from iobench.terminal.ranked import run_as_rank

LONGEST = 1500  # characters of an error, which may quote what was typed
UNINTERRUPTIBLE = ("numpy", "torch", "tensordict", "triton")  # imports that abort the process on an exception
RETRY_S = 0.05
USAGE_ERRORS = (InvalidSettings, InvalidOption, UnknownFormat)
# typer exports BadParameter, but not the base class of all usage errors
UsageError: type[Exception] = typer.BadParameter.__mro__[1]

COMMANDS = {  # module and function, or app of the commands below it
    "prepare": ("prepare", "prepare"),
    "add": ("prepare", "add"),
    "run": ("run", "run"),
    "recommend": ("recommend", "recommend"),
    "compare": ("compare", "compare"),
    "report": ("report", "report"),
    "diagnose": ("own_loader", "diagnose"),
    "tune": ("own_loader", "tune"),
    "resume-check": ("own_loader", "resume_check"),
    "study": ("report", "study"),
    "limits": ("inspect", "limits"),
    "verify": ("inspect", "verify"),
    "formats": ("inspect", "formats"),
    "loaders": ("inspect", "loaders"),
    "runs": ("history", "app"),
}


class _Commands(Mapping[str, Any]):
    """The commands by name; a command's module is imported when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        from iobench.terminal.commands._options import Command

        module, function = COMMANDS[name]
        command = getattr(import_module(f"iobench.terminal.commands.{module}"), function)
        if not isinstance(command, typer.Typer):
            own = typer.Typer(add_completion=False, rich_markup_mode=None)
            own.command(name, cls=Command)(command)
            command = own
        return typer.main.get_command(command)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Group(TyperGroup):
    """The program, whose own help imports no command."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands: Any = _Commands()

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands."""
        return [*COMMANDS]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each command with the first line of its docstring, or of its module's."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _summary(*place)) for name, place in COMMANDS.items()])


def _summary(module: str, function: str) -> str:
    tree = ast.parse((Path(__file__).parent / "commands" / f"{module}.py").read_text("utf-8"))
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function]
    return (ast.get_docstring(found[0] if found else tree) or "").partition("\n")[0]


app = typer.Typer(cls=_Group, rich_markup_mode=None)


class _InterruptHandler:
    """Python's handling of Ctrl-C, noting that it came: an interrupted library may raise anything.

    During an import of UNINTERRUPTIBLE it waits: their C++ calls Python and aborts if that raises, and some
    of their modules would swallow it.
    """

    interrupted = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.interrupted = True
        if _is_importing(UNINTERRUPTIBLE):
            signal.signal(signal.SIGALRM, self)
            signal.setitimer(signal.ITIMER_REAL, RETRY_S)
        else:
            signal.default_int_handler(number, frame)

    def unraisable(self, lost: Any) -> None:
        """Interrupt again where Python could not raise, such as in a weakref's callback."""
        if isinstance(lost.exc_value, KeyboardInterrupt):
            signal.signal(signal.SIGALRM, self)
            signal.setitimer(signal.ITIMER_REAL, RETRY_S)
        elif not _is_of_an_unfinished_iterator(lost):
            sys.__unraisablehook__(lost)


class _TerminateHandler:
    """SIGTERM acts as Ctrl-C, except in forked children: schedulers and containers send it."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self._pid:
            signal.raise_signal(signal.SIGINT)
        else:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


def _is_of_an_unfinished_iterator(lost: Any) -> bool:
    """Return True for what torch's iterator raises as it is deleted after its construction failed."""
    name = getattr(lost.object, "__qualname__", "")
    return name == "_MultiProcessingDataLoaderIter.__del__" and isinstance(lost.exc_value, AttributeError)


def _is_importing(packages: Sequence[str]) -> bool:
    """Return whether one of these packages, or a module of theirs, is being imported."""
    modules = [module for name, module in sys.modules.copy().items() if name.partition(".")[0] in packages]
    return any(getattr(getattr(module, "__spec__", None), "_initializing", False) for module in modules)


def main() -> None:
    """Run the command line.

    Exit with 1 after an error, 2 after a usage error, each with one line on stderr, and 130 after Ctrl-C or
    SIGTERM.
    """
    handler, before = _InterruptHandler(), signal.getsignal(signal.SIGINT)
    terminate_before = signal.getsignal(signal.SIGTERM)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, handler)
        signal.signal(signal.SIGTERM, _TerminateHandler())
        sys.unraisablehook = handler.unraisable
    try:
        _run()
    except KeyboardInterrupt:
        _fail("interrupted", INTERRUPTED)
    except Exception:
        if handler.interrupted:
            _fail("interrupted", INTERRUPTED)
        raise
    except SystemExit as end:
        _leave_requests(end.code)
        raise
    finally:
        if before is signal.default_int_handler:
            signal.signal(signal.SIGINT, before)
            signal.signal(signal.SIGTERM, terminate_before)


def _leave_requests(code: object) -> None:
    """Exit at once if requests to a store are in flight that nothing needs: Python would wait for them."""
    from iobench.objects.request_pool import abandoned

    if threading.active_count() > 1 and abandoned():
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


def _run() -> None:
    try:
        place = RankInfo.from_env()
        if place is None:
            code = app(standalone_mode=False)
        else:
            run = lambda backend: app(standalone_mode=False, obj=backend)  # noqa: E731 - one line, used once
            code = run_as_rank(place, run, _complain)
    except UsageError as error:
        problem = error.format_message().replace("Value error, ", "")  # type: ignore[attr-defined]
        _fail(f"{problem} (see --help)" + _source_hint(error), 2, "usage")
    except USAGE_ERRORS as error:
        _fail(str(error), 2, error.kind)
    except TargetError as error:  # in the user's own code: show where
        for line in error.traceback.splitlines():
            print(printable(scrubbed(line)), file=sys.stderr)
        _fail(str(error), 1, error.kind)
    except IobenchError as error:
        _fail(str(error), 1, error.kind)
    except BrokenPipeError:  # the reader of the results has closed; suppress Python's own message at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (OSError, RuntimeError) as error:
        refused = system_error(error)
        if refused is None:
            raise
        _fail(str(refused), 1, refused.kind)
    if code == INTERRUPTED:  # typer's exit code for Ctrl-C
        _fail("interrupted", INTERRUPTED)
    sys.exit(code)


def _source_hint(error: Exception) -> str:
    """Return where a path belongs that was given to a command without its option."""
    context: typer.Context | None = getattr(error, "ctx", None)
    if context is None or "unexpected extra argument" not in str(error):
        return ""
    takes = [one.name for one in context.command.params]
    return "; your own data: --source PATH" if "source" in takes else ""


@app.callback(invoke_without_command=True)
def _iobench(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Which on-disk format feeds your training fastest, on your disk, your data and your GPU."""
    if version:
        from importlib import metadata

        print(f"iobench {metadata.version('iobench')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())
    elif context.obj is not None and context.invoked_subcommand != "run":
        name = context.invoked_subcommand
        raise InvalidSettings(f"iobench {name} under torchrun", kind="single-process", hint="omit torchrun")


def _fail(message: str, code: int, kind: str = "") -> NoReturn:
    _complain(message, kind)
    sys.exit(code)


def _complain(message: str, kind: str = "") -> None:
    """Print an error in one line on stderr, its kind first: `iobench: error[corrupt-artifact]: …`."""
    prefix = f"iobench: error[{kind}]: " if kind else "iobench: "
    print(prefix + shortened(printable(scrubbed(message)), LONGEST), file=sys.stderr, flush=True)
