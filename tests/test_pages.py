"""Commands and names in the hand-written pages and the README exist."""

import contextlib
import itertools
import re
import shlex
from pathlib import Path

import pytest
import typer

import iobench
from iobench import formats
from iobench.base.errors import MissingDependency
from iobench.loading import loaders
from iobench.terminal.cli import app

ROOT = Path(__file__).parent.parent
FOLDERS = ("how-to", "explanation", "tutorial")  # pages of lab/ keep the words of their day
PAGES = [
    ROOT / "README.md",
    *(page for name in FOLDERS for page in sorted((ROOT / "docs" / name).glob("*.md"))),
]
LAB = sorted((ROOT / "docs" / "lab").glob("*.md"))
SOURCES = [path.read_text() for path in (ROOT / "iobench").rglob("*.py")]
OTHERS = {  # options of other programs that the pages name
    *("--nproc-per-node", "--nnodes", "--node-rank", "--master-addr", "--master-port"),  # torchrun
    *("--rdzv-backend", "--rdzv-conf", "--local-addr"),
    *(
        "--generate",
        "--head",
        "--node-ip-address",
        "--include-dashboard",
        "--disable-usage-stats",
        "--address",
    ),
}


def commands(group, above=""):
    """Every command by what has to be typed, groups included."""
    for name, command in group.commands.items():
        yield f"{above}{name}", command
        yield from commands(command, f"{above}{name} ") if hasattr(command, "commands") else ()


def flags(command):
    """Every option of a command as it is typed."""
    typed = {flag for one in command.params for flag in (*one.opts, *one.secondary_opts)}
    return {"--help", *(flag for flag in typed if flag.startswith("-"))}


PROGRAM = typer.main.get_command(app)
COMMANDS = dict(commands(PROGRAM))
KNOWN = OTHERS | flags(PROGRAM).union(*map(flags, COMMANDS.values()))


def code(page, *languages):
    """The code blocks of a page in these languages."""
    return re.findall(
        rf"^```(?:{'|'.join(languages)})\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL
    )


def typed(page):
    """Each call of iobench in a page's code blocks, as its words behind `iobench`."""
    for block in code(page, "bash", "console"):
        for line in block.replace("\\\n", " ").splitlines():
            call = re.match(r"(?:\w*\$ )?(?:.*?(?:-m |/|^| ))iobench (?=[a-z-])(.*)", line)
            if call and not line.startswith("#"):
                yield shlex.split(call[1], comments=True)


CALLS = [(page, words) for page in PAGES for words in typed(page)]


@pytest.mark.parametrize(("page", "words"), CALLS, ids=lambda value: getattr(value, "stem", None))
def test_a_call_names_what_there_is(page, words):
    name = " ".join(words[:2]) if " ".join(words[:2]) in COMMANDS else words[0]
    command = PROGRAM if name.startswith("--") else COMMANDS[name]
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= flags(command)
    for flag, word in itertools.pairwise(words):
        if flag in ("--format", "--loader") and word != "all" and ".py:" not in word:
            with contextlib.suppress(MissingDependency):
                (formats if flag == "--format" else loaders).parse(word)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_options_in_the_text_are_options_of_some_command(page):
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    named = {
        flag
        for span in re.findall(r"`[^`]+`", prose)
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", span)
    }
    own = {"--plan", "--busy", "--fuzz", "--part", "--only", "--evaluate"}  # of scripts
    assert named <= KNOWN | own


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_names_of_the_package_are_public(page):
    text = "\n".join(code(page, "python"))
    named = set(re.findall(r"\biobench\.([A-Za-z]\w*)\(", text))
    imported = {*", ".join(re.findall(r"from iobench import ([\w, ]+)", text)).split(", ")} - {""}
    assert named | imported <= set(iobench.__all__)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_kinds_are_kinds_of_the_code(page):
    for kind in re.findall(r"`\[([a-z-]+)\]`", page.read_text()):
        assert any(f'"{kind}"' in text for text in SOURCES)


@pytest.mark.parametrize("page", [page for page in LAB if page.stem != "index"], ids=lambda page: page.stem)
def test_a_measurement_has_its_date_machine_and_command(page):
    for row in ("date", "machine", "command"):
        assert re.search(rf"^\| {row} \| \S", page.read_text(), re.MULTILINE)


@pytest.mark.parametrize("page", [*PAGES, *LAB], ids=lambda page: page.stem)
def test_no_line_is_a_comment_by_accident(page):
    assert not re.search(r"^\s*%", page.read_text(), re.MULTILINE)  # MyST leaves such lines out


@pytest.mark.parametrize("name", ["how-to", "explanation", "lab"])
def test_an_index_lists_every_page(name):
    folder = ROOT / "docs" / name
    index = (folder / "index.md").read_text()
    for page in folder.glob("*.md"):
        assert page.stem == "index" or f"({page.name})" in index
