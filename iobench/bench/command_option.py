"""Options of commands as dataclass fields: their declaration, and checks of their values."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from dataclasses import dataclass
from typing import Any

from iobench.base.errors import InvalidSettings
from iobench.loading.number_limits import check_number

DEVICE_HELP = "Target device: auto, cpu, cuda, cuda:1, …"


def command_option(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    limits: tuple[int, int] | None = None,
    in_bytes: bool = False,
    repeatable: bool = False,
    parameter: str | None = None,
) -> Any:
    """Declare a dataclass field as an option of a command.

    Parameters
    ----------
    default : bool, int, float, str, None or tuple
        Default value. The field's annotation is one of these types, one of them ``| None``, or a tuple of
        one of them, or either, which is typed as a list with commas.
    help : str
        One line for `--help` and the reference.
    choices : tuple of str
        Allowed values; empty for any.
    limits : tuple of int, optional
        Minimum and maximum.
    in_bytes : bool
        The values are typed as sizes such as `1MiB`, and the option's name ends in `size`, not `bytes`.
    repeatable : bool
        The option is typed once for each value, because a value may contain commas.
    parameter : str, optional
        The option's name on the command line, as a Python name, if it is not the field's.
    """
    shape = {"in_bytes": in_bytes, "repeatable": repeatable, "named": parameter}
    return dataclasses.field(
        default=default, metadata={"help": help, "choices": choices, "limits": limits, **shape}
    )


@dataclass(frozen=True)
class CommandOption:
    """One declared option: its name, the type of its values, and how it is typed."""

    name: str
    type: type
    is_tuple: bool
    or_none: bool
    default: Any
    help: str
    choices: tuple[str, ...]
    limits: tuple[int, int] | None
    in_bytes: bool
    repeatable: bool
    named: str | None

    @property
    def parameter(self) -> str:
        """The option's name on the command line, as a Python name."""
        return self.named or (self.name.replace("_bytes", "_size") if self.in_bytes else self.name)

    @property
    def flag(self) -> str:
        """The option as it is typed."""
        return flag_of(self.parameter)


def flag_of(name: str) -> str:
    """Return an option as it is typed."""
    return f"--{name.replace('_', '-')}"


def check_above_zero(**options: float | None) -> None:
    """Raise InvalidSettings for an option that is not a finite number above 0."""
    for name, value in options.items():
        if value is not None and not 0 < value < math.inf:
            expected = "a number above 0"
            raise InvalidSettings(flag_of(name), kind="out-of-range", expected=expected, found=f"{value:g}")


def declared(cls: type) -> tuple[CommandOption, ...]:
    """Return the options that a dataclass declares with `command_option`, in order."""
    hints = typing.get_type_hints(cls)
    return tuple(_option(spec, hints[spec.name]) for spec in dataclasses.fields(cls) if spec.metadata)


def _option(spec: dataclasses.Field[Any], hint: Any) -> CommandOption:
    members = typing.get_args(hint) if typing.get_origin(hint) is types.UnionType else (hint,)
    listed = [one for one in members if typing.get_origin(one) is tuple]
    value_type = typing.get_args(listed[0])[0] if listed else members[0]
    return CommandOption(
        spec.name, value_type, bool(listed), type(None) in members, spec.default, **spec.metadata
    )


def check_declared(options: Any) -> None:
    """Raise InvalidSettings if a value is not among its option's choices, or outside its limits."""
    for spec in declared(type(options)):
        value = getattr(options, spec.name)
        for one in value if isinstance(value, tuple) else (value,):
            if one is None and spec.or_none:
                continue
            if spec.choices and one not in spec.choices:
                expected = " or ".join(spec.choices)
                raise InvalidSettings(spec.flag, kind="unknown-choice", expected=expected, found=repr(one))
            if spec.limits:
                check_number(spec.flag, one, *spec.limits)
