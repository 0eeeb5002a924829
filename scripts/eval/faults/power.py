"""A simulated power failure: changes that were not synced are lost."""

from __future__ import annotations

import os
import random
import shutil
import stat
from pathlib import Path

_link = os.link  # before SyscallInterceptor wraps it


class Disk:
    """The durable state of a folder: files and directory entries as of their last sync.

    A hard link preserves each synced file, and an open descriptor each synced folder, so that no inode number
    is reused. An entry that was not synced survives with probability `survival`, because a file system
    guarantees no order between entries. File content that was not synced is lost.
    """

    def __init__(self, root: Path, backup: Path, survival: float, rng: random.Random) -> None:
        self.root, self.backup, self.survival, self.rng = root, backup, survival, rng
        self.names: dict[int, dict[str, int]] = {}
        self.folders: set[int] = set()
        backup.mkdir()
        for path in [root, *root.rglob("*")]:
            descriptor = os.open(path, os.O_RDONLY)
            self.synced(descriptor)
            os.close(descriptor)

    def synced(self, descriptor: int) -> None:
        """Record the current state of a file or folder as durable."""
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            if status.st_ino not in self.folders:
                os.dup(descriptor)
            self.folders.add(status.st_ino)
            self.names[status.st_ino] = _names(descriptor)
        elif not self._copy_of(status.st_ino).exists():
            _link(os.readlink(f"/proc/self/fd/{descriptor}"), self._copy_of(status.st_ino))

    def fail(self) -> None:
        """Reduce the folder to what a power failure would leave."""
        here = {path.stat().st_ino: path for path in [self.root, *self.root.rglob("*")]}
        rebuilt = self.backup / "rebuilt"
        self._rebuild(self.root.stat().st_ino, rebuilt, here)
        shutil.rmtree(self.root)
        rebuilt.rename(self.root)

    def _rebuild(self, folder: int, target: Path, here: dict[int, Path]) -> None:
        target.mkdir()
        durable = self.names.get(folder, {})
        current = _names(here[folder]) if folder in here else durable
        for name in sorted(durable.keys() | current.keys()):
            chosen = (current if self.rng.random() < self.survival else durable).get(name)
            if chosen is None:
                continue
            if chosen in self.folders or (chosen in here and here[chosen].is_dir()):
                self._rebuild(chosen, target / name, here)
            elif self._copy_of(chosen).exists():
                shutil.copy2(self._copy_of(chosen), target / name)
            else:  # never synced: the name survived, the content did not
                (target / name).touch()

    def _copy_of(self, inode: int) -> Path:
        return self.backup / str(inode)


def _names(folder: int | Path) -> dict[str, int]:
    with os.scandir(folder) as entries:
        return {entry.name: entry.inode() for entry in entries}
