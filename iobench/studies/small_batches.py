"""Small batches from PNG, HDF5, LMDB, npy and memmap: breakdown of an epoch's time."""

from __future__ import annotations

import statistics
from dataclasses import replace
from functools import partial

from iobench.base.units import bytes_text, counted, seconds_text
from iobench.results import stats
from iobench.studies._base import (
    INCONCLUSIVE,
    NOT_REPRODUCED,
    REPRODUCED,
    ClaimResult,
    Study,
    StudyOptions,
    cores,
    scratch,
)
from iobench.studies._claims import (
    against,
    all_of,
    claimed_faster,
    if_large_enough,
    if_started,
    no_gpu,
    opposite,
)
from iobench.studies._patches import (
    CHANNELS,
    COMPRESSIBILITY,
    SIDE,
    SMALL_SIDE,
    contenders_of,
    hdf5_resizes,
    lmdb_when_full,
    misread_by_forks,
    openers_of,
    pinned_contenders,
    pinned_name,
    sizes_of,
)
from iobench.studies._references import IO_BOTTLENECK
from iobench.studies._rounds import Measurements, interleave, merged
from iobench.studies._subprocess import run_in_subprocess

TWICE = 2.0  # "much better" means at least this ratio
FORK_WORKERS, FORK_EPOCHS, FORK_LIMIT_S = 4, 2, 120.0  # between heartbeats
OF_THE_LIBRARY = ("SIGSEGV", "raised OSError", "raised KeyError")  # failures of h5py that reads wrong bytes
LEAST_BUSY = 0.005  # resolution of a GPU's utilization


