"""The help of every command: what is declared, without typer's layout, which changes with its version."""

import pytest
import typer
from test_pages import commands
from text_file import TextFile

from iobench.terminal.cli import app


def lines_of(words, command):
    """Yield the lines of a command's help."""
    yield from (words, "", command.help or "", "")
    for parameter in command.params:
        names = " / ".join(filter(None, (", ".join(parameter.opts), ", ".join(parameter.secondary_opts))))
        has_default = getattr(parameter, "show_default", False) and parameter.default not in (None, False)
        shown = f"  [default: {parameter.default}]" if has_default else ""
        yield f"{names}: {getattr(parameter, 'help', '')}{shown}"
    yield from (f"{name}: {one.help}" for name, one in getattr(command, "commands", {}).items())


PROGRAM = typer.main.get_command(app)
ALL = {f"iobench {words}".strip(): one for words, one in {"": PROGRAM, **dict(commands(PROGRAM))}.items()}


@pytest.mark.parametrize("words", ALL, ids=lambda words: words.replace(" ", "-"))
def test_help(words, snapshot):
    assert "\n".join(lines_of(words, ALL[words])) + "\n" == snapshot(extension_class=TextFile)
