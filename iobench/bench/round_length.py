"""Length of a case's rounds: whole epochs, or the part of one that fits in the time for a round."""

from __future__ import annotations

import math
from dataclasses import dataclass

from iobench.base import thresholds
from iobench.bench.case import Case
from iobench.bench.part import LEAST_WINDOW
from iobench.bench.proof import Proof
from iobench.formats import Schema
from iobench.results.record import Record

PROOF_ROUNDS = 4  # times a round, that a verification may take: hashing is slower than many loaders


@dataclass
class _CaseSpeed:
    """Seconds of an epoch and of a batch, as far as they are known."""

    epoch_s: float
    batch_s: float


class RoundLengths:
    """Lengths of the rounds of a run's cases, by the speed of each in its verification and its rounds.

    `limit_s` is the time that a round may take besides `Case.round_seconds`.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema, self.limit_s = schema, math.inf
        self._speeds: dict[str, _CaseSpeed] = {}

    def proved(self, case: Case, proof: Proof) -> None:
        """Note the speed of a verification, which also hashed what it loaded."""
        samples = self._schema.samples / case.world_size
        self._speeds[case.key] = _CaseSpeed(samples * proof.sample_s, proof.batch_s)

    def measured(self, case: Case, record: Record) -> None:
        """Note the speed of a round."""
        speed = self._speeds.get(case.key)
        if speed is not None and speed.epoch_s:
            batch_s = speed.batch_s * record.epoch_s / speed.epoch_s
            self._speeds[case.key] = _CaseSpeed(record.epoch_s, batch_s)

    def batch_s(self, case: Case) -> float:
        """Return the estimated seconds of a batch; 0 if nothing was measured."""
        speed = self._speeds.get(case.key)
        return 0.0 if speed is None else speed.batch_s

    def batches(self, case: Case) -> int | None:
        """Return the batches of the window of the case's next round; None for whole epochs."""
        speed, limit_s = self._speeds.get(case.key), min(case.round_seconds, self.limit_s)
        if case.max_batches is not None or speed is None or speed.epoch_s <= limit_s:
            return case.max_batches
        return max(1, int(limit_s / speed.batch_s))

    def logical_bytes(self, case: Case) -> int:
        """Return about how many bytes the case's next round reads."""
        batches, ahead = self.batches(case), case.loader.read_ahead
        if batches is None:
            return self._schema.logical_bytes
        count = max(batches, LEAST_WINDOW * ahead) + 2 * ahead
        return min(self._schema.logical_bytes, case.world_size * count * case.batch_bytes(self._schema))

    def round_s(self, case: Case) -> float:
        """Return about how long the case's next round takes."""
        speed = self._speeds.get(case.key)
        if speed is None:
            return thresholds.ROUND_S
        batches, ahead = self.batches(case), case.loader.read_ahead
        part_s = math.inf if batches is None else speed.batch_s * max(batches, LEAST_WINDOW * ahead)
        return max(thresholds.ROUND_S, min(speed.epoch_s, part_s + 2 * ahead * speed.batch_s))
