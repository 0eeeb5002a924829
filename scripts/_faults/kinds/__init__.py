"""The kinds of faults, one module each."""

import importlib
import pkgutil


def load() -> None:
    """Import every module beside this one, each of which declares its kinds."""
    for found in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{found.name}")
