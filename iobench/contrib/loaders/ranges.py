"""DataLoader over a dataset at an address, whose ranges the client of another project requests.

fsspec's documentation has `cat_file` for a range of a file without a cache; its client of S3 is s3fs. That of
Amazon's connector has S3MapDataset, of whole objects, and for parts of large objects its range-based reader,
which is used without its buffer, because that is for neighboring reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, TypeAlias

from iobench.base.errors import LoaderFailed
from iobench.base.text import reason
from iobench.formats import Addressable, Format
from iobench.loading.loaders import Epochs, Job
from iobench.loading.loaders.dataloader import DataLoaderEpochs, TorchDataLoader
from iobench.objects.client import ObjectStore
from iobench.objects.reader import RemoteFiles
from iobench.objects.url import s3_endpoint, s3_is_public, s3_options, s3_region

Read: TypeAlias = Callable[[str, int, int], bytes]  # of an object at an address, from one byte up to another


class LibraryStore(ObjectStore):
    """Reads ranges by the function of another library, which pins no versions.

    Raises LoaderFailed, with the first line of the library's error.
    """

    def __init__(self, url: str, library: str, read: Read) -> None:
        super().__init__(url)
        self._library, self._read = library, read

    def get(self, name: str, start: int, length: int, etag: str) -> memoryview:
        """Return bytes of an object."""
        address = f"{self.url}/{name}"
        try:
            return self._whole(self._read(address, start, start + length), length)
        except Exception as error:  # noqa: BLE001 - each library has classes of its own
            problem = f"{self._library} could not read the object"
            raise LoaderFailed(problem, "store-failed", address, found=reason(error)) from None


@dataclass(frozen=True)
class LibraryFiles(RemoteFiles):
    """Objects of an artifact that `connect` reads: it returns a new function that reads ranges; picklable."""

    library: str = ""
    connect: Callable[[], Read] | None = None

    def store(self) -> ObjectStore:
        """Return a new client for them."""
        assert self.connect is not None
        return LibraryStore(self.url, self.library, self.connect())


@dataclass(frozen=True)
class LibraryRanges(TorchDataLoader):
    """A DataLoader whose samples are ranges that another library requests: one per field and sample.

    With fetch=batch, iobench joins rows with small gaps, and the library gets 64 ranges at a time.
    """

    on_disk: ClassVar[bool] = False
    ragged: ClassVar[bool] = False

    def reads(self, format: Format) -> bool:
        """Return whether rows of the format are at known places."""
        return not isinstance(format, Addressable)

    def open(self, job: Job) -> Epochs:
        """Build the dataset; each process that reads connects by itself."""
        remote = job.opener.remote
        assert remote is not None  # `on_disk`
        files = LibraryFiles(
            remote.files.url, remote.files.objects, library=self.library, connect=self.connect
        )
        opener = replace(job.opener, remote=replace(remote, files=files))
        return DataLoaderEpochs(self, replace(job, opener=opener))

    @staticmethod
    def connect() -> Read:
        """Return a function that reads ranges."""
        raise NotImplementedError


@dataclass(frozen=True)
class Fsspec(LibraryRanges):
    """A map-style loader over the placements of any format at an address."""

    name: ClassVar[str] = "fsspec"
    summary: ClassVar[str] = "fsspec (s3fs) under a DataLoader: a ranged read per sample of a bucket"
    library: ClassVar[str] = "fsspec"
    modules: ClassVar[tuple[str, ...]] = ("fsspec", "s3fs")
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


@dataclass(frozen=True)
class S3TorchConnector(LibraryRanges):
    """A map-style loader over the placements of any format in S3."""

    name: ClassVar[str] = "s3torchconnector"
    summary: ClassVar[str] = "s3torchconnector under a DataLoader: a ranged read per sample of a bucket"
    library: ClassVar[str] = "s3torchconnector"
    modules: ClassVar[tuple[str, ...]] = ("s3torchconnector",)
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
    from s3torchconnector import S3ClientConfig, S3MapDataset, S3ReaderConstructor

    return S3MapDataset.from_objects(
        [address],
        region=s3_region(),
        endpoint=s3_endpoint(),
        s3client_config=S3ClientConfig(force_path_style=s3_endpoint() is not None, unsigned=s3_is_public()),
        reader_constructor=S3ReaderConstructor.range_based(buffer_size=0),
    )
