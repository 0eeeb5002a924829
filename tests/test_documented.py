"""The README names everything that can be typed."""

import dataclasses
import re
from pathlib import Path

import pytest
import typer

from iobench import formats
from iobench.terminal.cli import app

README = (Path(__file__).parent.parent / "README.md").read_text()


def commands(group, above=""):
    """Every command below a group, and below the groups in it, by what has to be typed."""
    for name, command in group.commands.items():
        yield f"{above}{name}", command
        if hasattr(command, "commands"):
            yield from commands(command, f"{above}{name} ")


COMMANDS = dict(commands(typer.main.get_command(app)))
OPTIONS = [
    (name, flag)
    for name, command in COMMANDS.items()
    for parameter in command.params
    if parameter.param_type_name == "option"
    for flag in (*parameter.opts, *parameter.secondary_opts)
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_in_the_readme(command):
    assert f"iobench {command}" in README


@pytest.mark.parametrize(("command", "flag"), OPTIONS)
def test_every_option_is_in_the_readme(command, flag):
    assert re.search(rf"{flag}(?![\w-])", README)


@pytest.mark.parametrize("name", formats.names())
def test_every_format_and_its_options_are_in_the_readme(name):
    for word in (name, *(spec.name for spec in dataclasses.fields(formats.type_of(name)))):
        assert f"`{word}`" in README or f"{name}:{word}=" in README
