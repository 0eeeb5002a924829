"""Eleven combinations of DataLoader's memory-related settings, over 10, 40 and 70 % of the data."""

from __future__ import annotations

import importlib
from dataclasses import replace
from functools import partial

from iobench.base.errors import (
    MissingDependency,
)
from iobench.base.units import bytes_text, counted, seconds_text, three_digits
from iobench.dataset.manifest import Opener
from iobench.dataset.prepare import prepare
from iobench.dataset.sources import Synthetic
from iobench.host import page_cache
from iobench.studies._base import FAILS, HOLDS, UNKNOWN, Answer, Study, StudyOptions, cores
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
from iobench.studies._subprocess import run_in_subprocess
from iobench.studies._turns import Contender, Measurements, interleave

SHARES = (10, 40, 70)  # per cent of the data
SMALL, LARGE = SHARES[0], SHARES[-1]
COLUMNS = 1024
PUBLISHED, QUICK = 20_000, 2_000  # samples, of which the shares are taken
TURNS, QUICK_TURNS = 15, 5
EPOCHS, QUICK_EPOCHS = 20, 1  # in a turn: 15 turns are the 3 runs of 100 epochs
TOGETHER_EPOCHS, QUICK_TOGETHER_EPOCHS = 100, 10
TOGETHER_LIMIT_S = 120.0  # for an epoch
UNWATCHED = "nothing set, unwatched"
ALIKE = 0.1  # of the data: GPU memory that grows by less does not depend on it


class SettingsStudy(Study):
    """Training time and memory of each combination with each share of the data."""

    reference = MEMORY_SETTINGS
    question = "Which of DataLoader's settings speed up training?"

    def about(self, options: StudyOptions) -> str:
        """Sizes and settings, in words."""
        samples, turns, count, _ = _sizes(options)
        return (
            f"{', '.join(map(str, SHARES))} % of {samples:,} samples of {COLUMNS} float32 in npy, shuffled, "
            f"batch {BATCH}; an MLP trained on {options.device}; {turns} turns "
            f"of {count} epoch{'s' * (count != 1)}"
            f"{'' if options.gpu else '; pinned memory and copies that do not block mean nothing here'}"
        )

    def measure(self, options: StudyOptions) -> Measurements:
        """Each combination with each share of the data; and background thread and workers together."""
        _require_prefetch_generator()
        _, turns, count, tried = _sizes(options)
        openers = {share: _opener(options, share) for share in SHARES}
        contenders: dict[str, Contender] = {}
        for share, opener in openers.items():
            contenders |= _contenders(opener, options.device, share, count)
        found = interleave(contenders, turns, warmup=options.warmup, on_status=options.on_status)
        options.on_status(f"a background thread over {MANY} workers, {tried} epochs")
        both = run_in_subprocess(train_with_both, openers[SMALL], options.device, tried, limit_s=TOGETHER_LIMIT_S)
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
        return replace(found, figures=figures, data=data)

    def answers(self, found: Measurements) -> list[Answer]:
        """What the rounds say about each claim."""
        name = partial(_name, found)
        slower = [
            if_started(claimed_faster("", found, name(2, LARGE), name(n, LARGE)), found, name(n, LARGE))
            for n in (3, 4, 5, 6)
        ]
        fewer = [
            if_started(
                claimed_faster("", found, name(a, LARGE), name(b, LARGE)),
                found,
                name(a, LARGE),
                name(b, LARGE),
            )
            for a, b in ((5, 3), (6, 4))
        ]
        ahead = [_with_little_data(found, a, b) for a, b in ((3, 4), (6, 5))]
        pairs = {(name(a, LARGE), name(b, LARGE)): None for a, b in ((7, 2), (8, 1), (9, 10))}
        return [
            _of_growth(found),
            *_of_the_gpu(found),
            all_of("Workers slow training down clearly.", slower),
            all_of("Fewer workers slow it down less.", fewer),
            all_of("With little data, many workers want a large prefetch factor, few a small one.", ahead),
            all_of(
                "The background generator speeds training up.",
                [_long_enough(claimed_faster("", found, *pair), found, *pair) for pair in pairs],
            ),
            _of_both(found),
            _long_enough(
                claimed_equal(
                    "Watching memory does not change the times.",
                    found,
                    name(10, LARGE),
                    _at(UNWATCHED, LARGE),
                ),
                found,
                name(10, LARGE),
            ),
        ]


def _sizes(options: StudyOptions) -> tuple[int, int, int, int]:
    """Samples, turns, epochs in a turn, and epochs of what may deadlock."""
    if options.quick:
        return QUICK, QUICK_TURNS, QUICK_EPOCHS, QUICK_TOGETHER_EPOCHS
    return PUBLISHED, TURNS, EPOCHS, TOGETHER_EPOCHS


