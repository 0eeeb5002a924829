"""Data as others would have written them: what each format takes to be its own, out of what prepare wrote."""

from __future__ import annotations

import functools
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import iobench
from _faults.attacked import Whole, done
from _faults.children import DONE, forked
from iobench import Manifest, formats
from iobench.dataset import seal
from iobench.formats import Field, Schema


@dataclass(frozen=True)
class Others:
    """Data that a format takes for its own: `path` within `folder`, and what has to be told of them."""

    variant: str
    folder: Path
    path: Path
    told: tuple[Field, ...] = ()

    def add(self, data_dir: Path) -> Manifest:
        """List them in a dataset."""
        return iobench.add(self.path, self.variant, name="d", fields=self.told, data_dir=data_dir)[0]

    def copy(self, folder: Path) -> Others:
        """The same in another folder, with their times."""
        shutil.copytree(self.folder, folder)
        return replace(self, folder=folder, path=folder / self.path.relative_to(self.folder))

    @property
    def files(self) -> list[Path]:
        """Every file of them."""
        return [file for file in self.path.rglob("*") if file.is_file()] or [self.path]


def others(whole: Whole, folder: Path) -> list[Others]:
    """Data of every format that can be added, which were added once; RuntimeError where they could not be."""
    found = []
    for variant in whole.variants:
        manifest, form = whole.of(variant), formats.parse(variant)
        own = folder / variant
        shutil.copytree(manifest.path_of(variant), own, ignore=shutil.ignore_patterns(seal.FILE_NAME))
        candidates = [own, *sorted(own.rglob("*"))]
        path = next((one for one in candidates if form.sniff(one)), None)
        if path is not None:
            plain = Others(variant, own, path)
            found.append(_with_what_is_told(plain, manifest.schema, folder / f"{variant}-added"))
    return found


def _with_what_is_told(data: Others, schema: Schema, data_dir: Path) -> Others:
    """The data, and what has to be told of them: nothing, their fields, or the bytes that a record has."""
    whole = Field("whole", (schema.sample_bytes,), "uint8")
    for told in ((), schema.fields):
        if forked(functools.partial(replace(data, told=told).add, data_dir)).code == DONE:
            return replace(data, told=told)
    found = replace(data, told=(whole,))
    done(functools.partial(found.add, data_dir))
    return found
