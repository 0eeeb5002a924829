"""Folders of datasets: the names that they may have, and which is the newest."""

from __future__ import annotations

import re
from pathlib import Path

from iobench.base.errors import InvalidSettings, ManifestError, no_permission
from iobench.base.files import system_errors_as
from iobench.dataset.manifest import Manifest
from iobench.dataset.manifest_file import FILE_NAME

MAX_NAME = 200  # bytes; files of results add a time and an ending to it, and a file name has at most 255
DATASET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=,-]*")


def find_dataset(data_dir: str | Path, name: str | None = None) -> Manifest:
    """Load a dataset by name, or the newest in a folder; raises ManifestError if there is none.

    The newest is not a sample that recommend wrote, nor what a killed prepare left, unless all are.
    """
    data_dir = Path(data_dir)
    if name is not None:
        return Manifest.load(data_dir / check_name(name))
    with system_errors_as(ManifestError, "cannot be listed", data_dir, hint="use another --data-dir"):
        newest_first = _newest_first(data_dir)
        finished = (root for root in newest_first if not any(root.glob(".tmp-*")))
    if not newest_first:
        raise ManifestError(
            "no dataset is prepared",
            kind="no-dataset",
            path=data_dir,
            hint="run 'iobench prepare --size 1e7' first",
        )
    datasets = (Manifest.load(root) for root in finished)
    chosen = next((one for one in datasets if "first" not in one.source), None)
    return chosen or Manifest.load(newest_first[0])


def _newest_first(data_dir: Path) -> list[Path]:
    """Return the datasets in a folder; ManifestError where the user may read none of them."""
    times, denied = [], None
    for root in data_dir.glob("*"):
        try:
            times.append(((root / FILE_NAME).stat().st_mtime_ns, root))
        except PermissionError:
            denied = no_permission(ManifestError, root)
        except OSError:  # no manifest is in it
            continue
    if denied and not times:
        raise denied
    return [root for _, root in sorted(times, reverse=True)]


def check_name(name: str) -> str:
    """Return the name if it can be a dataset's folder; otherwise raises InvalidSettings."""
    if "://" in name:
        raise InvalidSettings(
            f"dataset {name}",
            kind="remote-dataset",
            expected="a dataset on a disk",
            found="an address",
            hint="prepare --to writes to one; run, recommend, verify, limits and resume-check read from one",
        )
    if not DATASET_NAME.fullmatch(name) or name == "results":
        raise InvalidSettings(
            f"dataset name {name!r}",
            kind="invalid-name",
            hint="start it with a letter or digit, use only those and . _ - = , and not the name 'results'",
        )
    if len(name) > MAX_NAME:
        raise InvalidSettings(
            f"dataset name {name[:20]}…",
            kind="invalid-name",
            expected=f"at most {MAX_NAME} characters",
            found=len(name),
        )
    return name
