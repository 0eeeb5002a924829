"""Errors that a user can act on: built from fields, rendered as one line."""

from __future__ import annotations

import errno
import os
import pwd
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from iobench.base.credentials import known_secrets, scrubbed, shown_address
from iobench.base.text import reason


def is_panic(error: BaseException) -> bool:
    """Return True for a panic of a library in Rust: a BaseException of a class that no module exports."""
    return type(error).__name__ == "PanicException"


_Error = TypeVar("_Error", bound="IobenchError")
_FIELDS = ("problem", "kind", "path", "expected", "found", "hint")


class IobenchError(Exception):
    """Any failure that the user can do something about.

    Rendered as ``PATH: PROBLEM: expected EXPECTED, found FOUND; HINT``, with the parts that are set. No part
    holds a credential, even of a server's answer: errors are printed, recorded and sent to other processes.

    Attributes
    ----------
    kind : str
        Short stable identifier, such as ``corrupt-artifact``; the class's own name unless one is given.
    problem : str
        What failed: what was asked, in a few words.
    path : str or None
        The file, folder or other place concerned.
    expected, found : str or None
        What should have been there, and what was.
    hint : str or None
        What to type or change.
    traceback : str
        Where in the user's own code it happened; empty where that is unknown or does not matter.
    """

    default_kind: ClassVar[str] = "error"

    def __init_subclass__(cls) -> None:
        """Derive the default kind from the class's name: `CorruptArtifact` is `corrupt-artifact`."""
        super().__init_subclass__()
        cls.default_kind = re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__.removesuffix("Error")).lower()

    def __init__(
        self,
        problem: str = "",
        kind: str | None = None,
        path: str | os.PathLike[str] | None = None,
        *,
        expected: object = None,
        found: object = None,
        hint: str | None = None,
    ) -> None:
        secrets = known_secrets()

        def shown(value: object) -> str | None:
            return None if value is None else scrubbed(str(value), secrets)

        self.problem, self.kind = scrubbed(problem, secrets), kind or self.default_kind
        super().__init__(self.problem)
        self.path = shown(None if path is None else shown_address(os.fspath(path)))
        self.expected, self.found, self.hint = shown(expected), shown(found), shown(hint)
        self.traceback = ""

    def __str__(self) -> str:
        difference = ", ".join(
            f"{word} {value}"
            for word, value in (("expected", self.expected), ("found", self.found))
            if value is not None
        )
        sentence = ": ".join(part for part in (self.path, self.problem, difference) if part)
        return f"{sentence}; {self.hint}" if self.hint else sentence

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.fields(), self.traceback)

    def fields(self) -> dict[str, str | None]:
        """Return its fields by name, for JSON and for other processes."""
        return {name: getattr(self, name) for name in _FIELDS}

    def changed(self: _Error, **fields: str | os.PathLike[str] | None) -> _Error:
        """Return a new error with some fields changed, without the frames that raised this one."""
        return _rebuild(type(self), self.fields() | fields, self.traceback)

    def converted(self, cls: type[_Error]) -> _Error:
        """Return an error of another class with the same fields; a default kind becomes that class's."""
        kind = None if self.kind == self.default_kind else self.kind
        return _rebuild(cls, self.fields() | {"kind": kind}, self.traceback)


def _rebuild(cls: type[_Error], fields: dict[str, Any], traceback: str) -> _Error:
    error = cls(**fields)
    error.traceback = traceback
    return error


class InvalidOption(IobenchError, ValueError):
    """A format or loader was given an option it does not have, or a value it cannot take."""


class InvalidSettings(IobenchError, ValueError):
    """Settings that exclude each other or are out of range."""


class UnknownFormat(IobenchError, LookupError):
    """No format of that name in iobench or in an installed package."""


class UnsupportedSchema(IobenchError, ValueError):
    """A format cannot hold samples of this kind."""


class MissingDependency(IobenchError, ImportError):
    """A library that an optional part needs is not installed."""


class BrokenPlugin(IobenchError):
    """An installed package offers a format or loader that cannot be used."""


class ArtifactExists(IobenchError, FileExistsError):
    """Something is already there and --overwrite was not given."""


class CorruptArtifact(IobenchError, ValueError):
    """A file does not hold what was written."""


class SourceError(IobenchError, ValueError):
    """Data to be prepared or added is missing, unreadable or of a kind that cannot be stored."""


class ManifestError(IobenchError, ValueError):
    """A dataset folder is missing, damaged, of another version, or points outside itself."""


class PrepareError(IobenchError, OSError):
    """The disk or the folder refused a write of prepare."""


