"""Several at once: runs and StreamLoaders while prepare replaces, two prepares, two runs into one file."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import iobench
from _faults.attacked import TOGETHER, done, variants
from _faults.children import DONE, complaint, forked, together
from _faults.prepares import NAME, Call
from _faults.reading import WAYS
from _faults.registry import Outcome, Trials, kind
from iobench import Manifest, RunOptions
from iobench.results import record

ELEMENTS = 1 << 16
Attempt: TypeAlias = "Callable[[tuple[str, ...], Path, float], str | None]"


@kind("concurrency")
def concurrency(trials: Trials) -> Iterator[Outcome]:
    """Each pair of commands, begun a moment apart that is left to chance."""
    pairs: list[tuple[str, Attempt]] = [
        *((f"{way} while prepare replaces", functools.partial(_replaced, way)) for way in WAYS),
        ("two prepares of the same", functools.partial(_prepares, 0, 0)),
        ("two prepares of different data", functools.partial(_prepares, 1, 2)),
        ("two runs into one file", _runs),
    ]
    everything = variants()
    for number in trials.some(full=63, quick=len(pairs)):
        what, attempt = pairs[number % len(pairs)]
        apart_s, some = trials.chance.uniform(0, 0.2), tuple(trials.chance.sample(everything, TOGETHER))
        problem = attempt(some, trials.folder / str(number), apart_s)
        yield f"{number}: {what}, {apart_s:.3f} s apart, {' '.join(some)}", problem


def _replaced(way: str, some: tuple[str, ...], data_dir: Path, apart_s: float) -> str | None:
    old, new = Call(0, some), Call(1, some, overwrite=True)
    done(functools.partial(old, data_dir, ELEMENTS))

    def read() -> None:
        until = time.monotonic() + 0.7
        while time.monotonic() < until:
            WAYS[way](data_dir / NAME, some[0])

    read_ended, prepare_ended = together([read, _later(apart_s, data_dir, new)])
    if prepare_ended.code != DONE:
        return f"prepare ended with {prepare_ended.code}: {prepare_ended.said}"
    return complaint(read_ended) or _wrong(data_dir, some, new)


def _prepares(one: int, other: int, some: tuple[str, ...], data_dir: Path, apart_s: float) -> str | None:
    calls = [Call(seed, some, overwrite=one != other) for seed in (one, other)]
    ended = together([_later(0, data_dir, calls[0]), _later(apart_s, data_dir, calls[1])])
    if all(end.code != DONE for end in ended):
        return f"neither prepared: {ended}"
    problems = [problem for problem in map(complaint, ended) if problem]
    return problems[0] if problems else _wrong(data_dir, some)


def _runs(some: tuple[str, ...], data_dir: Path, apart_s: float) -> str | None:
    two = Call(0, some[:2])
    done(functools.partial(two, data_dir, ELEMENTS))
    out = data_dir / "out.jsonl"

    def run(after_s: float) -> None:
        time.sleep(after_s)
        options = RunOptions(loader=("native",), rounds="20", limits=False)
        found = iobench.run(iobench.find_dataset(data_dir, NAME), options, out=out)
        assert not found.failures, found.failures

    ended = together([functools.partial(run, 0), functools.partial(run, apart_s)])
    records, left_out = record.read(out)
    if len(records) != 80 or left_out:
        return f"{len(records)} records of 80, and {left_out}"
    return next(filter(None, map(complaint, ended)), None)


def _later(after_s: float, data_dir: Path, call: Call) -> Callable[[], None]:
    def work() -> None:
        time.sleep(after_s)
        call(data_dir, ELEMENTS)

    return work


def _wrong(data_dir: Path, some: tuple[str, ...], expected: Call | None = None) -> str | None:
    """What is wrong with what lies there afterwards."""
    ended = forked(functools.partial(_assert_whole, data_dir, some, expected))
    return None if ended.code == DONE else f"afterwards: {ended.said}"


def _assert_whole(data_dir: Path, some: tuple[str, ...], expected: Call | None) -> None:
    manifest = Manifest.load(data_dir / NAME)
    wrong = {variant: problem for variant, problem in iobench.verify(manifest).items() if problem}
    assert not wrong, wrong
    assert set(manifest.artifacts) == set(some), sorted(manifest.artifacts)
    if expected is not None:
        assert manifest.content == expected.content(ELEMENTS), "the data are not those prepared last"
