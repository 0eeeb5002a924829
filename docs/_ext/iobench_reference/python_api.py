"""The Python API: everything in `iobench.__all__`, by autodoc, with a table of each dataclass's fields."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import iobench
from iobench_reference import comments
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
    kind = "autoclass" if inspect.isclass(value) else "autofunction"
    options = "\n   :members:" if inspect.isclass(value) else ""
    described = f"```{{eval-rst}}\n.. {kind}:: iobench.{name}{options}\n```"
    return section(code(name), described, _fields(value), label=f"python-{name.lower()}")


def _fields(value: Any) -> str:
    if not dataclasses.is_dataclass(value) or not inspect.isclass(value):
        return ""
    texts = comments.of_fields(value)
    rows = [
        [code(spec.name), code(spec.type), _default(spec), prose(sentence(texts.get(spec.name, "")))]
        for spec in dataclasses.fields(value)
        if not spec.name.startswith("_")
    ]
    return table(["field", "type", "default", "meaning"], rows)


def _default(spec: dataclasses.Field[Any]) -> str:
    if spec.default_factory is not dataclasses.MISSING:
        return code(f"{spec.default_factory()!r}")
    return "" if spec.default is dataclasses.MISSING else code(repr(spec.default))
