"""Hide the modules of all packages but iobench's core dependencies and theirs.

Python imports this file at its start where this folder is in PYTHONPATH, in each process that it starts, too.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


def _core() -> set[str]:
    """Return the names of the packages that an installation of iobench without extras has."""
    core, waiting = set[str](), ["iobench"]
    while waiting:
        name = _normal(waiting.pop())
        if name not in core:
            core.add(name)
            waiting += _requirements(name)
    return core


def _requirements(name: str) -> list[str]:
    try:
        lines = metadata.requires(name) or []
    except metadata.PackageNotFoundError:  # for another platform
        return []
    return [re.split(r"[^\w.-]", line)[0] for line in lines if "extra ==" not in line]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


_CORE = _core()
HIDDEN = {
    module
    for module, packages in metadata.packages_distributions().items()
    if _CORE.isdisjoint(map(_normal, packages))
}


class _CoreFinder(PathFinder):
    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return None for a hidden module."""
        return None if fullname.partition(".")[0] in HIDDEN else super().find_spec(fullname, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = _CoreFinder
