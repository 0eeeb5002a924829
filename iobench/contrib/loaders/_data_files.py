"""Files of an artifact, for loaders that read them with a library of their own."""

from __future__ import annotations

from iobench.formats import Reader


def data_files(reader: Reader) -> list[str]:
    """Return the files that hold the samples of an artifact, in order and without duplicates."""
    placed = [path for one in reader.placement().values() for path in one.files]
    encoded = [path for one in reader.blocks() for path in one.files]
    return [str(path) for path in dict.fromkeys(placed + encoded)]
