"""Sources of the samples that every format stores: generated data, or the user's own files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from iobench import formats
from iobench.base.errors import SourceError
from iobench.base.units import shape_text
from iobench.dataset.sources.generated import GeneratedLengths, Synthetic
from iobench.dataset.sources.source import FirstSamples, Source, checked, named, no_such_path, source_errors
from iobench.formats import VARIES, split_selection
from iobench.formats.folders import contains_images, suffix_of
from iobench.formats.memmap import Memmap
from iobench.formats.npy import is_mapped

__all__ = ["FirstSamples", "GeneratedLengths", "Source", "Synthetic", "checked", "open_source"]


def open_source(
    path: str | Path,
    sample_shape: tuple[int, ...] | None = None,
    columns: str = "packed",
    format: str | None = None,
    on_error: str = "stop",
    files: str | None = None,
    fields: Sequence[formats.Field] = (),
) -> Source:
    """Open the user's data as a source.

    Parameters
    ----------
    path : str or Path
        A .npy, .npz, .pt, .csv, .tsv, .jsonl, .h5, .hdf5, .mat or .nc file, a folder of images, or data in
        any readable format.
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
    files : str, optional
        Relation of the files in a folder: each is one of the ``samples``, holds several of them (``parts``),
        or is one of the ``fields``; by default inferred, which `Source.notes` says.
    fields : sequence of Field
        Fields of a sample, for data that do not describe theirs.

    Raises
    ------
    SourceError
        If there are no data (`missing-file`), or they cannot be read or stored.
    """
    path = Path(path)
    with source_errors(path):
        if not (format or files or fields) and path.is_dir() and contains_images(path):
            from iobench.dataset.sources.image_folder import ImageFolder, UnscaledImages

            kind = UnscaledImages if VARIES in (sample_shape or ()) else ImageFolder
            return kind(path, sample_shape or (3, 224, 224), on_error == "skip")
        if on_error == "skip":
            problem = "--on-error skip is for folders of images without --source-format"
            raise SourceError(problem, "conflicting-options", path, hint="omit --on-error")
        if files and format:
            problem = "--files is for data without --source-format"
            raise SourceError(problem, "conflicting-options", path, hint="omit --files")
        variant = format and formats.parse(format).variant
        return _open(path, sample_shape, columns == "packed", variant, fields, files)


def check_selectable(path: Path, form: formats.Format, names: Sequence[str]) -> None:
    """Raise SourceError if arrays are named in data whose format has none to select."""
    if names and not (isinstance(form, formats.Detectable) and form.selectable):
        problem = f"format {form.name} cannot select arrays by name"
        hint = f"omit ::{','.join(names)} to take all arrays"
        raise SourceError(problem, "not-selectable", path, hint=hint)


def _open(
    path: Path,
    sample_shape: tuple[int, ...] | None,
    packed: bool,
    format: str | None,
    fields: Sequence[formats.Field],
    files: str | None,
) -> Source:
    from iobench.dataset.artifact_location import FileTree
    from iobench.dataset.detection import ADAPTED, detect
    from iobench.dataset.file_set import Detected
    from iobench.dataset.sandbox import ADAPTERS
    from iobench.dataset.sources.file_source import FileSource, packed_table
    from iobench.formats.hdf5 import Hdf5

    path, chosen = split_selection(path)
    if not path.exists():
        raise no_such_path(path)
    tree = FileTree.of(named(path))  # which has regular files alone: others are not sniffed
    suffix = "" if path.is_dir() or format else suffix_of(path)
    describes_itself = suffix in (*ADAPTED, ".npy", ".h5", ".hdf5")
    if sample_shape is not None and describes_itself:
        raise _has_its_shape(path)
    if fields and describes_itself:
        problem = f"--field with {suffix}, which describes its fields"
        raise SourceError(problem, "conflicting-options", path, hint="omit --field")
    if format:
        detected = Detected(format)
    elif suffix == ".npy":
        detected = Detected("npy" if is_mapped(tree.path) else "unmapped-npy")
    elif suffix in ADAPTED and not any(form.sniff(tree.path) for form in (Hdf5(), Memmap())):
        detected = Detected(ADAPTED[suffix])  # but MATLAB 7.3 and NetCDF 4 are HDF5
    else:
        detected = detect(tree.path, "--source-format", files, chosen)
    variant = detected.variant
    if variant not in ADAPTERS:
        if sample_shape is not None:
            if "shape" not in formats.parse(variant).options:
                raise _has_its_shape(path)
            variant += f"{',' if ':' in variant else ':'}shape={shape_text(sample_shape)}"
        check_selectable(path, formats.parse(variant), chosen)
    source = FileSource(tree, variant, chosen, fields, detected.notes)
    return packed_table(source, source.kind) if packed else source


def _has_its_shape(path: Path) -> SourceError:
    problem = "--sample-shape is for images and generated data"
    return SourceError(problem, "conflicting-options", path, hint="omit --sample-shape")
