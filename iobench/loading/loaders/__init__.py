"""Loaders: each module in this folder defines one loader, with the module's name on the command line.

Modules whose name starts with an underscore define none. A user's own function, `train.py:make_loader`, is a
loader, too (`_user_loader.py`). Other packages add loaders through entry points in the group
`iobench.loaders`; `iobench.testing` tests their contract.
"""

from __future__ import annotations

from iobench.base.errors import InvalidSettings
from iobench.formats import Registry
from iobench.loading.loaders import _user_loader
from iobench.loading.loaders._loader import CopyingLoader, EpochRequest, Epochs, Job, Loader, failure
from iobench.loading.loaders._user_loader import samples_of

__all__ = [
    "DEFAULT_LOADERS",
    "CopyingLoader",
    "EpochRequest",
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

# loaders of a run that names none: the same on every machine, whatever is installed
DEFAULT_LOADERS = ("dataloader", "native", "stream")

# The base is abstract, and mypy takes a type[T] for one that can be called.
LOADERS: Registry[Loader] = Registry(Loader, __name__, "iobench.loaders", InvalidSettings)  # type: ignore[type-abstract]

names = LOADERS.names
type_of = LOADERS.type_of
class_of = LOADERS.class_of
get = LOADERS.get
describe = LOADERS.describe


def parse(word: str) -> Loader:
    """Return the loader that a word names: a registered one with its options, or a user's function."""
    if word.endswith(".py"):
        raise InvalidSettings(
            f"loader {word!r} names a file without a function",
            kind="no-function",
            hint=f"name the function, too: {word}:make_loader",
        )
    return _user_loader.parse(word) if _user_loader.is_target(word, names()) else LOADERS.parse(word)
