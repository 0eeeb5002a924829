"""What is measured against what, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from iobench import formats
from iobench.bench.case import LOADERS, Case, Settings, case, check_read
from iobench.bench.observer import Observer
from iobench.bench.plan import Rounds
from iobench.dataset.manifest import Manifest
from iobench.errors import InvalidSettings
from iobench.host import cache
from iobench.results import record
from iobench.results.record import Record


@dataclass
class Run:
    """What a run measured.

    `failures` maps a case's label to what is wrong with it; `remarks` are sentences about how it went;
    `rounds` is None where as many were made as it took; `traces` are files for a trace viewer.
    """

    manifest: Manifest
    cases: list[Case]
    device: str
    cache: str
    model: str
    rounds: int | None
    path: Path
    records: list[Record] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    traces: list[Path] = field(default_factory=list)
    interrupted: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Everything but the records themselves, for JSON."""
        return {
            "dataset": self.manifest.name,
            "device": self.device,
            "cache": self.cache,
            "model": self.model,
            "rounds": self.rounds,
            "records": str(self.path),
            "failures": self.failures,
            "remarks": self.remarks,
            "traces": [str(path) for path in self.traces],
            "interrupted": self.interrupted,
        }


def run(
    manifest: Manifest,
    variants: Sequence[str] = ("all",),
    loaders: Sequence[str] = ("all",),
    *,
    settings: Settings | None = None,
    device: str = "auto",
    cache_mode: str = "warm",
    sudo: bool = False,
    rounds: int | Rounds = 5,
    warmup: int = 1,
    model: str = "none",
    limits: bool = True,
    profile: bool = False,
    trace: bool = False,
    out: Path | None = None,
    observer: Observer | None = None,
) -> Run:
    """Measure every variant with every loader in interleaved rounds; one Record per timed round.

    `rounds` is a number, or a plan like `Rounds.parse("auto")`: as many as it takes. The first
    of the `warmup` rounds of a case proves its content on the device against the manifest; a case that
    fails is not timed and is named in `Run.failures`. Records are appended to `out` (default: a new
    file in the `results` folder beside the dataset) as each round ends, so that Ctrl-C keeps them: it
    sets `Run.interrupted` and returns.
    `profile` has each epoch split into stages and the machine watched; `trace` writes what
    torch.profiler sees of each case's first batches beside the records.
    InvalidSettings, DeviceUnavailable, ManifestError, ColdCacheUnavailable or RecordError where
    the run cannot be had as asked.
    """
    from iobench.bench.session import Session
    from iobench.loading.transfer import HostToDevice, pick_device

    planned = rounds if isinstance(rounds, Rounds) else Rounds.parse(rounds)
    _check(warmup, cache_mode, model)
    target = pick_device(device)
    settings = (settings or Settings()).on(target.type)
    cases = _cases(manifest, variants, loaders, settings)
    path = out or _new_path(manifest)
    record.check_writable(path)
    result = Run(manifest, cases, str(target), cache_mode, model, planned.count, path)
    transfer = HostToDevice(target, bool(settings.non_blocking))
    session = Session(result, transfer, sudo, limits, profile, observer or Observer())
    session.run(planned, warmup, trace)
    return result


def _check(warmup: int, cache_mode: str, model: str) -> None:
    from iobench.bench.training import MODELS

    if warmup < 1:
        raise InvalidSettings(f"warmup {warmup} is below 1: the first untimed round proves the content")
    for what, value, known in (("cache", cache_mode, cache.MODES), ("model", model, MODELS)):
        if value not in known:
            raise InvalidSettings(f"{what} {value!r} is not one of {', '.join(known)}")


def _cases(
    manifest: Manifest, variants: Sequence[str], loaders: Sequence[str], settings: Settings
) -> list[Case]:
    every = list(manifest.artifacts)
    named = every if "all" in variants else [formats.parse(v).variant for v in variants]
    for variant in named:
        if variant not in every:
            manifest.opener(variant)  # raises what to do about it
    loaders = LOADERS if "all" in loaders else loaders
    if not (named and loaders):
        raise InvalidSettings(f"no case to measure in dataset {manifest.name}: name a format and a loader")
    check_read(settings, loaders)
    return [
        case(variant, loader, settings)
        for variant in dict.fromkeys(named)
        for loader in dict.fromkeys(loaders)
    ]


def _new_path(manifest: Manifest) -> Path:
    now = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S-%f")[:-3]
    return manifest.root.parent / "results" / f"{manifest.name}-{now}.jsonl"
