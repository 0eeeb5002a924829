"""bfloat16, which NumPy does not have: every byte of it arrives as torch's own, or it is refused by name."""

import numpy as np
import pytest
import torch
from conftest import complaint

import iobench
from iobench import formats
from iobench.formats import Field, Schema, array_of
from iobench.loading import loaders
from iobench.testing._cases import random_batch

HOLD = [name for name in formats.names() if "bfloat16" in formats.FORMATS.class_of(name).dtypes]
LOADERS = ("dataloader", "dataloader:fetch=batch", "native", "stream", "torchdata", "spdl")


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    source = iobench.Synthetic(203 * 5, (5,), "bfloat16")
    return iobench.prepare(source, HOLD, data_dir=tmp_path_factory.mktemp("halves"))[0]


def test_these_hold_it():
    assert HOLD == ["lmdb", "memmap", "recordio", "safetensors", "tfrecord"]


@pytest.mark.parametrize("loader", LOADERS)
def test_it_arrives_as_torchs_own(halves, loader):
    source = np.concatenate([b["x"] for b in iobench.Synthetic(203 * 5, (5,), "bfloat16").batches()])
    rows = np.random.default_rng(0).permutation(203)
    for name in HOLD:
        batches = list(iobench.batches(halves.root, format=name, loader=loader, order="sequential"))
        whole = torch.cat([batch["x"] for batch in batches])
        assert whole.dtype == torch.bfloat16
        assert array_of(whole).tobytes() == source.tobytes()
        assert array_of(whole[torch.from_numpy(rows)]).tobytes() == source[rows].tobytes()


@pytest.mark.parametrize(
    ("loader", "variant"), [("dali", "memmap"), ("grain", "memmap"), ("tfdata", "tfrecord")]
)
def test_libraries_that_know_no_such_type_are_given_its_bytes(halves, loader, variant):
    usable = {one["name"]: one["usable"] for one in loaders.describe()}[loader]
    if usable != "yes":
        pytest.skip(usable)
    source = np.concatenate([b["x"] for b in iobench.Synthetic(203 * 5, (5,), "bfloat16").batches()])
    whole = torch.cat([b["x"] for b in iobench.batches(halves.root, format=variant, loader=loader)])
    assert whole.dtype == torch.bfloat16
    assert array_of(whole).tobytes() == source.tobytes()


def test_every_case_is_proved(halves, tmp_path):
    settings = iobench.RunOptions(
        format=("all",), loader=LOADERS[:4], order=("random",), rounds="1", limits=False, model=("mlp",)
    )  # in order they were compared byte by byte above; blocks are rows of any order, too
    found = iobench.run(halves, settings)
    assert len(found.records) == len(HOLD) * 4
    assert not found.failures


def test_what_cannot_hold_it_says_so(inside, tmp_path):
    done = inside(
        *("prepare", "--size", "1e3", "--sample-shape", "10", "--dtype", "bfloat16"),
        *("--data-dir", tmp_path, "--format", "npy"),
    )
    said = complaint(done, 1)
    assert "format npy cannot hold field x, which is bfloat16; it holds bool, uint8" in said
    assert "bfloat16" not in said.partition("it holds")[2]


def test_its_own_libraries_know_what_was_written(halves):
    from safetensors.torch import load_file
    from tensordict import TensorDict

    loaded = load_file(halves.path_of("safetensors") / "data.safetensors")["x"]
    mapped = TensorDict.load_memmap(halves.path_of("memmap"), mode="r")["x"]
    assert loaded.dtype == mapped.dtype == torch.bfloat16
    assert torch.equal(loaded, mapped)


def test_tensors_that_others_saved_are_read(tmp_path):
    from safetensors.torch import save_file

    array = random_batch(Schema(23, (Field("x", (4,), "bfloat16"),)))["x"]
    tensor = torch.frombuffer(bytearray(array.tobytes()), dtype=torch.bfloat16).reshape(23, 4)
    save_file({"x": tensor}, tmp_path / "a.safetensors")
    torch.save({"x": tensor}, tmp_path / "a.pt")
    for file in ("a.safetensors", "a.pt"):
        batches = list(iobench.open_source(tmp_path / file).batches())
        assert np.concatenate([batch["x"] for batch in batches]).tobytes() == array.tobytes()
