"""What a format can fail with; each message is one line for the user.

FormatError
├ UnknownFormat        + LookupError         lists the known names
├ InvalidOption        + ValueError          an option that there is not, or a value it cannot take
├ MissingDependency    + ImportError         gives the pip command
├ UnsupportedSchema    + ValueError          the field that a format cannot hold, and why
├ BrokenPlugin                               a package whose format or loader cannot be used, and why
├ ArtifactExists       + FileExistsError     names --overwrite
└ CorruptArtifact      + ValueError          file, expected, found
"""

from __future__ import annotations

from pathlib import Path

REPAIR = "prepare it again, as it was first prepared, to repair it"  # of what prepare wrote


class FormatError(Exception):
    """Any failure of a format; its message is one line for the user."""


class UnknownFormat(FormatError, LookupError):
    """No module of that name in formats/, and no installed package that offers it."""


class InvalidOption(FormatError, ValueError):
    """A format or loader was given an option it does not have, or a value it cannot take."""


class UnsupportedSchema(FormatError, ValueError):
    """A format cannot hold samples of this kind."""


class MissingDependency(FormatError, ImportError):
    """The library that a format or loader needs is not installed."""


class BrokenPlugin(FormatError):
    """An installed package offers a format or loader that cannot be used."""


class ArtifactExists(FormatError, FileExistsError):
    """Something is already there and --overwrite was not given."""


class CorruptArtifact(FormatError, ValueError):
    """A file does not hold what was written."""


def corrupt(path: Path, expected: object, found: object) -> CorruptArtifact:
    """The CorruptArtifact that names a file, what it should hold and what it holds."""
    return CorruptArtifact(f"{path}: expected {expected}, found {found}; {REPAIR}")
