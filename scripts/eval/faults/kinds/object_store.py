"""A failing object store: no sample is lost or wrong, nothing hangs, a replaced object is one error."""

from __future__ import annotations

import functools
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

import iobench
from eval.faults.children import failure_of, run_forked, run_or_raise
from eval.faults.registry import Outcome, Trials, kind, module_of_tests
from iobench.dataset.remote_dataset import check_target, open_dataset, publish
from iobench.loading import loaders
from iobench.loading.loaders import Job
from iobench.loading.order import ORDERS, Order
from iobench.objects import client

VARIANTS, SAMPLES, WIDTH, BATCH = ("npy", "lmdb"), 400, 64, 16
TIMEOUT_S, STALL_S, PAUSE_S = 0.3, 0.6, 0.002  # short, so that a trial is
SHARE = 0.2  # of the requests that meet a fault
LEAST_REQUESTS = 24  # of an epoch
REQUEST_BYTES, COALESCE_BYTES = 2048, 256  # small, so that an epoch has many
FIRST_REQUESTS = 20  # of an epoch: the first batch needs fewer, the epoch more
RETRIES, END_S = 20, 3.0  # of an epoch that is left early: it takes one timeout, and not one for each try
PASSING = ("reset", "unavailable", "short", "drip", "stall")  # a later try may succeed
MOST_IN_A_ROW = 3  # faults of one range: less than the client's tries
Batches: TypeAlias = "Generator[dict[str, Any], None, None]"


@kind("object-store")
def object_store(trials: Trials) -> Iterator[Outcome]:
    """Read a dataset from a server that fails, replaces an object, or stalls when the loop is left."""
    run_or_raise(functools.partial(_publish, trials.folder))
    every = list(itertools.product(READERS, ORDERS, VARIANTS))
    for number in trials.numbers(full=72, quick=3):
        way, order, variant = trials.rng.choice(every)
        attempt, seed = (_passing, _replaced, _left)[number % 3], trials.rng.randrange(1 << 30)
        log = trials.folder / f"{number}.json"
        if attempt is _left and order == "block":
            attempt = (
                _passing  # its first batch comes with the last one of a window: nothing is in flight then
            )
        work = functools.partial(attempt, trials.folder, READERS[way], variant, order, seed, log)
        result = run_forked(work, timeout_s=60)
        what = f"{number}: {attempt.__name__[1:]} under {way}, {order}, {variant}"
        expected = "replaced" if attempt is _replaced else None
        problem = failure_of(result)
        if result.kind != expected:
            problem = f"ended with {result.kind or result.code}: {result.output}"
        injected = json.loads(log.read_text()) if log.exists() else {}
        yield f"{what}, {injected}", problem
        for _ in range(sum(injected.values()) - 1):  # a trial has many
            yield what, None


def _stream(url: str, variant: str, order: str, cache: Path) -> Batches:
    one = iobench.StreamLoader(
        url,
        format=variant,
        batch_size=BATCH,
        order=order,
        options=iobench.StreamOptions(
            request_bytes=REQUEST_BYTES, coalesce_bytes=COALESCE_BYTES, retries=RETRIES, data_dir=cache
        ),
    )
    yield from ({name: tensor.numpy() for name, tensor in batch.items()} for batch in one)


def _native(url: str, variant: str, order: str, cache: Path) -> Batches:
    drawn, opener = Order(order, batch_size=BATCH), open_dataset(url, cache).opener(variant)
    with closing(loaders.parse("native").open(Job(opener, drawn, "cpu"))) as epochs:
        for batch in epochs.epoch(drawn.batches(SAMPLES, 0)):
            yield {name: np.asarray(batch[name]) for name in ("x", "y")}


Read: TypeAlias = "Callable[[str, str, str, Path], Batches]"
READERS: dict[str, Read] = {"StreamLoader": _stream, "native": _native}


