"""Options of a command, generated from the fields of a dataclass; those of a run, with loaders' own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import typer

from iobench.base.errors import InvalidSettings
from iobench.base.options import Option
from iobench.base.options import declared as loader_declared
from iobench.base.units import bytes_word, parse_elements
from iobench.bench.options import CommandOption, RunOptions, declared, flag_of
from iobench.loading import loaders
from iobench.loading.loaders import DEFAULT_LOADERS
from iobench.terminal.commands._options import listed_numbers, parsed, words_of

T = TypeVar("T")
Command = Callable[..., Any]
More = Callable[[Sequence[str]], Sequence[inspect.Parameter]]


def with_options(cls: type, more: More = lambda taken: ()) -> Callable[[Command], Command]:
    """Return a decorator that replaces a command's parameter `typed` by one option for each declared field.

    `typed` receives the value of each, by parameter, for `made_of`. `more` returns further parameters of
    this kind; it is given the names that are taken.
    """

    def decorated(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True)
        generated = [_parameter(spec) for spec in declared(cls)]
        generated += more([*(one.name for one in generated), *own.parameters])
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

    return decorated


def made_of(cls: type[T], typed: Mapping[str, Any], **others: Any) -> T:
    """Return the dataclass with the values of the generated options; InvalidSettings names the option."""
    return cls(**{spec.name: _value(spec, typed[spec.parameter]) for spec in declared(cls)}, **others)


def _parameter(spec: CommandOption) -> inspect.Parameter:
    default, annotation = _typed(spec)
    paired = spec.type is bool and spec.default is not False
    flags = f"{spec.flag}/--no-{spec.flag[2:]}" if paired else spec.flag
    option = typer.Option(flags, help=spec.help, show_default=default not in (None, ""))
    return inspect.Parameter(
        spec.parameter,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[annotation, option],
    )


def _typed(spec: CommandOption) -> tuple[Any, Any]:
    """Return the default and the type of what is typed."""
    if spec.repeatable:
        return None, list[str] | None
    if spec.is_tuple:
        default = spec.default if isinstance(spec.default, tuple) else (spec.default,)
        return [",".join(_word(spec, value) for value in default)], list[str]
    kind = str if spec.in_bytes else spec.type
    return spec.default, kind | None if spec.or_none else kind


def _word(spec: CommandOption, value: Any) -> str:
    if spec.in_bytes:
        return bytes_word(value) if value else "0"
    return f"{value:g}" if spec.type is float else str(value)


def _value(spec: CommandOption, typed: Any) -> Any:
    if spec.repeatable:
        return tuple(typed or spec.default)
    if not spec.is_tuple:
        return _bytes(spec, typed) if spec.in_bytes and typed is not None else typed
    words = ",".join(typed)  # of an option that is typed several times all values count
    if spec.type is str:
        return words_of(words)
    if spec.in_bytes:
        return tuple(_bytes(spec, part) for part in words_of(words))
    return listed_numbers(spec.flag, words, spec.type)


def _bytes(spec: CommandOption, word: str) -> int:
    return 0 if word == "0" else parsed(spec.flag, parse_elements, word)


OPTIONS = {spec.parameter: spec for spec in declared(RunOptions)}


def parse(typed: Mapping[str, Any]) -> RunOptions:
    """Parse the values of the generated options; InvalidSettings names the option."""
    others = {name: value for name, value in typed.items() if name not in OPTIONS}
    return made_of(RunOptions, typed, loader_options=parse_loader_options(others))


def parse_loader_options(typed: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Parse the options that were typed; InvalidSettings for a value that no loader takes."""
    specs = _of_loaders()
    return {
        name: _loader_values(name, specs[name], one) for name, one in typed.items() if one not in (None, [])
    }


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


def _loader_parameters(taken: Collection[str]) -> list[inspect.Parameter]:
    """Return a parameter for each option, except those whose names are taken: they are set in loaders' words.

    Numbers and words take lists, `--num-workers 0,2,4`; booleans become a pair of flags.
    """
    return [_loader_parameter(name, specs) for name, specs in _of_loaders().items() if name not in taken]


def _loader_parameter(name: str, specs: dict[str, Option]) -> inspect.Parameter:
    flag, spec = flag_of(name), next(iter(specs.values()))
    help = f"{', '.join(specs)}: {spec.help}."
    if spec.type is bool:
        option = typer.Option(f"{flag}/--no-{flag[2:]}", help=help)
        annotation: Any = Annotated[bool | None, option]
    else:
        annotation = Annotated[list[str] | None, typer.Option(flag, help=help)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _loader_values(name: str, specs: dict[str, Option], typed: list[str] | bool) -> tuple[Any, ...]:
    """Parse the values of an option; InvalidSettings for one that no loader takes."""
    spec = next(iter(specs.values()))
    parts = () if isinstance(typed, bool) else ",".join(typed).split(",")
    values = tuple(map(spec.read, parts)) or (typed,)
    for value in values:
        if not any(one.takes(value) for one in specs.values()):
            found = repr(value)
            raise InvalidSettings(flag_of(name), kind="invalid-value", expected=spec.allowed, found=found)
    return values


with_run_options = with_options(RunOptions, _loader_parameters)
