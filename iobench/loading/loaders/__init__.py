"""Loaders: one module beside this one = one loader = one word on the command line.

A module whose name starts with an underscore is none. A function of somebody's own, `train.py:make_loader`,
is a loader, too: `_target.py`. Other packages add loaders by the entry points
`iobench.loaders`, as they do formats; `iobench.testing` tests what they promise.
"""

from __future__ import annotations

from iobench.base.errors import (
    InvalidSettings,
)
from iobench.formats import Registry
from iobench.loading.loaders import _target
from iobench.loading.loaders._loader import Asked, CopyingLoader, Epochs, Job, Loader, failure
from iobench.loading.loaders._target import samples_of

__all__ = [
    "DEFAULT_LOADERS",
    "Asked",
    "CopyingLoader",
    "Epochs",
    "Job",
    "Loader",
    "class_of",
    "describe",
    "failure",
    "get",
    "names",
    "parse",
    "samples_of",
    "type_of",
]

# what a run measures with where nothing else is asked for: the same whatever happens to be installed
DEFAULT_LOADERS = ("dataloader", "native", "stream")

# The base is abstract, and mypy takes a type[T] for one that can be called.
LOADERS: Registry[Loader] = Registry(Loader, __name__, "iobench.loaders", InvalidSettings)  # type: ignore[type-abstract]

names = LOADERS.names
type_of = LOADERS.type_of
class_of = LOADERS.class_of
get = LOADERS.get
describe = LOADERS.describe


def parse(word: str) -> Loader:
    """The loader that a word stands for: a known one, or a function of somebody's own."""
    if word.endswith(".py"):
        raise InvalidSettings(
            f"loader {word!r} names a file without a function in it, as {word}:make_loader does"
        )
    return _target.parse(word) if _target.is_target(word, names()) else LOADERS.parse(word)
