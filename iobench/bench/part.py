"""Parts of an epoch: the batches that a round delivers, their number, and the epoch that follows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from iobench.base import thresholds
from iobench.base.errors import LoaderFailed
from iobench.base.units import counted
from iobench.bench.case import Case
from iobench.formats import Schema
from iobench.loading.order import Order
from iobench.loading.stages import Clock
from iobench.results.parts import ContentCheckPart, PartialEpoch
from iobench.results.record import Record


@dataclass(frozen=True)
class Proof:
    """Result of a case's verification.

    `check` is None if the whole dataset came as requested. The seconds are those of loading and hashing,
    `took_s` those of the whole verification, which the run loop notes.
    """

    check: ContentCheckPart | None = None
    batch_s: float = 0.0
    sample_s: float = 0.0
    took_s: float = 0.0


T = TypeVar("T")
LEAST_WINDOW = 5  # times what the loader reads ahead: less would be mostly its start


@dataclass(frozen=True)
class Part:
    """The batches of a part of an epoch: a lead, a window, and a trail.

    The lead and the trail are at least what the loader reads ahead. So its buffers are equally full at both
    ends of the window, which then pays for exactly the batches that it delivers. In block order the lead
    and the window are whole windows of the shuffle, whose first batches bring in the blocks of all.
    """

    lead: int
    window: int
    trail: int

    @classmethod
    def of(cls, order: Order, read_ahead: int, batches: int, epoch_batches: int) -> Part | None:
        """Return the part with a window of that many batches; None if an epoch is not longer."""
        ahead = max(1, read_ahead)
        window = order.whole_windows(max(batches, LEAST_WINDOW * ahead))
        part = cls(order.whole_windows(ahead), window, ahead)
        return part if part.count < epoch_batches else None

    @classmethod
    def whole(cls, read_ahead: int, epoch_batches: int) -> Part | None:
        """Return all of an epoch, which can be cut off; None for a single batch."""
        lead = min(max(1, read_ahead), epoch_batches - 1)
        return cls(lead, epoch_batches - lead, 0) if lead else None

    @property
    def is_whole(self) -> bool:
        """True for all of an epoch: nothing trails the window."""
        return not self.trail

    @property
    def count(self) -> int:
        """Number of batches."""
        return self.end + self.trail

    @property
    def end(self) -> int:
        """Number of batches up to the end of the window."""
        return self.lead + self.window


class TimeLimit:
    """Ends an epoch once it has taken some seconds; `ended` says whether it did. It is not extrapolated."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock, self.ended = seconds, clock, False

    def over(self, batches: Iterator[T]) -> Iterator[T]:
        """Yield batches, at least one, until the time is over."""
        began = self._clock()
        for batch in batches:
            yield batch
            if self._clock() - began > self._seconds:
                self.ended = True
                return


