"""Warnings, advice and errors by kind."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

from iobench.advise.checks.call_costs import Work
from iobench.advise.checks.evidence import Advice
from iobench.base import errors
from iobench.base.errors import IobenchError
from iobench.base.finding import Finding
from iobench.results.run_warning import BackgroundSign, RunWarning
from iobench.results.warnings import CaseCheck
from iobench_reference.kinds import Use, main_use, makers_of, parameters_of, scan
from iobench_reference.page import code, page, paragraphs, prose, section, sentence


def pages() -> dict[str, str]:
    """Return each page's text by its path."""
    return {
        "warnings.md": _warnings(),
        "advice.md": _advice(),
        "findings.md": _findings(),
        "errors.md": _errors(),
    }


def warning_kinds() -> dict[str, list[Use]]:
    """Return every kind of warning with its uses."""
    return scan(parameters_of(RunWarning, BackgroundSign, CaseCheck))


def advice_kinds() -> dict[str, list[Use]]:
    """Return every kind of advice with its uses."""
    return scan(parameters_of(Advice, Work))


def finding_kinds() -> dict[str, list[Use]]:
    """Return every kind of finding of an answer with its uses."""
    return scan({**makers_of({"Finding"}), **parameters_of(Finding)})


def error_classes() -> list[type[IobenchError]]:
    """Return every class of error in the order of its declaration, the root first."""
    classes = [value for value in vars(errors).values() if inspect.isclass(value)]
    return [cls for cls in classes if issubclass(cls, IobenchError)]


def raised_kinds() -> dict[str, list[Use]]:
    """Return the kinds that are given where errors are raised, with their uses."""
    classes = parameters_of(*error_classes())
    return scan({**makers_of(classes), **classes, "changed": ()})


def _warnings() -> str:
    return page(
        "Warnings",
        "A warning is a reason not to believe a figure. It is printed with its kind: `warning[KIND]: …`. The "
        "kind is in JSON, too, and stays the same when the sentence changes.",
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


def _findings() -> str:
    return page(
        "Findings",
        "Each fact in an answer of `iobench recommend`, `tune` and `diagnose` has a kind, in JSON: "
        "a verdict, a reason, a cost, or something that was skipped.",
        *_sections("finding", finding_kinds()),
        label="reference-findings",
    )


def _errors() -> str:
    root, *classes = error_classes()
    return page(
        "Errors",
        "Every error is one line: the path, what failed, what was expected, what was there, and what to "
        "type. The line begins with its kind, as in `error[unknown-format]`. In Python each error is an "
        "exception from `iobench.base.errors` with these parts as attributes.",
        section(code(root.__name__), paragraphs(_summary(root))),
        *(_class(cls) for cls in classes),
        section("Kinds of single failures", _bullets(raised_kinds())),
        label="reference-errors",
    )


def _class(cls: type[IobenchError]) -> str:
    built_in = [base.__name__ for base in cls.__bases__ if base.__module__ == "builtins"]
    python = code(cls.__name__) + "".join(f", also a {code(name)}" for name in built_in)
    kind = cls.default_kind
    return section(code(kind), prose(_summary(cls)), f"In Python: {python}.", label=f"error-{kind}")


def _sections(what: str, kinds: dict[str, list[Use]]) -> Iterable[str]:
    for kind, uses in kinds.items():
        meaning = main_use(uses).meaning
        alike = [use for use in uses if use.meaning == meaning]
        yield section(
            code(kind),
            paragraphs(meaning),
            _listed("Printed", [use.message for use in alike]),
            _listed("What helps", [use.hint for use in alike]),
            label=f"{what}-{kind.replace(' ', '-')}",
        )


def _listed(title: str, texts: list[str]) -> str:
    """Return one line beside its title, or several below it."""
    first, *more = dict.fromkeys(line for text in texts for line in text.splitlines()) or [""]
    if more:
        return f"{title}, one of:\n\n" + "\n".join(f"- {prose(line)}" for line in (first, *more))
    return f"{title}: {prose(first)}" if first else ""


def _bullets(kinds: dict[str, list[Use]]) -> str:
    classes = {cls.__name__ for cls in error_classes()}
    lines = []
    for kind, uses in kinds.items():
        raised = ", ".join(code(name) for name in sorted({use.called for use in uses} & classes))
        texts = (main_use(uses).message, main_use(uses).hint)
        example = prose("; ".join(text.splitlines()[0] for text in texts if text))
        lines.append(f"- {code(kind)}" + f" ({raised})" * bool(raised) + f": {example}" * bool(example))
    return "\n".join(lines) or "None."


def _summary(cls: type) -> str:
    return sentence(inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0])
