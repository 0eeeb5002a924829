"""Every loader on both simulated devices: built-in ones, third-party ones, and those that need a GPU."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import checks
import pytest
import torch
from backend import NAME
from conftest import image_arrays, installed_formats, prepared
from simulated import device

import iobench
from iobench import RunOptions, formats
from iobench.base.errors import InvalidSettings
from iobench.contrib.loaders import dali
from iobench.contrib.loaders.gds import GdsEpochs
from iobench.loading import loaders

pytest_plugins = "plugged"

TESTS = Path(__file__).parent.parent
STAND_INS = {"gds": TESTS / "gds" / "library", "dali": TESTS / "dali" / "library"}
APART = (*loaders.DEFAULT_LOADERS, *STAND_INS, "ray", "ray_data")
OTHERS = [name for name in loaders.names() if name not in APART]


def format_of(loader):
    """Return npy, or the first format that a loader reads instead."""
    cls = loaders.class_of(loader)()
    return next(name for name in ("npy", *installed_formats()) if cls.reads(formats.FORMATS.class_of(name)()))


indices = pytest.mark.parametrize("index", [0, 1])


@pytest.fixture(scope="module")
def in_formats(tmp_path_factory):
    """Prepare the images in a format on demand."""
    made = {}

    def in_format(name):
        if name not in made:
            made[name] = prepared(tmp_path_factory.mktemp(name), image_arrays(), [name])
        return made[name]

    return in_format


@pytest.fixture
def usable(request):
    """Skip the test if the loader's library is not installed."""
    result = {one["name"]: one["usable"] for one in loaders.describe()}[request.getfixturevalue("loader")]
    if result != "yes":
        pytest.skip(result)


@indices
@pytest.mark.parametrize("loader", OTHERS)
def test_third_party_loaders_bring_the_right_content_to_that_device_alone(
    usable, plug_in, in_formats, loader, index
):
    variant = format_of(loader)
    manifest, order = in_formats(variant), loaders.class_of(loader).orders[-1]
    machine = plug_in("everything late")
    assert checks.proved(manifest, loader, index, variant, order=order) == manifest.content
    assert set(machine.woken) == {index}
    assert machine.faults == []


@indices
@pytest.mark.parametrize("loader", OTHERS)
def test_waiting_for_third_party_loaders_is_by_the_devices_clock(usable, plug_in, in_formats, loader, index):
    variant = format_of(loader)
    checks.waiting_is_the_devices_own(plug_in, "everything late", in_formats(variant), loader, index, variant)


@pytest.mark.as_for_users
def test_cases_in_processes_of_their_own_are_proved_and_measured_on_both_devices(
    plug_in, images, monkeypatch, tmp_path
):
    """Each process has its own simulated devices, as in a run."""
    if "spdl" not in {one["name"] for one in loaders.describe() if one["usable"] == "yes"}:
        pytest.skip("spdl is not installed")
    plug_in("everything late")
    paths = [str(Path(__file__).parent / "worker_site"), *sys.path]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    devices = tuple(str(device(index)) for index in (0, 1))
    options = RunOptions(format=("npy",), loader=("spdl",), rounds="1", device=devices, limits=False)
    result = iobench.run(images, options, out=tmp_path / "r.jsonl")
    assert not result.failures
    assert tuple(sorted(record.case["device"] for record in result.records)) == devices
    for record in result.records:
        assert record.memory.device_reserved_bytes >= record.memory.device_allocated_bytes > 0
        assert 0 < record.timing.first_batch_s <= record.timing.wait_s
        assert record.machine.gpu.name == "simulated"


@pytest.fixture
def stand_in(request, monkeypatch):
    """Install the stand-in for a library that requires NVIDIA's driver."""
    name = request.getfixturevalue("loader")
    package = {"gds": "kvikio", "dali": "nvidia"}[name]
    held = {one: sys.modules.pop(one) for one in list(sys.modules) if one.partition(".")[0] == package}
    monkeypatch.syspath_prepend(STAND_INS[name])
    monkeypatch.setattr(dali, "GPUS", (NAME,))
    monkeypatch.setattr(torch.utils.dlpack, "from_dlpack", lambda output: output.tensor)
    yield
    for one in [one for one in sys.modules if one.partition(".")[0] == package]:
        del sys.modules[one]
    sys.modules |= held


@indices
@pytest.mark.parametrize("order", ["sequential", "random"])
@pytest.mark.parametrize("loader", STAND_INS)
def test_loaders_that_fill_the_device_themselves_bring_the_right_content(
    plug_in, stand_in, images, loader, order, index
):
    for schedule in ("everything late", "consumer late", "out of step"):
        machine = plug_in(schedule)
        assert checks.proved(images, loader, index, order=order) == images.content
        assert set(machine.woken) == {index}
        checks.dropped_batches_of_an_epoch_were_right(plug_in, schedule, images, loader, index)


def no_wait_before_the_disk_writes(patch):
    """Give KvikIO, which writes outside of all streams, memory that the consumer may still read."""
    made = GdsEpochs.__init__

    def make(self, loader, job):
        made(self, loader, job)
        self._device = SimpleNamespace(torch=self._device.torch, synchronize=lambda: None)

    patch.setattr(GdsEpochs, "__init__", make)


def outputs_on_no_stream_of_ours(patch):
    """Read a pipeline's outputs before it has copied them."""
    patch.setattr("backend.SimStream.wait_event", lambda self, event: None)


@pytest.mark.parametrize(
    ("mutation", "loader"), [(no_wait_before_the_disk_writes, "gds"), (outputs_on_no_stream_of_ours, "dali")]
)
def test_a_mutation_is_detected(plug_in, stand_in, images, monkeypatch, mutation, loader):
    check = checks.dropped_batches_of_an_epoch_were_right
    check(plug_in, "everything late", images, loader)
    mutation(monkeypatch)
    with pytest.raises(AssertionError):
        check(plug_in, "everything late", images, loader)


@pytest.mark.parametrize("loader", ["dali"])
def test_a_gpu_pipeline_s_batches_are_taken_over_on_the_consumer_s_stream(plug_in, stand_in, images, loader):
    machine = plug_in("everything late")
    one = loaders.get("dali").on(str(device(1)))
    assert one.options["pipeline"] == "gpu"
    assert (one.pins(str(device(1))), one.copies_without_blocking) == (False, False)
    job = checks.job_of(images, "sequential", 1)
    epochs = one.open(job)
    batch = next(iter(epochs.epoch(job.order.batches(images.schema.samples, 0))))
    assert machine.now == 0.0  # nothing was awaited
    assert (batch["x"].cpu().numpy() == image_arrays()["x"][: checks.BATCH]).all()


def test_invalid_options_of_a_gpu_pipeline_are_refused():
    with pytest.raises(InvalidSettings, match="cpu"):
        dali.Dali(pipeline="gpu").on("cpu")
    with pytest.raises(InvalidSettings, match="pin_memory"):
        dali.Dali(pin_memory=True).on("cuda:0")
    assert dali.Dali().on("cpu").options["pipeline"] == "cpu"
