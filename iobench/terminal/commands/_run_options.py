"""Options of a run as options of a command, generated from the fields of RunOptions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from iobench.base.units import bytes_word, parse_elements
from iobench.bench.options import RunOptions
from iobench.bench.run_option import RunOption, declared
from iobench.terminal.commands import _loader_options
from iobench.terminal.commands._options import listed_numbers, parsed, words_of

OPTIONS = {spec.parameter: spec for spec in declared(RunOptions)}


def with_run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Replace a command's parameter `typed` by one option for each field of RunOptions.

    The options of the default loaders follow, as `loader_options` is a field, too. `typed` receives the
    value of each, by parameter, for `parse`.
    """
    own = inspect.signature(command, eval_str=True)
    generated = [_parameter(spec) for spec in OPTIONS.values()]
    generated += _loader_options.parameters(taken={*OPTIONS, *own.parameters})
    names = [one.name for one in generated]

    def run(**values: Any) -> Any:
        typed = {name: values.pop(name) for name in names}
        return command(**values, typed=typed)

    parameters = [
        one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for given in own.parameters.values()
        for one in (generated if given.name == "typed" else [given])
    ]
    run.__doc__, run.__name__ = command.__doc__, command.__name__
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def parse(typed: Mapping[str, Any]) -> RunOptions:
    """Parse the values of the generated options; InvalidSettings names the option."""
    chosen = {spec.name: _value(spec, typed[name]) for name, spec in OPTIONS.items()}
    others = {name: value for name, value in typed.items() if name not in OPTIONS}
    return RunOptions(**chosen, loader_options=_loader_options.parse(others))


def _parameter(spec: RunOption) -> inspect.Parameter:
    default, annotation = _typed(spec)
    paired = spec.type is bool and spec.default is not False
    flags = f"{spec.flag}/--no-{spec.flag[2:]}" if paired else spec.flag
    option = typer.Option(flags, help=spec.help, show_default=default is not None)
    return inspect.Parameter(
        spec.parameter,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[annotation, option],
    )


def _typed(spec: RunOption) -> tuple[Any, Any]:
    """Return the default and the type of what is typed."""
    if spec.repeatable:
        return None, list[str] | None
    if spec.is_tuple:
        return ",".join(_word(spec, value) for value in spec.default), str
    return spec.default, spec.type | None if spec.or_none else spec.type


def _word(spec: RunOption, value: Any) -> str:
    if spec.in_bytes:
        return bytes_word(value) if value else "0"
    return f"{value:g}" if spec.type is float else str(value)


def _value(spec: RunOption, typed: Any) -> Any:
    if not spec.is_tuple:
        return typed
    if spec.repeatable:
        return tuple(typed or spec.default)
    if spec.type is str:
        return words_of(typed)
    if spec.in_bytes:
        return tuple(
            0 if part == "0" else parsed(spec.flag, parse_elements, part) for part in words_of(typed)
        )
    return listed_numbers(spec.flag, typed, spec.type)
