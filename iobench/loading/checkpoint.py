"""Loaders' states as bytes, as a checkpoint holds them: plain values, arrays and tensors, and no code."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import numpy as np

from iobench.base.errors import LoaderFailed
from iobench.formats import NUMPY_DTYPES

ZIP = b"PK"  # how a file of torch.save begins, and no JSON
ARRAYS: list[Any] = [  # what pickles of NumPy's arrays and scalars name
    *(np.zeros(1).__reduce__()[0], np.int64(0).__reduce__()[0], np.ndarray, np.dtype),
    *(type(np.dtype(name)) for name in NUMPY_DTYPES),
]


def encode(state: Any) -> bytes:
    """Return a state as JSON if that keeps it as it is, else as `torch.save` writes it.

    Raises LoaderFailed (`not-plain-state`) for a state that `decode` would not load.
    """
    try:
        text = json.dumps(state)
        if json.loads(text) == state:
            return text.encode()
    except (TypeError, ValueError):
        pass
    import torch

    file = io.BytesIO()
    try:
        torch.save(state, file)
        decode(file.getvalue())
    except Exception as error:  # objects of any library may refuse to be pickled in their own way
        named = re.search(r"GLOBAL (\S+)", str(error))
        raise LoaderFailed(
            "its state cannot be stored",
            kind="not-plain-state",
            expected="plain values, arrays and tensors",
            found=named[1] if named else type(error).__name__,
        ) from error
    return file.getvalue()


def decode(stored: bytes) -> Any:
    """Return a state; nothing but plain values, arrays and tensors is ever built from the bytes."""
    if not stored.startswith(ZIP):
        return json.loads(stored)
    import torch

    with torch.serialization.safe_globals(ARRAYS):
        return torch.load(io.BytesIO(stored), weights_only=True)
