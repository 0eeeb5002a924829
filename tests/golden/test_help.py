"""The help of every command, word by word. `./scripts/test tests/golden --snapshot-update` writes it anew."""

import pytest
import typer
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from iobench.terminal.cli import app


class TextFile(SingleFileSnapshotExtension):
    """One text file for each command."""

    _write_mode = WriteMode.TEXT
    file_extension = "txt"


def commands(group, above=()):
    """Every command below a group as the words that are typed."""
    for name, command in group.commands.items():
        yield (*above, name)
        if hasattr(command, "commands"):
            yield from commands(command, (*above, name))


@pytest.mark.parametrize("words", [(), *commands(typer.main.get_command(app))], ids=lambda words: "-".join(("iobench", *words)))
def test_help(words, inside, snapshot, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert inside(*words, "--help").stdout == snapshot(extension_class=TextFile)