def _arrays() -> dict[str, Any]:
    x = np.random.default_rng(5).random((SAMPLES, WIDTH), np.float32)
    return {"x": x, "y": np.arange(SAMPLES)}


def _publish(folder: Path) -> None:
    np.savez(folder / "source.npz", **_arrays())
    source = iobench.open_source(folder / "source.npz")
    manifest, _ = iobench.prepare(source, VARIANTS, data_dir=folder / "local", name="d")
    publish(manifest, check_target(f"file://{folder}/served/d", False), overwrite=False)


def _passing(folder: Path, read: Read, variant: str, order: str, seed: int, log: Path) -> None:
    _whole(folder, SeededFaults(SHARE, seed), read, variant, order, log)


def _replaced(folder: Path, read: Read, variant: str, order: str, seed: int, log: Path) -> None:
    faults = SeededFaults(SHARE, seed, "replaced", after=seed % LEAST_REQUESTS)
    _whole(folder, faults, read, variant, order, log)


def _whole(folder: Path, faults: SeededFaults, read: Read, variant: str, order: str, log: Path) -> None:
    """Read an epoch, and compare its samples."""
    client.TIMEOUT_S, client.PAUSE_S = TIMEOUT_S, PAUSE_S
    source, server = _arrays(), object_server(folder / "served", faults, STALL_S)
    try:
        with server.running():
            batches = list(read(f"{server.url}/d", variant, order, log.with_suffix("")))
    finally:
        log.write_text(json.dumps(faults.injected))
    rows = np.concatenate([batch["y"] for batch in batches])
    assert np.array_equal(np.sort(rows), source["y"]), f"lost or repeated: {len(rows)} samples of {SAMPLES}"
    x = np.concatenate([batch["x"] for batch in batches])
    assert np.array_equal(x, source["x"][rows]), "samples are wrong"


def _left(folder: Path, read: Read, variant: str, order: str, seed: int, log: Path) -> None:
    """Leave an epoch early, while all requests but the first ones stall."""
    client.TIMEOUT_S, client.PAUSE_S = TIMEOUT_S, PAUSE_S
    faults = SeededFaults(0, seed, "stall", after=FIRST_REQUESTS)
    server = object_server(folder / "served", faults, STALL_S)
    with server.running():
        running = read(f"{server.url}/d", variant, order, log.with_suffix(""))
        next(running)
        time.sleep(seed % 100 / 1000)
        began = time.monotonic()
        running.close()
        seconds = time.monotonic() - began
    log.write_text(json.dumps(faults.injected or {"left": 1}))
    assert seconds < END_S, f"the end took {seconds:.1f} s"


def object_server(folder: Path, faults: SeededFaults, stall_s: float) -> Any:
    """Return a `RangeServer` of the files of a folder; its stalls are longer than the client waits."""
    server = module_of_tests("range_server").RangeServer(folder)
    server.stall_s = stall_s
    server.fault = lambda number, name: faults.next_of(server.requests[-1])
    return server


class SeededFaults:
    """Faults of ranged requests.

    Parameters
    ----------
    share : float
        Of the requests that meet one of PASSING.
    seed : int
        Of the faults.
    lasting : str, optional
        Fault of all requests after the first `after`: "stall", or "replaced" (another version).
    """

    def __init__(self, share: float, seed: int, lasting: str | None = None, after: int = 0) -> None:
        self.injected = Counter[str]()
        self._share, self._lasting, self._left = share, lasting, after
        self._rng, self._in_a_row = random.Random(seed), Counter[object]()

    def next_of(self, request: object) -> str | None:
        """Return the fault of a request for a range, and count it."""
        self._left -= 1
        if self._lasting and self._left < 0:
            fault = self._lasting
        elif self._rng.random() < self._share and self._in_a_row[request] < MOST_IN_A_ROW:
            fault = self._rng.choice(PASSING)
            self._in_a_row[request] += fault != "drip"
        else:
            del self._in_a_row[request]
            return None
        self.injected[fault] += 1
        return fault
