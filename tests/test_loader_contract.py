"""Built-in loaders keep the contract that loaders of other packages are tested for."""

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
from iobench.base.errors import CorruptArtifact, LoaderFailed
from iobench.base.options import read_word
from iobench.dataset.checksum import Checksum
from iobench.dataset.opener import Opener
from iobench.formats import Field, Schema
from iobench.loading import loaders
from iobench.loading.loaders import Job
from iobench.loading.order import Order
from iobench.testing.cases import SAMPLES, SCHEMA, store
from iobench.testing.corruption import Bomb
from iobench.testing.loaders import LoaderContract, as_arrays, epoch_request, is_python_helper, job_over

FORMATS = {
    "ffcv": "ffcv",
    "huggingface": "arrow",
    "litdata": "litdata:chunk_bytes=900",
    "mosaic": "mds:shard_bytes=700",
    "webdataset": "webdataset:shard_bytes=20000",
}  # format of each loader that does not read npy


KINDS = ("npy", "hdf5", "lmdb", "memmap", "zarr", "parquet", "webdataset")  # one for each way of reading
OTHERS = tuple(name for name in formats.names() if name not in KINDS)
PLAIN = ("npy", "lmdb")  # a memory-mapped format and another one, for all formats with rows
PERSISTENT = "dataloader:fetch=batch,num_workers=1,start_method=fork,persistent_workers=yes"
CONTRACTS = {  # a test class for each: the loader, and the formats if these stand for all that it reads
    "TestDataLoader": ("dataloader", KINDS),
    "TestDataLoaderOfBatches": (PERSISTENT, KINDS[:2]),
    "TestDataLoaderOfBatchesOfOtherFormats": (PERSISTENT, KINDS[2:]),
    "TestNative": ("native", KINDS),
    "TestNativeOverOtherFormats": ("native", OTHERS),
    "TestStream": ("stream", KINDS),
    "TestStreamOverOtherFormats": ("stream", OTHERS),
    "TestSpdl": ("spdl", PLAIN),
    "TestSpdlPersistent": ("spdl:threads=2,sink=1,keep_pipeline=yes", ("npy",)),
    "TestTorchData": ("torchdata", PLAIN),
    "TestTorchDataOfBatches": ("torchdata:fetch=batch,num_workers=2", ("npy",)),
    "TestTorchDataStateful": ("torchdata:api=stateful,num_workers=1", ("npy",)),
    "TestGrain": ("grain", PLAIN),
    "TestHuggingFace": ("huggingface", None),
    "TestHuggingFaceBatches": ("huggingface:fetch=batch", None),
    "TestHuggingFaceTables": ("huggingface:via=arrow,fetch=batch", None),
    "TestHuggingFaceStreaming": ("huggingface:streaming=yes,shuffle_buffer=10", None),
    "TestHuggingFaceStreamingTables": ("huggingface:streaming=yes,via=arrow", ("arrow",)),
    "TestWebDataset": ("webdataset:shuffle_buffer=10", None),
    "TestMosaic": ("mosaic", None),
    "TestFfcv": ("ffcv", None),
    "TestTensorStore": ("tensorstore", None),
    "TestTensorStorePrefetch": (f"tensorstore:prefetch=2,cache_bytes={1 << 20}", None),
    "TestLitData": ("litdata", None),
    "TestLance": ("lance", None),
    "TestTfData": ("tfdata:shuffle_buffer=10", None),
    "TestDali": ("dali", PLAIN),
}
WINDOWS = Schema(SAMPLES, (Field("tokens", (17,), "uint16"),))


def contract(word, some, samples=SCHEMA):
    """Return the contract's tests for a loader, which is made whether its library is there or not."""
    loader = read_word(loaders.class_of(word.partition(":")[0]), word)
    return type("Contract", (LoaderContract,), {"loader": loader, "formats": some, "samples": samples})


for name, case in CONTRACTS.items():
    globals()[name] = contract(*case)
for name in ("dataloader", "native", "stream"):
    globals()[f"Test{name.title()}OfTokens"] = contract(name, ("megatron", "tokens"), WINDOWS)


def test_every_loader_has_a_contract_test():
    tested = {word.partition(":")[0] for word, _ in CONTRACTS.values()}
    elsewhere = {"gds", "ray", "ray_data", "fsspec", "s3torchconnector"}  # these have modules of their own
    assert tested | elsewhere == set(loaders.names())


