"""Samples that differ in length on the simulated devices: both tensors of a field, pinned and copied."""

import checks
import pytest
from backend import NAME
from record_cases import delivered

import iobench
from iobench.dataset.sources import GeneratedLengths
from iobench.formats import Field
from iobench.loading import loaders

pytest_plugins = "plugged"

CASES = [
    ("native", {}),
    ("stream", {}),
    ("dataloader", {"fetch": "sample"}),
    ("dataloader", {"fetch": "batch"}),
]
cases = pytest.mark.parametrize(("loader", "options"), CASES)


@pytest.fixture(scope="module")
def ragged(tmp_path_factory):
    """A dataset of about 90 samples of 0 to 90 tokens."""
    fields = (Field("tokens", (-1,), "uint16"), Field("label", (), "int64"))
    source = GeneratedLengths(fields, "uniform:0,90", 4_000)
    return iobench.prepare(source, ["npy"], data_dir=tmp_path_factory.mktemp("ragged"))[0]


@cases
@pytest.mark.parametrize("order", ["sequential", "random"])
def test_the_content_on_that_device_is_the_dataset_s(plug_in, ragged, loader, options, order):
    machine = plug_in("everything late")
    assert checks.proved(ragged, loader, 1, order=order, **options) == ragged.content
    assert set(machine.woken) == {1}
    assert machine.faults == []  # no copy without waiting read pageable memory


@cases
def test_both_tensors_lie_on_the_device_and_real_bytes_count(plug_in, ragged, loader, options):
    plug_in("everything late")
    devices = set()

    def consume(batch):
        devices.update({batch["tokens"].values.device, batch["tokens"].offsets.device, batch["label"].device})

    timing = checks.measured(ragged, loader, 0, consume, **options).timing
    assert {str(device) for device in devices} == {f"{NAME}:0"}
    assert timing.logical_bytes == ragged.schema.logical_bytes


def test_a_run_verifies_them_on_the_device(plug_in, ragged, tmp_path):
    plug_in("everything late")
    named = ("native", "stream", "dataloader", "dataloader:fetch=batch")
    out = tmp_path / "records.jsonl"
    records = delivered(ragged, ("npy",), named, out, device=(f"{NAME}:0",), batch_size=(8,))
    assert len(records) == len(named)
    assert all(loaders.parse(word).ragged for word in named)
