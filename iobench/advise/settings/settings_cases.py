"""Settings of a loader as cases of a run over its own data."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from iobench.advise.settings.candidate import Candidate
from iobench.advise.settings.turn import Turn
from iobench.bench.case import Case
from iobench.dataset.manifest import Manifest
from iobench.formats import Field, Schema
from iobench.loading.loaders._user_loader import UserLoader

OWN_ORDER = "own"


@dataclass(frozen=True)
class SettingsCases:
    """A loader as its cases describe it: its name, its present settings, and what consumes its batches.

    Attributes
    ----------
    path : Path
        File of records; by default they are not stored.
    """

    name: str = "loader"
    settings: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    model: str = "none"
    step_s: float = 0.0
    seed: int = 0
    path: Path = Path(os.devnull)

    def case(self, candidate: Candidate, turn: Turn | None) -> Case:
        """Return the case of a candidate; `turn` is any earlier one."""
        known = turn is not None and turn.fields and turn.fields[0][0]
        name = self.name if candidate.make is None else candidate.name
        options = tuple({**self.settings, **candidate.changes}.items())
        return Case(
            self.name,
            content="",
            device=self.device,
            batch_size=turn.fields[0][0][0] if turn is not None and known else 1,
            order=OWN_ORDER,
            seed=self.seed,
            model=self.model,
            step_s=self.step_s,
            variant="",
            loader=UserLoader("", name, options, (), None, ""),
        )

    def manifest(self, turn: Turn | None) -> Manifest:
        """Return the loader's data as a dataset without artifacts."""
        samples = max(1, round(turn.samples)) if turn is not None else 1
        try:
            fields = [
                Field(f"f{number}", shape[1:], dtype)
                for number, (shape, dtype) in enumerate(turn.fields if turn is not None else ())
            ]
        except ValueError:  # tensors that no dataset can hold
            fields = []
        unknown = [Field("batch", (), "uint8")]
        return Manifest(Path(self.name), Schema(samples, tuple(fields or unknown)), source={})


def new_path(data_dir: Path, loader: str) -> Path:
    """Return the path of a new record file in the data folder's results."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", loader).strip("-")
    now = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S-%f")[:-3]
    return data_dir / "results" / f"tune-{name}-{now}.jsonl"
