"""Illnesses of a loader's settings: each looks at the evidence, and says what to set."""

from __future__ import annotations

import os
from collections.abc import Callable

from iobench.base.units import bytes_text, counted, seconds_text
from iobench.diagnose import sample_checks
from iobench.diagnose.evidence import Advice, Evidence
from iobench.diagnose.loop_stats import LoopStats
from iobench.diagnose.sample_checks import SHARE

QUICK_SAMPLE_S = 100e-6  # a sample that takes less is mostly Python's own overhead
BUSY, IDLE = 0.8, 0.5  # of a worker's time
FIRST = 0.3  # of an epoch, for its first batch
UNEVEN = 0.2  # of the mean wait, below which half of the batches hardly wait at all
ONCE = 0.4  # of all waiting, above which one late batch is no habit
STARVED = 0.75  # of the time waiting, above which no step is long enough to get ahead in
FAR_AHEAD = 8  # batches of each worker


def _by_sample(evidence: Evidence) -> Advice | None:
    """One `__getitem__` per sample, where whole batches would do."""
    facts = evidence.seen.facts
    tried = evidence.gain(lambda candidate: candidate.kind == "fetch")
    quick = 0 < evidence.per_sample_s * max(1, facts.workers or 0) < QUICK_SAMPLE_S
    if not facts.by_sample or not (tried or (quick and not evidence.candidates)):
        return None
    cost = f"each sample takes {seconds_text(evidence.per_sample_s)}"
    if evidence.fetching is not None and evidence.fetching.getitem_calls:
        share = evidence.fetching.getitem_share + evidence.fetching.collate_share
        calls = evidence.fetching.getitem_calls
        cost += f"; {calls:,} calls of __getitem__ and collating take {min(share, 1):.0%} of the time"
    what = "TensorDataset" if facts.tensor_dataset else str(facts.dataset)
    workers = tried.candidate.changes.get("num_workers", facts.workers) if tried else 0
    more = f", num_workers={workers}" if workers else ""
    fix = (
        f"index whole batches: DataLoader(dataset, batch_size=None, sampler=loader.batch_sampler{more})"
        if facts.tensor_dataset or tried
        else "give the dataset a __getitems__(indices) that returns a whole batch"
    )
    kind = "tensordataset" if facts.tensor_dataset else "per-sample"
    gained = f"; {tried.said}" if tried else ""
    told = f"{what} is asked for one sample at a time: {cost}; {fix}{gained}"
    return Advice(kind, told, tried.times if tried else None)


def _fewer_workers(evidence: Evidence) -> Advice | None:
    seen, facts = evidence.seen, evidence.seen.facts
    now = facts.workers or 0
    if not now:
        return None
    tried = evidence.gain(lambda candidate: candidate.kind == "workers" and candidate.changes["num_workers"] < now)
    size = bytes_text(seen.bytes / max(1, seen.batches))
    if tried:
        return Advice(
            "workers-cost",
            f"the work of {counted(now, 'worker')} costs more than it brings (batches of {size}, each "
            f"through a pipe): set num_workers={tried.candidate.changes['num_workers']}; {tried.said}",
            tried.times,
        )
    main_busy = seen.cpu_s > BUSY * seen.elapsed_s
    workers_idle = seen.worker_cpu_s < IDLE * now * seen.elapsed_s
    if evidence.candidates or not (main_busy and workers_idle and seen.wait_share > SHARE):
        return None
    return Advice(
        "workers-cost",
        f"the main process is busy taking batches of {size} from its {counted(now, 'worker')}, which are "
        "idle half of the time; try num_workers=0, or larger batches",
    )


def _more_workers(evidence: Evidence) -> Advice | None:
    seen, facts = evidence.seen, evidence.seen.facts
    if facts.workers is None:
        return None
    now, cores = facts.workers, len(os.sched_getaffinity(0))
    tried = evidence.gain(lambda candidate: candidate.kind == "workers" and candidate.changes["num_workers"] > now)
    if tried:
        count = tried.candidate.changes["num_workers"]
        few = f"num_workers={now} is too few" if now else "there are no workers"
        return Advice("too-few-workers", f"{few}: set num_workers={count}; {tried.said}", tried.times)
    if evidence.candidates or seen.wait_share < SHARE or now >= cores:
        return None
    if now and seen.worker_cpu_s > BUSY * now * seen.elapsed_s:
        busy = seen.worker_cpu_s / now / seen.elapsed_s
        said = f"num_workers={now} is too few, since workers are busy {busy:.0%} of the time; try {cores}"
        return Advice("too-few-workers", said)
    if not now and evidence.per_sample_s > 2 * QUICK_SAMPLE_S:
        each = seconds_text(evidence.per_sample_s)
        said = f"there are no workers, and each sample takes {each}; try num_workers={cores}"
        if facts.handles:  # which forked workers must not share
            said += f", each of which opens {', '.join(facts.handles)} for itself"
        return Advice("too-few-workers", said)
    return None


