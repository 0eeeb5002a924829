"""Directives of the tutorials: `save` writes the file it shows, `run` pastes what its commands print.

Each page has a temporary folder of its own, in which its files lie and its commands run, in their order.
A command that fails, fails the build.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.directives.code import container_wrapper
from sphinx.util.docutils import SphinxDirective

COLUMNS, TIMEOUT_S = 92, 120  # as many columns as a page shows without scrolling
ATTEMPTS = 3
PROGRESS = re.compile(
    r"(writing|decoding|verifying|checking|watching|profiling|race:|final rounds:|round \d+/|after \d+ of)"
)
_folders: dict[str, Path] = {}  # by page


class _InFolder(SphinxDirective):
    """A directive with a body, in the folder of its page."""

    has_content = True

    @property
    def folder(self) -> Path:
        """The page's folder, made when it is first asked for."""
        page = self.env.docname
        if page not in _folders:
            _folders[page] = Path(tempfile.mkdtemp(prefix="iobench-docs-")) / "tutorial"
            _folders[page].mkdir()
        return _folders[page]

    def block(self, text: str, language: str) -> nodes.literal_block:
        """Return text as a block of code."""
        return nodes.literal_block(text, text, language=language)


class Save(_InFolder):
    """Write the body to a file of the page's folder, and show it under the file's name."""

    required_arguments = 1
    option_spec: ClassVar[Any] = {}

    def run(self) -> list[nodes.Node]:
        """Return the file as a captioned block of Python."""
        text = "\n".join(self.content) + "\n"
        (self.folder / self.arguments[0]).write_text(text)
        return [container_wrapper(self, self.block(text, "python"), self.arguments[0])]


class Run(_InFolder):
    """Run each line of the body in the page's folder, and show the lines with what they print.

    Lines of progress are left out: a terminal shows a live view in their place.
    `shows`: words, separated by commas, that the page explains and that must be in the output. A busy machine
    may hide what a measurement should show, so the commands get several attempts.
    """

    option_spec: ClassVar[Any] = {"shows": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        """Return a console block; an error where a command fails, hangs or does not print what it should."""
        words = [word.strip() for word in self.options.get("shows", "").split(",") if word.strip()]
        for _ in range(ATTEMPTS):
            shown = "\n".join(_kept(f"$ {command}\n{self._output(command)}") for command in self.content)
            missing = [word for word in words if word not in shown]
            if not missing:
                return [self.block(shown, "console")]
        raise self.severe(f"the output lacks {', '.join(missing)}, which the page explains:\n{shown}")

    def _output(self, command: str) -> str:
        try:
            ended = subprocess.run(
                ["bash", "-c", command],
                cwd=self.folder,
                env=_environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise self.severe(f"{command!r} took longer than {TIMEOUT_S} s") from None
        if ended.returncode:
            raise self.severe(f"{command!r} ended with {ended.returncode}:\n{ended.stdout}")
        return ended.stdout.rstrip()


def _kept(output: str) -> str:
    return "\n".join(_wrapped(line) for line in output.splitlines() if not PROGRESS.match(line))


def _wrapped(line: str) -> str:
    return line.rstrip() if len(line) <= COLUMNS else textwrap.fill(line, COLUMNS, subsequent_indent="  ")


def _environment() -> dict[str, str]:
    """Return the environment of a reader's terminal: this Python's commands first, and a fixed width."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "COLUMNS": str(COLUMNS), "NO_COLOR": "1", "TERM": "dumb"}


def _remove(app: Sphinx, doctree: nodes.document) -> None:
    if folder := _folders.pop(app.env.docname, None):
        shutil.rmtree(folder.parent)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register both directives."""
    app.add_directive("save", Save)
    app.add_directive("run", Run)
    app.connect("doctree-read", _remove)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
