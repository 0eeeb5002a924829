"""The shared NDArray that every format stores: generated, or the user's own files."""

from __future__ import annotations

from pathlib import Path

from iobench import formats
from iobench.base.errors import (
    SourceError,
)
from iobench.dataset.sources._base import BATCH_BYTES, Source, ahead, checked, default_name
from iobench.dataset.sources._files import holds_images, reading
from iobench.dataset.sources._first import FirstSamples
from iobench.dataset.sources.synthetic import Synthetic
from iobench.formats import choice

__all__ = [
    "BATCH_BYTES",
    "FirstSamples",
    "Source",
    "Synthetic",
    "ahead",
    "checked",
    "default_name",
    "open_source",
    "read_by_prepare",
]

# single files that a process apart reads: a format, or what is as good as one
READ_APART = {".h5": "hdf5", ".hdf5": "hdf5", ".pt": "torch", ".pth": "torch", ".csv": "csv"}
CONVERTED = (".npz", ".pt", ".pth", ".csv")  # that no format reads where they lie


def open_source(path: Path, sample_shape: tuple[int, ...] | None = None) -> Source:
    """The user's data at `path`: .npy, .npz, .pt, .csv, a folder of images, or any format that can be read.

    Some arrays of a file with several are `FILE::NAME,NAME`; a group of an HDF5 file is a name, too.
    `sample_shape` is the shape images are resized and cropped to; other sources have their own.
    SourceError where there is nothing, or nothing that can be stored.
    """
    with reading(path):
        return _open(path, sample_shape)


def read_by_prepare(path: Path) -> bool:
    """Whether data that no format recognises are of a kind that `open_source` reads."""
    return holds_images(path) if path.is_dir() else path.suffix.lower() in CONVERTED


def _open(path: Path, sample_shape: tuple[int, ...] | None) -> Source:
    path, chosen = choice(path)
    if not path.exists():
        raise SourceError(f"--source {path}: there is no such file or folder")
    suffix = "" if path.is_dir() else path.suffix.lower()
    if chosen and suffix not in (".npz", *READ_APART):
        raise SourceError(
            f"--source {path}: ::{','.join(chosen)} chooses arrays of .npz, .pt, .csv, .h5 and .hdf5 files "
            "alone; leave it out"
        )
    if path.is_dir() and (sample_shape is not None or holds_images(path)):
        from iobench.dataset.sources.images import ImageFolder

        return ImageFolder(path, sample_shape or (3, 224, 224))
    if sample_shape is not None:
        raise SourceError(f"--source {path}: --sample-shape is for folders of images and generated data")
    if suffix in (".npy", ".npz"):
        from iobench.dataset.sources.numpy_files import Npy, Npz

        return Npy(path) if suffix == ".npy" else Npz(path, chosen)
    from iobench.dataset.sources.others import OthersData, OthersFile, regular_files

    if suffix in READ_APART:
        return OthersFile(path, READ_APART[suffix], chosen)
    return OthersData(regular_files(path), _recognised(path))


def _recognised(path: Path) -> str:
    """The only format that recognises data; SourceError where none does, or several do."""
    from iobench.dataset import apart

    recognised = apart.recognise(path.resolve())
    if recognised.mixed:
        raise SourceError(f"--source {path}: {recognised.mixed}")
    found = recognised.formats
    if len(found) == 1:
        return found[0]
    if found:
        raise SourceError(
            f"--source {path}: {' and '.join(found)} both recognise it; say which with 'iobench add "
            "PATH --format F --name N', then 'iobench prepare --name N' converts it"
        )
    if path.is_dir():
        raise SourceError(
            f"--source {path}: no format recognises it ({', '.join(formats.names())}), and there "
            "is no image in it; images go into one subfolder per label"
        )
    raise SourceError(
        f"--source {path}: {path.suffix or 'a file without a suffix'} is not read, and no "
        f"format recognises it ({', '.join(formats.names())}); give "
        ".npy, .npz, .pt, .csv, .h5, .hdf5 or a folder of images"
    )
