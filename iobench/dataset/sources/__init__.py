"""The shared NDArray that every format stores: generated, or the user's own files."""

from __future__ import annotations

import os
from pathlib import Path

from iobench.dataset.sources._base import BATCH_BYTES, Source, ahead, checked
from iobench.dataset.sources._files import reading
from iobench.dataset.sources._first import FirstSamples
from iobench.dataset.sources.synthetic import Synthetic
from iobench.errors import SourceError

__all__ = ["BATCH_BYTES", "FirstSamples", "Source", "Synthetic", "ahead", "checked", "open_source"]


def open_source(path: Path, sample_shape: tuple[int, ...] | None = None) -> Source:
    """The user's data at `path`: .npy, .npz, .h5/.hdf5, or a folder of images.

    Some arrays of a file with several are `FILE::NAME,NAME`; a group of an HDF5 file is a name, too.
    `sample_shape` is the shape images are resized and cropped to; other sources have their own.
    SourceError where there is nothing, or nothing that can be stored.
    """
    with reading(path):
        return _open(path, sample_shape)


def _open(path: Path, sample_shape: tuple[int, ...] | None) -> Source:
    path, chosen = _choice(path)
    if not path.exists():
        raise SourceError(f"--source {path}: there is no such file or folder")
    suffix = path.suffix.lower()
    if chosen and (path.is_dir() or suffix not in (".npz", ".h5", ".hdf5")):
        raise SourceError(
            f"--source {path}: arrays are chosen, by ::{','.join(chosen)}, from .npz, .h5 and .hdf5"
        )
    if path.is_dir():
        from iobench.dataset.sources.images import ImageFolder

        return ImageFolder(path, sample_shape or (3, 224, 224))
    if sample_shape is not None:
        raise SourceError(f"--source {path}: --sample-shape is for folders of images and generated data")
    if suffix in (".npy", ".npz"):
        from iobench.dataset.sources.numpy_files import Npy, Npz

        return Npy(path) if suffix == ".npy" else Npz(path, chosen)
    if suffix in (".h5", ".hdf5"):
        from iobench.dataset.sources.hdf5_file import Hdf5File

        return Hdf5File(path, chosen)
    raise SourceError(
        f"--source {path}: {suffix or 'a file without a suffix'} is not read; "
        "give .npy, .npz, .h5, .hdf5 or a folder of images"
    )


def _choice(path: Path) -> tuple[Path, tuple[str, ...]]:
    """The file, and the names of arrays that follow it after `::`."""
    file, separator, names = os.fspath(path).rpartition("::")
    if not separator or path.exists():
        return path, ()
    return Path(file), tuple(name.strip("/") for name in names.split(","))