class SmallBatchesStudy(Study):
    """Time for data, forward and backward pass, by format, batch size, workers and kind of memory."""

    reference = IO_BOTTLENECK
    question = "What feeds small batches best?"

    def setup(self, options: StudyOptions) -> str:
        """Return sizes and settings, in words."""
        samples, batches, workers = sizes_of(options)
        return (
            f"{samples:,} generated patches of {SIDE} × {SIDE} × {CHANNELS} bytes ({COMPRESSIBILITY:.0%} of "
            f"each repeat one value), warm, batch {batches[0]} to {batches[-1]}, shuffled, "
            f"{workers[-1]} workers, a small convolutional network trained on {options.device}"
        )

    def measure(self, options: StudyOptions) -> Measurements:
        """Measure every format with every batch size, PNG with fewer workers, and test the libraries."""
        samples, batches, workers = sizes_of(options)
        with scratch(options) as folder:
            openers = openers_of(options, folder)
            contenders = contenders_of(options, openers) | pinned_contenders(options, openers)
            measured = interleave(contenders, warmup=options.warmup, on_status=options.on_status)
        options.on_status("reading HDF5 in forked workers that share one handle")
        both = openers["hdf5"], openers["npy"]
        forks = run_in_subprocess(misread_by_forks, *both, FORK_WORKERS, FORK_EPOCHS, limit_s=FORK_LIMIT_S)
        return merged(
            [measured],
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

    def evaluate(self, measured: Measurements) -> list[ClaimResult]:
        """Return a verdict on each claim."""
        (few, *_, many), (none, *some, most) = measured.figures["batches"], measured.figures["workers"]
        small, large = f"png, batch {few}", f"png, batch {many}"
        fewer = some[0] if some else none
        return [
            if_large_enough(
                claimed_faster(
                    "An epoch with a larger batch is shorter.",
                    measured,
                    large,
                    small,
                    _over_batches(measured),
                ),
                measured,
                small,
            ),
            claimed_faster(
                "The time for data does not grow in proportion to the batch.",
                measured.of("wait_s"),
                large,
                small,
                ", in the time that an epoch waits for data; if each wait were in proportion to its batch, "
                f"both would wait equally long{_over_batches(measured, 'wait_s')}",
            ),
            if_started(
                claimed_faster(
                    f"With small batches, fewer workers are better than {most}.",
                    measured,
                    f"{small}, {fewer} workers",
                    small,
                    "".join(_over_workers(measured, batch) for batch in (few, many)),
                ),
                measured,
                small,
            ),
            _lmdb_claim(measured, f"lmdb:codec=lz4, batch {few}", small),
            *_gpu_claims(measured),
            _forks_claim(measured),
            *_size_claims(measured),
        ]


def _size_claims(measured: Measurements) -> list[ClaimResult]:
    """Return the verdicts on data that grow."""
    lmdb = measured.figures["lmdb"]
    enlarged = "; the map of an open environment can be enlarged" if lmdb["grows"] else ""
    return [
        ClaimResult(
            "LMDB needs its map_size in advance.",
            REPRODUCED if lmdb["refuses"] else NOT_REPRODUCED,
            f"data beyond it are refused{enlarged}",
        ),
        ClaimResult(
            "HDF5 can be resized.",
            REPRODUCED if measured.figures["hdf5_resizes"] else NOT_REPRODUCED,
            "rows were appended to a chunked dataset created with maxshape=None",
        ),
    ]


def _over_batches(measured: Measurements, figure: str | None = None) -> str:
    """Return the medians of PNG by batch size, in words."""
    batches = measured.figures["batches"]
    shown = measured.of(figure) if figure else measured
    medians = [seconds_text(statistics.median(shown.seconds[f"png, batch {batch}"])) for batch in batches]
    return f"; batch {', '.join(map(str, batches))}: {', '.join(medians)}"


def _over_workers(measured: Measurements, batch: int) -> str:
    """Return the medians of PNG by number of workers, in words."""
    *fewer, most = measured.figures["workers"]
    names = [f"png, batch {batch}, {count} workers" for count in fewer] + [f"png, batch {batch}"]
    medians = [seconds_text(statistics.median(measured.seconds[name])) for name in names]
    return f"; batch {batch}, {', '.join(map(str, (*fewer, most)))} workers: {', '.join(medians)}"


def _lmdb_claim(measured: Measurements, packed: str, png: str) -> ClaimResult:
    claim = "LMDB with lz4 is better than PNG, but not so much better."
    better = claimed_faster(claim, measured, packed, png)
    ratio = against(measured.seconds, packed, png).ratio
    if better.verdict != REPRODUCED or ratio.low is None or ratio.high is None:
        return better
    if ratio.low < TWICE < ratio.high:
        return replace(better, verdict=INCONCLUSIVE)
    return better if ratio.high <= TWICE else replace(better, verdict=NOT_REPRODUCED)


def _gpu_claims(measured: Measurements) -> list[ClaimResult]:
    busier = "The GPU is busier with larger batches (33, 31, 37, 52, 84 %)."
    pageable = "With small batches pageable memory is better than pinned."
    helps = f"Pinned memory does not help with {SMALL_SIDE}-pixel inputs and does with {SIDE}-pixel ones."
    if not measured.figures["gpu"]:
        return [no_gpu(claim) for claim in (busier, pageable, helps)]
    few, *_, many = measured.figures["batches"]
    name, gains = pinned_name, partial(claimed_faster, "", measured)
    return [
        _utilization_claim(busier, measured),
        claimed_faster(pageable, measured, name(SIDE, few, False), name(SIDE, few, True)),
        all_of(
            helps,
            [
                opposite(gains(name(SMALL_SIDE, many, True), name(SMALL_SIDE, many, False)), ""),
                gains(name(SIDE, many, True), name(SIDE, many, False)),
            ],
        ),
    ]


def _utilization_claim(claim: str, measured: Measurements) -> ClaimResult:
    busy = [measured.median("gpu_busy", f"png, batch {batch}") for batch in measured.figures["batches"]]
    known = [share for share in busy if share is not None]
    if len(known) < len(busy):
        return ClaimResult(
            claim,
            INCONCLUSIVE,
            "the GPU's driver does not report its utilization, or the epochs were too short",
        )
    few, *_, many = measured.figures["batches"]
    shares = measured.metrics["gpu_busy"]
    large, small = ([max(s, LEAST_BUSY) for s in shares[f"png, batch {batch}"]] for batch in (many, few))
    outcome = stats.compare_rates(large, small).outcome
    texts = ", ".join(f"{share:.0%}" for share in known)
    verdict = {"faster": REPRODUCED, "slower": NOT_REPRODUCED, "equivalent": NOT_REPRODUCED}.get(
        outcome, INCONCLUSIVE
    )
    return ClaimResult(claim, verdict, f"GPU utilization by batch size: {texts}", measured.data)


def _forks_claim(measured: Measurements) -> ClaimResult:
    claim, forks = "HDF5 is vulnerable when read in parallel.", measured.figures["forks"]
    what = f"{FORK_WORKERS} forked workers that share a handle opened before the fork"
    safe = "; iobench opens one in each worker, and checks the content that arrives"
    if forks["failure"] is not None:
        at_fault = forks["hung"] or any(sign in forks["failure"] for sign in OF_THE_LIBRARY)
        return ClaimResult(
            claim, REPRODUCED if at_fault else INCONCLUSIVE, f"{what}: the process {forks['failure']}{safe}"
        )
    read = f"{what} read {forks['wrong']:,} of {forks['samples']:,} samples wrong"
    return ClaimResult(
        claim, REPRODUCED if forks["wrong"] else NOT_REPRODUCED, f"{read}{safe if forks['wrong'] else ''}"
    )


STUDY = SmallBatchesStudy()
