"""Arms × interleaved rounds: manifest → evict or warm, and prove → loader → feed → meter → record."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import formats
from formats import FormatError
from iobench import cache, interrupts, record
from iobench.arms import LOADERS, Arm, Settings, arm
from iobench.checksum import Checksum
from iobench.errors import BenchError, ColdCacheUnavailable, InvalidSettings, RecordError, WrongContent
from iobench.manifest import Manifest
from iobench.order import shuffledness
from iobench.record import Measured, Record
from iobench.verify import verify_artifact

if TYPE_CHECKING:  # torch is loaded when a run starts, not when the command line is parsed
    from iobench.epoch import Consumer
    from iobench.feed import DeviceBatch, Feed
    from iobench.training import Trainer


@dataclass
class Run:
    """What a run measured.

    `failures` maps an arm's label to what is wrong with it; `remarks` are sentences about where it ran.
    """

    manifest: Manifest
    arms: list[Arm]
    device: str
    cache: str
    model: str
    rounds: int
    path: Path
    records: list[Record] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
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
    rounds: int = 5,
    warmup: int = 1,
    model: str = "none",
    limits: bool = True,
    out: Path | None = None,
    on_status: Callable[[str], None] = lambda text: None,
    on_record: Callable[[Record], None] = lambda record: None,
) -> Run:
    """Measure every variant with every loader in interleaved rounds; one Record per timed round.

    The first of the `warmup` rounds of an arm proves its content on the device against the
    manifest; an arm that fails is not timed and is named in `Run.failures`. Records are
    appended to `out` (default: a new file in the `results` folder beside the dataset) as each
    round ends, so that Ctrl-C keeps them: it sets `Run.interrupted` and returns.
    InvalidSettings, DeviceUnavailable, ManifestError, ColdCacheUnavailable or RecordError where
    the run cannot be had as asked.
    """
    from iobench.feed import Feed, pick_device

    _check(rounds, warmup, cache_mode, model)
    target = pick_device(device)
    settings = (settings or Settings()).on(target.type)
    arms = _arms(manifest, variants, loaders, settings)
    path = out or _new_path(manifest)
    record.check_writable(path)
    result = Run(manifest, arms, str(target), cache_mode, model, rounds, path)
    feed = Feed(target, bool(settings.non_blocking))
    try:
        with interrupts.deferred() as check:
            session = _Session(result, feed, sudo, limits, on_status, on_record, check)
            session.prove_all(warmup)
            session.time_all()
    except KeyboardInterrupt:
        result.interrupted = True
    return result


@dataclass
class _Session:
    """One call of run at work."""

    run: Run
    feed: Feed
    sudo: bool
    limits: bool
    on_status: Callable[[str], None]
    on_record: Callable[[Record], None]
    check_interrupt: interrupts.Check

    def __post_init__(self) -> None:
        from iobench import machine
        from iobench.ceilings import Ceilings

        root = self.run.manifest.root
        self._ceilings = Ceilings(self.run.manifest, self.feed.device, self.run.cache)
        self._machine = machine.describe(root, self.run.device)
        self._id = uuid.uuid4().hex[:12]
        self._trainer()  # a model that does not fit the data fails before anything is measured

    def prove_all(self, warmup: int) -> None:
        """The untimed rounds; the first of each arm hashes every sample on the device."""
        for one in self.run.arms:
            self.on_status(f"checking {one.label}")
            with self._collecting_failures(one):
                self._prove(one)
                for _ in range(warmup - 1):
                    self._measure(one, 0, self._consumer(self._trainer()))

    def time_all(self) -> None:
        """The timed rounds, interleaved, each cycle in an order of its own."""
        if self.limits and self.run.cache == "cold":
            self.run.remarks += self._ceilings.below()
        shuffle = np.random.Generator(np.random.PCG64(self.run.arms[0].settings.seed))
        for number in range(1, self.run.rounds + 1):
            for index in shuffle.permutation(len(self.run.arms)):
                one = self.run.arms[index]
                if one.label not in self.run.failures:
                    with self._collecting_failures(one):
                        self._time(one, number)

    @contextmanager
    def _collecting_failures(self, one: Arm) -> Iterator[None]:
        """Note what is wrong with one arm and go on; what would stop every arm ends the run."""
        try:
            yield
        except (ColdCacheUnavailable, RecordError):
            raise
        except (BenchError, FormatError) as error:
            self.run.failures[one.label] = str(error)

    def _prove(self, one: Arm) -> None:
        if not self.run.manifest.unchanged(one.variant):  # a library may abort on damaged pages
            verify_artifact(self.run.manifest, one.variant)
        check, expected = Checksum(self.run.manifest.schema), self.run.manifest.content or 0
        train = self._consumer(self._trainer())  # so that no timed round pays for the first steps

        def consume(batch: DeviceBatch) -> None:
            check.add(batch)
            train(batch)

        self._measure(one, 0, consume)
        if check.content != expected:
            raise WrongContent(
                f"{one.label}: wrong content on the device: expected checksum {expected:016x}, "
                f"found {check.content:016x}; prepare it again, as it was first prepared, to repair it"
            )

    def _time(self, one: Arm, number: int) -> None:
        manifest = self.run.manifest
        manifest.opener(one.variant)  # complains about files that have gone or changed in size
        files = manifest.files_of(one.variant)
        limit = self._ceilings.of(one) if self.limits else None
        state = cache.establish(self.run.cache, files, manifest.schema.logical_bytes, self.sudo)
        trainer = self._trainer()
        self.feed.reset_peak()
        measured = self._measure(one, number, self._consumer(trainer))
        allocated, reserved = self.feed.peak_bytes() or (None, None)
        if limit and measured.logical_bytes > limit.bytes_per_s * measured.epoch_s:  # then it is no limit
            limit = self._ceilings.again(one)
        made = Record(
            run=self._id,
            time=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            round=number,
            dataset=self._dataset(one),
            arm=one.as_dict(),
            device=self.run.device,
            cache=state,
            model=self.run.model,
            machine=self._machine,
            gpu_allocated_bytes=allocated,
            gpu_reserved_bytes=reserved,
            loss=trainer.loss if trainer else None,
            limit=asdict(limit) if limit else None,
            shuffledness=self._shuffledness(one),
            **asdict(measured),
        )
        record.append(self.run.path, made)
        self.run.records.append(made)
        self.on_record(made)
        self._compare_loss(made)

    def _measure(self, one: Arm, number: int, consume: Consumer) -> Measured:
        from iobench.epoch import measure

        def step(batch: DeviceBatch) -> None:
            self.check_interrupt()
            consume(batch)

        return measure(one, self.run.manifest.opener(one.variant), self.feed, number, step)

    def _consumer(self, trainer: Trainer | None) -> Consumer:
        if trainer is None:
            return lambda batch: None

        def step(batch: DeviceBatch) -> None:
            trainer.step(batch)
            self.feed.synchronize()  # so that the next wait is for data, not for the device

        return step

    def _trainer(self) -> Trainer | None:
        from iobench.training import Trainer

        if self.run.model == "none":
            return None
        seed = self.run.arms[0].settings.seed
        return Trainer(self.run.model, self.run.manifest.schema, self.feed.device, seed)

    def _shuffledness(self, one: Arm) -> float | None:
        if one.settings.order != "block":
            return None
        samples, order = self.run.manifest.schema.samples, one.settings.row_order(self.run.manifest.schema)
        batches = order.batches(samples, 1)
        some = batches[:: max(1, len(batches) // 100)]
        return shuffledness(some, order.block_rows, samples)

    def _compare_loss(self, made: Record) -> None:
        """The same rows in the same order must train to the same loss, whatever the arm."""
        same_round = [r for r in self.run.records if r.round == made.round and r.loss is not None]
        if made.loss is not None and repr(same_round[0].loss) != repr(made.loss):
            raise WrongContent(
                f"{made.arm['label']}: final loss {made.loss!r} in round {made.round}, "
                f"{same_round[0].arm['label']} had {same_round[0].loss!r} on the same samples"
            )

    def _dataset(self, one: Arm) -> dict[str, Any]:
        manifest = self.run.manifest
        return {
            "name": manifest.name,
            "samples": manifest.schema.samples,
            "fields": [record.plain(asdict(f)) for f in manifest.schema.fields],
            "source": manifest.source,
            "content": f"{manifest.content or 0:016x}",
            "stored_bytes": manifest.artifacts[one.variant].stored_bytes,
        }


def _check(rounds: int, warmup: int, cache_mode: str, model: str) -> None:
    from iobench.training import MODELS

    if rounds < 1:
        raise InvalidSettings(f"rounds {rounds} is below 1")
    if warmup < 1:
        raise InvalidSettings(f"warmup {warmup} is below 1: the first untimed round proves the content")
    for what, value, known in (("cache", cache_mode, cache.MODES), ("model", model, MODELS)):
        if value not in known:
            raise InvalidSettings(f"{what} {value!r} is not one of {', '.join(known)}")


def _arms(
    manifest: Manifest, variants: Sequence[str], loaders: Sequence[str], settings: Settings
) -> list[Arm]:
    every = list(manifest.artifacts)
    named = every if "all" in variants else [formats.parse(v).variant for v in variants]
    for variant in named:
        if variant not in every:
            manifest.opener(variant)  # raises what to do about it
    loaders = LOADERS if "all" in loaders else loaders
    if not (named and loaders):
        raise InvalidSettings(f"no arm to measure in dataset {manifest.name}: name a format and a loader")
    return [
        arm(variant, loader, settings)
        for variant in dict.fromkeys(named)
        for loader in dict.fromkeys(loaders)
    ]


def _new_path(manifest: Manifest) -> Path:
    now = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S-%f")[:-3]
    return manifest.root.parent / "results" / f"{manifest.name}-{now}.jsonl"
