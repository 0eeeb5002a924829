"""The loader `ray_data` keeps the loaders' contract; all tests share one Ray."""

import io
import pickle
import tarfile
import threading
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from kinds import kind

from iobench import formats
from iobench.base.errors import CorruptArtifact, IobenchError
from iobench.dataset.checksum import Checksum
from iobench.dataset.opener import Opener
from iobench.loading import loaders
from iobench.loading.loaders import Job
from iobench.loading.order import Order
from iobench.testing.cases import SCHEMA, store
from iobench.testing.corruption import Bomb
from iobench.testing.loaders import BATCH, as_arrays, files_left_open, job_over, read_all

DTYPES = {field.name: field.dtype for field in SCHEMA.fields}

pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture(autouse=True)
def usable():
    status = {one["name"]: one["usable"] for one in loaders.describe()}["ray_data"]
    if status != "yes":
        pytest.skip(status)


def made(word, folder):
    return store(formats.parse(word), folder / "a", SCHEMA)


def order_of(job, numbers):
    """Return the hashes of the samples of each epoch in order, from a new loader."""
    hashes = []
    with closing(loaders.parse("ray_data").on("cpu").open(job)) as epochs:
        for number in numbers:
            hashes.append([])
            for batch in map(as_arrays, epochs.epoch(number)):
                assert {name: str(array.dtype) for name, array in batch.items()} == DTYPES
                assert len(batch["label"]) <= BATCH
                hashes[-1] += Checksum(SCHEMA).hashes(batch).tolist()
    return hashes


@pytest.mark.parametrize("word", ["lance", "webdataset:shard_bytes=20000"])
def test_every_sample_comes_once_in_a_repeatable_order(word, tmp_path):
    artifact = made(word, tmp_path)
    stored, job = Checksum(SCHEMA).hashes(artifact.source).tolist(), job_over(artifact, "random")
    (first, second), (repeated,) = order_of(job, (1, 2)), order_of(job, (1,))
    assert sorted(first) == sorted(second) == sorted(stored)
    assert first == repeated != second
    assert order_of(job_over(artifact, "sequential"), (0,)) == [stored]


def test_parquet_comes_in_stored_order(tmp_path):
    """Read one epoch only, which takes Ray seconds."""
    artifact = made("parquet", tmp_path)
    stored = Checksum(SCHEMA).hashes(artifact.source).tolist()
    assert order_of(job_over(artifact, "sequential"), (0,)) == [stored]


def test_an_abandoned_epoch_leaves_no_thread_and_no_open_file(tmp_path):
    artifact, before = made("lance", tmp_path), set(threading.enumerate())
    loader = loaders.parse("ray_data:shuffle=all,prefetch_batches=0").on("cpu")
    with closing(loader.open(job_over(artifact, "random"))) as epochs, closing(epochs.epoch(0)) as batches:
        next(batches)
    for thread in set(threading.enumerate()) - before:
        if thread.name == "Prefetcher":  # Ray keeps one sleeping thread of each abandoned epoch
            continue
        thread.join(10.0)
        assert not thread.is_alive(), thread.name
    assert not files_left_open(artifact.path)


def test_a_missing_artifact_is_one_error(tmp_path):
    artifact = made("parquet", tmp_path)
    artifact.path.rename(artifact.path.with_name("b"))
    with pytest.raises(IobenchError) as caught:
        read_all(loaders.parse("ray_data"), job_over(artifact, "sequential"))
    assert "\n" not in str(caught.value)


def archive(path, members):
    with tarfile.open(path, "w") as tar:
        for key in range(5):
            for suffix, content in members(key).items():
                info = tarfile.TarInfo(f"{key}.{suffix}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    schema = formats.Schema(5, (formats.Field("x", (3,), "float32"),))
    return Job(Opener(formats.get("webdataset"), path, schema), Order("sequential", 2))


def stored(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_a_pickled_member_is_not_unpickled(tmp_path, monkeypatch):
    """Ray Data's own decoder unpickles it if the environment allows that."""
    monkeypatch.setenv("RAY_DATA_WEBDATASET_ALLOW_UNSAFE_DESERIALIZATION", "1")
    row = lambda key: stored(np.full(3, key, np.float32))  # noqa: E731
    bomb = pickle.dumps(Bomb(tmp_path / "b"))
    job = archive(tmp_path / "a.tar", lambda key: {"x.npy": row(key), "y.pkl": bomb})
    with closing(loaders.parse("ray_data").on("cpu").open(job)) as epochs:
        rows = np.concatenate([batch["x"].numpy() for batch in epochs.epoch(0)])
    np.testing.assert_array_equal(rows, np.arange(5, dtype=np.float32)[:, None].repeat(3, 1))
    assert not (tmp_path / "b").exists()


def test_an_error_of_iobench_in_a_task_keeps_its_fields(tmp_path):
    """Read a `.jpeg` member, which Ray's decoder does not know: it knows `.jpg` only."""
    file, pixels = io.BytesIO(), np.zeros((4, 6, 3), np.uint8)
    pytest.importorskip("PIL.Image").fromarray(pixels).save(file, "jpeg")
    job = archive(tmp_path / "a.tar", lambda key: {"x.jpeg": file.getvalue(), "y.cls": b"1"})
    field = formats.Field("x_jpeg", pixels.shape, "uint8")
    opener = replace(job.opener, schema=formats.Schema(5, (field,)))
    missing = kind("unknown-array", path=tmp_path / "a.tar")
    with pytest.raises(CorruptArtifact, check=missing) as caught:
        read_all(loaders.parse("ray_data"), replace(job, opener=opener))
    assert "\n" not in str(caught.value)
