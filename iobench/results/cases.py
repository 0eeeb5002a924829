"""Cases: their facets and labels, and records grouped by case.

A case is everything that determines a figure. Its facets are plain values in one list: the settings of the
run (`Record.case`) and the machine it ran on. The key (`Record.key`) is a hash of all facets; records are
grouped by it everywhere. A label is built for display, from the facets that differ among the cases shown
together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from iobench.base import grouped
from iobench.base.units import bytes_text, counted, seconds_text
from iobench.results.record import Facets, Record, key_of

Groups = Mapping[str, Sequence[Record]]  # rounds by the key of their case


@dataclass(frozen=True)
class Facet:
    """A property of a case that influences its figures.

    `title` heads its column, `text` writes its value in a sentence, `cell` below its title. Figures are
    comparable only where every `fixed` facet has the same value: it is given, not chosen.
    """

    title: str
    text: Callable[[Any], str] = str
    fixed: bool = False
    cell: Callable[[Any], str] = str


FACETS: dict[str, Facet] = {
    "processor": Facet(
        "processor", lambda v: v[0] if v[1] is None else f"{v[0]}, {counted(v[1], 'core')}", fixed=True
    ),
    "memory": Facet("memory", lambda value: f"{value} GiB", fixed=True),
    "disk": Facet("disk", lambda value: f"{value[0]} on {value[1]}, read-ahead {value[2]} KiB", fixed=True),
    "gpu": Facet("GPU", lambda value: value or "none", fixed=True),
    "host": Facet("host"),
    "dataset": Facet("dataset"),
    "content": Facet("data", lambda value: f"data {value}", fixed=True),
    "samples": Facet("samples", lambda value: counted(value, "sample"), fixed=True),
    "fields": Facet("fields", lambda value: "; ".join(value), fixed=True),
    "device": Facet("device", fixed=True),
    "world_size": Facet("ranks", lambda value: counted(value, "rank")),
    "cache": Facet("cache", lambda value: f"{value} cache", fixed=True),
    "object_cache": Facet(
        "object cache", lambda value: f"object cache of {bytes_text(value)}", cell=bytes_text
    ),
    "model": Facet("model", lambda value: f"model {value}", fixed=True),
    "step_s": Facet("step time", lambda value: f"step of {seconds_text(value)}", True, seconds_text),
    "order": Facet("order", lambda value: f"{value} order"),
    "collate": Facet("collate", lambda value: f"collate {value}"),
    "batch_size": Facet("batch", lambda value: f"batch {value}"),
    "batch_tokens": Facet("batch tokens", lambda value: f"at most {value:,} tokens a batch"),
    "block_bytes": Facet("block", lambda value: f"blocks of {bytes_text(value)}", cell=bytes_text),
    "window_bytes": Facet("window", lambda value: f"windows of {bytes_text(value)}", cell=bytes_text),
    "seed": Facet("seed", lambda value: f"seed {value}"),
    "max_batches": Facet("round", lambda value: f"rounds of {counted(value, 'batch', 'batches')}"),
    "round_seconds": Facet(
        "round limit", lambda value: f"rounds of at most {seconds_text(value)}", cell=seconds_text
    ),
    "strict": Facet("step", lambda value: "synchronized steps" if value else "steps as in training"),
    "profile": Facet("profile", lambda value: "profiled" if value else "not profiled"),
    "isolated": Facet(
        "process", lambda value: "in a process of its own" if value else "in iobench's process"
    ),
}
LABEL_FACETS = ("format", "loader", "options")  # always part of a label
OWN_DATA = "own data"  # instead of a format, for a loader that finds its files by itself


@dataclass(frozen=True)
class Label:
    """Name of a case for display: format, loader with the options that differ, other facets that differ."""

    format: str
    loader: str
    others: dict[str, str] = field(default_factory=dict)  # by facet

    @property
    def short(self) -> str:
        """The format and the loader alone, for cases that differ in nothing else."""
        return f"{self.format} · {self.loader}"

    def __str__(self) -> str:
        return ", ".join([self.short, *self.others.values()])


def trains(facets: Facets) -> bool:
    """Return whether the device processes each batch, so that waiting for batches is meaningful."""
    return facets.get("model", "none") != "none" or bool(facets.get("step_s"))


def by_case(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Group records by the key of their case, in order of first appearance."""
    return grouped((record.key, record) for record in records)


