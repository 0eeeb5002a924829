"""Checks of what is done for each sample or batch, by the profile of the process that fetches samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from iobench.advise.checks.call_costs import OPENING
from iobench.advise.checks.evidence import Advice, Evidence, gc_shares, measured
from iobench.advise.checks.loop_stats import LoopStats
from iobench.advise.settings.candidate import Candidate
from iobench.base.finding import Finding
from iobench.base.units import bytes_text
from iobench.host import usable_memory

SHARE = 0.3  # of the time, from which on advice is worth giving
COLLECTED = 0.1  # of the time, for the garbage collector
FREE_SHARE = 0.5  # of free memory, that cached samples may take
PER_SAMPLE = 0.5  # files for each sample, from which on samples have files of their own
MOST = 0.5  # of the time, from which on a library is named
LINES, WORTH_NAMING = 3, 0.1  # lines that are named, and their share of the time at least
WITHOUT_GAIN = ("equivalent", "slower")


def fits_in_memory(loop: LoopStats) -> bool:
    """Return True if all samples of an epoch, as delivered, fit in half of the free memory."""
    return (
        loop.epoch_batches is not None and 0 < loop.dataset_bytes < FREE_SHARE * usable_memory.free_memory()
    )


def is_cached(candidate: Candidate) -> bool:
    """Return True if the candidate keeps samples in memory."""
    return candidate.kind == "cache"


def share_of(evidence: Evidence, kind: str) -> float | None:
    """Return the share of a kind of work; None where it is small, or where cached samples are not faster."""
    profile = evidence.fetching
    share = profile.costs.get(kind, 0.0) if profile is not None else 0.0
    return share if share >= SHARE and not without_gain(evidence, "cache") else None


def without_gain(evidence: Evidence, kind: str) -> bool:
    """Return True if a candidate of a kind was measured to be no faster."""
    tried = [one.name for one in evidence.candidates if one.kind == kind]
    return any(one.outcome in WITHOUT_GAIN for name, one in evidence.against.items() if name in tried)


def _kept(evidence: Evidence) -> str:
    """Return what it takes to keep all samples in memory, where that was measured."""
    size = bytes_text(evidence.loop.dataset_bytes)
    cached = evidence.gain(is_cached)
    return f"; measured with samples kept in memory, where all of them take {size}" if cached else ""


def _lists(evidence: Evidence) -> Advice | None:
    """Tensors made of Python lists, number by number."""
    profile = evidence.fetching
    share = profile.costs.get("lists", 0.0) if profile is not None else 0.0
    if share < SHARE:
        return None
    return Advice(
        "python-lists",
        f"{share:.0%} of the time is spent in torch.tensor(), which reads a list number by number",
        "store arrays from the beginning, and use torch.from_numpy() or torch.stack()",
        {"share": share},
        *measured(evidence.gain(lambda one: one.kind in ("cache", "default-collate"))),
    )


def _costly(evidence: Evidence, cost: str, kind: str, doing: str, cure: str) -> Advice | None:
    """Return advice on a kind of work that takes much of the time, with the gain of keeping its results."""
    share = share_of(evidence, cost)
    if share is None:
        return None
    message, hint = f"{share:.0%} of the time is spent {doing}", f"{cure}{_kept(evidence)}"
    return Advice(kind, message, hint, {"share": share}, *measured(evidence.gain(is_cached)))


def _elements(evidence: Evidence) -> Advice | None:
    """Numbers that are taken out of tensors or arrays one by one."""
    doing = "taking numbers out of tensors one by one, by .item()"
    return _costly(evidence, "elements", "single-elements", doing, "take slices and whole tensors instead")


def _rows(evidence: Evidence) -> Advice | None:
    """Rows of a pandas DataFrame that are taken one by one, each as a new Series."""
    cure = "convert the columns to arrays once (DataFrame.to_numpy()), and index these"
    doing = "in pandas, which makes a Series of each row"
    return _costly(evidence, "rows", "dataframe-rows", doing, cure)


def _reopened(evidence: Evidence) -> Advice | None:
    """File of many samples that is opened again for each of them."""
    profile = evidence.fetching
    if profile is None:
        return None
    once = max(1, evidence.loop.loader.workers or 0)  # each process must open it once
    again = profile.opened_calls - once
    if again <= 0 or again < PER_SAMPLE * (profile.getitem_calls - once):
        return None
    opening = [one for one in profile.libraries if any(OPENING.search(call) for call in one.calls)]
    share = max([profile.costs.get("openings", 0.0), *(one.share for one in opening)])
    if share < SHARE:
        return None
    library = f"{opening[0].name}, which opens" if opening else "opening"
    calls = f" ({', '.join(opening[0].calls)})" if opening else ""
    return Advice(
        "file-reopened",
        f"{share:.0%} of the time is spent in {library} a file for each sample{calls}",
        f"open it once in each process, in the first __getitem__, and keep it open{_kept(evidence)}",
        {"share": share},
        *measured(evidence.gain(is_cached)),
    )


def _files(evidence: Evidence) -> Advice | None:
    """One file for each sample, opened again in each epoch."""
    profile = evidence.fetching
    if profile is None or evidence.loop.loader.batch_size is None:
        return None
    if profile.file_calls < PER_SAMPLE * profile.getitem_calls:
        return None
    cure = "pack the samples into one file: 'iobench prepare --source FOLDER'"
    return _costly(evidence, "files", "file-per-sample", "opening and reading a file for each sample", cure)


def _proxies(evidence: Evidence) -> Advice | None:
    """Objects of a multiprocessing Manager: each access is a request to another process."""
    doing = "asking a multiprocessing Manager, a process that serves one request at a time"
    cure = "give workers the object itself, or an array or tensor in shared memory"
    return _costly(evidence, "proxies", "manager-proxy", doing, cure)


def _locks(evidence: Evidence) -> Advice | None:
    """Workers that wait for a lock of the dataset, so that only one of them works at a time."""
    share = share_of(evidence, "locks")
    if share is None or not evidence.loop.loader.workers:
        return None
    return Advice(
        "lock",
        f"{share:.0%} of the workers' time is spent waiting for a lock, so that they work one at a time",
        "open what the lock protects once in each worker (in the first __getitem__), without a lock",
        {"share": share},
    )


def _again(evidence: Evidence) -> Advice | None:
    """Work that computes the same samples in each epoch, and has no check of its own."""
    tried, profile = evidence.gain(is_cached), evidence.fetching
    if tried is None or profile is None or any(share_of(evidence, kind) for kind in profile.costs):
        return None
    if _reopened(evidence) is not None:
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


def _own_collate(evidence: Evidence) -> Advice | None:
    """Own collate function that returns what torch's does, and takes longer."""
    tried = evidence.gain(lambda one: one.kind == "default-collate")
    if tried is None or _lists(evidence) is not None:
        return None
    message = "the collate function returns the same batches as torch's own, by more copies"
    return Advice("default-collate", message, "leave out collate_fn", {}, *measured(tried))


def _collector(evidence: Evidence) -> Advice | None:
    """Garbage collection that looks at the same long-lived objects again and again."""
    shares, tried = gc_shares(evidence.loop, evidence.fetching), evidence.gain(lambda one: one.kind == "gc")
    # rare collections may all fall into one loop, or into few of the turns that were compared
    if tried is None and (min(shares, default=0.0) < COLLECTED or without_gain(evidence, "gc")):
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


CHECKS: tuple[Callable[[Evidence], Advice | None], ...] = (
    _lists,
    _elements,
    _rows,
    _reopened,
    _files,
    _proxies,
    _locks,
    _again,
    _own_collate,
    _collector,
)
