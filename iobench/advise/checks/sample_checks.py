"""Checks of samples and of what is done for each, by the profile of the process that fetches them."""

from __future__ import annotations

import mmap
import os
import resource
from collections.abc import Iterator

from iobench.advise.checks.call_costs import WORK, Profile
from iobench.advise.checks.evidence import SHARE, Advice, Evidence, bound, measured
from iobench.base.finding import Finding
from iobench.base.units import bytes_text
from iobench.host import memory
from iobench.results.run_warning import Values

COLLECTED = 0.1  # of the time, for the garbage collector
PER_SAMPLE = 0.5  # files for each sample, from which on samples have files of their own
MOST = 0.5  # of the time, from which on a library is named
LINES, WORTH_NAMING = 3, 0.1  # lines that are named, and their share of the time at least


def share_of(evidence: Evidence, *kinds: str) -> float | None:
    """Return the share of kinds of work; None where it is small, or where cached samples are not faster."""
    share = min(1.0, sum(map(evidence.fetching.cost, kinds)))
    return share if share >= SHARE and not evidence.refuted("cache") else None


def applies(evidence: Evidence, name: str) -> bool:
    """Return True if a kind of work takes much of the time, for each sample where that matters."""
    profile, work, loader = evidence.fetching, WORK[name], evidence.loop.loader
    if _cost(profile, name) < SHARE:
        return False
    if (work.in_workers and not loader.workers) or (work.each and loader.batch_size is None):
        return False
    if name == "members" and not evidence.sample.shares_members:
        return False
    once = max(1, loader.workers or 0)  # each process must do it once
    calls, _ = profile.outer.get(name, (0, ""))
    return not work.each or calls - once >= max(1, PER_SAMPLE * (profile.getitem_calls - once))


def _cost(profile: Profile, name: str) -> float:
    """Return the share of a kind of work; what is decoded while a file is read has a check of its own."""
    share = profile.cost(name)
    return min(share, 1 - profile.cost("decoding")) if name == "files" else share


def work_of(name: str, evidence: Evidence) -> Advice | None:
    """Return the advice of a kind of work."""
    profile, work = evidence.fetching, WORK[name]
    if not applies(evidence, name) or any(
        name in WORK[other].contains and applies(evidence, other) for other in WORK
    ):
        return None
    share, (calls, costliest) = _cost(profile, name), profile.outer.get(name, (0, ""))
    counted, values, size = "", Values({"share": share}), bytes_text(evidence.loop.dataset_bytes)
    if work.each:
        counted = f": {costliest}, {calls:,} times for {profile.getitem_calls:,} samples"
        values |= {"calls": calls, "samples": profile.getitem_calls}
    message = f"{share:.0%} of the time is spent {work.message}{counted}"
    gain = evidence.gain(*work.measured_by)
    if work.avoidable and (gain is None or gain.times > bound(share)):  # kept samples avoid the rest, too
        if gain or not evidence.raced(*work.measured_by):
            values["bound"] = bound(share)
        return Advice(work.kind, message, work.hint, values)
    kept = ""
    if "cache" in work.measured_by and evidence.gain("cache"):
        kept = f"; measured with samples kept in memory, where all of them take {size}"
    return Advice(work.kind, message, work.hint + kept, values, *measured(gain))


def repeated_work(evidence: Evidence) -> Advice | None:
    """Work that makes the same samples in each epoch, and has no check of its own."""
    profile = evidence.fetching
    if not evidence.profiles or evidence.better("cache") is None:
        return None
    name, share = f"{evidence.loop.loader.dataset}.__getitem__", profile.getitem_share
    size = evidence.loop.dataset_bytes
    message = f"{share:.0%} of the time is spent in {name}, which makes the same samples in each epoch"
    hint = f"compute them once, and store them or keep them in memory: all of them take {bytes_text(size)}"
    values: Values = {"call": name, "share": share, "dataset_bytes": size}
    return Advice("repeated-work", message, hint, values, *measured(evidence.gain("cache")))


def own_collate(evidence: Evidence) -> Advice | None:
    """Own collate function that returns what torch's does, and takes longer."""
    if evidence.better("default-collate") is None or applies(evidence, "lists"):
        return None
    message = "the collate function returns the same batches as torch's own, by more copies"
    gain = measured(evidence.gain("default-collate"))
    return Advice("default-collate", message, "leave out collate_fn", {}, *gain)


def loops_in_collate(evidence: Evidence) -> Advice | None:
    """Own collate function that spends most of the time in its lines, such as loops over numbers."""
    share = evidence.fetching.collate_own_share
    if share < MOST or evidence.gain("default-collate"):
        return None
    message = f"{share:.0%} of the time is spent in the lines of the collate function itself"
    hint = "make whole tensors there by few calls, such as torch.stack() or torch.nn.utils.rnn.pad_sequence()"
    return Advice("collate-loops", message, hint, {"share": share, "bound": bound(share)})


