import json
import math

import numpy as np
import pytest
import torch
from conftest import every_dtype_arrays, prepared
from kinds import kind

import iobench
from iobench.base.errors import InvalidSettings
from iobench.bench.training import Trainer
from iobench.dataset.prepare import DEFAULT_FORMATS
from iobench.formats import DTYPES, Field, Schema, numpy_dtype
from iobench.loading import loaders
from iobench.loading.tensors import tensors_of

CPU = torch.device("cpu")


def train(schema, batches, model="mlp", seed=0):
    trainer = Trainer(model, schema, CPU, seed)
    for batch in batches:
        trainer.step(tensors_of(batch))
    return trainer.loss


def schema_of(arrays):
    fields = (Field(name, array.shape[1:], str(array.dtype)) for name, array in arrays.items())
    return Schema(len(next(iter(arrays.values()))), tuple(fields))


@pytest.mark.parametrize(("model", "order"), [("mlp", "sequential"), ("cnn", "random")])
def test_every_case_trains_to_the_same_loss(images, tmp_path, model, order):
    asked = iobench.RunOptions(
        order=(order,), batch_size=(32,), model=(model,), device=("cpu",), rounds="1", limits=False
    )
    result = iobench.run(images, asked, out=tmp_path / "r")
    assert not result.failures
    assert len(result.records) == len(loaders.DEFAULT_LOADERS) * len(DEFAULT_FORMATS)
    assert len({record.loss for record in result.records}) == 1
    assert math.isfinite(result.records[0].loss)


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_cudnn_is_on_and_repeatable_while_the_network_runs(monkeypatch, model):
    """torch's own switch leaves it off unless it is named: a GPU would run fallback convolutions."""
    seen = []
    batch = {"x": torch.ones(4, 3, 16, 16), "y": torch.arange(4)}
    trainer = Trainer(model, schema_of({"x": np.ones((4, 3, 16, 16), "float32"), "y": np.arange(4)}), CPU, 0)

    def noting(*_):
        cudnn = torch.backends.cudnn
        seen.append((cudnn.enabled, cudnn.deterministic, cudnn.benchmark))

    layer = next(module for module in trainer.network if list(module.parameters()))
    layer.register_forward_hook(noting)
    layer.weight.register_hook(noting)
    trainer.step(batch)
    assert seen == [(True, True, False)] * 2


def test_the_loss_depends_on_the_seed_and_on_the_data():
    rng = np.random.default_rng(1)
    batches = [{"x": rng.random((8, 5), np.float32)} for _ in range(3)]
    schema = schema_of(batches[0])
    assert train(schema, batches) == train(schema, batches)
    assert train(schema, batches) != train(schema, batches, seed=1)
    assert train(schema, batches) != train(schema, batches[:2])


def test_training_changes_neither_the_random_state_nor_the_batch():
    batch, before = {"x": np.ones((4, 5), np.float32), "y": np.arange(4)}, torch.get_rng_state()
    train(schema_of(batch), [batch], seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(batch["x"], 1)
    np.testing.assert_array_equal(batch["y"], range(4))


LABELS = {"y": np.ones(4, "int64")}
INPUTS = {
    **{f"input of {dtype}": {"x": np.ones((4, 6), numpy_dtype(dtype)), **LABELS} for dtype in DTYPES},
    **{
        f"label of {dtype}": {"x": np.ones((2, 6), "float32"), "y": np.array([0, np.iinfo(dtype).max], dtype)}
        for dtype in DTYPES
        if "int" in dtype
    },
    "every dtype": every_dtype_arrays(),
    "scalars": {"x": np.ones(4, "float32")},
}


@pytest.mark.parametrize("batch", INPUTS.values(), ids=INPUTS)
def test_inputs_and_labels_of_every_dtype_train(batch):
    assert math.isfinite(train(schema_of(batch), [batch]))


@pytest.mark.parametrize("shape", [(3, 16, 16), (16, 16, 3), (16, 16), (1, 16, 16), (1, 1)])
def test_the_cnn_accepts_images_of_either_layout(shape):
    batch = {"x": np.ones((4, *shape), "uint8"), "y": np.arange(4)}
    assert math.isfinite(train(schema_of(batch), [batch], "cnn"))


@pytest.mark.parametrize("shape", [(), (8,), (2, 2, 2, 2)])
def test_the_cnn_refuses_other_shapes_than_images(shape):
    with pytest.raises(InvalidSettings, check=kind("model-needs-images", found=f"shape {shape}")) as caught:
        Trainer("cnn", Schema(4, (Field("x", shape, "float32"),)), CPU, 0)
    assert "--model mlp" in caught.value.hint


def test_scalars_alone_train():
    batch = {"x": np.ones(4, "float32")}
    assert math.isfinite(train(schema_of(batch), [batch]))


def test_a_loss_that_is_no_number_is_null_in_the_record(tmp_path):
    arrays = {"x": np.full((8, 4), np.nan, np.float32)}
    manifest = prepared(tmp_path, arrays, ["npy", "lmdb"])
    asked = iobench.RunOptions(loader=("native",), model=("mlp",), device=("cpu",), rounds="1", limits=False)
    result = iobench.run(manifest, asked)
    assert not result.failures
    assert [json.loads(line)["loss"] for line in result.path.read_text().splitlines()] == [None, None]
