"""Concurrent commands: readers while prepare writes, two prepares or runs, suspended runs."""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import psutil

import iobench
from eval.faults.children import DONE, MAX_MESSAGE, failure_of, run_forked, run_or_raise, run_together
from eval.faults.cli_runs import run_cli
from eval.faults.reading import READERS
from eval.faults.registry import Outcome, Trials, kind
from eval.faults.scenarios import NAME, PrepareCall
from eval.faults.targets import FORMATS_PER_DATASET, arrays, variants
from iobench import Manifest, RunOptions
from iobench.dataset import index_cache
from iobench.results import record_file

ELEMENTS = 1 << 16
SUSPENDED_S, SILENT_S = 3.0, 2.0  # the suspension, and a --timeout that it exceeds
Attempt: TypeAlias = "Callable[[tuple[str, ...], Path, float], str | None]"


@kind("concurrency")
def concurrency(trials: Trials) -> Iterator[Outcome]:
    """Start each pair of commands a random time apart."""
    pairs: list[tuple[str, Attempt]] = [
        *((f"{way} while prepare replaces", functools.partial(_replaced, way)) for way in READERS),
        ("prepare from added data that are read", _added),
        ("two prepares of the same data", functools.partial(_prepares, 0, 0)),
        ("two prepares of different data", functools.partial(_prepares, 1, 2)),
        ("two runs into one file", _runs),
        ("two resumes of one run", _resumes),
        ("a suspended run", functools.partial(_suspended, ())),
        ("a suspended isolated run", functools.partial(_suspended, ("--isolate",))),
    ]
    everything = [one for one in variants() if "tokens" not in arrays(one, 1)]  # these hold nothing else
    for number in trials.numbers(full=63, quick=len(pairs)):
        what, attempt = pairs[number % len(pairs)]
        delay_s, some = trials.rng.uniform(0, 0.2), tuple(trials.rng.sample(everything, FORMATS_PER_DATASET))
        problem = attempt(some, trials.folder / str(number), delay_s)
        yield f"{number}: {what}, {delay_s:.3f} s apart, {' '.join(some)}", problem


def _replaced(way: str, some: tuple[str, ...], data_dir: Path, delay_s: float) -> str | None:
    old, new = PrepareCall(0, some), PrepareCall(1, some, overwrite=True)
    run_or_raise(functools.partial(old, data_dir, ELEMENTS))

    def read() -> None:
        until = time.monotonic() + 0.7
        while time.monotonic() < until:
            READERS[way](data_dir / NAME, some[0])

    read_result, prepare_result = run_together([read, _later(delay_s, data_dir, new)])
    if prepare_result.code != DONE:
        return f"prepare: exit {prepare_result.code}: {prepare_result.output}"
    return failure_of(read_result) or _damage_of(data_dir, some, new)


def _added(some: tuple[str, ...], data_dir: Path, delay_s: float) -> str | None:
    """Prepare from shards that were added, while they are read by their index: it stays."""
    run_or_raise(functools.partial(PrepareCall(0, ("webdataset",)), data_dir / "other", ELEMENTS))
    written = iobench.find_dataset(data_dir / "other", NAME).files_of("webdataset")
    own = next(file for file in written if file.suffix == ".tar").rename(data_dir / "own.tar")
    run_or_raise(lambda: iobench.add(own, name=NAME, data_dir=data_dir) and None)
    root = data_dir / NAME

    def indexes() -> dict[str, int]:
        return {file.name: file.stat().st_mtime_ns for file in (root / index_cache.FOLDER).iterdir()}

    def read() -> None:
        until = time.monotonic() + 0.7
        while time.monotonic() < until:
            READERS["verify"](root, "webdataset")

    def prepare() -> None:
        time.sleep(delay_s)
        iobench.prepare(iobench.AddedSource(Manifest.load(root)), ["npy"], data_dir=data_dir, name=NAME)

    before = indexes()
    results = run_together([read, prepare])
    if not before or (lost := before.items() - indexes().items()):
        return f"the index of the added data is gone: {sorted(lost) if before else 'none was built'}"
    return next((p for p in map(failure_of, results) if p), None) or _damage_of(
        data_dir, ("webdataset", "npy")
    )


def _prepares(one: int, other: int, some: tuple[str, ...], data_dir: Path, delay_s: float) -> str | None:
    calls = [PrepareCall(seed, some, overwrite=one != other) for seed in (one, other)]
    results = run_together([_later(0, data_dir, calls[0]), _later(delay_s, data_dir, calls[1])])
    if all(result.code != DONE for result in results):
        return f"both failed: {results}"
    problems = [problem for problem in map(failure_of, results) if problem]
    return problems[0] if problems else _damage_of(data_dir, some)


