"""Options of formats and loaders, and the one-word notation for a set of them (a variant).

Formats and loaders are frozen dataclasses under `Options`; their fields, declared with `option()`, are the
options. `hdf5:compression=gzip,chunk_bytes=4096` denotes such an object: the name, and the options that
differ from their defaults. Limits of the numbers that a user gives are here, too.
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

from iobench.base.errors import InvalidOption, InvalidSettings
from iobench.base.text import suggestion

T = TypeVar("T", bound="Options")

_TEXT = re.compile(r"[A-Za-z0-9._=+*-]+")  # a variant names a folder, and commas separate its options
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
    """Declare a dataclass field as an option.

    Parameters
    ----------
    default : bool, int, float, str or None
        Default value. The field's annotation is one of these types, or one of them ``| None``.
    help : str
        One line for `--help` and the reference.
    choices : tuple, optional
        Allowed values.
    minimum, maximum : float, optional
        Inclusive limits of a number.
    unit : str, optional
        Unit for display: "bytes", "s".
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
        """Description of the allowed values: "an integer from 0 to 64"."""
        if self.choices is not None:
            return "one of " + ", ".join(map(word, self.choices))
        names = {bool: "yes or no", int: "an integer", float: "a number"}
        kind = names.get(self.type, "letters, digits and . _ = + * -")
        if self.minimum is not None and self.maximum is not None:
            kind += f" from {word(self.minimum)} to {word(self.maximum)}"
        elif self.minimum is not None:
            kind += f" ≥ {word(self.minimum)}"
        elif self.maximum is not None:
            kind += f" ≤ {word(self.maximum)}"
        return kind + (f" in {self.unit}" if self.unit else "") + (", or none" if self.or_none else "")

    def takes(self, value: Any) -> bool:
        """Return True if the value has the option's type and is within its limits."""
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
        """Convert text to the option's type; return the text unchanged if it cannot be converted."""
        if text == "none" and self.or_none:
            return None
        try:
            return _BOOLS[text] if self.type is bool else self.type(text)
        except (ValueError, KeyError):
            return text


@dataclass(frozen=True)
class Options:
    """Base class of formats and loaders: a name, and options that a variant denotes.

    Attributes
    ----------
    kind : str
        "format" or "loader", for messages.
    name, summary : str
        Name on the command line, and one line of description.
    modules : tuple of str
        Modules that the class imports only when it is used. If iobench has an extra of the class's name, that
        installs them.

    Raises
    ------
    InvalidOption
        Kind ``invalid-value``: an option was given a value that it does not take.
    """

    kind: ClassVar[str]
    name: ClassVar[str]
    summary: ClassVar[str]
    modules: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for spec in declared(type(self)):
            value = getattr(self, spec.name)
            if not spec.takes(value):
                raise InvalidOption(
                    f"invalid value of option {self.name}:{spec.name}",
                    kind="invalid-value",
                    expected=spec.allowed,
                    found=word(value) or "no value",
                )

    @property
    def option_modules(self) -> dict[str, str]:
        """Modules that only these options need, each with the extra of iobench that installs it."""
        return {}

    @property
    def options(self) -> dict[str, Any]:
        """Every option with its value."""
        return {spec.name: getattr(self, spec.name) for spec in declared(type(self))}

    @property
    def changed_options(self) -> dict[str, Any]:
        """The options that differ from their defaults, with their values."""
        defaults = {spec.name: spec.default for spec in declared(type(self))}
        return {name: value for name, value in self.options.items() if value != defaults[name]}

    @property
    def variant(self) -> str:
        """The name and the options that differ from their defaults, in one word."""
        changed = [f"{name}={word(value)}" for name, value in self.changed_options.items()]
        return self.name + (":" + ",".join(changed) if changed else "")


def declared(cls: type[Options]) -> tuple[Option, ...]:
    """Return the options of a class in order; TypeError if a field is not an `option()` of a known type."""
    return _declared(typing.cast("Any", cls))  # hashable as any class is, which mypy does not see


@functools.cache  # called for every variant that is parsed, and evaluating type hints is slow
def _declared(cls: Any) -> tuple[Option, ...]:
    hints = typing.get_type_hints(cls)
    return tuple(_option(spec, hints[spec.name]) for spec in dataclasses.fields(cls))


def _option(spec: dataclasses.Field[Any], hint: Any) -> Option:
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    members = typing.get_args(hint) if is_union else (hint,)
    value_types = [member for member in members if member is not type(None)]
    if "help" not in spec.metadata or len(value_types) != 1 or value_types[0] not in (bool, int, float, str):
        raise TypeError(
            f"field {spec.name} is not an option() of bool, int, float or str, or one of them | None"
        )
    return Option(spec.name, value_types[0], type(None) in members, spec.default, **spec.metadata)


def build(cls: type[T], options: Mapping[str, Any]) -> T:
    """Return an object of the class with these options; InvalidOption for an unknown one or its value."""
    known = [spec.name for spec in declared(cls)]
    for key in options:
        if key not in known:
            raise InvalidOption(
                f"{cls.kind} {cls.name} has no option {key!r}",
                kind="unknown-option",
                hint=f"{suggestion(key, known)}it has {', '.join(known)}" if known else "it has no options",
            )
    return cls(**options)


def read_word(cls: type[T], variant: str) -> T:
    """Return the object of the class that a variant denotes; InvalidOption where it denotes none."""
    specs = {spec.name: spec for spec in declared(cls)}
    options: dict[str, Any] = {}
    text = variant.partition(":")[2]
    for pair in text.split(",") if text else []:
        key, equals, value = pair.partition("=")
        if not equals:
            raise InvalidOption(
                variant,
                kind="malformed-option",
                expected="OPTION=VALUE",
                found=repr(pair),
                hint=f"repeat --{cls.kind} to give several {cls.kind}s",
            )
        if key in options:
            raise InvalidOption(f"{variant}: option {key} is given twice", kind="repeated-option")
        options[key] = specs[key].read(value) if key in specs else value
    return build(cls, options)


def word(value: object) -> str:
    """Return a value as it is written in a variant."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


# minimum and maximum
LIMITS = {
    "batch_size": (1, 1 << 40),
    "batch_tokens": (1, 1 << 40),
    "block_bytes": (1, 1 << 40),
    "window_bytes": (1, 1 << 40),
    "seed": (0, (1 << 63) - 1),  # torch takes no more
    "epoch": (0, (1 << 63) - 1),
    "threads": (1, 1024),
    "max_batches": (1, 1 << 40),
    "object_cache": (0, 1 << 60),
}


def check_number(name: str, value: object, least: int, most: int) -> None:
    """Raise InvalidSettings, naming the setting, unless `value` is an int from `least` to `most`."""
    if type(value) is not int:
        raise InvalidSettings(name, kind="not-a-number", expected="an integer", found=repr(value))
    if not least <= value <= most:
        limit = f"at least {least}" if value < least else f"at most {most}"
        raise InvalidSettings(name, kind="out-of-range", expected=limit, found=value)


def check_setting(name: str, value: object) -> None:
    """Raise InvalidSettings unless a number that a user gives is an int within its LIMITS."""
    check_number(name, value, *LIMITS[name])