def by_run(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Group records by their run, in order of first appearance."""
    return grouped((record.run, record) for record in records)


def by_context(groups: Groups) -> list[dict[str, Sequence[Record]]]:
    """Split cases by their context."""
    contexts = grouped((context_of(rounds[0].facets), (key, rounds)) for key, rounds in groups.items())
    return [dict(context) for context in contexts.values()]


def context_of(facets: Facets) -> str:
    """Return the key of a case's context: all facets except format, loader and loader options."""
    return key_of({name: value for name, value in facets.items() if name not in LABEL_FACETS})


def context_title(facets: Facets, among: Sequence[Facets]) -> str:
    """Return the facets that distinguish a case's context from others, in words; empty where none do."""
    return ", ".join(text_of(name, facets[name]) for name in varying(among) if facets.get(name) is not None)


def labels(cases: Mapping[str, Facets]) -> dict[str, Label]:
    """Return the label of each case, with every facet that differs among these cases."""
    shown = varying(list(cases.values()))
    processes = {(str(one["loader"]), one.get("isolated")) for one in cases.values()}
    if "isolated" in shown and len(processes) == len({loader for loader, _ in processes}):
        shown.remove("isolated")  # the loader determines it
    by_loader = grouped((str(one["loader"]), one.get("options") or {}) for one in cases.values())
    options = {
        loader: [name for name in dict.fromkeys(chain(*several)) if len(_values(several, name)) > 1]
        for loader, several in by_loader.items()
    }

    def labelled(facets: Facets) -> Label:
        loader, own = str(facets["loader"]), facets.get("options") or {}
        return Label(
            str(facets["format"]),
            ", ".join([loader, *(f"{name} {option_text(own.get(name))}" for name in options[loader])]),
            {name: text_of(name, facets[name]) for name in shown if facets.get(name) is not None},
        )

    return {key: labelled(facets) for key, facets in cases.items()}


def labels_of(groups: Groups) -> dict[str, Label]:
    """Return the label of each case, by its key."""
    return labels({key: rounds[0].facets for key, rounds in groups.items()})


def varying(cases: Sequence[Facets]) -> list[str]:
    """Return the facets, other than format and loader, that have several values among these cases."""
    names = dict.fromkeys([*FACETS, *(name for facets in cases for name in facets)])
    differing = [name for name in names if name not in LABEL_FACETS and len(_values(cases, name)) > 1]
    if "dataset" in differing:  # its name is clearer than the facets that it determines
        datasets = _values(cases, "dataset")
        differing = [
            name
            for name in differing
            if name not in ("content", "samples", "fields")
            or len({(json.dumps(f.get("dataset")), json.dumps(f.get(name))) for f in cases}) > len(datasets)
        ]
    return differing


def facet_of(name: str) -> Facet:
    """Return the facet of that name, also of one that another version of iobench recorded."""
    return FACETS.get(name) or Facet(name, lambda value: f"{name} {value}")


def text_of(name: str, value: Any) -> str:
    """Return a facet's value in words."""
    return facet_of(name).text(value)


def option_text(value: Any) -> str:
    """Return an option's value as it is typed in a variant, or `default` where the library decides."""
    if value is None:
        return "default"
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _values(cases: Sequence[Facets], name: str) -> set[str]:
    return {json.dumps(facets.get(name), sort_keys=True, default=str) for facets in cases}


def with_common_limits(records: Sequence[Record]) -> list[Record]:
    """Return the records with one limit per resource of a run: its highest rate in any round.

    The share of the limit that a case reaches can then be compared with that of another case.
    """
    sampled = {
        number: ((record.run, limit.name, str(record.case.get("device"))), limit)
        for number, record in enumerate(records)
        if (limit := record.limit) is not None and limit.now_bytes_per_s is not None
    }
    stored = grouped((key, limit.bytes_per_s / limit.logical_per_byte) for key, limit in sampled.values())
    highest = {key: max(rates) for key, rates in stored.items()}
    result = list(records)
    for number, (key, limit) in sampled.items():
        record = records[number]
        result[number] = copy(record)  # not `replace`: facets and key are not computed again
        common = replace(limit, bytes_per_s=highest[key] * limit.logical_per_byte)
        vars(result[number]).update(limit=common, facets=record.facets, key=record.key)
    return result


def measured_rates(records: Iterable[Record]) -> dict[str, list[float]]:
    """Return the rates of each resource over time, in stored bytes per second, by its name."""
    rates: dict[str, list[float]] = {}
    for record in sorted(records, key=lambda one: one.time):
        limit = record.limit
        if limit is not None and limit.now_bytes_per_s is not None:
            known = rates.setdefault(limit.name, [])
            now = limit.now_bytes_per_s / limit.logical_per_byte
            if not known or abs(known[-1] / now - 1) > 1e-9:  # several records may share a sample
                known.append(now)
    return rates
