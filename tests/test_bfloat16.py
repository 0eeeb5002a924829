"""bfloat16, which NumPy does not have: every byte arrives as torch's dtype, or the format refuses it."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import installed_formats
from kinds import complaint_kind, kind

import iobench
from iobench import formats
from iobench.base.errors import UnsupportedSchema
from iobench.formats import Field, Schema, array_of
from iobench.loading import loaders
from iobench.testing.cases import random_batch

HOLD = [name for name in installed_formats() if "bfloat16" in formats.FORMATS.class_of(name).dtypes]
LOADERS = ("dataloader", "dataloader:fetch=batch", "native", "stream", "torchdata", "spdl")


SOURCE = iobench.Synthetic(203 * 5, (5,), "bfloat16")


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    return iobench.prepare(SOURCE, HOLD, data_dir=tmp_path_factory.mktemp("halves"))[0]


def test_formats_that_hold_it():
    assert HOLD == ["lmdb", "memmap", "recordio", "safetensors", "tfrecord"]


def assert_arrives(halves, variant, loader):
    """Assert that an epoch in stored order is of torch's dtype, with every byte."""
    batches = iobench.batches(halves.root, format=variant, loader=loader, order="sequential")
    whole = torch.cat([batch["x"] for batch in batches])
    assert whole.dtype == torch.bfloat16
    assert array_of(whole).tobytes() == b"".join(batch["x"].tobytes() for batch in SOURCE.batches())


@pytest.mark.parametrize("loader", LOADERS)
def test_it_arrives_as_torchs_dtype(halves, loader):
    for name in HOLD:
        assert_arrives(halves, name, loader)


@pytest.mark.parametrize(
    ("loader", "variant"), [("dali", "memmap"), ("grain", "memmap"), ("tfdata", "tfrecord")]
)
def test_libraries_without_the_dtype_receive_its_bytes(halves, loader, variant):
    usable = {one["name"]: one["usable"] for one in loaders.describe()}[loader]
    if usable != "yes":
        pytest.skip(usable)
    assert_arrives(halves, variant, loader)


def test_every_case_is_verified(halves, tmp_path):
    settings = iobench.RunOptions(
        format=("all",), loader=LOADERS[:4], order=("random",), rounds="1", limits=False, model=("mlp",)
    )  # sequential order was compared byte by byte above; block order is rows of any order as well
    result = iobench.run(halves, settings)
    assert len(result.records) == len(HOLD) * 4
    assert not result.failures


def test_a_format_that_cannot_hold_it_names_what_it_holds(inside, tmp_path):
    done = inside(
        *("prepare", "--size", "1e3", "--sample-shape", "10", "--dtype", "bfloat16"),
        *("--data-dir", tmp_path, "--format", "npy"),
    )
    assert complaint_kind(done, 1) == "unsupported-dtype"
    with pytest.raises(UnsupportedSchema, check=kind("unsupported-dtype", found="bfloat16")) as error:
        formats.get("npy").check_schema(Schema(3, (Field("x", (10,), "bfloat16"),)))
    assert "uint8" in error.value.expected
    assert "bfloat16" not in error.value.expected
    assert error.value.hint.split()[-1] in HOLD


def test_torch_libraries_read_what_was_written(halves):
    from safetensors.torch import load_file
    from tensordict import TensorDict

    loaded = load_file(halves.path_of("safetensors") / "data.safetensors")["x"]
    mapped = TensorDict.load_memmap(halves.path_of("memmap"), mode="r")["x"]
    assert loaded.dtype == mapped.dtype == torch.bfloat16
    assert torch.equal(loaded, mapped)


def test_a_schema_that_comes_from_another_process_is_of_a_known_dtype():
    schema = pickle.dumps(Schema(3, (Field("x", (10,), "bfloat16"),)))
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).fields[0].sample_bytes)"
    done = subprocess.run([sys.executable, "-c", code], input=schema, capture_output=True, check=True)
    assert int(done.stdout) == 20


def test_tensors_of_other_programs_are_read(tmp_path):
    from safetensors.torch import save_file

    array = random_batch(Schema(23, (Field("x", (4,), "bfloat16"),)))["x"]
    tensor = torch.frombuffer(bytearray(array.tobytes()), dtype=torch.bfloat16).reshape(23, 4)
    save_file({"x": tensor}, tmp_path / "a.safetensors")
    torch.save({"x": tensor}, tmp_path / "a.pt")
    for file in ("a.safetensors", "a.pt"):
        batches = list(iobench.open_source(tmp_path / file).batches())
        assert np.concatenate([batch["x"] for batch in batches]).tobytes() == array.tobytes()
