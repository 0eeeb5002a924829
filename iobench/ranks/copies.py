"""Copies of a dataset on all hosts of a Ray cluster, each proved by checksum where it arrived."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from iobench.base.errors import (
    IobenchError,
    ManifestError,
    PrepareError,
    WrongContent,
)
from iobench.base.units import MIB, bytes_text
from iobench.dataset import kept
from iobench.dataset.manifest import FILE_NAME, Manifest
from iobench.dataset.staging import LOCK, TEMPORARY
from iobench.dataset.verify import verify
from iobench.ranks.ray_hosts import RemoteHost, hosts_of

PIECE = 8 * MIB
PROOF_S = 3600.0  # for a host to read its copy back


class Receiver:
    """What an actor does: take a dataset's files, prove them, and put them in their place at once."""

    def __init__(self) -> None:
        self._root = self._staging = Path()

    def node(self) -> str:
        """Ray's number of its host."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def begin(self, root: str, content: int | None, variants: Sequence[str]) -> bool:
        """Whether the same data are there in all of these variants; PrepareError where anything else is."""
        self._root = Path(root)
        if (self._root / FILE_NAME).exists():
            found = Manifest.load(self._root)
            if found.content != content:
                raise PrepareError(
                    f"{root} holds other data ({found.content or 0:016x}); remove it there, or choose "
                    "another --name"
                )
            if missing := set(variants) - set(found.artifacts):
                raise PrepareError(
                    f"{root} holds the same data without {', '.join(sorted(missing))}; remove it there"
                )
            return True
        staging = f"{TEMPORARY}copy-{self._root.name}-"
        for left in self._root.parent.glob(f"{staging}*"):  # by copies that were cut short
            shutil.rmtree(left, ignore_errors=True)
        self._staging = self._root.parent / f"{staging}{os.getpid()}"
        self._staging.mkdir(parents=True)
        return False

    def take(self, name: str, piece: bytes) -> None:
        """Append to a file; PrepareError where its name leads out of the folder."""
        path = self._staging / name
        if not path.resolve().is_relative_to(self._staging.resolve()):
            raise PrepareError(f"{name!r} is no name of a file in a dataset")
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab") as file:
            file.write(piece)

    def prove(self) -> None:
        """Read everything back and compare; what is right takes its place. WrongContent where it is not."""
        arrived = self._staging if self._staging.name else self._root
        wrong = {name: why for name, why in verify(Manifest.load(arrived)).items() if why}
        if wrong:
            if self._staging.name:
                shutil.rmtree(self._staging, ignore_errors=True)
            raise WrongContent(f"{self._root}: {next(iter(wrong.values()))}")
        if self._staging.name:
            _sync(self._staging)
            self._staging.rename(self._root)


def _sync(folder: Path) -> None:
    """Have all files of a folder on the disk."""
    for path in folder.rglob("*"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def copy_to_all(manifest: Manifest, address: str, say: Callable[[str], None]) -> None:
    """Have a proved copy at the same path on every host of a cluster, and say so of each.

    What is there already is proved alone, as on storage that all hosts share. IobenchError where a host
    cannot have it, which it names.
    """
    if any(artifact.added for artifact in manifest.artifacts.values()):
        raise ManifestError(
            f"{manifest.name} was added, and its data lie elsewhere: copy them yourself, or put them on "
            "storage that all hosts share"
        )
    with hosts_of(address, Receiver) as hosts:
        for host in hosts[1:]:
            say(_copied(manifest, host))


def _copied(manifest: Manifest, host: RemoteHost) -> str:
    root = manifest.root.absolute()
    there = host.ask("begin", str(root), manifest.content, list(manifest.artifacts))
    sent = 0
    if not there:
        for name, piece in _pieces(root):
            host.ask("take", name, piece)
            sent += len(piece)
    host.ask("prove", limit_s=PROOF_S)
    what = "was there already" if there else f"was copied there ({bytes_text(sent)})"
    return f"{host}: {root} {what}, and its content is proved by checksum"


def _pieces(root: Path) -> Iterator[tuple[str, bytes]]:
    """Every file of a dataset in pieces, the manifest last; without what each host finds for itself."""
    own = (kept.FOLDER, LOCK)
    files = [p for p in sorted(root.rglob("*")) if p.is_file() and p.relative_to(root).parts[0] not in own]
    for path in sorted(files, key=lambda path: path.name == FILE_NAME):
        if path.is_symlink():
            raise IobenchError(f"{path} is a link: a dataset that prepare wrote has none")
        with open(path, "rb") as file:
            first = True
            while (piece := file.read(PIECE)) or first:
                yield str(path.relative_to(root)), piece
                first = False
