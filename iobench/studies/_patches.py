"""Small images in several formats and as PNG files, and contenders that read them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from iobench import formats
from iobench.dataset.manifest import Manifest, Opener
from iobench.dataset.prepare import prepare
from iobench.dataset.sources import Synthetic
from iobench.host import page_cache
from iobench.loading.loaders import Job
from iobench.loading.loaders.dataloader import TorchDataLoader
from iobench.loading.order import Order
from iobench.studies._base import StudyOptions
from iobench.studies._epochs import TrainingInParts, epochs
from iobench.studies._rounds import Contender

FORMATS = ("npy", "hdf5", "lmdb", "lmdb:codec=lz4", "memmap")  # in addition to png
BATCHES, QUICK_BATCHES = (8, 16, 32, 64, 128), (8, 32, 128)
WORKERS, QUICK_WORKERS = (0, 2, 4, 8, 16), (0, 2)  # the last for all formats
PUBLISHED, QUICK = 8192, 256  # patches
SIDE, SMALL_SIDE, CHANNELS = 64, 16, 3  # pixels
COMPRESSIBILITY = 0.4  # about that of photographs with PNG and lz4


def sizes_of(options: StudyOptions) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Return the number of patches, the batch sizes and the numbers of workers."""
    return (QUICK, QUICK_BATCHES, QUICK_WORKERS) if options.quick else (PUBLISHED, BATCHES, WORKERS)


def contenders_of(options: StudyOptions, openers: Mapping[str, Opener]) -> dict[str, Contender]:
    """Return every format with every batch size, and PNG with fewer workers.

    The latter with the smallest and the largest batch size.
    """
    _, batches, (*fewer, most) = sizes_of(options)
    largest = {
        f"{name}, batch {batch}": _contender(opener, options, batch, most)
        for name, opener in openers.items()
        for batch in batches
    }
    return largest | {
        f"png, batch {batch}, {count} workers": _contender(openers["png"], options, batch, count)
        for batch in (batches[0], batches[-1])
        for count in fewer
    }


def pinned_contenders(options: StudyOptions, openers: Mapping[str, Opener]) -> dict[str, Contender]:
    """Return contenders with pinned and with pageable memory and few workers; none without a GPU."""
    if not options.gpu:
        return {}
    _, batches, (_, few, *_) = sizes_of(options)
    small = _prepared(options, SMALL_SIDE).opener("npy")
    return {
        pinned_name(side, batch, pinned): _contender(opener, options, batch, few, pinned)
        for side, opener in ((SMALL_SIDE, small), (SIDE, openers["npy"]))
        for batch in (batches[0], batches[-1])
        for pinned in (True, False)
    }


def pinned_name(side: int, batch: int, pinned: bool) -> str:
    """Return the name of a contender with pinned or pageable memory."""
    return f"npy, {side} pixels, batch {batch}, {'pinned' if pinned else 'pageable'}"


def _contender(
    opener: Opener, options: StudyOptions, batch: int, workers: int, pinned: bool | None = None
) -> Contender:
    fork = "fork" if workers else None  # other start methods would take up most of the time
    loader = TorchDataLoader(num_workers=workers, start_method=fork, pin_memory=pinned)
    job = Job(opener, Order("random", batch), options.device)
    return epochs(loader, job, consumer=TrainingInParts)


def _prepared(options: StudyOptions, side: int) -> Manifest:
    size = sizes_of(options)[0] * side * side * CHANNELS
    source = Synthetic(size, (side, side, CHANNELS), "uint8", compressibility=COMPRESSIBILITY)
    name = f"patches-{side}-{source.schema.samples}"
    manifest = prepare(source, FORMATS, data_dir=options.folder, name=name)[0]
    page_cache.warm([file for variant in FORMATS for file in manifest.files_of(variant)])
    return manifest


def openers_of(options: StudyOptions, folder: Path) -> dict[str, Opener]:
    """Write PNG files into an empty folder, and return the opener of every format and of these."""
    png = formats.get("images")
    options.on_status("writing patches")
    manifest = _prepared(options, SIDE)
    opener = manifest.opener("npy")
    with opener() as reader:
        png.write(
            folder / "png", opener.schema, (reader.batch(slice(row, row + 1)) for row in range(len(reader)))
        )
    return {
        "png": Opener(png, folder / "png", opener.schema),
        **{variant: manifest.opener(variant) for variant in FORMATS},
    }
