"""Artifacts opened, and data written, by a format's own library in a process that knows nothing of ours."""

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest


def python_with(module):
    """This Python, or what IOBENCH_PYTHON_<MODULE> names; a skip where the library is in neither."""
    variable = f"IOBENCH_PYTHON_{module.upper().replace('.', '_')}"
    if variable in os.environ:
        return os.environ[variable]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed; {variable} may name a Python that has it")
    return sys.executable


def run(module, code, *arguments):
    """Run code with the library, with `sys.argv[1:]` as arguments, in a process apart."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python_with(module), "-c", code, *map(str, arguments)],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def loaded(path):
    """The arrays that a process saved."""
    with np.load(path) as arrays:
        return dict(arrays)
