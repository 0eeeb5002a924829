"""Report: one self-contained HTML page of records, and an image of each chart."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from iobench.base.errors import RecordError, ReportError, needing
from iobench.base.files import replace_file, system_errors_as
from iobench.results.record import Record

if TYPE_CHECKING:
    from iobench.advise.recommendation import Recommendation
    from iobench.results.display import Chart
    from iobench.results.trend import Trend
    from iobench.studies import StudyResult

SCALE = 2  # pixels of an image per pixel of the page


def write(
    records: Sequence[Record],
    path: Path,
    pictures: Path | None = None,
    studies: Sequence[StudyResult] = (),
    trends: Sequence[Trend] = (),
    recommended: Sequence[Recommendation] = (),
) -> list[Path]:
    """Write the page, and a PNG and SVG of each chart into a folder.

    Return the files that were written, the page first. An existing file is replaced atomically after
    everything has been drawn; a failure leaves it unchanged. RecordError without records, studies and
    recommendations, ReportError if a file cannot be written, MissingDependency without plotting libraries.
    """
    if not records and not studies and not recommended:
        raise RecordError("no records to report", kind="no-runs", hint="measure some with 'iobench run'")
    with needing("a report", "report"):
        from iobench.report import page
    content = page.page(records, trends, recommended, studies)
    files = {path: page.render(content).encode()}
    if pictures is not None:
        for chart in content.charts:
            files.update(_images(chart, pictures))
    with system_errors_as(ReportError, "cannot be written", path, kind="not-writable"):
        if pictures is not None:
            pictures.mkdir(parents=True, exist_ok=True)
        for target, data in files.items():
            _replace(target, data)
    return list(files)


def _images(chart: Chart, folder: Path) -> Iterator[tuple[Path, bytes]]:
    import vl_convert

    from iobench.report.figure import Figure

    spec = Figure(chart).picture()
    yield folder / f"{chart.name}.png", vl_convert.vegalite_to_png(spec, scale=SCALE)
    yield folder / f"{chart.name}.svg", vl_convert.vegalite_to_svg(spec).encode()


def _replace(path: Path, content: bytes) -> None:
    """Write a file whole, through links and into pipes; OSError leaves what was there unchanged."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    try:
        if not target.exists() or target.is_file():
            replace_file(target, content)
            return
        descriptor = os.open(target, os.O_WRONLY | os.O_NONBLOCK)  # a pipe without a reader is an error
        os.set_blocking(descriptor, True)
        with open(descriptor, "wb") as file:  # /dev/stdout or a pipe: nothing to preserve
            file.write(content)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
