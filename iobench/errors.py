"""The errors of iobench; each message is one line that says what was asked, found, and what to do.

BenchError
├ SourceError          + ValueError          the data to be prepared cannot be
├ ManifestError        + ValueError          a dataset folder is missing, damaged or not ours
├ PrepareError         + OSError             the disk or the folder refused
├ InvalidSettings      + ValueError          settings of a run that do not go together
├ DeviceUnavailable    + RuntimeError        no such device here
├ ColdCacheUnavailable + RuntimeError        residency reached, and what holds the pages
├ LoaderFailed         + RuntimeError        a worker died
├ CaseDied             + RuntimeError        the process of a case died or hung
├ RankLost             + RuntimeError        a rank of several has gone or hangs
├ RanksDiffer          + ValueError          ranks that would not measure the same thing
├ WrongContent         + RuntimeError        expected and found checksum
├ RecordError          + ValueError          a file of records cannot be written or read
├ NotComparable        + ValueError          records that do not measure the same thing
├ ReportError          + OSError             a report cannot be written
├ MissingExtra         + ImportError         gives the pip command
└ TargetError          + RuntimeError        somebody's loader cannot be made, or fails, or hangs
"""

from __future__ import annotations

INTERRUPTED = 130  # the exit code after Ctrl-C, as a shell has it: 128 and the number of the signal


class BenchError(Exception):
    """Any failure of iobench that the user can do something about."""


class SourceError(BenchError, ValueError):
    """The data to be prepared is missing, unreadable or of a kind that cannot be stored."""


class ManifestError(BenchError, ValueError):
    """A dataset folder is missing, damaged, of a newer iobench, or points outside itself."""


class PrepareError(BenchError, OSError):
    """The disk or the folder refused what prepare asked of it."""


class InvalidSettings(BenchError, ValueError):
    """Settings of a run that do not go together."""


class DeviceUnavailable(BenchError, RuntimeError):
    """The device that was asked for is not on this machine."""


class ColdCacheUnavailable(BenchError, RuntimeError):
    """The page cache could not be emptied of a dataset, or nobody can prove that it was."""


class LoaderFailed(BenchError, RuntimeError):
    """A loader or one of its workers died."""


class CaseDied(BenchError, RuntimeError):
    """The process of a case ended, or no batch came from it for too long."""


class RankLost(BenchError, RuntimeError):
    """One of several ranks has gone, hangs or never came: nobody can go on."""


class RanksDiffer(BenchError, ValueError):
    """Ranks have other data or another iobench, so that they would not measure the same thing."""


class WrongContent(BenchError, RuntimeError):
    """What was read is not what the manifest says was written."""


class RecordError(BenchError, ValueError):
    """A file of records cannot be written or read."""


class NotComparable(BenchError, ValueError):
    """Records that were not measured alike, or have no case in common."""


class ReportError(BenchError, OSError):
    """A report or one of its pictures cannot be written."""


class MissingExtra(BenchError, ImportError):
    """A library that only this needs is not installed."""


class TargetError(BenchError, RuntimeError):
    """The user's own loader cannot be made, raises or hangs; `traceback` is where, if that is known."""

    traceback: str = ""
