"""Our own loaders keep the contract that other packages' are held to."""

import io
import itertools
import pickle
import tarfile
from contextlib import closing
from pathlib import Path

import numpy as np
import psutil
import pytest

from iobench import formats
from iobench.base.errors import (
    CorruptArtifact,
    LoaderFailed,
    corrupt,
)
from iobench.dataset.checksum import Checksum
from iobench.dataset.manifest import Opener
from iobench.formats import read_word
from iobench.loading import loaders
from iobench.loading.loaders import Job
from iobench.loading.order import Order
from iobench.testing._cases import SCHEMA, store
from iobench.testing._damage import Bomb
from iobench.testing.loaders import LoaderContract, as_arrays, asked, helper, job_over

FORMATS = {
    "ffcv": "ffcv",
    "huggingface": "arrow",
    "litdata": "litdata:chunk_bytes=900",
    "mosaic": "mds:shard_bytes=700",
    "webdataset": "webdataset:shard_bytes=20000",
}  # that a loader reads, where it does not read npy


# one for each way of reading; native and stream try every format there is
KINDS = ("npy", "hdf5", "lmdb", "memmap", "zarr", "parquet", "webdataset")


class TestDataLoader(LoaderContract):
    formats = KINDS
    loader = loaders.parse("dataloader")


class TestDataLoaderOfBatches(LoaderContract):
    formats = KINDS
    loader = loaders.parse("dataloader:fetch=batch,num_workers=1,start_method=fork,persistent_workers=yes")


class TestNative(LoaderContract):
    loader = loaders.parse("native")


class TestStream(LoaderContract):
    loader = loaders.parse("stream")


def test_every_loader_is_held_to_it():
    held = {cls.loader.name for cls in LoaderContract.__subclasses__() if cls.__module__ == __name__}
    assert held | {"gds", "ray", "ray_data"} == set(loaders.names())  # whose own tests hold them to it


@pytest.mark.parametrize("name", loaders.names())
def test_every_loader_is_plain_by_default(name):
    assert loaders.class_of(name)().variant == name


@pytest.mark.parametrize("name", loaders.names())
def test_what_a_loader_is_advised_are_options_that_it_has_and_not_its_defaults(name):
    known = loaders.class_of(name)
    word = known.recommended_variant()
    assert (word is None) == (not known.recommended_options)
    if word is not None:
        assert read_word(known, word) != known()


PLAIN = ("npy", "lmdb")  # a format that is mapped, and one that is not, stand for all that have rows


class TestSpdl(LoaderContract):
    loader, formats = loaders.class_of("spdl")(), PLAIN


class TestSpdlKept(LoaderContract):
    loader, formats = loaders.class_of("spdl")(threads=2, sink=1, keep_pipeline=True), ("npy",)


class TestTorchData(LoaderContract):
    loader, formats = loaders.class_of("torchdata")(), PLAIN


class TestTorchDataOfBatches(LoaderContract):
    loader, formats = loaders.class_of("torchdata")(fetch="batch", num_workers=2), ("npy",)


class TestGrain(LoaderContract):
    loader, formats = loaders.class_of("grain")(), PLAIN


class TestHuggingFace(LoaderContract):
    loader = loaders.class_of("huggingface")()


class TestHuggingFaceBatches(LoaderContract):
    loader = loaders.class_of("huggingface")(fetch="batch")


class TestHuggingFaceTables(LoaderContract):
    loader = loaders.class_of("huggingface")(via="arrow", fetch="batch")


class TestWebDataset(LoaderContract):
    loader = loaders.class_of("webdataset")(shuffle_buffer=10)


class TestMosaic(LoaderContract):
    loader = loaders.class_of("mosaic")()


class TestFfcv(LoaderContract):
    loader = loaders.class_of("ffcv")()


class TestTensorStore(LoaderContract):
    loader = loaders.class_of("tensorstore")()


class TestTensorStoreAhead(LoaderContract):
    loader = loaders.class_of("tensorstore")(prefetch=2, cache_bytes=1 << 20)


class TestLitData(LoaderContract):
    loader = loaders.class_of("litdata")()


class TestLance(LoaderContract):
    loader = loaders.class_of("lance")()


class TestTfData(LoaderContract):
    loader = loaders.class_of("tfdata")(shuffle_buffer=10)


class TestDali(LoaderContract):
    loader, formats = loaders.class_of("dali")(), PLAIN


