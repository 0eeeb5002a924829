"""Object caches of the cases of a run: each has its own, empty when the run begins and removed at its end."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
from pathlib import Path

from iobench.base.errors import LoaderFailed
from iobench.base.files import system_errors_as
from iobench.bench.case import Case
from iobench.dataset.manifest import Manifest

LOCK = ".lock"


class ObjectCaches:
    """Caches of all cases on this host; only one run of a dataset may have some.

    Raises LoaderFailed if another run has, or if their folder cannot be written.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._manifest, folder = manifest, manifest.case_caches
        failing = system_errors_as(LoaderFailed, "the object caches cannot be written", folder)
        with failing, contextlib.ExitStack() as stack:
            folder.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(open(folder / LOCK, "w"))
            self._lock(lock.fileno(), folder)
            self._remove_all()
            self._files = stack.pop_all()

    def empty(self, case: Case) -> None:
        """Remove the pieces of a case."""
        shutil.rmtree(case.object_cache_of(self._manifest).folder, ignore_errors=True)

    def close(self) -> None:
        """Remove the pieces of all cases."""
        self._remove_all()
        self._files.close()

    def _lock(self, file: int, folder: Path) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LoaderFailed(
                "another run has object caches of the dataset",
                kind="locked",
                path=folder,
                hint="wait until it has finished",
            ) from None

    def _remove_all(self) -> None:
        for path in self._manifest.case_caches.iterdir():
            if path.name != LOCK:
                shutil.rmtree(path, ignore_errors=True)
