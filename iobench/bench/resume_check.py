"""Check of a loader that resumes: stretches of an epoch are read in processes that are killed.

A process passes on the hashes of the samples, and the state as the bytes of a checkpoint, then waits.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from iobench import formats
from iobench.base.errors import (
    CaseDied,
    InvalidSettings,
    IobenchError,
    MissingDependency,
    TargetError,
    WrongContent,
)
from iobench.base.finding import Finding
from iobench.base.standard_streams import stdout_to_stderr
from iobench.bench.case import Case, content_of
from iobench.bench.case_grid import multi_rank_obstacle
from iobench.bench.content_check import Hashes, SampleCoverage
from iobench.bench.epoch import epoch_request, opened
from iobench.dataset.checksum import Checksum, HashedRows
from iobench.dataset.manifest import Manifest
from iobench.dataset.remote_dataset import dataset_named
from iobench.dataset.verify import SampleHashes, sample_hashes
from iobench.formats import Field, Schema
from iobench.host.child import Child, ForkServer, SharedCount
from iobench.host.rank_info import torchrun_variables
from iobench.loading import checkpoint, loaders, target, user_errors
from iobench.loading.inspection import batch_tensors, samples_in
from iobench.loading.target import signature_of
from iobench.loading.tensors import tensor_of
from iobench.results.resume_result import Resume, ResumeCheck


@dataclass(frozen=True)
class Stretch:
    """A part of an epoch that one process reads."""

    ranks: int | None = None  # None for the loader's own
    workers: int | None = None  # of each rank; likewise
    rank: int = 0
    state: bytes | None = None  # where to resume; None for the start of the epoch
    stop: int | None = None  # batches after which the state is saved; None for the rest of the epoch
    most_samples: int | None = None  # after which a loader that does not end is stopped

    def having(self, what: str, number: int) -> Stretch:
        """Return it with another number of `ranks` or `workers`."""
        change: dict[str, Any] = {what: number}
        return replace(self, **change)


@dataclass
class Delivery:
    """Hashes of the samples of each batch of a stretch, the state after them, and the error that ended it."""

    batches: list[Hashes] = field(default_factory=list)
    first_batch_s: float | None = None
    state: bytes | None = None
    error: IobenchError | None = None


Opened = tuple[Iterator[Hashes], Callable[[], Any]]  # hashes of each batch, and the state after the last one


RANKS, WORKERS = ("rank", "world_size"), "num_workers"  # parameters of a function that are filled in


@dataclass(frozen=True)
class StoredLoader:
    """A loader of iobench, over an artifact."""

    name: str  # the loader with its options
    case: Case
    root: Path  # of the dataset
    takes_ranks: ClassVar[bool] = True  # it is given its rank

    def obstacle(self, stretch: Stretch) -> InvalidSettings | None:
        """Return an obstacle if it shares no rows among ranks, or cannot have so many workers."""
        if stretch.ranks is not None and (error := multi_rank_obstacle(self.case.loader, isolate=False)):
            return error
        try:
            self._with_workers(stretch.workers)
        except InvalidSettings as error:
            return error
        return None

    def open(self, stretch: Stretch) -> Opened:
        """Open it over the artifact."""
        manifest, loader = Manifest.load(self.root), self._with_workers(stretch.workers)
        case = replace(self.case, world_size=stretch.ranks or 1)
        job = replace(case.job(manifest, rank=stretch.rank), dataset=self.root)
        epochs = opened(loader, job)
        if stretch.state is not None:
            epochs.resume(checkpoint.decode(stretch.state))
        batches, hashes = epochs.epoch(epoch_request(loader, job, 0)), Checksum(manifest.schema).hashes
        return (np.asarray(hashes(batch)) for batch in batches), epochs.state

    def expected(self, unbroken: Hashes) -> SampleHashes:
        """Return the hashes of the stored samples."""
        return sample_hashes(Manifest.load(self.root), self.case.variant)

    def _with_workers(self, count: int | None) -> loaders.Loader:
        loader, changes = self.case.loader, {} if count is None else {WORKERS: count}
        if changes and WORKERS not in loader.settable:
            raise InvalidSettings(f"it has no option {WORKERS}", kind="no-workers")
        return replace(loader, **changes)


@dataclass(frozen=True)
class OwnLoader:
    """The loader that a user's function makes."""

    name: str  # the function with its arguments: `train.py:make_loader:batch_size=64`

    @property
    def takes_ranks(self) -> bool:
        """True if the function has parameters for its rank; else it follows torchrun's variables, or none."""
        return self._takes(RANKS)

    def obstacle(self, stretch: Stretch) -> InvalidSettings | None:
        """Return an obstacle if the function has no parameter for the number of workers."""
        if stretch.workers is None or self._takes([WORKERS]):
            return None
        return InvalidSettings(f"it has no parameter {WORKERS}", kind="unknown-parameter")

    def open(self, stretch: Stretch) -> Opened:
        """Call the function as torchrun would; TargetError if its result has no state."""
        if stretch.ranks:
            os.environ.update(torchrun_variables(stretch.rank, stretch.ranks))
        pairs = ",".join(f"{name}={value}" for name, value in self._filled(stretch).items())
        separator = "" if not pairs else ":" if self.name.count(":") == 1 else ","
        loader: Any = target.parse_target(f"{self.name}{separator}{pairs}").build()
        if not hasattr(loader, "state_dict") or not hasattr(loader, "load_state_dict"):
            found, expected = type(loader).__name__, "an object with state_dict and load_state_dict"
            problem = f"{self.name}: the result of the function"
            raise TargetError(problem, kind="no-state", expected=expected, found=found)
        if stretch.state is not None:
            loader.load_state_dict(checkpoint.decode(stretch.state))
        return map(_hashes_of, loader), loader.state_dict

    def expected(self, unbroken: Hashes) -> SampleHashes:
        """Return what came without a stop: what else should come is unknown."""
        return SampleHashes(unbroken, HashedRows.all_of(len(unbroken)))

    def _takes(self, names: Sequence[str]) -> bool:
        signature = signature_of(*self.name.split(":")[:2])
        return signature.var_keyword or all(name in signature.parameters for name in names)

    def _filled(self, stretch: Stretch) -> dict[str, int]:
        filled = {} if stretch.workers is None else {WORKERS: stretch.workers}
        if stretch.ranks and self.takes_ranks:
            filled |= zip(RANKS, (stretch.rank, stretch.ranks), strict=True)
        return filled