class WindowTimer:
    """Time and samples of the windows of a round's parts.

    A window ends after `limit_s` at the latest, with the batches that have come: `short` says that it did. If
    not even the lead has come by then, all batches count, and with them the start of the loader.
    """

    def __init__(
        self,
        part: Part,
        synchronize: Callable[[], None],
        clock: Clock = time.perf_counter_ns,
        limit_s: float = math.inf,
    ) -> None:
        self.part, self._synchronize, self._clock = part, synchronize, clock
        self._limit_ns, self.short = limit_s * 1e9, False
        self.ns = self.samples = self.batches = 0
        self._starts: list[int] = []

    def part_of(self, rows: Sequence[T], order: Order, epoch: int) -> Sequence[T]:
        """Return the part of an epoch's batches that represents it, and note where it begins."""
        part = order.part(len(rows), epoch, self.part.count)
        self._starts.append(part.start)
        return rows[part]

    def over(self, batches: Iterator[T], delivered: Callable[[], int], own: bool) -> Iterator[T]:
        """Yield the batches of a part and time its window.

        A loader with batches of its `own` is cut at the window's end; a whole epoch of it may have fewer or
        more batches than the part, and ends with its last one, or after the limit. `delivered` returns the
        number of samples so far. It is called at the window's ends alone, and a batch costs little more than
        in a whole epoch.
        """
        clock, lead = self._clock, self.part.lead
        end = math.inf if own and self.part.is_whole else self.part.end
        began, before, number = clock(), delivered(), 0
        late = began + self._limit_ns
        for number, batch in enumerate(batches, 1):
            yield batch
            if clock() > late and number < end:
                self.short = True
            elif number == lead:
                began, before = self._now(), delivered()
                continue
            elif number != end:
                continue
            self.ns += self._now() - began
            self.samples += delivered() - before
            if self.short or own:
                break
        if number < end < math.inf and not self.short:
            expected = f"at least {counted(self.part.end, 'batch', 'batches')}"
            problem, found = "the loader ended early", f"{number:,}"
            raise LoaderFailed(problem, kind="ended-early", expected=expected, found=found)
        self.batches += number

    def partial(self, parts: int, delivered: tuple[int, float], epoch: tuple[int, int]) -> PartialEpoch:
        """Extrapolate an epoch: what a part took, and the window's rate for the rest.

        `delivered` are the samples and seconds of all parts, `epoch` the samples and batches of an epoch.
        """
        (samples, seconds), (epoch_samples, epoch_batches) = delivered, epoch
        missing = epoch_samples - samples / parts
        return PartialEpoch(
            batches=self.batches,
            epoch_batches=epoch_batches,
            epoch_s=seconds / parts + missing * self.ns / 1e9 / self.samples,
            epoch_samples=epoch_samples,
            starts=self._starts or None,
            short=self.short,
        )

    def _now(self) -> int:
        self._synchronize()
        return self._clock()


PROOF_ROUNDS = 4  # times a round, that a verification may take: hashing is slower than many loaders


class RoundLengths:
    """Lengths of the rounds of a run's cases, by the speed of each in its verification and its rounds.

    `limit_s` is the time that a round may take besides `Case.round_seconds`. Of a live loader, without a
    schema, nothing is known in advance.
    """

    def __init__(self, schema: Schema | None) -> None:
        self._schema, self.limit_s = schema, math.inf
        self._speeds: dict[str, tuple[float, float]] = {}  # seconds of an epoch and of a batch, by case

    def proved(self, case: Case, proof: Proof) -> None:
        """Note the speed of a verification, which also hashed what it loaded."""
        if self._schema is not None:
            samples = self._schema.samples / case.world_size
            self._speeds[case.key] = samples * proof.sample_s, proof.batch_s

    def measured(self, case: Case, record: Record) -> None:
        """Note the speed of a round."""
        epoch_s, batch_s = self._speeds.get(case.key, (0.0, 0.0))
        if epoch_s:
            self._speeds[case.key] = record.epoch_s, batch_s * record.epoch_s / epoch_s

    def batch_s(self, case: Case) -> float:
        """Return the estimated seconds of a batch; 0 if nothing was measured."""
        return self._speeds.get(case.key, (0.0, 0.0))[1]

    def batches(self, case: Case) -> int | None:
        """Return the batches of the window of the case's next round; None for whole epochs."""
        epoch_s, batch_s = self._speeds.get(case.key, (0.0, 0.0))
        limit_s = min(case.round_seconds, self.limit_s)
        if case.max_batches is not None or epoch_s <= limit_s:
            return case.max_batches
        return max(1, int(limit_s / batch_s))

    def logical_bytes(self, case: Case) -> int:
        """Return about how many bytes the case's next round reads."""
        batches, ahead = self.batches(case), case.loader.read_ahead
        if self._schema is None:
            return 0
        if batches is None:
            return self._schema.logical_bytes
        count = max(batches, LEAST_WINDOW * ahead) + 2 * ahead
        return min(self._schema.logical_bytes, case.world_size * count * case.batch_bytes(self._schema))

    def round_s(self, case: Case) -> float:
        """Return about how long the case's next round takes."""
        epoch_s, batch_s = self._speeds.get(case.key, (0.0, 0.0))
        batches, ahead = self.batches(case), case.loader.read_ahead
        part_s = math.inf if batches is None else batch_s * max(batches, LEAST_WINDOW * ahead)
        return max(thresholds.ROUND_S, min(epoch_s, part_s + 2 * ahead * batch_s))
