"""Contract suite of loaders: subclass `LoaderContract` and set `loader`; see `iobench.testing`."""

from __future__ import annotations

import itertools
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

from iobench.base.errors import IobenchError, MissingDependency, UnsupportedSchema
from iobench.base.options import read_word
from iobench.dataset.checksum import Checksum
from iobench.dataset.opener import Opener
from iobench.dataset.prepare import prepare
from iobench.dataset.sources.generated import Synthetic
from iobench.formats import Batch, Format, Schema, array_of, get, names
from iobench.loading import checkpoint
from iobench.loading.loaders import EpochRequest, Job, Loader, describe
from iobench.loading.order import ORDERS, Order
from iobench.testing.cases import SCHEMA, StoredArtifact, store

BATCH = 4  # 23 samples: five batches and a short one
ENDING_S = 60.0  # allowed for processes and threads to end


class LoaderContract:
    """Tests of everything that iobench relies on in a loader, over every format that it reads.

    Attributes
    ----------
    loader : Loader
        The loader under test.
    samples : Schema
        A schema of 23 samples that the formats hold.
    formats : sequence of str or None
        Formats to test, if they represent all that the loader reads; by default every installed one.
    """

    loader: Loader
    samples: Schema = SCHEMA
    formats: Sequence[str] | None = None

    @pytest.fixture(scope="class", autouse=True)
    @staticmethod
    def usable(request: pytest.FixtureRequest) -> None:
        """Skip the tests, with the reason, if a library that the loader needs is not installed."""
        known = {one["name"]: one["usable"] for one in describe()}
        if (usable := known.get(request.cls.loader.name, "yes")) != "yes":
            pytest.skip(usable)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrize the tests by the formats that the loader reads and the orders that it has."""
        if "artifact" in metafunc.fixturenames:
            metafunc.parametrize("artifact", self._read(), indirect=True, scope="class")
        if "job" in metafunc.fixturenames:
            metafunc.parametrize("job", self.loader.orders, indirect=True)

    def _read(self) -> list[str]:
        """Return the installed formats that the loader reads and that can hold the samples."""
        readable = []
        for name in self.formats or names():
            with suppress(MissingDependency, UnsupportedSchema):
                fmt: Format = get(name)
                fmt.check_schema(self.samples)
                readable += [name] if self.loader.reads(fmt) else []
        return readable

    @pytest.fixture(scope="class")
    @staticmethod
    def artifact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StoredArtifact:
        """Return an artifact of 23 samples in one format."""
        return store(get(request.param), tmp_path_factory.mktemp("artifact") / "a", request.cls.samples)

    @pytest.fixture
    def job(self, request: pytest.FixtureRequest, artifact: StoredArtifact) -> Job:
        """Return a job over the artifact in one order."""
        return job_over(artifact, request.param)

    def test_name_summary_and_library(self) -> None:
        """The loader has a name, a summary and an order, and its variant reads back as the same loader."""
        assert self.loader.name
        assert self.loader.summary
        assert self.loader.library
        assert set(self.loader.orders) <= set(ORDERS)
        assert self.loader.orders
        assert read_word(type(self.loader), self.loader.variant) == self.loader

    def test_it_can_be_pickled(self) -> None:
        """The loader equals its unpickled copy."""
        assert pickle.loads(pickle.dumps(self.loader)) == self.loader

    def test_an_epoch_has_every_sample(self, job: Job, artifact: StoredArtifact) -> None:
        """Two consecutive epochs have each sample exactly once, except as `repeats` and `drops` allow."""
        check = Checksum(artifact.schema)
        hashes = check.hashes(artifact.source)
        with closing(self.loader.on("cpu").open(job)) as epochs:
            for number in (0, 1):
                batches: Iterable[Any] = epochs.epoch(epoch_request(self.loader, job, number))
                if not self.loader.reuses:  # batches stay valid
                    batches = list(batches)
                seen = np.concatenate([check.hashes(as_arrays(batch)) for batch in batches])
                if not self.loader.repeats:
                    assert len(seen) == len(set(seen.tolist()))
                assert seen.size
                assert set(seen.tolist()) <= set(hashes.tolist())
                if not self.loader.drops:
                    assert set(seen.tolist()) == set(hashes.tolist())

    def test_random_order_differs_between_epochs(self, artifact: StoredArtifact) -> None:
        """The order of an epoch is the same after the loader was closed and opened again."""
        if "random" not in self.loader.orders:
            pytest.skip(f"{self.loader.name} has no random order")
        job = job_over(artifact, "random")
        first, second, again = (self._order(job, artifact, number) for number in (1, 2, 1))
        assert first == again
        assert first != second

    @pytest.mark.parametrize("stop", [1, 4])
    def test_an_epoch_continues_after_its_state(self, stop: int, tmp_path: Path) -> None:
        """A loader that is opened again and given the state of a stopped epoch yields the rest of it."""
        if not self.loader.stateful:
            pytest.skip(f"{self.loader.name} has no state")
        manifest, _ = prepare(Synthetic(8 * SCHEMA.samples, (8,)), [self._read()[0]], data_dir=tmp_path)
        opener, order = manifest.opener(next(iter(manifest.artifacts))), Order(self.loader.orders[-1], BATCH)
        job = Job(opener, order, dataset=manifest.root)
        whole, state = self._stretch(job, SCHEMA.samples)
        first, state = self._stretch(job, stop)
        rest, _ = self._stretch(job, SCHEMA.samples, checkpoint.decode(state))
        assert first + rest == whole
        assert 0 < len(first) < len(whole)

    def _stretch(self, job: Job, most: int, state: Any = None) -> tuple[list[bytes], bytes]:
        """Return at most so many batches of an epoch, as bytes, and the state after them."""
        taken, saved = [], b""
        with closing(self.loader.on("cpu").open(job)) as epochs:
            if state is not None:
                epochs.resume(state)
            with closing(epochs.epoch(epoch_request(self.loader, job, 0))) as batches:
                for batch in itertools.islice(batches, most):
                    taken.append(as_arrays(batch)["x"].tobytes())
                    saved = checkpoint.encode(epochs.state())
        return taken, saved

    def _order(self, job: Job, artifact: StoredArtifact, number: int) -> list[int]:
        """Return the hashes of an epoch's samples in order, from a newly opened loader."""
        with closing(self.loader.on("cpu").open(job)) as epochs:
            batches = map(as_arrays, epochs.epoch(epoch_request(self.loader, job, number)))
            return [one for batch in batches for one in Checksum(artifact.schema).hashes(batch).tolist()]

    def test_the_artifact_is_not_modified(self, artifact: StoredArtifact) -> None:
        """No file is written into the artifact or next to it."""
        before = _tree(artifact.path.parent)
        read_all(self.loader, job_over(artifact, self.loader.orders[0]))
        assert _tree(artifact.path.parent) == before

    def test_rows_come_as_requested(self, job: Job, artifact: StoredArtifact) -> None:
        """A map-style loader returns the requested rows of each batch."""
        if self.loader.iterable_style:
            pytest.skip(f"{self.loader.name} is iterable-style")
        rows = epoch_request(self.loader, job, 3)
        assert not isinstance(rows, int)
        with closing(self.loader.on("cpu").open(job)) as epochs:
            for requested, batch in zip(rows, map(as_arrays, epochs.epoch(rows)), strict=True):
                for name, source in artifact.source.items():
                    np.testing.assert_array_equal(batch[name], source[requested], strict=True)

    def test_batches_have_every_field_and_at_most_the_batch_size(self, job: Job) -> None:
        """Batches have the schema's fields, dtypes and shapes, with a leading axis of samples."""
        with closing(self.loader.on("cpu").open(job)) as epochs:
            for batch in map(as_arrays, epochs.epoch(epoch_request(self.loader, job, 0))):
                assert set(batch) == {field.name for field in self.samples.fields}
                (count,) = {len(array) for array in batch.values()}
                assert 0 < count <= BATCH
                for field in self.samples.fields:
                    array = batch[field.name]
                    assert (array.shape, str(array.dtype)) == ((count, *field.shape), field.dtype)

    @pytest.mark.parametrize("taken", [0, 1, None])
    def test_all_resources_are_released(self, artifact: StoredArtifact, taken: int | None) -> None:
        """No process, thread, open file or map remains, wherever an epoch stops; closing twice is allowed."""
        job = job_over(artifact, self.loader.orders[-1])
        processes, threads = set(psutil.Process().children(recursive=True)), set(threading.enumerate())
        epochs = self.loader.on("cpu").open(job)
        with closing(epochs.epoch(epoch_request(self.loader, job, 0))) as batches:
            for _ in batches if taken is None else range(taken):
                if taken is not None:
                    next(batches)
        epochs.close()
        epochs.close()
        started = [p for p in psutil.Process().children(recursive=True) if p not in processes]
        assert not psutil.wait_procs([p for p in started if not is_python_helper(p)], timeout=ENDING_S)[1]
        for thread in set(threading.enumerate()) - threads:
            if is_pool_thread(thread):
                continue
            thread.join(ENDING_S)
            assert not thread.is_alive()
        assert not files_left_open(artifact.path)

    def test_a_missing_artifact_is_a_one_line_error(self, artifact: StoredArtifact, tmp_path: Path) -> None:
        """A missing artifact raises IobenchError on opening or on reading."""
        missing = StoredArtifact(artifact.format, tmp_path / "missing", artifact.schema, artifact.source)
        job = job_over(missing, self.loader.orders[0])
        with pytest.raises(IobenchError) as caught:
            read_all(self.loader, job)
        assert "\n" not in str(caught.value)


