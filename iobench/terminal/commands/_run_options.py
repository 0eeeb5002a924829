"""Options of a run as options of a command, generated from declarations: RunOptions, and default loaders."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Annotated, Any

import typer

from iobench.base.errors import InvalidSettings
from iobench.base.options import Option
from iobench.base.options import declared as loader_declared
from iobench.bench.options import RunOptions, declared, flag_of
from iobench.loading import loaders
from iobench.loading.loaders import DEFAULT_LOADERS
from iobench.terminal.commands._declared_options import made_of, with_options

OPTIONS = {spec.parameter: spec for spec in declared(RunOptions)}


def parse(typed: Mapping[str, Any]) -> RunOptions:
    """Parse the values of the generated options; InvalidSettings names the option."""
    others = {name: value for name, value in typed.items() if name not in OPTIONS}
    return made_of(RunOptions, typed, loader_options=parse_loader_options(others))


def parse_loader_options(typed: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Parse the options that were typed; InvalidSettings for a value that no loader takes."""
    specs = _of_loaders()
    return {name: _values(name, specs[name], one) for name, one in typed.items() if one not in (None, [])}


def _of_loaders() -> dict[str, dict[str, Option]]:
    """Return the options of the default loaders: option name → loader name → declaration.

    Other loaders that declare the same option take it as well; options that only they have are set in
    the loader's word, like `spdl:sink=3`.
    """
    options: dict[str, dict[str, Option]] = {}
    for name in DEFAULT_LOADERS:
        for spec in loader_declared(loaders.class_of(name)):
            options.setdefault(spec.name, {})[name] = spec
    return options


def _parameters(taken: Collection[str]) -> list[inspect.Parameter]:
    """Return a parameter for each option, except those whose names are taken: they are set in loaders' words.

    Numbers and words take lists, `--num-workers 0,2,4`; booleans become a pair of flags.
    """
    return [_parameter(name, specs) for name, specs in _of_loaders().items() if name not in taken]


def _parameter(name: str, specs: dict[str, Option]) -> inspect.Parameter:
    flag, spec = flag_of(name), next(iter(specs.values()))
    help = f"{', '.join(specs)}: {spec.help}."
    if spec.type is bool:
        option = typer.Option(f"{flag}/--no-{flag[2:]}", help=help)
        annotation: Any = Annotated[bool | None, option]
    else:
        annotation = Annotated[list[str] | None, typer.Option(flag, help=help)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _values(name: str, specs: dict[str, Option], typed: list[str] | bool) -> tuple[Any, ...]:
    """Parse the values of an option; InvalidSettings for one that no loader takes."""
    spec = next(iter(specs.values()))
    parts = () if isinstance(typed, bool) else ",".join(typed).split(",")
    values = tuple(map(spec.read, parts)) or (typed,)
    for value in values:
        if not any(one.takes(value) for one in specs.values()):
            found = repr(value)
            raise InvalidSettings(flag_of(name), kind="invalid-value", expected=spec.allowed, found=found)
    return values


with_run_options = with_options(RunOptions, _parameters)
