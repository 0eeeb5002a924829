"""Sections → HTML."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib import metadata
from pathlib import Path

import jinja2
import vl_convert

from iobench.report.page import Section, cell
from iobench.studies import Result


def render(sections: Sequence[Section], machines: Sequence[dict[str, str]], studies: Sequence[Result]) -> str:
    """The whole page: styles, charts and the script that draws them."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(
        sections=sections,
        machines=machines,
        studies=studies,
        cell=cell,
        version=metadata.version("iobench"),
        script=_script().replace("</script", "<\\/script"),
    )


@lru_cache
def _script() -> str:
    """Vega, Vega-Lite and Vega-Embed in one piece."""
    return str(vl_convert.javascript_bundle())  # type: ignore[call-arg]
