"""Records → one HTML page that needs nothing else, and a picture of each chart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from iobench.errors import MissingExtra, RecordError, ReportError
from iobench.results.record import Record

if TYPE_CHECKING:
    from iobench.report.page import Figure
    from iobench.studies import Result

SCALE = 2  # pixels of a picture per pixel of the page


def write(
    records: Sequence[Record], path: Path, pictures: Path | None = None, studies: Sequence[Result] = ()
) -> list[Path]:
    """Write the page, and a PNG and SVG of each chart into a folder; return what was written.

    The answers of `studies` stand at its end.

    RecordError without either, ReportError where a file cannot be written, MissingExtra without
    the libraries that draw.
    """
    if not records and not studies:
        raise RecordError("no records to report on; measure some with 'iobench run'")
    try:
        from iobench.report import html, page
    except ImportError as error:
        raise MissingExtra(f"a report needs {error.name}: pip install 'iobench[report]'") from error
    found = page.sections(records) if records else []
    try:
        path.write_text(html.render(found, page.machines(records), studies))
        written = [path]
        if pictures is not None:
            pictures.mkdir(parents=True, exist_ok=True)
            for figure in (figure for section in found for figure in section.figures):
                written += _draw(figure, pictures)
    except OSError as error:
        raise ReportError(f"{error.filename or path} cannot be written: {error.strerror}") from error
    return written


def _draw(figure: Figure, folder: Path) -> list[Path]:
    import vl_convert

    spec = figure.picture()
    png, svg = folder / f"{figure.name}.png", folder / f"{figure.name}.svg"
    png.write_bytes(vl_convert.vegalite_to_png(spec, scale=SCALE))
    svg.write_text(vl_convert.vegalite_to_svg(spec))
    return [png, svg]
