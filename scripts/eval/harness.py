"""Parts that all experiments share: options, trials, interleaved rounds, tables in Markdown, JSON lines.

An experiment is a module with a docstring and

- OPTIONS: the default and the help of each option, by name;
- trials(options): functions by name; each yields what it measures, as dictionaries;
- evaluated(measured), if the table shows something else than what was measured;
- summary(rows), if the table needs a last word: its lines.

A row with the key `failed` makes the exit code 1.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatch
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from iobench import Manifest
from iobench.bench.epoch import RoundSpec, measure
from iobench.bench.policies import interleaved
from iobench.host import page_cache
from iobench.loading import loaders
from iobench.loading.host_to_device import HostToDevice
from iobench.loading.loaders import Job
from iobench.loading.order import Order
from iobench.results.parts import Measured

Row = dict[str, Any]
Rate = Callable[[int], float]  # the number of a round → units per second
Trials = Mapping[str, Callable[[], Iterable[Row]]]

BURN = "import os, sys\nwhile os.path.exists(sys.argv[1]): sum(range(1_000_000))"  # until this process ends
ROUNDS = "rounds of each contender"
COMMON: dict[str, tuple[Any, str]] = {
    "data_dir": (Path("data"), "the data folder"),
    "only": ([], "only trials of these names; * matches any text"),
    "part": ("1/1", "only this part of the trials, like 2/3"),
    "out": (Path(), "append what is measured to this file; trials that it has are not repeated"),
    "evaluate": ([], "evaluate such files instead of measuring"),
}


def run(name: str, experiment: Any, words: Sequence[str]) -> int:
    """Measure or evaluate, print the table and the summary, and return the exit code."""
    options, rows, columns = parse(name, experiment, words), list[Row](), list[str]()
    evaluated = getattr(experiment, "evaluated", lambda measured: measured)
    with ExitStack() as options.ends:
        options.folder = Path(options.ends.enter_context(tempfile.TemporaryDirectory(prefix="iobench-")))
        stored = (row for file in options.evaluate for row in lines_of(Path(file)))
        for measured in stored if options.evaluate else measured_trials(experiment, options):
            rows.append(measured if "failed" in measured else evaluated(measured))
            columns = show(rows[-1], columns)
    sound = [row for row in rows if "failed" not in row]
    for line in getattr(experiment, "summary", lambda rows: ())(sound) if sound else ():
        print(f"\n{line}")
    return int(len(sound) < len(rows))


def parse(name: str, experiment: Any, words: Sequence[str]) -> argparse.Namespace:
    """Parse the options of an experiment and those of all."""
    parser = argparse.ArgumentParser(
        prog=f"scripts/eval/run {name}",
        description=experiment.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for option, (default, text) in {**experiment.OPTIONS, **COMMON}.items():
        kind: dict[str, Any] = {"type": type(default)}
        if isinstance(default, bool):
            kind = {"action": "store_true"}
        elif isinstance(default, list):
            kind = {"nargs": "*", "metavar": "WORD"}
        shown = f" (default: {default})" if default not in (False, [], Path(), "") else ""
        parser.add_argument(f"--{option.replace('_', '-')}", default=default, help=text + shown, **kind)
    return parser.parse_args(words)


def measured_trials(experiment: Any, options: argparse.Namespace) -> Iterator[Row]:
    """Yield what the chosen trials measure, and what --out has of them already."""
    trials: Trials = experiment.trials(options)
    number, of = map(int, options.part.split("/"))
    chosen = [name for name in trials if not options.only or any(fnmatch(name, one) for one in options.only)]
    known: dict[str, list[Row]] = {}
    for row in lines_of(options.out):
        known.setdefault(row["trial"], []).append(row)
    for name in chosen[number - 1 :: of]:
        rows = known.get(name) or []
        yield from rows
        for row in () if rows else one_trial(name, trials[name]):
            yield row
            rows.append(row)
        if name not in known and options.out != Path() and not any("failed" in row for row in rows):
            with options.out.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)


def one_trial(name: str, trial: Callable[[], Iterable[Row]]) -> Iterator[Row]:
    """Yield the rows of a trial; an exception is a row, too."""
    try:
        for row in trial():
            yield {"trial": name, **row}
    except Exception as error:  # noqa: BLE001 - the other trials must run
        yield {"trial": name, "failed": f"{type(error).__name__}: {error}"}


def in_process(work: Callable[..., Row], *arguments: Any) -> Iterator[Row]:
    """Yield what a function returns in a new process, as a user's would be."""
    usual = (multiprocessing.get_start_method(),)  # else that of the new process would be "spawn"
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, _start_workers_by, usual) as pool:
        yield pool.submit(work, *arguments).result()