def collector(evidence: Evidence) -> Advice | None:
    """Garbage collection that looks at the same long-lived objects again and again."""
    shares, tried = evidence.gc_shares, evidence.gain("gc")
    if tried is None and min(shares, default=0.0) < COLLECTED:  # rare collections may all fall into one loop
        return None
    share, why = max(shares), "it looks at long-lived objects again and again"
    message = f"garbage collection takes {share:.0%} of the time: {why}"
    hint = "call gc.freeze() before the loop, after imports and after the dataset is built"
    return Advice("garbage-collection", message, hint, {"share": share}, *measured(tried))


def where_the_time_goes(evidence: Evidence) -> Iterator[Finding]:
    """Yield the library that takes most of the time, and the lines of the user's own code that do."""
    profile = evidence.fetching
    library = max(profile.libraries, key=lambda one: one.share, default=None)
    if library is not None and library.share >= MOST:
        spent = f"{library.share:.0%} of the time of the {profile.where} is spent in {library.name}"
        values: Values = {"library": library.name, "share": library.share, "where": profile.where}
        message = f"{spent}: {', '.join(library.calls)}"
        yield Finding("dominating-library", message, values=values)
    lines = [one for one in profile.lines if one.share >= WORTH_NAMING][:LINES]
    if lines:
        named = "; ".join(f"{one.place} {one.share:.0%} ({one.text})" for one in lines)
        message = f"Your lines that take most of the time of the {profile.where}: {named}"
        hint = "do less there for each sample, or do it once before training"
        values = {"line": lines[0].place, "share": lines[0].share, "where": profile.where}
        yield Finding("own-lines", message, hint, values)


IOWAIT = 0.25
SLOWEST_READ_S = 0.02  # of a page, from a busy disk
GROWTH, GROWTH_BYTES = 0.2, 100 << 20
FULL = 0.5  # of open files and of shared memory, from which on a larger batch or another worker may not fit
SEEDED_BY_TORCH = ("random", "np.random", "torch")  # generators, in each worker
PADDED = 0.4  # of what is delivered
MANY_TENSORS = 8  # in a batch


def disk(evidence: Evidence) -> Advice | None:
    """Cores that wait for the disk."""
    loop = evidence.loop
    if not loop.disk_bytes or (loop.iowait or 0) < IOWAIT:
        return None
    rate = loop.disk_bytes / loop.elapsed_s
    # of all cores: a loop that reads little cannot have caused it
    waited_s = (loop.iowait or 0) * (os.cpu_count() or 1) * loop.elapsed_s
    explained_s = loop.disk_bytes / mmap.PAGESIZE * SLOWEST_READ_S
    if explained_s < waited_s / 2 or rate < (loop.background.disk_bytes_per_s or 0.0):
        return None
    waited = f"CPU cores waited for the disk {loop.iowait:.0%} of the time"
    values: Values = {"iowait": loop.iowait or 0.0, "disk_bytes_per_s": rate}
    limits = "'iobench limits' measures what the disk can do"
    hint = f"{limits}, 'iobench run --cache cold' which format gets there"
    return Advice("disk", f"{waited}, which delivered {bytes_text(rate)}/s", hint, values)


def collating(evidence: Evidence) -> Advice | None:
    """Batches of many small tensors."""
    profile, loop = evidence.fetching, evidence.loop
    if profile.collate_share < SHARE or loop.tensors < MANY_TENSORS:
        return None
    share = profile.collate_share
    message = f"collating {loop.tensors} tensors a batch takes {share:.0%} of the time"
    hint = "pack fields that are used together into one tensor"
    return Advice("collate", message, hint, {"tensors": loop.tensors, "share": share})


def padding(evidence: Evidence) -> Advice | None:
    """Sequences that are mostly padding."""
    padded = evidence.loop.padding
    if padded is None or padded < PADDED:
        return None
    message = f"{padded:.0%} of the batches is padding, which the loader and the device process as well"
    by_length = "batch sequences of similar length (a batch sampler by length)"
    hint = f"{by_length}, and pad to the longest of each batch"
    return Advice("padding", message, hint, {"share": padded})


def repeats(evidence: Evidence) -> Advice | None:
    """IterableDataset that yields all of its samples in each worker."""
    loop = evidence.loop
    if not loop.repeats:
        return None
    workers = loop.loader.workers or 0
    message = (
        f"{loop.repeated:.0%} of the samples come from more than one worker: each of {workers} yields the "
        "whole IterableDataset, so that an epoch has every sample several times"
    )
    hint = "let each worker yield its share in __iter__, by torch.utils.data.get_worker_info()"
    values: Values = {"share": loop.repeated or 0.0, "workers": workers}
    return Advice("repeated-samples", message, hint, values)


def same_random(evidence: Evidence) -> Advice | None:
    """Workers that draw the same random numbers, so that all augment their samples alike."""
    drawn = evidence.fetching.same_random
    if not drawn:
        return None
    names = ", ".join(drawn)
    message = f"workers draw the same random numbers from {names}, so that their augmentations are alike"
    hint = "leave the seed out of worker_init_fn: torch seeds them, in each worker with another number"
    if own := [one for one in drawn if one not in SEEDED_BY_TORCH]:
        hint = f"make {own[0]} in worker_init_fn: np.random.default_rng(torch.initial_seed())"
    return Advice("same-random-numbers", message, hint, {"generators": names})


