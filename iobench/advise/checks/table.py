"""Table of the checks of a loader: kinds of causes, their evidence and remedy, and how the remedy is tried.

`diagnose` and `watch` report what applies, and `tune` what no setting changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from iobench.advise.checks import decoding, sample_checks, setting_checks
from iobench.advise.checks.call_costs import WORK
from iobench.advise.checks.evidence import Advice, Evidence
from iobench.advise.settings.candidate import Candidate


@dataclass(frozen=True)
class Check:
    """A kind of cause, and how its remedy is tried."""

    find: Callable[[Evidence], Advice | None]  # evidence and remedy; None where it does not apply
    tried_as: tuple[str, ...] = ()  # kinds of candidates that follow the remedy; if not faster they refute it
    work: bool = False  # done for each sample, which no setting changes: it says where the time goes
    explains: bool = False  # so does this
    unsafe: bool = False  # the loader may deliver wrong samples
    always: bool = False  # reported of a loader that is no bottleneck, too
    more: bool = False  # there is more to it than those candidates try

    def advice(self, evidence: Evidence) -> Advice | None:
        """Return the advice with what was measured of its remedy; None if it was refuted."""
        found = self.find(evidence)
        return found and evidence.concluded(found, () if self.more else self.tried_as)

    def trial(self, candidates: Sequence[Candidate]) -> Candidate | None:
        """Return the candidate that tries its remedy and holds no samples; None without one."""
        known = [one for one in candidates if one.kind in self.tried_as and one.kind not in HOLDING]
        return min(known, key=lambda one: self.tried_as.index(one.kind), default=None)


HOLDING = ("cache", "unchunked")  # kinds of candidates that hold samples, which counts as all others' memory
CHECKS: dict[str, Check] = {
    # settings
    "sampler": Check(setting_checks.sampler),
    "pickling": Check(setting_checks.pickling, ("start",)),
    "per-sample": Check(setting_checks.per_sample, ("fetch",), explains=True),
    "workers-cost": Check(setting_checks.fewer_workers, ("workers",)),
    "too-few-workers": Check(setting_checks.more_workers),
    "prefetch": Check(setting_checks.prefetch),
    "batch-order": Check(setting_checks.any_order, ("order",)),
    "queue-memory": Check(setting_checks.queue_memory),
    "pageable-memory": Check(setting_checks.pinned, ("pinned",)),
    "pinned-without-device": Check(setting_checks.pinned_for_nothing),
    "threads": Check(setting_checks.threads, ("threads",)),
    "torch-threads": Check(setting_checks.torch_threads, ("one-thread",)),
    "first-batch": Check(setting_checks.first_batch, ("persistent",)),
    # samples and batches
    "disk": Check(sample_checks.disk),
    "repeated-samples": Check(sample_checks.repeats, unsafe=True),
    "same-random-numbers": Check(sample_checks.same_random, unsafe=True),
    "collate": Check(sample_checks.collating, explains=True),
    "default-collate": Check(sample_checks.own_collate, ("default-collate",), explains=True),
    "padding": Check(sample_checks.padding),
    "memory-growth": Check(sample_checks.memory_growth, always=True),
    "open-files": Check(sample_checks.open_files, always=True),
    "shared-memory": Check(sample_checks.shared_memory, always=True),
    "open-handles": Check(sample_checks.handles, unsafe=True),
    "garbage-collection": Check(sample_checks.collector, ("gc",), explains=True),
    "repeated-work": Check(sample_checks.repeated_work, ("cache",), explains=True),
    # work for each sample
    "collate-loops": Check(sample_checks.loops_in_collate, work=True),
    "chunks": Check(sample_checks.chunks, ("unchunked", "cache"), work=True),
    "whole-sound": Check(sample_checks.whole_sound, work=True),
    "decoding": Check(decoding.decoding, ("cache",), work=True),
    "jpeg-draft": Check(decoding.draft, ("draft",), work=True),
    "jpeg-decoder": Check(decoding.other_decoder, ("decoder",), work=True, more=True),
    **{
        work.kind: Check(partial(sample_checks.work_of, name), work.measured_by, work=True)
        for name, work in WORK.items()
        if work.kind
    },
}