def _start_workers_by(method: str) -> None:
    multiprocessing.set_start_method(method, force=True)


def lines_of(path: Path) -> list[Row]:
    """Return the rows of a file, none if it does not exist."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def show(row: Row, columns: list[str]) -> list[str]:
    """Print a row of a Markdown table, below new heads if its columns are new; return its columns."""
    cells = {name: value for name, value in row.items() if not isinstance(value, (dict, list))}
    if list(cells) != columns:
        print(f"\n| {' | '.join(cells)} |\n{'|---' * len(cells)}|")
    print(f"| {' | '.join(map(cell, cells.values()))} |", flush=True)
    return list(cells)


def cell(value: Any) -> str:
    """Return a value as text: large numbers whole, others with three digits."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return "" if value is None else str(value).replace("\n", " ")


def medians(contenders: Mapping[str, Rate], rounds: int) -> dict[str, float]:
    """Return the median rate of each contender over interleaved rounds, after one to warm up."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for number, name in interleaved(list(contenders), lambda done: done <= rounds):
        if sys.stderr.isatty():
            print(f"round {number} of {rounds + 1}: {name:40}", end="\r", file=sys.stderr, flush=True)
        rates[name].append(contenders[name](number))
    return {name: statistics.median(values[1:]) for name, values in rates.items()}


def against(rates: Mapping[str, float], one: str, other: str, expected: float, unit: float = 1e6) -> Row:
    """Return a row: the rate of one contender, that of another, their ratio and the expected ratio."""
    ratio = rates[one] / rates[other]
    figures = {"rate": rates[one] / unit, "against": other, "reference": rates[other] / unit}
    return {"contender": one, **figures, "ratio": ratio, "expected": expected}


def epochs(
    manifest: Manifest, variant: str, loader: str, order: Order, cache: str = "warm"
) -> Callable[[int], Measured]:
    """Return a function that measures one epoch of a case, given the round number."""
    epoch = epochs_of(loaders.parse(loader).on("cpu"), Job(manifest.opener(variant), order))

    def prepared(number: int) -> Measured:
        page_cache.establish(cache, manifest.files_of(variant), manifest.schema.logical_bytes)
        return epoch(number)

    return prepared


def epochs_of(loader: Any, job: Job, seconds: float = 0.0) -> Callable[[int], Measured]:
    """Return a function that measures a round of a job, by default one epoch, given the round number."""
    transfer = HostToDevice(torch.device("cpu"), False)
    return lambda number: measure(loader, job, transfer, RoundSpec(number, lambda batch: None, seconds))


def epoch_rate(*case: Any) -> Rate:
    """Return a function that measures the logical bytes per second of one epoch of a case; see `epochs`."""
    epoch = epochs(*case)

    def rate(number: int) -> float:
        timing = epoch(number).timing
        return timing.logical_bytes / timing.epochs_s

    return rate


def fio(file: Path, kind: str, size: int | str, depth: int) -> Rate:
    """Return a function that runs fio past the page cache (`read` or `randread` in blocks of `size`)."""
    program = shutil.which("fio")
    if program is None:
        raise FileNotFoundError("fio is not installed; apt install fio, or select other trials by --only")
    command = f"{program} --name=x --filename={file} --readonly --direct=1 --rw={kind} --bs={size}"
    command += f" --iodepth={depth} --ioengine=libaio --time_based --runtime=2 --output-format=json"

    def rate(number: int) -> float:
        done = subprocess.run(command.split(), capture_output=True, text=True, check=True)
        return float(json.loads(done.stdout)["jobs"][0]["read"]["bw_bytes"])

    return rate


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of a function and the seconds that it took."""
    began = perf_counter()
    return work(), perf_counter() - began


@contextmanager
def background_load(count: int) -> Iterator[None]:
    """Run processes that each keep a core busy, detached: children would count as the loader's own."""
    shell = '"$0" -c "$1" "$2" > /dev/null & echo $!'
    command = ["sh", "-c", shell, sys.executable, BURN, f"/proc/{os.getpid()}"]
    burning = [int(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout) for _ in range(count)]
    try:
        yield
    finally:
        for process in burning:
            os.kill(process, signal.SIGKILL)
