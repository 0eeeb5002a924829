"""The help of every command, word by word."""

import re

import pytest
import typer
from text_file import TextFile

from iobench.terminal.cli import app


def commands(group, above=()):
    """Yield every command below a group as the words that are typed."""
    for name, command in group.commands.items():
        yield (*above, name)
        if hasattr(command, "commands"):
            yield from commands(command, (*above, name))


ALL = [(), *commands(typer.main.get_command(app))]


@pytest.mark.parametrize("words", ALL, ids=lambda words: "-".join(("iobench", *words)))
def test_help(words, inside, snapshot, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    shown = inside(*words, "--help").stdout
    # click names the program as pytest was started, which differs under xdist
    assert re.sub(r"^Usage: .*?iobench", "Usage: iobench", shown) == snapshot(extension_class=TextFile)
