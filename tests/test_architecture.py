"""Who may know whom: shared/DESIGN.md's rooms, read from the source."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PRODUCT = [*ROOT.glob("iobench/**/*.py")]
HEAVY = ("torch", "tensordict", "h5py", "lmdb", "lz4", "scipy", "altair", "vl_convert", "jinja2", "pyarrow")


def module_name(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): ast.parse(path.read_text()) for path in PRODUCT}
COMMANDS = tuple(name for name in MODULES if name.startswith("iobench.terminal.commands"))
FACES = (
    "iobench.terminal.cli",
    "iobench.terminal.display",
    "iobench.terminal.live",
    "iobench.terminal.watch",
    *COMMANDS,
)


def imports(nodes):
    """The full names that import statements bring in; for `from a import b` both a and a.b."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
            yield node.module


def every_import(name):
    return set(imports(ast.walk(MODULES[name])))


def imports_of_ours_at_load(name):
    """What importing a module imports of ours, without what only type checkers or functions import."""
    found = set(imports(MODULES[name].body)) & MODULES.keys()
    return found - {name, name.partition(".")[0]}


def within(names, packages):
    return {name for name in names if name.split(".")[0] in packages}


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("iobench.formats")])
def test_formats_know_storage_only(name):
    assert not within(every_import(name), ("typer", "rich"))
    ours = within(every_import(name), ("iobench",)) - {"iobench"}
    assert all(other.startswith("iobench.formats") for other in ours)


@pytest.mark.parametrize(
    "name", [name for name in MODULES if name not in ("iobench", "iobench.__main__", *FACES)]
)
def test_nothing_below_the_faces_knows_them(name):
    assert not every_import(name) & set(FACES)


TABLES = ("iobench.terminal.tables", "iobench.diagnose.tables")


@pytest.mark.parametrize("name", [n for n in MODULES if n not in (*FACES, *TABLES)])
def test_only_the_faces_know_the_terminal(name):
    assert not within(every_import(name), ("typer", "rich"))


def test_no_module_imports_itself_by_a_detour():
    below = {name: imports_of_ours_at_load(name) for name in MODULES}
    while leaves := [name for name, uses in below.items() if not uses & below.keys()]:
        for leaf in leaves:
            del below[leaf]
    assert not below


@pytest.mark.parametrize("name", [name for name in MODULES if name not in FACES])
def test_only_the_faces_print(name):
    called = [node.func for node in ast.walk(MODULES[name]) if isinstance(node, ast.Call)]
    assert "print" not in [function.id for function in called if isinstance(function, ast.Name)]
    assert not {"sys.stdout", "sys.stderr"} & {ast.unparse(f).rpartition(".")[0] for f in called}


LOADED = f"""
import sys
sys.argv = ["iobench", *sys.argv[1:]]
import iobench
if len(sys.argv) > 1:
    from iobench.terminal.cli import main
    try:
        main()
    except SystemExit as end:
        assert not end.code
print("loaded:", *(set(sys.modules) & set({HEAVY})))
"""


@pytest.mark.parametrize(
    "arguments",
    [[], ["--help"], ["run", "--help"], ["report", "--help"], ["runs", "show", "--help"], ["--version"]],
)
def test_what_answers_at_once_loads_nothing_heavy(arguments):
    command = [sys.executable, "-c", LOADED, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "loaded:"
