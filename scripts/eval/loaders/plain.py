"""Gain of a repaired loader in a plain loop: a script of its own, as a user would write it."""

from __future__ import annotations

import json
import statistics
import sys
import time
import warnings
from pathlib import Path

from eval.loaders import reported

SECONDS, EPOCHS = 8.0, 7


def epoch_s(loader) -> float:
    began = time.perf_counter()
    for _ in loader:
        pass
    return time.perf_counter() - began


def ratio(name: str, folder: Path) -> float:
    """Return the median ratio of the epochs of a loader and of its twin, which take turns."""
    loader, twin = reported.LOADERS[name][0](folder), reported.TWINS[name](folder)
    epoch_s(twin)  # workers that persist start only once
    ratios, until = list[float](), time.monotonic() + SECONDS
    while len(ratios) < 3 or (len(ratios) < EPOCHS and time.monotonic() < until):
        ratios.append(epoch_s(loader) / epoch_s(twin))
    return statistics.median(ratios)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(ratio(sys.argv[1], Path(sys.argv[2]))))
