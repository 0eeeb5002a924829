"""Add data that iobench did not write: files, or objects of a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from iobench.base.finding import Finding
from iobench.dataset.add_files import AddOptions, add_files
from iobench.dataset.add_remote import add_remote
from iobench.dataset.artifact_writer import Prepared
from iobench.dataset.hashing import PART_S
from iobench.dataset.manifest import Manifest
from iobench.dataset.verify import Progress, no_progress
from iobench.formats import Field
from iobench.objects.url import is_url


def add(
    path: str | Path,
    format: str | None = None,
    *,
    name: str | None = None,
    fields: Sequence[Field] = (),
    data_dir: str | Path = Path("data"),
    overwrite: bool = False,
    hash: str = "auto",
    hash_s: float = PART_S,
    progress: Progress = no_progress,
    warn: Callable[[Finding], None] = lambda finding: None,
) -> tuple[Manifest, Prepared]:
    """Add existing data to a dataset where they lie, after hashing their samples once.

    Parameters
    ----------
    path : str or Path
        File, folder, or address like s3://bucket/train/, as a string, of an object or of those below it,
        which are downloaded once; may end in `::NAME,NAME` to select arrays.
    format : str, optional
        Format with options; by default the one that recognizes the data.
    name : str, optional
        Name of the dataset; by default made from the path.
    fields : sequence of Field
        Fields of data that do not describe themselves.
    data_dir : str or Path
        Folder of all datasets.
    overwrite : bool
        Replace the data of an existing dataset.
    hash : str
        ``full`` for every sample; ``auto`` for a part of large data, see `hashing`.
    hash_s : float
        Seconds for hashing, with ``auto``: of data that would take longer, a part is hashed.
    progress : callable
        Called with the activity, the bytes done and the bytes in total.
    warn : callable
        Called with each warning about the data.

    Returns
    -------
    manifest : Manifest
        The dataset.
    row : Prepared
        The new artifact.

    Raises
    ------
    SourceError
        If there are no such data, or they cannot be read, or change meanwhile.
    ArtifactExists
        If the dataset holds other data and `overwrite` is not given.
    InvalidSettings
        If an address is invalid, or rows of the format cannot be read by ranges of its objects.
    PrepareError
        If the temporary folder has no space for the objects.
    LoaderFailed, CorruptArtifact
        If the store refuses or does not answer, or there is no such bucket.
    """
    options = AddOptions(format, name, fields, data_dir, overwrite, hash, hash_s, progress, warn)
    return add_remote(str(path), options) if is_url(str(path)) else add_files(path, options)
