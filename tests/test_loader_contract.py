"""Our own loaders keep the contract that other packages' are held to."""

from contextlib import closing

import psutil
import pytest

from iobench import formats
from iobench.dataset.checksum import Checksum
from iobench.loading import loaders
from iobench.testing._cases import SCHEMA, store
from iobench.testing.loaders import LoaderContract, as_arrays, asked, helper, job_over

FORMATS = {
    "huggingface": "arrow",
    "mosaic": "mds:shard_bytes=700",
    "webdataset": "webdataset:shard_bytes=20000",
}  # that a loader reads, where it does not read npy


class TestDataLoader(LoaderContract):
    loader = loaders.parse("dataloader")


class TestDataLoaderOfBatches(LoaderContract):
    loader = loaders.parse("dataloader:fetch=batch,num_workers=1,start_method=fork,persistent_workers=yes")


class TestNative(LoaderContract):
    loader = loaders.parse("native")


class TestStream(LoaderContract):
    loader = loaders.parse("stream")


def test_every_loader_is_held_to_it():
    held = {cls.loader.name for cls in LoaderContract.__subclasses__() if cls.__module__ == __name__}
    assert held | {"gds"} == set(loaders.names())  # which tests/gds holds to it


@pytest.mark.parametrize("name", loaders.names())
def test_every_loader_is_plain_by_default(name):
    assert loaders.class_of(name)().variant == name


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


class TestTensorStore(LoaderContract):
    loader = loaders.class_of("tensorstore")()


class TestTensorStoreAhead(LoaderContract):
    loader = loaders.class_of("tensorstore")(prefetch=2, cache_bytes=1 << 20)


# Workers of their own take seconds to start: two epochs of each, one of them left in the middle.
WORKERS = [
    "torchdata:api=stateful,fetch=batch,num_workers=1",
    "torchdata:fetch=batch,num_workers=1,method=process",
    "grain:threads=1,prefetch=2,num_workers=1",
    "huggingface:fetch=batch,num_workers=1",
    "webdataset:num_workers=2",
    "mosaic:num_workers=2",
]


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
