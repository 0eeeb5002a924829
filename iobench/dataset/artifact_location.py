"""Locations of artifacts: where their files are, and whether these changed since they were verified.

Artifacts written by prepare lie in sealed folders of the dataset (`ManagedArtifact`). Data that were added
stay where they are and are never written to, moved or removed (`ExternalArtifact`).

Data of other programs have a stamp of one size, however many files there are: their number, their bytes, the
newest time of change, and a digest over each file's name, size, time of change and inode. Taking it costs one
stat per file, about 7 µs of processor time, and opens none.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import shlex
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from iobench.base.errors import REPREPARE, CorruptArtifact, IobenchError, SourceError, corrupt, no_permission
from iobench.base.files import path_below
from iobench.base.units import bytes_text, counted
from iobench.dataset.manifest_file import Artifact, ExternalData, FileStamp, TreeStamp
from iobench.dataset.sources.source import check_regular, refused_by_system
from iobench.dataset.staging import SEAL, Seal
from iobench.formats import Schema
from iobench.formats.array_schema import with_selection
from iobench.objects.url import upload_command


@dataclass(frozen=True)
class FileTree:
    """A file, or all files below a folder sorted by name; `stamp` identifies their state.

    `others` are names of files, below the folder of a file, that hold some of its data.
    """

    path: Path
    others: tuple[str, ...]
    names: tuple[str, ...]  # paths of the files
    stamp: TreeStamp
    disk_bytes: int  # allocated for them

    @classmethod
    def of(cls, path: Path, others: Sequence[str] = ()) -> FileTree:
        """List and stamp the files now at `path`, and the `others`.

        Raises SourceError if nothing is there (`missing-file`), for anything but regular files and folders
        (`not-a-file`), and for a link out of the folder (`link-outside`): nothing outside it is read but the
        contents of a cache of huggingface_hub.
        """
        # bytes in front of each relative name
        above = len(os.fsencode(path.parent if others else path))
        digest, names, size, allocated, newest = hashlib.blake2b(digest_size=8), [], 0, 0, 0
        for file, status in _walk(path, others):
            name = os.fsencode(file)[above:]
            digest.update(b"%s\0%d %d %d\n" % (name, status.st_size, status.st_mtime_ns, status.st_ino))
            names.append(file)
            size, allocated = size + status.st_size, allocated + 512 * status.st_blocks
            newest = max(newest, status.st_mtime_ns)
        if not names:
            raise SourceError("the folder contains no file", "empty", path)
        return cls(
            path,
            tuple(others),
            tuple(names),
            TreeStamp(len(names), size, newest, digest.hexdigest()),
            allocated,
        )

    @property
    def files(self) -> list[Path]:
        """Paths of all files."""
        return [Path(name) for name in self.names]


def differences(before: TreeStamp, now: TreeStamp) -> str:
    """Describe the difference of two states in a few words."""
    if (before.files, before.bytes) == (now.files, now.bytes):
        return "a file was rewritten, moved or replaced"
    then, since = (f"{counted(s.files, 'file')} of {bytes_text(s.bytes)}" for s in (before, now))
    if then == since:
        then, since = (f"{s.bytes:,} bytes" for s in (before, now))
    return f"was {then}, is {since}"


def _walk(path: Path, others: Sequence[str]) -> Iterator[tuple[str, os.stat_result]]:
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            yield from _below(os.fspath(path), _inside(path))
            return
        check_regular(path, status)
        yield os.fspath(path), status
        for name in others:
            file = path_below(path.parent, name)
            _check_link(os.fspath(file), _inside(path.parent))
            status = os.stat(file)
            check_regular(file, status)
            yield os.fspath(file), status
    except OSError as error:
        raise refused_by_system(error, path) from error


def _inside(folder: Path) -> tuple[str, ...]:
    """Return the beginnings of paths that links may lead to.

    Of a cache of huggingface_hub, whose snapshots are links to its contents, these are inside, too.
    """
    path = Path(os.path.realpath(folder))
    snapshots = [parent for parent in (path, *path.parents) if parent.name == "snapshots"]
    blobs = [parent.with_name("blobs") for parent in snapshots if parent.with_name("blobs").is_dir()]
    return tuple(f"{one}{os.sep}" for one in (path, *blobs))


def _below(folder: str, inside: tuple[str, ...]) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(folder) as scan:
        entries = sorted(scan, key=lambda entry: entry.name)
    for entry in entries:
        if entry.is_symlink():
            _check_link(entry.path, inside)
        elif entry.is_dir(follow_symlinks=False):
            yield from _below(entry.path, inside)
            continue
        status = entry.stat()
        check_regular(entry.path, status, hint="move it out of the folder")
        yield entry.path, status


def _check_link(path: str, inside: tuple[str, ...]) -> None:
    target = os.path.realpath(path)
    if not target.startswith(inside):
        hint = "replace it by a copy, or name the folder it points to"
        raise SourceError(f"a link out of the folder, to {target}", "link-outside", path, hint=hint)
    if os.path.isdir(target):
        problem = "a link to another folder inside the data"
        raise SourceError(problem, "link-to-folder", path, hint="remove the link")


AT_ONCE = 4  # files checked with each read: each check releases the GIL


class ChangeDetector:
    """Detects files whose size, inode, or time of modification or change is another than when it was made.

    A look at a file takes about 3 µs of CPU time. What is written through a map is not seen before the kernel
    notes the time, nor a rewriting to the same size within one tick of its clock (4 ms).
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = files
        stamps = [(os.fspath(file), _stamp(os.fspath(file))) for file in files]
        self._parts = [stamps[low : low + AT_ONCE] for low in range(0, len(stamps), AT_ONCE)] or [[]]
        self._turn = itertools.count()

    def check(self, every: bool = False) -> None:
        """Raise CorruptArtifact if a file was truncated, rewritten, replaced or removed.

        Looks at the next AT_ONCE files, in a cycle over all of them, or at `every` file.
        """
        parts = self._parts if every else [self._parts[next(self._turn) % len(self._parts)]]
        for file, stamp in itertools.chain.from_iterable(parts):
            if (now := _stamp(file)) != stamp:
                size = f"{now[0]} bytes, changed while it was read" if now else "no such file"
                expected = f"{stamp[0]} bytes" if stamp else "a file"
                raise corrupt(Path(file), expected, size, kind="changed" if now else "missing-file")

    def is_unchanged(self) -> bool:
        """Return True if no file changed."""
        return all(_stamp(file) == stamp for part in self._parts for file, stamp in part)


