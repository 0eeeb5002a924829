"""The shared NDArray that every format stores: generated, or the user's own files."""

from __future__ import annotations

from pathlib import Path

from iobench.dataset.sources._base import BATCH_BYTES, Source, ahead, checked
from iobench.dataset.sources.synthetic import Synthetic
from iobench.errors import SourceError

__all__ = ["BATCH_BYTES", "Source", "Synthetic", "ahead", "checked", "open_source"]


def open_source(path: Path, sample_shape: tuple[int, ...] | None = None) -> Source:
    """The user's data at `path`: .npy, .npz, .h5/.hdf5, or a folder of images.

    `sample_shape` is the shape images are resized and cropped to; other sources have their own.
    SourceError where there is nothing, or nothing that can be stored.
    """
    try:
        return _open(path, sample_shape)
    except OSError as error:
        raise SourceError(f"--source {error.filename or path}: {error.strerror or error}") from error


def _open(path: Path, sample_shape: tuple[int, ...] | None) -> Source:
    if not path.exists():
        raise SourceError(f"--source {path}: there is no such file or folder")
    if path.is_dir():
        from iobench.dataset.sources.images import ImageFolder

        return ImageFolder(path, sample_shape or (3, 224, 224))
    if sample_shape is not None:
        raise SourceError(f"--source {path}: --sample-shape is for folders of images and generated data")
    suffix = path.suffix.lower()
    if suffix in (".npy", ".npz"):
        from iobench.dataset.sources.numpy_files import Npy, Npz

        return (Npy if suffix == ".npy" else Npz)(path)
    if suffix in (".h5", ".hdf5"):
        from iobench.dataset.sources.hdf5_file import Hdf5File

        return Hdf5File(path)
    raise SourceError(
        f"--source {path}: {suffix or 'a file without a suffix'} is not read; "
        "give .npy, .npz, .h5, .hdf5 or a folder of images"
    )
