"""FFCV's own Loader over a beton: compiled threads copy each batch from the mapped file.

FFCV's documentation recommends the page cache (`os_cache`) for data that fit in memory, and for larger data
quasi-random order, which reads a few pages of the file at a time, without it. FFCV compiles its readers in
the first epoch, which is not timed. It cycles through a few buffers: a batch is valid until the next one is
requested.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from iobench.base.options import LIMITS, option
from iobench.contrib.formats.ffcv import library, stored_name
from iobench.contrib.loaders._shared import placements
from iobench.formats import Field, names_within
from iobench.loading.loaders import Epochs, Job, Loader
from iobench.loading.tensors import HostBatch

if TYPE_CHECKING:
    import torch


MAX_PREFETCH = 1024  # batches, each in a buffer of its own


@dataclass(frozen=True)
class FfcvLoader(Loader):
    """An iterable-style loader: shuffles all samples, or those of a few pages (quasi-random)."""

    name: ClassVar[str] = "ffcv"
    summary: ClassVar[str] = "FFCV's Loader: compiled threads over a mapped beton"
    library: ClassVar[str] = "ffcv"
    format_names: ClassVar[tuple[str, ...]] = ("ffcv",)
    modules: ClassVar[tuple[str, ...]] = ("ffcv",)
    orders: ClassVar[tuple[str, ...]] = ("sequential", "random")
    iterable_style: ClassVar[bool] = True
    reuses: ClassVar[bool] = True

    threads: int | None = option(
        None, "reading threads; by default one for each core", minimum=1, maximum=LIMITS["threads"][1]
    )
    batches_ahead: int = option(3, "batches to read ahead", minimum=1, maximum=MAX_PREFETCH)
    os_cache: bool = option(True, "read through the page cache; otherwise into FFCV's own memory")
    quasi_random: bool = option(False, "random order reads a few pages of the file at a time")

    def open(self, job: Job) -> Epochs:
        """Open the library's loader."""
        return FfcvEpochs(self, job)


class FfcvEpochs(Epochs):
    """One Loader for all epochs, given the number of each."""

    prefetches = True  # its threads read ahead

    def __init__(self, loader: FfcvLoader, job: Job) -> None:
        super().__init__(loader, job)
        # FFCV decodes JPEG with another transform than Pillow does, so its pixels cannot be verified
        placed = placements(
            job,
            "ffcv",
            expected="images that FFCV stored as pixels, of one size",
            found="JPEG files, or images to scale, of which FFCV makes other pixels",
            hint="use --loader stream, or write_mode='raw'",
        )
        (file,) = {path for one in placed.values() for path in one.files}
        ffcv = library()
        orders = ffcv.loader.OrderOption
        order = orders.SEQUENTIAL
        if job.order.kind == "random":
            order = orders.QUASI_RANDOM if loader.quasi_random else orders.RANDOM
        known = {field.name: field for field in job.opener.schema.fields}
        stored = list(ffcv.reader.Reader(str(file)).field_names)
        names = names_within(stored, known.values(), stored_name)
        self._fields = {names[name]: field for name, field in known.items()}
        self._failed: Exception | None = None
        self._loader: Any = ffcv.loader.Loader(
            str(file),
            batch_size=job.order.batch_size,
            num_workers=loader.threads or -1,
            os_cache=loader.os_cache,
            order=order,
            seed=job.order.seed % (1 << 31),
            drop_last=False,
            batches_ahead=loader.batches_ahead,
            pipelines=dict.fromkeys(set(stored) - set(self._fields)),  # fields that are not read
        )
        stages, outputs = self._loader.code
        self._loader.code = [(self._guarded(stage), names) for stage, names in stages], outputs

    def _epoch(self, request: int) -> Iterator[HostBatch]:
        self._loader.next_epoch = request
        fields = [self._fields[name] for name in self._loader.pipeline_specs]
        running = iter(self._loader)
        try:
            for parts in running:
                both = zip(fields, parts, strict=True)
                yield {field.name: _as_field(part, field) for field, part in both}
            if self._failed is not None:
                raise self._failed
        finally:
            running.close()
            running.join()

    def _guarded(self, stage: Callable[..., Any]) -> Callable[..., Any]:
        """Return a stage whose failure ends the epoch; in FFCV's thread it would block the epoch for ever."""

        def run(**arguments: Any) -> Any:
            try:
                return stage(**arguments)
            except Exception as error:  # compiled code for any file may fail in any way
                self._failed = error
                raise StopIteration from error

        return run

    def close(self) -> None:
        """Release the map, which the library's graph of stages refers to."""
        self._loader = None
        gc.collect()


def _as_field(part: torch.Tensor, field: Field) -> torch.Tensor:
    import torch

    return part.view(getattr(torch, field.dtype)).reshape(-1, *field.shape)
