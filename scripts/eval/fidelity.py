"""Compare `iobench run` with the plain script of about 15 lines that a user would write for the same data.

For each pair of format, loader and settings both run in processes of their own and take turns, so that both
see the same machine. The script opens the data as the library's documentation says, with the garbage
collector on; only StreamLoader's imports iobench. A sample is a dict, as in iobench. The ratio is iobench's
samples/s to the script's, by round: its median and interval. --show prints the scripts. On a busy machine
--processor-time compares the processor time of the thread that loops, which says nothing of loaders with
workers or threads.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeAlias

import iobench
from eval.harness import Row, Trials
from eval.plain_scripts import BATCH, Pair
from iobench import Manifest
from iobench.host import page_cache
from iobench.results import stats

OPTIONS = {
    "rounds": (8, "rounds of each pair of processes"),
    "starts": (2, "pairs of processes"),
    "seconds": (0.4, "at least, of a round of the script"),
    "show": (False, "print the scripts instead of measuring"),
    "processor_time": (False, "compare processor time instead of time"),
}
Prepared: TypeAlias = Callable[[str, str], Manifest]
READY, DONE = "ready", "done"
WITHIN = 0.05  # expected of every ratio
SMALL, LARGE = ((128,), 5e6), ((3, 112, 112), 1.2e7)  # shape and elements: 512 B and 147 KiB a sample
# iobench's turns: `begins` waits for the same lines
IOBENCH = """
import sys
from pathlib import Path
from iobench import Manifest, RunOptions, run
from iobench.bench.outcome import Observer

class TakesTurns(Observer):
    def begins(self, key, number):
        if number:
            print({ready!r}, flush=True)
            sys.stdin.readline()
        return super().begins(key, number)

    def recorded(self, key, record):
        print(record.samples_per_s, flush=True)

if {processor_time}:
    import functools, time
    from iobench.bench import epoch
    epoch.Meter = functools.partial(epoch.Meter, clock=time.thread_time_ns)

options = RunOptions(format=({format!r},), loader=({loader!r},), order=({order!r},), batch_size=({batch},),
                     cache=({cache!r},), rounds={rounds!r}, limits=False)
