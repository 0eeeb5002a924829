"""Run command lines of iobench, and Python code, given as JSON on stdin; print the failure of each, or null.

Each works, or ends with one line that says what to install.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import pkgutil
import sys

import iobench
from eval.faults.children import REFUSED, failure_of, run_forked
from eval.faults.cli_runs import run_cli

TIMEOUT_S = 400  # a study measures for two minutes on two busy cores


def main() -> None:
    """Run one line after the other, each in a child of its own."""
    for module in pkgutil.walk_packages(iobench.__path__, "iobench."):  # once, before the forks
        if not module.name.startswith("iobench.testing"):
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)
    for line in sys.stdin:
        asked = json.loads(line)
        work = (exec, asked, {}) if isinstance(asked, str) else (_run, asked)
        result = run_forked(functools.partial(*work), timeout_s=TIMEOUT_S)
        problem = failure_of(result)
        if result.code == REFUSED and not problem and not _says_what_to_install(result.output):
            problem = result.output
        print(json.dumps(problem), flush=True)


def _run(words: list[str]) -> None:
    result = run_cli(*words)
    last = result.stderr.rstrip("\n").rpartition("\n")[2].removeprefix("iobench: ")
    assert result.problem is None, result.problem
    assert result.code == 0 or _says_what_to_install(last), f"exit {result.code}: {last}"


def _says_what_to_install(error: str) -> bool:
    return error.startswith("error[missing-dependency]: ") and "pip install 'iobench[" in error


main()
