"""Turns of a tuning, stored as the records of a run."""

from __future__ import annotations

import re
import uuid
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from iobench.base.finding import Finding
from iobench.bench.case import CaseSettings
from iobench.bench.hosts import WARMED
from iobench.bench.recorder import machine_part
from iobench.results import record
from iobench.results.cases import OWN_DATA
from iobench.results.parts import CachePart, ContentCheckPart, DatasetPart, FieldSpec
from iobench.results.record import Record
from iobench.tuning.candidate import Candidate
from iobench.tuning.consumer import Consumer
from iobench.tuning.turn import TurnResult

UNVERIFIED = Finding("no-checksums", "it reads data that iobench has no checksums of")
OWN_ORDER = "own"


class TurnRecorder:
    """Record file with one line per turn; the race is one run, the final rounds are another."""

    def __init__(
        self, path: Path, name: str, settings: dict[str, Any], consumer: Consumer, seed: int
    ) -> None:
        record.check_writable(path)
        self.path, self._name, self._settings, self._consumer, self._seed = (
            path,
            name,
            settings,
            consumer,
            seed,
        )
        self._runs = {final: uuid.uuid4().hex[:12] for final in (False, True)}
        self._machine = machine_part(Path.cwd(), str(consumer.device))

    def add(self, candidate: Candidate, number: int, turn: TurnResult, final: bool) -> None:
        """Append the record of one turn; `final` for one of the final rounds."""
        unverified = [UNVERIFIED]
        if not turn.complete:
            part = f"{turn.batches} of {turn.epoch_batches or 'an unknown number of'} batches"
            unverified.append(Finding("incomplete-epoch", part, values={"batches": turn.batches}))
        written = Record(
            run=self._runs[final],
            time=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            round=number,
            case=self._case(candidate, turn),
            dataset=self._dataset(turn),
            cache=CachePart(mode="warm", residency=None, method=WARMED),
            machine=self._machine,
            content_check=ContentCheckPart(unverified=unverified),
            timing=turn.measured.timing,
            processor=turn.measured.processor,
            disk=turn.measured.disk,
            memory=turn.measured.memory,
            background=turn.measured.background,
        )
        record.append(self.path, written)

    def _case(self, candidate: Candidate, turn: TurnResult) -> dict[str, Any]:
        settings = CaseSettings(
            self._name,
            content="",
            device=str(self._consumer.device),
            batch_size=turn.fields[0][0][0] if turn.fields and turn.fields[0][0] else 1,
            order=OWN_ORDER,
            seed=self._seed,
            model=self._consumer.model,
            step_s=self._consumer.step_s,
        )
        loader = self._name if candidate.make is None else candidate.name
        return settings.facets_with(OWN_DATA, loader, {**self._settings, **candidate.changes})

    def _dataset(self, turn: TurnResult) -> DatasetPart:
        fields = [
            FieldSpec(name=str(number), shape=list(shape[1:]), dtype=dtype)
            for number, (shape, dtype) in enumerate(turn.fields)
        ]
        return DatasetPart(name=self._name, samples=max(1, round(turn.samples)), fields=fields)


def new_path(data_dir: Path, loader: str) -> Path:
    """Return the path of a new record file in the data folder's results."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", loader).strip("-")
    now = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S-%f")[:-3]
    return data_dir / "results" / f"tune-{name}-{now}.jsonl"
