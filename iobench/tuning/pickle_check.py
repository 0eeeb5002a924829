"""Whether workers of a loader can be spawned: these are sent its dataset, and run the script anew."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

from iobench.base.text import reason
from iobench.base.units import bytes_text

MOST_BYTES = 256 << 20  # of a pickled dataset; each worker is sent all of it


def spawn_problem(loader: Any) -> str | None:
    """Why workers of a DataLoader cannot be spawned, or come from a fork server; None where they can.

    Its dataset and functions are pickled, as far as that takes no more than 256 MiB and without keeping
    any of it. Tensors count for nothing: workers share their memory.
    """
    main: Any = sys.modules["__main__"]
    if (problem := _script(main)) is not None:
        return problem
    try:
        _Trying(main).dump((loader.dataset, loader.collate_fn, loader.worker_init_fn))
    except _TooMuch:
        return f"each worker would be sent more than {bytes_text(MOST_BYTES)} of its dataset"
    except Exception as error:  # noqa: BLE001 - whatever somebody's dataset says to being pickled
        return f"it cannot be pickled: {reason(error)}"
    return None


class _TooMuch(Exception):
    """More bytes than anybody should send."""


class _Trying(pickle.Pickler):
    """Pickles and forgets it; arrays are not even copied."""

    def __init__(self, main: Any) -> None:
        self._size, self._main = 0, main
        super().__init__(self, protocol=5, buffer_callback=self._count)

    def write(self, data: bytes) -> int:
        """Take what was pickled, for its size."""
        self._grow(len(data))
        return len(data)

    def reducer_override(self, obj: Any) -> Any:
        """Nothing of a tensor; PicklingError for what no other process could import."""
        if isinstance(obj, torch.Tensor):
            return int, ()
        importable = hasattr(self._main, "__file__") or not isinstance(obj, (type, FunctionType))
        if not importable and obj.__module__ == self._main.__name__:
            raise pickle.PicklingError(f"{obj.__qualname__} is of no file that another process could import")
        return NotImplemented

    def _count(self, buffer: pickle.PickleBuffer) -> None:
        self._grow(buffer.raw().nbytes)

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > MOST_BYTES:
            raise _TooMuch


def _script(main: Any) -> str | None:
    """Why the script that runs cannot be begun anew in each worker, as spawned ones do."""
    file = Path(getattr(main, "__file__", None) or "")
    if not file.is_file() or "__name__" in file.read_text(errors="replace"):
        return None
    return f'each worker would run {file.name} again, which has no `if __name__ == "__main__":`'
