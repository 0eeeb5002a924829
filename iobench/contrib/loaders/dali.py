"""NVIDIA DALI: a pipeline with an external source of whole batches, which copies them to the GPU.

This is what DALI's documentation recommends for data without a DALI reader: `fn.external_source` with a
callback that returns a batch and is called ahead of the pipeline, with workers in processes of its own
(`parallel`). On a GPU the pipeline copies (`.gpu()`), and its outputs are used in place on the consumer's
stream, as in DALI's plugin for PyTorch.

With `decode` DALI itself reads, decodes and scales image files, by `fn.io.file.read`, `fn.decoders.image` and
`fn.resize`. Sizes after scaling and the corner of the crop are rounded as Pillow's are here, so that the
pixels can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from iobench.base.errors import InvalidOption, InvalidSettings
from iobench.base.options import LIMITS, option
from iobench.contrib.formats.images import Images
from iobench.dataset.opener import Opener
from iobench.formats import Array, Format, Reader, Rows, index_of
from iobench.formats.folders import IMAGES, ClassFolder
from iobench.host.device import Accelerator, device_named
from iobench.loading.loaders import MAX_PREFETCH, MAX_WORKERS, CopyingLoader, Epochs, Job
from iobench.loading.tensors import HostBatch, tensor_of

if TYPE_CHECKING:
    import torch


Self = TypeVar("Self", bound="Dali")
CPU, GPU = "cpu", "gpu"
# dtypes that DALI or torch lacks are passed as words of the same or half the size
AS_WORDS = {"bfloat16": "int16", "uint64": "int64", "complex64": "int64", "complex128": "float64"}
TOLERANCE = 8  # of 255, between DALI's triangular filter and Pillow's
GPUS = ("cuda",)  # torch devices that DALI's GPU pipelines run on


@dataclass(frozen=True)
class Dali(CopyingLoader):
    """A map-style loader: a pipeline for given rows."""

    name: ClassVar[str] = "dali"
    summary: ClassVar[str] = "NVIDIA DALI: a pipeline to CPU or GPU, with an external source of whole batches"
    library: ClassVar[str] = "nvidia-dali-cuda120"
    recommended_options: ClassVar[str] = "num_workers={cores}"
    modules: ClassVar[tuple[str, ...]] = ("nvidia.dali",)

    threads: int | None = option(
        None, "threads of the pipeline; by default 2", minimum=1, maximum=LIMITS["threads"][1]
    )
    prefetch: int | None = option(
        None, "batches to read ahead; by default DALI's 2", minimum=1, maximum=MAX_PREFETCH
    )
    num_workers: int = option(0, "worker processes that read for the source", minimum=0, maximum=MAX_WORKERS)
    pipeline: str | None = option(
        None,
        "gpu: the pipeline copies batches to the GPU; cpu: it does not; by default gpu for a CUDA device",
        choices=(None, CPU, GPU),
    )
    decode: bool = option(
        False, "its threads read, decode and scale the files of images:shape=…, with pixels of their own"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decode and self.num_workers:
            problem = "dali: decode with num_workers"
            raise InvalidOption(problem, "conflicting-options", hint="give threads, which read the files")

    def reads(self, format: Format) -> bool:
        """Return True for every format; with `decode` for existing images that Pillow scales and crops."""
        scaled = isinstance(format, Images) and format.scaled_shape is not None
        return not self.decode or (scaled and format.lossless)

    def reads_at(self, url: str) -> bool:
        """Return whether it can read a dataset at an address: not with `decode`."""
        return not (url and self.decode)

    @property
    def tolerance(self) -> int:
        """Levels that its pixels may be from Pillow's."""
        return TOLERANCE if self.decode else 0

    def on(self: Self, device: str) -> Self:
        """Return it with the pipeline resolved; InvalidSettings if the device does not allow it."""
        on_gpu = device.startswith(GPUS)
        pipeline = self.pipeline or (GPU if on_gpu else CPU)
        if pipeline == CPU:
            return replace(super().on(device), pipeline=CPU)
        if not on_gpu:
            problem = f"{self.variant}: a GPU pipeline"
            raise InvalidSettings(problem, "needs-cuda", expected="a CUDA device", found=f"device {device}")
        if self.pin_memory or self.non_blocking:
            problem = f"{self.variant}: a GPU pipeline makes its own copies"
            hint = "give pin_memory and non_blocking with pipeline=cpu only"
            raise InvalidSettings(problem, "conflicting-options", hint=hint)
        changes: dict[str, Any] = {"pipeline": GPU, "pin_memory": False, "non_blocking": False}
        return replace(self, **changes)

    @property
    def workers(self) -> int:
        """The option `num_workers`."""
        return self.num_workers

    @property
    def read_ahead(self) -> int:
        """The option `prefetch`, by default DALI's 2."""
        return self.prefetch or 2

    def open(self, job: Job) -> Epochs:
        """Open the artifact; each process that reads opens its own reader."""
        return DaliEpochs(self, job)