class DeviceUnavailable(IobenchError, RuntimeError):
    """The requested device is not on this machine."""


class ColdCacheUnavailable(IobenchError, RuntimeError):
    """The page cache could not be emptied of a dataset, or that could not be verified."""


class SystemRefused(IobenchError, OSError):
    """The system lacks or refuses what iobench needs: a process, a temporary folder, /proc."""


class LoaderFailed(IobenchError, RuntimeError):
    """A loader or one of its workers died."""


class CaseDied(IobenchError, RuntimeError):
    """The process of a case died, or sent no batch for too long."""


class RankLost(IobenchError, RuntimeError):
    """A rank died, hangs or never started, so that the others cannot continue."""


class RanksDiffer(IobenchError, ValueError):
    """Ranks have different data, settings or versions of iobench."""


class WrongContent(IobenchError, RuntimeError):
    """The bytes that were read are not those that the manifest records."""


class RecordError(IobenchError, ValueError):
    """A file of records cannot be written or read."""


class NotComparable(IobenchError, ValueError):
    """Records that were measured differently, or have no case in common."""


class ReportError(IobenchError, OSError):
    """A report or one of its pictures cannot be written."""


class TargetError(IobenchError, RuntimeError):
    """A user-defined loader cannot be made, raises or hangs; `traceback` says where, if known."""


class NoRounds(TargetError):
    """The time ended before each of several loaders had a round."""


def conflict(problem: str, hint: str) -> InvalidSettings:
    """Return the error for options that exclude each other."""
    return InvalidSettings(problem, kind="conflicting-options", hint=hint)


@contextmanager
def needing(what: str, extra: str) -> Iterator[None]:
    """Convert an ImportError in the body: `what` needs a library, which an extra of iobench installs."""
    try:
        yield
    except MissingDependency:
        raise
    except ImportError as error:
        problem = f"{what} needs {error.name}, which is not installed"
        raise MissingDependency(problem, hint=f"pip install 'iobench[{extra}]'") from error


NO_MEMORY = "out-of-memory"
REPREPARE = "prepare it again with the same options to repair it"  # for artifacts that prepare wrote


def no_permission(cls: type[_Error], path: str | os.PathLike[str] | None) -> _Error:
    """Return the error for a file or folder that this user may not read."""
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container's user without a name
        user = str(os.geteuid())
    hint = "run iobench as its owner, or let this user read it"
    return cls("no permission to read it", kind="no-permission", path=path, found=f"user {user}", hint=hint)


def corrupt(path: Path, expected: object, found: object, kind: str | None = None) -> CorruptArtifact:
    """Return the CorruptArtifact for a file that should hold `expected` and holds `found`."""
    return CorruptArtifact(kind=kind, path=path, expected=expected, found=found, hint=REPREPARE)


@contextmanager
def expecting(
    path: Path,
    expected: object,
    errors: type[Exception] | tuple[type[Exception], ...],
    kind: str | None = None,
) -> Iterator[None]:
    """Raise CorruptArtifact in place of these errors of a block that reads `expected` from a file.

    See `damage`. It takes microseconds: what reads single samples has a try statement of its own.
    """
    try:
        yield
    except IobenchError:
        raise
    except errors as error:
        raise damage(error, path, expected, kind) from error


def damage(error: BaseException, path: Path, expected: object, kind: str | None = None) -> IobenchError:
    """Return the error to raise in place of that of a library, which read `expected` from a file.

    It is CorruptArtifact, of kind NO_MEMORY for an allocation that failed. It is LoaderFailed for an error of
    the system that no other bytes would have prevented, such as too many open files or a lost mount.
    Libraries raise OSErrors without a number about what they read.
    """
    if isinstance(error, MemoryError):
        problem = "takes more memory than there is"
        return CorruptArtifact(problem, kind=NO_MEMORY, path=path, expected=expected, found=reason(error))
    if isinstance(error, PermissionError):
        return no_permission(CorruptArtifact, error.filename or path)
    if isinstance(error, OSError) and error.errno not in _ABOUT_FILES:
        return LoaderFailed(f"cannot be read: {reason(error)}", kind="read-error", path=path)
    return corrupt(path, expected, reason(error), kind)


_ABOUT_FILES = (  # no such file, something else than a file (EINVAL: see `regular`), or unreadable blocks
    *(None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ELOOP, errno.ENAMETOOLONG),
    *(errno.ENXIO, errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.ENODATA),
)


def in_use(path: Path, found: str, hint: str) -> LoaderFailed:
    """Return the error for a file that cannot be opened because something else has it open."""
    return LoaderFailed("cannot be opened", kind="in-use", path=path, found=found, hint=hint)
