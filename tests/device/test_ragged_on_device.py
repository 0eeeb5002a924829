"""Samples that differ in length on the simulated devices: both tensors of a field, pinned and copied."""

import checks
import pytest
from backend import NAME
from record_cases import delivered

import iobench
from iobench.dataset.sources import GeneratedLengths
from iobench.formats import Field
from iobench.loading import loaders
from iobench.loading.tensors import tensors_in

pytest_plugins = "plugged"

CASES = [
    ("native", {}),
    ("stream", {}),
    ("dataloader", {"fetch": "sample"}),
    ("dataloader", {"fetch": "batch"}),
]
cases = pytest.mark.parametrize(("loader", "options"), CASES)


@pytest.fixture(
    scope="module", params=[(Field("x", (-1,), "uint16"), 90), (Field("x", (-1, -1, 3), "uint8"), 9)]
)
def ragged(request, tmp_path_factory):
    """A dataset of about 90 samples of 0 to 90 tokens, or of 0 to 9 pixels along each side."""
    field, most = request.param
    fields = (field, Field("label", (), "int64"))
    source = GeneratedLengths(fields, f"uniform:0,{most}", 4_000)
    return iobench.prepare(source, ["npy"], data_dir=tmp_path_factory.mktemp("ragged"))[0]


@cases
@pytest.mark.parametrize("order", ["sequential", "random"])
def test_the_content_on_that_device_is_the_dataset_s(plug_in, ragged, loader, options, order):
    machine = plug_in("everything late")
    assert checks.proved(ragged, loader, 1, order=order, **options) == ragged.content
    assert set(machine.woken) == {1}
    assert machine.faults == []  # no copy without waiting read pageable memory


@cases
def test_all_tensors_lie_on_the_device_and_real_bytes_count(plug_in, ragged, loader, options):
    plug_in("everything late")
    devices = set()

    def consume(batch):
        assert list(batch) == [field.name for field in ragged.schema.fields]
        devices.update(tensor.device for tensor in tensors_in(batch))

    timing = checks.measured(ragged, loader, 0, consume, **options).timing
    assert {str(device) for device in devices} == {f"{NAME}:0"}
    assert timing.logical_bytes == ragged.schema.logical_bytes


def test_a_run_verifies_them_on_the_device(plug_in, ragged, tmp_path):
    plug_in("everything late")
    named = ("native", "stream", "dataloader", "dataloader:fetch=batch")
    out, ways = tmp_path / "records.jsonl", ("jagged", "list")  # the simulated device finds no padding
    chosen = {"device": (f"{NAME}:0",), "batch_size": (8,), "collate": ways}
    assert len(delivered(ragged, ("npy",), named, out, **chosen)) == len(named) * len(ways)
    assert all(loaders.parse(word).ragged for word in named)