def _prefetch(evidence: Evidence) -> Advice | None:
    tried = evidence.gain(lambda candidate: candidate.kind == "prefetch")
    if tried is not None:
        factor = tried.candidate.changes["prefetch_factor"]
        said = f"workers run dry between batches: set prefetch_factor={factor}; {tried.said}"
        return Advice("prefetch", said, tried.times)
    return None if evidence.candidates else _uneven(evidence.seen)


def _uneven(seen: LoopStats) -> Advice | None:
    """Workers that are quick enough on the whole, and now and then too late."""
    workers, ahead = seen.facts.workers or 0, seen.facts.prefetch_factor or 2
    mean_s = seen.wait_s / max(1, seen.batches - 1)
    full = seen.worker_cpu_s > BUSY * workers * seen.elapsed_s
    even = seen.wait_p50_s > UNEVEN * mean_s or seen.wait_max_s > ONCE * seen.wait_s
    if not workers or full or ahead >= FAR_AHEAD or even or seen.wait_share > STARVED:
        return None
    said = (
        f"batches come unevenly: half of them within {seconds_text(seen.wait_p50_s)}, one after "
        f"{seconds_text(seen.wait_max_s)}; workers further ahead even that out: "
        f"set prefetch_factor={FAR_AHEAD} (now {ahead})"
    )
    return Advice("prefetch", said)


def _pinned(evidence: Evidence) -> Advice | None:
    """Batches in pageable memory, beside a device that copies pinned memory by itself."""
    if not evidence.seen.pins or evidence.seen.facts.pin_memory is not False:
        return None
    return Advice(
        "pinned", "batches are in pageable memory; set pin_memory=True and move with non_blocking=True"
    )


def _threads(evidence: Evidence) -> Advice | None:
    """Libraries in each worker that start a thread for each core."""
    tried, seen = evidence.gain(lambda candidate: candidate.kind == "threads"), evidence.seen
    full = seen.worker_cpu_s > BUSY * len(os.sched_getaffinity(0)) * seen.elapsed_s
    if tried is None and not (full and evidence.hopeful("threads")):
        return None
    count = tried.candidate.changes.get("num_workers") if tried else None
    gain = tried.said if tried else "there was no time to be sure what that brings: give more --seconds"
    workers = f"set num_workers={count}, and " if count else ""
    said = (
        f"the threads of NumPy's libraries in each worker get in each other's way: {workers}limit them to "
        "one a worker (OPENBLAS_NUM_THREADS=1 and OMP_NUM_THREADS=1 before Python starts, or worker_init_fn="
        f"lambda number: threadpoolctl.threadpool_limits(1)); {gain}"
    )
    return Advice("threads", said, tried.times if tried else None)


def _first_batch(evidence: Evidence) -> Advice | None:
    seen, facts = evidence.seen, evidence.seen.facts
    tried = evidence.gain(lambda candidate: candidate.kind in ("persistent", "start"))
    part = seen.first_wait_s / max(seen.epoch_s, 1e-9)
    late = not facts.persistent_workers and part >= FIRST and not evidence.candidates
    if not (tried or (late and facts.workers)):
        return None
    settings = tried.candidate.changes if tried else {"persistent_workers": True}
    fix = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    said = (
        f"the first batch took {seconds_text(seen.first_wait_s)}, {part:.0%} of an epoch: starting "
        f"{counted(facts.workers, 'worker')} each epoch; set {fix}"
        if facts.workers
        else f"there are no workers, and those that persist start only once: set {fix}"
    )
    return Advice("first-batch", f"{said}; {tried.said}" if tried else said, tried.times if tried else None)


CHECKS: tuple[Callable[[Evidence], Advice | None], ...] = (
    _by_sample,
    _fewer_workers,
    _more_workers,
    _prefetch,
    _pinned,
    _threads,
    _first_batch,
    *sample_checks.CHECKS,
)
