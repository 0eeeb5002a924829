"""Checks of samples and of what is done for each, by the profile of the process that fetches them."""

from __future__ import annotations

from collections.abc import Iterator

from iobench.advise.checks.call_costs import WORK
from iobench.advise.checks.evidence import SHARE, Advice, Evidence, gc_shares, measured
from iobench.advise.checks.loop_stats import LoopStats
from iobench.advise.settings.candidate import Candidate
from iobench.base.finding import Finding
from iobench.base.units import bytes_text
from iobench.host import memory

COLLECTED = 0.1  # of the time, for the garbage collector
FREE_SHARE = 0.5  # of free memory, that cached samples may take
PER_SAMPLE = 0.5  # files for each sample, from which on samples have files of their own
MOST = 0.5  # of the time, from which on a library is named
LINES, WORTH_NAMING = 3, 0.1  # lines that are named, and their share of the time at least


def fits_in_memory(loop: LoopStats) -> bool:
    """Return True if all samples of an epoch, as delivered, fit in half of the free memory."""
    return loop.epoch_batches is not None and 0 < loop.dataset_bytes < FREE_SHARE * memory.free_memory()


def is_cached(candidate: Candidate) -> bool:
    """Return True if the candidate keeps samples in memory."""
    return candidate.kind == "cache"


def share_of(evidence: Evidence, kind: str) -> float | None:
    """Return the share of a kind of work; None where it is small, or where cached samples are not faster."""
    profile = evidence.fetching
    share = profile.costs.get(kind, 0.0) if profile is not None else 0.0
    return share if share >= SHARE and not evidence.refuted("cache") else None


def _kept(evidence: Evidence) -> str:
    """Return what it takes to keep all samples in memory, where that was measured."""
    size = bytes_text(evidence.loop.dataset_bytes)
    cached = evidence.gain(is_cached)
    return f"; measured with samples kept in memory, where all of them take {size}" if cached else ""


def applies(evidence: Evidence, name: str) -> bool:
    """Return True if a kind of work takes much of the time, for each sample where that matters."""
    profile, work, loader = evidence.fetching, WORK[name], evidence.loop.loader
    if profile is None or profile.costs.get(name, 0.0) < SHARE:
        return False
    if (work.in_workers and not loader.workers) or (work.each and loader.batch_size is None):
        return False
    if name == "members" and not evidence.sample.shares_members:
        return False
    once = max(1, loader.workers or 0)  # each process must do it once
    calls, _ = profile.outer.get(name, (0, ""))
    return not work.each or calls - once >= max(1, PER_SAMPLE * (profile.getitem_calls - once))


def work_of(name: str, evidence: Evidence) -> Advice | None:
    """Return the advice of a kind of work."""
    profile, work = evidence.fetching, WORK[name]
    if profile is None or not applies(evidence, name):
        return None
    if any(name in WORK[other].contains and applies(evidence, other) for other in WORK):
        return None
    share, (calls, costliest) = profile.costs[name], profile.outer.get(name, (0, ""))
    counted = f": {costliest}, {calls:,} times for {profile.getitem_calls:,} samples" if work.each else ""
    tried = evidence.gain(lambda one: one.kind in work.measured_by)
    return Advice(
        work.kind,
        f"{share:.0%} of the time is spent {work.message}{counted}",
        f"{work.hint}{_kept(evidence) if 'cache' in work.measured_by else ''}",
        {"share": share, **({"calls": calls, "samples": profile.getitem_calls} if work.each else {})},
        *measured(tried),
    )


def repeated_work(evidence: Evidence) -> Advice | None:
    """Work that computes the same samples in each epoch, and has no check of its own."""
    tried, profile = evidence.gain(is_cached), evidence.fetching
    if profile is None or (tried is None and evidence.promising("cache") is None):
        return None
    name, share = f"{evidence.loop.loader.dataset}.__getitem__", profile.getitem_share
    return Advice(
        "repeated-work",
        f"{share:.0%} of the time is spent in {name}, which computes the same samples in each epoch",
        f"compute them once, and store them or keep them in memory: all of them take "
        f"{bytes_text(evidence.loop.dataset_bytes)}",
        {"call": name, "share": share, "dataset_bytes": evidence.loop.dataset_bytes},
        *measured(tried),
    )


def own_collate(evidence: Evidence) -> Advice | None:
    """Own collate function that returns what torch's does, and takes longer."""
    tried = evidence.gain(lambda one: one.kind == "default-collate")
    if (tried is None and evidence.promising("default-collate") is None) or applies(evidence, "lists"):
        return None
    message = "the collate function returns the same batches as torch's own, by more copies"
    return Advice("default-collate", message, "leave out collate_fn", {}, *measured(tried))


