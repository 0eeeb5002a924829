"""Options that several commands share."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperOption

from iobench.base.errors import InvalidSettings
from iobench.bench.command_option import DEVICE_HELP

if TYPE_CHECKING:
    from iobench.formats import Field
    from iobench.results.record import Record

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
ON_ERROR_HELP = "skip leaves out images of --source that cannot be decoded, and counts them. [default: stop]"
ON_ERROR = ("stop", "skip")
SourceFormat = Annotated[str | None, typer.Option(help=SOURCE_FORMAT_HELP)]
TimeLimit = Annotated[float, typer.Option(help="Time limit in seconds.")]
Timeout = Annotated[float, typer.Option(help="Kill the loader after this many seconds without a batch.")]
Out = Annotated[
    Path | None, typer.Option(help="Append records here. [default: a new file in DATA_DIR/results]")
]
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


def checked_hash(word: str) -> str:
    """Return the value of `--hash`; InvalidSettings if it is not one."""
    return checked_choice("--hash", word, ("auto", "full"))


def checked_choice(option: str, word: str, choices: Sequence[str]) -> str:
    """Return the word; InvalidSettings names the option if it is none of the choices."""
    if word not in choices:
        raise InvalidSettings(option, kind="unknown-choice", expected=" or ".join(choices), found=repr(word))
    return word


def field_of(text: str, option: str = "--field") -> Field:
    """Parse a field such as `x=float32[3,224,224]` or `y=int64`; InvalidSettings shows how to write one."""
    from iobench.formats import VARIES, Field

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
    from iobench.formats import with_extents

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


def parsed(option: str, parse: Callable[..., T], *given: Any) -> T:
    """Parse what was typed with a parser of `units`; InvalidSettings names the option."""
    try:
        return parse(*given)
    except InvalidSettings as error:
        raise error.changed(problem=f"{option} {error.problem}") from None


def records_of(paths: Iterable[Path]) -> list[Record]:
    """Read the records of these files; report each unreadable line on stderr."""
    from iobench.results import record_file
    from iobench.terminal import display

    records = []
    for path in paths:
        readable, skipped = record_file.read(path)
        records += readable
        for sentence in skipped:
            display.note(f"skipped: {sentence}")
    return records


class Command(TyperCommand):
    """A command that notes, for an option given more than once, that only the last value counts."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as typer does, after a note for each repeated option."""
        *_, given = self.make_parser(ctx).parse_args(args=list(args))
        for option in dict.fromkeys(one for one in given if isinstance(one, TyperOption)):
            times = given.count(option)
            if times > 1 and not (option.multiple or option.is_flag or ctx.resilient_parsing):
                from iobench.terminal import display

                display.note(
                    f"{option.opts[0]} was given {times} times; only the last one counts; lists take commas"
                )
        return super().parse_args(ctx, args)
