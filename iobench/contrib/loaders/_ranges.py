"""DataLoader over a dataset at an address, whose ranges the client of another project requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

from iobench.base.errors import LoaderFailed
from iobench.base.text import reason
from iobench.formats import Addressable, Format
from iobench.loading.loaders import Epochs, Job
from iobench.loading.loaders.dataloader import DataLoaderEpochs, TorchDataLoader
from iobench.objects.client import ObjectStore
from iobench.objects.reader import RemoteFiles

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
            raise LoaderFailed(
                f"{self._library} could not read the object",
                kind="store-failed",
                path=address,
                found=reason(error),
            ) from None


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
    isolated: ClassVar[bool] = True
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
