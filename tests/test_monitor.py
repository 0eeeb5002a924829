"""Snapshots of the machine once a second."""

import itertools
import time
from types import SimpleNamespace

import pytest
import torch

import iobench
from iobench.host import machine_info, machine_load
from iobench.host.machine_load import Monitor


def snapshots(path, device="cpu", looks=2):
    machine, taken = Monitor(path, device, every_s=0.05), []
    with machine.watching():
        while len(taken) < looks:  # keeps one core busy, for as long as it takes
            taken += machine.take()
    return taken


def test_snapshots_are_taken_while_watching_and_returned_once(tmp_path):
    times = [look.time for look in snapshots(tmp_path, looks=5)]
    assert times == sorted(set(times))


def test_a_busy_core_is_seen(tmp_path):
    for look in snapshots(tmp_path):
        assert all(0 <= core <= 1 for core in look.cores)
        assert 0 <= look.iowait <= 1
        assert (look.gpu, look.gpu_memory_bytes) == (None, None)
    while max(max(look.cores) for look in snapshots(tmp_path)) <= 0.5:
        pass  # a hypervisor may take the core for a while


def test_the_disk_is_read_from_its_counters(tmp_path, monkeypatch):
    accounts = (machine_load.DiskCounters(n * 10**6, n * 100) for n in range(10**6))
    clock = itertools.count(step=0.5)  # between two looks
    monkeypatch.setattr(machine_load, "disk_counters", lambda path: next(accounts))
    fake = SimpleNamespace(**{**vars(time), "perf_counter": lambda: next(clock)})
    monkeypatch.setattr(machine_load, "time", fake)
    look = snapshots(tmp_path)[0]
    assert look.disk_bytes_per_s == pytest.approx(10**6 / 0.5)
    assert look.disk_queue == pytest.approx(0.1 / 0.5)


def test_no_disk_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(machine_load, "disk_counters", lambda path: None)
    assert {look.disk_bytes_per_s for look in snapshots(tmp_path)} == {None}


class FakeNvml:
    """One GPU that is half busy and throttled by its power limit."""

    NVML_CLOCK_SM = 1

    class NVMLError(Exception):
        pass

    def __init__(self):
        self.open = 0

    def nvmlInit(self):
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid):
        assert uuid == b"GPU-abc"
        return "handle"

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle):
        raise self.NVMLError

    def __getattr__(self, name):
        return lambda *_: ANSWERS[name]


ANSWERS = {
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=50),
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=12345),
    "nvmlDeviceGetPowerUsage": 300_500,  # milliwatts
    "nvmlDeviceGetClockInfo": 1410,
    "nvmlDeviceGetCurrentClocksThrottleReasons": 0x1 | 0x4,  # idle, which is not throttling, and a power cap
    "nvmlDeviceGetPciInfo": SimpleNamespace(busId=b"00000000:65:00.0"),
    "nvmlSystemGetDriverVersion": "1.2.3",
    "nvmlDeviceGetCurrPcieLinkGeneration": 1,
    "nvmlDeviceGetMaxPcieLinkGeneration": 4,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetEnforcedPowerLimit": 400_000,
    "nvmlDeviceGetMaxClockInfo": 1980,
}


@pytest.fixture
def nvml(monkeypatch):
    fake = FakeNvml()
    monkeypatch.setitem(__import__("sys").modules, "pynvml", fake)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="abc"))
    return fake


def test_a_gpu_is_seen_by_its_driver(nvml, tmp_path):
    look = snapshots(tmp_path, "cuda:0")[0]
    assert (look.gpu, look.gpu_memory_bytes) == (0.5, 12345)
    assert (look.gpu_power_w, look.gpu_clock_mhz, look.gpu_throttled) == (300.5, 1410, ["power cap"])
    assert nvml.open == 0


def test_a_record_holds_the_gpu_and_its_link(nvml, tmp_path, monkeypatch):
    node = tmp_path / "0000:65:00.0" / "numa_node"
    node.parent.mkdir()
    node.write_text("1\n")
    monkeypatch.setattr("iobench.host.device.PCI_DEVICES", tmp_path)
    properties = SimpleNamespace(name="a card", total_memory=5, uuid="abc")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    gpu = machine_info.describe(tmp_path, "cuda:0").gpu
    assert (gpu.name, gpu.memory_bytes, gpu.cuda, gpu.driver) == ("a card", 5, torch.version.cuda, "1.2.3")
    assert gpu.details == {
        "uuid": "abc",
        "pcie_generation": 1,
        "pcie_generation_max": 4,
        "pcie_width": None,  # the driver did not say
        "pcie_width_max": 16,
        "power_limit_w": 400.0,
        "clock_mhz": 1410,
        "clock_max_mhz": 1980,
        "numa_node": 1,
    }
    node.write_text("-1\n")  # the kernel's word for a machine of one node
    assert machine_info.describe(tmp_path, "cuda:0").gpu.details["numa_node"] is None
    assert nvml.open == 0


def test_the_cpu_has_no_gpu_entry(tmp_path):
    assert machine_info.describe(tmp_path, "cpu").gpu is None


def test_a_driver_that_fails_is_none(nvml, tmp_path, monkeypatch):
    def fail(*_):
        raise FakeNvml.NVMLError

    monkeypatch.setattr(nvml, "nvmlDeviceGetUtilizationRates", fail)
    assert snapshots(tmp_path, "cuda:0")[0].gpu is None
    monkeypatch.setattr(nvml, "nvmlInit", fail)
    assert snapshots(tmp_path, "cuda:0")[0].gpu is None


def test_records_of_a_profiled_run_have_the_snapshots_since_the_last(images, tmp_path, monkeypatch):
    monkeypatch.setattr(machine_load, "EVERY_S", 0.05)
    requested = iobench.RunOptions(
        ("hdf5",), ("dataloader",), device=("cpu",), rounds="3", profile=True, limits=False
    )
    result = iobench.run(images, requested, out=tmp_path / "r.jsonl")
    times = [snapshot.time for one in result.records for snapshot in one.snapshots]
    assert times == sorted(set(times))
