"""Published experiments, done on this machine, and whether what they claim holds here."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec

from iobench import formats
from iobench.dataset.prepare import DEFAULT_FORMATS
from iobench.dataset.staging import os_errors
from iobench.errors import RecordError
from iobench.host import machine
from iobench.results import history
from iobench.results.record import check_levels, plain
from iobench.studies._base import Answer, Result, Study, StudyOptions, names, study_of
from iobench.studies._turns import Measurements
from iobench.text import reason

__all__ = [
    "Answer",
    "Measurements",
    "Result",
    "Study",
    "StudyOptions",
    "described",
    "names",
    "past",
    "run",
    "save",
    "study_of",
]

SUFFIX = ".study.json"


def run(name: str, options: StudyOptions) -> Result:
    """Do a study and answer its claims.

    InvalidSettings where there is none of that name, PrepareError where the folder or the disk refuse,
    MissingExtra where it needs a library that is not here.
    """
    study = study_of(name)
    from iobench.bench.epoch import heap_restored  # loads torch

    with os_errors(options.data_dir), heap_restored():
        options.folder.mkdir(parents=True, exist_ok=True)
        found = study.measure(options)
    return Result(
        name=name,
        source=study.source,
        about=study.about(options),
        found=found,
        answers=[answer.in_full(options.quick) for answer in study.answers(found)],
        machine=machine.describe(options.data_dir, options.device, _packages()),
        time=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        quick=options.quick,
    )


def _packages() -> set[str]:
    """The packages of the formats that studies measure."""
    variants = (*DEFAULT_FORMATS, "lmdb:codec=lz4")
    return {library for variant in variants for library in formats.parse(variant).libraries}


def save(result: Result, data_dir: Path) -> Path:
    """Write a result beside the records of runs, where reports find it; RecordError where that fails."""
    stamp = result.time[:19].replace(":", "").replace("-", "").replace("T", "-")
    path = data_dir / "results" / f"{result.name}-{stamp}{SUFFIX}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(plain(result.as_dict()), indent=2))
    except OSError as error:
        raise RecordError(f"{path} cannot be written: {error.strerror}") from error
    return path


def past(data_dir: Path) -> tuple[list[Result], list[str]]:
    """The newest result of each study in a data folder, and a sentence for each file that holds none.

    One of quick sizes counts only where there is no other.
    """
    found: dict[str, Result] = {}
    problems = []
    for path in history.files_of(data_dir, SUFFIX):
        try:
            result = _result(path.read_bytes())
            result.found.table()
            if not result.quick or found.get(result.name, result).quick:
                found[result.name] = result
        except (OSError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
            problems.append(f"{path}: not a study's result: {reason(error)}")
    return list(found.values()), problems


def _result(text: bytes) -> Result:
    result = msgspec.json.decode(text, type=Result)
    body = msgspec.to_builtins(result)
    check_levels(body)
    json.dumps(body, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    if not isinstance(result.machine.get("cpu"), str):
        raise ValueError("its machine has no cpu")
    return result


def described() -> list[dict[str, Any]]:
    """Every study: its name, its question, its source in words, and the parts of its reference."""
    return [{"name": name, **_words(study_of(name))} for name in names()]


def _words(study: Study) -> dict[str, Any]:
    unknown = study.reference.unknown
    source = f"{study.source} ({unknown})" if unknown else study.source
    return {"question": study.question, "source": source, **asdict(study.reference), "part": study.part}
