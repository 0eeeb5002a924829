"""Eleven combinations of DataLoader's memory-related settings, with 10, 40 and 70 % of the data."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch

from iobench.base.errors import LoaderFailed, needing
from iobench.base.units import bytes_text, counted, seconds_text, three_digits
from iobench.bench.epoch import epoch_request, opened
from iobench.bench.meter import Meter
from iobench.dataset.opener import Opener
from iobench.dataset.sources import Synthetic
from iobench.formats import Rows
from iobench.loading.host_to_device import HostBatch, HostToDevice
from iobench.loading.loaders import Epochs, Job, Loader
from iobench.loading.loaders.dataloader import DataLoaderEpochs, TorchDataLoader
from iobench.loading.order import Order
from iobench.studies._claims import ClaimResult, Claims, all_of, judged
from iobench.studies._epochs import epochs, training
from iobench.studies._rounds import (
    Contender,
    Heartbeat,
    Measurements,
    RoundResult,
    interleave,
    run_in_subprocess,
)
from iobench.studies._study import MEMORY_SETTINGS, Study, StudyOptions, cores, warm_dataset

BATCH = 256
MANY, FEW = 8, 4  # workers
DEEP, SHALLOW = 8, 2  # prefetch factor


@dataclass(frozen=True)
class Combination:
    """A row of the reference's table: a combination of DataLoader's memory-related settings."""

    pinned: bool = False
    non_blocking: bool = False
    workers: int = 0
    prefetch: int | None = None  # prefetch factor
    background: bool = False  # a prefetching thread between loader and training
    resident: bool = False  # all data on the device before the first batch

    @property
    def label(self) -> str:
        """The settings in words."""
        words = {
            "pinned": self.pinned,
            "non-blocking": self.non_blocking,
            f"{self.workers} workers × {self.prefetch}": self.workers > 0,
            "background thread": self.background,
            "all data on the device": self.resident,
        }
        return ", ".join(word for word, is_set in words.items() if is_set) or "nothing set"

    def on(self, device: str) -> Combination:
        """Return it without the settings that have no effect on a device."""
        return replace(self, pinned=False, non_blocking=False) if device == "cpu" else self

    @property
    def loader(self) -> Loader:
        """A loader with these settings."""
        if self.resident:
            return Resident()
        kind = Background if self.background else TorchDataLoader
        return kind(
            num_workers=self.workers,
            prefetch_factor=self.prefetch,
            start_method="fork" if self.workers else None,  # others are so slow that they hide the rest
            pin_memory=self.pinned,
            non_blocking=self.non_blocking,
        )

    def contender(self, opener: Opener, device: str, count: int) -> Contender:
        """Return a contender that trains for `count` epochs with these settings; see `epochs`."""
        return epochs(self.on(device).loader, shuffled(opener, device), count, training)


TABLE = {
    1: Combination(pinned=True),
    2: Combination(True, True),
    3: Combination(True, True, MANY, DEEP),
    4: Combination(True, True, MANY, SHALLOW),
    5: Combination(True, True, FEW, DEEP),
    6: Combination(True, True, FEW, SHALLOW),
    7: Combination(True, True, background=True),
    8: Combination(pinned=True, background=True),
    9: Combination(background=True),
    10: Combination(),
    11: Combination(resident=True),
}
BOTH = Combination(True, True, MANY, DEEP, background=True)  # the reference reports a deadlock


@dataclass(frozen=True)
class Background(TorchDataLoader):
    """A DataLoader in a thread that prefetches one batch."""

    name: ClassVar[str] = "background"

    def open(self, job: Job) -> Epochs:
        """Open a DataLoader behind a thread."""
        return BackgroundEpochs(self, job)


class BackgroundEpochs(DataLoaderEpochs):
    """DataLoader's epochs, prefetched by a thread."""

    prefetches = True  # the thread reads ahead

    def _epoch(self, request: Sequence[Rows]) -> Iterator[HostBatch]:
        from prefetch_generator import BackgroundGenerator

        yield from BackgroundGenerator(super()._epoch(request))


@dataclass(frozen=True)
class Resident(Loader):
    """Indexes batches from tensors that are on the device before the first epoch."""

    name: ClassVar[str] = "resident"
    library: ClassVar[str] = "torch"

    def open(self, job: Job) -> Epochs:
        """Read all data and copy them to the device; LoaderFailed if they do not fit."""
        return ResidentEpochs(self, job)


