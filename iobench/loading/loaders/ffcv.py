"""FFCV's own Loader over a beton: threads of compiled code copy each batch out of the mapped file.

As its documentation advises: the operating system's cache for what fits in memory (`os_cache`), and
quasi-random order, which reads pages of the file, without that cache for what does not. It compiles what
reads the fields in its first epoch, which is none that is timed. Batches lie in memory that it goes around
in: each is good until the next one is asked for.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from iobench.base.errors import (
    InvalidSettings,
)
from iobench.formats import Format, field_name, option
from iobench.loading.loaders._loader import Epochs, Job, Loader
from iobench.loading.order import LIMITS

if TYPE_CHECKING:
    from iobench.loading.host_to_device import HostBatch

MOST_AHEAD = 1024  # batches, each in memory of its own


@dataclass(frozen=True)
class FfcvLoader(Loader):
    """Its own order: all samples among each other, or, quasi-random, those of a few pages."""

    name: ClassVar[str] = "ffcv"
    summary: ClassVar[str] = "FFCV's Loader: compiled threads over a mapped beton"
    library: ClassVar[str] = "ffcv"
    modules: ClassVar[tuple[str, ...]] = ("ffcv",)
    extra: ClassVar[str] = "ffcv"
    orders: ClassVar[tuple[str, ...]] = ("sequential", "random")
    own_order: ClassVar[bool] = True
    isolated: ClassVar[bool] = True
    reuses: ClassVar[bool] = True

    threads: int | None = option(
        None, "threads that read; by default one for each core", minimum=1, maximum=LIMITS["threads"][1]
    )
    batches_ahead: int = option(3, "batches that are read ahead", minimum=1, maximum=MOST_AHEAD)
    os_cache: bool = option(True, "read through the page cache; otherwise into memory of its own")
    quasi_random: bool = option(False, "random order reads few pages of the file at a time")

    def reads(self, format: Format) -> bool:
        """Betons."""
        return format.name == "ffcv"

    def open(self, job: Job) -> Epochs:
        """The library's loader, over the file."""
        return FfcvEpochs(self, job)


class FfcvEpochs(Epochs):
    """One Loader, told the number of each epoch."""

    def __init__(self, loader: FfcvLoader, job: Job) -> None:
        super().__init__(loader, job)
        with job.opener() as reader:  # a file that holds something else is told as everywhere
            (file,) = {path for one in reader.placement().values() for path in one.files}
        made, orders = _library()
        order = orders.SEQUENTIAL
        if job.order.kind == "random":
            order = orders.QUASI_RANDOM if loader.quasi_random else orders.RANDOM
        known = {field.name: field for field in job.opener.schema.fields}
        stored = _stored_names(file)
        self._fields = {name: known[field_name(name)] for name in stored if field_name(name) in known}
        self._failed: Exception | None = None
        self._loader: Any = made(
            str(file),
            batch_size=job.order.batch_size,
            num_workers=loader.threads or -1,
            os_cache=loader.os_cache,
            order=order,
            seed=job.order.seed % (1 << 31),
            drop_last=False,
            batches_ahead=loader.batches_ahead,
            pipelines=dict.fromkeys(set(stored) - set(self._fields)),  # which are not read
        )
        stages, outputs = self._loader.code
        self._loader.code = [(self._guarded(stage), names) for stage, names in stages], outputs

    @property
    def ahead(self) -> bool:
        """Its threads do."""
        return True

    def _epoch(self, asked: int) -> Iterator[HostBatch]:
        self._loader.next_epoch = asked
        fields = [self._fields[name] for name in self._loader.pipeline_specs]
        running = iter(self._loader)
        try:
            for parts in running:
                both = zip(fields, parts, strict=True)
                yield {field.name: part.reshape(-1, *field.shape) for field, part in both}
            if self._failed is not None:
                raise self._failed
        finally:
            running.close()
            running.join()

    def _guarded(self, stage: Callable[..., Any]) -> Callable[..., Any]:
        """A stage whose failure ends the epoch: in the library's thread nobody would hear of it, and wait."""

        def run(**arguments: Any) -> Any:
            try:
                return stage(**arguments)
            except Exception as error:  # compiled for whatever the file holds, it may fail in any way
                self._failed = error
                raise StopIteration from error

        return run

    def close(self) -> None:
        """Drop the map, which the library's graph of stages holds."""
        self._loader = None
        gc.collect()


def _library() -> tuple[Any, Any]:
    """Its Loader and its orders; InvalidSettings, in one line, where it is there and cannot be loaded."""
    try:
        from ffcv.loader import Loader as Library
        from ffcv.loader import OrderOption
    except (ImportError, OSError) as error:
        raise InvalidSettings(
            f"loader ffcv: FFCV cannot be loaded ({str(error).partition(chr(10))[0]}); it needs OpenCV and "
            "TurboJPEG, whose libraries have to be where the system looks for them"
        ) from error
    return Library, OrderOption


def _stored_names(file: Path) -> list[str]:
    """The names of all fields in a file, in their order."""
    from ffcv.reader import Reader

    return list(Reader(str(file)).field_names)
