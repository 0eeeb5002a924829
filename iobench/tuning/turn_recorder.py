"""Turns as records: those of a run, as far as somebody's own loader over their own data has them."""

from __future__ import annotations

import re
import uuid
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from iobench.bench.hosts import WARMED
from iobench.bench.recorder import machine_part
from iobench.results import record
from iobench.results.cases import OWN_DATA
from iobench.results.parts import CachePart, DatasetPart, FieldSpec, ProofPart
from iobench.results.record import Record
from iobench.tuning.candidate import Candidate
from iobench.tuning.consumer import Consumer
from iobench.tuning.turn import TurnResult

NOT_PROVED = "it reads data of its own: nobody can say what should have come"
OWN_ORDER = "own"


class TurnRecorder:
    """A file of records, with a line for each turn; the race is one run, the fresh rounds another."""

    def __init__(self, path: Path, called: str, settings: dict[str, Any], use: Consumer, seed: int) -> None:
        record.check_writable(path)
        self.path, self._called, self._settings, self._use, self._seed = path, called, settings, use, seed
        self._runs = {fresh: uuid.uuid4().hex[:12] for fresh in (False, True)}
        self._machine = machine_part(Path.cwd(), str(use.device))

    def add(self, candidate: Candidate, number: int, turn: TurnResult, fresh: bool) -> None:
        """Write a turn down."""
        part = "" if turn.complete else f"; {turn.batches} of {turn.of or 'an unknown number of'} batches"
        made = Record(
            run=self._runs[fresh],
            time=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            round=number,
            case=self._case(candidate, turn),
            dataset=self._dataset(turn),
            cache=CachePart(mode="warm", residency=None, method=WARMED),
            machine=self._machine,
            proof=ProofPart(missing=NOT_PROVED + part),
            timing=turn.measured.timing,
            processor=turn.measured.processor,
            disk=turn.measured.disk,
            memory=turn.measured.memory,
            others=turn.measured.others,
        )
        record.append(self.path, made)

    def _case(self, candidate: Candidate, turn: TurnResult) -> dict[str, Any]:
        step_s = self._use.step_s
        return {
            "dataset": self._called,
            "content": "",
            "format": OWN_DATA,
            "loader": self._called if candidate.make is None else candidate.name,
            "options": {**self._settings, **candidate.changes},
            "device": str(self._use.device),
            "batch_size": turn.fields[0][0][0] if turn.fields and turn.fields[0][0] else 1,
            "order": OWN_ORDER,
            "seed": self._seed,
            "cache": "warm",
            "model": self._use.model,
            **({"step_s": step_s} if step_s else {}),
            "strict": False,
            "profile": False,
            "isolated": False,
            "world_size": 1,
        }

    def _dataset(self, turn: TurnResult) -> DatasetPart:
        fields = [
            FieldSpec(name=str(number), shape=list(shape[1:]), dtype=dtype)
            for number, (shape, dtype) in enumerate(turn.fields)
        ]
        return DatasetPart(name=self._called, samples=max(1, round(turn.samples)), fields=fields)


def new_path(data_dir: Path, called: str) -> Path:
    """A new file in the results folder of a data folder."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", called).strip("-")
    now = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S-%f")[:-3]
    return data_dir / "results" / f"tune-{name}-{now}.jsonl"
