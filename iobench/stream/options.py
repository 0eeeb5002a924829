"""Options of StreamLoader, in a person's own code and as a loader of `iobench run`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import ClassVar

from iobench.base.errors import InvalidSettings
from iobench.base.options import LIMITS, Options, check_setting, option
from iobench.base.text import suggestion
from iobench.formats import Schema
from iobench.loading.batching import BLOCK_BYTES, WINDOW_BYTES
from iobench.objects.client import RETRIES
from iobench.objects.reader import COALESCE_BYTES, IN_FLIGHT, MAX_GAP, REQUEST_BYTES


@dataclass(frozen=True)
class ReadOptions(Options):
    """Threads and the way of reading; for a dataset in an object store its requests."""

    name: ClassVar[str] = "stream"

    threads: int | None = option(
        None,
        "reading threads; by default chosen by format and number of cores",
        minimum=1,
        maximum=LIMITS["threads"][1],
    )
    direct: bool | None = option(
        None, "read past the page cache; by default only if the data would not stay in memory"
    )

    in_flight: int = option(IN_FLIGHT, "object store: requests in flight", minimum=1, maximum=1024)
    request_bytes: int = option(
        REQUEST_BYTES, "object store: most bytes of a request", minimum=1, maximum=1 << 30
    )
    coalesce_bytes: int = option(
        COALESCE_BYTES, "object store: gaps up to this are fetched along", minimum=0, maximum=MAX_GAP
    )
    retries: int = option(
        RETRIES, "object store: times that a request that failed is sent again", minimum=0, maximum=100
    )


@dataclass(frozen=True, kw_only=True)
class StreamOptions(ReadOptions):
    """Settings of a StreamLoader that most trainings leave as they are.

    Parameters
    ----------
    batch_tokens : int, optional
        For samples that differ in length, in place of `batch_size`: a batch takes samples until the next
        would exceed so many elements. Batches, and with them `len`, then differ from epoch to epoch. All
        ranks have the same number of batches.
    block_bytes, window_bytes : int
        Sizes for order "block".
    copy : bool
        Copy rows into memory of the batch's own. By default a batch on the CPU, in order "sequential" and
        without `transform`, is a view of the files where its rows lie one after the other. What you write
        into it stays in it. If a file is cut short while you hold it, what was lost becomes zeros, and the
        next batch raises the error.
    nested : bool
        Yield TensorDicts, nested as the data that were added are by their own names: ``batch["obs", "img"]``
        for the field ``obs_img`` of ``obs/img``. By default a batch is a flat dict.
    threads : int, optional
        Number of reading threads; by default chosen by format, processors and state of the page cache. If
        the rows are in memory, the consumer's thread is one of them while it waits.
    direct : bool, optional
        Read past the page cache (True) or through it (False); by default chosen likewise.
    in_flight, request_bytes, coalesce_bytes, retries : int
        Of an object store: most requests in flight, most bytes of a request, the largest gap between rows
        that is fetched along with them, and the times that a request that failed is sent again.
    object_cache : int, optional
        Of an object store: most bytes of its objects that are kept in `data_dir` for later epochs and
        processes, of each format; see `iobench.objects.cache`. None are by default. A disk that becomes
        full is one RuntimeWarning, after which no more are kept.
    data_dir : str or Path
        Folder that caches manifest and indexes of a dataset in an object store.

    Raises
    ------
    InvalidOption, InvalidSettings
        If one is out of its range.
    """

    batch_tokens: int | None = None
    block_bytes: int = BLOCK_BYTES
    window_bytes: int = WINDOW_BYTES
    copy: bool = False
    nested: bool = False
    object_cache: int | None = None
    data_dir: str | Path = Path("data")

    def __post_init__(self) -> None:
        ReadOptions(*(getattr(self, one.name) for one in fields(ReadOptions)))  # raises for its own options
        if self.object_cache is not None:
            check_setting("object_cache", self.object_cache)


DEFAULTS = StreamOptions()


def chosen_fields(schema: Schema, names: Sequence[str] | None) -> Schema:
    """Return the schema of the fields to read, all by default; InvalidSettings if one is unknown.

    A field in which several axes vary comes with that of its extents.
    """
    if names is None:
        return schema
    known = [field.name for field in schema.fields]
    if wrong := [name for name in names if name not in known]:
        problem, expected = "unknown field", " or ".join(known)
        hint = suggestion(wrong[0], known).rstrip() or None
        raise InvalidSettings(problem, "unknown-field", expected=expected, found=", ".join(wrong), hint=hint)
    if not names:
        raise InvalidSettings("fields", "no-fields", expected=f"at least one of {', '.join(known)}")
    read = dict.fromkeys(one for name in names for one in (name, schema.extents.get(name)) if one)
    return replace(schema.chosen(read), fields=tuple(map(schema.field, read)))