ResumableLoader = StoredLoader | OwnLoader  # one that can be opened in any process


def resumable_loaders(
    words: Sequence[str], data_dir: Path, name: str | None, format: str | None, order: str, batch_size: int
) -> list[ResumableLoader]:
    """Return the loaders that words name; those of iobench are opened over a dataset.

    Raises InvalidSettings if a loader has no state, or cannot read the dataset in this order.
    """

    def stored(word: str) -> StoredLoader:
        loader, manifest = loaders.parse(word).on("cpu"), dataset_named(data_dir, name)
        if not loader.stateful:
            hint = "name a function whose result has state_dict: train.py:make_loader"
            problem = f"loader {loader.name} has no state to resume from"
            raise InvalidSettings(problem, kind="no-state", hint=hint)
        drawn: dict[str, Any] = {"order": order, "batch_size": batch_size}
        variant = _variant(manifest, loader, format, order)
        case = Case(manifest.name, content_of(manifest), variant=variant, loader=loader, **drawn)
        return StoredLoader(word, case, manifest.root)

    return [OwnLoader(word) if loaders.is_target(word) else stored(word) for word in words]


def _variant(manifest: Manifest, loader: loaders.Loader, format: str | None, order: str) -> str:
    """Return the first variant that the loader reads, or the one that is asked for."""
    for variant in [formats.parse(format).variant] if format else manifest.artifacts:
        with suppress(MissingDependency):
            readable = loader.reads(formats.parse(variant)) and loader.reads_at(manifest.url)
            if readable and order in loader.orders:
                manifest.opener(variant)
                return variant
    raise InvalidSettings(
        f"loader {loader.name} in {order} order",
        kind="no-cases",
        expected=f"orders {', '.join(loader.orders)}; formats {', '.join(loader.format_names) or 'any'}",
        found=f"{order}; {format or ', '.join(manifest.artifacts)}",
    )


