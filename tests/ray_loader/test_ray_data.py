"""The loader `ray_data` of `iobench run`, as the contract of loaders has it, in one Ray for all of it."""

import io
import pickle
import tarfile
import threading
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from iobench import formats
from iobench.base.errors import (
    IobenchError,
    LoaderFailed,
)
from iobench.dataset.checksum import Checksum
from iobench.dataset.manifest import Opener
from iobench.loading import loaders
from iobench.loading.loaders import Job
from iobench.loading.order import Order
from iobench.testing._cases import SCHEMA, store
from iobench.testing._damage import Bomb
from iobench.testing.loaders import BATCH, as_arrays, job_over, left_open, read_all

DTYPES = {field.name: field.dtype for field in SCHEMA.fields}

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.usefixtures("cluster")]


@pytest.fixture(autouse=True)
def usable():
    found = {one["name"]: one["usable"] for one in loaders.describe()}["ray_data"]
    if found != "yes":
        pytest.skip(found)


def made(word, folder):
    return store(formats.parse(word), folder / "a", SCHEMA)


def order_of(job, numbers):
    """The hashes of the samples of these epochs as they come, from a loader opened for them alone."""
    found = []
    with closing(loaders.parse("ray_data").on("cpu").open(job)) as epochs:
        for number in numbers:
            found.append([])
            for batch in map(as_arrays, epochs.epoch(number)):
                assert {name: str(array.dtype) for name, array in batch.items()} == DTYPES
                assert len(batch["label"]) <= BATCH
                found[-1] += Checksum(SCHEMA).hashes(batch).tolist()
    return found


@pytest.mark.parametrize("word", ["lance", "webdataset:shard_bytes=20000"])
def test_every_sample_comes_once_in_an_order_that_can_be_had_again(word, tmp_path):
    artifact = made(word, tmp_path)
    stored, job = Checksum(SCHEMA).hashes(artifact.source).tolist(), job_over(artifact, "random")
    (first, second), (again,) = order_of(job, (1, 2)), order_of(job, (1,))
    assert sorted(first) == sorted(second) == sorted(stored)
    assert first == again != second
    assert order_of(job_over(artifact, "sequential"), (0,)) == [stored]


def test_parquet_comes_as_it_is_stored(tmp_path):
    """Once: an epoch of it takes Ray seconds."""
    artifact = made("parquet", tmp_path)
    stored = Checksum(SCHEMA).hashes(artifact.source).tolist()
    assert order_of(job_over(artifact, "sequential"), (0,)) == [stored]


def test_nothing_is_left_of_an_epoch_that_was_left_in_the_middle(tmp_path):
    artifact, before = made("lance", tmp_path), set(threading.enumerate())
    loader = loaders.parse("ray_data:shuffle=all,prefetch_batches=0").on("cpu")
    with closing(loader.open(job_over(artifact, "random"))) as epochs, closing(epochs.epoch(0)) as batches:
        next(batches)
    for thread in set(threading.enumerate()) - before:
        if thread.name == "Prefetcher":  # of each epoch that was left, Ray keeps one, which sleeps
            continue
        thread.join(10.0)
        assert not thread.is_alive(), thread.name
    assert not left_open(artifact.path)


def test_what_is_not_there_is_one_line(tmp_path):
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


def test_a_member_that_asks_to_be_unpickled_is_not(tmp_path, monkeypatch):
    """Ray Data's decoder would, where the environment says so."""
    monkeypatch.setenv("RAY_DATA_WEBDATASET_ALLOW_UNSAFE_DESERIALIZATION", "1")
    row = lambda key: stored(np.full(3, key, np.float32))  # noqa: E731
    bomb = pickle.dumps(Bomb(tmp_path / "b"))
    job = archive(tmp_path / "a.tar", lambda key: {"x.npy": row(key), "y.pkl": bomb})
    with closing(loaders.parse("ray_data").on("cpu").open(job)) as epochs:
        found = np.concatenate([batch["x"].numpy() for batch in epochs.epoch(0)])
    np.testing.assert_array_equal(found, np.arange(5, dtype=np.float32)[:, None].repeat(3, 1))
    assert not (tmp_path / "b").exists()


def test_what_fails_in_a_task_is_one_line_that_says_it(tmp_path):
    """Here: its decoder knows images by `.jpg`, and not by `.jpeg`."""
    file, pixels = io.BytesIO(), np.zeros((4, 6, 3), np.uint8)
    pytest.importorskip("PIL.Image").fromarray(pixels).save(file, "jpeg")
    job = archive(tmp_path / "a.tar", lambda key: {"x.jpeg": file.getvalue(), "y.cls": b"1"})
    field = formats.Field("x_jpeg", pixels.shape, "uint8")
    opener = replace(job.opener, schema=formats.Schema(5, (field,)))
    with pytest.raises(LoaderFailed, match=r"a\.tar: no file of field x_jpeg in sample 0") as caught:
        read_all(loaders.parse("ray_data"), replace(job, opener=opener))
    assert "\n" not in str(caught.value)
