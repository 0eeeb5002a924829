"""Options that several commands share."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperOption

from iobench.base.errors import InvalidSettings
from iobench.base.standard_streams import stdout_to_stderr
from iobench.bench.options import DEVICE_HELP
from iobench.formats import VARIES, Field, with_extents
from iobench.results import record_file
from iobench.results.record import Record
from iobench.terminal import display

T = TypeVar("T")

DataDir = Annotated[Path, typer.Option(help="Folder of datasets and results.")]
NameOrAddress = Annotated[
    str | None,
    typer.Option(help="Dataset name, or an address like s3://bucket/prefix. [default: the newest]"),
]
S3Endpoint = Annotated[
    str | None,
    typer.Option(
        help="Address of an S3 server that is not AWS, like http://host:9000. [default: AWS_ENDPOINT_URL]"
    ),
]
Hash = Annotated[
    str, typer.Option(help="full hashes every sample; auto hashes 10 GiB, spread out, of more than 20 GiB.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Device = Annotated[str, typer.Option(help=DEVICE_HELP)]
SOURCE_FORMAT_HELP = "Format of your own data, like tokens:dtype=uint16,window=513. [default: detected]"
FIELD_HELP = (
    "A field of each sample, for data without a schema: x=float32[3,224,224]; repeatable, in the order of "
    "the fields in a sample."
)
ON_ERROR_HELP = "skip leaves out images of --source that cannot be decoded, and counts them. [default: stop]"
ON_ERROR = ("stop", "skip")
HASH = ("auto", "full")
FILES = ("samples", "parts", "fields")
FILES_HELP = (
    "What each file in a folder is: one of the samples, several of them end to end (parts), or one "
    "of the fields. [default: inferred]"
)
SourceFormat = Annotated[str | None, typer.Option(help=SOURCE_FORMAT_HELP)]
TimeLimit = Annotated[float, typer.Option(help="Time limit in seconds.")]
Timeout = Annotated[float, typer.Option(help="Kill the loader after this many seconds without a batch.")]
Out = Annotated[
    Path | None, typer.Option(help="Append records here. [default: a new file in DATA_DIR/results]")
]
Long = Annotated[bool, typer.Option("--long", help="Show a line for each case, not a matrix.")]
Wide = Annotated[bool, typer.Option("--wide", help="Show every metric.")]
MinDifference = Annotated[str, typer.Option(help="Smallest difference that counts as one.")]


def run_command(data_dir: Path, *words: str) -> str:
    """Return the `iobench run` command with these words over datasets of a folder, to be typed."""
    where = [] if data_dir == Path("data") else ["--data-dir", str(data_dir)]
    return shlex.join(["run", *where, *words])


def words_of(text: str) -> tuple[str, ...]:
    """Split a comma-separated list into its distinct words."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",")))


def listed_numbers(option: str, text: str, kind: Callable[[str], T]) -> tuple[T, ...]:
    """Parse a comma-separated list of int or float; InvalidSettings names the option."""
    try:
        return tuple(kind(part) for part in words_of(text))
    except ValueError:
        expected = "an integer, or a list like 1,2,4" if kind is int else "a number, or a list like 0.5,1"
        raise InvalidSettings(option, kind="not-a-number", expected=expected, found=repr(text)) from None


def checked_choice(option: str, word: str, choices: Sequence[str]) -> str:
    """Return the word; InvalidSettings names the option if it is none of the choices."""
    if word not in choices:
        raise InvalidSettings(option, kind="unknown-choice", expected=" or ".join(choices), found=repr(word))
    return word


def field_of(text: str, option: str = "--field") -> Field:
    """Parse a field such as `x=float32[3,224,224]` or `y=int64`; InvalidSettings shows how to write one."""
    name, separator, rest = text.partition("=")
    dtype, bracket, shape = rest.partition("[")
    try:
        if not separator or (bracket and not shape.endswith("]")):
            raise ValueError("no NAME=DTYPE[SHAPE]")
        numbers = shape.removesuffix("]").split(",") if bracket else []
        sizes = (VARIES if number.strip() == "*" else _size(number) for number in numbers)
        return Field(name.strip(), tuple(sizes), dtype.strip())
    except ValueError as error:
        raise InvalidSettings(
            f"{option} {text!r}: {error}",
            kind="invalid-field",
            hint="write it like x=float32[3,224,224], or y=int64 for a scalar",
        ) from None


