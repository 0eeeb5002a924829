import pytest
import torch

from iobench.bench import epoch
from iobench.bench.case import Settings, case
from iobench.errors import DeviceUnavailable, InvalidSettings
from iobench.loading import transfer as transfer
from iobench.loading.stages import UNTIMED
from iobench.loading.transfer import HostToDevice, pick_device

CPU = torch.device("cpu")


class FakeDevice:
    """A CUDA device that only writes down what is asked of it."""

    def __init__(self, log, monkeypatch):
        self.device, self.log = torch.device("cuda:0"), log
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: log.append("synchronize"))

    def batch(self, samples):
        return {"x": FakeTensor(samples, self.log)}


class FakeTensor:
    def __init__(self, samples, log):
        self.shape, self.log = (samples,), log

    def to(self, device, non_blocking):
        self.log.append(f"copy to {device}" + (" without waiting" if non_blocking else ""))
        return self


@pytest.fixture
def log():
    return []


@pytest.fixture
def fake(log, monkeypatch):
    return FakeDevice(log, monkeypatch)


def test_auto_is_cuda_where_there_is_one(monkeypatch):
    for count, expected in ((0, "cpu"), (2, "cuda:0")):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        assert str(pick_device("auto")) == expected


def test_devices_are_taken_by_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [str(pick_device(n)) for n in ("cpu", "cuda", "cuda:1")] == ["cpu", "cuda:0", "cuda:1"]


@pytest.mark.parametrize("name", ["", "tpu", "cpu:0", "auto:1", "cuda:", "cpu:", "cuda:x", "cuda:-1", "CUDA"])
def test_a_name_that_is_no_device_is_refused_with_the_known_ones(name):
    with pytest.raises(InvalidSettings, match=f"unknown device '{name}'; known: auto, cpu, cuda"):
        pick_device(name)


@pytest.mark.parametrize(
    ("count", "found"), [(0, "no CUDA device"), (1, "1 CUDA device"), (2, "2 CUDA devices")]
)
def test_a_device_that_is_not_here_is_refused_with_what_is(monkeypatch, count, found):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(DeviceUnavailable, match=f"--device cuda:2: there is {found} here; use"):
        pick_device("cuda:2")


def test_on_the_cpu_batches_stay_what_they_are():
    tensor = torch.ones(3)
    assert HostToDevice(CPU, non_blocking=False).move({"x": tensor})["x"] is tensor


def test_on_the_cpu_there_is_no_device_memory():
    assert HostToDevice(CPU, non_blocking=False).peak_bytes() is None


@pytest.mark.parametrize("non_blocking", [True, False])
def test_copies_wait_only_where_asked_to(fake, log, non_blocking):
    HostToDevice(fake.device, non_blocking).move(fake.batch(1))
    assert log == ["copy to cuda:0 without waiting" if non_blocking else "copy to cuda:0"]


def test_the_clock_stops_after_the_device_has_finished_every_copy(fake, log, images, monkeypatch):
    class Loader:
        stages = UNTIMED

        def __init__(self, opener):
            self.opener = opener

        def epoch(self, batches):
            yield from (fake.batch(rows.stop - rows.start) for rows in batches)

        def close(self):
            log.append("close")

    class Meter(epoch.Meter):
        def __exit__(self, *exc):
            log.append("clock stops")
            super().__exit__(*exc)

    monkeypatch.setattr(epoch, "open_loader", lambda one, opener, *settings: Loader(opener))
    monkeypatch.setattr(epoch, "Meter", Meter)
    one = case("npy", "native", Settings(batch_size=100))
    consume = lambda batch: log.append("consume")  # noqa: E731
    epoch.measure(one, images.opener("npy"), transfer.HostToDevice(fake.device, True), 1, consume)
    copy = ["copy to cuda:0 without waiting", "consume"]
    assert log == ["clock stops", *3 * copy, "synchronize", "clock stops", "close"]
