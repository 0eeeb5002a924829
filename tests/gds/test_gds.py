"""The loader `gds` over a stand-in for KvikIO, which needs NVIDIA's driver to be imported."""

import os
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from kinds import complaint_kind, refused_as

import iobench
from iobench import RunOptions, formats
from iobench.base.errors import InvalidSettings, LoaderFailed, MissingDependency
from iobench.contrib.loaders.gds import runs
from iobench.host.device import Device
from iobench.loading import loaders
from iobench.results.warnings import warnings_of
from iobench.testing.cases import SCHEMA, store
from iobench.testing.loaders import LoaderContract, epoch_request, job_over

PIP = "pip install 'iobench[gds]'"
LIBRARY = Path(__file__).parent / "library"


@pytest.fixture(scope="class")
def kvikio():
    """Put the stand-in on the path of this process and its children."""
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
        """Replace the fixture that skips tests without the library."""


def read(tmp_path, word="npy", kind="sequential"):
    artifact = store(formats.parse(word), tmp_path / "a", SCHEMA)
    job = job_over(artifact, kind)
    return closing(loaders.get("gds").on("cpu").open(job)), epoch_request(loaders.get("gds"), job, 0)


def test_consecutive_rows_are_one_read(kvikio, tmp_path):
    opened, rows = read(tmp_path)
    with opened as epochs:
        batches = sum(1 for _ in epochs.epoch(rows))
        assert [len(file.reads) for file in kvikio.opened] == [batches] * len(SCHEMA.fields)


def test_the_next_batch_is_requested_before_this_one_is_returned(kvikio, tmp_path):
    opened, rows = read(tmp_path)
    with opened as epochs, closing(epochs.epoch(rows)) as batches:
        next(batches)
        assert {len(file.reads) for file in kvikio.opened} == {2}


def test_the_device_is_synchronized_before_its_memory_is_written(kvikio, tmp_path, monkeypatch):
    """A stream may still read memory that torch reuses, and KvikIO does not wait for streams."""
    done, pread = [], kvikio.CuFile.pread
    monkeypatch.setattr(Device, "synchronize", lambda self: done.append("finished"))
    monkeypatch.setattr(kvikio.CuFile, "pread", lambda *read: (done.append("written"), pread(*read))[1])
    opened, rows = read(tmp_path)
    with opened as epochs:
        batches = sum(1 for _ in epochs.epoch(rows))
    assert done == ["finished", *["written"] * len(SCHEMA.fields)] * batches


def test_a_run_ends_if_the_next_row_is_not_adjacent():
    file, offset = np.array([0, 0, 0, 1, 1]), np.array([8, 16, 32, 40, 48])
    assert list(runs(file, offset, 8)) == [(0, 2, 0, 8), (2, 3, 0, 32), (3, 5, 1, 40)]


def test_a_file_that_is_too_short_is_an_error(kvikio, tmp_path):
    opened, rows = read(tmp_path)
    with opened as epochs:
        for file in kvikio.opened:
            os.truncate(f"/proc/self/fd/{file.descriptor}", 100)
        with refused_as("truncated", LoaderFailed):
            list(epochs.epoch(rows))


def test_posix_mode_is_set_in_the_library(kvikio, tmp_path):
    with read(tmp_path)[0]:
        assert kvikio.defaults.settings == {"compat_mode": kvikio.CompatMode.ON}


def test_encoded_values_are_refused(kvikio, tmp_path):
    with refused_as("encoded-values", LoaderFailed):
        read(tmp_path, "hdf5:compression=gzip")


@pytest.mark.parametrize(
    ("compat", "available", "mode"),
    [(False, True, "gpudirect"), (True, True, "posix"), (False, False, "posix")],
)
def test_the_available_mode_is_recorded_in_the_options(kvikio, monkeypatch, compat, available, mode):
    monkeypatch.setattr(kvikio.defaults, "compat", compat)
    monkeypatch.setattr(kvikio.cufile_driver, "available", available)
    assert loaders.get("gds").on("cuda:0").options == {"mode": mode}
    assert loaders.get("gds").on("cpu").options == {"mode": "posix"}
    if mode == "posix":
        with refused_as("gds-inactive", InvalidSettings, match="cuda:0"):
            loaders.parse("gds:mode=gpudirect").on("cuda:0")


def test_posix_mode_is_recorded_with_a_warning(kvikio, tmp_path, images):
    options = RunOptions(format=("npy",), loader=("gds",), rounds="2", device=("cpu",), limits=False)
    run = iobench.run(images, options, out=tmp_path / "out.jsonl")
    assert not run.failures
    assert [one.case["options"]["mode"] for one in run.records] == ["posix"] * 2
    assert "gds-inactive" in {warning.kind for warning in warnings_of(run.records)}


def test_without_kvikio_the_hint_is_the_pip_command(inside, images):
    with refused_as("missing-dependency", MissingDependency, hint=PIP):
        loaders.parse("gds")
    done = inside("run", "--loader", "gds", "--data-dir", images.root.parent)
    assert complaint_kind(done, 1) == "missing-dependency"


def test_a_library_that_cannot_be_imported_is_one_error(tmp_path, monkeypatch):
    (tmp_path / "kvikio").mkdir()
    (tmp_path / "kvikio" / "__init__.py").write_text(
        "raise ImportError('libcuda.so.1: cannot open shared object file: No such file or directory')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with refused_as("cannot-import", InvalidSettings, match=r"libcuda\.so\.1: "):
        loaders.parse("gds").on("cuda:0")
