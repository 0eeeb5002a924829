"""Regret of `iobench recommend`: its choice against the exhaustive grid, situation by situation.

For each situation (size, sample size, order, cache state, training step) it makes a recommendation and then
measures the grid of candidates in interleaved rounds: all in a few rounds, those roughly near the fastest in
more, and those still near it and the recommended one in all. Regret is how much longer the recommended case
takes than the fastest of the grid, with the training step if there is one, by the medians of the grid. The
grid's time is what all candidates would have taken in all rounds. --only '*ms' selects the situations with a
training step.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import iobench
from eval import harness
from eval.harness import Row, Trials
from iobench import Manifest, Requirements, RunOptions
from iobench.advise.candidates import candidate_set, loader_word
from iobench.bench.case import Case
from iobench.bench.outcome import Observer
from iobench.bench.policies import FACTORS
from iobench.bench.run import run
from iobench.results import stats
from iobench.results.record import Record

OPTIONS = {
    "rounds": (31, "rounds of the grid"),
    "max_time": (30.0, "seconds for each recommendation"),
    "scale": (1.0, "of the datasets' size"),
}
FEW = 3  # rounds of every candidate; after them, FACTORS says which stay in the grid
MORE, NEARER = 9, 1.2  # rounds of these, and the factor to the best median within which they stay
SMALL, MEDIUM, LARGE = (128,), (3, 32, 32), (3, 112, 112)  # float32: 512 B, 12 and 147 KiB a sample
SITUATIONS = [
    (size, shape, order, cache, step_ms)
    for size, shape, steps_ms in ((2e6, SMALL, (0.2, 1)), (5e6, MEDIUM, (2, 10)), (2e7, LARGE, (10, 40)))
    for order, cache, step_ms in (
        *((order, cache, 0) for order in ("random", "sequential") for cache in ("warm", "cold")),
        ("random", "warm", steps_ms[0]),
        ("random", "cold", steps_ms[1]),
    )
]


def trials(options: argparse.Namespace) -> Trials:
    return {name_of(*situation): partial(regret, options, *situation) for situation in SITUATIONS}


def name_of(size: float, shape: tuple[int, ...], order: str, cache: str, step_ms: float) -> str:
    """Return the name of a situation."""
    step = f"-{step_ms:g}ms" if step_ms else ""
    return f"{size:.0e}-{'x'.join(map(str, shape))}-{order}-{cache}{step}"


def regret(
    options: argparse.Namespace, size: float, shape: tuple[int, ...], order: str, cache: str, step_ms: float
) -> Iterator[Row]:
    """Recommend, measure the grid, and yield the regret and the share of the grid's time."""
    source = iobench.Synthetic(int(size * options.scale), shape)
    manifest, _ = iobench.prepare(source, data_dir=options.folder)
    full_bytes = manifest.schema.logical_bytes * (1 if cache == "warm" else 10**6)
    requirements = Requirements(
        order=order, max_time_s=options.max_time, full_bytes=full_bytes, step_ms=step_ms
    )
    result, took_s = harness.timed(lambda: iobench.recommend(manifest, requirements))
    cases = candidate_set(manifest, requirements, "cpu", cache).cases
    # all finalists are isolated if one of them has to be
    use = next(case for case in cases if result.use.key in (case.key, replace(case, isolated=True).key))
    used = replace(use, step_s=step_ms / 1000).key
    cases = [replace(case, step_s=step_ms / 1000) for case in cases]
    names = {case.key: f"{case.variant} · {loader_word(case)}, {case.order}" for case in cases}
    rates, grid_s = grid(manifest, cases, options, used)
    yield {
        "outcome": result.outcome,
        "recommended": result.use.text,
        "of the grid's time": took_s / grid_s,
        **judged(rates, used, names),
    }


def judged(rates: Mapping[str, Mapping[int, float]], used: str, names: Mapping[str, str]) -> Row:
    """Return both regrets of the recommended case, the fastest case, and whether it is faster."""
    medians = {key: statistics.median(by_round.values()) for key, by_round in rates.items()}
    best = max(medians, key=medians.__getitem__)
    return {
        "regret": medians[best] / medians[used] - 1,
        "held out": held_out(rates, used),
        "fastest": names[best],
        "significant": best != used and stats.compare_paired(rates[best], rates[used]).outcome == "faster",
    }


def held_out(rates: Mapping[str, Mapping[int, float]], used: str) -> float:
    """Return the mean regret against the fastest case of every second round, by the others, and vice versa.

    In the rounds by which the fastest of several equal cases was found, it is fastest by luck as well.
    """
    parts = {key: [[by[n] for n in sorted(by)][first::2] for first in (0, 1)] for key, by in rates.items()}
    halves = [
        {key: statistics.median(both[half]) for key, both in parts.items() if both[half]} for half in (0, 1)
    ]
    regrets = []
    for seen, judged in (halves, halves[::-1]):
        best = max(seen.keys() & judged.keys(), key=seen.__getitem__)
        regrets.append(judged[best] / judged[used] - 1)
    return statistics.mean(regrets)


def grid(
    manifest: Manifest, cases: Sequence[Case], options: argparse.Namespace, chosen: str
) -> tuple[dict[str, dict[int, float]], float]:
    """Return samples per second near the fastest by case and round, and the seconds of the full grid."""
    measured = partial(records_of, manifest, options.folder / "grid.jsonl")
    few, few_s = harness.timed(lambda: measured(cases, FEW))
    round_s = sum(one.timing.open_s + one.timing.epochs_s for one in few) / FEW
    grid_s = few_s + round_s * (options.rounds - FEW)  # processes are started once
    best = {key: max(by_round.values()) for key, by_round in rates_of(few).items()}
    remaining = near(best, FACTORS[FEW]) | {chosen}
    rounds = min(MORE, options.rounds)
    more = rates_of(measured([case for case in cases if case.key in remaining], rounds))
    if rounds == options.rounds:
        return more, grid_s
    remaining = near({key: statistics.median(by_round.values()) for key, by_round in more.items()}, NEARER)
    last = [case for case in cases if case.key in remaining | {chosen}]
    return rates_of(measured(last, options.rounds)), grid_s


def near(rates: dict[str, float], times: float) -> set[str]:
    """Return the keys whose rate is within a factor of the best."""
    return {key for key, rate in rates.items() if rate * times > max(rates.values())}


def records_of(manifest: Manifest, out: Path, cases: Sequence[Case], rounds: int) -> list[Record]:
    """Run the cases and return the valid records."""
    options = RunOptions(cache=(cases[0].cache,), rounds=str(rounds), limits=False)
    return run(manifest, options, out=out, observer=Observer(), cases=cases).valid_records


def rates_of(records: Sequence[Record]) -> dict[str, dict[int, float]]:
    """Return samples per second of each case, by round."""
    rates: dict[str, dict[int, float]] = {}
    for record in records:
        rates.setdefault(record.settings_key, {})[record.round] = record.samples_per_s
    return rates


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the medians and the maxima of both regrets, and of the time."""
    for text, name in (("regret", "regret"), ("regret by held-out rounds", "held out")):
        values = [row[name] for row in rows]
        yield f"{text}: median {statistics.median(values):.1%}, worst {max(values):.1%}"
    times = [row["of the grid's time"] for row in rows]
    yield f"time: median {statistics.median(times):.0%} of the grid's"