def fields_with_extents(texts: Iterable[str]) -> tuple[Field, ...]:
    """Parse the fields of `--field`, each in which several axes vary followed by that of its extents."""
    fields = [field_of(text) for text in texts]
    try:
        return with_extents(fields)
    except ValueError as error:
        raise InvalidSettings(f"--field: {error}", kind="invalid-field") from None


def _size(text: str) -> int:
    if (size := int(text)) < 0:  # would be VARIES
        raise ValueError(f"{size} is no size")
    return size


def fields_of(text: str) -> list[Field]:
    """Parse fields separated by commas, such as `tokens=uint16[*],label=int64`."""
    return [field_of(one, "--fields") for one in re.split(r",(?![^\[]*\])", text)]


def was_typed(context: typer.Context, name: str) -> bool:
    """Return whether an option was given on the command line, and not by its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def parsed(option: str, parse: Callable[..., T], *given: Any) -> T:
    """Parse what was typed with a parser of `units`; InvalidSettings names the option."""
    try:
        return parse(*given)
    except InvalidSettings as error:
        raise error.changed(problem=f"{option} {error.problem}") from None


def records_of(paths: Iterable[Path]) -> list[Record]:
    """Read the records of these files; report each unreadable line on stderr."""
    records = []
    for path in paths:
        readable, skipped = record_file.read(path)
        records += readable
        for sentence in skipped:
            display.note(f"skipped: {sentence}")
    return records


WRITERS = ("report", "export")  # of a file, which may be /dev/stdout
LIST_HELP = "LIST: each value makes cases of its own; with commas, but --format and --loader are repeated."
GROUPS = {  # of the options in a command's help; the others follow as options of loaders
    "run": {
        "Options that most runs need": (
            *("format", "loader", "name", "device", "cache", "order", "batch_size", "rounds", "max_time"),
            *("sudo", "out", "help"),
        ),
        "What is read": (
            *("recommended_options", "batch_tokens", "block_size", "window_size", "collate", "seed"),
            *("data_dir", "s3_endpoint", "object_cache"),
        ),
        "How long": ("round_seconds", "max_batches", "warmup", "timeout"),
        "Training step": ("model", "step_ms", "strict", "headroom"),
        "How it is measured": ("isolate", "limits", "profile", "trace"),
        "Ranks and hosts": ("ranks", "ray", "ranks_per_host"),
        "Plans and output": (
            *("plan", "save_plan", "resume", "min_difference", "prices", "long", "wide", "as_json"),
        ),
    }
}


class Command(TyperCommand):
    """A command whose results alone are printed to stdout, and not what a user's code or a library prints.

    It notes, for an option given more than once, that only the last value counts. Its help shows many
    options in GROUPS.
    """

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, and the options by group."""
        left = {one.name: one for one in self.get_params(ctx) if one.get_help_record(ctx)}
        arguments = [name for name, one in left.items() if one.param_type_name == "argument"]
        groups = GROUPS.get(str(self.name), {})
        for title, names in {
            "Arguments": arguments,
            **groups,
            "Options of single loaders" if groups else "Options": list(left),
        }.items():
            records = [left.pop(name).get_help_record(ctx) or ("", "") for name in names if name in left]
            if records:
                with formatter.section(title):
                    formatter.write_dl([(one.replace("<list[str]>", "LIST"), text) for one, text in records])
        if groups:
            formatter.write_paragraph()
            formatter.write_text(LIST_HELP)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with nullcontext() if self.name in WRITERS else stdout_to_stderr():
            return super().invoke(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as typer does, after a note for each repeated option."""
        *_, given = self.make_parser(ctx).parse_args(args=list(args))
        for option in dict.fromkeys(one for one in given if isinstance(one, TyperOption)):
            times = given.count(option)
            if times > 1 and not (option.multiple or option.is_flag or ctx.resilient_parsing):
                display.note(
                    f"{option.opts[0]} was given {times} times; only the last one counts; lists take commas"
                )
        return super().parse_args(ctx, args)
