"""The process that asks formats about data that others wrote: see `iobench.dataset.apart`."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import resource
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from iobench import formats
from iobench.base.errors import (
    REPREPARE,
    CorruptArtifact,
    IobenchError,
)
from iobench.base.text import reason
from iobench.dataset.apart import BATCH, DONE, FAILED, PROGRESS
from iobench.dataset.checksum import Checksum
from iobench.dataset.manifest import Opener
from iobench.dataset.sources import BATCH_BYTES
from iobench.dataset.verify import read_back
from iobench.formats import Batch, Field, Format, Schema, plain_bools

# what can be read, beside formats: a module among the sources, and its class
KINDS = {"torch": ("torch_file", "Torch"), "csv": ("csv_file", "Csv")}

LOOKED_AT = 100  # of what lies in a folder: there may be very many alike

_answers = sys.stdout.buffer


def main() -> None:
    """Answer what standard input asks, within the limits that it states."""
    asked = json.load(sys.stdin)
    global _answers
    # libraries print what they like: not between the answers
    _answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # whoever started this may have ignored it
    try:
        _JOBS[asked["do"]](asked)
    except IobenchError as error:
        _tell(FAILED, error.changed(hint=None if error.hint == REPREPARE else error.hint).fields())
    except Exception as error:  # noqa: BLE001 - libraries fail in any way on damaged files
        _tell(FAILED, {"problem": reason(error)})


def _recognise(asked: dict[str, Any]) -> None:
    path, known, missing = Path(asked["path"]), [], {}
    _alarm(asked)
    for name in formats.names():
        try:
            known.append(formats.get(name))
        except IobenchError as error:
            missing[name] = str(error)
    _limit(asked["memory_bytes"])  # libraries, which count, are loaded now
    found = [form.name for form in known if _recognises(form, path)]
    _tell(DONE, {"formats": found, "missing": missing, "beside": _beside(known, path, found)})


def _recognises(form: Format, path: Path) -> bool:
    try:
        return form.recognises(path)
    except (IobenchError, MemoryError):
        return False


def _beside(known: list[Format], path: Path, found: list[str]) -> dict[str, str]:
    """What lies in a folder by itself, and is not of the only format that recognises the folder."""
    inside = {}
    for entry in _looked_at(path) if path.is_dir() else ():
        words = [form.name for form in known if _recognises(form, entry)]
        if words and (len(found) != 1 or found[0] not in words):
            inside[entry.name] = " or ".join(words)
    return inside


def _looked_at(folder: Path) -> list[Path]:
    """Some of what lies in a folder, of each suffix the first by name, then the second, and so on."""
    seen: Counter[str] = Counter()
    order: list[tuple[int, Path]] = []
    for entry in sorted(one for one in folder.iterdir() if not one.name.startswith(".")):
        order.append((seen[entry.suffix], entry))
        seen[entry.suffix] += 1
    return [entry for _, entry in sorted(order)[:LOOKED_AT]]


def _describe(asked: dict[str, Any]) -> None:
    form = _format(asked)
    _limit(asked["memory_bytes"])
    _alarm(asked)
    path = Path(asked["path"])
    schema = form.schema_of(path, _fields(asked["told"]))
    remarks = [] if asked["kind"] in KINDS else form.remarks(path, schema)
    fields = [[field.name, list(field.shape), field.dtype] for field in schema.fields]
    _tell(DONE, {"samples": schema.samples, "fields": fields, "remarks": remarks})


def _hash(asked: dict[str, Any]) -> None:
    schema = Schema(asked["samples"], _fields(asked["fields"]))
    batches = _batches(asked, schema)
    first = next(batches)  # sets the limits, which a checksum of large samples is under, too
    check, done = Checksum(schema), 0
    for batch in itertools.chain([first], batches):
        _refuse_odd_bools(asked["path"], batch)
        check.add_in_order(batch)
        done += sum(array.nbytes for array in batch.values())
        _tell(PROGRESS, {"done": done})
        _alarm(asked)
    _tell(DONE, {"content": check.content, "ordered": check.ordered})


def _read(asked: dict[str, Any]) -> None:
    schema = Schema(asked["samples"], _fields(asked["fields"]))
    for batch in _batches(asked, schema, asked["rows"]):
        _tell(BATCH)
        for array in batch.values():
            _answers.write(formats.raw_bytes(array))
        _answers.flush()
        _alarm(asked)


def _batches(asked: dict[str, Any], schema: Schema, rows: int | None = None) -> Iterator[Batch]:
    form, path = _format(asked), Path(asked["path"])
    _limit(asked["memory_bytes"])
    _alarm(asked)
    Opener(form, path, schema).check()
    if asked["kind"] not in KINDS:
        yield from read_back(Opener(form, path, schema), rows)
        return
    rows = rows or schema.batch_rows(BATCH_BYTES)
    with form.open(path, schema) as reader:  # once: some go through a file in order
        for start in range(0, schema.samples, rows):
            yield reader.batch(slice(start, start + rows))


def _format(asked: dict[str, Any]) -> Format:
    """The format that reads them, or what is as good as one."""
    if asked["kind"] not in KINDS:
        return formats.parse(asked["kind"])
    module, name = KINDS[asked["kind"]]
    made: Format = getattr(importlib.import_module(f"iobench.dataset.sources.{module}"), name)()
    return made


def _fields(told: list[Any]) -> tuple[Field, ...]:
    return tuple(Field(name, tuple(shape), dtype) for name, shape, dtype in told)


def _refuse_odd_bools(path: str, batch: Batch) -> None:
    """CorruptArtifact where truth values are neither 0 nor 1, which libraries take for other bytes."""
    if plain_bools(batch) is not batch:
        raise CorruptArtifact(
            f"{path}: it has truth values other than the bytes 0 and 1, which libraries read in their own "
            "ways; 'iobench prepare --source' puts them right"
        )


def _limit(memory_bytes: int) -> None:
    """Let this process take so much memory beyond what it has; maps of files do not count."""
    with open("/proc/self/statm") as pages:
        now = int(pages.read().split()[5]) * resource.getpagesize()
    _, allowed = resource.getrlimit(resource.RLIMIT_DATA)
    most = now + memory_bytes if allowed == resource.RLIM_INFINITY else min(allowed, now + memory_bytes)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _alarm(asked: dict[str, Any]) -> None:
    """Have the kernel end this process after so long: Python would not come to it inside a library."""
    signal.setitimer(signal.ITIMER_REAL, asked["limit_s"])


def _tell(kind: int, said: dict[str, Any] | None = None) -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)  # whoever listens may take as long as it likes
    text = json.dumps(said).encode() if said else b""
    _answers.write(bytes([kind]) + len(text).to_bytes(8, "little") + text)
    _answers.flush()


_JOBS = {"recognise": _recognise, "describe": _describe, "hash": _hash, "read": _read}
