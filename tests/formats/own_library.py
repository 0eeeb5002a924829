"""Run a format's own library, to read artifacts or write data, in a process without iobench."""

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest


def python_with(module):
    """Return the Python of IOBENCH_PYTHON_<MODULE>, or this one; skip the test if it lacks the library."""
    variable = f"IOBENCH_PYTHON_{module.upper().replace('.', '_')}"
    if variable in os.environ:
        return os.environ[variable]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed; {variable} may name a Python that has it")
    return sys.executable


def run(module, code, *arguments):
    """Run code in a process that has the library, with `arguments` as `sys.argv[1:]`; return its output."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python_with(module), "-c", code, *map(str, arguments)],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def loaded(path):
    """Return the arrays that a process saved."""
    with np.load(path) as arrays:
        return dict(arrays)
