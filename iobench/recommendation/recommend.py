"""One call for all of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from iobench import formats
from iobench.bench.observer import Observer
from iobench.dataset.manifest import Manifest
from iobench.dataset.sources import Source
from iobench.host.device import pick_device
from iobench.loading import loaders
from iobench.recommendation import measured_data
from iobench.recommendation.findings import answer
from iobench.recommendation.requirements import Requirements
from iobench.recommendation.result import Recommendation
from iobench.recommendation.search import search
from iobench.recommendation.step import timed


def recommend(
    of: Manifest | Source,
    requirements: Requirements | None = None,
    *,
    data_dir: Path = Path("data"),
    source_words: Sequence[str] = (),
    observer: Observer | None = None,
) -> Recommendation:
    """What to use for a dataset, or for a source of which a sample is written into every format.

    Measures for `requirements.max_time_s` at most, but for what has begun. `source_words` are those that
    `iobench prepare` is told the source by, for the code that is printed.
    InvalidSettings where nothing fits what is needed, or there is no time; KeyboardInterrupt after Ctrl-C,
    all records being kept; TargetError where the callable that is `requirements.step` raises.
    """
    requirements, observer, began = requirements or Requirements(), observer or Observer(), time.monotonic()
    pick_device(requirements.device)
    _check(of, requirements)
    requirements = timed(of, requirements, observer)
    if isinstance(of, Manifest):
        data = measured_data.prepared(of, requirements)
    else:
        data = measured_data.sampled(of, source_words, requirements, data_dir, observer.status)
    return answer(search(data, requirements, observer, began), requirements)


def _check(of: Manifest | Source, requirements: Requirements) -> None:
    """Complain about formats and loaders before anything is timed or written."""
    for word in requirements.loaders:
        if word != "all":
            loaders.parse(word)
    for word in requirements.formats:
        if word != "all":
            variant = formats.parse(word).variant
            if isinstance(of, Manifest):
                of.opener(variant)
