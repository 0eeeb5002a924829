"""The command line's reference, from the Typer app: a page for each command, an entry for each option."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from iobench_reference.page import code, directive, page, paragraphs, prose, section, sentence

_DEFAULT = re.compile(r"\s*\[default: (?P<default>.+)\]\s*$")


def pages() -> dict[str, str]:
    """Return each page's text by its path."""
    root = _root()
    found = dict(commands(root))
    written = {f"cli/{_slug(name)}.md": _command_page(name, command) for name, command in found.items()}
    return {"cli/index.md": _index(root, found), **written}


def commands(group: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every command below a group, nested ones included, by the words that are typed."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{above}{name} ")
        else:
            yield f"{above}{name}", command


def _root() -> Any:
    import typer

    from iobench.terminal.cli import app

    return typer.main.get_command(app)


def _index(root: Any, found: dict[str, Any]) -> str:
    listed = "\n".join(
        f"- {{doc}}`{name} <{_slug(name)}>`: {prose(_first(command.help))}" for name, command in found.items()
    )
    contents = directive("toctree", "", "\n".join([":hidden:", "", *map(_slug, found)]))
    return page(
        "Command line",
        "Results go to stdout, everything else to stderr. Exit codes: 0 success, 1 failure with one line on "
        "stderr, also with `--json`, which then prints nothing, 2 wrong usage, 130 after Ctrl-C. "
        "`iobench COMMAND --help` prints a command's options.",
        listed,
        section("Options of `iobench` itself", _entries("iobench", root)),
        contents,
        label="reference-cli",
    )


def _command_page(name: str, command: Any) -> str:
    program = f"iobench {name}"
    return page(
        program,
        f"```console\n{_usage(program, command)}\n```",
        paragraphs(command.help),
        _entries(program, command),
        label=f"command-{_slug(name)}",
    )


def _usage(program: str, command: Any) -> str:
    arguments = [_argument(one) for one in command.params if one.param_type_name == "argument"]
    options = ["[OPTIONS]"] if any(one.param_type_name == "option" for one in command.params) else []
    return " ".join(["$", program, *options, *arguments])


def _argument(parameter: Any) -> str:
    name = _placeholder(parameter) + ("..." if parameter.nargs != 1 else "")
    return name if parameter.required else f"[{name}]"


def _entries(program: str, command: Any) -> str:
    shown = [one for one in command.params if not one.hidden]
    return "\n\n".join([directive("program", program), *map(_entry, shown)])


def _entry(parameter: Any) -> str:
    text, default = _help_and_default(parameter)
    notes = [f"Default: {default}."] if default is not None else []
    notes += ["Repeatable."] if getattr(parameter, "multiple", False) and "repeatable" not in text else []
    notes += ["Required."] if parameter.required else []
    return directive("option", _typed(parameter), " ".join([prose(sentence(text)), *notes]))


def _typed(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return _argument(parameter)
    flags = [*parameter.opts, *parameter.secondary_opts]
    value = "" if parameter.is_flag else f" {_placeholder(parameter)}"
    return ", ".join(f"{flag}{value}" for flag in flags)


def _placeholder(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _help_and_default(parameter: Any) -> tuple[str, str | None]:
    """Return the help without the default that some of them end in, and the default as Markdown."""
    text = parameter.help or ""
    if told := _DEFAULT.search(text):
        return text[: told.start()], prose(told["default"])
    if parameter.required or parameter.default in (None, "", (), []):
        return text, None
    if getattr(parameter, "is_flag", False):
        flags = parameter.opts if parameter.default else parameter.secondary_opts
        return text, code(flags[0]) if flags else None
    return text, code(parameter.default)


def without_default(help: str) -> str:
    """Return a help text without the default that it ends in."""
    return _DEFAULT.sub("", help)


def _slug(name: str) -> str:
    return name.replace(" ", "-")


def _first(text: str | None) -> str:
    return (text or "").strip().partition("\n\n")[0]
