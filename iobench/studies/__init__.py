"""Published experiments, done on this machine, and whether what they claim holds here."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from iobench import formats
from iobench.dataset.prepare import DEFAULT_FORMATS
from iobench.dataset.staging import os_errors
from iobench.host import machine
from iobench.results.documents import Documents
from iobench.studies._base import Answer, Result, Study, StudyOptions, names, study_of
from iobench.studies._turns import Measurements

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


def run(name: str, options: StudyOptions) -> Result:
    """Do a study and answer its claims.

    InvalidSettings where there is none of that name, PrepareError where the folder or the disk refuse,
    MissingDependency where it needs a library that is not here.
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
    return _KEPT.save(result.as_dict(), result.name, result.time, data_dir)


def past(data_dir: Path) -> tuple[list[Result], list[str]]:
    """The newest result of each study in a data folder, and a sentence for each file that holds none.

    One of quick sizes counts only where there is no other. RecordError where the results cannot be listed.
    """
    every, problems = _KEPT.past(data_dir)
    found: dict[str, Result] = {}
    for result in every:
        if not result.quick or found.get(result.name, result).quick:
            found[result.name] = result
    return list(found.values()), problems


def _check(result: Result) -> None:
    """ValueError or the like where what a report relies on is not there."""
    result.found.table()
    if not isinstance(result.machine.get("cpu"), str):
        raise ValueError("its machine has no cpu")


_KEPT = Documents(Result, ".study.json", "a study's result", _check)


def described() -> list[dict[str, Any]]:
    """Every study: its name, its question, its source in words, and the parts of its reference."""
    return [{"name": name, **_words(study_of(name))} for name in names()]


def _words(study: Study) -> dict[str, Any]:
    unknown = study.reference.unknown
    source = f"{study.source} ({unknown})" if unknown else study.source
    return {"question": study.question, "source": source, **asdict(study.reference), "part": study.part}
