"""Worker process of the sandbox: calls formats on untrusted data. See `iobench.dataset.sandbox`."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import resource
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from iobench import formats
from iobench.base.errors import (
    NO_MEMORY,
    REPREPARE,
    CorruptArtifact,
    IobenchError,
    MissingDependency,
    SourceError,
    damage,
)
from iobench.base.text import reason
from iobench.base.units import bytes_text
from iobench.dataset.checksum import Checksum
from iobench.dataset.file_set import Detected, detect_files, detect_groups, recognizes
from iobench.dataset.opener import Opener
from iobench.dataset.sandbox import ADAPTERS, Description, SandboxRequest, SniffResult, packed
from iobench.dataset.verify import read_back
from iobench.formats import Array, Batch, BatchStream, Detectable, Format, Ragged, joined
from iobench.formats.array_schema import ShapeAndDtype
from iobench.formats.folders import not_read, said_by_names
from iobench.formats.schema import plain_bools
from iobench.host.child import SharedCount, send_raw

MAX_ENTRIES = 100  # of a folder that are sniffed: it may have many of the same kind

Reply = tuple[object, Batch]  # a message, and the samples that follow it


def serve(connection: Connection, heartbeats: SharedCount) -> None:
    """Serve one request within its limits."""
    request = msgspec.convert(json.loads(connection.recv_bytes()), SandboxRequest)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a library's last words before it aborts
    heartbeats.count += 1
    try:
        for message, batch in _COMMANDS[request.do](request):
            connection.send_bytes(packed(message))
            for array in _arrays(batch):
                send_raw(connection, formats.raw_bytes(array))
    except Exception as error:  # noqa: BLE001 - libraries raise anything on damaged files
        connection.send_bytes(packed(_failure(error, request).fields()))


def _failure(error: Exception, request: SandboxRequest) -> SourceError:
    """Return the error to report for one of a format or its library."""
    reader = request.kind or "any format"
    if not isinstance(error, IobenchError):
        known = damage(error, Path(request.path), "")
        problem = f"cannot be read as {reader}: {reason(error)}"
        kind = None if known.kind == known.default_kind else known.kind
        error = SourceError(problem, kind=kind)
    if error.kind == NO_MEMORY:
        limit = bytes_text(request.memory_bytes)
        return SourceError(
            f"cannot be read as {reader}: a part of it takes more than {limit} of memory, "
            "the limit for data of other programs",
            "memory-limit",
            hint="write it in smaller parts, such as row groups or chunks",
        )
    kind = error.kind if isinstance(error, MissingDependency) else None
    error = error.converted(SourceError)
    return error.changed(kind=kind or error.kind, hint=None if error.hint == REPREPARE else error.hint)


def _arrays(batch: Batch) -> Iterator[Array]:
    """Yield the arrays of a batch as they are sent: offsets in place of ragged fields, then their values."""
    arrays: list[Any] = list(batch.values())
    yield from (getattr(array, "offsets", array) for array in arrays)
    yield from (one.values for one in arrays if isinstance(one, Ragged) and len(one.values))


def _sniff(request: SandboxRequest) -> Iterator[Reply]:
    path, known, missing = Path(request.path), [], {}
    for name in formats.names():
        try:
            known.append(formats.class_of(name)())  # without its library, too: a sniff needs none
        except IobenchError as error:
            missing[name] = str(error)
    _limit(request.memory_bytes)  # only now: the memory of loaded libraries counts
    forms = [form for form in known if recognizes(form, path)]
    if files := _file_set(path, known, forms, request):
        yield SniffResult((files.variant,), missing, notes=files.notes), {}
        return
    names = tuple(form.name for form in forms)
    yield SniffResult(names, missing, _members(known, path, names)), {}


def _file_set(
    path: Path, known: list[Format], forms: list[Format], request: SandboxRequest
) -> Detected | None:
    """Return the files of a folder, or the groups of a file, as one dataset; None if a format reads it."""
    given = request.files
    if len(forms) == 1 and isinstance(forms[0], Detectable):
        try:
            groups = forms[0].groups(path).arrays
        except (CorruptArtifact, ImportError):  # which `describe` reports
            groups = {}
        if groups and (given or _in_each(groups, request.selected)):
            return detect_groups(path, forms[0].name, groups, given)
    if path.is_dir() and (given or not forms):
        return detect_files(path, known, given, request.selected)
    if given:
        hint = "omit --files"
        raise CorruptArtifact("--files is for several files or groups", "one-file", path, hint=hint)
    return None


def _in_each(groups: Mapping[str, Mapping[str, ShapeAndDtype]], selected: Sequence[str]) -> bool:
    """Return whether each group holds what is selected, and not the file as a whole, by a group's name."""
    own = next(iter(groups.values()))
    return all(name in own or any(one.startswith(f"{name}/") for one in own) for name in selected)