class DaliSource:
    """An epoch's batches by number; each process opens the artifact itself."""

    def __init__(self, opener: Opener, batches: Sequence[Rows]) -> None:
        self._opener, self._batches = opener, batches
        self._reader: Reader | None = None

    def __call__(self, info: Any) -> tuple[Any, ...]:
        """Return the fields of a batch; StopIteration after the last one."""
        if info.iteration >= len(self._batches):
            raise StopIteration
        if self._reader is None:
            self._reader = self._opener()
        batch = self._reader.batch(self._batches[info.iteration])
        return tuple(map(_words, batch.values()))

    def close(self) -> None:
        """Close this process's reader."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def _words(array: Array) -> Array:
    """Return an array with a dtype that DALI has: other dtypes become words along one more axis."""
    word = AS_WORDS.get(array.dtype.name)
    return array if word is None else array[..., None].view(word)


class DaliEpochs(Epochs):
    """A new pipeline for each epoch, since its rows differ."""

    def __init__(self, loader: Dali, job: Job) -> None:
        super().__init__(loader, job)
        self._settings = loader
        device = device_named(job.device)
        self._gpu = device if isinstance(device, Accelerator) and loader.pipeline == GPU else None
        self._folder = DaliFolder(job.opener) if loader.decode else None
        job.opener().close()  # reports missing files before the first epoch

    def _epoch(self, request: Sequence[Rows]) -> Iterator[HostBatch]:
        folder = self._folder
        source = DaliSource(self.opener, request) if folder is None else DaliFileSource(folder, request)
        pipeline = self._pipeline(source)
        try:
            for _ in request:
                batch = self._typed(self._outputs(pipeline))
                yield batch if self._gpu is not None else self.pinned(batch)
        finally:
            del pipeline
            source.close()

    def _outputs(self, pipeline: Any) -> list[torch.Tensor]:
        """Return the next batch's fields: copies of the pipeline's host buffers, or its memory on the GPU."""
        from torch.utils.dlpack import from_dlpack

        if self._gpu is None:
            return [tensor_of(np.array(output.as_array())) for output in pipeline.run()]
        outputs = pipeline.run(self._gpu.current_stream())
        with self._gpu.current():
            return [from_dlpack(output.as_tensor()) for output in outputs]

    def _typed(self, outputs: list[torch.Tensor]) -> HostBatch:
        import torch

        both = zip(self.opener.schema.fields, outputs, strict=True)
        return {
            field.name: one.view(getattr(torch, field.dtype)).squeeze(-1) if field.dtype in AS_WORDS else one
            for field, one in both
        }

    def _pipeline(self, source: DaliSource | DaliFileSource) -> Any:
        from nvidia.dali import Pipeline

        settings = self._settings
        pipeline = Pipeline(
            batch_size=self.job.order.batch_size,
            num_threads=settings.threads or 2,
            device_id=None if self._gpu is None else self._gpu.torch.index,
            prefetch_queue_depth=settings.prefetch or 2,
            py_num_workers=max(1, settings.num_workers),
        )
        with pipeline:
            outputs = self._fields(source)
            pipeline.set_outputs(*outputs if self._gpu is None else (output.gpu() for output in outputs))
        pipeline.build()
        return pipeline

    def _fields(self, source: DaliSource | DaliFileSource) -> Sequence[Any]:
        from nvidia.dali import fn

        if isinstance(source, DaliFileSource):
            return decoded(source)
        return fn.external_source(  # type: ignore[no-any-return]
            source,
            num_outputs=len(self.opener.schema.fields),
            batch=True,
            batch_info=True,
            parallel=self._settings.num_workers > 0,
        )

    def close(self) -> None:
        """Do nothing: readers and workers ended with their epoch."""


class DaliFolder:
    """A folder per class: files, labels, and sizes of the images that were read so far.

    Parameters
    ----------
    opener : Opener
        Of a variant of `images` that scales existing files to a shape.
    """

    def __init__(self, opener: Opener) -> None:
        from iobench.formats.image_decoding import ImageLayout

        (field,) = (field for field in opener.schema.fields if field.shape)
        self.layout = ImageLayout(field.shape)
        self.images = [one is field for one in opener.schema.fields]
        folder = ClassFolder.of(opener.path, IMAGES)
        self.files, self.labels = folder.files, folder.labels
        self._sizes = dict[int, tuple[int, int]]()

    def size(self, row: int) -> tuple[int, int]:
        """Return height and width of an image after scaling; its header is read once."""
        from iobench.formats.image_decoding import image_size

        if row not in self._sizes:
            with self.files[row].open("rb") as file:
                width, height = self.layout.scaled(image_size(file)[:2])
            self._sizes[row] = height, width
        return self._sizes[row]


class DaliFileSource:
    """An epoch's batches by number: names of files, sizes after scaling, labels."""

    def __init__(self, folder: DaliFolder, batches: Sequence[Rows]) -> None:
        self.folder, self._batches = folder, batches

    def __call__(self, info: Any) -> tuple[Any, Any, Any]:
        """Return a batch; StopIteration after the last one."""
        if info.iteration >= len(self._batches):
            raise StopIteration
        folder, rows = self.folder, index_of(self._batches[info.iteration])
        names = [np.frombuffer(bytes(folder.files[row]), np.uint8) for row in rows]
        return names, np.array([folder.size(row) for row in rows.tolist()], np.float32), folder.labels[rows]

    def close(self) -> None:
        """Do nothing: DALI closes its files."""


def decoded(source: DaliFileSource) -> list[Any]:
    """Return the outputs of a pipeline for the fields of a folder: pixels in its layout, and labels."""
    from nvidia.dali import fn, types

    names, sizes, labels = fn.external_source(source, num_outputs=3, batch=True, batch_info=True)
    layout, colors = source.folder.layout, {"RGB": types.RGB, "L": types.GRAY}
    images = fn.decoders.image(
        fn.io.file.read(names), output_type=colors[layout.mode], adjust_orientation=False
    )
    images = fn.resize(images, size=sizes, interp_type=types.INTERP_TRIANGULAR)
    images = fn.crop(images, crop=(layout.height, layout.width), rounding="truncate")
    if layout.channels_first and layout.mode == "RGB":
        images = fn.transpose(images, perm=[2, 0, 1])
    pixels = fn.reshape(images, shape=list(layout.shape))
    return [pixels if image else labels for image in source.folder.images]
