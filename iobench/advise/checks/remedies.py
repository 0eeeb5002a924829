"""Changes of a user's code that are tried as candidates, without touching it."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

from torch.utils.data import IterableDataset, default_collate

from iobench import formats
from iobench.advise.checks import jpeg_decoding, jpeg_draft
from iobench.advise.checks.cost_checks import COLLECTED, SHARE, fits_in_memory
from iobench.advise.checks.evidence import VARYING, gc_shares
from iobench.advise.checks.jpeg_decoding import DecoderSpeed, JpegFile
from iobench.advise.checks.kept_samples import KeptBatches, KeptSamples
from iobench.advise.checks.loop_stats import LoopStats
from iobench.advise.checks.profiling import Profile
from iobench.advise.settings.candidate import Candidate
from iobench.advise.settings.rebuilt_loader import rebuilt
from iobench.advise.settings.tunable_loader import TunableLoader
from iobench.advise.settings.watchdog import DeadlineReached, Watchdog
from iobench.base.finding import Finding
from iobench.base.text import reason
from iobench.base.units import bytes_text
from iobench.loading.inspection import same_tensors, shallow_copy

CACHED = "samples kept in memory"
FROZEN = "gc.freeze()"
DEFAULT_COLLATE = "torch's own collate function"
OTHER_DECODER = "another JPEG decoder"
NO_DECODER = "none is installed: pip install 'iobench[simplejpeg]'"
FASTER = 1.05  # times Pillow's speed, from which on a decoder is tried in the loader
FILES = 16  # that decoders are compared on, if time allows
DECODED = 0.1  # of the time, from which on it is tried to decode less
CHECKED, MIN_CHECKED = 12, 6  # samples that are compared with themselves, if time allows, and at least
CHECKED_S = 0.5
NO_TIME = "no time was left to ask for some of them"
KEEP, PROBES = 0.2, 0.15  # of the time left: to fill the memory with samples, and to ask for some of them
SLOW_SAMPLE_S = 20e-6  # under the profiler; indexing a tensor takes less


class WithFrozenHeap:
    """A loader; objects that exist when a loop begins are not looked at by the collector during it."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        gc.freeze()
        try:
            yield from self._loader
        finally:
            gc.unfreeze()

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]


