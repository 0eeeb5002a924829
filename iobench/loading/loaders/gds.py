"""KvikIO: from the disk into the GPU's memory, by GPUDirect Storage where it is active.

As its documentation advises: each file is opened once, reads are asked for by `pread` and waited for later,
and pieces are split among the library's own threads. Rows that follow each other in a file are one read.
Elsewhere KvikIO reads by POSIX calls through the host; which of the two it was stands in the record.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from iobench.base.errors import (
    InvalidSettings,
    LoaderFailed,
)
from iobench.base.text import reason
from iobench.formats import Placement, Rows, option
from iobench.loading.loaders._loader import Epochs, Job, Loader

if TYPE_CHECKING:
    import torch

    from iobench.loading.host_to_device import HostBatch

Self = TypeVar("Self", bound="Gds")
Positions: TypeAlias = npt.NDArray[np.int64]
DIRECT, POSIX = "gpudirect", "posix"


@dataclass(frozen=True)
class Gds(Loader):
    """Rows that lie in files as they are in memory, read straight into tensors of the device."""

    name: ClassVar[str] = "gds"
    summary: ClassVar[str] = (
        "KvikIO: from disk into the GPU's memory, by GPUDirect Storage where it is active"
    )
    library: ClassVar[str] = "kvikio-cu12"
    modules: ClassVar[tuple[str, ...]] = ("kvikio",)
    extra: ClassVar[str] = "gds"
    isolated: ClassVar[bool] = True

    mode: str | None = option(
        None,
        "gpudirect, or posix: through the host; by default what KvikIO finds",
        choices=(None, DIRECT, POSIX),
    )

    def on(self: Self, device: str) -> Self:
        """The same with its mode decided; InvalidSettings where that is not to be had."""
        found = DIRECT if not device.startswith("cpu") and _direct() else POSIX
        if self.mode == DIRECT != found:
            raise InvalidSettings(
                f"{self.variant}: GPUDirect Storage is not active here for device {device}; it needs an "
                "NVIDIA GPU, nvidia-fs and libcufile, and a file system that they know: see gdscheck"
            )
        return replace(self, mode=self.mode or found)

    def open(self, job: Job) -> Epochs:
        """Files that KvikIO has open."""
        return GdsEpochs(self, job)


class GdsEpochs(Epochs):
    """One batch is read while the one before is with the consumer."""

    def __init__(self, loader: Gds, job: Job) -> None:
        super().__init__(loader, job)
        import torch

        from iobench.host.device import device_of

        kvikio = _kvikio()
        if loader.mode == POSIX:
            kvikio.defaults.set("compat_mode", kvikio.CompatMode.ON)
        self._room = device_of(torch.device(job.device))
        self._room.use()
        with job.opener() as reader:
            self._places: Mapping[str, Placement] = dict(reader.placement())
        lacks = [field.name for field in job.opener.schema.fields if field.name not in self._places]
        if lacks:
            raise LoaderFailed(
                f"gds over {job.opener.path}: {', '.join(lacks)} of {job.opener.format.variant} does not "
                "lie in files as it is in memory; use a format that stores it so, as npy does"
            )
        paths = {path for place in self._places.values() for path in place.files}
        self._files: dict[Path, Any] = {path: kvikio.CuFile(path, "r") for path in sorted(paths)}

    @property
    def ahead(self) -> bool:
        """KvikIO's threads read the next batch."""
        return True

    def _epoch(self, asked: Sequence[Rows]) -> Iterator[HostBatch]:
        before: _Batch | None = None
        try:
            for rows in asked:
                # memory that torch gives out again may still be read: KvikIO writes beside all streams
                self._room.synchronize()
                batch = _Batch(self._room.torch)
                before, done = batch, before
                for field in self.opener.schema.fields:
                    self._ask(batch, field.name, (field.shape, field.dtype), rows)
                if done is not None:
                    yield done.whole()
            if before is not None:
                yield before.whole()
                before = None
        finally:
            if before is not None:
                before.wait()  # nobody may write into memory that is let go

    def _ask(self, batch: _Batch, name: str, spec: tuple[tuple[int, ...], str], rows: Rows) -> None:
        place, (shape, dtype) = self._places[name], spec
        index = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else np.asarray(rows, np.int64)
        memory = batch.memory(name, (len(index), *shape), dtype)
        row_bytes = memory.numel() // max(1, len(index))
        for start, stop, file, offset in runs(*place.locate(index), row_bytes):
            piece = memory[start * row_bytes : stop * row_bytes]
            batch.ask(self._files[place.files[file]], piece, offset)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
        self._files, self._places = {}, {}


class _Batch:
    """Tensors of a batch, and the reads that fill them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._tensors: dict[str, Any] = {}
        self._reads: list[tuple[Any, int]] = []  # futures, and how many bytes they are to bring

    def memory(self, name: str, shape: tuple[int, ...], dtype: str) -> Any:
        """The bytes of a new tensor."""
        import torch

        tensor = torch.empty(shape, dtype=getattr(torch, dtype), device=self._device)
        self._tensors[name] = tensor
        return tensor.view(-1).view(torch.uint8)

    def ask(self, file: Any, memory: Any, offset: int) -> None:
        """Have a piece of a file read into memory of the device, or of the host."""
        where = memory.numpy() if memory.device.type == "cpu" else memory
        self._reads.append((file.pread(where, memory.numel(), offset), memory.numel()))

    def wait(self) -> int:
        """Wait for all reads; how many bytes are missing."""
        missing = 0
        while self._reads:
            future, wanted = self._reads.pop()
            missing += wanted - future.get()
        return missing

    def whole(self) -> dict[str, Any]:
        """The tensors, once they are filled; LoaderFailed where a file is too short."""
        if missing := self.wait():
            raise LoaderFailed(f"gds: {missing} bytes of a batch were not there to be read")
        return self._tensors


def runs(file: Positions, offset: Positions, row_bytes: int) -> Iterator[tuple[int, int, int, int]]:
    """(first, end, file, offset) of each stretch of rows that follow each other in one file."""
    if not len(file) or not row_bytes:
        return
    breaks = np.flatnonzero((np.diff(file) != 0) | (np.diff(offset) != row_bytes)) + 1
    edges = [0, *breaks.tolist(), len(file)]
    for start, stop in itertools.pairwise(edges):
        yield start, stop, int(file[start]), int(offset[start])


def _direct() -> bool:
    """Whether GPUDirect Storage is active: KvikIO would use cuFile, and cuFile has its driver."""
    kvikio = _kvikio()
    if kvikio.defaults.is_compat_mode_preferred():
        return False
    return bool(kvikio.cufile_driver.get("is_gds_available"))


def _kvikio() -> Any:
    """The library; InvalidSettings, in one line, where it is there and cannot be loaded."""
    try:
        import kvikio
        import kvikio.cufile_driver
        import kvikio.defaults
    except (ImportError, OSError) as error:
        raise InvalidSettings(
            f"loader gds: KvikIO cannot be loaded without NVIDIA's driver and libraries ({reason(error)}); "
            "run it on a machine with an NVIDIA GPU"
        ) from error
    return kvikio
