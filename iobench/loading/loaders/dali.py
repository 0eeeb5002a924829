"""NVIDIA DALI: a pipeline whose external source reads whole batches, and which takes them to the GPU.

As its documentation advises for data that DALI has no reader for: `fn.external_source` with a callback
that gives a batch, called ahead of the pipeline; with workers, in processes of their own (`parallel`).
On a GPU the pipeline copies (`.gpu()`), and its outputs are taken over as they lie there, on the
consumer's stream, as DALI's own plugin for PyTorch does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from iobench.base.errors import (
    InvalidSettings,
)
from iobench.dataset.manifest import Opener
from iobench.formats import Array, Reader, Rows, option
from iobench.loading.loaders._loader import CopyingLoader, Epochs, Job
from iobench.loading.loaders._workers import MOST_AHEAD, MOST_WORKERS
from iobench.loading.order import LIMITS
from iobench.loading.tensors import tensor_of

if TYPE_CHECKING:
    import torch

    from iobench.loading.host_to_device import HostBatch

Self = TypeVar("Self", bound="Dali")
CPU, GPU = "cpu", "gpu"
# what DALI or torch has no such type for travels as words of its size, or of half of it
AS_WORDS = {"bfloat16": "int16", "uint64": "int64", "complex64": "int64", "complex128": "float64"}
GPUS = ("cuda",)  # back ends of torch that DALI's GPU pipelines run on


@dataclass(frozen=True)
class Dali(CopyingLoader):
    """A pipeline that is told the rows of each batch."""

    name: ClassVar[str] = "dali"
    summary: ClassVar[str] = "NVIDIA DALI: a pipeline to CPU or GPU, with an external source of whole batches"
    library: ClassVar[str] = "nvidia-dali-cuda120"
    advised: ClassVar[str] = "num_workers={cores}"
    modules: ClassVar[tuple[str, ...]] = ("nvidia.dali",)
    extra: ClassVar[str] = "dali"
    isolated: ClassVar[bool] = True

    threads: int | None = option(
        None, "threads of the pipeline; by default 2", minimum=1, maximum=LIMITS["threads"][1]
    )
    prefetch: int | None = option(
        None, "batches that are read ahead; by default DALI's 2", minimum=1, maximum=MOST_AHEAD
    )
    num_workers: int = option(0, "worker processes of the source", minimum=0, maximum=MOST_WORKERS)
    pipeline: str | None = option(
        None,
        "gpu: it copies batches to the GPU; or cpu; by default gpu for a CUDA device",
        choices=(None, CPU, GPU),
    )

    def on(self: Self, device: str) -> Self:
        """The same with its pipeline decided; InvalidSettings where that is not to be had."""
        here = device.startswith(GPUS)
        chosen = self.pipeline or (GPU if here else CPU)
        if chosen == CPU:
            return replace(super().on(device), pipeline=CPU)
        if not here:
            raise InvalidSettings(f"{self.variant}: a GPU pipeline needs a CUDA device, not device {device}")
        if self.pin_memory or self.non_blocking:
            raise InvalidSettings(
                f"{self.variant}: a GPU pipeline copies by itself: pin_memory and non_blocking are for "
                "pipeline=cpu"
            )
        changes: dict[str, Any] = {"pipeline": GPU, "pin_memory": False, "non_blocking": False}
        return replace(self, **changes)

    @property
    def workers(self) -> int:
        """As many as its option says."""
        return self.num_workers

    def open(self, job: Job) -> Epochs:
        """A source whose reader is opened by whichever process reads."""
        return DaliEpochs(self, job)


class Source:
    """The batches of an epoch, by number; each process opens the artifact for itself."""

    def __init__(self, opener: Opener, asked: Sequence[Rows]) -> None:
        self._opener, self._asked = opener, asked
        self._reader: Reader | None = None

    def __call__(self, info: Any) -> tuple[Any, ...]:
        """The fields of the batch that is asked for; StopIteration after the last one."""
        if info.iteration >= len(self._asked):
            raise StopIteration
        if self._reader is None:
            self._reader = self._opener()
        batch = self._reader.batch(self._asked[info.iteration])
        return tuple(map(_words, batch.values()))

    def close(self) -> None:
        """Close this process's reader."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def _words(array: Array) -> Array:
    """An array as DALI takes it: where it knows no such dtype, its words along one more axis."""
    word = AS_WORDS.get(array.dtype.name)
    return array if word is None else array[..., None].view(word)


class DaliEpochs(Epochs):
    """A pipeline for each epoch, because it is told other rows."""

    def __init__(self, loader: Dali, job: Job) -> None:
        super().__init__(loader, job)
        import torch

        from iobench.host.device import Accelerator, device_of

        self._settings = loader
        room = device_of(torch.device(job.device))
        self._gpu = room if isinstance(room, Accelerator) and loader.pipeline == GPU else None
        with job.opener():  # what is not there is told when it is opened
            pass

    @property
    def ahead(self) -> bool:
        """The source is asked ahead, in this thread where it has no workers."""
        return self._settings.num_workers > 0

    def _epoch(self, asked: Sequence[Rows]) -> Iterator[HostBatch]:
        source = Source(self.opener, asked)
        pipeline = self._pipeline(source)
        try:
            for _ in asked:
                batch = self._typed(self._taken(pipeline))
                yield batch if self._gpu is not None else self.pinned(batch)
        finally:
            del pipeline
            source.close()

    def _taken(self, pipeline: Any) -> list[torch.Tensor]:
        """The next batch's fields: copies of what the pipeline will use again, or its memory on the GPU."""
        from torch.utils.dlpack import from_dlpack

        if self._gpu is None:
            return [tensor_of(np.array(output.as_array())) for output in pipeline.run()]
        outputs = pipeline.run(self._gpu.current_stream())
        with self._gpu.current():
            return [from_dlpack(output.as_tensor()) for output in outputs]

    def _typed(self, taken: list[torch.Tensor]) -> HostBatch:
        """The fields by name, with the schema's dtypes."""
        import torch

        both = zip(self.opener.schema.fields, taken, strict=True)
        return {
            field.name: one.view(getattr(torch, field.dtype)).squeeze(-1) if field.dtype in AS_WORDS else one
            for field, one in both
        }

    def _pipeline(self, source: Source) -> Any:
        from nvidia.dali import Pipeline, fn

        settings, fields = self._settings, self.opener.schema.fields
        made = Pipeline(
            batch_size=self.job.order.batch_size,
            num_threads=settings.threads or 2,
            device_id=None if self._gpu is None else self._gpu.torch.index,
            prefetch_queue_depth=settings.prefetch or 2,
            py_num_workers=max(1, settings.num_workers),
        )
        with made:
            outputs = fn.external_source(
                source,
                num_outputs=len(fields),
                batch=True,
                batch_info=True,
                parallel=settings.num_workers > 0,
            )
            made.set_outputs(*outputs if self._gpu is None else (output.gpu() for output in outputs))
        made.build()
        return made

    def close(self) -> None:
        """Readers and workers went with their epoch."""