def memory_growth(evidence: Evidence) -> Advice | None:
    """Shared memory that workers copy by reading it: reference counts are written into each object's page."""
    loop = evidence.loop
    grown, most = (loop.memory_growth_bytes or 0) - loop.queued_bytes, loop.memory_bytes or 0
    if not loop.loader.workers or grown < GROWTH_BYTES or grown < GROWTH * most:
        return None
    message = f"memory grew by {bytes_text(grown)}: reference counting copies the pages that workers share"
    hint = "hold the dataset's values in arrays instead of lists of Python objects"
    return Advice("memory-growth", message, hint, {"growth_bytes": grown})


def open_files(evidence: Evidence) -> Advice | None:
    """Tensors in flight that take most of the files that a process may open."""
    held, (limit, _) = evidence.loop.open_files, resource.getrlimit(resource.RLIMIT_NOFILE)
    if not evidence.loop.loader.workers or not 0 < FULL * limit <= held:
        return None
    message = f"a process holds {held:,} files open, of {limit:,} that it may: one for each tensor in flight"
    hint = "call torch.multiprocessing.set_sharing_strategy('file_system'), or raise the limit ('ulimit -n')"
    return Advice("open-files", message, hint, {"open_files": held, "limit": limit, "share": held / limit})


def shared_memory(evidence: Evidence) -> Advice | None:
    """Batches in flight that take most of the shared memory, such as the 64 MiB of a container."""
    used, (_, size) = evidence.loop.shared_bytes, memory.shared_memory()
    if not evidence.loop.loader.workers or not 0 < FULL * size <= used:
        return None
    part = f"{bytes_text(used)} of the {bytes_text(size)} of shared memory"
    message = f"batches in flight take {part}: where it is full, workers end with 'Bus error'"
    hint = "start the container with more ('--shm-size 8g'), or set fewer workers or a lower prefetch_factor"
    values: Values = {"shared_bytes": used, "size_bytes": size, "share": used / size}
    return Advice("shared-memory", message, hint, values)


def handles(evidence: Evidence) -> Advice | None:
    """Files opened before the workers fork, which must not share them."""
    loader = evidence.loop.loader
    if not loader.handles or not loader.workers:
        return None
    names = ", ".join(loader.handles)
    message = f"{names} was opened before workers forked, which must not share it"
    return Advice("open-handles", message, "open it in the first __getitem__", {"handles": names})


def chunks(evidence: Evidence) -> Advice | None:
    """Parts of chunked arrays, of which whole chunks are read, and decompressed where they are compressed."""
    loader, profile = evidence.loop.loader, evidence.fetching
    wasteful = [one for one in evidence.sample.arrays if one.is_wasteful]
    if wasteful and (share := profile.cost("chunks")) >= SHARE:
        most = max(wasteful, key=lambda one: one.touched_bytes)
        variant = "hdf5:chunk_bytes=0" if most.library == "HDF5" else "zarr:chunk_bytes=1"
        message = f"{share:.0%} of the time is spent reading chunks: a sample asks for {most.text}"
        command = f"'iobench prepare --source {most.path} --format {variant}'"
        hint = f"write it without compression, in one piece or in chunks of a sample: {command}"
        values: Values = {"share": share, "library": most.library, "compressed": int(most.compressed)}
        values |= {"read_bytes": most.read_bytes, "touched_bytes": most.touched_bytes}
        tried = evidence.gain("unchunked") or evidence.gain("cache")
        kept = "; measured with samples kept in memory" if tried and tried.candidate.kind == "cache" else ""
        return Advice("chunks", message, hint + kept, values, *measured(tried))
    chunks = loader.chunks or profile.chunks
    if not chunks or evidence.sample.arrays or not loader.by_sample or loader.in_order:
        return None
    names, command = "; ".join(chunks), "'iobench prepare --source FILE --format hdf5:chunk_bytes=0'"
    message = f"{names}: each random sample reads a whole chunk"
    hint = f"write contiguous data or chunks of one sample: {command}"
    return Advice("chunks", message, hint, {"chunks": names})


def whole_sound(evidence: Evidence) -> Advice | None:
    """Files of sound that are decoded as a whole for a part of them."""
    share, sound = evidence.fetching.cost("sound"), evidence.sample.whole_sound
    if sound is None or share < SHARE:
        return None
    whole, kept = sound
    spent = f"{share:.0%} of the time is spent decoding whole files of sound"
    message = f"{spent}: {whole:,} frames, of which a sample keeps {kept:,}"
    hint = (
        f"decode that part alone: soundfile.read(path, start=s, frames={kept}), "
        f"torchaudio.load(path, frame_offset=s, num_frames={kept})"
    )
    values: Values = {
        "share": share,
        "frames": whole,
        "kept": kept,
        "bound": bound(share * (1 - kept / whole)),
    }
    return Advice("whole-sound", message, hint, values)
