"""Resume check: stop an epoch, kill its processes, resume it in new ones, and count samples by hash.

Each rank is a process of its own. They form no process group: each is given its number and their count.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from iobench.base.errors import CaseDied, InvalidSettings, IobenchError, WrongContent
from iobench.base.finding import Finding
from iobench.bench.resume_process import Delivery, ResumableLoader, Stretch
from iobench.bench.sample_coverage import Hashes, SampleCoverage
from iobench.host.child import Child, ChildEnded, ChildHung
from iobench.host.fork_server import ForkServer
from iobench.results.resume_result import Resume, ResumeCheck

READER = "iobench.bench.resume_process"
PRELOADED = (READER, "iobench.bench.resumable_loaders")  # and torch with them
MOST = 2  # in multiples of the unbroken epoch's samples, after which a resumed epoch is cut off


@dataclass(frozen=True)
class ResumePlan:
    """Resumes to check."""

    stop_after: int | None = None  # batches of a rank before each stop; None: about half of the epoch in all
    ranks: tuple[int, ...] = ()  # at the start and after each stop
    workers: tuple[int, ...] = ()  # likewise
    timeout_s: float = 60.0  # seconds without a batch after which a process counts as hung


def resume_check(
    loaders: Sequence[ResumableLoader], plan: ResumePlan, on_status: Callable[[str], None] = lambda text: None
) -> ResumeCheck:
    """Check that each loader resumes with the same numbers of ranks and workers, and with those of the plan.

    Raises
    ------
    InvalidSettings
        `stop_after` is not less than the number of batches of an epoch.
    IobenchError
        A loader cannot read an unbroken epoch or its head, or has other samples in another process.
    """
    result, server = ResumeCheck(), ForkServer(*PRELOADED)
    try:
        for loader in loaders:
            checker = _Checker(loader, plan, server)
            on_status(f"{loader.name}: unbroken epoch")
            checker.read_unbroken()
            for change, stretches in checker.changes():
                on_status(f"{loader.name}: {change}")
                result.resumes.append(checker.resume(change, stretches))
    finally:
        server.close()
    return result


class _Checker:
    """The resumes of one loader."""

    def __init__(self, loader: ResumableLoader, plan: ResumePlan, server: ForkServer) -> None:
        self._loader, self._plan, self._server = loader, plan, server
        self._base = Stretch()  # with the first number of ranks and of workers, if it can have several
        if plan.ranks and not loader.obstacle(first := replace(self._base, ranks=plan.ranks[0])):
            self._base = first
        if plan.workers and not loader.obstacle(first := replace(self._base, workers=plan.workers[0])):
            self._base = first
        self._unbroken: list[Hashes] = []  # of each global batch

    def read_unbroken(self) -> None:
        """Read an epoch without a stop."""
        done = self._read(self._base)
        for one in done:
            if one.error is not None:
                raise one.error
        self._unbroken = _global_batches(done)
        self._expected = self._loader.expected(_joined(self._unbroken))

    def changes(self) -> list[tuple[str, list[Stretch]]]:
        """Return the numbers of ranks and workers before and after each stop, with their title."""
        ranks = [replace(self._base, ranks=number) for number in self._plan.ranks]
        workers = [replace(self._base, workers=number) for number in self._plan.workers]
        return [
            ("same", [self._base] * 2),
            *([(_title("ranks", self._plan.ranks), ranks)] if len(ranks) > 1 else []),
            *([(_title("workers", self._plan.workers), workers)] if len(workers) > 1 else []),
        ]

    def resume(self, change: str, stretches: Sequence[Stretch]) -> Resume:
        """Read an epoch with stops, and compare it with the unbroken one."""
        made = Resume(self._loader.name, change, sum(map(len, self._unbroken)))
        if obstacle := next(filter(None, map(self._loader.obstacle, stretches)), None):
            return _ended(made, "skipped", obstacle)
        made = replace(made, stop_after=(stop := self._stop_after(stretches)))
        came: list[Hashes] = []
        states: list[bytes] = []
        done: list[Delivery] = []
        for number, stretch in enumerate(stretches):
            last = number == len(stretches) - 1
            done = self._read(replace(stretch, stop=None if last else stop), states)
            if failed := next((one for one in done if one.error), None):
                return _failure(made, failed, resumed=number > 0, saving=not last)
            came += _global_batches(done)
            if number == 0:
                self._check_known(came)
            if not last and any(one.state is None for one in done):
                break  # the epoch ended
            states = [one.state for one in done if one.state is not None]
        return self._compared(made, came, stretches, done)

    def _check_known(self, came: list[Hashes]) -> None:
        """Raise WrongContent if samples before the first stop are not those of the unbroken epoch."""
        if foreign := self._cover(came).foreign:
            raise WrongContent(
                f"{self._loader.name}: samples before the stop",
                kind="foreign-samples",
                expected="those of an unbroken epoch",
                found=f"{foreign:,} others",
                hint="turn random transforms off, or seed them",
            )

    def _cover(self, came: list[Hashes]) -> SampleCoverage:
        return SampleCoverage(self._expected, self._expected.hashed.samples, came)

    def _compared(
        self, made: Resume, came: list[Hashes], stretches: Sequence[Stretch], done: Sequence[Delivery]
    ) -> Resume:
        cover = self._cover(came)
        first = made.stop_after
        varies = not _same_order(self._unbroken[:first], came[:first])
        return replace(
            made,
            lost=cover.dropped,
            repeated=cover.repeated,
            foreign=cover.foreign,
            outcome="wrong" if cover.dropped or cover.repeated or cover.foreign else "complete",
            same_order=None if varies else _same_order(self._unbroken, came),
            first_batch_s=max((one.first_batch_s for one in done if one.first_batch_s), default=None),
        )

    def _stop_after(self, stretches: Sequence[Stretch]) -> int:
        batches, ranks = len(self._unbroken), [one.ranks or 1 for one in stretches]
        stop = self._plan.stop_after or max(1, batches * ranks[0] // (2 * sum(ranks[:-1])))
        if stop >= batches:
            raise InvalidSettings(
                f"{self._loader.name}: --stop-after",
                kind="out-of-range",
                expected=f"fewer than the {batches} batches of an epoch",
                found=stop,
                hint="use smaller batches, or stop earlier",
            )
        return stop

    def _read(self, stretch: Stretch, states: Sequence[bytes] = ()) -> list[Delivery]:
        """Read a stretch in one process for each rank; a rank that is new is given the state of another."""
        most = MOST * sum(map(len, self._unbroken)) or None
        children: list[Child] = []
        try:
            for rank in range(stretch.ranks or 1):
                state = states[rank % len(states)] if states else None
                children.append(Child(f"{READER}:serve", start=self._server.fork))
                own = replace(stretch, rank=rank, state=state, most_samples=most)
                children[-1].send((self._loader, own))
            return [self._delivery(child) for child in children]
        finally:
            for child in children:
                child.end()

    def _delivery(self, child: Child) -> Delivery:
        try:
            child.wait(self._plan.timeout_s)
            done: Delivery = child.receive()
            return done
        except ChildEnded:
            return Delivery(error=CaseDied(f"its process {child.exit_reason()}", kind="process-ended"))
        except ChildHung as error:
            message = f"no batch came for {error.limit_s:g} s"
            return Delivery(error=CaseDied(message, kind="timeout", hint="allow more time with --timeout"))


def _failure(made: Resume, failed: Delivery, resumed: bool, saving: bool) -> Resume:
    """Return a resume that was refused, by an error in place of a first batch or of a state, or that failed.

    Raises the error of a loader that cannot be read until its first stop.
    """
    error, count = failed.error, len(failed.batches)
    assert error is not None
    refused = (resumed and count == 0) or (saving and count == made.stop_after)
    if refused and not isinstance(error, CaseDied):
        return _ended(made, "refused", error)
    if not resumed:
        raise error
    return _ended(made, "failed", error)


def _ended(made: Resume, outcome: Literal["skipped", "refused", "failed"], error: IobenchError) -> Resume:
    reason = Finding(error.kind, str(error.changed(path=None, hint=None)))
    return replace(made, outcome=outcome, reason=reason)


def _title(what: str, numbers: Sequence[int]) -> str:
    return f"{what} {'→'.join(map(str, numbers))}"


def _global_batches(done: Sequence[Delivery]) -> list[Hashes]:
    """Return the samples of each step: those of all ranks, in the order of the ranks."""
    steps = itertools.zip_longest(*(one.batches for one in done), fillvalue=np.empty(0, np.int64))
    return [_joined(step) for step in steps]


def _joined(batches: Sequence[Hashes]) -> Hashes:
    return np.concatenate(batches) if batches else np.empty(0, np.int64)


def _same_order(one: Sequence[Hashes], other: Sequence[Hashes]) -> bool:
    """Return whether both have the same samples up to each number of them at which both end a global batch.

    If all of their global batches have the same size, so must the samples be within them.
    """
    ends, others = (np.cumsum([0, *map(len, batches)]) for batches in (one, other))
    first, second = _joined(one), _joined(other)
    if np.array_equal(ends, others):
        return np.array_equal(first, second)
    common = np.intersect1d(ends, others)
    return len(first) == len(second) and all(
        np.array_equal(np.sort(first[low:high]), np.sort(second[low:high]))
        for low, high in itertools.pairwise(common)
    )
