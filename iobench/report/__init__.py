"""Records → one HTML page that needs nothing else, and a picture of each chart."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from iobench.base.errors import (
    MissingDependency,
    RecordError,
    ReportError,
)
from iobench.results.record import Record

if TYPE_CHECKING:
    from iobench.recommendation.result import Recommendation
    from iobench.report.figure import Figure
    from iobench.results.trend import Trend
    from iobench.studies import Result

SCALE = 2  # pixels of a picture per pixel of the page


def write(
    records: Sequence[Record],
    path: Path,
    pictures: Path | None = None,
    studies: Sequence[Result] = (),
    trends: Sequence[Trend] = (),
    recommended: Sequence[Recommendation] = (),
) -> list[Path]:
    """Write the page, and a PNG and SVG of each chart into a folder; return what was written.

    `trends` of the same cases over several runs are drawn. Each recommendation has a section, and the answers
    of `studies` stand at the end. A file that is there already is replaced in one step, when everything has
    been drawn, and stays as it is where anything fails before that.

    RecordError without any of these, ReportError where a file cannot be written, MissingDependency without
    the libraries that draw.
    """
    if not records and not studies and not recommended:
        raise RecordError("no records to report on; measure some with 'iobench run'")
    try:
        from iobench.report import html, page
    except ImportError as error:
        raise MissingDependency(f"a report needs {error.name}: pip install 'iobench[report]'") from error
    found = page.page(records, trends, recommended)
    files = {path: html.render(found, studies).encode()}
    if pictures is not None:
        for figure in found.figures:
            files.update(_drawn(figure, pictures))
    try:
        if pictures is not None:
            pictures.mkdir(parents=True, exist_ok=True)
        for target, content in files.items():
            _replace(target, content)
    except OSError as error:
        raise ReportError(f"{error.filename or path} cannot be written: {error.strerror}") from error
    return list(files)


def _drawn(figure: Figure, folder: Path) -> Iterator[tuple[Path, bytes]]:
    import vl_convert

    spec = figure.picture()
    yield folder / f"{figure.name}.png", vl_convert.vegalite_to_png(spec, scale=SCALE)
    yield folder / f"{figure.name}.svg", vl_convert.vegalite_to_svg(spec).encode()


def _replace(path: Path, content: bytes) -> None:
    """Write a file beside the target and put it in its place; OSError leaves the target as it was."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    if target.exists() and not target.is_file():  # /dev/stdout, a pipe: nothing is there to be kept
        try:
            descriptor = os.open(target, os.O_WRONLY | os.O_NONBLOCK)  # a pipe that nobody reads is an error
            os.set_blocking(descriptor, True)
            with open(descriptor, "wb") as file:
                file.write(content)
        except OSError as error:
            raise type(error)(error.errno, error.strerror, str(path)) from error
        return
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        beside.write_bytes(content)
        os.replace(beside, target)
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(path)) from error
    finally:
        with contextlib.suppress(OSError):  # where it was never made
            beside.unlink()
