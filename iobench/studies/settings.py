"""Eleven combinations of DataLoader's memory-related settings, with 10, 40 and 70 % of the data."""

from __future__ import annotations

import importlib
from dataclasses import replace
from functools import partial

from iobench.base.errors import needing
from iobench.base.units import bytes_text, counted, seconds_text, three_digits
from iobench.dataset.opener import Opener
from iobench.dataset.prepare import prepare
from iobench.dataset.sources import Synthetic
from iobench.host import page_cache
from iobench.results.run_warning import Value
from iobench.studies._base import (
    INCONCLUSIVE,
    NOT_REPRODUCED,
    REPRODUCED,
    ClaimResult,
    Study,
    StudyOptions,
    cores,
)
from iobench.studies._claims import (
    all_of,
    claimed_equal,
    claimed_faster,
    if_large_enough,
    if_started,
    no_gpu,
    opposite,
    too_small,
)
from iobench.studies._combinations import BATCH, MANY, TABLE, train_unwatched, train_with_both
from iobench.studies._references import MEMORY_SETTINGS
from iobench.studies._rounds import Contender, Measurements, interleave
from iobench.studies._subprocess import run_in_subprocess

SHARES = (10, 40, 70)  # per cent of the data
SMALL, LARGE = SHARES[0], SHARES[-1]
COLUMNS = 1024
PUBLISHED, QUICK = 20_000, 2_000  # samples, of which the shares are taken
ROUNDS, QUICK_ROUNDS = 15, 5
EPOCHS, QUICK_EPOCHS = 20, 1  # in a round: 15 rounds are the reference's 3 runs of 100 epochs
TOGETHER_EPOCHS, QUICK_TOGETHER_EPOCHS = 100, 10
TOGETHER_LIMIT_S = 120.0  # for an epoch
UNWATCHED = "nothing set, unwatched"
ALIKE = 0.1  # of the data's growth; GPU memory that grows by less does not depend on the data


