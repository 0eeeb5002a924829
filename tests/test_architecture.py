"""The rooms of ARCHITECTURE.md and their imports, lazy ones included."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = (
    *("torch", "tensordict", "h5py", "lmdb", "lz4", "ml_dtypes", "scipy", "altair", "vl_convert", "jinja2"),
    "pyarrow",
)

EVERYWHERE = "base"  # what every room may import


def _rooms():
    """The picture of ARCHITECTURE.md: the rooms that each imports, the lowest ones last."""
    picture = (ROOT / "ARCHITECTURE.md").read_text().partition("```\n")[2].partition("```")[0]
    *above, lowest = picture.splitlines()
    rooms = {line.split()[0]: set(line.split()[1:]) for line in above}
    return rooms | {name: set() for name in lowest.split(", ")}


ROOMS = _rooms()
PRINTING = ("iobench.terminal", "iobench.__main__")
FRONT_DOOR = ("iobench", "iobench.__main__")
PARSING = ("iobench.terminal.cli", "iobench.terminal.commands", "iobench.__main__")


def module_name(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def modules():
    """Every module of ours, parsed, by name."""
    return {module_name(path): ast.parse(path.read_text()) for path in ROOT.glob("iobench/**/*.py")}


def inside(*but):
    """The names of all modules but the front door and those that start so."""
    return [name for name in modules() if not name.startswith(but) and name not in FRONT_DOOR]


@functools.cache
def imports(name):
    """Every module that a module imports, wherever in it; for `from a import b` both a and a.b."""
    found = []
    for node in ast.walk(modules()[name]):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            found += [*(f"{node.module}.{alias.name}" for alias in node.names), node.module or ""]
    return found


def room(name):
    """The folder below iobench, or the module beside the folders."""
    return name.split(".")[1]


def ours(name):
    """The modules of ours that a module imports: the innermost that each statement names."""
    found = {other for other in imports(name) if other in modules()}
    packages = {other for other in found if any(inner.startswith(f"{other}.") for inner in found)}
    return found - packages - {name}


def assert_none(wrong):
    """No module is wrong: `wrong` says what of each."""
    assert {name: what for name, what in wrong.items() if what} == {}


def test_the_rooms_are_the_folders():
    folders = {path.parent.name for path in ROOT.glob("iobench/*/__init__.py")}
    assert folders == set(ROOMS)


def test_every_module_is_looked_at():
    assert len(inside()) > 100
    assert {room(name) for name in inside()} == set(ROOMS)


def test_the_picture_shows_what_each_room_imports_and_it_is_below():
    used = {name: set() for name in ROOMS}
    for name in inside():
        used[room(name)] |= {room(other) for other in imports(name) if other.startswith("iobench.")}
    assert {name: rooms - {name, EVERYWHERE} for name, rooms in used.items()} == ROOMS
    order = list(ROOMS)
    assert all(order.index(one) > order.index(name) for name, rooms in ROOMS.items() for one in rooms)


def test_no_module_imports_the_public_api():
    def through(name):
        used = {other for other in imports(name) if other == "iobench"}
        named = {
            alias.name
            for node in ast.walk(modules()[name])
            if isinstance(node, ast.ImportFrom) and node.module == "iobench"
            for alias in node.names
        }
        return (named - set(ROOMS)) or (used if not named else set())

    assert_none({name: through(name) for name in inside()})


def test_no_import_comes_round_in_a_circle():
    below = {name: ours(name) for name in inside()}
    while leaves := [name for name, uses in below.items() if not uses & below.keys()]:
        for leaf in leaves:
            del below[leaf]
    assert not below


def test_only_the_terminal_prints():
    def printing(name):
        called = [node.func for node in ast.walk(modules()[name]) if isinstance(node, ast.Call)]
        prints = {"print"} & {function.id for function in called if isinstance(function, ast.Name)}
        streams = {"sys.stdout", "sys.stderr"} & {ast.unparse(f).rpartition(".")[0] for f in called}
        return prints | streams | {used.split(".")[0] for used in imports(name)} & {"rich"}

    assert_none({name: printing(name) for name in inside(*PRINTING)})


def test_one_module_alone_talks_to_other_ranks():
    others = [name for name in inside() if name != "iobench.ranks.group"]
    assert_none({n: {used for used in imports(n) if used.startswith("torch.distributed")} for n in others})


def test_only_commands_parse_arguments():
    parsers = {"typer", "click"}
    assert_none({n: {used.split(".")[0] for used in imports(n)} & parsers for n in inside(*PARSING)})


def within(name, folders):
    """The modules in these folders that a module imports."""
    return {other for other in imports(name) if other.startswith(folders)}


def test_formats_of_other_projects_know_only_formats():
    known = ("iobench.base", "iobench.formats", "iobench.contrib.formats")
    theirs = [name for name in inside() if name.startswith(known[-1])]
    assert_none({name: within(name, "iobench.") - within(name, known) for name in theirs})


def test_only_contract_suites_import_test_libraries():
    libraries = ("pytest", "hypothesis", "iobench.testing")
    others = [name for name in modules() if not name.startswith("iobench.testing")]
    assert_none({name: within(name, libraries) for name in others})


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
print("loaded:", *(set(sys.modules) & set({(*HEAVY, "numpy")})))
"""


@pytest.mark.parametrize(
    ("arguments", "loads"),
    [
        ([], ""),
        (["--help"], ""),
        (["--version"], ""),
        (["run", "--help"], " numpy"),
        (["loaders"], " numpy"),
        (["runs", "show", "--help"], " numpy"),
    ],
)
def test_what_answers_at_once_loads_nothing_heavy(arguments, loads):
    command = [sys.executable, "-c", LOADED, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == f"loaded:{loads}"


def test_a_user_s_module_called_formats_is_not_shadowed(tmp_path):
    (tmp_path / "formats.py").write_text("MINE = True")
    code = "import formats, iobench.formats; print(formats.MINE, 'npy' in iobench.formats.names())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.split() == ["True", "True"]


def test_tests_run_outside_of_the_checkout():
    assert not Path.cwd().is_relative_to(ROOT)  # whose `data` would hold what they measure


def test_installing_adds_no_other_package(tmp_path):
    code = "import importlib.util as u; print(u.find_spec('formats'))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.split() == ["None"]
