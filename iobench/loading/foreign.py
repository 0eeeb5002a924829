"""Somebody's loader and its batches, as far as they can be told without running anything of theirs."""

from __future__ import annotations

import sys
from typing import Any

MOST_LEAVES = 10_000  # of a batch that are counted


def is_dataloader(loader: Any) -> bool:
    """Whether it is torch's DataLoader; without torch loaded, nothing is."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and isinstance(loader, data.DataLoader)


def length_of(loader: Any) -> int | None:
    """How many batches it has; None of an endless one, a generator, or one that does not say."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def tensors_of(batch: Any) -> list[Any]:
    """The tensors and arrays in a batch, however it nests them."""
    found: list[Any] = []
    rest = [batch]
    while rest and len(found) < MOST_LEAVES:
        item = rest.pop()
        if hasattr(item, "shape") and hasattr(item, "nbytes"):
            found.append(item)
        elif isinstance(item, dict):
            rest.extend(reversed(item.values()))
        elif isinstance(item, (list, tuple)):
            rest.extend(reversed(item))
        elif hasattr(item, "items") and hasattr(item, "keys"):  # a TensorDict, or one's own mapping
            rest.extend(value for _, value in item.items())
    return found


def samples_in(tensors: list[Any]) -> int:
    """How many samples a batch of these tensors has: the first axis of the first; else how many there are."""
    return int(tensors[0].shape[0]) if tensors and tensors[0].shape else len(tensors)
