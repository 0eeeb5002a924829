"""Which records measure the same thing: the facets of a case, its key and its label.

A case is everything that decides a figure. Its facets are plain values, one list for all: what a
run was told (`Record.case`) and the machine it ran on. The key is made from every facet and is what
records are grouped by, everywhere. A label is made when something is shown, from what differs
among the cases that are shown together; it is for eyes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from iobench.base.units import bytes_text, counted, seconds_text
from iobench.results.record import Record

Facets = Mapping[str, Any]


@dataclass(frozen=True)
class Facet:
    """One thing that decides a figure.

    `title` heads its column, `text` writes its value. Figures are compared only where every facet
    that is `fixed` has one value: it is no choice of the person who measures.
    """

    title: str
    text: Callable[[Any], str] = str
    fixed: bool = False
    cell: Callable[[Any], str] = str  # its value below the title


def _processor(name: str, cores: int | None) -> list[str]:
    return [name] if cores is None else [name, counted(cores, "core")]


FACETS: dict[str, Facet] = {
    "processor": Facet("processor", lambda value: ", ".join(_processor(*value)), fixed=True),
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
    "model": Facet("model", lambda value: f"model {value}", fixed=True),
    "step_s": Facet("step time", lambda value: f"step of {seconds_text(value)}", True, seconds_text),
    "order": Facet("order", lambda value: f"{value} order"),
    "batch_size": Facet("batch", lambda value: f"batch {value}"),
    "block_bytes": Facet("block", lambda value: f"blocks of {bytes_text(value)}", cell=bytes_text),
    "window_bytes": Facet("window", lambda value: f"windows of {bytes_text(value)}", cell=bytes_text),
    "seed": Facet("seed", lambda value: f"seed {value}"),
    "strict": Facet("step", lambda value: "synchronised steps" if value else "steps as in training"),
    "profile": Facet("profile", lambda value: "profiled" if value else "not profiled"),
    "isolated": Facet(
        "process", lambda value: "in a process of its own" if value else "in iobench's process"
    ),
}
# told apart by the label itself, always
NAMED = ("format", "loader", "options")
OWN_DATA = "own data"  # in the place of a format, where a loader knows by itself where its files lie


@dataclass(frozen=True)
class Label:
    """A case in words: its format, its loader with the options that differ, and other facets that do."""

    format: str
    loader: str
    others: dict[str, str] = field(default_factory=dict)  # by facet

    @property
    def short(self) -> str:
        """The format and the loader alone: enough where only these differ."""
        return f"{self.format} · {self.loader}"

    def __str__(self) -> str:
        return ", ".join([self.short, *self.others.values()])


def facets_of(record: Record) -> dict[str, Any]:
    """Every facet of the case that a record measured, on its machine, as plain values."""
    machine, dataset = record.machine, record.dataset
    return {
        "processor": [machine.cpu, machine.usable_cores],
        "memory": round(machine.memory_bytes / 2**30),
        "disk": [machine.disk.file_system, machine.disk.model, machine.disk.read_ahead_kib],
        "gpu": machine.gpu.name if machine.gpu else None,
        "host": machine.host,
        "dataset": dataset.name,
        "content": dataset.content,
        "samples": dataset.samples,
        "fields": [f"{f.name} {f.dtype} {'x'.join(map(str, f.shape)) or 'scalar'}" for f in dataset.fields],
        **record.case,
    }


def trains(facets: Facets) -> bool:
    """Whether the device has something to do with each batch, so that waiting for batches means something."""
    return facets.get("model", "none") != "none" or bool(facets.get("step_s"))


def key_of(facets: Facets) -> str:
    """The key of a case: 16 hexadecimal digits made from all of its facets."""
    text = json.dumps(facets, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def by_case(records: Iterable[Record]) -> dict[str, list[Record]]:
    """The records of each case by its key, in the order in which the cases come first."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(key_of(facets_of(record)), []).append(record)
    return groups


def by_context(records: Iterable[Record]) -> list[list[Record]]:
    """The records grouped by everything but format, loader and its options, which are what is chosen."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        around = {name: value for name, value in facets_of(record).items() if name not in NAMED}
        groups.setdefault(key_of(around), []).append(record)
    return list(groups.values())


def context_title(facets: Facets, among: Sequence[Facets]) -> str:
    """What sets the context of a case apart from those of others, in words; empty where nothing does."""
    return ", ".join(text_of(name, facets[name]) for name in varying(among) if facets.get(name) is not None)


def labels(cases: Mapping[str, Facets]) -> dict[str, Label]:
    """The label of each case among these: whatever differs between them is in it."""
    shown = [name for name in varying(list(cases.values())) if name != "isolated" or _chosen(cases)]
    options = _varying_options(list(cases.values()))
    return {
        key: Label(
            str(facets["format"]),
            ", ".join([str(facets["loader"]), *_option_texts(facets, options)]),
            {name: text_of(name, facets[name]) for name in shown if facets.get(name) is not None},
        )
        for key, facets in cases.items()
    }


def _chosen(cases: Mapping[str, Facets]) -> bool:
    """Whether a loader is measured in a process of its own and in iobench's: else it follows from it."""
    loaders = {str(facets["loader"]) for facets in cases.values()}
    return len({(str(f["loader"]), f.get("isolated")) for f in cases.values()}) > len(loaders)


def labels_of(records: Iterable[Record]) -> dict[str, Label]:
    """The label of each case that these records measured, by its key."""
    return labels({key: facets_of(group[0]) for key, group in by_case(records).items()})


def varying(cases: Sequence[Facets]) -> list[str]:
    """The facets, apart from format and loader, that have several values among these cases."""
    names = dict.fromkeys([*FACETS, *(name for facets in cases for name in facets)])
    found = [name for name in names if name not in NAMED and len(_values(cases, name)) > 1]
    if "dataset" in found:  # which says more to a person than what it follows from
        told = _values(cases, "dataset")
        found = [
            name
            for name in found
            if name not in ("content", "samples", "fields")
            or len({(json.dumps(f.get("dataset")), json.dumps(f.get(name))) for f in cases}) > len(told)
        ]
    return found


def text_of(name: str, value: Any) -> str:
    """A facet's value in words."""
    return FACETS[name].text(value) if name in FACETS else f"{name} {value}"


def option_text(value: Any) -> str:
    """An option's value as it is typed in a variant, or `default` for what is left to a library."""
    if value is None:
        return "default"
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _values(cases: Sequence[Facets], name: str) -> set[str]:
    return {json.dumps(facets.get(name), sort_keys=True, default=str) for facets in cases}


def _varying_options(cases: Sequence[Facets]) -> dict[str, list[str]]:
    """By loader, the options that have several values among the cases of that loader."""
    by_loader: dict[str, list[Facets]] = {}
    for facets in cases:
        by_loader.setdefault(str(facets["loader"]), []).append(dict(facets.get("options") or {}))
    return {
        loader: [
            name
            for name in dict.fromkeys(name for options in several for name in options)
            if len(_values(several, name)) > 1
        ]
        for loader, several in by_loader.items()
    }


def _option_texts(facets: Facets, options: Mapping[str, Sequence[str]]) -> list[str]:
    own = facets.get("options") or {}
    return [f"{name} {option_text(own.get(name))}" for name in options[str(facets["loader"])]]
