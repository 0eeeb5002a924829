"""Plans of runs: files that hold one, and the resuming of an interrupted run."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import msgspec

from iobench.base.errors import InvalidSettings, RecordError
from iobench.base.files import system_errors_as
from iobench.base.machine import Machine
from iobench.base.text import listed
from iobench.bench.case import Case
from iobench.bench.options import RunOptions
from iobench.results import record_file
from iobench.results.cases import by_case, labels, labels_of
from iobench.results.record import Record

ABOUT = "# Run with: iobench run --plan FILE"


@dataclass(frozen=True)
class SavedPlan:
    """Options of a run, the name of its dataset, and the dataset's checksum when the plan was written."""

    run: RunOptions
    dataset: str | None = None
    content: str | None = None


def save(path: Path, options: RunOptions, dataset: str, content: str) -> None:
    """Write a plan file; raises InvalidSettings if it cannot be written."""
    import tomli_w

    # TOML has no None: every default of None is implied
    settings = {name: value for name, value in asdict(options).items() if value is not None}
    table = {"dataset": dataset, "content": content, "run": settings}
    if os.path.exists(path) and not path.is_file():
        raise InvalidSettings("--save-plan", kind="not-a-file", path=path, expected="a regular file")
    with system_errors_as(
        InvalidSettings, "--save-plan", path, kind="not-writable", hint="name another file"
    ):
        path.write_text(f"{ABOUT}\n{tomli_w.dumps(table)}")


def load(path: Path) -> SavedPlan:
    """Return the plan in a file; raises InvalidSettings if it is not one."""
    hint = "--save-plan writes one"
    if os.path.exists(path) and not path.is_file():
        raise InvalidSettings("--plan", kind="not-a-file", path=path, expected="a regular file", hint=hint)
    try:
        table = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidSettings(f"--plan: {reason}", kind="not-readable", path=path) from error
    known = {spec.name for spec in fields(RunOptions)}
    body = table.get("run")
    if not isinstance(body, dict):
        raise InvalidSettings("--plan", kind="not-a-plan", path=path, expected="a table [run]", hint=hint)
    unknown = [*(set(table) - {"dataset", "content", "run"}), *(name for name in body if name not in known)]
    if unknown:
        problem = f"--plan: a run has no setting {', '.join(unknown)}"
        raise InvalidSettings(problem, kind="unknown-option", path=path, hint="remove it from the file")
    try:
        given = {key: table.get(key) for key in ("dataset", "content")}
        texts = msgspec.convert(given, dict[str, str | None])
        return SavedPlan(msgspec.convert(body, RunOptions), **texts)
    except msgspec.ValidationError as error:
        raise InvalidSettings(f"--plan: {error}", kind="invalid-value", path=path) from error


REMEASURE = "start a new run without --resume"


def interrupted_run(path: Path) -> tuple[SavedPlan, list[Record]]:
    """Return the plan and the rounds of the last run in a file of records.

    Raises RecordError if the file cannot be read, or holds no plan.
    """
    every, _ = record_file.read(path)
    rounds = [one for one in every if one.run == every[-1].run]
    first, plan = rounds[0], rounds[0].plan or {}
    if "run" not in plan:
        problem = "--resume: the run's first record holds no plan"
        raise RecordError(problem, kind="no-plan", path=path, hint=REMEASURE)
    try:
        options = msgspec.convert(plan["run"], RunOptions)
    except (msgspec.ValidationError, InvalidSettings) as error:
        problem = f"--resume: the run's plan cannot be read: {error}"
        raise RecordError(problem, kind="invalid-plan", path=path, hint=REMEASURE) from error
    return SavedPlan(options, first.dataset.name, first.dataset.content), rounds


def check_same(rounds: Sequence[Record], cases: Sequence[Case], machine: Callable[[Case], Machine]) -> None:
    """Raise InvalidSettings if data, cases or machine have changed since these rounds were made.

    `machine` returns the machine that a case is measured on.
    """
    first, now = rounds[0], {case.key: case for case in cases}
    if first.dataset.content != cases[0].content:
        raise InvalidSettings(
            f"--resume: dataset {cases[0].dataset} holds other data than the run measured",
            kind="other-content",
            expected=f"content {first.dataset.content}",
            found=cases[0].content,
            hint=f"prepare it as it was, or {REMEASURE}",
        )
    planned = set((first.plan or {}).get("cases", ()))
    new, gone = [key for key in now if key not in planned], planned - set(now)
    if new or gone:
        names = {key: str(label) for key, label in labels({k: c.facets for k, c in now.items()}).items()}
        groups = by_case(rounds)
        names |= {groups[key][0].settings_key: str(label) for key, label in labels_of(groups).items()}
        shown = listed([names.get(key, key) for key in [*new, *sorted(gone)]])
        why = "because a format was prepared or removed, or a loader changed"
        problem = f"--resume: the run's plan now makes other cases ({shown}), {why}"
        raise InvalidSettings(problem, kind="other-cases", hint=REMEASURE)
    for key, one in {one.settings_key: one for one in rounds}.items():
        facts = machine(now[key]).facts
        changes = ((name, was, facts[name]) for name, was in one.machine.facts.items())
        if differs := [f"{name} was {was}, is {value}" for name, was, value in changes if was != value]:
            problem = f"--resume: the machine has changed ({'; '.join(differs)})"
            raise InvalidSettings(problem, kind="other-machine", hint=REMEASURE)
