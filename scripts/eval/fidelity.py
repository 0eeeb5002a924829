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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

import iobench
from eval.harness import Row, Trials
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
BATCH = 256
READY, DONE = "ready", "done"
FIELD = '(batch["x"] for batch in loader)'
WITHIN = 0.05  # expected of every ratio
SMALL, LARGE = ((128,), 5e6), ((3, 112, 112), 1.2e7)  # shape and elements: 512 B and 147 KiB a sample
HEAD = "import sys\nfrom time import {clock}\n\nimport numpy as np\nimport torch\n"
# The user's loop; a line of stdin starts each turn, and names its number of epochs.
LOOP = """
for turn in sys.stdin:
    began, count = {clock}(), 0
    for epoch in range(int(turn)):
        for batch in {batches}:
            count += len(batch)
    print(count / ({clock}() - began), flush=True)
"""
DATASETS = {
    "npy": """
class Samples(torch.utils.data.Dataset):
    def __init__(self):
        self.x = np.load(PATH + "/x.npy", mmap_mode="r")

    def __len__(self):
        return len(self.x)

    def __getitem__(self, row):
        return {{"x": torch.from_numpy(self.x[row])}}

    def __getitems__(self, rows):
        return {{"x": torch.from_numpy(self.x[rows])}}
""",
    "hdf5": """
import h5py

class Samples(torch.utils.data.Dataset):
    x = None

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        if self.x is None:  # in each worker
            self.x = h5py.File(PATH + "/data.h5", "r", rdcc_nbytes=0)["x"]
        return {{"x": torch.from_numpy(self.x[row])}}

    def __getitems__(self, rows):
        if self.x is None:
            self.x = h5py.File(PATH + "/data.h5", "r", rdcc_nbytes=0)["x"]
        return {{"x": torch.from_numpy(np.stack([self.x[row] for row in sorted(rows)]))}}
""",
    "lmdb": """
import lmdb

class Samples(torch.utils.data.Dataset):
    env = None

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        if self.env is None:  # in each worker
            self.env = lmdb.open(PATH, readonly=True, lock=False)
        with self.env.begin() as txn:
            value = txn.get(row.to_bytes(8, "big"))
        return {{"x": torch.from_numpy(np.frombuffer(value, np.float32, offset=8).reshape(SHAPE))}}
""",
    "memmap": """
from tensordict import TensorDict

class Samples(torch.utils.data.Dataset):
    def __init__(self):
        self.samples = TensorDict.load_memmap(PATH)
        self.x = self.samples["x"]

    def __len__(self):
        return len(self.x)

    def __getitem__(self, row):
        return {{"x": self.x[row]}}

    def __getitems__(self, rows):
        return {{"x": self.samples[rows]["x"]}}
""",
    "arrow": """
import pyarrow

class Samples(torch.utils.data.Dataset):
    def __init__(self):
        self.table = pyarrow.ipc.open_file(pyarrow.memory_map(PATH + "/data.arrow")).read_all()

    def __len__(self):
        return len(self.table)

    def __getitem__(self, row):
        return {{"x": torch.from_numpy(self.table["x"][row].values.to_numpy().reshape(SHAPE))}}
""",
}
SHUFFLED = """
def shuffled():
    rows = np.random.permutation(ROWS)
    for start in range(0, ROWS, {batch}):
        yield read(rows[start : start + {batch}])

"""
NATIVE = {
    "npy": 'x = np.load(PATH + "/x.npy", mmap_mode="r")\nread = lambda rows: torch.from_numpy(x[rows])\n',
    "hdf5": """
import h5py
x = h5py.File(PATH + "/data.h5", "r", rdcc_nbytes=0)["x"]
def read(rows):
    return torch.from_numpy(np.stack([x[row] for row in np.sort(rows)]))
""",
    "lmdb": """
import lmdb
env = lmdb.open(PATH, readonly=True, lock=False)
def read(rows):
    with env.begin(buffers=True) as txn:
        values = b"".join(txn.get(row.to_bytes(8, "big"))[8:] for row in rows.tolist())
    return torch.from_numpy(np.frombuffer(values, np.float32).reshape(-1, *SHAPE))
""",
    "memmap": """
from tensordict import TensorDict
samples = TensorDict.load_memmap(PATH)
read = lambda rows: samples[torch.from_numpy(rows)]["x"]
""",
    "arrow": """
import pyarrow
table = pyarrow.ipc.open_file(pyarrow.memory_map(PATH + "/data.arrow")).read_all()
def read(rows):
    taken = table.take(rows)["x"].combine_chunks()
    return torch.from_numpy(taken.flatten().to_numpy().reshape(-1, *SHAPE))
""",
    "zarr": """
import zarr
x = zarr.open(PATH, mode="r")["x"]
read = lambda rows: torch.from_numpy(x.oindex[rows])
""",
}
PARQUET = """
import pyarrow.parquet
def in_order():
    for part in pyarrow.parquet.ParquetFile(PATH + "/data.parquet").iter_batches({batch}):
        yield torch.from_numpy(part["x"].flatten().to_numpy().reshape(-1, *SHAPE))

"""
WEBDATASET = """
import glob
import webdataset
shards = sorted(glob.glob(PATH + "/*.tar"))
data = webdataset.WebDataset(shards, shardshuffle=len(shards)).shuffle(1000).decode()
data = data.to_tuple("x.npy").batched({batch})
loader = webdataset.WebLoader(data, batch_size=None, num_workers={workers})
"""
STREAM = """
from iobench import StreamLoader
loader = StreamLoader(ROOT, format={format!r}, batch_size={batch}, order="random")
"""
# iobench's turns: `begins` waits for the same lines
IOBENCH = """
import sys
from pathlib import Path
from iobench import Manifest, RunOptions, run
from iobench.bench.observer import Observer

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


@dataclass(frozen=True)
class Pair:
    """A format, a loader as `--loader` names it, rows, order and cache state."""

    format: str
    loader: str
    rows: str = "small"
    order: str = "random"
    cache: str = "warm"

    @property
    def name(self) -> str:
        """Name of the trial."""
        return f"{self.format} {self.loader} {self.rows} {self.order} {self.cache}"

    def script(self, manifest: Manifest, clock: str) -> str:
        """Return the user's script, timed by a function of `time`."""
        kind, _, options = self.loader.partition(":")
        workers = int(options.removeprefix("num_workers=")) if options.startswith("num_workers") else 0
        values = {"batch": BATCH, "workers": workers, "format": self.format}
        constants = {
            "PATH": str(manifest.path_of(self.format)),
            "ROOT": str(manifest.root),
            "ROWS": manifest.schema.samples,
            "SHAPE": manifest.schema.fields[0].shape,
        }
        body, batches = self._body(kind, options == "fetch=batch", workers)
        needed = [f"{key} = {value!r}\n" for key, value in constants.items() if key in body]
        head, loop = HEAD.format(clock=clock), LOOP.format(clock=clock, batches=batches)
        return head + "".join(needed) + body.format(**values) + loop

    def _body(self, kind: str, whole_batches: bool, workers: int) -> tuple[str, str]:
        """Return what opens the loader, and the expression of its batches."""
        if kind == "stream":
            return STREAM, FIELD
        if kind == "webdataset":
            return WEBDATASET, "(batch[0] for batch in loader)"
        if self.format == "parquet":
            return PARQUET, "in_order()"
        if kind == "native":
            return NATIVE[self.format] + SHUFFLED, "shuffled()"
        settings = f"batch_size={BATCH}, shuffle=True"
        settings += f", num_workers={workers}" if workers else ""
        settings += ", collate_fn=dict" if whole_batches else ""
        lines = DATASETS[self.format].splitlines(keepends=True)
        if not whole_batches and "    def __getitems__(self, rows):\n" in lines:
            lines = lines[: lines.index("    def __getitems__(self, rows):\n") - 1]
        return "".join(lines) + f"\nloader = torch.utils.data.DataLoader(Samples(), {settings})\n", FIELD


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