def collector(evidence: Evidence) -> Advice | None:
    """Garbage collection that looks at the same long-lived objects again and again."""
    shares, tried = gc_shares(evidence.loop, evidence.fetching), evidence.gain(lambda one: one.kind == "gc")
    if tried is None and min(shares, default=0.0) < COLLECTED:  # rare collections may all fall into one loop
        return None
    share = max(shares)
    return Advice(
        "garbage-collection",
        f"garbage collection takes {share:.0%} of the time: it looks at long-lived objects again and again",
        "call gc.freeze() before the loop, after imports and after the dataset is built",
        {"share": share},
        *measured(tried),
    )


def where_the_time_goes(evidence: Evidence) -> Iterator[Finding]:
    """Yield the library that takes most of the time, and the lines of the user's own code that do."""
    profile = evidence.fetching
    if profile is None:
        return
    library = max(profile.libraries, key=lambda one: one.share, default=None)
    if library is not None and library.share >= MOST:
        calls = ", ".join(library.calls)
        yield Finding(
            "dominating-library",
            f"{library.share:.0%} of the time of the {profile.where} is spent in {library.name}: {calls}",
            values={"library": library.name, "share": library.share, "where": profile.where},
        )
    lines = [one for one in profile.lines if one.share >= WORTH_NAMING][:LINES]
    if lines:
        named = "; ".join(f"{one.place} {one.share:.0%} ({one.text})" for one in lines)
        yield Finding(
            "own-lines",
            f"Your lines that take most of the time of the {profile.where}: {named}",
            "do less there for each sample, or do it once before training",
            {"line": lines[0].place, "share": lines[0].share, "where": profile.where},
        )


IOWAIT = 0.25
GROWTH, GROWTH_BYTES = 0.2, 100 << 20
PADDED = 0.4  # of what is delivered
MANY_TENSORS = 8  # in a batch


def disk(evidence: Evidence) -> Advice | None:
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


def collating(evidence: Evidence) -> Advice | None:
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


def padding(evidence: Evidence) -> Advice | None:
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


def repeats(evidence: Evidence) -> Advice | None:
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


def handles(evidence: Evidence) -> Advice | None:
    """Files opened before the workers fork, which must not share them."""
    loader = evidence.loop.loader
    if not loader.handles or not loader.workers:
        return None
    names = ", ".join(loader.handles)
    return Advice(
        "open-handles",
        f"{names} was opened before workers forked, which must not share it",
        "open it in the first __getitem__",
        {"handles": names},
    )


def chunks(evidence: Evidence) -> Advice | None:
    """Parts of chunked arrays, of which whole chunks are read, and decompressed where they are compressed."""
    loader, profile = evidence.loop.loader, evidence.fetching
    wasteful = [one for one in evidence.sample.arrays if one.is_wasteful]
    if profile is not None and wasteful and profile.costs.get("chunks", 0.0) >= SHARE:
        most, share = max(wasteful, key=lambda one: one.touched_bytes), profile.costs["chunks"]
        variant = "hdf5:chunk_bytes=0" if most.library == "HDF5" else "zarr:chunk_bytes=1"
        return Advice(
            "chunks",
            f"{share:.0%} of the time is spent reading chunks: a sample asks for {most.text}",
            "write it without compression, in one piece or in chunks of a sample: "
            f"'iobench prepare --source {most.path} --format {variant}'",
            {
                **{"share": share, "library": most.library, "compressed": int(most.compressed)},
                **{"read_bytes": most.read_bytes, "touched_bytes": most.touched_bytes},
            },
            *measured(evidence.gain(lambda one: one.kind in ("unchunked", "cache"))),
        )
    chunks = loader.chunks or (profile.chunks if profile else [])
    if not chunks or evidence.sample.arrays or not loader.by_sample or loader.in_order:
        return None
    names = "; ".join(chunks)
    return Advice(
        "chunks",
        f"{names}: each random sample reads a whole chunk",
        "write contiguous data or chunks of one sample: "
        "'iobench prepare --source FILE --format hdf5:chunk_bytes=0'",
        {"chunks": names},
    )


def whole_sound(evidence: Evidence) -> Advice | None:
    """Files of sound that are decoded as a whole for a part of them."""
    profile, sound = evidence.fetching, evidence.sample.whole_sound
    share = profile.costs.get("sound", 0.0) if profile else 0.0
    if sound is None or share < SHARE:
        return None
    whole, kept = sound
    return Advice(
        "whole-sound",
        f"{share:.0%} of the time is spent decoding whole files of sound: {whole:,} frames, "
        f"of which a sample keeps {kept:,}",
        f"decode that part alone: soundfile.read(path, start=s, frames={kept}), "
        f"torchaudio.load(path, frame_offset=s, num_frames={kept})",
        {"share": share, "frames": whole, "kept": kept},
    )
