"""Selection of the cases that several ranks can measure."""

from __future__ import annotations

from collections.abc import Sequence

from iobench.base.errors import InvalidSettings
from iobench.base.units import counted
from iobench.bench.case import Case
from iobench.loading.loaders import Loader


def multi_rank_obstacle(loader: Loader, isolate: bool | None) -> InvalidSettings | None:
    """Return why a loader cannot be measured over several ranks; None if it can."""
    if loader.iterable_style:
        return InvalidSettings(
            "it chooses its own rows, and iobench does not know how it shares them among ranks",
            kind="ranks-own-order",
            hint="measure it in one process",
        )
    if isolate or (loader.isolated and isolate is None):
        return InvalidSettings(
            "each of its cases needs a process of its own, which ranks do not provide",
            kind="ranks-isolated",
            hint="add --no-isolate",
        )
    return None


def multi_rank_cases(cases: Sequence[Case], world_size: int, isolate: bool | None, named: bool) -> list[Case]:
    """Return the cases that `world_size` ranks can measure.

    Raises InvalidSettings if a case trains a model, or if its loader cannot be measured over ranks and was
    `named` by the user.
    """
    ranks, possible = f"over {counted(world_size, 'rank')}", list[Case]()
    for case in cases:
        if case.model != "none":
            raise InvalidSettings(
                f"--model {case.model} {ranks}: ranks do not train a shared model",
                kind="ranks-model",
                hint="give --step-ms, the time that your training step takes",
            )
        obstacle = multi_rank_obstacle(case.loader, isolate)
        if obstacle is None:
            possible.append(case)
        elif named:
            raise obstacle.changed(problem=f"--loader {case.loader.display_name} {ranks}: {obstacle.problem}")
    return possible
