"""Imports of the contract suites: they need only the code under test, and nothing else imports them."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import iobench

PACKAGE = Path(iobench.__file__).parent
TESTED = tuple(f"iobench.{room}" for room in ("testing", "formats", "dataset", "loading", "base"))


def imported(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


SUITES = sorted((PACKAGE / "testing").glob("*.py"))
OTHERS = sorted(file for file in PACKAGE.rglob("*.py") if file not in SUITES)


@pytest.mark.parametrize("file", SUITES, ids=lambda file: file.stem)
def test_suites_import_only_the_code_under_test(file):
    ours = {name for name in imported(file) if name.startswith("iobench")}
    assert all(name.startswith(TESTED) for name in ours)


def test_no_other_module_imports_the_suites_or_their_libraries():
    for file in OTHERS:
        names = {".".join(name.split(".")[:2]) for name in imported(file)}
        assert not names & {"iobench.testing", "pytest", "hypothesis"}, file


def test_importing_formats_loads_no_test_library():
    code = "import sys, iobench.formats; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"pytest", "hypothesis", "iobench.testing"}
