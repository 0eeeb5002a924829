"""Pages of metrics, case facets, studies and sources, from their declarations."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

from iobench import studies
from iobench.dataset import sources
from iobench.results.cases import FACETS
from iobench.results.metrics import METRICS, Metric
from iobench_reference.page import code, page, paragraphs, prose, section, sentence, table

# the longest suffix first
UNITS = {
    "_bytes_per_s": "bytes per second",
    "_samples_per_s": "samples per second",
    "samples_per_s": "samples per second",
    "bytes_per_s": "bytes per second",
    "_s_per_gib": "seconds per GiB of data",
    "_bytes": "bytes",
    "_share": "fraction, 0 to 1",
    "_s": "seconds",
}


def pages() -> dict[str, str]:
    """Return each page's text by its path."""
    return {
        "metrics.md": _metrics(),
        "facets.md": _facets(),
        "studies.md": _studies(),
        "sources.md": _sources(),
    }


def unit(metric: Metric) -> str:
    """Return the unit of a metric in JSON, which its name ends in; a plain number has none."""
    return next((text for suffix, text in UNITS.items() if metric.name.endswith(suffix)), "a plain number")


def _metrics() -> str:
    return page(
        "Metrics",
        "Each figure of a case: the title of its column, its name in JSON and in Python, and its unit there. "
        "Tables show the main ones, `--wide` shows all.",
        *(_metric(metric) for metric in METRICS),
        label="reference-metrics",
    )


def _metric(metric: Metric) -> str:
    shown = (
        "in every table of cases that have it"
        if metric.main
        else "with `--wide`, or where the run asks for it"
    )
    facts = [f"JSON: {code(metric.name)}", f"Unit in JSON: {unit(metric)}", f"Shown: {shown}"]
    return section(
        prose(metric.title),
        prose(sentence(metric.meaning)),
        "\n".join(f"- {fact}" for fact in facts),
        label=f"metric-{metric.name}",
    )


def _facets() -> str:
    rows = [
        [code(name), prose(facet.title), "yes" if facet.fixed else "no"] for name, facet in FACETS.items()
    ]
    return page(
        "Facets of a case",
        "A case is everything that decides a figure. Records with the same facets are rounds of one case. "
        "Figures are compared only where every facet that must be equal has one value.",
        table(["JSON name", "column", "must be equal to compare"], rows),
        "Format, loader and the loader's options distinguish cases, too.",
        label="reference-facets",
    )


def _studies() -> str:
    return page(
        "Studies",
        "A study repeats a published experiment on this machine and answers its claims: "
        "`iobench study NAME`.",
        *(_study(name) for name in studies.names()),
        label="reference-studies",
    )


def _study(name: str) -> str:
    study = studies.study_of(name)
    return section(
        code(name), prose(sentence(study.question)), f"Source: {prose(study.source)}", label=f"study-{name}"
    )


def _sources() -> str:
    return page(
        "Sources",
        "What `iobench prepare --source PATH` and `iobench.open_source(PATH)` read.",
        paragraphs(inspect.cleandoc(sources.open_source.__doc__ or "")),
        *(
            section(code(cls.__name__), paragraphs(inspect.cleandoc(cls.__doc__ or "")))
            for cls in source_classes()
        ),
        label="reference-sources",
    )


def source_classes() -> list[type]:
    """Return every public concrete class of source, by name."""
    found: dict[str, type] = {}
    for module in pkgutil.iter_modules(sources.__path__):
        loaded = importlib.import_module(f"{sources.__name__}.{module.name}")
        for value in vars(loaded).values():
            if inspect.isclass(value) and issubclass(value, sources.Source) and not inspect.isabstract(value):
                found[value.__name__] = value
    return [found[name] for name in sorted(found) if not name.startswith("_")]