def _members(known: list[Format], path: Path, names: tuple[str, ...]) -> dict[str, str]:
    """Return the entries of a folder that other formats recognize than the one that recognizes the folder."""
    members = {}
    for entry in _sample_entries(path) if path.is_dir() else ():
        words = [form.name for form in known if recognizes(form, entry)]
        if words and (len(names) != 1 or names[0] not in words):
            members[entry.name] = " or ".join(words)
    return members


def _sample_entries(folder: Path) -> list[Path]:
    """Return up to MAX_ENTRIES entries: the first of each suffix by name, then the second, and so on."""
    counts: Counter[str] = Counter()
    order: list[tuple[int, Path]] = []
    for entry in sorted(one for one in folder.iterdir() if not one.name.startswith(".")):
        order.append((counts[entry.suffix], entry))
        counts[entry.suffix] += 1
    return [entry for _, entry in sorted(order)[:MAX_ENTRIES]]


def _describe(request: SandboxRequest) -> Iterator[Reply]:
    form, path = _format(request), Path(request.path)
    _limit(request.memory_bytes)
    if not isinstance(form, Detectable):
        raise CorruptArtifact(f"data in {form.name} cannot be added in place", "not-addable", path)
    schema = form.infer_schema(path, request.fields)
    notes, folder = form.notes(path, schema), formats.split_selection(path)[0]
    others = list[str]()
    if not folder.is_dir():
        others = [os.path.relpath(one, folder.parent) for one in form.others(path)]
    elif (files := form.files(folder)) is not None:
        reader = f"format {form.name}" if isinstance(form, Format) else "iobench"
        notes += said_by_names(folder, files) + not_read(folder, files, reader)
    yield Description(schema, tuple(notes), tuple(others)), {}


def _hash(request: SandboxRequest) -> Iterator[Reply]:
    batches = _batches(request)
    first = next(batches)  # sets the limits, which also apply to the checksum of large samples
    check = Checksum(request.schema)
    for batch in itertools.chain([first], batches):
        if plain_bools(batch) is not batch:
            problem = "bools stored as bytes other than 0 and 1, which libraries read differently"
            hint = "convert the data with 'iobench prepare --source'"
            raise CorruptArtifact(problem, "odd-bools", request.path, hint=hint)
        yield {}, {"hashes": check.hashes(batch)}


def _place(request: SandboxRequest) -> Iterator[Reply]:
    with _opener(request)() as reader:
        yield [*reader.placement()], {}


def _batches(request: SandboxRequest) -> Iterator[Batch]:
    if request.kind not in ADAPTERS:
        yield from read_back(_opener(request), request.rows, request.hashed)
        return
    adapter: Any = _format(request)
    _limit(request.memory_bytes)
    path, schema = Path(request.path), request.schema
    stream = BatchStream(adapter.batches(path, schema))
    for start in range(0, schema.samples, request.rows):
        count = min(request.rows, schema.samples - start)
        parts = [schema.empty(0), *stream.take(count)]
        batch = {field.name: joined([part[field.name] for part in parts]) for field in schema.fields}
        if len(batch[schema.fields[0].name]) < count:
            raise CorruptArtifact("truncated while it was read", "truncated", path)
        yield batch


def _opener(request: SandboxRequest) -> Opener:
    """Set the limits; return the opener of the data after their check."""
    form = _format(request)
    _limit(request.memory_bytes)
    opener = Opener(form, Path(request.path), request.schema, stored=request.stored)
    opener.check()
    return opener


def _format(request: SandboxRequest) -> Format:
    """Return the format that reads the data, or the adapter."""
    if request.kind not in ADAPTERS:
        return formats.parse(request.kind)
    module, name = ADAPTERS[request.kind]
    adapter: Format = getattr(importlib.import_module(f"iobench.dataset.sources.{module}"), name)()
    return adapter


def _limit(memory_bytes: int) -> None:
    """Limit this process to `memory_bytes` more than it uses now; file maps do not count."""
    with open("/proc/self/statm") as pages:
        now = int(pages.read().split()[5]) * resource.getpagesize()
    _, allowed = resource.getrlimit(resource.RLIMIT_DATA)
    most = now + memory_bytes if allowed == resource.RLIM_INFINITY else min(allowed, now + memory_bytes)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


_COMMANDS: dict[str, Callable[[SandboxRequest], Iterator[Reply]]] = {
    "sniff": _sniff,
    "describe": _describe,
    "place": _place,
    "hash": _hash,
    "read": lambda request: (({}, batch) for batch in _batches(request)),
}
