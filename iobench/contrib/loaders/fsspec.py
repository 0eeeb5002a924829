"""torch's DataLoader over fsspec, a ranged read for each sample: the usual way to read a bucket from Python.

fsspec's documentation has `cat_file` for a range of a file without a cache. Its client of S3 is s3fs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from iobench.contrib.loaders._ranges import LibraryRanges, Read
from iobench.objects.url import s3_options


@dataclass(frozen=True)
class Fsspec(LibraryRanges):
    """A map-style loader over the placements of any format at an address."""

    name: ClassVar[str] = "fsspec"
    summary: ClassVar[str] = "fsspec (s3fs) under a DataLoader: a ranged read per sample of a bucket"
    library: ClassVar[str] = "fsspec"
    modules: ClassVar[tuple[str, ...]] = ("fsspec", "s3fs")
    extra: ClassVar[str] = "fsspec"
    schemes: ClassVar[tuple[str, ...]] = ("http", "https", "s3")
    unpinned: ClassVar[tuple[str, ...]] = schemes

    @staticmethod
    def connect() -> Read:
        """Return a function that reads ranges by the file system of an address."""
        from fsspec.core import url_to_fs

        s3 = s3_options()

        def read(address: str, start: int, end: int) -> bytes:
            options = s3 if address.startswith("s3://") else {}
            system, path = url_to_fs(address, **options)  # fsspec keeps one for each set of options
            return bytes(system.cat_file(path, start=start, end=end))

        return read
