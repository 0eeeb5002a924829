"""Recommendation in one call."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from iobench import formats
from iobench.advise import measured_data
from iobench.advise.findings import recommendation_of
from iobench.advise.recommendation import Recommendation
from iobench.advise.requirements import Requirements
from iobench.advise.search import search
from iobench.advise.step import time_step
from iobench.bench.observer import Observer
from iobench.dataset.manifest import Manifest
from iobench.dataset.sources import Source
from iobench.host.device import pick_device
from iobench.loading import loaders


def recommend(
    of: Manifest | Source,
    requirements: Requirements | None = None,
    *,
    data_dir: Path = Path("data"),
    source_words: Sequence[str] = (),
    observer: Observer | None = None,
) -> Recommendation:
    """Recommend a format, a loader and settings for a dataset or a source.

    Parameters
    ----------
    of : Manifest or Source
        A prepared dataset; or a source, of which a sample is written in every format.
    requirements : Requirements, optional
        The training that it is for. No new measurement starts after its `max_time_s`.
    data_dir : Path
        Data folder.
    source_words : sequence of str
        Command-line arguments that name the source, for the printed `iobench prepare` command.
    observer : Observer, optional
        Is notified of progress.

    Raises
    ------
    InvalidSettings
        Nothing fits the requirements.
    LoaderFailed
        No case could be measured (``no-case-measured``), or there was no time (``out-of-time``).
    TargetError
        The user's step raises.
    KeyboardInterrupt
        After Ctrl-C before anything was measured. Later, the answer rests on what was measured until then,
        and a finding ``interrupted`` says so.
    """
    requirements, observer, began = requirements or Requirements(), observer or Observer(), time.monotonic()
    pick_device(requirements.device)
    _check(of, requirements)
    requirements = time_step(of, requirements, observer)
    if isinstance(of, Manifest):
        data = measured_data.from_dataset(of, requirements)
    else:
        data = measured_data.from_source(of, source_words, requirements, data_dir, observer.status)
    return recommendation_of(search(data, requirements, observer, began), requirements)


def _check(of: Manifest | Source, requirements: Requirements) -> None:
    """Raise for unknown formats and loaders before anything is timed or written."""
    for word in requirements.loaders:
        if word != "all":
            loaders.parse(word)
    for word in requirements.formats:
        if word != "all":
            variant = formats.parse(word).variant
            if isinstance(of, Manifest):
                of.opener(variant)
