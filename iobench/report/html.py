"""Rendering of a page as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib import metadata
from pathlib import Path

import jinja2
import vl_convert

from iobench.report.figure import cell, heading
from iobench.report.page import Page
from iobench.studies import StudyResult


def render(page: Page, studies: Sequence[StudyResult]) -> str:
    """Return the whole page: styles, charts and the script that draws them."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(
        page=page,
        studies=studies,
        cell=cell,
        heading=heading,
        version=metadata.version("iobench"),
        script=_script().replace("</script", "<\\/script"),
    )


@lru_cache
def _script() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script."""
    return str(vl_convert.javascript_bundle())  # type: ignore[call-arg]
