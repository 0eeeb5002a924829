"""Going on with a run that was cut short: same plan, data and machine, and the rounds that are missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from iobench.base.errors import (
    InvalidSettings,
    RecordError,
)
from iobench.base.text import listed
from iobench.bench.case import Case
from iobench.bench.options import RunOptions
from iobench.bench.plan_file import Planned
from iobench.results import record
from iobench.results.cases import key_of, labels, labels_of
from iobench.results.parts import MachinePart
from iobench.results.record import Record


def plan_of_run(options: RunOptions, cases: Sequence[Case]) -> dict[str, Any]:
    """What a run's first record holds of its plan: the options, and the keys of the cases they made."""
    body: dict[str, Any] = record.plain(asdict(options))
    return {"run": body, "cases": [case.key for case in cases]}


def earlier(path: Path) -> tuple[Planned, list[Record]]:
    """The plan and the rounds of the last run in a file of records.

    RecordError where the file cannot be read, or no plan is in it.
    """
    every, _ = record.read(path)
    rounds = [one for one in every if one.run == every[-1].run]
    first, plan = rounds[0], rounds[0].plan or {}
    if "run" not in plan:
        raise RecordError(f"--resume {path}: its first record holds no plan; measure it anew")
    try:
        options = msgspec.convert(plan["run"], RunOptions)
    except (msgspec.ValidationError, InvalidSettings) as error:
        raise RecordError(f"--resume {path}: its plan cannot be read: {error}") from error
    return Planned(options, first.dataset.name, first.dataset.content), rounds


def check_same(
    rounds: Sequence[Record], cases: Sequence[Case], machine: Callable[[Case], MachinePart]
) -> None:
    """InvalidSettings where the plan would now measure something else than these rounds did, or elsewhere.

    `machine` says what each case is measured on.
    """
    first, now = rounds[0], {case.key: case for case in cases}
    if first.dataset.content != cases[0].content:
        raise InvalidSettings(
            f"--resume: the run measured data {first.dataset.content}, dataset {cases[0].dataset} holds "
            f"{cases[0].content}; prepare it as it was, or measure anew"
        )
    planned = set((first.plan or {}).get("cases", ()))
    new, gone = [key for key in now if key not in planned], planned - set(now)
    if new or gone:
        names = {key: str(label) for key, label in labels({k: c.facets for k, c in now.items()}).items()}
        names |= {key_of(one.case): str(label) for one, label in _labelled(rounds)}
        shown = listed([names.get(key, key) for key in [*new, *sorted(gone)]])
        raise InvalidSettings(
            f"--resume: the run's plan makes other cases now than when it began ({shown}): a format was "
            "prepared or removed since, or a loader changed; measure anew"
        )
    for one in {key_of(one.case): one for one in rounds}.values():
        if differs := _differences(one.machine, machine(now[key_of(one.case)])):
            raise InvalidSettings(
                f"--resume: the machine is not the same ({'; '.join(differs)}); measure anew"
            )


def _labelled(rounds: Sequence[Record]) -> list[tuple[Record, Any]]:
    shown = labels_of(rounds)
    firsts = {key_of(one.case): one for one in rounds}
    return list(zip(firsts.values(), shown.values(), strict=True))


def _differences(before: MachinePart, now: MachinePart) -> list[str]:
    """What a machine has changed in, in words."""
    was, is_ = _plain(before), _plain(now)
    return [f"{name} was {was[name]}, is {is_[name]}" for name in was if was[name] != is_[name]]


def _plain(machine: MachinePart) -> dict[str, Any]:
    parts: dict[str, Any] = {**asdict(machine), "memory_bytes": f"{machine.memory_bytes / 2**30:.0f} GiB"}
    parts["gpu"] = machine.gpu and (machine.gpu.name, machine.gpu.cuda, machine.gpu.driver)
    disk, versions = parts.pop("disk"), parts.pop("versions")
    return {**parts, **{f"disk {name}": disk[name] for name in disk}, **versions}