def job_over(artifact: StoredArtifact, kind: str) -> Job:
    """Return a job over an artifact in an order, in small batches."""
    opener = Opener(artifact.format, artifact.path, artifact.schema, random=kind != "sequential")
    return Job(opener, Order(kind, BATCH, block_rows=3, window_batches=2))


def epoch_request(loader: Loader, job: Job, number: int) -> EpochRequest:
    """Return the argument of `Epochs.epoch`: a number, or the rows of each batch for map-style loaders."""
    return number if loader.iterable_style else job.order.batches(job.opener.schema.samples, number)


def _tree(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return every file below a folder with its size and modification time."""
    stats = {path: path.stat() for path in folder.rglob("*") if path.is_file()}
    return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in stats.items()}


def read_all(loader: Loader, job: Job) -> int:
    """Read an epoch and return its number of batches."""
    with closing(loader.on("cpu").open(job)) as epochs:
        return sum(1 for _ in epochs.epoch(epoch_request(loader, job, 0)))


def as_arrays(batch: Any) -> Batch:
    """Return a batch of tensors as arrays that share their memory."""
    return {name: array_of(tensor) for name, tensor in batch.items()}


def files_left_open(folder: Path) -> set[str]:
    """Return the files below a folder that stay open or mapped in this process for `ENDING_S` seconds.

    Arrow's threads release a file shortly after the call that used it.
    """
    until = time.monotonic() + ENDING_S
    while (files := files_in_use(folder)) and time.monotonic() < until:
        time.sleep(0.01)
    return files


def files_in_use(folder: Path) -> set[str]:
    """Return the files below a folder that this process has open or mapped now."""
    links = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # another thread closed it in the meantime
            links.append(os.readlink(link))
    lines = Path("/proc/self/maps").read_text().splitlines()
    mapped = [line.split(maxsplit=5)[-1] for line in lines]
    return {path for path in links + mapped if path.startswith(f"{folder.resolve()}/")}


def is_pool_thread(thread: threading.Thread) -> bool:
    """Return True for a thread that a format's library keeps until the process ends.

    These are zarr's event loop with its executor, and the monitor of tqdm's progress bars.
    """
    return thread.daemon and thread.name.startswith(("asyncio_", "zarr_", "tqdm_monitor"))


def is_python_helper(process: psutil.Process) -> bool:
    """Return True for a helper process of multiprocessing, which lives as long as this process."""
    try:
        return any("resource_tracker" in word or "forkserver" in word for word in process.cmdline())
    except psutil.Error:
        return False
