"""Fixtures that plug in the simulated devices for one test: `pytest_plugins = "plugged"`."""

import backend
import pytest
import torch
from sim_machine import SCHEDULES, Machine
from simulated import Simulated

from iobench.host import device as devices


def wire(patch):
    """Make iobench and torch find the simulated devices while a machine is plugged in."""
    patch.setitem(devices.KINDS, backend.NAME, Simulated)
    patch.setattr(torch.Tensor, "pin_memory", backend.pin)
    patch.setattr(torch.accelerator, "current_device_index", backend.Module.current_device)
    patch.setattr(torch.accelerator, "set_device_index", backend.Module.set_device)


@pytest.fixture
def plug_in(monkeypatch):
    """Plug in two devices with a schedule, until the end of the test."""
    if backend.REAL is not None:
        pytest.skip(f"there is a real {backend.REAL} here, and torch has room for one accelerator")

    def plug_in(schedule="everything late", **options):
        made = Machine(SCHEDULES[schedule](), **options)
        backend._plugged.append(made)
        devices.device_of.cache_clear()
        return made

    wire(monkeypatch)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # its tensors are small: threads would only wait for each other
    yield plug_in
    torch.set_num_threads(threads)
    backend._plugged.clear()
    devices.device_of.cache_clear()


@pytest.fixture(params=SCHEDULES)
def machine(plug_in, request):
    """Plug in the devices with each schedule in turn."""
    return plug_in(request.param)


@pytest.fixture
def late(plug_in):
    """Plug in devices that do nothing before it is awaited."""
    return plug_in()
