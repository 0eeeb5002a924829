"""Sources of the samples that every format stores: generated data, or the user's own files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from iobench import formats
from iobench.base.errors import SourceError
from iobench.base.units import shape_text
from iobench.dataset.sources._regular_files import (
    LABELLED,
    contains_images,
    no_such_path,
    source_errors,
    usual_format,
)
from iobench.dataset.sources._source import (
    BATCH_BYTES,
    FirstSamples,
    Source,
    checked,
    default_name,
    prefetched,
)
from iobench.dataset.sources.generated_lengths import GeneratedLengths
from iobench.dataset.sources.packed_columns import packed_table
from iobench.dataset.sources.synthetic import Synthetic
from iobench.formats import VARIES, split_selection

__all__ = [
    "BATCH_BYTES",
    "FirstSamples",
    "GeneratedLengths",
    "Source",
    "Synthetic",
    "check_selectable",
    "checked",
    "convertible",
    "default_name",
    "open_source",
    "prefetched",
]

# single files that the sandbox reads: the format, or the adapter of `sandbox_worker`
SANDBOXED = {
    ".h5": "hdf5",
    ".hdf5": "hdf5",
    ".pt": "torch",
    ".pth": "torch",
    ".csv": "csv",
    ".jsonl": "jsonl",
}
CONVERTED = (".npz", ".pt", ".pth", ".csv", ".jsonl")  # that no format reads in place


def open_source(
    path: str | Path,
    sample_shape: tuple[int, ...] | None = None,
    columns: str = "packed",
    format: str | None = None,
    on_error: str = "stop",
) -> Source:
    """Open the user's data as a source.

    Parameters
    ----------
    path : str or Path
        A .npy, .npz, .pt, .csv, .jsonl, .h5 or .hdf5 file, a folder of images, or data in any readable
        format.
        ``FILE::NAME,NAME`` selects arrays of a file with several, columns of a table, or groups of an HDF5
        file.
    sample_shape : tuple of int, optional
        Shape that images, in folders or in tar shards, are resized and cropped to; ``(-1, -1, 3)`` keeps the
        size of each image. Other data have their own.
    columns : str
        ``packed`` makes the columns of a table (arrow, csv, jsonl, lance, parquet) that have one dtype one
        field; ``separate`` keeps a field for each.
    format : str, optional
        Format of the data with its options, such as ``tokens:dtype=uint16``; by default the one that
        recognizes them.
    on_error : str
        ``skip`` leaves out images of a folder that cannot be decoded, which `Source.notes` counts. ``stop``
        raises when the first one is read.

    Raises
    ------
    SourceError
        If there are no data (`missing-file`), or they cannot be read or stored.
    """
    path = Path(path)
    with source_errors(path):
        if not format and path.is_dir() and contains_images(path):
            from iobench.dataset.sources.image_folder import ImageFolder
            from iobench.dataset.sources.unscaled_images import UnscaledImages

            kind = UnscaledImages if VARIES in (sample_shape or ()) else ImageFolder
            return kind(path, sample_shape or (3, 224, 224), on_error == "skip")
        if on_error == "skip":
            problem = "--on-error skip is for folders of images without --source-format"
            raise SourceError(problem, kind="conflicting-options", path=path, hint="omit --on-error")
        return _open(path, sample_shape, columns == "packed", format and formats.parse(format).variant)


def check_selectable(path: Path, form: formats.Format, names: Sequence[str]) -> None:
    """Raise SourceError if arrays are named in data whose format has none to select."""
    if names and not (isinstance(form, formats.Detectable) and form.selectable):
        raise SourceError(
            f"format {form.name} cannot select arrays by name",
            kind="not-selectable",
            path=path,
            hint=f"omit ::{','.join(names)} to take all arrays",
        )


def convertible(path: Path) -> bool:
    """Return whether `open_source` reads data that no format recognizes."""
    return contains_images(path) if path.is_dir() else path.suffix.lower() in CONVERTED


def _open(path: Path, sample_shape: tuple[int, ...] | None, packed: bool, format: str | None) -> Source:
    path, chosen = split_selection(path)
    if not path.exists():
        raise no_such_path(path)
    suffix = "" if path.is_dir() or format else path.suffix.lower()
    if sample_shape is not None and suffix in (".npy", ".npz", *SANDBOXED):
        raise _has_its_shape(path)
    if suffix in (".npy", ".npz"):
        from iobench.dataset.sources.numpy_files import NpyFile, NpzFile

        if suffix == ".npy":
            check_selectable(path, formats.get("npy"), chosen)
        return NpyFile(path) if suffix == ".npy" else NpzFile(path, chosen)
    from iobench.dataset.file_tree import FileTree
    from iobench.dataset.sources.sandboxed import FormatSource, SandboxedFile

    source: SandboxedFile | FormatSource
    if suffix in SANDBOXED:
        source = SandboxedFile(path, SANDBOXED[suffix], chosen)
    else:
        tree = FileTree.of(path.resolve())  # which has regular files alone: others are not sniffed
        variant = _scaled(path, format or _sniffed(path), sample_shape)
        check_selectable(path, formats.parse(variant), chosen)
        source = FormatSource(tree, variant, chosen)
    return packed_table(source, source.kind) if packed else source


def _scaled(path: Path, variant: str, shape: tuple[int, ...] | None) -> str:
    """Return a variant that scales images to a shape; raises SourceError for a format that cannot."""
    if shape is None:
        return variant
    if "shape" not in formats.parse(variant).options:
        raise _has_its_shape(path)
    return f"{variant}{',' if ':' in variant else ':'}shape={shape_text(shape)}"


def _has_its_shape(path: Path) -> SourceError:
    problem = "--sample-shape is for images and generated data"
    return SourceError(problem, kind="conflicting-options", path=path, hint="omit --sample-shape")


def _sniffed(path: Path) -> str:
    """Return the only format that recognizes the data; raises SourceError if it is not exactly one."""
    from iobench.dataset import sandbox

    result = sandbox.sniff(path.resolve())
    if result.ambiguity:
        hint = "name the entry to read" if result.members else "give --source-format"
        raise SourceError(result.ambiguity, kind="ambiguous-format", path=path, hint=hint)
    if name := result.first_format(path):
        return name
    known = ", ".join(formats.names())
    if path.is_dir():
        raise SourceError(
            f"no format recognizes the folder ({known}), and it contains no image",
            kind="unrecognized",
            path=path,
            hint=LABELLED,
        )
    raise SourceError(
        f"{path.suffix or 'a file without a suffix'} is not read, and no format recognizes it ({known})",
        kind="unrecognized",
        path=path,
        hint=usual_format(path, "--source-format")
        + "give .npy, .npz, .pt, .csv, .jsonl, .h5, .hdf5, a folder of images, or --source-format",
    )
