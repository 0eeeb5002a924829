"""Options of the default loaders as options of a command, generated from their declarations."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from iobench.base.errors import (
    InvalidSettings,
)
from iobench.formats import Option, declared
from iobench.loading import loaders
from iobench.loading.loaders import DEFAULT_LOADERS


def declared_options() -> dict[str, dict[str, Option]]:
    """Return the options of the default loaders: option name → loader name → declaration.

    Other loaders that declare the same option take it as well; options that only they have are set in
    the loader's word, like `spdl:sink=3`.
    """
    options: dict[str, dict[str, Option]] = {}
    for name in DEFAULT_LOADERS:
        for spec in declared(loaders.class_of(name)):
            options.setdefault(spec.name, {})[name] = spec
    return options


def with_loader_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Replace a command's parameter `loader_options` by one option for each that a default loader has.

    Numbers and words take lists, `--num-workers 0,2,4`; booleans become a pair of flags.
    """
    own = inspect.signature(command)
    # a loader's option with the name of one of the run's own can only be set in the loader's word
    known = {name: specs for name, specs in declared_options().items() if name not in own.parameters}

    def run(**values: Any) -> Any:
        chosen = {name: values.pop(name) for name in known}
        given = {name: _values(name, known[name], text) for name, text in chosen.items() if text is not None}
        return command(**values, loader_options=given)

    run.__doc__, run.__name__ = command.__doc__, command.__name__
    parameters = [p for p in own.parameters.values() if p.name != "loader_options"]
    parameters += [_parameter(name, specs) for name, specs in known.items()]
    hints = inspect.get_annotations(command, eval_str=True)
    run.__annotations__ = {p.name: hints.get(p.name, p.annotation) for p in parameters}
    run.__signature__ = own.replace(  # type: ignore[attr-defined]
        parameters=[p.replace(annotation=run.__annotations__[p.name]) for p in parameters]
    )
    return run


def _parameter(name: str, specs: dict[str, Option]) -> inspect.Parameter:
    flag, spec = f"--{name.replace('_', '-')}", next(iter(specs.values()))
    help = f"{', '.join(specs)}: {spec.help}."
    if spec.type is bool:
        option = typer.Option(f"{flag}/--no-{flag[2:]}", help=help, show_default=False)
        annotation: Any = Annotated[bool | None, option]
    else:
        annotation = Annotated[str | None, typer.Option(flag, help=help, show_default=False)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _values(name: str, specs: dict[str, Option], text: str | bool) -> tuple[Any, ...]:
    """Parse the values of an option; InvalidSettings for one that no loader takes."""
    spec = next(iter(specs.values()))
    values = (text,) if isinstance(text, bool) else tuple(spec.read(part) for part in text.split(","))
    for value in values:
        if not any(one.takes(value) for one in specs.values()):
            flag = f"--{name.replace('_', '-')}"
            raise InvalidSettings(flag, kind="invalid-value", expected=spec.allowed, found=repr(value))
    return values
