"""Options of StreamLoader, in a person's own code and as a loader of `iobench run`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from iobench.base.errors import InvalidSettings
from iobench.base.options import LIMITS, Options, option
from iobench.base.text import suggestion
from iobench.formats import Schema
from iobench.objects.client import RETRIES
from iobench.objects.reader import COALESCE_BYTES, IN_FLIGHT, MAX_GAP, REQUEST_BYTES


@dataclass(frozen=True)
class StreamOptions(Options):
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
