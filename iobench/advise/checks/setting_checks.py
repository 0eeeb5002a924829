"""Checks of a loader's settings: each looks at the evidence and returns advice, or None if all is good."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from iobench.advise.checks.evidence import SHARE, Advice, Evidence, bound, measured
from iobench.advise.checks.loop_stats import LoopStats
from iobench.base.units import bytes_text, counted, seconds_text
from iobench.host import memory
from iobench.host.device import device_of, pick_device
from iobench.results.run_warning import Values

QUICK_SAMPLE_S = 100e-6  # below this, most of a sample's time is Python overhead
PLAIN_SAMPLE_S = 15e-6  # so is it below this where the dataset's own code was not looked at
MANY = 2  # workers per core, from which on they compete
BUSY, IDLE = 0.8, 0.5  # of a worker's time
PICKLED = 0.2  # of the wait for the first batch: in the rest workers load it, which takes longer, and torch
SLOW_FIRST = 0.3  # of an epoch, for the start of its workers
SEEN_S = 0.1  # of a sampler: less is seen in too few samples of the stack
STARVED = 0.75  # of the time waiting: above it, no prefetching gets ahead
FAR_AHEAD = 8  # batches per worker
USUAL_AHEAD = 2  # batches per worker, by default
QUEUED = 0.1  # of the free memory, that batches in a queue may take
MORE_WORKERS = "too-few-workers"  # kind of advice
ONE_THREAD = (
    "limit them to one per worker (OPENBLAS_NUM_THREADS=1 and OMP_NUM_THREADS=1 before Python starts, or "
    "worker_init_fn=lambda number: threadpoolctl.threadpool_limits(1))"
)


def per_sample(evidence: Evidence) -> Advice | None:
    """Dataset that is indexed one sample at a time where whole batches would do."""
    loader = evidence.loop.loader
    tried = evidence.gain("fetch")
    known = loader.tensor_dataset or bool(evidence.profiles)
    most = QUICK_SAMPLE_S if known else PLAIN_SAMPLE_S
    quick = 0 < evidence.per_sample_s * max(1, loader.workers or 0) < most
    untried = not evidence.candidates or evidence.undecided("fetch")
    if not loader.by_sample or not (tried or (quick and untried)):
        return None
    cost = f"each takes {seconds_text(evidence.per_sample_s)}"
    values: Values = {"sample_s": evidence.per_sample_s}
    if calls := evidence.fetching.getitem_calls:
        share = min(evidence.fetching.getitem_share + evidence.fetching.collate_share, 1)
        cost += f"; {calls:,} calls of __getitem__ and collating take {share:.0%} of the time"
        values |= {"getitem_calls": calls, "share": share}
    name = "TensorDataset" if loader.tensor_dataset else str(loader.dataset)
    workers = tried.candidate.changes.get("num_workers", loader.workers) if tried else 0
    more = f", num_workers={workers}" if workers else ""
    fewer = tried is not None and loader.workers and not workers
    without = f", and num_workers=0 in place of {loader.workers}" if fewer else ""
    hint = "give the dataset a __getitems__(indices) that returns a whole batch"
    if loader.tensor_dataset or tried:
        arguments = f"dataset, batch_size=None, sampler=loader.batch_sampler{more}"
        hint = f"index whole batches: DataLoader({arguments}){without}"
    values["num_workers"] = workers or 0
    message = f"{name} is indexed one sample at a time: {cost}"
    return Advice("per-sample", message, hint, values, *measured(tried))


def fewer_workers(evidence: Evidence) -> Advice | None:
    """Worker processes that cost more than they bring."""
    loop, now = evidence.loop, evidence.loop.loader.workers or 0
    if not now:
        return None
    fewer = lambda one: one.changes["num_workers"] < now  # noqa: E731 - one line, used thrice
    batch_bytes = loop.bytes / max(1, loop.batches)
    size, workers = bytes_text(batch_bytes), counted(now, "worker")
    values: Values = {"workers": now, "batch_bytes": batch_bytes}
    if better := evidence.better("workers", where=fewer):
        values["num_workers"] = count = better.changes["num_workers"]
        message = f"{workers} cost more than they bring: each batch of {size} goes through a pipe"
        gain = evidence.gain("workers", where=fewer)
        return Advice("workers-cost", message, f"set num_workers={count}", values, *measured(gain))
    cores = len(os.sched_getaffinity(0))
    raced = evidence.raced("workers", where=fewer)
    if now > MANY * cores and not raced and loop.worker_cpu_s > IDLE * loop.elapsed_s:
        message = f"{workers} compete for {counted(cores, 'core')}"
        return Advice("workers-cost", message, f"set num_workers={cores}", {**values, "num_workers": cores})
    main_busy = loop.cpu_s > BUSY * loop.elapsed_s
    workers_idle = loop.worker_cpu_s < IDLE * now * loop.elapsed_s
    if evidence.candidates or not (main_busy and workers_idle and loop.wait_share > SHARE):
        return None
    busy = f"the main process is busy receiving batches of {size} from its {workers}"
    message = f"{busy}, which are idle half of the time"
    return Advice("workers-cost", message, "try num_workers=0, or larger batches", values)


def more_workers(evidence: Evidence) -> Advice | None:
    """No workers, or too few."""
    loop, loader = evidence.loop, evidence.loop.loader
    if loader.workers is None or loop.repeats:  # more of them would deliver the same samples
        return None
    now, cores, kind = loader.workers, len(os.sched_getaffinity(0)), MORE_WORKERS
    kinds = ("workers",) if _starts_slowly(loop) else ("workers", "persistent")
    tried = evidence.gain(*kinds, where=lambda one: one.changes.get("num_workers", now) > now)
    if tried:
        message = f"num_workers={now} is too few" if now else "there are no workers"
        changes: Values = {"workers": now, **tried.candidate.changes}
        return Advice(kind, message, _set(tried.candidate.changes), changes, *measured(tried))
    if evidence.raced(*kinds) or loop.wait_share < SHARE or now >= cores:
        return None
    values: Values = {"workers": now, "num_workers": cores}
    if now and loop.worker_cpu_s > BUSY * now * loop.elapsed_s:
        busy = loop.worker_cpu_s / now / loop.elapsed_s
        message = f"num_workers={now} is too few: workers are busy {busy:.0%} of the time"
        return Advice(kind, message, f"try num_workers={cores}", {**values, "busy": busy})
    if not now and evidence.per_sample_s > 2 * QUICK_SAMPLE_S:
        message = f"there are no workers, and each sample takes {seconds_text(evidence.per_sample_s)}"
        hint = f"try num_workers={cores}"
        if loader.iterable:  # torch hands each worker a copy of the dataset
            hint += ", if its dataset yields each worker's own share (torch.utils.data.get_worker_info()): "
            hint += "otherwise each of them delivers every sample"
        if loader.handles:  # which forked workers must not share
            hint += f", each of which opens {', '.join(loader.handles)} itself"
        return Advice(kind, message, hint, {**values, "sample_s": evidence.per_sample_s})
    return None


def prefetch(evidence: Evidence) -> Advice | None:
    """Queue of prefetched batches that is too short."""
    tried = evidence.gain("prefetch")
    if tried is not None:
        factor = tried.candidate.changes["prefetch_factor"]
        hint, values = f"set prefetch_factor={factor}", {"prefetch_factor": factor}
        return Advice("prefetch", "the queue of batches runs empty", hint, values, *measured(tried))
    if evidence.candidates:
        return None
    loop = evidence.loop  # workers may be fast enough on average, and late now and then
    workers, ahead = loop.loader.workers or 0, loop.loader.prefetch_factor or 2
    full = loop.worker_cpu_s > BUSY * workers * loop.elapsed_s
    if not workers or full or ahead >= FAR_AHEAD or not loop.uneven or loop.wait_share > STARVED:
        return None
    message = (
        f"batches come unevenly: half of them within {seconds_text(loop.wait_p50_s)}, one after "
        f"{seconds_text(loop.wait_max_s)}; a longer queue evens that out"
    )
    hint = f"set prefetch_factor={FAR_AHEAD} (now {ahead})"
    values = {"prefetch_factor": FAR_AHEAD, "present": ahead, "wait_max_s": loop.wait_max_s}
    return Advice("prefetch", message, hint, values)


def any_order(evidence: Evidence) -> Advice | None:
    """Batches that are ready, and wait for a slower one before them."""
    tried = evidence.gain("order")
    if tried is None:
        return None
    message = "batches that are ready wait for a slower one before them"
    hint = f"{_set(tried.candidate.changes)}, where their order may differ from run to run"
    return Advice("batch-order", message, hint, {**tried.candidate.changes}, *measured(tried))


def queue_memory(evidence: Evidence) -> Advice | None:
    """Batches fetched ahead that take much of the memory."""
    loop, loader = evidence.loop, evidence.loop.loader
    ahead, workers = loader.prefetch_factor or 0, loader.workers or 0
    queued, usual = loop.queued_bytes, loop.bytes / max(1, loop.batches) * workers * USUAL_AHEAD
    if ahead <= USUAL_AHEAD or queued < QUEUED * memory.free_memory():
        return None
    message = (
        f"prefetch_factor={ahead} lets {counted(workers, 'worker')} hold {bytes_text(queued)} of batches"
    )
    hint = f"set prefetch_factor={USUAL_AHEAD}, which holds {bytes_text(usual)}"
    values: Values = {"prefetch_factor": ahead, "queued_bytes": queued, "usual_bytes": usual}
    return Advice("queue-memory", message, hint, values)


def pinned(evidence: Evidence) -> Advice | None:
    """Batches in pageable memory, where the device copies pinned memory asynchronously."""
    if not evidence.loop.pins or evidence.loop.loader.pin_memory is not False:
        return None
    hint = "set pin_memory=True and move with non_blocking=True"
    return Advice("pageable-memory", "batches are in pageable memory", hint, {})


def pinned_for_nothing(evidence: Evidence) -> Advice | None:
    """Pinned memory where no device copies from it."""
    if not evidence.loop.loader.pin_memory or device_of(pick_device("auto")).pins:
        return None
    message = "pin_memory=True has no effect: this machine has no device that copies from pinned memory"
    return Advice("pinned-without-device", message, "set pin_memory=False here", {})


def threads(evidence: Evidence) -> Advice | None:
    """Libraries that start one thread per core in each worker."""
    better = evidence.better("threads")
    if better is None:  # workers that are busy need no other reason
        return None
    count = better.changes.get("num_workers")
    hint = f"set num_workers={count}, and {ONE_THREAD}" if count else ONE_THREAD
    values = {"num_workers": count} if count else {}
    message = "the threads of NumPy's libraries in the workers compete for cores"
    return Advice("threads", message, hint, values, *measured(evidence.gain("threads")))


def torch_threads(evidence: Evidence) -> Advice | None:
    """Threads of torch in the main process that wait for each other, and for cores that others use."""
    if evidence.better("one-thread") is None:
        return None
    message = "torch's threads in the main process wait for each other for each sample"
    hint = "call torch.set_num_threads(1), or load in workers, which have one thread each"
    return Advice("torch-threads", message, hint, {}, *measured(evidence.gain("one-thread")))


def sampler(evidence: Evidence) -> Advice | None:
    """Sampler that takes long in the main process, which workers wait for."""
    loop, loader = evidence.loop, evidence.loop.loader
    share = min(1.0, loop.sampler_epoch_s / max(loop.epoch_s, 1e-9))
    if share < SHARE or loop.sampler_s < SEEN_S or loader.sampler is None:
        return None
    rows, drawn = loader.sampler_rows or 0, loader.drawn or 0
    of = f" of {drawn:,} from {rows:,} samples" if rows else ""
    hint = f"do less in {loader.sampler}.__iter__(): make the order once, as an array"
    if loader.sampler == "WeightedRandomSampler":
        hint = (
            "use a sampler that makes cumulated = np.cumsum(weights) once, and yields parts of the epoch: "
            "np.searchsorted(cumulated, rng.random(65536) * cumulated[-1]).tolist()"
        )
    elif loader.sampler == "RandomSampler" and drawn < rows:
        choice = "np.random.default_rng(seed).choice(rows, num_samples, replace=False)"
        hint = f"use a sampler that draws by {choice}"
    elif loader.sampler == "RandomSampler":
        whole = "use a sampler that keeps order = rng.permutation(rows) as an array, and yields parts of it: "
        hint = f"{whole}order[start : start + 65536].tolist()"
    message = f"{loader.sampler}{of} takes {share:.0%} of an epoch, in the main process"
    values: Values = {"sampler": loader.sampler, "share": share, "rows": rows, "drawn": drawn}
    return Advice("sampler", message, hint, {**values, "bound": bound(share)})


def pickling(evidence: Evidence) -> Advice | None:
    """Dataset that is pickled for each worker, for a large part of an epoch."""
    loop, workers = evidence.loop, evidence.loop.loader.workers or 0
    if not workers or not _starts_slowly(loop) or loop.pickling_s < PICKLED * loop.first_wait_s:
        return None
    tried, took = evidence.gain("start"), f"the first batch took {seconds_text(loop.first_wait_s)}"
    fork = _set(tried.candidate.changes) if tried else "fork workers (multiprocessing_context='fork')"
    pickling = f"{seconds_text(loop.pickling_s)} of it to pickle the dataset"
    message = f"{took}, {pickling} for {counted(workers, 'worker')}, in each epoch"
    hint = (
        f"hold its values in one array, or in a file that each worker opens; or {fork}; or "
        "set persistent_workers=True, which pickles it once"
    )
    values: Values = {"first_wait_s": loop.first_wait_s, "pickling_s": loop.pickling_s, "workers": workers}
    return Advice("pickling", message, hint, values, *measured(tried))


def first_batch(evidence: Evidence) -> Advice | None:
    """Start-up of workers that takes a large part of each epoch."""
    loop, loader = evidence.loop, evidence.loop.loader
    now = loader.workers or 0
    few = not _starts_slowly(loop)  # then more workers are what makes more persistent workers faster
    tried = evidence.gain(
        "persistent", "start", where=lambda one: not few or one.changes.get("num_workers", now) <= now
    )
    part = loop.first_wait_s / max(loop.epoch_s, 1e-9)
    untried = not evidence.raced("persistent") or evidence.undecided("persistent")
    explained = sampler(evidence) or pickling(evidence)
    late = not loader.persistent_workers and _starts_slowly(loop) and untried and not explained
    if not loader.workers or not (tried or late):
        return None
    settings = tried.candidate.changes if tried else {"persistent_workers": True}
    took = f"the first batch took {seconds_text(loop.first_wait_s)}, {part:.0%} of an epoch"
    message = f"{took}: {counted(loader.workers, 'worker')} start in each epoch"
    values = {"first_wait_s": loop.first_wait_s, "share": part, "workers": loader.workers, **settings}
    return Advice("first-batch", message, _set(settings), values, *measured(tried))


def _starts_slowly(loop: LoopStats) -> bool:
    return bool(loop.loader.workers) and loop.start_s >= SLOW_FIRST * max(loop.epoch_s, 1e-9)


def _set(settings: Mapping[str, Any]) -> str:
    return "set " + ", ".join(f"{name}={value!r}" for name, value in settings.items())
