"""Formats and loaders with their options, from their registries."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from iobench import formats
from iobench.base.options import declared, word
from iobench.base.registry import extra_of
from iobench.loading import loaders
from iobench_reference.page import code, page, paragraphs, prose, section, sentence, table

_HOW = (
    "An option is set in the name itself: `NAME:OPTION=VALUE,OPTION=VALUE`. "
    "{listed} lists the same with what is installed here."
)


def pages() -> dict[str, str]:
    """Return each page's text by its path."""
    return {"formats.md": _formats(), "loaders.md": _loaders()}


def _formats() -> str:
    classes = [formats.FORMATS.class_of(name) for name in formats.names()]
    return page(
        "Formats",
        _HOW.format(listed="`iobench formats`"),
        _overview("format", classes, ("lossless", lambda cls: _lossless(cls).partition(";")[0])),
        *(_kind(cls, _format_facts(cls)) for cls in classes),
        label="reference-formats",
    )


def _loaders() -> str:
    classes = [loaders.class_of(name) for name in loaders.names()]
    own = loaders.DEFAULT_LOADERS
    return page(
        "Loaders",
        _HOW.format(listed="`iobench loaders`")
        + f" Options of {', '.join(map(code, own))} are options of `iobench run`, too.",
        _overview("loader", classes, ("by default", lambda cls: "yes" if cls.name in own else "")),
        *(_kind(cls, _loader_facts(cls)) for cls in classes),
        _user_defined(),
        label="reference-loaders",
    )


def _overview(kind: str, classes: list[Any], extra: tuple[str, Any]) -> str:
    title, value = extra
    return table(
        [kind, "what it is", title],
        [[f"[{code(cls.name)}](#{kind}-{cls.name})", prose(cls.summary), value(cls)] for cls in classes],
    )


def _kind(cls: Any, facts: list[tuple[str, str]]) -> str:
    listed = "\n".join(f"- {title}: {value}" for title, value in facts)
    return section(
        code(cls.name),
        prose(sentence(cls.summary)),
        paragraphs(inspect.cleandoc(cls.__doc__ or "")),
        listed,
        options(cls),
        label=f"{cls.kind}-{cls.name}",
    )


def options(cls: Any) -> str:
    """Return the table of a class's options; a sentence where there are none."""
    rows = [
        [code(spec.name), code(word(spec.default)), prose(spec.allowed), prose(sentence(spec.help))]
        for spec in declared(cls)
    ]
    return table(["option", "default", "values", "meaning"], rows) if rows else "No options."


def _install(cls: Any) -> str:
    return code(f"pip install 'iobench[{extra}]'") if (extra := extra_of(cls)) else "included"


def _format_facts(cls: Any) -> list[tuple[str, str]]:
    detectable = issubclass(cls, formats.Detectable)
    adds = "yes, with `iobench add`" if detectable else "no"
    chosen = "; some of its arrays with `PATH::NAME,NAME`" if detectable and cls.selectable else ""
    return [
        ("Library", code(cls.library)),
        ("Install", _install(cls)),
        ("Lossless", _lossless(cls)),
        ("Existing data can be added", adds + chosen),
        ("Data types", ", ".join(map(code, sorted(cls.dtypes)))),
    ]


def _lossless(cls: Any) -> str:
    if any(spec.name == "lossy" for spec in declared(cls)):
        default = "yes" if cls().lossless else "no"
        return f"{default} by default; the option `lossy` decides"
    return "yes" if cls().lossless else "no"


def _overrides(cls: Any, method: str) -> bool:
    return getattr(cls, method) is not getattr(formats.Format, method)


def _loader_facts(cls: Any) -> list[tuple[str, str]]:
    advised = cls.recommended_options.replace("{cores}", "N")
    return [
        ("Library", code(cls.library)),
        ("Install", _install(cls)),
        ("Reads", _read_by(cls)),
        ("Orders", ", ".join(map(code, cls.orders))),
        ("Who decides the order of samples", "the loader" if cls.iterable_style else "iobench"),
        ("Process", "one of its own per case" if cls.isolated else "iobench's, unless another loader asks"),
        *([("Recommended options", code(f"{cls.name}:{advised}"))] if advised else []),
        *([("Epochs", "may repeat samples; the table counts them")] if cls.repeats else []),
        *([("Epochs", "may drop samples; the table counts them")] if cls.drops else []),
    ]


def _read_by(cls: Any) -> str:
    loader = cls()
    read = [name for name in formats.names() if loader.reads(_default_format(name))]
    return "every format" if read == formats.names() else ", ".join(map(code, read))


@functools.cache
def _default_format(name: str) -> Any:
    return formats.FORMATS.class_of(name)()


def _user_defined() -> str:
    from iobench.loading.loaders import _user_loader as module

    return section(
        "Your own: `train.py:make_loader`",
        paragraphs(inspect.cleandoc(module.__doc__ or "")),
        label="loader-user-defined",
    )
