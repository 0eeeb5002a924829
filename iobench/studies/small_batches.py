"""Small batches from PNG, HDF5, LMDB, npy and memmap: breakdown of an epoch's time."""

from __future__ import annotations

import statistics
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
from torch.utils.data import DataLoader

from iobench import formats
from iobench.base.units import MIB, bytes_text, counted, seconds_text
from iobench.dataset.manifest import Manifest
from iobench.dataset.opener import Opener
from iobench.dataset.sources import Synthetic
from iobench.loading.loaders import Job
from iobench.loading.loaders.dataloader import TorchDataLoader
from iobench.loading.loaders.sample_datasets import SampleDataset
from iobench.loading.order import Order
from iobench.loading.user_errors import PortableError
from iobench.results import stats
from iobench.studies._claims import FASTER, INCONCLUSIVE, REPRODUCED, ClaimResult, Claims, all_of, judged
from iobench.studies._epochs import TrainingInParts, epochs
from iobench.studies._rounds import Contender, Heartbeat, Measurements, interleave, merged, run_in_subprocess
from iobench.studies._study import IO_BOTTLENECK, Study, StudyOptions, cores, scratch, warm_dataset

HEARTBEAT_SAMPLES = 100


def misread_by_forks(heartbeat: Heartbeat, opener: Opener, truth: Opener, workers: int, epochs: int) -> int:
    """Return how many samples forked workers read wrong through one handle opened before the fork."""
    dataset: Any = SampleDataset(replace(opener, random=True))
    field = opener.schema.fields[0].name
    dataset.open().sample(0)
    wrong = 0
    with truth() as reader:
        for epoch in range(epochs):
            rows = np.random.Generator(np.random.PCG64(epoch)).permutation(len(dataset))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about more workers than cores
                fork = partial(DataLoader[Any], multiprocessing_context="fork")
                loader = iter(fork(dataset, sampler=rows.tolist(), num_workers=workers))
            try:
                for number, (row, sample) in enumerate(zip(rows, loader, strict=True)):
                    if number % HEARTBEAT_SAMPLES == 0:
                        heartbeat()
                    wrong += not np.array_equal(sample[field][0].numpy(), reader.sample(int(row))[field])
            except PortableError as error:
                raise error.unwrap() from None
    return wrong


def lmdb_when_full() -> tuple[bool, bool]:
    """Return whether LMDB refuses data beyond its map size, and accepts them after the map was enlarged."""
    with tempfile.TemporaryDirectory(prefix="iobench-") as folder, lmdb.open(folder, map_size=MIB) as env:
        refused = not _puts(env, 2 * MIB)
        env.set_mapsize(8 * MIB)
        return refused, _puts(env, 2 * MIB)


def hdf5_resizes() -> bool:
    """Return whether rows can be appended to an HDF5 dataset that holds data."""
    with tempfile.TemporaryDirectory(prefix="iobench-") as folder:
        with h5py.File(Path(folder) / "x.h5", "w") as file:
            rows = file.create_dataset("x", data=np.arange(10), maxshape=(None,), chunks=(4,))
            rows.resize(20, axis=0)
            rows[10:] = np.arange(10, 20)
        with h5py.File(Path(folder) / "x.h5") as file:
            return bool((file["x"][:] == np.arange(20)).all())


def _puts(env: lmdb.Environment, count: int) -> bool:
    try:
        with env.begin(write=True) as txn:
            txn.put(b"key", bytes(count))
    except lmdb.MapFullError:
        return False
    return True


FORMATS = ("npy", "hdf5", "lmdb", "lmdb:codec=lz4", "memmap")  # in addition to png
BATCHES, QUICK_BATCHES = (8, 16, 32, 64, 128), (8, 32, 128)
WORKERS, QUICK_WORKERS = (0, 2, 4, 8, 16), (0, 2)  # the last for all formats
PUBLISHED, QUICK = 8192, 256  # patches
SIDE, SMALL_SIDE, CHANNELS = 64, 16, 3  # pixels
COMPRESSIBILITY = 0.4  # about that of photographs with PNG and lz4