class ResidentEpochs(Epochs):
    """Epochs of batches indexed on the device."""

    def __init__(self, loader: Resident, job: Job) -> None:
        super().__init__(loader, job)
        device = self._device = torch.device(job.device)
        with job.opener() as reader:
            whole = reader.batch(slice(0, job.opener.schema.samples))
        try:
            self._whole = {name: torch.from_numpy(array).to(device) for name, array in whole.items()}
        except torch.OutOfMemoryError as error:
            problem, hint = f"the data do not fit into the memory of {device}", "free memory on the device"
            path = job.opener.path
            raise LoaderFailed(problem, kind="out-of-memory", path=path, hint=hint) from error

    def _epoch(self, request: Sequence[Rows]) -> Iterator[HostBatch]:
        for rows in request:
            index = rows if isinstance(rows, slice) else torch.from_numpy(rows).to(self._device)
            yield {name: tensor[index] for name, tensor in self._whole.items()}

    def close(self) -> None:
        """Release the tensors."""
        self._whole = {}


def shuffled(opener: Opener, device: str) -> Job:
    """Return a job with the reference's batch size, in random order."""
    return Job(opener, Order("random", BATCH), device)


def train_with_both(heartbeat: Heartbeat, opener: Opener, device: str, count: int) -> float:
    """Return the seconds that epochs take with a background thread over workers; may deadlock."""
    epoch, seconds = BOTH.contender(opener, device, 1), 0.0
    for _ in range(count):
        seconds += epoch().seconds
        heartbeat()
    return seconds


def train_unwatched(opener: Opener, device: str, count: int) -> RoundResult:
    """Train for epochs with no setting and measure only their time: the control."""
    loader, job = TABLE[10].loader.on(device), shuffled(opener, device)
    transfer = HostToDevice(torch.device(device), non_blocking=False)
    transfer.release_memory()
    train, meter = training(opener, transfer), Meter()
    for number in range(1, count + 1):
        request = epoch_request(loader, job, number)
        with closing(opened(loader, job)) as opened_epochs, meter:
            for batch in opened_epochs.epoch(request):
                train(transfer.move(batch))
            transfer.synchronize()
    return RoundResult(meter.elapsed_s)


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


def _setup(options: StudyOptions) -> str:
    samples, rounds, count, _ = _sizes(options)
    return (
        f"{', '.join(map(str, SHARES))} % of {samples:,} samples of {COLUMNS} float32 in npy, shuffled, "
        f"batch {BATCH}; an MLP trained on {options.device}; {rounds} rounds "
        f"of {count} epoch{'s' * (count != 1)}"
        f"{'' if options.gpu else '; pinned memory and non-blocking copies have no effect on the CPU'}"
    )


def _measure(options: StudyOptions) -> Measurements:
    with needing("study settings", "studies"):
        importlib.import_module("prefetch_generator")
    _, rounds, count, tried = _sizes(options)
    openers = {share: _opener(options, share) for share in SHARES}
    contenders: dict[str, Contender] = {}
    for share, opener in openers.items():  # the combinations that differ on the device, and the control
        for one in dict.fromkeys(combination.on(options.device) for combination in TABLE.values()):
            contenders[label_at(one.label, share)] = one.contender(opener, options.device, count)
        control = partial(train_unwatched, opener, options.device, count)
        contenders[label_at(UNWATCHED, share)] = control
    measured = interleave(contenders, rounds, warmup=options.warmup, on_status=options.on_status)
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
    return replace(measured, figures=figures, data=data)


def _verdicts(claims: Claims) -> dict[str, ClaimResult]:
    little, much = _rows(claims, SMALL), _rows(claims, LARGE)
    data, unset = claims.figures["data_bytes"], much[10]
    more = three_digits(data[str(LARGE)] / data[str(SMALL)])
    aside = f", with {more} times as much data for the latter"
    pairs = dict.fromkeys((much[a], much[b]) for a, b in ((7, 2), (8, 1), (9, 10)))
    return {
        "Time grows with the data.": claims.faster(little[2], much[2], aside, long=[little[2], much[2]]),
        "All of the data on the GPU is fastest.": claims.on_gpu(
            lambda gpu: all_of([gpu.faster(much[11], much[n]) for n in range(1, 11)])
        ),
        "Pinned memory helps only with the background generator or with little data.": claims.on_gpu(
            lambda gpu: all_of(
                [
                    gpu.faster(much[8], much[9]),
                    gpu.faster(little[1], little[10]),
                    gpu.faster(much[1], much[10]).opposite(),
                ]
            )
        ),
        "Copies that do not block help with much data and hurt with little.": claims.on_gpu(
            lambda gpu: all_of([gpu.faster(much[2], much[1]), gpu.faster(little[1], little[2])])
        ),
        "GPU memory depends on the data only where all of it is there.": claims.on_gpu(gpu_memory),
        "Workers slow training down clearly.": all_of(
            [claims.faster(much[2], much[n], started=[much[n]]) for n in (3, 4, 5, 6)]
        ),
        "Fewer workers slow it down less.": all_of(
            [claims.faster(much[a], much[b], started=[much[a], much[b]]) for a, b in ((5, 3), (6, 4))]
        ),
        "With little data, many workers want a large prefetch factor, few a small one.": all_of(
            [_prefetching(claims, a, b) for a, b in ((3, 4), (6, 5))]
        ),
        "The background generator speeds training up.": all_of(
            [claims.faster(*pair, long=pair) for pair in pairs]
        ),
        "The background generator deadlocks together with workers.": _deadlock(claims),
        "Watching memory does not change the times.": claims.equal(
            unset, label_at(UNWATCHED, LARGE), long=[unset]
        ),
    }