def _hashes_of(batch: Any) -> Hashes:
    """Return the hash of each sample over all tensors and arrays that have one row per sample."""
    tensors = batch_tensors(batch)
    count = samples_in(tensors)
    rows = [one if isinstance(one, torch.Tensor) else tensor_of(np.asarray(one)) for one in tensors]
    flat = {
        f"t{number}": one.detach().cpu().contiguous().reshape(count, -1).view(torch.uint8)
        for number, one in enumerate(rows)
        if one.ndim and len(one) == count and one.numel()
    }
    if not flat:
        expected = "a tensor, or a tuple or dict of tensors"
        found = f"{type(batch).__name__} without tensors or arrays"
        problem = "the batches of the loader"
        raise TargetError(problem, kind="no-tensors", expected=expected, found=found)
    fields = tuple(Field(name, (one.shape[1],), "uint8") for name, one in flat.items())
    return np.asarray(Checksum(Schema(count, fields)).hashes(flat))


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

    Raises InvalidSettings if `stop_after` is not less than the number of batches of an epoch, IobenchError if
    a loader cannot read an unbroken epoch or its head, or has other samples in another process.
    """
    result, server = ResumeCheck(), ForkServer(__name__)  # and torch with it
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
        self._unbroken: list[Hashes] = []  # of each global batch
        self._unsharded = False

    def read_unbroken(self) -> None:
        """Read an epoch without a stop."""
        most = max(self._plan.ranks, default=1)
        self._unsharded = most > 1 and not self._loader.takes_ranks and self._repeats(most)
        for what, numbers in {"ranks": self._plan.ranks, "workers": self._plan.workers}.items():
            if numbers and not self._obstacle(first := self._base.having(what, numbers[0])):
                self._base = first
        done = self._read(self._base)
        for one in done:
            if one.error is not None:
                raise one.error
        self._unbroken = _global_batches(done)
        self._expected = self._loader.expected(_joined(self._unbroken))

    def changes(self) -> Iterator[tuple[str, list[Stretch]]]:
        """Yield the numbers of ranks and workers before and after each stop, with their title."""
        yield "same", [self._base] * 2
        for what, numbers in {"ranks": self._plan.ranks, "workers": self._plan.workers}.items():
            if len(numbers) > 1:
                stretches = [self._base.having(what, number) for number in numbers]
                yield f"{what} {'→'.join(map(str, numbers))}", stretches

    def resume(self, change: str, stretches: Sequence[Stretch]) -> Resume:
        """Read an epoch with stops, and compare it with the unbroken one."""
        made = Resume(self._loader.name, change, sum(map(len, self._unbroken)))
        if obstacle := next(filter(None, map(self._obstacle, stretches)), None):
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
            if number == 0 and (foreign := self._cover(came).foreign):
                problem = f"{self._loader.name}: samples before the stop"
                hint = "turn random transforms off, or seed them"
                differs = {"expected": "those of an unbroken epoch", "found": f"{foreign:,} others"}
                raise WrongContent(problem, kind="foreign-samples", **differs, hint=hint)
            if not last and any(one.state is None for one in done):
                break  # the epoch ended
            states = [one.state for one in done if one.state is not None]
        cover = self._cover(came)
        varies = not _same_order(self._unbroken[:stop], came[:stop])
        return replace(
            made,
            lost=cover.dropped,
            repeated=cover.repeated,
            foreign=cover.foreign,
            outcome="wrong" if cover.dropped or cover.repeated or cover.foreign else "complete",
            same_order=None if varies else _same_order(self._unbroken, came),
            first_batch_s=max((one.first_batch_s for one in done if one.first_batch_s), default=None),
        )

    def _obstacle(self, stretch: Stretch) -> InvalidSettings | None:
        if self._unsharded and stretch.ranks is not None:
            why = "it has no parameters rank, world_size, and does not follow RANK and WORLD_SIZE"
            problem = f"its ranks read the same samples: {why}"
            return InvalidSettings(problem, kind="unknown-parameter")
        return self._loader.obstacle(stretch)

    def _repeats(self, ranks: int) -> bool:
        """Return True if each of so many ranks reads the same samples, or none can read any."""
        samples = [np.unique(_joined(one.batches)) for one in self._read(Stretch(ranks=ranks))]
        return all(np.array_equal(samples[0], others) for others in samples[1:])

    def _cover(self, came: list[Hashes]) -> SampleCoverage:
        return SampleCoverage(self._expected, self._expected.hashed.samples, came)

    def _stop_after(self, stretches: Sequence[Stretch]) -> int:
        batches, ranks = len(self._unbroken), [one.ranks or 1 for one in stretches]
        stop = self._plan.stop_after or max(1, batches * ranks[0] // (2 * sum(ranks[:-1])))
        if stop >= batches:
            problem = f"{self._loader.name}: --stop-after"
            expected = f"fewer than the {batches} batches of an epoch"
            hint = "use smaller batches, or stop earlier"
            raise InvalidSettings(problem, kind="out-of-range", expected=expected, found=stop, hint=hint)
        return stop

    def _read(self, stretch: Stretch, states: Sequence[bytes] = ()) -> list[Delivery]:
        """Read a stretch in one process for each rank; a rank that is new is given the state of another."""
        most = MOST * sum(map(len, self._unbroken)) or None
        children: list[Child] = []
        try:
            for rank in range(stretch.ranks or 1):
                state = states[rank % len(states)] if states else None
                children.append(Child(f"{__name__}:serve", start=self._server.fork))
                own = replace(stretch, rank=rank, state=state, most_samples=most)
                children[-1].send((self._loader, own))
            return [self._delivery(child) for child in children]
        finally:
            for child in children:
                child.end()

    def _delivery(self, child: Child) -> Delivery:
        try:
            done: Delivery = child.reply(self._plan.timeout_s)
            return done
        except CaseDied as error:
            return Delivery(error=error)


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


def serve(connection: Connection, heartbeats: SharedCount) -> None:
    """Read the stretch that the parent sends, answer with a Delivery, and wait in its middle."""
    loader, stretch = connection.recv()
    heartbeats.count += 1  # all is imported: from now on batches are due
    np.random.seed()  # as a new interpreter does: NumPy 1 drew its seed before this process was forked
    done, stream, began, samples = Delivery(), None, time.perf_counter(), 0
    most = math.inf if stretch.most_samples is None else stretch.most_samples
    try:
        with stdout_to_stderr():
            stream, state = loader.open(stretch)
            for batch in itertools.islice(stream, stretch.stop):
                if done.first_batch_s is None:
                    done.first_batch_s = time.perf_counter() - began
                done.batches.append(batch)
                heartbeats.count += 1
                samples += len(batch)
                if samples > most:
                    break
        if stretch.stop is not None and len(done.batches) == stretch.stop:
            done.state = checkpoint.encode(state())
    except IobenchError as error:
        done.error = error.changed()  # without its frames, which do not pickle
    except user_errors.USER_ERRORS as error:
        done.error = user_errors.loader_error(error).changed()
    connection.send(done)
    with suppress(EOFError):
        connection.recv()
    del stream
