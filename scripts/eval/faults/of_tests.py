"""Modules of the tests that faults use, too."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[3] / "tests"


def module_of_tests(name: str) -> Any:
    """Import a module of the tests."""
    sys.path += [str(folder) for folder in (TESTS, TESTS / "faults") if str(folder) not in sys.path]
    return importlib.import_module(name)
