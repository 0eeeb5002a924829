"""Extension of a dataset by an artifact of the same data that is added."""

from __future__ import annotations

import dataclasses

import msgspec

from iobench import formats
from iobench.base.errors import ArtifactExists
from iobench.dataset.manifest import Manifest
from iobench.dataset.manifest_body import Checksums, ExternalData
from iobench.formats import Schema


def check_free(before: Manifest | None, variant: str, schema: Schema, added: ExternalData) -> None:
    """Raise ArtifactExists if the dataset has the variant from elsewhere, or other fields."""
    if before is None:
        return
    if before.schema != schema and set(before.artifacts) - {variant}:
        raise _other_data(before)
    if variant not in before.artifacts:
        return
    existing = before.added.get(variant)
    if existing is None or (existing.path, existing.names) != (added.path, added.names):
        origin = "prepared" if existing is None else f"added from {existing.path}"
        raise ArtifactExists(
            f"dataset {before.name} already has {variant} ({origin})",
            kind="variant-exists",
            hint="use another --name, or --overwrite to replace the dataset",
        )


def extended(before: Manifest | None, made: Manifest) -> Manifest:
    """Add the new artifact to a dataset of the same data; raises ArtifactExists if it holds other data."""
    if before is None or set(before.artifacts) <= set(made.artifacts):
        return made
    if _data_of(before) == _data_of(made):
        return dataclasses.replace(before, artifacts={**before.artifacts, **made.artifacts})
    ((variant, artifact),) = made.artifacts.items()
    if not formats.parse(variant).lossless and _same_files(before, made):
        artifact = msgspec.structs.replace(artifact, checksum=Checksums.of(made.content, made.ordered))
        return dataclasses.replace(before, artifacts={**before.artifacts, variant: artifact})
    raise _other_data(before)


def _data_of(manifest: Manifest) -> tuple[object, ...]:
    return manifest.schema, manifest.part, manifest.content, manifest.ordered


def _same_files(before: Manifest, made: Manifest) -> bool:
    """Return whether both describe the same samples of the same files, which are decoded in other ways."""
    if (before.schema, before.part) != (made.schema, made.part):
        return False
    (added,) = made.added.values()
    return any((one.path, one.stamp) == (added.path, added.stamp) for one in before.added.values())


def _other_data(before: Manifest) -> ArtifactExists:
    return ArtifactExists(
        f"dataset {before.name} holds other data in {', '.join(before.artifacts)}",
        kind="other-data",
        hint="use another --name, or 'iobench add --overwrite' to replace the dataset: folders that prepare "
        "wrote are removed, added data stay",
    )
