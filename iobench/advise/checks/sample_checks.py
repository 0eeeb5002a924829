"""Checks of what batches hold, and of files and memory."""

from __future__ import annotations

from collections.abc import Callable

from iobench.advise.checks.cost_checks import SHARE
from iobench.advise.checks.evidence import Advice, Evidence
from iobench.base.units import bytes_text

IOWAIT = 0.25
GROWTH, GROWTH_BYTES = 0.2, 100 << 20
PADDED = 0.4  # of what is delivered
MANY_TENSORS = 8  # in a batch


def _disk(evidence: Evidence) -> Advice | None:
    """Cores that wait for the disk."""
    loop = evidence.loop
    if not loop.disk_bytes or (loop.iowait or 0) < IOWAIT:
        return None
    rate = loop.disk_bytes / loop.elapsed_s
    if rate < (loop.background.disk_bytes_per_s or 0.0):  # the disk is busy for others
        return None
    return Advice(
        "disk",
        f"CPU cores waited for the disk {loop.iowait:.0%} of the time, which delivered {bytes_text(rate)}/s",
        "'iobench limits' measures what the disk can do, 'iobench run --cache cold' which format gets there",
        {"iowait": loop.iowait or 0.0, "disk_bytes_per_s": rate},
    )


def _collating(evidence: Evidence) -> Advice | None:
    """Batches of many small tensors."""
    profile, loop = evidence.fetching, evidence.loop
    if profile is None or profile.collate_share < SHARE or loop.tensors < MANY_TENSORS:
        return None
    return Advice(
        "collate",
        f"collating {loop.tensors} tensors a batch takes {profile.collate_share:.0%} of the time",
        "pack fields that are used together into one tensor",
        {"tensors": loop.tensors, "share": profile.collate_share},
    )


def _padding(evidence: Evidence) -> Advice | None:
    """Sequences that are mostly padding."""
    padded = evidence.loop.padding
    if padded is None or padded < PADDED:
        return None
    return Advice(
        "padding",
        f"{padded:.0%} of the batches is padding, which the loader and the device process as well",
        "batch sequences of similar length (a batch sampler by length), and pad to the longest of each batch",
        {"share": padded},
    )


def _repeats(evidence: Evidence) -> Advice | None:
    """IterableDataset that yields all of its samples in each worker."""
    loop = evidence.loop
    if not loop.repeats:
        return None
    workers = loop.loader.workers or 0
    return Advice(
        "repeated-samples",
        f"{loop.repeated:.0%} of the samples come from more than one worker: each of {workers} yields the "
        "whole IterableDataset, so that an epoch has every sample several times",
        "let each worker yield its share in __iter__, by torch.utils.data.get_worker_info()",
        {"share": loop.repeated or 0.0, "workers": workers},
    )


def memory_growth(evidence: Evidence) -> Advice | None:
    """Shared memory that workers copy by reading it: reference counts are written into each object's page."""
    loop = evidence.loop
    grown, most = (loop.memory_growth_bytes or 0) - loop.queued_bytes, loop.memory_bytes or 0
    if not loop.loader.workers or grown < GROWTH_BYTES or grown < GROWTH * most:
        return None
    return Advice(
        "memory-growth",
        f"memory grew by {bytes_text(grown)}: reference counting copies the pages that workers share",
        "hold the dataset's values in arrays instead of lists of Python objects",
        {"growth_bytes": grown},
    )


def _handles(evidence: Evidence) -> Advice | None:
    """Files opened before the workers fork, which their libraries do not support."""
    loader = evidence.loop.loader
    if not loader.handles or not loader.workers:
        return None
    names = ", ".join(loader.handles)
    return Advice(
        "open-handles",
        f"{names} was opened before workers forked, which its library does not support",
        "open it in the first __getitem__",
        {"handles": names},
    )


def _chunks(evidence: Evidence) -> Advice | None:
    """Random samples read from HDF5 chunks that hold several samples each."""
    loader = evidence.loop.loader
    chunks = loader.chunks or (evidence.fetching.chunks if evidence.fetching else [])
    if not chunks or not loader.by_sample or loader.in_order:
        return None
    names = "; ".join(chunks)
    return Advice(
        "hdf5-chunks",
        f"{names}: each random sample reads a whole chunk",
        "write contiguous data or chunks of one sample: "
        "'iobench prepare --source FILE --format hdf5:chunk_bytes=0'",
        {"chunks": names},
    )


CHECKS: tuple[Callable[[Evidence], Advice | None], ...] = (
    _disk,
    _repeats,
    _collating,
    _padding,
    memory_growth,
    _handles,
    _chunks,
)
