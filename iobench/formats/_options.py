"""Options: what can be set of a format or a loader, and the one word that says so.

A class of either kind is a frozen dataclass under `Options`, and its fields, declared with `option()`,
are what can be set. `hdf5:compression=gzip,chunk_bytes=4096` is such an object as a word: its name and
the options that differ from their defaults.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from iobench.base.errors import (
    InvalidOption,
)

T = TypeVar("T", bound="Options")

_TEXT = re.compile(r"[A-Za-z0-9._+-]+")  # a word is a folder's name, and commas part its options
_BOOLS = {"yes": True, "true": True, "no": False, "false": False}


def option(
    default: Any,
    help: str,
    *,
    choices: tuple[Any, ...] | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    unit: str | None = None,
) -> Any:
    """A dataclass field that can be set in a word.

    Its annotation is bool, int, float or str, or one of them `| None`. `unit` is for people: "bytes", "s".
    """
    limits = {"help": help, "choices": choices, "minimum": minimum, "maximum": maximum, "unit": unit}
    return dataclasses.field(default=default, metadata=limits)


@dataclass(frozen=True)
class Option:
    """One declared option: its name, type and limits."""

    name: str
    type: type
    or_none: bool
    default: Any
    help: str
    choices: tuple[Any, ...] | None
    minimum: float | None
    maximum: float | None
    unit: str | None

    @property
    def allowed(self) -> str:
        """The values it takes, in words."""
        if self.choices is not None:
            return "one of " + ", ".join(map(word, self.choices))
        kind = {bool: "yes or no", int: "a whole number", float: "a number", str: "a word"}[self.type]
        if self.minimum is not None and self.maximum is not None:
            kind += f" from {word(self.minimum)} to {word(self.maximum)}"
        elif self.minimum is not None:
            kind += f" from {word(self.minimum)} up"
        elif self.maximum is not None:
            kind += f" up to {word(self.maximum)}"
        return kind + (f" of {self.unit}" if self.unit else "") + (", or none" if self.or_none else "")

    def takes(self, value: Any) -> bool:
        """Whether the value is of its type and within its limits."""
        if self.choices is not None:
            return any(type(value) is type(known) and value == known for known in self.choices)
        if value is None:
            return self.or_none
        if type(value) not in ((int, float) if self.type is float else (self.type,)):
            return False
        if isinstance(value, str):
            return bool(_TEXT.fullmatch(value))
        least = -math.inf if self.minimum is None else self.minimum
        most = math.inf if self.maximum is None else self.maximum
        return math.isfinite(value) and least <= value <= most

    def read(self, text: str) -> Any:
        """The value that a text stands for; the text itself where it stands for none."""
        if text == "none" and self.or_none:
            return None
        try:
            return _BOOLS[text] if self.type is bool else self.type(text)
        except (ValueError, KeyError):
            return text


@dataclass(frozen=True)
class Options:
    """What formats and loaders have in common: a name, and options that one word holds.

    A value that an option cannot take is an InvalidOption.
    """

    kind: ClassVar[str]  # "format" or "loader", for what people read
    name: ClassVar[str]
    summary: ClassVar[str]
    modules: ClassVar[tuple[str, ...]] = ()  # which its own imports when it is used, and not before
    extra: ClassVar[str] = ""  # of iobench, which installs them

    def __post_init__(self) -> None:
        for spec in declared(type(self)):
            value = getattr(self, spec.name)
            if not spec.takes(value):
                raise InvalidOption(
                    f"{self.name}:{spec.name}={word(value)}: {spec.name} must be {spec.allowed}"
                )

    @property
    def options(self) -> dict[str, Any]:
        """Every option with its value."""
        return {spec.name: getattr(self, spec.name) for spec in declared(type(self))}

    @property
    def variant(self) -> str:
        """The name and the options that differ from their defaults, in one word."""
        changed = [
            f"{spec.name}={word(getattr(self, spec.name))}"
            for spec in declared(type(self))
            if getattr(self, spec.name) != spec.default
        ]
        return self.name + (":" + ",".join(changed) if changed else "")


def declared(cls: type[Options]) -> tuple[Option, ...]:
    """The options of a class in their order; TypeError where a field is no option or of another type."""
    return _declared(typing.cast("Any", cls))  # as hashable as any class, which mypy does not see


@functools.cache  # every word that is read asks for them, and types are evaluated slowly
def _declared(cls: Any) -> tuple[Option, ...]:
    hints = typing.get_type_hints(cls)
    return tuple(_option(spec, hints[spec.name]) for spec in dataclasses.fields(cls))


def _option(spec: dataclasses.Field[Any], hint: Any) -> Option:
    several = typing.get_origin(hint) in (typing.Union, types.UnionType)
    kinds = typing.get_args(hint) if several else (hint,)
    found = [kind for kind in kinds if kind is not type(None)]
    if "help" not in spec.metadata or len(found) != 1 or found[0] not in (bool, int, float, str):
        raise TypeError(
            f"field {spec.name} is not an option() of bool, int, float or str, or one of them | None"
        )
    return Option(spec.name, found[0], type(None) in kinds, spec.default, **spec.metadata)


def build(cls: type[T], options: Mapping[str, Any]) -> T:
    """An object of that class with these options; InvalidOption names what it does not have."""
    known = [spec.name for spec in declared(cls)]
    for key in options:
        if key not in known:
            has = f"has {', '.join(known)}" if known else "has no options"
            raise InvalidOption(f"{cls.kind} {cls.name} has no option {key!r}; it {has}")
    return cls(**options)


def read_word(cls: type[T], variant: str) -> T:
    """The object of that class which a word stands for; InvalidOption says what is wrong with the word."""
    specs = {spec.name: spec for spec in declared(cls)}
    options: dict[str, Any] = {}
    text = variant.partition(":")[2]
    for pair in text.split(",") if text else []:
        key, equals, value = pair.partition("=")
        if not equals:
            raise InvalidOption(f"{variant}: {pair!r} is not OPTION=VALUE")
        if key in options:
            raise InvalidOption(f"{variant}: {key} is given twice")
        options[key] = specs[key].read(value) if key in specs else value
    return build(cls, options)


def word(value: object) -> str:
    """A value as people write it in a word."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)