def _sizes(options: StudyOptions) -> tuple[int, int, int, int]:
    """Return samples, rounds, epochs in a round, and epochs of the combination that may deadlock."""
    quick = QUICK, QUICK_ROUNDS, QUICK_EPOCHS, QUICK_TOGETHER_EPOCHS
    return options.sized((PUBLISHED, ROUNDS, EPOCHS, TOGETHER_EPOCHS), quick)


def _opener(options: StudyOptions, share: int) -> Opener:
    samples = _sizes(options)[0] * share // 100
    source = Synthetic(samples * COLUMNS, (COLUMNS,))
    return warm_dataset(options, source, ["npy"], f"settings-{samples}").opener("npy")


def label_at(label: str, share: int) -> str:
    """Return the label of a contender at a share of the data."""
    return f"{label}, at {share} %"


def _rows(claims: Claims, share: int) -> dict[int, str]:
    """Return the names of the contenders of the table's rows, at a share of the data."""
    device = "cuda" if claims.figures["gpu"] else "cpu"
    return {row: label_at(one.on(device).label, share) for row, one in TABLE.items()}


def _prefetching(claims: Claims, one: int, other: int) -> ClaimResult:
    """Return whether a prefetch factor is faster than another, if there are enough batches to prefetch."""
    rows, batches = _rows(claims, SMALL), claims.figures.get("batches")
    result = claims.faster(rows[one], rows[other], started=[rows[one], rows[other]])
    prefetched = min(TABLE[n].workers * (TABLE[n].prefetch or 0) for n in (one, other))
    if batches is None or batches > prefetched:
        return result
    reason = f"an epoch has {batches} batches, and all workers together prefetch {prefetched}"
    return result.too_small(reason, batches=batches, prefetched_batches=prefetched)


def gpu_memory(claims: Claims) -> ClaimResult:
    """Return whether memory grows with the data only in the row that keeps all on the GPU."""

    def grown(row: int) -> float:
        little, much = (
            claims.measured.median("gpu_allocated_bytes", _rows(claims, share)[row]) or 0.0
            for share in (SMALL, LARGE)
        )
        return much - little

    data = claims.figures["data_bytes"]
    more = data[str(LARGE)] - data[str(SMALL)]
    moved, all_there = max(grown(row) for row in range(1, 11)), grown(11)
    evidence = (
        f"from {SMALL} to {LARGE} % of the data, {bytes_text(more)} more, the peak of allocated GPU memory "
        f"grows by at most {bytes_text(max(0.0, moved))}; with all data there, by "
        f"{bytes_text(max(0.0, all_there))}"
    )
    values = {"data_bytes": more, "growth_bytes": moved, "growth_with_all_bytes": all_there}
    return judged(moved < ALIKE * more and all_there > more / 2, evidence, **values)


def _deadlock(claims: Claims) -> ClaimResult:
    both, data = claims.figures["both"], bytes_text(claims.figures["data_bytes"][str(SMALL)])
    what = f"{both['epochs']} epochs of {data} through a background thread over {MANY} workers"
    if both["failure"] is None:
        ended = f"{what} ended after {seconds_text(both['seconds'])}"
        return judged(False, ended, seconds=both["seconds"])
    return judged(both["hung"] or None, f"{what}: the process {both['failure']}")


QUESTION = "Which of DataLoader's settings speed up training?"
STUDY = Study(MEMORY_SETTINGS, QUESTION, _setup, _measure, _verdicts)