ended = run(Manifest.load(Path(ROOT)), options, out=Path(OUT), observer=TakesTurns())
print(*ended.failures.values() or [{done!r}], flush=True)
"""


PAIRS = [
    *(
        Pair(name, loader)
        for name in ("npy", "hdf5", "lmdb", "memmap")
        for loader in ("dataloader", "dataloader:num_workers=2", "native")
    ),
    *(Pair(name, "dataloader:fetch=batch") for name in ("npy", "hdf5", "memmap")),
    Pair("arrow", "native"),
    Pair("zarr", "native", "large"),
    Pair("parquet", "native", order="sequential"),
    Pair("webdataset", "webdataset"),
    Pair("npy", "stream"),
    Pair("npy", "dataloader:num_workers=2", "large"),
    Pair("hdf5", "native", "large"),
    Pair("npy", "native", "large", cache="cold"),
    Pair("lmdb", "dataloader", "large", cache="cold"),
]


def trials(options: argparse.Namespace) -> Trials:
    data = partial(prepared, options.folder)
    return {pair.name: partial(compared, pair, data, options) for pair in PAIRS}


def prepared(folder: Path, rows: str, variant: str) -> Manifest:
    """Return generated rows, written in one format."""
    shape, size = {"small": SMALL, "large": LARGE}[rows]
    source = iobench.Synthetic(int(size), shape)
    return iobench.prepare(source, [variant], data_dir=folder, name=rows)[0]


def compared(pair: Pair, data: Prepared, options: argparse.Namespace) -> Iterator[Row]:
    """Yield the ratio of iobench's samples/s to the script's."""
    manifest = data(pair.rows, pair.format)
    if options.show:
        print(f"# {pair.name}\n{pair.script(manifest, clock_of(options))}")
        return
    measured = list((cold if pair.cache == "cold" else warm)(pair, manifest, options))
    theirs, ours = (dict(enumerate(rates)) for rates in zip(*measured, strict=True))
    ratio = stats.compare_paired(ours, theirs).ratio
    yield {
        "iobench, k samples/s": statistics.median(ours.values()) / 1000,
        "script": statistics.median(theirs.values()) / 1000,
        **{"ratio": ratio.median, "low": ratio.low, "high": ratio.high, "rounds": len(ours)},
    }


def warm(pair: Pair, manifest: Manifest, options: argparse.Namespace) -> Iterator[tuple[float, float]]:
    """Yield the samples/s of the script and of iobench, which take turns in processes that live on."""
    samples = manifest.schema.samples
    for _ in range(options.starts):
        with user(pair, manifest, options) as rate, tool(pair, manifest, options, options.rounds) as turn:
            rate(1)
            epochs = max(1, round(options.seconds * rate(1) / samples))
            for _ in range(options.rounds):
                yield rate(epochs), turn()


def cold(pair: Pair, manifest: Manifest, options: argparse.Namespace) -> Iterator[tuple[float, float]]:
    """Yield the same of single epochs in new processes: what a process maps cannot be evicted."""
    for _ in range(options.rounds):
        page_cache.establish("cold", manifest.files_of(pair.format), manifest.schema.logical_bytes)
        with user(pair, manifest, options) as rate:
            theirs = rate(1)
        with tool(pair, manifest, options, 1) as turn:
            yield theirs, turn()


@contextmanager
def user(pair: Pair, manifest: Manifest, options: argparse.Namespace) -> Iterator[Callable[[int], float]]:
    """Start the user's script, and yield a function that returns the samples/s of so many epochs."""
    script = pair.script(manifest, clock_of(options))
    with python(script, options.folder / "script.py") as process:
        yield lambda epochs: float(asked(process, str(epochs)))


@contextmanager
def tool(
    pair: Pair, manifest: Manifest, options: argparse.Namespace, rounds: int
) -> Iterator[Callable[[], float]]:
    """Start `iobench run`, wait until it has verified the case, and yield a function that takes a turn."""
    records = options.folder / "records.jsonl"
    records.unlink(missing_ok=True)
    values = {**vars(options), **vars(pair), "batch": BATCH, "rounds": str(rounds)}
    values |= {"ready": READY, "done": DONE}
    constants = f"ROOT, OUT = {str(manifest.root)!r}, {str(records)!r}\n"
    with python(constants + IOBENCH.format(**values), options.folder / "run.py") as process:
        check(asked(process), READY)

        def turn() -> float:
            rate = float(asked(process, ""))
            check(asked(process), READY, DONE)
            return rate

        yield turn


def check(answer: str, *expected: str) -> None:
    """Raise what the run failed with, if it is not one of the expected lines."""
    if answer not in expected:
        raise RuntimeError(answer)


def clock_of(options: argparse.Namespace) -> str:
    """Return the function of `time` that the script measures by."""
    return "thread_time" if options.processor_time else "perf_counter"


@contextmanager
def python(text: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a script in a process of its own."""
    path.write_text(text)
    words = [sys.executable, "-W", "ignore", str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def asked(process: subprocess.Popen[str], line: str | None = None) -> str:
    """Send a line, if there is one, and return the line of the answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    if line is not None:
        process.stdin.write(line + "\n")
        process.stdin.flush()
    answer = process.stdout.readline().strip()
    if not answer:
        raise ChildProcessError(f"{process.args} ended: see the error above")
    return answer


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Yield how many ratios are as expected, and the worst."""
    near = [row for row in rows if abs(row["ratio"] - 1) <= WITHIN]
    worst = max(rows, key=lambda row: abs(row["ratio"] - 1))
    farthest = f"{worst['trial']}, {worst['ratio']:.2f}"
    yield f"{len(near)} of {len(rows)} within {WITHIN:.0%}; the farthest: {farthest}"
