"""JPEG images that are decoded whole and then made small, and the same decoded at a smaller scale.

libjpeg decodes to a half, a quarter or an eighth of each side in a fraction of the time; Pillow asks it to in
``Image.draft()``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

from torch.utils.data import Dataset

MIN_SCALE = 2  # of each side, from which on libjpeg can decode less

Size = tuple[int, int]


def resized_to(dataset: Any, row: Any) -> Size | None:
    """Return the size that a sample's JPEG images are resized to; None where decoding smaller is no help.

    One sample is taken, and Pillow's calls are watched. An image that is cropped before it is resized has
    another size by then than the one it was decoded to.
    """
    decoded, resized = _sizes(dataset, row)
    wanted = {to for size, to in resized if size in decoded}
    if len(decoded) != 1 or len(wanted) != 1:
        return None
    (width, height), to = decoded.pop(), wanted.pop()
    enough = min(width // max(1, to[0]), height // max(1, to[1])) >= MIN_SCALE
    return to if enough else None


def _sizes(dataset: Any, row: Any) -> tuple[set[Size], set[tuple[Size, Size]]]:
    """Return the sizes of the JPEG images in a sample, and those of images before and after resizing."""
    decoded, resized = set[Size](), set[tuple[Size, Size]]()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        values, name = frame.f_locals, frame.f_code.co_name
        if event not in ("call", "return") or not frame.f_code.co_filename.endswith(("Image.py", "File.py")):
            return
        picture: Any = values.get("self")
        if event == "return" and name == "load" and getattr(picture, "format", "") == "JPEG":
            decoded.add(picture.size)
        elif event == "call" and name == "resize" and not values.get("box"):
            resized.add((picture.size, tuple(values["size"])))  # it may be decoded only now

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        dataset[row]
    finally:
        sys.setprofile(before)
    return decoded, resized


class PatchedDataset(Dataset[Any]):
    """A dataset whose samples are made while a part of Pillow is replaced."""

    def __init__(self, dataset: Any, replaced: Callable[[], AbstractContextManager[None]]) -> None:
        self._dataset, self._replaced = dataset, replaced

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, row: Any) -> Any:
        with self._replaced():
            return self._dataset[row]

    def __getitems__(self, rows: list[Any]) -> Any:
        whole = getattr(self._dataset, "__getitems__", None)
        with self._replaced():
            return [self._dataset[row] for row in rows] if whole is None else whole(rows)


@contextmanager
def drafted(size: Size) -> Iterator[None]:
    """Let ``Image.open`` return images that will be decoded at the smallest scale not below a size."""
    from PIL import Image

    whole = Image.open

    def opened(*arguments: Any, **options: Any) -> Any:
        image = whole(*arguments, **options)
        image.draft(None, size)
        return image

    Image.open = opened
    try:
        yield
    finally:
        Image.open = whole
