"""Loaders: what a loader implements, and the loaders dataloader and native.

StreamLoader is in `iobench.stream`, loaders of other projects are in `iobench.contrib.loaders`. Every loader,
also one of another package, is found by its entry point in the group `iobench.loaders`; `iobench.testing`
tests their contract. A user's own function, `train.py:make_loader`, is a loader, too (`_user_loader.py`).
"""

from __future__ import annotations

from iobench.base.errors import InvalidSettings
from iobench.base.registry import Registry
from iobench.loading.loaders import _user_loader
from iobench.loading.loaders._loader import (
    MAX_PREFETCH,
    MAX_WORKERS,
    CopyingLoader,
    EpochRequest,
    Epochs,
    Job,
    Loader,
    WorkerLoader,
    failure,
    fetch_option,
)
from iobench.loading.target import TARGET_PATTERN

__all__ = [
    "DEFAULT_LOADERS",
    "MAX_PREFETCH",
    "MAX_WORKERS",
    "CopyingLoader",
    "EpochRequest",
    "Epochs",
    "Job",
    "Loader",
    "WorkerLoader",
    "class_of",
    "describe",
    "failure",
    "fetch_option",
    "get",
    "is_target",
    "names",
    "parse",
    "type_of",
]

# loaders of a run that names none: the same on every machine, whatever is installed
DEFAULT_LOADERS = ("dataloader", "native", "stream")

USUAL_WORDS = {
    "dataloader": "pytorch torch",
    "ffcv": "beton",
    "huggingface": "hf datasets arrow",
    "mosaic": "mds mosaicml streaming",
    "stream": "streamloader iobench",
    "tfdata": "tensorflow tf tfrecord",
    "webdataset": "wds tar",
}
# The base is abstract, and mypy takes a type[T] for one that can be called.
LOADERS: Registry[Loader] = Registry(Loader, "iobench.loaders", InvalidSettings, USUAL_WORDS)  # type: ignore[type-abstract]

names = LOADERS.names
type_of = LOADERS.type_of
class_of = LOADERS.class_of
get = LOADERS.get
describe = LOADERS.describe


def is_target(word: str) -> bool:
    """Return whether a word names a user's function and not a registered loader."""
    return word.partition(":")[0] not in names() and TARGET_PATTERN.fullmatch(word) is not None


def parse(word: str) -> Loader:
    """Return the loader that a word names: a registered one with its options, or a user's function."""
    if word.endswith(".py"):
        raise InvalidSettings(
            f"loader {word!r} names a file without a function",
            kind="no-function",
            hint=f"name the function, too: {word}:make_loader",
        )
    return _user_loader.parse(word) if is_target(word) else LOADERS.parse(word)