def _opener(options: StudyOptions, share: int) -> Opener:
    samples = _sizes(options)[0] * share // 100
    source = Synthetic(samples * COLUMNS, (COLUMNS,))
    manifest = prepare(source, ["npy"], data_dir=options.folder, name=f"settings-{samples}")[0]
    page_cache.warm(manifest.files_of("npy"))
    return manifest.opener("npy")


def _contenders(opener: Opener, device: str, share: int, count: int) -> dict[str, Contender]:
    """What differs on the device, and the control."""
    different = dict.fromkeys(combination.on(device) for combination in TABLE.values())
    contenders = {_at(one.label, share): one.contender(opener, device, count) for one in different}
    return {
        **contenders,
        _at(UNWATCHED, share): partial(train_unwatched, opener, device, count),
    }


def _at(label: str, share: int) -> str:
    return f"{label}, at {share} %"


def _name(found: Measurements, number: int, share: int) -> str:
    """The contender that stands for a row of the table."""
    return _at(TABLE[number].on("cuda" if found.figures["gpu"] else "cpu").label, share)


def _long_enough(answer: Answer, found: Measurements, *names: str) -> Answer:
    return if_large_enough(answer, found, *names, epochs=found.figures.get("epochs", 1))


def _of_growth(found: Measurements) -> Answer:
    """Held beside by how much the data grow."""
    little, much = (_name(found, 2, share) for share in (SMALL, LARGE))
    data = found.figures["data_bytes"]
    more = data[str(LARGE)] / data[str(SMALL)]
    aside = f", with {three_digits(more)} times as much data for the latter"
    answer = claimed_faster("Time grows with the data.", found, little, much, aside)
    return _long_enough(answer, found, little, much)


def _with_little_data(found: Measurements, one: int, other: int) -> Answer:
    """Whether one prefetch factor is faster than another, where there are batches enough to be ahead by."""
    names = _name(found, one, SMALL), _name(found, other, SMALL)
    answer = if_started(claimed_faster("", found, *names), found, *names)
    batches, ahead = (
        found.figures.get("batches"),
        min(TABLE[n].workers * (TABLE[n].ahead or 0) for n in (one, other)),
    )
    if batches is None or batches > ahead:
        return answer
    return too_small(answer, f"an epoch has {batches} batches, and all workers together are {ahead} ahead")


def _of_the_gpu(found: Measurements) -> list[Answer]:
    """What needs a GPU: copying to it, and what stays on it."""
    everything = "All of the data on the GPU is fastest."
    pinned = "Pinned memory helps only with the background generator or with little data."
    unblocked = "Copies that do not block help with much data and hurt with little."
    memory = "GPU memory depends on the data only where all of it is there."
    if not found.figures["gpu"]:
        return [no_gpu(claim) for claim in (everything, pinned, unblocked, memory)]
    name = partial(_name, found)
    resident, others = name(11, LARGE), [name(n, LARGE) for n in range(1, 11)]
    helps = partial(claimed_faster, "", found)
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
        all_of(
            unblocked,
            [helps(name(2, LARGE), name(1, LARGE)), helps(name(1, SMALL), name(2, SMALL))],
        ),
        _of_gpu_memory(memory, found),
    ]


def _of_gpu_memory(claim: str, found: Measurements) -> Answer:
    def grown(row: int) -> float:
        little, much = (
            found.median("gpu_allocated_bytes", _name(found, row, share)) or 0.0 for share in (SMALL, LARGE)
        )
        return much - little

    data = found.figures["data_bytes"]
    more = data[str(LARGE)] - data[str(SMALL)]
    moved, all_there = max(grown(row) for row in range(1, 11)), grown(11)
    because = (
        f"from {SMALL} to {LARGE} % of the data, {bytes_text(more)} more, the peak of allocated GPU memory "
        f"grows by {bytes_text(max(0.0, moved))} at most; with all of the data there, by "
        f"{bytes_text(max(0.0, all_there))}"
    )
    return Answer(claim, HOLDS if moved < ALIKE * more and all_there > more / 2 else FAILS, because)


def _of_both(found: Measurements) -> Answer:
    claim, both = "The background generator deadlocks together with workers.", found.figures["both"]
    data = bytes_text(found.figures["data_bytes"][str(SMALL)])
    what = f"{both['epochs']} epochs of {data} through a background thread over {MANY} workers"
    if both["failure"] is None:
        return Answer(claim, FAILS, f"{what} ended, after {seconds_text(both['seconds'])}")
    return Answer(claim, HOLDS if both["hung"] else UNKNOWN, f"{what}: the process {both['failure']}")


def _require_prefetch_generator() -> None:
    try:
        importlib.import_module("prefetch_generator")
    except ImportError as error:
        raise MissingDependency(
            "study settings needs prefetch_generator: pip install 'iobench[studies]'"
        ) from error


STUDY = SettingsStudy()
