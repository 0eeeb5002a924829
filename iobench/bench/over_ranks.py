"""Which cases can be had over several ranks, and why others cannot."""

from __future__ import annotations

from collections.abc import Sequence

from iobench.base.errors import (
    InvalidSettings,
)
from iobench.base.units import counted
from iobench.bench.case import Case
from iobench.loading.loaders import Loader


def alone(loader: Loader, isolate: bool | None) -> str | None:
    """Why a loader cannot be measured over several ranks; None where it can."""
    if loader.own_order:
        return "iobench does not know how it shares samples among ranks; measure it in one process"
    if isolate or (loader.isolated and isolate is None):
        return "each of its cases wants a process of its own, which ranks do not give it; add --no-isolate"
    return None


def over_ranks(cases: Sequence[Case], world_size: int, isolate: bool | None, named: bool) -> list[Case]:
    """Those of the cases that can be had; InvalidSettings where one cannot whose loader was `named`."""
    over, found = f"over {counted(world_size, 'rank')}", list[Case]()
    for case in cases:
        if case.model != "none":
            raise InvalidSettings(
                f"--model {case.model} {over}: ranks do not train one model here; give --step-ms, the time "
                "that your step takes"
            )
        why = alone(case.loader, isolate)
        if why and named:
            raise InvalidSettings(f"--loader {case.loader.called} {over}: {why}")
        if not why:
            found.append(case)
    return found
