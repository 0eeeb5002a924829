"""The contract of loaders: subclass `LoaderContract` and name your loader; see `iobench.testing`."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from iobench.base.errors import (
    IobenchError,
    MissingDependency,
    UnsupportedSchema,
)
from iobench.dataset.checksum import Checksum
from iobench.dataset.manifest import Opener
from iobench.formats import (
    Batch,
    Format,
    array_of,
    get,
    names,
    read_word,
)
from iobench.loading.loaders import EpochRequest, Job, Loader, describe
from iobench.loading.order import ORDERS, Order
from iobench.testing._cases import SCHEMA, Artifact, store

BATCH = 4  # 23 samples: five batches and a short one
ENDING_S = 10.0  # for processes and threads to end


class LoaderContract:
    """Everything that iobench relies on in a loader, as tests of `loader` over every format that it reads."""

    loader: Loader
    formats: Sequence[str] | None = None  # that it is tried over, where these stand for all that it reads

    @pytest.fixture(scope="class", autouse=True)
    @staticmethod
    def usable(request: pytest.FixtureRequest) -> None:
        """Skips, with the reason, where what the loader needs is not installed."""
        known = {one["name"]: one["usable"] for one in describe()}
        if (usable := known.get(request.cls.loader.name, "yes")) != "yes":
            pytest.skip(usable)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Tests are made for what the loader reads and the orders that it has, and for nothing else."""
        if "artifact" in metafunc.fixturenames:
            metafunc.parametrize("artifact", self._read(), indirect=True, scope="class")
        if "job" in metafunc.fixturenames:
            metafunc.parametrize("job", self.loader.orders, indirect=True)

    def _read(self) -> list[str]:
        """The formats that are installed, that the loader reads and that hold the samples."""
        found = []
        for name in self.formats or names():
            with suppress(MissingDependency, UnsupportedSchema):
                fmt: Format = get(name)
                fmt.check_schema(SCHEMA)
                found += [name] if self.loader.reads(fmt) else []
        return found

    @pytest.fixture(scope="class")
    @staticmethod
    def artifact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
        """23 samples in a format."""
        return store(get(request.param), tmp_path_factory.mktemp("artifact") / "a", SCHEMA)

    @pytest.fixture
    def job(self, request: pytest.FixtureRequest, artifact: Artifact) -> Job:
        """What it is opened over, in an order."""
        return job_over(artifact, request.param)

    def test_it_says_what_it_is(self) -> None:
        """Its name, summary and options are words that stand for it, and it has an order."""
        assert self.loader.name
        assert self.loader.summary
        assert self.loader.library
        assert set(self.loader.orders) <= set(ORDERS)
        assert self.loader.orders
        assert read_word(type(self.loader), self.loader.variant) == self.loader

    def test_it_travels_to_other_processes(self) -> None:
        """It can be pickled, and is the same afterwards."""
        assert pickle.loads(pickle.dumps(self.loader)) == self.loader

    def test_an_epoch_has_every_sample(self, job: Job, artifact: Artifact) -> None:
        """Each exactly once, save what it says that it repeats or drops; two epochs running."""
        hashes = Checksum(SCHEMA).hashes(artifact.source)
        with closing(self.loader.on("cpu").open(job)) as epochs:
            for number in (0, 1):
                batches: Iterable[Any] = epochs.epoch(asked(self.loader, job, number))
                if not self.loader.reuses:  # then they are good as long as they are held
                    batches = list(batches)
                seen = np.concatenate([Checksum(SCHEMA).hashes(as_arrays(batch)) for batch in batches])
                if not self.loader.repeats:
                    assert len(seen) == len(set(seen.tolist()))
                assert seen.size
                assert set(seen.tolist()) <= set(hashes.tolist())
                if not self.loader.drops:
                    assert set(seen.tolist()) == set(hashes.tolist())

    def test_random_order_is_another_one_in_each_epoch(self, artifact: Artifact) -> None:
        """And the same one when the same epoch is asked of a loader that was opened anew."""
        if "random" not in self.loader.orders:
            pytest.skip(f"{self.loader.name} has no random order")
        job = job_over(artifact, "random")
        first, second, again = (self._order(job, artifact, number) for number in (1, 2, 1))
        assert first == again
        assert first != second

    def _order(self, job: Job, artifact: Artifact, number: int) -> list[int]:
        """The hashes of an epoch's samples as they come, from a loader opened for it alone."""
        with closing(self.loader.on("cpu").open(job)) as epochs:
            batches = map(as_arrays, epochs.epoch(asked(self.loader, job, number)))
            return [one for batch in batches for one in Checksum(SCHEMA).hashes(batch).tolist()]

    def test_the_artifact_is_left_as_it_was(self, artifact: Artifact) -> None:
        """Nothing is written into it or beside it: no cache, no index, no copy."""
        before = _tree(artifact.path.parent)
        read_all(self.loader, job_over(artifact, self.loader.orders[0]))
        assert _tree(artifact.path.parent) == before

    def test_rows_come_as_they_were_asked_for(self, job: Job, artifact: Artifact) -> None:
        """Of a loader that is told the rows of each batch."""
        if self.loader.iterable_style:
            pytest.skip(f"{self.loader.name} has an order of its own")
        rows = asked(self.loader, job, 3)
        assert not isinstance(rows, int)
        with closing(self.loader.on("cpu").open(job)) as epochs:
            for wanted, batch in zip(rows, map(as_arrays, epochs.epoch(rows)), strict=True):
                for name, source in artifact.source.items():
                    np.testing.assert_array_equal(batch[name], source[wanted], strict=True)

    def test_batches_have_every_field_and_no_more_than_their_size(self, job: Job) -> None:
        """As contiguous tensors of the schema's dtypes, the leading axis being the samples."""
        with closing(self.loader.on("cpu").open(job)) as epochs:
            for batch in map(as_arrays, epochs.epoch(asked(self.loader, job, 0))):
                assert set(batch) == {field.name for field in SCHEMA.fields}
                (count,) = {len(array) for array in batch.values()}
                assert 0 < count <= BATCH
                for field in SCHEMA.fields:
                    array = batch[field.name]
                    assert (array.shape, str(array.dtype)) == ((count, *field.shape), field.dtype)

    @pytest.mark.parametrize("taken", [0, 1, None])
    def test_nothing_is_left_behind(self, artifact: Artifact, taken: int | None) -> None:
        """No process, thread, open file or map, wherever an epoch was left; closing again is no harm."""
        job = job_over(artifact, self.loader.orders[-1])
        processes, threads = set(psutil.Process().children(recursive=True)), set(threading.enumerate())
        epochs = self.loader.on("cpu").open(job)
        with closing(epochs.epoch(asked(self.loader, job, 0))) as batches:
            for _ in batches if taken is None else range(taken):
                if taken is not None:
                    next(batches)
        epochs.close()
        epochs.close()
        started = [p for p in psutil.Process().children(recursive=True) if p not in processes]
        assert not psutil.wait_procs([p for p in started if not helper(p)], timeout=ENDING_S)[1]
        for thread in set(threading.enumerate()) - threads:
            if pooled(thread):
                continue
            thread.join(ENDING_S)
            assert not thread.is_alive()
        assert not left_open(artifact.path)

    def test_what_is_not_there_is_one_line(self, artifact: Artifact, tmp_path: Path) -> None:
        """An artifact that is missing is an error of iobench's own kinds, on opening or on reading."""
        missing = Artifact(artifact.format, tmp_path / "missing", SCHEMA, artifact.source)
        job = job_over(missing, self.loader.orders[0])
        with pytest.raises(IobenchError) as caught:
            read_all(self.loader, job)
        assert "\n" not in str(caught.value)


