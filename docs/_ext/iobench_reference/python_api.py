"""The Python API: everything in `iobench.__all__`, by autodoc, with a table of each dataclass's fields."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import iobench
from iobench_reference import comments
from iobench_reference.cli import without_default
from iobench_reference.page import code, page, prose, section, sentence, table


def pages() -> dict[str, str]:
    """Return the page by its path."""
    return {"python.md": _page()}


def _page() -> str:
    return page(
        "Python API",
        "`import iobench` loads neither torch nor a format library: each name is imported when it is used. "
        "Functions return data and print nothing.",
        *(_entry(name, getattr(iobench, name)) for name in iobench.__all__),
        label="reference-python",
    )


def _entry(name: str, value: Any) -> str:
    kind, members = ("autoclass", "\n   :members:") if inspect.isclass(value) else ("autofunction", "")
    described = f"```{{eval-rst}}\n.. {kind}:: iobench.{name}{_arguments(value)}{members}\n```"
    label = f"python-{kind.removeprefix('auto')}-{name.lower()}"  # labels ignore case: there are run and Run
    return section(code(name), described, _table(value), label=label)


def _fields(value: Any) -> list[dataclasses.Field[Any]]:
    """Return the fields of a dataclass that a caller sets; none of anything else."""
    if not (inspect.isclass(value) and dataclasses.is_dataclass(value)):
        return []
    return [spec for spec in dataclasses.fields(value) if spec.init and not spec.name.startswith("_")]


def _arguments(value: Any) -> str:
    """Return a dataclass's arguments by name: types and defaults are in its table."""
    names = [spec.name + ("" if _default(spec) is None else "=...") for spec in _fields(value)]
    return f"({', '.join(names)})" if names else ""


def _table(value: Any) -> str:
    texts = comments.of_fields(value) if inspect.isclass(value) else {}
    texts = {spec.name: without_default(spec.metadata.get("help", "")) for spec in _fields(value)} | texts
    rows = [
        [code(spec.name), code(spec.type), _default(spec) or "", prose(sentence(texts.get(spec.name, "")))]
        for spec in _fields(value)
    ]
    return table(["field", "type", "default", "meaning"], rows) if rows else ""


def _default(spec: dataclasses.Field[Any]) -> str | None:
    if spec.default_factory is not dataclasses.MISSING:
        return code(f"{spec.default_factory()!r}")
    return None if spec.default is dataclasses.MISSING else code(repr(spec.default))