def _sizes(options: StudyOptions) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Return the number of patches, the batch sizes and the numbers of workers."""
    return options.sized((PUBLISHED, BATCHES, WORKERS), (QUICK, QUICK_BATCHES, QUICK_WORKERS))


def _contenders(options: StudyOptions, openers: Mapping[str, Opener]) -> dict[str, Contender]:
    """Return every format with every batch size, and others with the smallest and the largest batch size.

    These are PNG with fewer workers and, on a GPU, pinned and pageable memory with few workers.
    """
    _, batches, (*fewer, most) = _sizes(options)
    ends = batches[0], batches[-1]
    contenders = {
        f"{name}, batch {batch}": _contender(opener, options, batch, most)
        for name, opener in openers.items()
        for batch in batches
    }
    contenders |= {
        f"png, batch {batch}, {count} workers": _contender(openers["png"], options, batch, count)
        for batch in ends
        for count in fewer
    }
    if options.gpu:
        small, few = _prepared(options, SMALL_SIDE).opener("npy"), [*fewer, most][1]
        contenders |= {
            pinned_name(side, batch, pinned): _contender(opener, options, batch, few, pinned)
            for side, opener in ((SMALL_SIDE, small), (SIDE, openers["npy"]))
            for batch in ends
            for pinned in (True, False)
        }
    return contenders


def pinned_name(side: int, batch: int, pinned: bool) -> str:
    """Return the name of a contender with pinned or pageable memory."""
    return f"npy, {side} pixels, batch {batch}, {'pinned' if pinned else 'pageable'}"


def _contender(
    opener: Opener, options: StudyOptions, batch: int, workers: int, pinned: bool | None = None
) -> Contender:
    fork = "fork" if workers else None  # other start methods would take up most of the time
    loader = TorchDataLoader(num_workers=workers, start_method=fork, pin_memory=pinned)
    job = Job(opener, Order("random", batch), options.device)
    return epochs(loader, job, consumer=TrainingInParts)


def _prepared(options: StudyOptions, side: int) -> Manifest:
    size = _sizes(options)[0] * side * side * CHANNELS
    source = Synthetic(size, (side, side, CHANNELS), "uint8", compressibility=COMPRESSIBILITY)
    return warm_dataset(options, source, FORMATS, f"patches-{side}-{source.schema.samples}")


def _openers(options: StudyOptions, folder: Path) -> dict[str, Opener]:
    """Write PNG files into an empty folder, and return the opener of every format and of these."""
    png = formats.get("images")
    options.on_status("writing patches")
    manifest = _prepared(options, SIDE)
    opener = manifest.opener("npy")
    with opener() as reader:
        rows = (reader.batch(slice(row, row + 1)) for row in range(len(reader)))
        png.write(folder / "png", opener.schema, rows)
    return {
        "png": Opener(png, folder / "png", opener.schema),
        **{variant: manifest.opener(variant) for variant in FORMATS},
    }


TWICE = 2.0  # "much better" means at least this ratio
FORK_WORKERS, FORK_EPOCHS, FORK_LIMIT_S = 4, 2, 120.0  # between heartbeats
OF_THE_LIBRARY = ("SIGSEGV", "raised OSError", "raised KeyError")  # failures of h5py that reads wrong bytes
LEAST_BUSY = 0.005  # resolution of a GPU's utilization


def _setup(options: StudyOptions) -> str:
    samples, batches, workers = _sizes(options)
    return (
        f"{samples:,} generated patches of {SIDE} × {SIDE} × {CHANNELS} bytes ({COMPRESSIBILITY:.0%} of "
        f"each repeat one value), warm, batch {batches[0]} to {batches[-1]}, shuffled, "
        f"{workers[-1]} workers, a small convolutional network trained on {options.device}"
    )


def _measure(options: StudyOptions) -> Measurements:
    samples, batches, workers = _sizes(options)
    with scratch(options) as folder:
        openers = _openers(options, folder)
        contenders = _contenders(options, openers)
        measured = interleave(contenders, warmup=options.warmup, on_status=options.on_status)
    options.on_status("reading HDF5 in forked workers that share one handle")
    both = openers["hdf5"], openers["npy"]
    forks = run_in_subprocess(misread_by_forks, *both, FORK_WORKERS, FORK_EPOCHS, limit_s=FORK_LIMIT_S)
    read = {"wrong": forks.value, "failure": forks.failure, "hung": forks.hung}
    return merged(
        [measured],
        f"{samples:,} samples of {bytes_text(SIDE * SIDE * CHANNELS)} and {counted(cores(), 'core')}",
        batches=list(batches),
        workers=list(workers),
        gpu=options.gpu,
        forks={**read, "samples": FORK_EPOCHS * samples},
        lmdb=dict(zip(("refuses", "grows"), lmdb_when_full(), strict=True)),
        hdf5_resizes=hdf5_resizes(),
    )


def _verdicts(claims: Claims) -> dict[str, ClaimResult]:
    (few, *_, many), (none, *some, most) = claims.figures["batches"], claims.figures["workers"]
    small, large = f"png, batch {few}", f"png, batch {many}"
    fewer, waits, lmdb_full = some[0] if some else none, claims.of("wait_s"), claims.figures["lmdb"]
    by_workers = "".join(_over_workers(claims, batch) for batch in (few, many))
    enlarged = "; the map of an open environment can be enlarged" if lmdb_full["grows"] else ""
    waiting = (
        ", in the time that an epoch waits for data; if each wait were in proportion to its batch, "
        f"both would wait equally long{_over_batches(waits)}"
    )
    resized = "rows were appended to a chunked dataset created with maxshape=None"
    packed = f"lmdb:codec=lz4, batch {few}", small
    better, much_better = claims.faster(*packed), claims.at_least(TWICE, *packed)
    return {
        "An epoch with a larger batch is shorter.": claims.faster(
            large, small, _over_batches(claims), long=[small]
        ),
        "The time for data does not grow in proportion to the batch.": waits.faster(large, small, waiting),
        f"With small batches, fewer workers are better than {most}.": claims.faster(
            f"{small}, {fewer} workers", small, by_workers, started=[small]
        ),
        "LMDB with lz4 is better than PNG, but not so much better.": (
            much_better.opposite() if better.verdict == REPRODUCED else better
        ),
        "The GPU is busier with larger batches (33, 31, 37, 52, 84 %).": claims.on_gpu(_utilization),
        "With small batches pageable memory is better than pinned.": claims.on_gpu(
            lambda gpu: gpu.faster(pinned_name(SIDE, few, False), pinned_name(SIDE, few, True))
        ),
        f"Pinned memory does not help with {SMALL_SIDE}-pixel inputs and does with {SIDE}-pixel ones.": (
            claims.on_gpu(
                lambda gpu: all_of([_pinning(gpu, SMALL_SIDE, many).opposite(), _pinning(gpu, SIDE, many)])
            )
        ),
        "HDF5 is vulnerable when read in parallel.": _shared_handle(claims.figures["forks"]),
        "LMDB needs its map_size in advance.": judged(
            lmdb_full["refuses"], f"data beyond it are refused{enlarged}"
        ),
        "HDF5 can be resized.": judged(claims.figures["hdf5_resizes"], resized),
    }


def _over_batches(claims: Claims) -> str:
    """Return the medians of PNG by batch size, in words."""
    names = {str(batch): f"png, batch {batch}" for batch in claims.figures["batches"]}
    return _medians(claims, names, "; batch {}")


def _over_workers(claims: Claims, batch: int) -> str:
    """Return the medians of PNG by number of workers, in words."""
    *fewer, most = claims.figures["workers"]
    names = {str(count): f"png, batch {batch}, {count} workers" for count in fewer}
    return _medians(claims, names | {str(most): f"png, batch {batch}"}, f"; batch {batch}, {{}} workers")


def _medians(claims: Claims, names: Mapping[str, str], of: str) -> str:
    texts = (seconds_text(statistics.median(claims.measured.seconds[name])) for name in names.values())
    return f"{of.format(', '.join(names))}: {', '.join(texts)}"


def _pinning(claims: Claims, side: int, batch: int) -> ClaimResult:
    return claims.faster(pinned_name(side, batch, True), pinned_name(side, batch, False))


def _utilization(claims: Claims) -> ClaimResult:
    names = [f"png, batch {batch}" for batch in claims.figures["batches"]]
    known = [share for name in names if (share := claims.measured.median("gpu_busy", name)) is not None]
    if len(known) < len(names):
        why = "the GPU's driver does not report its utilization, or the epochs were too short"
        return judged(None, why)
    shares = claims.measured.metrics["gpu_busy"]
    large, small = ([max(share, LEAST_BUSY) for share in shares[name]] for name in (names[-1], names[0]))
    outcome = stats.compare_rates(large, small).outcome
    evidence = f"GPU utilization by batch size: {', '.join(f'{share:.0%}' for share in known)}"
    return ClaimResult("", FASTER.get(outcome, INCONCLUSIVE), evidence, claims.measured.data)


def _shared_handle(forks: Mapping[str, Any]) -> ClaimResult:
    what = f"{FORK_WORKERS} forked workers that share a handle opened before the fork"
    safe = "; iobench opens one in each worker, and checks the content that arrives"
    if forks["failure"] is not None:
        at_fault = forks["hung"] or any(sign in forks["failure"] for sign in OF_THE_LIBRARY)
        return judged(at_fault or None, f"{what}: the process {forks['failure']}{safe}")
    read = f"{what} read {forks['wrong']:,} of {forks['samples']:,} samples wrong"
    return judged(forks["wrong"] > 0, f"{read}{safe if forks['wrong'] else ''}")


STUDY = Study(IO_BOTTLENECK, "What feeds small batches best?", _setup, _measure, _verdicts)
