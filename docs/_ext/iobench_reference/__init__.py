"""Writes the reference out of the code, as Sphinx's extension before each build.

The pages are not committed, so that they cannot be out of date. Nothing here but `setup` needs Sphinx.
"""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

GENERATORS = ("cli", "declared", "messages", "python_api", "registries", "schema")
COMMITTED = ("index.md",)


def pages() -> dict[str, str]:
    """Return the text of every generated file by its path below `reference/`."""
    found: dict[str, str] = {}
    for name in GENERATORS:
        found |= importlib.import_module(f"{__name__}.{name}").pages()
    return found


def write(folder: Path) -> None:
    """Write every page whose text has changed, and remove pages of what the code no longer has."""
    written = pages()
    for path, text in written.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
    for file in [*folder.rglob("*.md"), *folder.rglob("*.json")]:
        if str(file.relative_to(folder)) not in (*written, *COMMITTED):
            file.unlink()


def _without_attributes(
    app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]
) -> None:
    """Leave out of a dataclass's docstring what the table of its fields shows."""
    if what == "class" and dataclasses.is_dataclass(value):
        from iobench_reference.comments import without_attributes

        lines[:] = without_attributes("\n".join(lines)).splitlines()


def setup(app: Sphinx) -> dict[str, Any]:
    """Write the reference before Sphinx looks for its sources."""
    app.connect("builder-inited", lambda app: write(Path(app.srcdir) / "reference"))
    app.connect("autodoc-process-docstring", _without_attributes, priority=400)  # before napoleon's
    return {"parallel_read_safe": True, "parallel_write_safe": True}
