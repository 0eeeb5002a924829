"""Data without an iobench manifest: the files of prepared artifacts, as if by other software."""

from __future__ import annotations

import functools
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import iobench
from eval.faults.children import DONE, run_forked, run_or_raise
from eval.faults.targets import VerifiedDatasets
from iobench import Manifest, formats
from iobench.dataset.staging import SEAL
from iobench.formats import Detectable, Field, Schema


@dataclass(frozen=True)
class ForeignData:
    """Data that a format recognizes: `path` within `folder`, and the fields that `iobench add` needs."""

    variant: str
    folder: Path
    path: Path
    fields: tuple[Field, ...] = ()

    def add(self, data_dir: Path) -> Manifest:
        """Add the data to a dataset."""
        return iobench.add(self.path, self.variant, name="d", fields=self.fields, data_dir=data_dir)[0]

    def copy(self, folder: Path) -> ForeignData:
        """Copy the data to another folder, with their times."""
        shutil.copytree(self.folder, folder)
        return replace(self, folder=folder, path=folder / self.path.relative_to(self.folder))

    @property
    def files(self) -> list[Path]:
        """All files of the data."""
        return [file for file in self.path.rglob("*") if file.is_file()] or [self.path]


def foreign_data(datasets: VerifiedDatasets, folder: Path) -> list[ForeignData]:
    """Return data of every format that `add` supports, after adding each once.

    Raises RuntimeError if adding fails.
    """
    every = []
    for variant in datasets.variants:
        manifest, form = datasets.manifest_for(variant), formats.parse(variant)
        own = folder / variant
        shutil.copytree(manifest.path_of(variant), own, ignore=shutil.ignore_patterns(SEAL))
        candidates = [own, *sorted(own.rglob("*"))]
        path = next((one for one in candidates if isinstance(form, Detectable) and form.sniff(one)), None)
        if path is not None:
            plain = ForeignData(variant, own, path)
            every.append(_with_fields(plain, manifest.schema, folder / f"{variant}-added"))
    return every


def _with_fields(data: ForeignData, schema: Schema, data_dir: Path) -> ForeignData:
    """Set the fields that `add` needs: none, those of the schema, or one of a record's bytes."""
    whole = Field("whole", (schema.sample_bytes,), "uint8")
    for fields in ((), schema.fields):
        if run_forked(functools.partial(replace(data, fields=fields).add, data_dir)).code == DONE:
            return replace(data, fields=fields)
    raw = replace(data, fields=(whole,))
    run_or_raise(functools.partial(raw.add, data_dir))
    return raw
