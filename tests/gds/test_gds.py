"""The loader `gds` over a stand-in for KvikIO, which loads only where NVIDIA's driver is."""

import os
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from conftest import complaint

import iobench
from iobench import RunOptions, formats
from iobench.base.errors import (
    InvalidSettings,
    LoaderFailed,
    MissingDependency,
)
from iobench.host.device import Device
from iobench.loading import loaders
from iobench.loading.loaders.gds import runs
from iobench.results.warnings import warnings_of
from iobench.testing._cases import SCHEMA, store
from iobench.testing.loaders import LoaderContract, asked, job_over

LIBRARY = Path(__file__).parent / "library"


@pytest.fixture(scope="class")
def kvikio():
    """The stand-in, for this process and those that it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(LIBRARY)
        patch.setenv(
            "PYTHONPATH", os.pathsep.join(filter(None, (str(LIBRARY), os.environ.get("PYTHONPATH"))))
        )
        import kvikio

        yield kvikio
        assert kvikio.opened == []
    for name in [name for name in sys.modules if name.partition(".")[0] == "kvikio"]:
        del sys.modules[name]


@pytest.mark.usefixtures("kvikio")
class TestGds(LoaderContract):
    loader, formats = loaders.class_of("gds")(), ("npy", "lmdb", "safetensors")

    @pytest.fixture(scope="class", autouse=True)
    @staticmethod
    def usable(kvikio):
        """It is: the stand-in is there."""


def read(tmp_path, word="npy", kind="sequential"):
    artifact = store(formats.parse(word), tmp_path / "a", SCHEMA)
    job = job_over(artifact, kind)
    return closing(loaders.get("gds").on("cpu").open(job)), asked(loaders.get("gds"), job, 0)


def test_rows_that_follow_each_other_are_one_read(kvikio, tmp_path):
    opened, rows = read(tmp_path)
    with opened as epochs:
        batches = sum(1 for _ in epochs.epoch(rows))
        assert [len(file.reads) for file in kvikio.opened] == [batches] * len(SCHEMA.fields)


def test_the_next_batch_is_asked_for_before_this_one_is_given(kvikio, tmp_path):
    opened, rows = read(tmp_path)
    with opened as epochs, closing(epochs.epoch(rows)) as batches:
        next(batches)
        assert {len(file.reads) for file in kvikio.opened} == {2}


def test_the_device_has_finished_before_its_memory_is_written(kvikio, tmp_path, monkeypatch):
    """What torch gives out again may still be read there, and KvikIO writes beside all streams."""
    done, pread = [], kvikio.CuFile.pread
    monkeypatch.setattr(Device, "synchronize", lambda self: done.append("finished"))
    monkeypatch.setattr(kvikio.CuFile, "pread", lambda *asked: (done.append("written"), pread(*asked))[1])
    opened, rows = read(tmp_path)
    with opened as epochs:
        batches = sum(1 for _ in epochs.epoch(rows))
    assert done == ["finished", *["written"] * len(SCHEMA.fields)] * batches


def test_stretches_end_where_the_next_row_lies_elsewhere():
    file, offset = np.array([0, 0, 0, 1, 1]), np.array([8, 16, 32, 40, 48])
    assert list(runs(file, offset, 8)) == [(0, 2, 0, 8), (2, 3, 0, 32), (3, 5, 1, 40)]


def test_a_file_that_is_too_short_is_named_and_not_made_up(kvikio, tmp_path):
    opened, rows = read(tmp_path)
    with opened as epochs:
        for file in kvikio.opened:
            os.truncate(f"/proc/self/fd/{file.descriptor}", 100)
        with pytest.raises(LoaderFailed, match="bytes of a batch were not there"):
            list(epochs.epoch(rows))


def test_posix_mode_is_asked_of_the_library(kvikio, tmp_path):
    with read(tmp_path)[0]:
        assert kvikio.defaults.settings == {"compat_mode": kvikio.CompatMode.ON}


def test_what_is_stored_encoded_is_refused_in_one_line(kvikio, tmp_path):
    with pytest.raises(LoaderFailed, match="does not lie in files as it is in memory"):
        read(tmp_path, "hdf5:compression=gzip")


@pytest.mark.parametrize(
    ("compat", "available", "mode"),
    [(False, True, "gpudirect"), (True, True, "posix"), (False, False, "posix")],
)
def test_the_mode_that_there_is_stands_in_the_options(kvikio, monkeypatch, compat, available, mode):
    monkeypatch.setattr(kvikio.defaults, "compat", compat)
    monkeypatch.setattr(kvikio.cufile_driver, "available", available)
    assert loaders.get("gds").on("cuda:0").options == {"mode": mode}
    assert loaders.get("gds").on("cpu").options == {"mode": "posix"}
    if mode == "posix":
        with pytest.raises(InvalidSettings, match="GPUDirect Storage is not active here for device cuda:0"):
            loaders.parse("gds:mode=gpudirect").on("cuda:0")


def test_posix_mode_is_recorded_and_warned_of(kvikio, tmp_path, images):
    options = RunOptions(format=("npy",), loader=("gds",), rounds="2", device=("cpu",), limits=False)
    found = iobench.run(images, options, out=tmp_path / "out.jsonl")
    assert not found.failures
    assert [one.case["options"]["mode"] for one in found.records] == ["posix"] * 2
    assert "posix" in {warning.kind for warning in warnings_of(found.records)}


def test_without_kvikio_the_pip_command_is_given(inside, images):
    with pytest.raises(MissingDependency, match=r"pip install 'iobench\[gds\]'"):
        loaders.parse("gds")
    assert "iobench[gds]" in complaint(inside("run", "--loader", "gds", "--data-dir", images.root.parent), 1)


def test_without_the_driver_one_line_says_so(tmp_path, monkeypatch):
    (tmp_path / "kvikio").mkdir()
    (tmp_path / "kvikio" / "__init__.py").write_text(
        "raise ImportError('libcuda.so.1: cannot open shared object file: No such file or directory')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        InvalidSettings, match=r"without NVIDIA's driver and libraries \(libcuda.so.1: cannot"
    ):
        loaders.parse("gds").on("cuda:0")