def _stamp(file: str) -> tuple[int, int, int, int] | None:
    try:
        stat = os.stat(file)
    except FileNotFoundError:
        return None
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


class ArtifactLocation:
    """Location of an artifact's files; by default none of them is on this machine, and none can change."""

    path: Path  # the path that its format opens
    hint: str  # remedy if the files are not those that were verified

    def with_hint(self, error: IobenchError) -> IobenchError:
        """Replace the remedy for artifacts written by prepare by this location's."""
        if error.hint == REPREPARE:
            error.hint = self.hint
        return error

    @contextmanager
    def hinting(self) -> Iterator[None]:
        """Apply `with_hint` to every error raised in the body."""
        try:
            yield
        except IobenchError as error:
            self.with_hint(error)
            raise

    @property
    def files(self) -> list[Path]:
        """All data files; raises CorruptArtifact if they cannot be listed."""
        return []

    def check(self) -> None:
        """Raise CorruptArtifact if the files visibly changed since they were verified; reads no data."""

    def unchanged(self) -> bool:
        """Return whether no file was touched since it was verified."""
        return True


class ManagedArtifact(ArtifactLocation):
    """A sealed folder of the dataset that prepare wrote."""

    hint = REPREPARE

    def __init__(self, root: Path, artifact: Artifact, expected: Seal) -> None:
        self.path = root / artifact.folder
        self._root, self._artifact, self._expected = root, artifact, expected

    @property
    def files(self) -> list[Path]:
        """All files in the manifest, whether they exist or not."""
        return [self.path / name for name in self._artifact.files]

    def check(self) -> None:
        """Raise CorruptArtifact for a file that is missing, of another size or a link out, or a wrong seal.

        Only the seal is opened.
        """
        self._check_inside()
        for name, stamp in self._artifact.files.items():
            size = _size(os.path.join(self.path, name))  # pathlib's ways cost more than the stat itself
            if size is None:
                raise corrupt(self.path / name, f"{stamp.bytes} bytes", "no such file", kind="missing-file")
            if size != stamp.bytes:
                raise corrupt(self.path / name, f"{stamp.bytes} bytes", f"{size} bytes", kind="wrong-size")
        self._check_seal()

    def unchanged(self) -> bool:
        """Return whether the seal is right and every file has its recorded size and time of change."""
        try:
            self._check_seal()
        except CorruptArtifact:
            return False
        recorded, now = self._artifact.files, stamps(self.path)
        return all(now.get(name) == stamp for name, stamp in recorded.items())

    def _check_inside(self) -> None:
        """Raise CorruptArtifact if the folder or one of its files is a link to somewhere else."""
        folder, root = self.path, os.path.realpath(self._root)
        here = os.path.realpath(folder)
        if os.path.dirname(here) != root:
            raise corrupt(folder, "a folder in its dataset", f"a link to {here}", kind="outside-dataset")
        inside = here + os.sep
        names = set(self._artifact.files)
        while names:  # files, then their folders, then the folders of these
            for name in sorted(names):
                path = os.path.join(self.path, name)
                if os.path.islink(path) and not os.path.realpath(path).startswith(inside):
                    target = os.path.realpath(path)
                    raise corrupt(
                        Path(path), f"a file in {folder.name}", f"a link to {target}", kind="outside-dataset"
                    )
            names = {os.path.dirname(name) for name in names} - {""}

    def _check_seal(self) -> None:
        expected, folder = self._expected, self.path
        try:
            sealed = Seal.read(folder)
        except PermissionError as error:
            raise no_permission(CorruptArtifact, error.filename) from error
        if sealed is None and self._artifact.remote is not None:
            problem = "it was uploaded to an object store, and has no seal to read it in a folder by"
            hint = f"give its address, or register its files: 'iobench add {shlex.quote(str(folder))}'"
            raise CorruptArtifact(problem, "uploaded", folder, hint=hint)
        if sealed is None:
            raise corrupt(folder / SEAL, "the seal of the artifact", "none", kind="no-seal")
        if msgspec.structs.replace(sealed, folder=expected.folder, files=expected.files) != expected:
            raise corrupt(
                folder,
                f"checksum {expected.content:016x} of {expected.samples} samples",
                f"checksum {sealed.content:016x} of {sealed.samples} samples",
                kind="other-content",
            )
        if sealed.folder != expected.folder:
            raise corrupt(
                folder, f"the seal of {expected.folder}", f"that of {sealed.folder}", kind="other-seal"
            )