@pytest.mark.parametrize("name", loaders.names())
def test_names_recommended_options_and_extras_are_valid(name):
    cls, project = loaders.class_of(name), Path(__file__).parent.parent / "pyproject.toml"
    assert cls().variant == name
    word = cls.recommended_variant()
    assert (word is None) == (not cls.recommended_options)
    assert word is None or read_word(cls, word) != cls()
    assert not cls.modules or f"\n{name} = [" in project.read_text()


# Starting worker processes takes seconds: two epochs of each, one of them abandoned.
WORKERS = [
    "torchdata:api=stateful,fetch=batch,num_workers=1",
    "grain:threads=1,prefetch=2,num_workers=1",
    "webdataset:num_workers=2",
    "torchdata:fetch=batch,num_workers=1,method=process",
    "huggingface:fetch=batch,num_workers=1",
    "huggingface:streaming=yes,num_workers=1",
    "litdata:num_workers=2",
    "mosaic:num_workers=2,shuffle_algo=py1s",
    "dali:num_workers=1",
]


def usable(word):
    """Return the loader, or skip the test with the reason why it cannot be used here."""
    reasons = {one["name"]: one["usable"] for one in loaders.describe()}
    if (reason := reasons[word.partition(":")[0]]) != "yes":
        pytest.skip(reason)
    return loaders.parse(word)


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("word", WORKERS)
def test_workers_return_every_sample_and_end(word, tmp_path):
    loader = usable(word)
    artifact = store(formats.parse(FORMATS.get(loader.name, "npy")), tmp_path / "a", SCHEMA)
    check, job, before = Checksum(SCHEMA), job_over(artifact, "random"), psutil.Process().children()
    assert loader.workers > 0
    with closing(loader.on("cpu").open(job)) as epochs:
        for batch in epochs.epoch(epoch_request(loader, job, 0)):
            check.add(as_arrays(batch))
        with closing(epochs.epoch(epoch_request(loader, job, 1))) as batches:
            next(batches)
    whole = Checksum(SCHEMA)
    whole.add(artifact.source)
    assert (check.content, check.samples) == (whole.content, SCHEMA.samples)
    leaked = [p for p in set(psutil.Process().children()) - set(before) if not is_python_helper(p)]
    assert not psutil.wait_procs(leaked, timeout=60)[1]


DAMAGED = CorruptArtifact("values", kind="truncated", path=Path("x.npy"), expected="8 bytes", hint="copy it")
FAILING = [
    "spdl",
    "spdl:keep_pipeline=yes,threads=2",
    "torchdata",
    "torchdata:fetch=batch,num_workers=2",
    "grain",
]


@pytest.mark.parametrize("word", FAILING)
@pytest.mark.parametrize("error", [DAMAGED, ZeroDivisionError("a\nb")])
def test_an_error_in_an_epoch_is_one_line_without_a_hang(word, error, tmp_path, monkeypatch):
    loader = usable(word)
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
            list(epochs.epoch(epoch_request(loader, job, 0)))
        if error is DAMAGED:
            assert caught.value.fields() == error.fields()
        else:
            assert caught.value.kind == "raised"
            assert "ZeroDivisionError: " in caught.value.problem
        assert "\n" not in str(caught.value)
        assert len(list(epochs.epoch(epoch_request(loader, job, 1)))) == 6  # the next epoch is complete


def test_a_pickled_member_is_not_unpickled(tmp_path):
    """WebDataset's own decoder unpickles it."""
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for key in range(5):
            array = io.BytesIO()
            np.save(array, np.full(3, key, np.float32))
            bomb = pickle.dumps(Bomb(tmp_path / "b"))
            for suffix, content in (("x.npy", array.getvalue()), ("y.pyd", bomb)):
                info = tarfile.TarInfo(f"{key}.{suffix}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    schema = Schema(5, (Field("x", (3,), "float32"),))
    job = Job(Opener(formats.get("webdataset"), tmp_path / "a.tar", schema), Order("sequential", 2))
    with closing(usable("webdataset").on("cpu").open(job)) as epochs:
        rows = np.concatenate([batch["x"].numpy() for batch in epochs.epoch(0)])
    np.testing.assert_array_equal(rows, np.arange(5, dtype=np.float32)[:, None].repeat(3, 1))
    assert not (tmp_path / "b").exists()
