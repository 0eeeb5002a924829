"""Small batches from PNG, HDF5, LMDB, npy and memmap: where an epoch's time goes."""

from __future__ import annotations

import statistics
from dataclasses import replace
from functools import partial

from iobench.base.units import bytes_text, counted, seconds_text
from iobench.results import stats
from iobench.studies._base import FAILS, HOLDS, UNKNOWN, Answer, Study, StudyOptions, cores, scratch
from iobench.studies._claims import (
    against,
    all_of,
    claimed_faster,
    if_large_enough,
    if_started,
    no_gpu,
    opposite,
)
from iobench.studies._libraries import hdf5_resizes, lmdb_when_full, misread_by_forks
from iobench.studies._patches import (
    CHANNELS,
    COMPRESSIBILITY,
    SIDE,
    SMALL_SIDE,
    contenders_of,
    openers_of,
    pinned_contenders,
    pinned_name,
    sizes_of,
)
from iobench.studies._references import IO_BOTTLENECK
from iobench.studies._subprocess import run_in_subprocess
from iobench.studies._turns import Measurements, interleave, together

TWICE = 2.0  # "much better" begins here
FORK_WORKERS, FORK_EPOCHS, FORK_LIMIT_S = 4, 2, 120.0  # for some samples
OF_THE_LIBRARY = ("SIGSEGV", "raised OSError", "raised KeyError")  # how h5py fails where it reads nonsense
LEAST_BUSY = 0.005  # of a GPU, as far as its driver tells


class SmallBatchesStudy(Study):
    """Data, forward and backward time apart, per format, batch, number of workers and kind of memory."""

    reference = IO_BOTTLENECK
    question = "What feeds small batches best?"

    def about(self, options: StudyOptions) -> str:
        """Sizes and settings, in words."""
        samples, batches, workers = sizes_of(options)
        return (
            f"{samples:,} generated patches of {SIDE} × {SIDE} × {CHANNELS} bytes ({COMPRESSIBILITY:.0%} of "
            f"each repeat one value), warm, batch {batches[0]} to {batches[-1]}, shuffled, "
            f"{workers[-1]} workers, a small convolutional network trained on {options.device}"
        )

    def measure(self, options: StudyOptions) -> Measurements:
        """Every format with every batch, PNG with other numbers of workers, and what the libraries do."""
        samples, batches, workers = sizes_of(options)
        with scratch(options) as folder:
            openers = openers_of(options, folder)
            contenders = contenders_of(options, openers) | pinned_contenders(options, openers)
            found = interleave(contenders, warmup=options.warmup, on_status=options.on_status)
        options.on_status("reading HDF5 in forked workers that share one handle")
        both = openers["hdf5"], openers["npy"]
        forks = run_in_subprocess(misread_by_forks, *both, FORK_WORKERS, FORK_EPOCHS, limit_s=FORK_LIMIT_S)
        return together(
            [found],
            f"{samples:,} samples of {bytes_text(SIDE * SIDE * CHANNELS)} and {counted(cores(), 'core')}",
            batches=list(batches),
            workers=list(workers),
            gpu=options.gpu,
            forks={
                "wrong": forks.value,
                "failure": forks.failure,
                "hung": forks.hung,
                "samples": FORK_EPOCHS * samples,
            },
            lmdb=dict(zip(("refuses", "grows"), lmdb_when_full(), strict=True)),
            hdf5_resizes=hdf5_resizes(),
        )

    def answers(self, found: Measurements) -> list[Answer]:
        """What the rounds say about each claim."""
        (few, *_, many), (none, *some, most) = found.figures["batches"], found.figures["workers"]
        small, large = f"png, batch {few}", f"png, batch {many}"
        fewer = some[0] if some else none
        return [
            if_large_enough(
                claimed_faster(
                    "An epoch with a larger batch is shorter.", found, large, small, _over_batches(found)
                ),
                found,
                small,
            ),
            claimed_faster(
                "The time for data does not grow in proportion to the batch.",
                found.of("wait_s"),
                large,
                small,
                ", in the time that an epoch waits for data; were each wait in proportion to its batch, both "
                f"would wait equally long{_over_batches(found, 'wait_s')}",
            ),
            if_started(
                claimed_faster(
                    f"With small batches, fewer workers are better than {most}.",
                    found,
                    f"{small}, {fewer} workers",
                    small,
                    "".join(_over_workers(found, batch) for batch in (few, many)),
                ),
                found,
                small,
            ),
            _better_but_not_much(found, f"lmdb:codec=lz4, batch {few}", small),
            *_of_the_gpu(found),
            _of_forks(found),
            Answer(
                "LMDB needs its map_size in advance.",
                HOLDS if found.figures["lmdb"]["refuses"] else FAILS,
                "what does not fit is refused"
                + ("; an open environment's map can be enlarged" if found.figures["lmdb"]["grows"] else ""),
            ),
            Answer(
                "HDF5 can be resized.",
                HOLDS if found.figures["hdf5_resizes"] else FAILS,
                "a chunked dataset made with maxshape=None took more rows",
            ),
        ]


