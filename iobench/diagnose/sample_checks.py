"""Illnesses of what a loader does for each sample: decoding, collating, padding, files, memory."""

from __future__ import annotations

from collections.abc import Callable

from iobench.base.units import bytes_text
from iobench.diagnose.evidence import Advice, Evidence
from iobench.diagnose.loop_stats import LoopStats
from iobench.host import page_cache

SHARE = 0.3  # of the time, from which on something is worth a word
IOWAIT = 0.25
GROWTH, GROWTH_BYTES = 0.2, 100 << 20
OF_FREE = 0.5  # of free memory, that samples which are kept may take
PADDED = 0.4  # of what is delivered


def _disk(evidence: Evidence) -> Advice | None:
    seen = evidence.seen
    if not seen.disk_bytes or (seen.iowait or 0) < IOWAIT:
        return None
    rate = bytes_text(seen.disk_bytes / seen.elapsed_s)
    said = (
        f"processors waited for the disk {seen.iowait:.0%} of the time, which gave {rate}/s; "
        "'iobench limits' says what it can do, and 'iobench run --cache cold' which format gets there"
    )
    return Advice("disk", said)


def fits(seen: LoopStats) -> bool:
    """Whether all samples of an epoch, as they come out, would fit in memory; not of an endless one."""
    return seen.of is not None and 0 < seen.dataset_bytes < OF_FREE * page_cache.free_memory()


def _decoding(evidence: Evidence) -> Advice | None:
    found = evidence.fetching
    if found is None or found.decode_share < SHARE:
        return None
    tried = evidence.gain(lambda candidate: candidate.kind == "cache")
    part = f"{found.decode_share:.0%} of the time goes into decoding, each epoch anew"
    size = bytes_text(evidence.seen.dataset_bytes)
    if tried is not None:
        said = f"{part}; all samples together take {size} and fit in memory: keep them there; {tried.said}"
        return Advice("decoding", said, tried.times)
    kept = [one.name for one in evidence.candidates if one.kind == "cache"]
    if any(one.outcome in ("equivalent", "slower") for n, one in evidence.against.items() if n in kept):
        return None  # surely no gain
    fitting = f": decoded they take {size}, which fits in memory" if fits(evidence.seen) else ""
    return Advice("decoding", f"{part}; 'iobench prepare --source FOLDER' does it once{fitting}")


def _lists(evidence: Evidence) -> Advice | None:
    """Tensors made of Python's lists, number by number."""
    found = evidence.fetching
    if found is None or found.tensor_share < SHARE:
        return None
    said = (
        f"{found.tensor_share:.0%} of the time goes into torch.tensor(), which looks at each number of a "
        "list by itself: keep arrays from the beginning, and use torch.from_numpy() or torch.stack()"
    )
    return Advice("lists", said)


def _collating(evidence: Evidence) -> Advice | None:
    found, seen = evidence.fetching, evidence.seen
    if found is None or found.collate_share < SHARE or seen.tensors < 8:
        return None
    part = f"collating {seen.tensors} tensors a batch takes {found.collate_share:.0%} of the time"
    said = f"{part}; pack fields that go together into one"
    return Advice("collate", said)


def _padding(evidence: Evidence) -> Advice | None:
    """Sequences that are mostly padding."""
    padded = evidence.seen.padding
    if padded is None or padded < PADDED:
        return None
    said = (
        f"{padded:.0%} of what the batches hold is padding: put sequences of like length into a batch (a "
        "batch sampler by length), and pad to its longest; device and loader work on padding, too"
    )
    return Advice("padding", said)


def growth(evidence: Evidence) -> Advice | None:
    """Memory that workers copy by looking at it."""
    seen = evidence.seen
    grown, most = seen.memory_growth_bytes or 0, seen.memory_bytes or 0
    if not seen.facts.workers or grown < GROWTH_BYTES or grown < GROWTH * most:
        return None
    said = (
        f"memory grew by {bytes_text(grown)} while it ran: counting references copies pages that workers "
        "share; keep what the dataset holds in arrays instead of lists of Python objects"
    )
    return Advice("memory", said)


def _handles(evidence: Evidence) -> Advice | None:
    facts = evidence.seen.facts
    if not facts.handles:
        return None
    named = ", ".join(facts.handles)
    said = (
        f"{named} was opened before workers fork, which its library forbids; open it in the first __getitem__"
    )
    return Advice("handles", said) if facts.workers else None


def _chunks(evidence: Evidence) -> Advice | None:
    facts = evidence.seen.facts
    if not facts.chunks or not facts.by_sample or facts.in_order:
        return None
    said = (
        f"{'; '.join(facts.chunks)}: each sample at random reads whole chunks; write contiguous or with "
        "chunks of one sample ('iobench prepare --source FILE --format hdf5:chunk_bytes=0')"
    )
    return Advice("chunks", said)


CHECKS: tuple[Callable[[Evidence], Advice | None], ...] = (
    _disk,
    _decoding,
    _lists,
    _collating,
    _padding,
    growth,
    _handles,
    _chunks,
)