class SettingsStudy(Study):
    """Training time and memory of each combination, by share of the data."""

    reference = MEMORY_SETTINGS
    question = "Which of DataLoader's settings speed up training?"

    def setup(self, options: StudyOptions) -> str:
        """Return sizes and settings, in words."""
        samples, rounds, count, _ = _sizes(options)
        return (
            f"{', '.join(map(str, SHARES))} % of {samples:,} samples of {COLUMNS} float32 in npy, shuffled, "
            f"batch {BATCH}; an MLP trained on {options.device}; {rounds} rounds "
            f"of {count} epoch{'s' * (count != 1)}"
            f"{'' if options.gpu else '; pinned memory and non-blocking copies have no effect on the CPU'}"
        )

    def measure(self, options: StudyOptions) -> Measurements:
        """Measure each combination with each share of the data, and a background thread over workers."""
        with needing("study settings", "studies"):
            importlib.import_module("prefetch_generator")
        _, rounds, count, tried = _sizes(options)
        openers = {share: _opener(options, share) for share in SHARES}
        contenders: dict[str, Contender] = {}
        for share, opener in openers.items():
            contenders |= _contenders(opener, options.device, share, count)
        measured = interleave(contenders, rounds, warmup=options.warmup, on_status=options.on_status)
        options.on_status(f"a background thread over {MANY} workers, {tried} epochs")
        both = run_in_subprocess(
            train_with_both, openers[SMALL], options.device, tried, limit_s=TOGETHER_LIMIT_S
        )
        figures = {
            "gpu": options.gpu,
            "epochs": count,
            "batches": -(-openers[SMALL].schema.samples // BATCH),
            "data_bytes": {str(share): opener.schema.logical_bytes for share, opener in openers.items()},
            "both": {"epochs": tried, "seconds": both.value, "failure": both.failure, "hung": both.hung},
        }
        few, many = (openers[share].schema.samples for share in (SMALL, LARGE))
        sample = bytes_text(openers[SMALL].schema.sample_bytes)
        data = f"{few:,} to {many:,} samples of {sample} and {counted(cores(), 'core')}"
        return replace(measured, figures=figures, data=data)

    def evaluate(self, measured: Measurements) -> list[ClaimResult]:
        """Return a verdict on each claim."""
        name = partial(_name, measured)
        slower = [
            if_started(claimed_faster("", measured, name(2, LARGE), name(n, LARGE)), measured, name(n, LARGE))
            for n in (3, 4, 5, 6)
        ]
        fewer = [
            if_started(
                claimed_faster("", measured, name(a, LARGE), name(b, LARGE)),
                measured,
                name(a, LARGE),
                name(b, LARGE),
            )
            for a, b in ((5, 3), (6, 4))
        ]
        prefetch = [_little_data_claim(measured, a, b) for a, b in ((3, 4), (6, 5))]
        pairs = {(name(a, LARGE), name(b, LARGE)): None for a, b in ((7, 2), (8, 1), (9, 10))}
        return [
            _growth_claim(measured),
            *_gpu_claims(measured),
            all_of("Workers slow training down clearly.", slower),
            all_of("Fewer workers slow it down less.", fewer),
            all_of("With little data, many workers want a large prefetch factor, few a small one.", prefetch),
            all_of(
                "The background generator speeds training up.",
                [_long_enough(claimed_faster("", measured, *pair), measured, *pair) for pair in pairs],
            ),
            _deadlock_claim(measured),
            _long_enough(
                claimed_equal(
                    "Watching memory does not change the times.",
                    measured,
                    name(10, LARGE),
                    label_at(UNWATCHED, LARGE),
                ),
                measured,
                name(10, LARGE),
            ),
        ]


def _sizes(options: StudyOptions) -> tuple[int, int, int, int]:
    """Return samples, rounds, epochs in a round, and epochs of the combination that may deadlock."""
    if options.quick:
        return QUICK, QUICK_ROUNDS, QUICK_EPOCHS, QUICK_TOGETHER_EPOCHS
    return PUBLISHED, ROUNDS, EPOCHS, TOGETHER_EPOCHS


def _opener(options: StudyOptions, share: int) -> Opener:
    samples = _sizes(options)[0] * share // 100
    source = Synthetic(samples * COLUMNS, (COLUMNS,))
    manifest = prepare(source, ["npy"], data_dir=options.folder, name=f"settings-{samples}")[0]
    page_cache.warm(manifest.files_of("npy"))
    return manifest.opener("npy")


def _contenders(opener: Opener, device: str, share: int, count: int) -> dict[str, Contender]:
    """Return the combinations that differ on the device, and the control."""
    different = dict.fromkeys(combination.on(device) for combination in TABLE.values())
    contenders = {label_at(one.label, share): one.contender(opener, device, count) for one in different}
    return {**contenders, label_at(UNWATCHED, share): partial(train_unwatched, opener, device, count)}


def label_at(label: str, share: int) -> str:
    """Return the label of a contender at a share of the data."""
    return f"{label}, at {share} %"


def _name(measured: Measurements, number: int, share: int) -> str:
    """Return the contender's name for a row of the table."""
    return label_at(TABLE[number].on("cuda" if measured.figures["gpu"] else "cpu").label, share)


def _long_enough(result: ClaimResult, measured: Measurements, *names: str) -> ClaimResult:
    return if_large_enough(result, measured, *names, epochs=measured.figures.get("epochs", 1))


def _growth_claim(measured: Measurements) -> ClaimResult:
    """Return the verdict on the growth of time, with that of the data."""
    little, much = (_name(measured, 2, share) for share in (SMALL, LARGE))
    data = measured.figures["data_bytes"]
    more = data[str(LARGE)] / data[str(SMALL)]
    aside = f", with {three_digits(more)} times as much data for the latter"
    result = claimed_faster("Time grows with the data.", measured, little, much, aside)
    return _long_enough(result, measured, little, much)


def _little_data_claim(measured: Measurements, one: int, other: int) -> ClaimResult:
    """Return whether a prefetch factor is faster than another, if there are enough batches to prefetch."""
    names = _name(measured, one, SMALL), _name(measured, other, SMALL)
    result = if_started(claimed_faster("", measured, *names), measured, *names)
    batches = measured.figures.get("batches")
    prefetched = min(TABLE[n].workers * (TABLE[n].prefetch or 0) for n in (one, other))
    if batches is None or batches > prefetched:
        return result
    reason = f"an epoch has {batches} batches, and all workers together prefetch {prefetched}"
    return too_small(result, reason, {"batches": batches, "prefetched_batches": prefetched})


def _gpu_claims(measured: Measurements) -> list[ClaimResult]:
    """Return the verdicts that need a GPU: on copies to it, and data that stay there."""
    everything = "All of the data on the GPU is fastest."
    pinned = "Pinned memory helps only with the background generator or with little data."
    unblocked = "Copies that do not block help with much data and hurt with little."
    memory = "GPU memory depends on the data only where all of it is there."
    if not measured.figures["gpu"]:
        return [no_gpu(claim) for claim in (everything, pinned, unblocked, memory)]
    name = partial(_name, measured)
    resident, others = name(11, LARGE), [name(n, LARGE) for n in range(1, 11)]
    helps = partial(claimed_faster, "", measured)
    return [
        all_of(everything, [helps(resident, other) for other in others]),
        all_of(
            pinned,
            [
                helps(name(8, LARGE), name(9, LARGE)),
                helps(name(1, SMALL), name(10, SMALL)),
                opposite(helps(name(1, LARGE), name(10, LARGE)), ""),
            ],
        ),
        all_of(unblocked, [helps(name(2, LARGE), name(1, LARGE)), helps(name(1, SMALL), name(2, SMALL))]),
        gpu_memory_claim(memory, measured),
    ]


def gpu_memory_claim(claim: str, measured: Measurements) -> ClaimResult:
    """Return whether memory grows with the data only in the row that keeps all on the GPU."""

    def grown(row: int) -> float:
        little, much = (
            measured.median("gpu_allocated_bytes", _name(measured, row, share)) or 0.0
            for share in (SMALL, LARGE)
        )
        return much - little

    data = measured.figures["data_bytes"]
    more = data[str(LARGE)] - data[str(SMALL)]
    moved, all_there = max(grown(row) for row in range(1, 11)), grown(11)
    evidence = (
        f"from {SMALL} to {LARGE} % of the data, {bytes_text(more)} more, the peak of allocated GPU memory "
        f"grows by at most {bytes_text(max(0.0, moved))}; with all data there, by "
        f"{bytes_text(max(0.0, all_there))}"
    )
    reproduced = moved < ALIKE * more and all_there > more / 2
    values: dict[str, Value] = {"data_bytes": more, "growth_bytes": moved, "growth_with_all_bytes": all_there}
    return ClaimResult(claim, REPRODUCED if reproduced else NOT_REPRODUCED, evidence, values=[values])


def _deadlock_claim(measured: Measurements) -> ClaimResult:
    claim, both = "The background generator deadlocks together with workers.", measured.figures["both"]
    data = bytes_text(measured.figures["data_bytes"][str(SMALL)])
    what = f"{both['epochs']} epochs of {data} through a background thread over {MANY} workers"
    if both["failure"] is None:
        evidence = f"{what} ended after {seconds_text(both['seconds'])}"
        return ClaimResult(claim, NOT_REPRODUCED, evidence, values=[{"seconds": both["seconds"]}])
    verdict = REPRODUCED if both["hung"] else INCONCLUSIVE
    return ClaimResult(claim, verdict, f"{what}: the process {both['failure']}")


STUDY = SettingsStudy()