def _over_batches(found: Measurements, figure: str | None = None) -> str:
    """Medians of PNG over all batches."""
    batches = found.figures["batches"]
    shown = found.of(figure) if figure else found
    medians = [seconds_text(statistics.median(shown.seconds[f"png, batch {batch}"])) for batch in batches]
    return f"; batch {', '.join(map(str, batches))}: {', '.join(medians)}"


def _over_workers(found: Measurements, batch: int) -> str:
    """Medians of PNG over all numbers of workers."""
    *fewer, most = found.figures["workers"]
    names = [f"png, batch {batch}, {count} workers" for count in fewer] + [f"png, batch {batch}"]
    medians = [seconds_text(statistics.median(found.seconds[name])) for name in names]
    return f"; batch {batch}, {', '.join(map(str, (*fewer, most)))} workers: {', '.join(medians)}"


def _better_but_not_much(found: Measurements, packed: str, png: str) -> Answer:
    claim = "LMDB with lz4 is better than PNG, but not so much better."
    better = claimed_faster(claim, found, packed, png)
    ratio = against(found.seconds, packed, png).ratio
    if better.answer != HOLDS or ratio.low is None or ratio.high is None:
        return better
    if ratio.low < TWICE < ratio.high:
        return replace(better, answer=UNKNOWN)
    return better if ratio.high <= TWICE else replace(better, answer=FAILS)


def _of_the_gpu(found: Measurements) -> list[Answer]:
    busier = "The GPU is busier with larger batches (33, 31, 37, 52, 84 %)."
    pageable = "With small batches pageable memory is better than pinned."
    helps = f"Pinned memory does not help with {SMALL_SIDE}-pixel inputs and does with {SIDE}-pixel ones."
    if not found.figures["gpu"]:
        return [no_gpu(claim) for claim in (busier, pageable, helps)]
    few, *_, many = found.figures["batches"]
    name, gains = pinned_name, partial(claimed_faster, "", found)
    return [
        _busier(busier, found),
        claimed_faster(pageable, found, name(SIDE, few, False), name(SIDE, few, True)),
        all_of(
            helps,
            [
                opposite(gains(name(SMALL_SIDE, many, True), name(SMALL_SIDE, many, False)), ""),
                gains(name(SIDE, many, True), name(SIDE, many, False)),
            ],
        ),
    ]


def _busier(claim: str, found: Measurements) -> Answer:
    busy = [found.median("gpu_busy", f"png, batch {batch}") for batch in found.figures["batches"]]
    seen = [share for share in busy if share is not None]
    if len(seen) < len(busy):
        return Answer(
            claim,
            UNKNOWN,
            "the GPU's driver does not tell how busy it is, or the epochs were too short for it to tell",
        )
    few, *_, many = found.figures["batches"]
    shares = found.noted["gpu_busy"]
    large, small = ([max(s, LEAST_BUSY) for s in shares[f"png, batch {batch}"]] for batch in (many, few))
    outcome = stats.compare_rates(large, small).outcome
    told = ", ".join(f"{share:.0%}" for share in seen)
    answer = {"faster": HOLDS, "slower": FAILS, "equivalent": FAILS}.get(outcome, UNKNOWN)
    return Answer(claim, answer, f"with the batches tried: {told}", found.data)


def _of_forks(found: Measurements) -> Answer:
    claim, forks = "HDF5 is vulnerable when read in parallel.", found.figures["forks"]
    what = f"{FORK_WORKERS} forked workers that share a handle which was open before"
    safe = "; iobench opens one in each worker, and proves what arrives"
    if forks["failure"] is not None:
        blamed = forks["hung"] or any(sign in forks["failure"] for sign in OF_THE_LIBRARY)
        return Answer(claim, HOLDS if blamed else UNKNOWN, f"{what}: the process {forks['failure']}{safe}")
    read = f"{what} read {forks['wrong']:,} of {forks['samples']:,} samples wrong"
    return Answer(claim, HOLDS if forks["wrong"] else FAILS, f"{read}{safe if forks['wrong'] else ''}")


STUDY = SmallBatchesStudy()
