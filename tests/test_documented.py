"""The README names everything that can be typed."""

import dataclasses
import re
from pathlib import Path

import pytest
import typer

from iobench import formats
from iobench.formats import declared
from iobench.loading import loaders
from iobench.loading.loaders import DEFAULT_LOADERS
from iobench.results.metrics import METRICS
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


@pytest.mark.parametrize("columns", [80, 100])
def test_help_is_not_cut_off(columns, monkeypatch, inside):
    monkeypatch.setenv("COLUMNS", str(columns))
    for arguments in ([], ["runs"]):
        shown = inside(*arguments, "--help").stdout
        assert "Commands:" in shown
        assert "..." not in shown.partition("Commands:")[2]
        assert "…" not in shown


def test_completion_can_be_installed_and_is_in_the_readme(inside):
    assert "--install-completion" in inside("--help").stdout
    assert "iobench --install-completion" in README


def test_the_first_screen_of_the_readme_fits_100_columns():
    assert max(map(len, README.splitlines()[:60])) <= 100


@pytest.mark.parametrize("name", formats.names())
def test_every_format_and_its_options_are_in_the_readme(name):
    for word in (name, *(spec.name for spec in dataclasses.fields(formats.type_of(name)))):
        assert f"`{word}`" in README or f"{name}:{word}=" in README


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_every_metric_is_in_the_readme_as_it_is_declared(metric):
    assert f"| {metric.title} | `{metric.name}` | {metric.meaning} |" in README


@pytest.mark.parametrize("name", loaders.names())
def test_every_loader_and_its_options_are_in_the_readme(name):
    assert f"`{name}`" in README
    for spec in declared(loaders.class_of(name)):
        plain = f"`--{spec.name.replace('_', '-')}`" in README
        assert plain if name in DEFAULT_LOADERS else plain or f"`{spec.name}`" in README


def test_the_architecture_names_every_room():
    text = (Path(__file__).parent.parent / "ARCHITECTURE.md").read_text()
    for folder in (Path(__file__).parent.parent / "iobench").iterdir():
        if (folder / "__init__.py").is_file():
            assert f"`{folder.name}/`" in text