class Remedies:
    """Changes whose cause the measurements of a loader show, and why others were `skipped`."""

    def __init__(
        self, loader: TunableLoader, loop: LoopStats, profiles: Sequence[Profile], watchdog: Watchdog
    ) -> None:
        self._loader, self._own, self._watchdog = loader, loader.loader, watchdog
        self._loop, self._profiles, self.skipped = loop, profiles, list[Finding]()

    def candidates(self) -> list[Candidate]:
        """Return the loader with each change, the most promising first."""
        if not self._profiles:
            return []
        found, own = list[Candidate](), self._own
        if self._loader.rebuilds and not isinstance(own.dataset, IterableDataset) and own.batch_sampler:
            found += self._for_samples()
        if max(gc_shares(self._loop, self._profiles[-1])) >= COLLECTED and not gc.get_freeze_count():
            make = lambda: WithFrozenHeap(self._loader.unchanged)  # noqa: E731 - one line, used once
            found.append(Candidate(FROZEN, {"gc": "freeze"}, "gc", make=make))
        return found

    def _for_samples(self) -> Iterator[Candidate]:
        """Yield changes of the work for each sample; a copy of the dataset is asked for some samples."""
        fetching, own, dataset = self._profiles[-1], self._own, shallow_copy(self._own.dataset)
        try:
            with self._watchdog.within(PROBES * self._watchdog.left_s):
                rows = next(iter(own.batch_sampler))[:2]
                samples = [dataset[row] for row in rows]
                may_keep = self._is_costly() and self._fits_in_memory()
                repeats = may_keep and self._repeats(samples[0], dataset[rows[0]])
                decoded = fetching.costs.get("decoding", 0.0) >= DECODED
                size = jpeg_draft.resized_to(dataset, rows[0]) if decoded else None
                collated = self._collates_alike(samples)
            yield from self._kept(dataset) if repeats else ()
        except DeadlineReached:
            self._skip(CACHED, NO_TIME)
            return
        except Exception as error:  # noqa: BLE001 - a user's dataset may raise anything
            self._skip(CACHED, reason(error))
            return
        if size is not None:
            yield self._drafted(size)
        if decoded:
            yield from self._redecoded(dataset)
        if collated:
            yield Candidate(DEFAULT_COLLATE, {"collate_fn": None}, "default-collate")

    def _skip(self, name: str, why: str, kind: str = "not-tried") -> None:
        self.skipped.append(Finding(kind, f"{name}: {why}", values={"change": name, "reason": why}))

    def _is_costly(self) -> bool:
        """Return True if samples cost something."""
        fetching = self._profiles[-1]
        slow = fetching.getitem_share * fetching.total_s >= SLOW_SAMPLE_S * fetching.getitem_calls
        return slow and fetching.getitem_share >= SHARE and not hasattr(self._own.dataset, "__getitems__")

    def _fits_in_memory(self) -> bool:
        """Return True if all samples fit in memory."""
        size = self._loop.dataset_bytes
        fits = fits_in_memory(self._loop)
        if not fits and size:
            self._skip(CACHED, f"all of them take {bytes_text(size)}, more than half of the free memory")
        return fits

    def _repeats(self, sample: Any, again: Any) -> bool:
        """Return True if a sample is the same as it was before."""
        same = same_tensors(sample, again)
        if not same:
            self._skip(CACHED, "a sample differs each time it is read", VARYING)
        return same

    def _kept(self, dataset: Any) -> Iterator[Candidate]:
        """Yield the loader over samples in memory: those of the first batches, if not all can be read."""
        own, kept, seen = self._own, KeptSamples(len(dataset)), set[int]()
        until = time.monotonic() + KEEP * self._watchdog.left_s
        with self._watchdog.within(math.inf):
            for row in (row for batch in own.batch_sampler for row in batch):
                if row not in seen:
                    kept.keep(row, dataset[row])
                    seen.add(row)
                if time.monotonic() > until:
                    break
        with self._watchdog.within(PROBES * self._watchdog.left_s):
            until = time.monotonic() + CHECKED_S  # one of two random flips is the same half of the time
            for number, row in enumerate(kept.rows[:CHECKED]):
                if not self._repeats(kept[row], dataset[row]):
                    return
                if number >= MIN_CHECKED and time.monotonic() > until:
                    break
        batches = (
            own.batch_sampler if len(seen) == len(dataset) else KeptBatches(own.batch_sampler, kept.rows)
        )
        loader = rebuilt(own, {"num_workers": 0, "batch_sampler": batches}, kept)
        yield Candidate(CACHED, {"num_workers": 0}, "cache", make=lambda: loader)

    def _drafted(self, size: jpeg_draft.Size) -> Candidate:
        """Return the loader over images that are decoded at a smaller scale."""
        own, same = self._own, {"num_workers": self._own.num_workers}
        dataset = jpeg_draft.PatchedDataset(own.dataset, partial(jpeg_draft.drafted, size))
        named = f"JPEG decoded at the scale of {size[0]} × {size[1]}"
        changes = dict(zip(("width", "height"), size, strict=True))
        return Candidate(named, changes, "draft", make=lambda: rebuilt(own, same, dataset))

    def _redecoded(self, dataset: Any) -> Iterator[Candidate]:
        """Yield the loader over images that the fastest other decoder decodes, if it beats Pillow."""
        own, speeds = self._own, self._decoder_speeds(dataset)
        best = max(speeds, key=lambda one: one.times, default=None)
        if best is None:
            return
        if best.times < FASTER:
            names = ", ".join(one.decoder.name for one in speeds)
            self._skip(OTHER_DECODER, f"Pillow decodes these files as fast as {names}")
            return
        replaced = jpeg_draft.PatchedDataset(own.dataset, partial(jpeg_decoding.loaded_by, best.decoder))
        same, named = {"num_workers": own.num_workers}, f"JPEG decoded by {best.decoder.name}"
        yield Candidate(named, best.values, "decoder", make=lambda: rebuilt(own, same, replaced))

    def _decoder_speeds(self, dataset: Any) -> list[DecoderSpeed]:
        """Return the speeds of other decoders of the JPEG files of some samples, as far as time allows."""
        limit_s, speeds = PROBES * self._watchdog.left_s, list[DecoderSpeed]()
        try:
            with self._watchdog.within(limit_s):
                files = self._jpeg_files(dataset, limit_s / 3)
                speeds.extend(self._speeds(files, limit_s / 3) if files else ())
        except DeadlineReached:
            if not speeds:
                self._skip(OTHER_DECODER, NO_TIME)
        return speeds

    def _jpeg_files(self, dataset: Any, seconds: float) -> list[JpegFile]:
        """Return JPEG files that Pillow decodes for the first samples."""
        until = time.monotonic() + seconds
        with jpeg_decoding.recorded() as files:
            for row in chain.from_iterable(self._own.batch_sampler):
                dataset[row]
                if not files or len(files) >= FILES or time.monotonic() > until:
                    break
        return files[:FILES]

    def _speeds(self, files: Sequence[JpegFile], seconds: float) -> Iterator[DecoderSpeed]:
        """Yield the speed of each decoder that is installed."""
        decoders = list(formats.get("images").jpeg_decoders())
        if not decoders:
            self._skip(OTHER_DECODER, NO_DECODER)
        for one in decoders:
            try:
                yield jpeg_decoding.speed(one, files, seconds / len(decoders))
            except DeadlineReached:
                raise
            except Exception as error:  # noqa: BLE001 - libraries raise anything
                self._skip(f"JPEG decoded by {one.name}", reason(error))

    def _collates_alike(self, samples: list[Any]) -> bool:
        """Return True if torch's own function collates the same batches as a costly one of the user's."""
        own, costly = self._own, 1 - self._profiles[-1].getitem_share >= SHARE
        if own.collate_fn is default_collate or not costly:
            return False
        try:
            alike = same_tensors(default_collate(samples), own.collate_fn(samples))
        except Exception:  # noqa: BLE001 - torch's function refuses samples that differ in length
            alike = False
        if not alike:
            self._skip(DEFAULT_COLLATE, "it does not return the same batches")
        return alike
