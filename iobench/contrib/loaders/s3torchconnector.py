"""torch's DataLoader over Amazon's connector, a ranged read for each sample.

Its documentation has S3MapDataset, of whole objects, and for parts of large objects its range-based reader.
That is used without its buffer, which is for neighboring reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from iobench.contrib.loaders._ranges import LibraryRanges, Read
from iobench.objects.url import s3_endpoint, s3_is_public, s3_region


@dataclass(frozen=True)
class S3TorchConnector(LibraryRanges):
    """A map-style loader over the placements of any format in S3."""

    name: ClassVar[str] = "s3torchconnector"
    summary: ClassVar[str] = "s3torchconnector under a DataLoader: a ranged read per sample of a bucket"
    library: ClassVar[str] = "s3torchconnector"
    modules: ClassVar[tuple[str, ...]] = ("s3torchconnector",)
    extra: ClassVar[str] = "s3torchconnector"
    schemes: ClassVar[tuple[str, ...]] = ("s3",)
    unpinned: ClassVar[tuple[str, ...]] = schemes

    @staticmethod
    def connect() -> Read:
        """Return a function that reads ranges by readers of a dataset for each object."""
        objects = lru_cache(_dataset)

        def read(address: str, start: int, end: int) -> bytes:
            reader = objects(address)[0]
            reader.seek(start)
            return bytes(reader.read(end - start))

        return read


def _dataset(address: str) -> Any:
    """Return a dataset of one object."""
    from s3torchconnector import S3ClientConfig, S3MapDataset, S3ReaderConstructor

    return S3MapDataset.from_objects(
        [address],
        region=s3_region(),
        endpoint=s3_endpoint(),
        s3client_config=S3ClientConfig(force_path_style=s3_endpoint() is not None, unsigned=s3_is_public()),
        reader_constructor=S3ReaderConstructor.range_based(buffer_size=0),
    )
