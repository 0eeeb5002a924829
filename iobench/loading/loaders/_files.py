"""Which files a loader that reads them by itself is to be given."""

from __future__ import annotations

from iobench.formats import Reader


def files_behind(reader: Reader) -> list[str]:
    """The files that hold the samples of an artifact, in their order, each once."""
    placed = [path for one in reader.placement().values() for path in one.files]
    encoded = [path for one in reader.blocks() for path in one.files]
    return [str(path) for path in dict.fromkeys(placed + encoded)]
