"""Studies: published experiments, repeated on this machine, with a verdict on each of their claims."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from iobench import formats
from iobench.base.errors import RecordError
from iobench.base.text import utc_now
from iobench.dataset.prepare import DEFAULT_FORMATS
from iobench.dataset.staging import os_errors
from iobench.host import machine_info
from iobench.results.history import ResultStore
from iobench.results.record_file import plain
from iobench.studies._claims import ClaimResult
from iobench.studies._rounds import Measurements
from iobench.studies._study import StudyOptions, StudyResult, names, study_of

__all__ = ["ClaimResult", "Measurements", "StudyOptions", "StudyResult", "names", "study_of"]


def run(name: str, options: StudyOptions) -> StudyResult:
    """Run a study and return a verdict on each of its claims.

    Raises
    ------
    InvalidSettings
        If there is no study of that name.
    PrepareError
        If the folder cannot be written or the disk is full.
    MissingDependency
        If a library that the study needs is not installed.
    """
    study, variants = study_of(name), (*DEFAULT_FORMATS, "lmdb:codec=lz4")  # that studies measure
    packages = {library for variant in variants for library in formats.parse(variant).libraries}
    with os_errors(options.data_dir):
        options.folder.mkdir(parents=True, exist_ok=True)
        measured = study.measure(options)
    return StudyResult(
        name=name,
        source=study.source,
        setup=study.setup(options),
        measurements=measured,
        claims=[claim.with_sizes(options.quick) for claim in study.evaluate(measured)],
        machine=plain(machine_info.describe(options.data_dir, options.device, packages)),
        time=utc_now(),
        quick=options.quick,
    )


def save(result: StudyResult, data_dir: Path) -> Path:
    """Write a result next to the records of runs, where reports read it.

    Returns its file. Raises RecordError if it cannot be written.
    """
    return _STORE.save(result, result.name, result.time, data_dir)


def past(data_dir: Path) -> tuple[list[StudyResult], list[RecordError]]:
    """Return the newest result of each study in a data folder, and an error for each unreadable file.

    A result of quick sizes is returned only if there is no other. Raises RecordError if the folder cannot be
    listed.
    """
    results, problems = _STORE.load(data_dir)
    newest: dict[str, StudyResult] = {}
    for result in results:
        if not result.quick or newest.get(result.name, result).quick:
            newest[result.name] = result
    return list(newest.values()), problems


def _check(result: StudyResult) -> None:
    """Raise ValueError or similar if a result lacks what reports need."""
    result.measurements.table()
    if not isinstance(result.machine.get("cpu"), str):
        raise ValueError("its machine has no cpu")


_STORE = ResultStore(StudyResult, ".study.json", "a study's result", _check)


def described() -> list[dict[str, Any]]:
    """Return the name, question, source and reference of every study, for JSON."""
    return [
        {
            **{"name": name, "question": one.question, "source": one.source},
            **{"unknown": one.reference.unknown, **asdict(one.reference), "part": one.part},
        }
        for name, one in ((name, study_of(name)) for name in names())
    ]
