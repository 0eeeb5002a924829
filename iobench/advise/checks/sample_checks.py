"""Checks of the work per sample: decoding, collating, padding, files and memory."""

from __future__ import annotations

from collections.abc import Callable

from iobench.advise.checks.evidence import Advice, Evidence, measured
from iobench.advise.checks.loop_stats import LoopStats
from iobench.base.finding import Finding
from iobench.base.units import bytes_text
from iobench.host import page_cache

SHARE = 0.3  # of the time, from which on advice is worth giving
IOWAIT = 0.25
GROWTH, GROWTH_BYTES = 0.2, 100 << 20
FREE_SHARE = 0.5  # of free memory, that cached samples may take
MOST = 0.5  # of the time, from which on a call is named although no check knows it
PADDED = 0.4  # of what is delivered
MANY_TENSORS = 8  # in a batch


def _disk(evidence: Evidence) -> Advice | None:
    """Cores that wait for the disk."""
    loop = evidence.loop
    if not loop.disk_bytes or (loop.iowait or 0) < IOWAIT:
        return None
    rate = loop.disk_bytes / loop.elapsed_s
    return Advice(
        "disk",
        f"CPU cores waited for the disk {loop.iowait:.0%} of the time, which delivered {bytes_text(rate)}/s",
        "'iobench limits' measures what the disk can do, 'iobench run --cache cold' which format gets there",
        {"iowait": loop.iowait or 0.0, "disk_bytes_per_s": rate},
    )


def fits_in_memory(loop: LoopStats) -> bool:
    """Return True if all samples of an epoch, as delivered, fit in half of the free memory."""
    return loop.epoch_batches is not None and 0 < loop.dataset_bytes < FREE_SHARE * page_cache.free_memory()


def _decoding(evidence: Evidence) -> Advice | None:
    """Repeated decoding of the same samples in each epoch."""
    profile = evidence.fetching
    if profile is None or profile.decode_share < SHARE:
        return None
    tried = evidence.gain(lambda one: one.kind == "cache")
    message = f"{profile.decode_share:.0%} of the time is spent decoding, again in each epoch"
    size = bytes_text(evidence.loop.dataset_bytes)
    values: dict[str, float | int | str] = {
        "share": profile.decode_share,
        "dataset_bytes": evidence.loop.dataset_bytes,
    }
    if tried is not None:
        hint = f"cache the decoded samples in memory: all of them take {size}"
        return Advice("decoding", message, hint, {**values, "cached": 1}, *measured(tried))
    cached = [one.name for one in evidence.candidates if one.kind == "cache"]
    without_gain = ("equivalent", "slower")
    if any(one.outcome in without_gain for name, one in evidence.against.items() if name in cached):
        return None
    fitting = f"; decoded they take {size}, which fits in memory" if fits_in_memory(evidence.loop) else ""
    return Advice("decoding", message, f"decode once: 'iobench prepare --source FOLDER'{fitting}", values)


def _lists(evidence: Evidence) -> Advice | None:
    """Tensors made of Python lists, number by number."""
    profile = evidence.fetching
    if profile is None or profile.tensor_share < SHARE:
        return None
    return Advice(
        "python-lists",
        f"{profile.tensor_share:.0%} of the time is spent in torch.tensor(), which reads a list number by "
        "number",
        "store arrays from the beginning, and use torch.from_numpy() or torch.stack()",
        {"share": profile.tensor_share},
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


def memory_growth(evidence: Evidence) -> Advice | None:
    """Shared memory that workers copy by reading it: reference counts are written into each object's page."""
    loop = evidence.loop
    grown, most = loop.memory_growth_bytes or 0, loop.memory_bytes or 0
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


def dominating_call(evidence: Evidence) -> Finding | None:
    """Return the function or library that takes most of the time, for loaders without advice."""
    profile = evidence.fetching
    if profile is None or not profile.functions:
        return None
    top = profile.functions[0]
    what, share = (top.name, top.share) if top.share >= MOST else (profile.library, profile.library_share)
    if share < MOST:
        return None
    return Finding(
        "dominating-call",
        f"{share:.0%} of the time of the {profile.where} is spent in {what}",
        "do less of it for each sample, or do it once before training",
        {"call": what, "share": share, "where": profile.where},
    )


CHECKS: tuple[Callable[[Evidence], Advice | None], ...] = (
    _disk,
    _decoding,
    _lists,
    _collating,
    _padding,
    memory_growth,
    _handles,
    _chunks,
)
