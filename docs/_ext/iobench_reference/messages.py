"""Warnings, advice and errors by kind."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

from iobench.base import errors
from iobench.base.errors import IobenchError
from iobench_reference.kinds import Use, meaning_of, scan
from iobench_reference.page import code, page, paragraphs, prose, section, sentence

WARNINGS = ("RunWarning", "BackgroundSign")
ADVICE = ("Advice",)


def pages() -> dict[str, str]:
    """Return each page's text by its path."""
    return {"warnings.md": _warnings(), "advice.md": _advice(), "errors.md": _errors()}


def warning_kinds() -> dict[str, list[Use]]:
    """Return every kind of warning with its uses."""
    return scan(WARNINGS, positional=True)


def advice_kinds() -> dict[str, list[Use]]:
    """Return every kind of advice with its uses."""
    return scan(ADVICE, positional=True)


def error_classes() -> list[type[IobenchError]]:
    """Return every class of error in the order of its declaration, the root first."""
    found = [value for value in vars(errors).values() if inspect.isclass(value)]
    return [cls for cls in found if issubclass(cls, IobenchError) and cls.__module__ == errors.__name__]


def raised_kinds() -> dict[str, list[Use]]:
    """Return the kinds that are given where errors are raised, with their uses."""
    helpers = [name for name, value in vars(errors).items() if _takes_kind(value)]
    classes = {cls.__name__ for cls in error_classes()}
    return scan({*classes, *helpers, "changed"}, positional=False)


def _takes_kind(value: object) -> bool:
    return inspect.isfunction(value) and "kind" in inspect.signature(value).parameters


def _warnings() -> str:
    return page(
        "Warnings",
        "A warning is a reason not to believe a figure. It ends in its kind, in square brackets; the kind "
        "stands in JSON, too, and does not change when the sentence does.",
        *_sections("warning", warning_kinds()),
        label="reference-warnings",
    )


def _advice() -> str:
    return page(
        "Advice",
        "What `iobench diagnose` and `iobench.watch` recommend for your own loader, by kind. "
        "Advice that was measured names its gain with a 95 % interval.",
        *_sections("advice", advice_kinds()),
        label="reference-advice",
    )


def _errors() -> str:
    root, *classes = error_classes()
    return page(
        "Errors",
        "Every error is one line: the path, what failed, what was expected and what was there, and what to "
        "type. It ends in its kind, in square brackets. In Python each is an exception of "
        "`iobench.base.errors` with these parts as attributes; many are a built-in exception, too.",
        section(code(root.__name__), paragraphs(_first(root))),
        *(_class(cls) for cls in classes),
        section("Kinds of single failures", _bullets(raised_kinds())),
        label="reference-errors",
    )


def _class(cls: type[IobenchError]) -> str:
    built_in = [base.__name__ for base in cls.__bases__ if base.__module__ == "builtins"]
    python = f"`{cls.__name__}`" + "".join(f", also a `{name}`" for name in built_in)
    return section(
        code(cls.default_kind),
        prose(_first(cls)),
        f"In Python: {python}.",
        label=f"error-{cls.default_kind}",
    )


def _sections(what: str, kinds: dict[str, list[Use]]) -> Iterable[str]:
    for kind, uses in kinds.items():
        yield section(code(kind), paragraphs(meaning_of(uses)), label=f"{what}-{kind.replace(' ', '-')}")


def _bullets(kinds: dict[str, list[Use]]) -> str:
    classes = {cls.__name__ for cls in error_classes()}
    lines = []
    for kind, uses in kinds.items():
        raised = sorted({use.called for use in uses} & classes)
        lines.append(f"- {code(kind)}" + (f" ({', '.join(map(code, raised))})" if raised else ""))
    return "\n".join(lines) or "None."


def _first(cls: type) -> str:
    return sentence(inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0])
