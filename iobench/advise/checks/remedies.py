"""Changes of a user's code that are tried as candidates, without touching it."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, default_collate

from iobench import formats
from iobench.advise.checks import decoding, sample_calls
from iobench.advise.checks.decoding import JpegFile
from iobench.advise.checks.evidence import FREE_SHARE, SHARE, VARYING, Evidence
from iobench.advise.checks.sample_checks import COLLECTED
from iobench.advise.settings.candidate import Candidate
from iobench.advise.settings.tunable_loader import TunableLoader, rebuilt
from iobench.advise.settings.watchdog import DeadlineReached, Watchdog
from iobench.base.finding import Finding
from iobench.base.text import reason
from iobench.base.units import bytes_text
from iobench.bench.budget import Budget
from iobench.formats import WholeDecoder
from iobench.host import memory
from iobench.loading.inspection import same_tensors, shallow_copy
from iobench.loading.user_errors import USER_ERRORS


class KeptSamples(Dataset[Any]):
    """Samples in memory, by row: each tensor and array is a row of one that holds those of all samples.

    A sample costs what it does where a user stores arrays: a separate tensor for each would cost twice that.
    """

    def __init__(self, count: int) -> None:
        self._count, self.rows = count, list[int]()  # of the whole dataset, and rows that are kept
        self._kind: type | None = None  # of container that a sample is
        self._columns: dict[Any, Any] = {}

    def keep(self, row: int, sample: Any) -> None:
        """Keep a sample, unless it is kept already."""
        if not 0 <= row < self._count:
            raise IndexError(row)
        values = _values(sample)
        if not self.rows:
            self._kind = type(sample) if type(sample) in (dict, tuple, list) else None
            self._columns = {name: _column(value, self._count) for name, value in values.items()}
        for name, value in values.items():
            if not _holds(self._columns[name], value):  # samples differ in length
                self._columns[name] = list(self._columns[name])
            self._columns[name][row] = value
        self.rows.append(row)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: int) -> Any:
        values = {
            name: _views(column[row]) if isinstance(column, list) else column[row]
            for name, column in self._columns.items()
        }
        if self._kind is None:
            return values[None]
        return values if self._kind is dict else self._kind(values.values())


class KeptBatches:
    """Batches of rows like those of a batch sampler; rows that are not kept are replaced by kept ones."""

    def __init__(self, batches: Any, rows: Sequence[int]) -> None:
        self._batches, self._rows, self._kept = batches, rows, set(rows)

    def __iter__(self) -> Iterator[list[int]]:
        rows, kept = self._rows, self._kept
        for batch in self._batches:
            yield [row if row in kept else rows[row % len(rows)] for row in batch]

    def __len__(self) -> int:
        return len(self._batches)


class PatchedDataset(Dataset[Any]):
    """A dataset whose samples are made while a part of a library is replaced."""

    def __init__(self, dataset: Any, replaced: Callable[[], AbstractContextManager[None]]) -> None:
        self._dataset, self._replaced = dataset, replaced

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, row: Any) -> Any:
        with self._replaced():
            return self._dataset[row]

    def __getitems__(self, rows: list[Any]) -> Any:
        whole = getattr(self._dataset, "__getitems__", None)
        with self._replaced():
            return [self._dataset[row] for row in rows] if whole is None else whole(rows)


def _values(sample: Any) -> dict[Any, Any]:
    """Return the values in a sample by name or position; one without a name if it is no container."""
    if type(sample) is dict:
        return sample
    return dict(enumerate(sample)) if type(sample) in (tuple, list) else {None: sample}


def _column(value: Any, count: int) -> Any:
    if isinstance(value, torch.Tensor) and value.shape and value.device.type == "cpu":
        return torch.empty((count, *value.shape), dtype=value.dtype)
    if isinstance(value, np.ndarray) and value.shape and value.dtype.kind in "biufc":
        return np.empty((count, *value.shape), value.dtype)
    return [None] * count


def _holds(column: Any, value: Any) -> bool:
    if isinstance(column, list):
        return True
    same = type(column) is type(value)
    return same and column.dtype == value.dtype and column.shape[1:] == value.shape


def _views(value: Any) -> Any:
    """Return a value with views of its tensors and arrays: what is done to its containers does not last."""
    if hasattr(value, "shape") and value.shape:
        return value[:]
    if isinstance(value, dict):
        return {name: _views(one) for name, one in value.items()}
    return type(value)(map(_views, value)) if type(value) in (list, tuple) else value


CACHED = "samples kept in memory"
FROZEN = "gc.freeze()"
ONE_TORCH_THREAD = "torch.set_num_threads(1)"
KEPT_OPEN, KEPT_ARRAYS, UNCHUNKED = "files kept open", "arrays kept", "arrays without chunks"
DEFAULT_COLLATE = "torch's own collate function"
OTHER_DECODER = "another JPEG decoder"
COMPUTED = 0.1  # of the time in torch's functions, from which on its threads matter
FASTER = 1.05  # times Pillow's speed, from which on a decoder is tried in the loader
FILES = 16  # that decoders are compared on, if time allows
DECODED = 0.1  # of the time, from which on it is tried to decode less
CHECKED, MIN_CHECKED = 12, 6  # samples that are compared with themselves, if time allows, and at least
CHECKED_S = 0.5
NO_TIME = "no time was left to ask for some of them"
KEEP, PROBES = 0.2, 0.15  # of the time left: to fill the memory with samples, and to ask for some of them
SLOW_SAMPLE_S = 20e-6  # under the profiler; indexing a tensor takes less


class During:
    """A loader each of whose loops runs in a context."""

    def __init__(self, loader: Iterable[Any], context: Callable[[], AbstractContextManager[None]]) -> None:
        self._loader, self._context = loader, context

    def __iter__(self) -> Iterator[Any]:
        with self._context():
            yield from self._loader

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Keep the collector from looking at the objects that exist."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Let torch compute in the calling thread alone."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Remedies:
    """Changes whose cause the evidence of a loader shows; why others are not tried is noted in it."""

    def __init__(self, loader: TunableLoader, evidence: Evidence, watchdog: Watchdog) -> None:
        self._loader, self._own, self._watchdog = loader, loader.loader, watchdog
        self._evidence, self._sample = evidence, evidence.sample

    def candidates(self) -> list[Candidate]:
        """Return the loader with each change, the most promising first."""
        if not self._evidence.profiles:
            return []
        found = list(self._for_samples()) if self._loader.indexes_rows else []
        fetching = self._evidence.fetching
        if max(self._evidence.gc_shares) >= COLLECTED and not gc.get_freeze_count():
            make = partial(self._during, frozen_heap)
            found.append(Candidate(FROZEN, {"gc": "freeze"}, "gc", make=make))
        in_torch = max((one.share for one in fetching.libraries if one.name == "torch"), default=0.0)
        if torch.get_num_threads() > 1 and not self._evidence.loop.loader.workers and in_torch >= COMPUTED:
            make = partial(self._during, one_torch_thread)
            found.append(Candidate(ONE_TORCH_THREAD, {"torch_threads": 1}, "one-thread", make=make))
        return found

    def _during(self, context: Callable[[], AbstractContextManager[None]]) -> During:
        return During(self._loader.unchanged, context)

    def _for_samples(self) -> Iterator[Candidate]:
        """Yield changes of the work for each sample; a copy of the dataset is asked for some samples."""
        fetching, own, dataset = self._evidence.fetching, self._own, shallow_copy(self._own.dataset)
        try:
            with self._watchdog.within(PROBES * self._watchdog.budget.left()):
                rows = next(iter(own.batch_sampler))[:2]
                samples = [dataset[row] for row in rows]
                slow = fetching.getitem_share * fetching.total_s >= SLOW_SAMPLE_S * fetching.getitem_calls
                costly = slow and fetching.getitem_share >= SHARE and not hasattr(own.dataset, "__getitems__")
                may_keep = costly and self._fits_in_memory()
                repeats = may_keep and self._repeats(samples[0], dataset[rows[0]])
                decoded = fetching.cost("decoding") >= DECODED
                size = self._sample.resized_to if decoded else None
                collated = self._collates_alike(samples)
            yield from self._looked_up_once(dataset, rows[0])
            yield from self._unchunked(dataset)
            yield from self._kept(dataset) if repeats else ()
        except DeadlineReached:
            self._skip(CACHED, NO_TIME)
            return
        except USER_ERRORS as error:
            self._skip(CACHED, reason(error))
            return
        if size is not None:
            named = f"JPEG decoded at the scale of {size[0]} × {size[1]}"
            sides = dict(zip(("width", "height"), size, strict=True))
            yield self._patched(named, "draft", partial(decoding.drafted, size), sides)
        if decoded:
            yield from self._redecoded(dataset)
        if collated:
            yield Candidate(DEFAULT_COLLATE, {"collate_fn": None}, "default-collate")

    def _skip(self, name: str, why: str, kind: str = "not-tried") -> None:
        self._evidence.skipped.append(Finding(kind, f"{name}: {why}", values={"change": name, "reason": why}))

    def _fits_in_memory(self) -> bool:
        size = self._evidence.loop.dataset_bytes
        fits = self._evidence.fits_in_memory
        if not fits and size:
            self._skip(CACHED, f"all of them take {bytes_text(size)}, more than half of the free memory")
        return fits

    def _repeats(self, sample: Any, again: Any) -> bool:
        same = same_tensors(sample, again)
        if not same:
            self._skip(CACHED, "a sample differs each time it is read", VARYING)
        return same

    def _kept(self, dataset: Any) -> Iterator[Candidate]:
        own, kept, seen = self._own, KeptSamples(len(dataset)), set[int]()
        keeping = self._watchdog.budget.share(KEEP)
        with self._watchdog.within(math.inf):
            for row in (row for batch in own.batch_sampler for row in batch):
                if row not in seen:
                    kept.keep(row, dataset[row])
                    seen.add(row)
                if keeping.over:
                    break
        with self._watchdog.within(PROBES * self._watchdog.budget.left()):
            # one of two random flips is the same half of the time
            checking = self._watchdog.budget.sub(CHECKED_S)
            for number, row in enumerate(kept.rows[:CHECKED]):
                if not self._repeats(kept[row], dataset[row]):
                    return
                if number >= MIN_CHECKED and checking.over:
                    break
        batches = (
            own.batch_sampler if len(seen) == len(dataset) else KeptBatches(own.batch_sampler, kept.rows)
        )
        loader = rebuilt(own, {"num_workers": 0, "batch_sampler": batches}, kept)
        yield Candidate(CACHED, {"num_workers": 0}, "cache", make=lambda: loader)

    def _looked_up_once(self, dataset: Any, row: Any) -> Iterator[Candidate]:
        """Yield the loader over files that stay open, and over arrays that are kept, if it asks each time."""
        profile, opened = self._evidence.fetching, dict[Any, Any]()
        if profile.cost("openings") >= SHARE:
            with sample_calls.files_kept_open(opened):
                dataset[row]
        if opened:
            yield self._patched(KEPT_OPEN, "kept-open", partial(sample_calls.files_kept_open, {}))
        openings, _ = profile.outer.get("openings", (0, ""))
        if profile.cost("lookups") >= SHARE and openings < profile.getitem_calls / 2:
            yield self._patched(KEPT_ARRAYS, "kept-arrays", partial(sample_calls.arrays_kept, {}))

    def _unchunked(self, dataset: Any) -> Iterator[Candidate]:
        """Yield the loader over chunked arrays that are read from memory, as far as time allows."""
        wasteful = any(one.is_wasteful for one in self._sample.arrays)
        if not wasteful or self._evidence.fetching.cost("chunks") < SHARE:
            return
        arrays, rows = dict[Any, Any](), list[Any]()
        free, reading = FREE_SHARE * memory.free_memory(), self._watchdog.budget.share(KEEP)
        try:
            with sample_calls.arrays_in_memory(arrays), self._watchdog.within(2 * reading.seconds):
                for row in chain.from_iterable(self._own.batch_sampler):
                    dataset[row]
                    rows.append(row)
                    if sum(one.nbytes for one in arrays.values()) > free:
                        self._skip(UNCHUNKED, "the arrays take more than half of the free memory")
                        return
                    if reading.over:
                        break
        except DeadlineReached:
            self._skip(UNCHUNKED, "no time was left to read them as a whole")
            return
        whole = len(set(rows)) == len(dataset)
        batches = self._own.batch_sampler if whole else KeptBatches(self._own.batch_sampler, rows)
        replaced = partial(sample_calls.arrays_in_memory, arrays)
        yield self._patched(UNCHUNKED, "unchunked", replaced, batch_sampler=batches)

    def _patched(
        self,
        name: str,
        kind: str,
        replaced: Callable[[], AbstractContextManager[None]],
        changes: dict[str, Any] | None = None,
        **arguments: Any,
    ) -> Candidate:
        own, same = self._own, {"num_workers": self._own.num_workers, **arguments}
        dataset = PatchedDataset(own.dataset, replaced)
        return Candidate(name, changes or {kind: 1}, kind, make=lambda: rebuilt(own, same, dataset))

    def _redecoded(self, dataset: Any) -> Iterator[Candidate]:
        """Yield the loader over images that the fastest other decoder decodes, if it beats Pillow."""
        time, speeds = self._watchdog.budget.share(PROBES), list[tuple[WholeDecoder, dict[str, Any]]]()
        decoders = list(formats.get("images").jpeg_decoders())
        try:
            with self._watchdog.within(time.seconds):
                recording = time.share(1 / 3)
                with decoding.recorded() as files:
                    for row in chain.from_iterable(self._own.batch_sampler):
                        dataset[row]
                        if not files or len(files) >= FILES or recording.over:
                            break
                if files and not decoders:
                    self._skip(OTHER_DECODER, decoding.NO_DECODER)
                speeds.extend(self._speeds(decoders, files[:FILES], time.share(0.5)) if files else ())
        except DeadlineReached:
            if not speeds:
                self._skip(OTHER_DECODER, NO_TIME)
        if not speeds:
            return
        best, values = max(speeds, key=lambda one: one[1]["times"])
        if values["times"] < FASTER:
            names = ", ".join(one.name for one, _ in speeds)
            self._skip(OTHER_DECODER, f"Pillow decodes these files as fast as {names}")
            return
        loaded_by = partial(decoding.loaded_by, best)
        yield self._patched(f"JPEG decoded by {best.name}", "decoder", loaded_by, values)

    def _speeds(
        self, decoders: Sequence[WholeDecoder], files: Sequence[JpegFile], budget: Budget
    ) -> Iterator[tuple[WholeDecoder, dict[str, Any]]]:
        for done, one in enumerate(decoders):
            try:
                time = budget.sub(budget.for_each(len(decoders) - done))
                yield one, decoding.speed(one, files, time)
            except DeadlineReached:
                raise
            except Exception as error:  # noqa: BLE001 - libraries raise anything
                if isinstance(error.__cause__, DeadlineReached):  # in the import of the library
                    raise error.__cause__ from None
                self._skip(f"JPEG decoded by {one.name}", reason(error))

    def _collates_alike(self, samples: list[Any]) -> bool:
        own, costly = self._own, 1 - self._evidence.fetching.getitem_share >= SHARE
        if own.collate_fn is default_collate or not costly:
            return False
        try:
            alike = same_tensors(default_collate(samples), own.collate_fn(samples))
        except USER_ERRORS:  # torch's function refuses samples that differ in length
            alike = False
        if not alike:
            self._skip(DEFAULT_COLLATE, "it does not return the same batches")
        return alike
