"""What a loader may suffer from: each looks at the evidence, and says what to do about it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iobench.diagnose.seen import Seen
from iobench.units import bytes_text, counted, seconds_text

if TYPE_CHECKING:
    from iobench.diagnose.profiling import Profiled
    from iobench.diagnose.trials import Trial

GAIN = 1.10  # what a variant must bring to be advice
QUICK_SAMPLE_S = 100e-6  # a sample that takes less is mostly Python's own overhead
BUSY, IDLE = 0.8, 0.5  # of a worker's time
SHARE = 0.3  # of the time, from which on something is worth a word
FIRST = 0.3  # of the loop, for its first batch
IOWAIT = 0.25
GROWTH, GROWTH_BYTES = 0.2, 100 << 20
UNEVEN = 0.2  # of the mean wait, below which half of the batches hardly wait at all
ONCE = 0.4  # of all waiting, above which one late batch is no habit
STARVED = 0.75  # of the time waiting, above which no step is long enough to get ahead in
FAR_AHEAD = 8  # batches of each worker


@dataclass(frozen=True)
class Advice:
    """One thing to do, and what was seen that speaks for it."""

    kind: str
    said: str
    gain: float | None = None  # times as fast, where it was tried


@dataclass
class Evidence:
    """What speaks for an illness: a loop, variants that were tried, profiles."""

    seen: Seen
    trials: list[Trial]
    profiles: list[Profiled]

    def gain(self, name: Callable[[Trial], bool]) -> tuple[Trial, float] | None:
        """The fastest variant of a kind that is surely faster than the loader as it is, and how much."""
        if not self.trials or not self.trials[0].rates:
            return None
        base = self.trials[0]
        better = [t for t in self.trials[1:] if name(t) and t.rates and min(t.rates) > max(base.rates)]
        best = max(better, key=lambda trial: trial.rate, default=None)
        return (best, best.rate / base.rate) if best and best.rate > GAIN * base.rate else None

    @property
    def fetching(self) -> Profiled | None:
        """The profile of whichever process asks the dataset for samples."""
        return self.profiles[-1] if self.profiles else None

    @property
    def per_sample_s(self) -> float:
        """Of loading alone, after the first batch."""
        steady = self.seen.samples * (self.seen.batches - 1) / max(1, self.seen.batches)
        return self.seen.wait_s / steady if steady else 0.0


def _by_sample(evidence: Evidence) -> Advice | None:
    """One `__getitem__` per sample, where whole batches would do."""
    facts = evidence.seen.facts
    tried = evidence.gain(lambda trial: bool(trial.changes.get("batch_fetch")))
    quick = 0 < evidence.per_sample_s * max(1, facts.workers or 0) < QUICK_SAMPLE_S
    if not facts.by_sample or not (tried or (quick and not evidence.trials)):
        return None
    cost = f"each sample takes {seconds_text(evidence.per_sample_s)}"
    if evidence.fetching is not None and evidence.fetching.getitem_calls:
        share = evidence.fetching.getitem_share + evidence.fetching.collate_share
        calls = evidence.fetching.getitem_calls
        cost += f"; {calls:,} calls of __getitem__ and collating take {min(share, 1):.0%} of the time"
    what = "TensorDataset" if facts.tensor_dataset else str(facts.dataset)
    fix = (
        "index whole batches: DataLoader(dataset, batch_size=None, sampler=loader.batch_sampler)"
        if facts.tensor_dataset or tried
        else "give the dataset a __getitems__(indices) that returns a whole batch"
    )
    kind = "tensordataset" if facts.tensor_dataset else "per-sample"
    gained = f"; {tried[1]:.1f} × as fast when tried" if tried else ""
    return Advice(
        kind, f"{what} is asked for one sample at a time: {cost}; {fix}{gained}", tried and tried[1]
    )


def _fewer_workers(evidence: Evidence) -> Advice | None:
    seen, facts = evidence.seen, evidence.seen.facts
    now = facts.workers or 0
    if not now:
        return None
    tried = evidence.gain(lambda trial: "num_workers" in trial.changes and trial.changes["num_workers"] < now)
    size = bytes_text(seen.bytes / max(1, seen.batches))
    if tried and not tried[0].changes.get("batch_fetch"):
        name = tried[0].name
        return Advice(
            "workers-cost",
            f"the work of {counted(now, 'worker')} costs more than it brings (batches of {size}, each "
            "through a pipe): "
            f"with {name} it was {tried[1]:.1f} × as fast; set num_workers={tried[0].changes['num_workers']}",
            tried[1],
        )
    main_busy = seen.cpu_s > BUSY * seen.elapsed_s
    workers_idle = seen.worker_cpu_s < IDLE * now * seen.elapsed_s
    if evidence.trials or not (main_busy and workers_idle and seen.wait_share > SHARE):
        return None
    return Advice(
        "workers-cost",
        f"the main process is busy taking batches of {size} from "
        f"{counted(now, 'worker')}, idle half of the time; try num_workers=0, or larger batches",
    )


def _more_workers(evidence: Evidence) -> Advice | None:
    seen, facts = evidence.seen, evidence.seen.facts
    if facts.workers is None:
        return None
    now, cores = facts.workers, len(os.sched_getaffinity(0))
    tried = evidence.gain(lambda t: t.changes.get("num_workers", 0) > now)
    if tried:
        count = tried[0].changes["num_workers"]
        few = f"num_workers={now} is too few" if now else "there are no workers"
        said = f"{few}; {count} were {tried[1]:.1f} × as fast: set num_workers={count}"
        return Advice("too-few-workers", said, tried[1])
    if evidence.trials or seen.wait_share < SHARE or now >= cores:
        return None
    if now and seen.worker_cpu_s > BUSY * now * seen.elapsed_s:
        busy = seen.worker_cpu_s / now / seen.elapsed_s
        said = f"{counted(now, 'worker')}, busy {busy:.0%} of the time; try num_workers={cores}"
        return Advice("too-few-workers", said)
    if not now and evidence.per_sample_s > 2 * QUICK_SAMPLE_S:
        each = seconds_text(evidence.per_sample_s)
        said = f"no workers, and each sample takes {each}; try num_workers={cores}"
        return Advice("too-few-workers", said)
    return None


def _prefetch(evidence: Evidence) -> Advice | None:
    tried = evidence.gain(lambda t: set(t.changes) == {"prefetch_factor"})
    if tried is not None:
        factor = tried[0].changes["prefetch_factor"]
        said = f"workers run dry between batches; prefetch_factor={factor} was {tried[1]:.1f} × as fast"
        return Advice("prefetch", said, tried[1])
    return None if evidence.trials else _uneven(evidence.seen)


def _uneven(seen: Seen) -> Advice | None:
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


def _decoding(evidence: Evidence) -> Advice | None:
    found = evidence.fetching
    if found is None or found.decode_share < SHARE:
        return None
    part = f"{found.decode_share:.0%} of the time goes into decoding, each epoch anew"
    said = f"{part}; 'iobench prepare' does it once"
    return Advice("decoding", said)


def _collating(evidence: Evidence) -> Advice | None:
    found, seen = evidence.fetching, evidence.seen
    if found is None or found.collate_share < SHARE or seen.tensors < 8:
        return None
    part = f"collating {seen.tensors} tensors a batch takes {found.collate_share:.0%} of the time"
    said = f"{part}; pack fields that go together into one"
    return Advice("collate", said)


def _first_batch(evidence: Evidence) -> Advice | None:
    seen, facts = evidence.seen, evidence.seen.facts
    if not facts.workers or facts.persistent_workers or seen.first_wait_s < FIRST * seen.elapsed_s:
        return None
    part = seen.first_wait_s / seen.elapsed_s
    said = (
        f"the first batch took {seconds_text(seen.first_wait_s)}, {part:.0%} of the loop: starting "
        f"{counted(facts.workers, 'worker')} each epoch; set persistent_workers=True"
    )
    return Advice("first-batch", said)


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
    if not facts.chunks or not facts.by_sample:
        return None
    said = (
        f"{'; '.join(facts.chunks)}: each sample at random reads a whole chunk; "
        "write contiguous or with chunks of one sample ('iobench prepare --format hdf5:chunk_bytes=0')"
    )
    return Advice("chunks", said)


CHECKS: tuple[Callable[[Evidence], Advice | None], ...] = (
    _by_sample,
    _fewer_workers,
    _more_workers,
    _prefetch,
    _pinned,
    _disk,
    _decoding,
    _collating,
    _first_batch,
    growth,
    _handles,
    _chunks,
)
