"""Storage formats: one module beside this one = one format = one word on the command line."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import typing
from typing import Any

from iobench.formats._base import (
    DTYPES,
    RESERVED_NAMES,
    Array,
    ArtifactExists,
    Batch,
    Convert,
    CorruptArtifact,
    Extent,
    Field,
    Format,
    FormatError,
    InvalidOption,
    MissingDependency,
    Reader,
    Rows,
    Schema,
    UnknownFormat,
    corrupt,
    raw_bytes,
    same,
)

__all__ = [
    "DTYPES",
    "RESERVED_NAMES",
    "Array",
    "ArtifactExists",
    "Batch",
    "Convert",
    "CorruptArtifact",
    "Extent",
    "Field",
    "Format",
    "FormatError",
    "InvalidOption",
    "MissingDependency",
    "Reader",
    "Rows",
    "Schema",
    "UnknownFormat",
    "corrupt",
    "describe",
    "get",
    "names",
    "parse",
    "raw_bytes",
    "same",
    "type_of",
]


def names() -> list[str]:
    """The format modules beside this file, sorted; none is imported."""
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))


def type_of(name: str) -> type[Format]:
    """The Format class of that name, imported now.

    UnknownFormat where there is none, MissingDependency where its library is not installed.
    """
    if name not in names():
        raise UnknownFormat(f"unknown format {name!r}; known: {', '.join(names())}")
    try:
        module = importlib.import_module(f"{__name__}.{name}")
    except ImportError as error:
        missing = (error.name or "its library").partition(".")[0]
        raise MissingDependency(
            f"format {name} needs {missing}, which is not installed: pip install {missing}"
        ) from error
    found: type[Format] = next(
        value
        for value in vars(module).values()
        if isinstance(value, type) and vars(value).get("name") == name
    )
    return found


def get(name: str, **options: Any) -> Format:
    """The format of that name with these options; InvalidOption names what it does not have."""
    cls = type_of(name)
    known = [spec.name for spec in dataclasses.fields(cls)]
    for key in options:
        if key not in known:
            has = f"has {', '.join(known)}" if known else "has no options"
            raise InvalidOption(f"format {name} has no option {key!r}; it {has}")
    return cls(**options)


def parse(variant: str) -> Format:
    """The format written as a variant: `hdf5`, `hdf5:compression=gzip,chunk_bytes=0`."""
    name, _, text = variant.partition(":")
    cls = type_of(name)
    hints = typing.get_type_hints(cls)
    options: dict[str, Any] = {}
    for pair in text.split(",") if text else []:
        key, equals, value = pair.partition("=")
        if not equals:
            raise InvalidOption(f"{variant}: {pair!r} is not OPTION=VALUE")
        options[key] = _value(f"{name}: {key}", value, hints.get(key, str))
    return get(name, **options)


def describe() -> list[dict[str, Any]]:
    """Name, summary, usability here and options of every format, as plain data."""
    return [_description(name) for name in names()]


def _description(name: str) -> dict[str, Any]:
    try:
        cls = type_of(name)
    except MissingDependency as error:
        return {"name": name, "summary": "", "usable": str(error), "options": []}
    options = [
        {"name": spec.name, "default": "none" if spec.default is None else spec.default, **spec.metadata}
        for spec in dataclasses.fields(cls)
    ]
    return {"name": name, "summary": cls.summary, "usable": "yes", "options": options}


def _value(what: str, text: str, hint: Any) -> Any:
    if hint is int:
        try:
            return int(text)
        except ValueError:
            raise InvalidOption(f"{what}={text} is not a whole number") from None
    return None if text == "none" else text