# Workers of their own take seconds to start: two epochs of each, one of them left in the middle.
WORKERS = [
    "torchdata:api=stateful,fetch=batch,num_workers=1",
    "torchdata:fetch=batch,num_workers=1,method=process",
    "grain:threads=1,prefetch=2,num_workers=1",
    "huggingface:fetch=batch,num_workers=1",
    "webdataset:num_workers=2",
    "litdata:num_workers=2",
    "mosaic:num_workers=2,shuffle_algo=py1s",
    "dali:num_workers=1",
]


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("word", WORKERS)
def test_workers_give_every_sample_and_end(word, tmp_path):
    usable = {one["name"]: one["usable"] for one in loaders.describe()}[word.partition(":")[0]]
    if usable != "yes":
        pytest.skip(usable)
    loader = loaders.parse(word)
    artifact = store(formats.parse(FORMATS.get(loader.name, "npy")), tmp_path / "a", SCHEMA)
    check, job, before = Checksum(SCHEMA), job_over(artifact, "random"), psutil.Process().children()
    assert loader.workers > 0
    with closing(loader.on("cpu").open(job)) as epochs:
        for batch in epochs.epoch(asked(loader, job, 0)):
            check.add(as_arrays(batch))
        with closing(epochs.epoch(asked(loader, job, 1))) as batches:
            next(batches)
    whole = Checksum(SCHEMA)
    whole.add(artifact.source)
    assert (check.content, check.samples) == (whole.content, SCHEMA.samples)
    left = [p for p in set(psutil.Process().children()) - set(before) if not helper(p)]
    assert not psutil.wait_procs(left, timeout=10)[1]


FAILING = [
    "spdl",
    "spdl:keep_pipeline=yes,threads=2",
    "torchdata",
    "torchdata:fetch=batch,num_workers=2",
    "grain",
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("word", FAILING)
@pytest.mark.parametrize("error", [corrupt(Path("x.npy"), "8 bytes", "none"), ZeroDivisionError("a\nb")])
def test_an_error_in_the_middle_is_one_line_and_no_hang(word, error, tmp_path, monkeypatch):
    usable = {one["name"]: one["usable"] for one in loaders.describe()}[word.partition(":")[0]]
    if usable != "yes":
        pytest.skip(usable)
    loader = loaders.parse(word)
    artifact = store(formats.parse("npy"), tmp_path / "a", SCHEMA)
    job, reader, calls = job_over(artifact, "random"), type(artifact.open()), itertools.count()

    def failing(method):
        def call(self, *arguments):
            if next(calls) == 3:
                raise error
            return method(self, *arguments)

        return call

    for name in ("batch", "sample"):
        monkeypatch.setattr(reader, name, failing(getattr(reader, name)))
    with closing(loader.on("cpu").open(job)) as epochs:
        with pytest.raises((LoaderFailed, CorruptArtifact)) as caught:
            list(epochs.epoch(asked(loader, job, 0)))
        assert "\n" not in str(caught.value)
        assert ("x.npy: expected 8 bytes" if isinstance(error, CorruptArtifact) else "a") in str(caught.value)
        assert len(list(epochs.epoch(asked(loader, job, 1)))) == 6  # and the next epoch is whole


def test_a_member_that_asks_to_be_unpickled_is_not(tmp_path):
    """WebDataset's own decoder would."""
    usable = {one["name"]: one["usable"] for one in loaders.describe()}["webdataset"]
    if usable != "yes":
        pytest.skip(usable)
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for key in range(5):
            array = io.BytesIO()
            np.save(array, np.full(3, key, np.float32))
            for suffix, content in (
                ("x.npy", array.getvalue()),
                ("y.pyd", pickle.dumps(Bomb(tmp_path / "b"))),
            ):
                info = tarfile.TarInfo(f"{key}.{suffix}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    schema = formats.Schema(5, (formats.Field("x", (3,), "float32"),))
    job = Job(Opener(formats.get("webdataset"), tmp_path / "a.tar", schema), Order("sequential", 2))
    with closing(loaders.parse("webdataset").on("cpu").open(job)) as epochs:
        found = np.concatenate([batch["x"].numpy() for batch in epochs.epoch(0)])
    np.testing.assert_array_equal(found, np.arange(5, dtype=np.float32)[:, None].repeat(3, 1))
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("name", loaders.names())
def test_what_a_loader_needs_is_an_extra_that_exists(name):
    cls, project = loaders.class_of(name), Path(__file__).parent.parent / "pyproject.toml"
    assert bool(cls.modules) == bool(cls.extra)
    assert not cls.extra or f"\n{cls.extra} = [" in project.read_text()