def job_over(artifact: Artifact, kind: str) -> Job:
    """An artifact in an order, in small batches."""
    opener = Opener(artifact.format, artifact.path, SCHEMA, random=kind != "sequential")
    return Job(opener, Order(kind, BATCH, block_rows=3, window_batches=2))


def asked(loader: Loader, job: Job, number: int) -> EpochRequest:
    """What the loader is asked for an epoch."""
    return number if loader.iterable_style else job.order.batches(SCHEMA.samples, number)


def _tree(folder: Path) -> dict[Path, tuple[int, int]]:
    """Every file below a folder with its size and time of change."""
    found = {path: path.stat() for path in folder.rglob("*") if path.is_file()}
    return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in found.items()}


def read_all(loader: Loader, job: Job) -> int:
    """The number of batches in an epoch."""
    with closing(loader.on("cpu").open(job)) as epochs:
        return sum(1 for _ in epochs.epoch(asked(loader, job, 0)))


def as_arrays(batch: Any) -> Batch:
    """A batch of tensors as arrays of the same memory."""
    return {name: array_of(tensor) for name, tensor in batch.items()}


def left_open(folder: Path) -> set[str]:
    """The files below a folder that this process still has open or mapped once threads have had time to end.

    Arrow's own threads let go of a file a moment after the call that they worked for.
    """
    until = time.monotonic() + ENDING_S
    while (found := in_use(folder)) and time.monotonic() < until:
        time.sleep(0.01)
    return found


def in_use(folder: Path) -> set[str]:
    """The files below a folder that this process has open or mapped now."""
    links = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # another thread closes it meanwhile
            links.append(os.readlink(link))
    lines = Path("/proc/self/maps").read_text().splitlines()
    mapped = [line.split(maxsplit=5)[-1] for line in lines]
    return {path for path in links + mapped if path.startswith(f"{folder.resolve()}/")}


def pooled(thread: threading.Thread) -> bool:
    """Whether it belongs to a pool that a format's library keeps for as long as this process lives.

    These are zarr's event loop with its executor, and the monitor of tqdm's progress bars.
    """
    return thread.daemon and thread.name.startswith(("asyncio_", "zarr_", "tqdm_monitor"))


def helper(process: psutil.Process) -> bool:
    """Whether it is one of Python's own that live as long as this process."""
    try:
        return any("resource_tracker" in word or "forkserver" in word for word in process.cmdline())
    except psutil.Error:
        return False
