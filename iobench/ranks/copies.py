"""Copies of a dataset on all hosts of a Ray cluster, each verified by checksum on its host."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from iobench.base.errors import IobenchError, ManifestError, PrepareError, WrongContent
from iobench.base.files import TEMPORARY, path_below
from iobench.base.units import MIB, bytes_text
from iobench.dataset import index_cache
from iobench.dataset.manifest import Manifest, missing_libraries
from iobench.dataset.manifest_file import FILE_NAME
from iobench.dataset.staging import LOCK, sync
from iobench.dataset.verify import verify_artifact
from iobench.ranks.ray_hosts import HostActor, RemoteHost, hosts_of

PIECE = 8 * MIB
VERIFY_S = 3600.0  # for a host to read its copy back


class Receiver(HostActor):
    """Actor that receives a dataset's files, verifies them, and moves them to their place atomically."""

    def __init__(self) -> None:
        self._root = self._staging = Path()

    def begin(self, root: str, content: int | None, variants: Sequence[str]) -> bool:
        """Return whether the same data are there in all variants.

        Raises PrepareError if other data, or only some of the variants, are there.
        """
        self._root = Path(root)
        if (self._root / FILE_NAME).exists():
            present = Manifest.load(self._root)
            if present.content != content:
                raise PrepareError(
                    "the folder holds another dataset",
                    kind="other-content",
                    path=root,
                    expected=f"content {content or 0:016x}",
                    found=f"{present.content or 0:016x}",
                    hint="remove it there, or choose another --name",
                )
            if missing := set(variants) - set(present.artifacts):
                raise PrepareError(
                    f"the folder holds the same data without {', '.join(sorted(missing))}",
                    kind="missing-variants",
                    path=root,
                    hint="remove it there",
                )
            return True
        staging = f"{TEMPORARY}copy-{self._root.name}-"
        for left in self._root.parent.glob(f"{staging}*"):  # by interrupted copies
            shutil.rmtree(left, ignore_errors=True)
        self._staging = self._root.parent / f"{staging}{os.getpid()}"
        self._staging.mkdir(parents=True)
        return False

    def take(self, name: str, piece: bytes) -> None:
        """Append to a file; raises CorruptArtifact if its name leads out of the folder."""
        path = path_below(self._staging, name, self._root)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab") as file:
            file.write(piece)

    def verify(self) -> None:
        """Read everything back and move the copy to its place; raises WrongContent if it is damaged."""
        manifest = Manifest.load(self._staging if self._staging.name else self._root)
        unreadable = missing_libraries(manifest)
        try:
            for variant in manifest.artifacts:
                if variant not in unreadable:
                    verify_artifact(manifest, variant)
        except IobenchError as error:
            if self._staging.name:
                shutil.rmtree(self._staging, ignore_errors=True)
            damaged: dict[str, Any] = {**error.fields(), "path": self._root}
            raise WrongContent(**damaged) from error
        if self._staging.name:
            sync(self._staging)
            self._staging.rename(self._root)


def copy_to_all(manifest: Manifest, address: str, say: Callable[[str], None]) -> None:
    """Copy a dataset to the same path on every host of a cluster, and verify each copy there.

    A copy that exists, as on shared storage, is only verified. `say` receives one line per host. Raises
    IobenchError, which names the host, if one cannot have the copy.
    """
    if any(artifact.added for artifact in manifest.artifacts.values()):
        raise ManifestError(
            f"dataset {manifest.name} was added, and iobench does not copy data outside its own folder",
            kind="added-data",
            hint="copy them yourself, or put them on storage that all hosts share",
        )
    with hosts_of(address, Receiver) as hosts:
        for host in hosts[1:]:
            say(_copied(manifest, host))


def _copied(manifest: Manifest, host: RemoteHost) -> str:
    root = manifest.root.absolute()
    exists = host.ask("begin", str(root), manifest.content, list(manifest.artifacts))
    sent = 0
    if not exists:
        for name, piece in pieces_of(root):
            host.ask("take", name, piece)
            sent += len(piece)
    host.ask("verify", limit_s=VERIFY_S)
    what = "exists" if exists else f"copied ({bytes_text(sent)})"
    return f"{host}: {root} {what}, verified by checksum"


def pieces_of(root: Path) -> Iterator[tuple[str, bytes]]:
    """Yield every file of a dataset in pieces, the manifest last, without caches and lock of this host."""
    own = (index_cache.FOLDER, LOCK)
    files = [p for p in sorted(root.rglob("*")) if p.is_file() and p.relative_to(root).parts[0] not in own]
    for path in sorted(files, key=lambda path: path.name == FILE_NAME):
        if path.is_symlink():
            raise PrepareError("a prepared dataset has no symbolic links", kind="unsafe-path", path=path)
        with open(path, "rb") as file:
            first = True
            while (piece := file.read(PIECE)) or first:
                yield str(path.relative_to(root)), piece
                first = False
