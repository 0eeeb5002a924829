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
from iobench.recommendation import data as datas
from iobench.recommendation.answer import answer
from iobench.recommendation.needs import Needs
from iobench.recommendation.result import Recommendation
from iobench.recommendation.search import search
from iobench.recommendation.step import timed


def recommend(
    of: Manifest | Source,
    needs: Needs | None = None,
    *,
    data_dir: Path = Path("data"),
    source_words: Sequence[str] = (),
    observer: Observer | None = None,
) -> Recommendation:
    """What to use for a dataset, or for a source of which a sample is written into every format.

    Measures for `needs.max_time_s` at most, but for what has begun. `source_words` are those that
    `iobench prepare` is told the source by, for the code that is printed.
    InvalidSettings where nothing fits what is needed, or there is no time; KeyboardInterrupt after Ctrl-C,
    all records being kept; TargetError where the callable that is `needs.step` raises.
    """
    needs, observer, began = needs or Needs(), observer or Observer(), time.monotonic()
    pick_device(needs.device)
    _check(of, needs)
    needs = timed(of, needs, observer)
    if isinstance(of, Manifest):
        data = datas.prepared(of, needs)
    else:
        data = datas.sampled(of, source_words, needs, data_dir, observer.status)
    return answer(search(data, needs, observer, began), needs)


def _check(of: Manifest | Source, needs: Needs) -> None:
    """Complain about formats and loaders before anything is timed or written."""
    for word in needs.loaders:
        if word != "all":
            loaders.parse(word)
    for word in needs.formats:
        if word != "all":
            variant = formats.parse(word).variant
            if isinstance(of, Manifest):
                of.opener(variant)