class ExternalArtifact(ArtifactLocation):
    """Data that iobench did not write, at their own path."""

    def __init__(self, root: Path, schema: Schema, artifact: Artifact, added: ExternalData) -> None:
        self.path, self._dataset = Path(added.path), root.name
        self._added = added
        data = str(with_selection(Path(added.path), added.names))
        again = f"hash them again: {_command(root, schema, artifact.variant, data, added.fields_given)}"
        if added.samples is not None:
            again = "run 'iobench recommend' again"
        self.hint = f"restore the original files, or {again}"

    @property
    def files(self) -> list[Path]:
        """All files that exist now."""
        return self._now().files

    def check(self) -> None:
        """Raise CorruptArtifact if a file was changed, replaced, added or removed since it was hashed."""
        now = self._now().stamp
        if now != self._added.stamp:
            raise CorruptArtifact(
                f"changed since it was added to dataset {self._dataset}: "
                f"{differences(self._added.stamp, now)}",
                "changed",
                self.path,
                hint=self.hint,
            )

    def unchanged(self) -> bool:
        """Return whether every file has its recorded name, size, time of change and inode."""
        return self._now().stamp == self._added.stamp

    def _now(self) -> FileTree:
        try:
            return FileTree.of(self.path, self._added.others)
        except SourceError as error:
            damage = error.converted(CorruptArtifact)
            problem = f"in dataset {self._dataset}: {error.problem}"
            raise damage.changed(problem=problem, hint=self.hint) from None


class RemoteArtifact(ArtifactLocation):
    """Objects in an object store: each request names the version that the manifest records."""

    def __init__(self, root: Path, schema: Schema, artifact: Artifact, url: str) -> None:
        self.path = root  # the folder of manifest and indexes
        self.hint = f"upload it again with {upload_command(url, ' --overwrite')}"
        if artifact.remote is not None and (address := artifact.remote.added):
            self.hint = f"hash them again: {_command(root, schema, artifact.variant, address)} --overwrite"


def _size(file: str) -> int | None:
    """Return the size of a regular file, or None if there is none; CorruptArtifact if it may not be read."""
    try:
        status = os.stat(file)
        if not os.access(file, os.R_OK, effective_ids=True):
            raise PermissionError
    except PermissionError as error:
        raise no_permission(CorruptArtifact, file) from error
    except (OSError, ValueError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _command(root: Path, schema: Schema, variant: str, data: str, fields_given: bool = False) -> str:
    words = ["iobench", "add", data, "--name", root.name, "--format", variant]
    words += [f"--field={field.typed}" for field in schema.fields if fields_given]
    return shlex.join(words if root.parent == Path("data") else [*words, "--data-dir", str(root.parent)])


def stamps(folder: Path) -> dict[str, FileStamp]:
    """Return size and time of change of every data file below a folder, by relative path."""
    return {
        str(path.relative_to(folder)): FileStamp(path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != SEAL
    }


def stored_bytes(folder: Path) -> int:
    """Return the bytes allocated on disk for all data files below a folder."""
    return sum((folder / name).stat().st_blocks * 512 for name in stamps(folder))