def _runs(some: tuple[str, ...], data_dir: Path, delay_s: float) -> str | None:
    two = PrepareCall(0, some[:2])
    run_or_raise(functools.partial(two, data_dir, ELEMENTS))
    out = data_dir / "out.jsonl"

    def run(after_s: float) -> None:
        time.sleep(after_s)
        options = RunOptions(loader=("native",), rounds="20", limits=False)
        result = iobench.run(iobench.find_dataset(data_dir, NAME), options, out=out)
        assert not result.failures, result.failures

    results = run_together([functools.partial(run, 0), functools.partial(run, delay_s)])
    finished = sum(result.code == DONE for result in results)
    records, problems = record_file.read(out)
    if not finished or len(records) != 40 * finished or problems:
        return f"{len(records)} records of {finished} finished runs of 40, problems {problems}"
    refused = [result for result in results if result.code != DONE and result.kind != "in-use"]
    return f"neither finished nor refused as in use: {refused}" if refused else None


def _resumes(some: tuple[str, ...], data_dir: Path, delay_s: float) -> str | None:
    two, out = PrepareCall(0, some[:2]), data_dir / "results" / "cut.jsonl"
    run_or_raise(functools.partial(two, data_dir, ELEMENTS))

    def run() -> None:
        options = RunOptions(loader=("native",), rounds="20", limits=False)
        iobench.run(iobench.find_dataset(data_dir, NAME), options, out=out)

    def resume(after_s: float) -> None:
        time.sleep(after_s)
        result = run_cli("run", "--resume", str(out), "--data-dir", str(data_dir))
        assert result.problem is None, result.problem
        assert result.code == 0 or "error[in-use]" in result.stderr, result.stderr[-MAX_MESSAGE:]

    run_or_raise(run)
    lines = out.read_text().splitlines(keepends=True)
    out.write_text("".join(lines[: len(lines) // 2]))
    results = run_together([functools.partial(resume, 0), functools.partial(resume, delay_s)])
    records, problems = record_file.read(out)
    rounds = {(one.key, one.round) for one in records}
    if len(rounds) != 40 or len(records) != 40 or problems:
        return f"{len(records)} records of {len(rounds)} rounds, of 40, problems {problems}"
    return next((problem for problem in map(failure_of, results) if problem), None)


def _suspended(isolate: tuple[str, ...], some: tuple[str, ...], data_dir: Path, delay_s: float) -> str | None:
    run_or_raise(functools.partial(PrepareCall(0, some[:1]), data_dir, ELEMENTS))
    out, target = data_dir / "out.jsonl", os.getpid()

    def run() -> None:
        words = ["--data-dir", str(data_dir), "--out", str(out), "--timeout", str(SILENT_S), *isolate]
        result = run_cli("run", "--loader", "native", "--rounds", "50", "--no-limits", *words)
        assert (result.code, result.problem) == (0, None), result.stderr[-MAX_MESSAGE:]

    def suspend() -> None:
        while not out.exists():  # until the first round has ended
            time.sleep(0.01)
        time.sleep(delay_s)
        others = [one for one in psutil.Process(target).children() if one.pid != os.getpid()]
        every = [process for one in others for process in (one, *one.children(recursive=True))]
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for process in every:
                process.send_signal(number)
            time.sleep(SUSPENDED_S)

    results = run_together([run, suspend])
    records, problems = record_file.read(out)
    still = [one for one in records if one.timing.epochs_s > SUSPENDED_S and not one.processor.suspended_s]
    if len(records) != 50 or problems or still:
        return f"{len(records)} records of 50, {len(still)} not said to be suspended, problems {problems}"
    return next((problem for problem in map(failure_of, results) if problem), None)


def _later(after_s: float, data_dir: Path, call: PrepareCall) -> Callable[[], None]:
    def work() -> None:
        time.sleep(after_s)
        call(data_dir, ELEMENTS)

    return work


def _damage_of(data_dir: Path, some: tuple[str, ...], expected: PrepareCall | None = None) -> str | None:
    """Describe damage that is left after both commands."""
    result = run_forked(functools.partial(_assert_complete, data_dir, some, expected))
    return None if result.code == DONE else f"dataset afterwards: {result.output}"


def _assert_complete(data_dir: Path, some: tuple[str, ...], expected: PrepareCall | None) -> None:
    manifest = Manifest.load(data_dir / NAME)
    wrong = {variant: problem for variant, problem in iobench.verify(manifest).items() if problem}
    assert not wrong, wrong
    assert set(manifest.artifacts) == set(some), sorted(manifest.artifacts)
    if expected is not None:
        assert manifest.content == expected.content(ELEMENTS), "not the data that were prepared last"
