"""KvikIO: reads from disk into the GPU's memory, by GPUDirect Storage if it is active.

This follows KvikIO's documentation: each file is opened once, reads are submitted by `pread` and waited for
later, and KvikIO splits them among its own threads. Consecutive rows of a file are one read. Without
GPUDirect Storage KvikIO reads through the host by POSIX calls; the record says which of the two was used.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from iobench.base.errors import InvalidSettings, LoaderFailed
from iobench.base.options import option
from iobench.contrib.formats.shared.external import imported
from iobench.contrib.loaders._shared import placements
from iobench.formats import Rows, index_of
from iobench.host.device import device_named
from iobench.loading.loaders import Epochs, Job, Loader
from iobench.loading.tensors import HostBatch

if TYPE_CHECKING:
    import torch


Self = TypeVar("Self", bound="Gds")
Positions: TypeAlias = npt.NDArray[np.int64]
DIRECT, POSIX = "gpudirect", "posix"


@dataclass(frozen=True)
class Gds(Loader):
    """Reads rows that are stored as they are in memory directly into tensors on the device."""

    name: ClassVar[str] = "gds"
    summary: ClassVar[str] = "KvikIO: from disk into the GPU's memory, by GPUDirect Storage if it is active"
    library: ClassVar[str] = "kvikio-cu12"
    modules: ClassVar[tuple[str, ...]] = ("kvikio",)

    mode: str | None = option(
        None,
        "gpudirect, or posix: through the host; by default gpudirect if it is active",
        choices=(None, DIRECT, POSIX),
    )

    def on(self: Self, device: str) -> Self:
        """Return it with the mode resolved; InvalidSettings if it requests GPUDirect and that is inactive."""
        available = DIRECT if not device.startswith("cpu") and _is_direct() else POSIX
        if self.mode == DIRECT != available:
            problem = f"{self.variant}: GPUDirect Storage is not active for device {device}"
            hint = "it needs an NVIDIA GPU, nvidia-fs, libcufile and a supported file system: run gdscheck"
            raise InvalidSettings(problem, "gds-inactive", hint=hint)
        return replace(self, mode=self.mode or available)

    def reads_at(self, url: str) -> bool:
        """Return True for a disk: it opens the files."""
        return not url

    def open(self, job: Job) -> Epochs:
        """Open the files with KvikIO."""
        return GdsEpochs(self, job)


class GdsEpochs(Epochs):
    """Epochs that read one batch while the consumer has the one before."""

    prefetches = True  # KvikIO's threads read the next batch

    def __init__(self, loader: Gds, job: Job) -> None:
        super().__init__(loader, job)
        kvikio = _kvikio()
        if loader.mode == POSIX:
            kvikio.defaults.set("compat_mode", kvikio.CompatMode.ON)
        self._device = device_named(job.device)
        self._device.use()
        self._placements = placements(
            job,
            "gds",
            expected="values stored as they are in memory",
            found="encoded values",
            hint="use a format that stores them so, such as npy",
        )
        paths = {path for placement in self._placements.values() for path in placement.files}
        self._files: dict[Path, Any] = {path: kvikio.CuFile(path, "r") for path in sorted(paths)}

    def _epoch(self, request: Sequence[Rows]) -> Iterator[HostBatch]:
        before: _Batch | None = None
        try:
            for rows in request:
                # a stream may still read memory that torch reuses, and KvikIO does not wait for streams
                self._device.synchronize()
                batch = _Batch(self._device.torch)
                before, done = batch, before
                for field in self.opener.schema.fields:
                    self._submit(batch, field.name, (field.shape, field.dtype), rows)
                if done is not None:
                    yield done.tensors()
            if before is not None:
                yield before.tensors()
                before = None
        finally:
            if before is not None:
                before.wait()  # its memory must not be released while it is written

    def _submit(self, batch: _Batch, name: str, spec: tuple[tuple[int, ...], str], rows: Rows) -> None:
        placement, (shape, dtype) = self._placements[name], spec
        index = index_of(rows)
        memory = batch.memory(name, (len(index), *shape), dtype)
        row_bytes = memory.numel() // max(1, len(index))
        for start, stop, file, offset in runs(*placement.locate(index), row_bytes):
            piece = memory[start * row_bytes : stop * row_bytes]
            batch.read(self._files[placement.files[file]], piece, offset)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
        self._files, self._placements = {}, {}


class _Batch:
    """The tensors of a batch, and the pending reads that fill them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._tensors: dict[str, Any] = {}
        self._reads: list[tuple[Any, int]] = []  # futures, and the bytes that each should read

    def memory(self, name: str, shape: tuple[int, ...], dtype: str) -> Any:
        """Allocate a tensor and return its bytes."""
        import torch

        tensor = torch.empty(shape, dtype=getattr(torch, dtype), device=self._device)
        self._tensors[name] = tensor
        return tensor.view(-1).view(torch.uint8)

    def read(self, file: Any, memory: Any, offset: int) -> None:
        """Submit a read of a file into device or host memory."""
        buffer = memory.numpy() if memory.device.type == "cpu" else memory
        self._reads.append((file.pread(buffer, memory.numel(), offset), memory.numel()))

    def wait(self) -> int:
        """Wait for all reads, and return the number of missing bytes."""
        missing = 0
        while self._reads:
            future, expected = self._reads.pop()
            missing += expected - future.get()
        return missing

    def tensors(self) -> dict[str, Any]:
        """Return the tensors when all reads have ended; LoaderFailed if a file is too short."""
        if missing := self.wait():
            raise LoaderFailed(f"loader gds: {missing} bytes of a batch are missing", kind="truncated")
        return self._tensors


def runs(file: Positions, offset: Positions, row_bytes: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (start, stop, file, offset) of each run of consecutive rows in one file."""
    if not len(file) or not row_bytes:
        return
    breaks = np.flatnonzero((np.diff(file) != 0) | (np.diff(offset) != row_bytes)) + 1
    edges = [0, *breaks.tolist(), len(file)]
    for start, stop in itertools.pairwise(edges):
        yield start, stop, int(file[start]), int(offset[start])


def _is_direct() -> bool:
    """Return whether GPUDirect Storage is active: KvikIO would use cuFile, which has its driver."""
    kvikio = _kvikio()
    if kvikio.defaults.is_compat_mode_preferred():
        return False
    return bool(kvikio.cufile_driver.get("is_gds_available"))


def _kvikio() -> Any:
    """Import the library; InvalidSettings if it is installed but cannot be imported."""
    hint = "run it on a machine with an NVIDIA GPU, its driver and libraries"
    return imported("loader gds: KvikIO", hint, "kvikio", "kvikio.cufile_driver", "kvikio.defaults")
