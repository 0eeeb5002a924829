"""Check that a DataLoader's workers can be spawned: its dataset is pickled, and the script runs again."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

from iobench.base.finding import Finding
from iobench.base.text import reason
from iobench.base.units import bytes_text

MOST_BYTES = 256 << 20  # of a pickled dataset; each worker receives all of it


def spawn_problem(loader: Any) -> Finding | None:
    """Return why workers of a DataLoader cannot be spawned or come from a fork server; None if they can.

    The dataset and its functions are pickled up to 256 MiB, and none of the bytes are stored. Tensors count
    as nothing: workers share their memory.
    """
    main: Any = sys.modules["__main__"]
    if (problem := _script_problem(main)) is not None:
        return problem
    try:
        _SizePickler(main).dump((loader.dataset, loader.collate_fn, loader.worker_init_fn))
    except _TooLarge:
        return Finding(
            "dataset-too-large",
            f"each worker would receive more than {bytes_text(MOST_BYTES)} of its dataset",
            values={"limit_bytes": MOST_BYTES},
        )
    except Exception as error:  # noqa: BLE001 - a user's dataset may raise anything when it is pickled
        return Finding(
            "cannot-pickle",
            f"it cannot be pickled: {reason(error)}",
            values={"error": type(error).__name__, "reason": reason(error)},
        )
    return None


class _TooLarge(Exception):
    """More pickled bytes than any worker should receive."""


class _SizePickler(pickle.Pickler):
    """Pickler that counts bytes and discards them; arrays are not even copied."""

    def __init__(self, main: Any) -> None:
        self._size, self._main = 0, main
        super().__init__(self, protocol=5, buffer_callback=self._count)

    def write(self, data: bytes) -> int:
        """Count the pickled bytes."""
        self._grow(len(data))
        return len(data)

    def reducer_override(self, obj: Any) -> Any:
        """Skip tensors; raise PicklingError for what no other process could import."""
        if isinstance(obj, torch.Tensor):
            return int, ()
        importable = hasattr(self._main, "__file__") or not isinstance(obj, (type, FunctionType))
        if not importable and obj.__module__ == self._main.__name__:
            raise pickle.PicklingError(f"{obj.__qualname__} is in no file that another process could import")
        return NotImplemented

    def _count(self, buffer: pickle.PickleBuffer) -> None:
        self._grow(buffer.raw().nbytes)

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > MOST_BYTES:
            raise _TooLarge


def _script_problem(main: Any) -> Finding | None:
    """Return why the main script cannot run again in each worker, as it does in spawned ones."""
    file = Path(getattr(main, "__file__", None) or "")
    if not file.is_file() or "__name__" in file.read_text(errors="replace"):
        return None
    return Finding(
        "script-without-guard",
        f"each worker would run {file.name} again",
        hint='put `if __name__ == "__main__":` around its main part',
        values={"script": file.name},
    )
