"""The kinds of faults, by module."""

import importlib
import pkgutil


def load() -> None:
    """Import every module of this package, which registers its kinds."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
