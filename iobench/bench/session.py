"""Cases × interleaved rounds: manifest → evict or warm, and prove → loader → transfer → meter → record."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.bench import trace
from iobench.bench.case import Case
from iobench.bench.case_limits import CaseLimits
from iobench.bench.epoch import Consumer, heap_restored, measure
from iobench.bench.observer import Observer
from iobench.bench.plan import PRECISION, Rounds, worst
from iobench.bench.training import Trainer
from iobench.dataset.checksum import Checksum
from iobench.dataset.verify import verify_artifact
from iobench.errors import BenchError, ColdCacheUnavailable, RecordError, WrongContent
from iobench.formats import FormatError
from iobench.host import cache, interrupts, machine
from iobench.host.limits import Below
from iobench.host.monitor import Monitor
from iobench.loading.order import shuffledness
from iobench.loading.stages import Profile
from iobench.loading.transfer import DeviceBatch, HostToDevice
from iobench.results import record, stats
from iobench.results.record import Measured, Record

if TYPE_CHECKING:
    from iobench.bench.run import Run


class Session:
    """A run and what it takes to measure it: one device, one machine, one set of limits."""

    def __init__(
        self, run: Run, transfer: HostToDevice, sudo: bool, limits: bool, profile: bool, observer: Observer
    ) -> None:
        self._run, self._transfer, self._sudo, self._observer = run, transfer, sudo, observer
        root = run.manifest.root
        self._case_limits = CaseLimits(run.manifest, transfer.device, run.cache) if limits else None
        self._monitor = Monitor(root, run.device) if profile else None
        self._machine = machine.describe(root, run.device)
        self._id = uuid.uuid4().hex[:12]
        self._below: Below | None = None
        self._check_interrupt: interrupts.Check = lambda: None
        self._trainer()  # a model that does not fit the data fails before anything is measured

    def run(self, rounds: Rounds, warmup: int, trace: bool) -> None:
        """Prove every case, then time it; Ctrl-C ends the run with what it has."""
        try:
            with heap_restored(), interrupts.deferred() as self._check_interrupt, self._watching():
                self._prove_all(warmup)
                if trace:
                    self._trace_all()
                self._time_all(rounds)
        except KeyboardInterrupt:
            self._run.interrupted = True

    def _prove_all(self, warmup: int) -> None:
        """The untimed rounds; the first of each case hashes every sample on the device."""
        for one in self._run.cases:
            self._observer.status(f"checking {one.label}")
            with self._collecting_failures(one):
                self._prove(one)
                for _ in range(warmup - 1):
                    self._measure(one, 0, self._consumer(self._trainer()))

    def _trace_all(self) -> None:
        for one in self._live():
            path = trace.path_beside(self._run.path, one.label)
            self._observer.status(f"tracing {one.label}")
            with self._collecting_failures(one):
                opener = self._run.manifest.opener(one.variant)
                trace.write(path, one, opener, self._transfer, self._consumer(self._trainer()))
                self._run.traces.append(path)

    def _time_all(self, rounds: Rounds) -> None:
        """The timed rounds, interleaved, each cycle in an order of its own."""
        if self._case_limits and self._run.cache == "cold":
            self._below = self._case_limits.below()
            self._run.remarks += [self._below.sentence] if self._below else []
        shuffle = np.random.Generator(np.random.PCG64(self._run.cases[0].settings.seed))
        began, done = time.monotonic(), 0
        while self._live() and rounds.go_on(done, time.monotonic() - began, self._rates()):
            done += 1
            for index in shuffle.permutation(len(self._run.cases)):
                one = self._run.cases[index]
                if one in self._live():
                    with self._collecting_failures(one):
                        self._time(one, done)
        if rounds.count is None:
            self._say_how_sure(done, time.monotonic() - began)

    def _say_how_sure(self, rounds: int, elapsed_s: float) -> None:
        label, reach = worst(self._rates())
        said = f"{rounds} rounds in {elapsed_s:.0f} s"
        if rounds < stats.FEWEST:
            said += ", too few for an interval; give more --max-time"
        elif reach > PRECISION:
            said += f", until --max-time: the interval of {label} still reaches {reach:.1%} from its median"
            said += "; give more --max-time"
        else:
            said += f": every interval is within {PRECISION:.0%} of its median"
        self._run.remarks.append(said)

    def _live(self) -> list[Case]:
        return [one for one in self._run.cases if one.label not in self._run.failures]

    def _rates(self) -> dict[str, list[float]]:
        rates: dict[str, list[float]] = {}
        for made in self._run.records:
            rates.setdefault(made.case["label"], []).append(made.samples_per_s)
        return rates

    def _watching(self) -> AbstractContextManager[None]:
        return self._monitor.watching() if self._monitor else nullcontext()

    @contextmanager
    def _collecting_failures(self, one: Case) -> Iterator[None]:
        """Note what is wrong with one case and go on; what would stop every case ends the run."""
        try:
            yield
        except (ColdCacheUnavailable, RecordError):
            raise
        except (BenchError, FormatError) as error:
            self._run.failures[one.label] = str(error)

    def _prove(self, one: Case) -> None:
        if not self._run.manifest.unchanged(one.variant):  # a library may abort on damaged pages
            verify_artifact(self._run.manifest, one.variant)
        else:
            opener = self._run.manifest.opener(one.variant)
            opener.format.check(opener.path, opener.schema)
        check, expected = Checksum(self._run.manifest.schema), self._run.manifest.content or 0
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

    def _time(self, one: Case, number: int) -> None:
        manifest = self._run.manifest
        manifest.opener(one.variant)  # complains about files that have gone or changed in size
        files = manifest.files_of(one.variant)
        limit = self._case_limits.of(one) if self._case_limits else None
        state = cache.establish(self._run.cache, files, manifest.schema.logical_bytes, self._sudo)
        trainer = self._trainer()
        self._transfer.reset_peak()
        measured = self._measure(one, number, self._consumer(trainer))
        allocated, reserved = self._transfer.peak_bytes() or (None, None)
        if limit and self._case_limits and measured.logical_bytes > limit.bytes_per_s * measured.epoch_s:
            limit = self._case_limits.again(one)  # what was beaten is no limit
        made = Record(
            run=self._id,
            time=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            round=number,
            dataset=self._dataset(one),
            case=one.as_dict(),
            device=self._run.device,
            cache={**state, "below_s": [*vars(self._below).values()] if self._below else None},
            model=self._run.model,
            machine=self._machine,
            gpu_allocated_bytes=allocated,
            gpu_reserved_bytes=reserved,
            loss=trainer.loss if trainer else None,
            limit=asdict(limit) if limit else None,
            shuffledness=self._shuffledness(one),
            system=self._monitor.take() if self._monitor else None,
            **asdict(measured),
        )
        record.append(self._run.path, made)
        self._run.records.append(made)
        self._observer.recorded(made)
        self._compare_loss(made)

    def _measure(self, one: Case, number: int, consume: Consumer) -> Measured:
        stages = Profile() if self._monitor and number else None
        work = stages.timed("compute", consume) if stages and self._run.model != "none" else consume
        progress = self._observer.begins(one.label, number)

        def step(batch: DeviceBatch) -> None:
            self._check_interrupt()
            work(batch)
            progress.batches += 1

        return measure(one, self._run.manifest.opener(one.variant), self._transfer, number, step, stages)

    def _consumer(self, trainer: Trainer | None) -> Consumer:
        if trainer is None:
            return lambda batch: None

        def step(batch: DeviceBatch) -> None:
            trainer.step(batch)
            self._transfer.synchronize()  # so that the next wait is for data, not for the device

        return step

    def _trainer(self) -> Trainer | None:
        if self._run.model == "none":
            return None
        seed = self._run.cases[0].settings.seed
        return Trainer(self._run.model, self._run.manifest.schema, self._transfer.device, seed)

    def _shuffledness(self, one: Case) -> float | None:
        if one.settings.order != "block":
            return None
        samples, order = self._run.manifest.schema.samples, one.settings.row_order(self._run.manifest.schema)
        batches = order.batches(samples, 1)
        some = batches[:: max(1, len(batches) // 100)]
        return shuffledness(some, order.block_rows, samples)

    def _compare_loss(self, made: Record) -> None:
        """The same rows in the same order must train to the same loss, whatever the case."""
        same_round = [r for r in self._run.records if r.round == made.round and r.loss is not None]
        if made.loss is not None and repr(same_round[0].loss) != repr(made.loss):
            raise WrongContent(
                f"{made.case['label']}: final loss {made.loss!r} in round {made.round}, "
                f"{same_round[0].case['label']} had {same_round[0].loss!r} on the same samples"
            )

    def _dataset(self, one: Case) -> dict[str, Any]:
        manifest = self._run.manifest
        return {
            "name": manifest.name,
            "samples": manifest.schema.samples,
            "fields": [record.plain(asdict(f)) for f in manifest.schema.fields],
            "source": manifest.source,
            "content": f"{manifest.content or 0:016x}",
            "stored_bytes": manifest.artifacts[one.variant].stored_bytes,
            "write_s": manifest.artifacts[one.variant].write_s,
        }
