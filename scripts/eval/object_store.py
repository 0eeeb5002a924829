"""Compare loaders over an object store by its latency and its failures, in MiB/s.

A web server on this machine answers each request after a lognormal time, and lets a share of them fail. Every
case is verified, as in `iobench run`. Needs nginx with its module for Lua, and iobench[s3,webdataset].
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from eval.harness import ROUNDS, Row, Trials
from eval.object_server import Answers, object_server
from iobench import RunOptions, Synthetic, prepare, run, summarise
from iobench.dataset.remote_dataset import check_target, open_dataset, publish
from iobench.results.summary import CaseSummary

OPTIONS = {
    "rounds": (5, ROUNDS),
    "total": (256 << 20, "bytes of the data"),
    "samples": ("512,150000", "bytes of a sample"),
    "max_time": (120.0, "seconds of the run of a trial"),
    "formats": (["npy", "webdataset"], "formats; in a zarr array each chunk is a sample"),
    "loaders": (["stream", "native", "dataloader:num_workers=2", "webdataset:num_workers=2"], "loaders"),
    "orders": (["random", "sequential"], "sample orders"),
    "packages": (Path("/"), "where nginx and its module for Lua are installed, or were unpacked"),
}
STORES = {
    "0.3ms": Answers(0.3, 0.3),
    "4ms": Answers(4, 10),
    "15ms": Answers(15, 100),
    "15ms-1gbit": Answers(15, 100, megabits=1000),
    "15ms-503": Answers(15, 100, unavailable=0.01),
    "15ms-stalls": Answers(15, 100, stalled=0.001),
    "15ms-cut": Answers(15, 100, cut=0.005),
}
BATCH_BYTES = 4 << 20
METRICS = (
    *("requests", "request_retries", "request_throttles", "request_p50_s", "request_p99_s"),
    *("refetched_bytes", "read_amplification", "shuffle_quality", "cpu_s_per_gib", "first_batch_s"),
)


def trials(options: argparse.Namespace) -> Trials:
    pairs = itertools.product(STORES, map(int, options.samples.split(",")))
    return {f"{store}-{sample}B": partial(compare, options, store, sample) for store, sample in pairs}


def compare(options: argparse.Namespace, store: str, sample: int) -> Iterator[Row]:
    """Yield the median rate of each case, with its requests."""
    served = _published(options, sample)
    folder = options.folder / store / str(sample)
    folder.mkdir(parents=True)
    settings = RunOptions(
        format=tuple(options.formats),
        loader=tuple(options.loaders),
        order=tuple(options.orders),
        batch_size=(max(1, BATCH_BYTES // sample),),
        rounds=str(options.rounds),
        max_time=options.max_time,
    )
    with object_server(served, STORES[store], options.packages, folder) as url:
        outcome = run(open_dataset(f"{url}/data", folder), settings, out=folder / "records.jsonl")
    for context in summarise(outcome.records).contexts:
        for case in context.cases:
            yield {"order": case.facets["order"], **_figures(case)}
    for case, error in outcome.failures.items():
        yield {"failed": f"{outcome.labels[case]}: {error}"}


def _published(options: argparse.Namespace, sample: int) -> Path:
    """Return a folder for the server, with a dataset of samples of this size in `data`."""
    served = Path(options.folder) / f"served-{sample}"
    if not served.exists():
        source = Synthetic(options.total, sample_shape=(sample,), dtype="uint8")
        manifest, _ = prepare(source, options.formats, data_dir=options.folder / "local", name=str(sample))
        publish(manifest, check_target(f"file://{served}/data", False), overwrite=False)
    return served


def _figures(case: CaseSummary) -> Row:
    rate = case.bytes_per_s
    spread = f"{rate.low / 2**20:.0f} – {rate.high / 2**20:.0f}" if rate.low is not None else ""
    figures = {"of limit": case.limit_share, **{name: case.value(name) for name in METRICS}}
    return {"case": case.name, "MiB/s": rate.median / 2**20, "95 %": spread, "rounds": case.rounds, **figures}
