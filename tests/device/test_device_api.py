"""The device package: names, identity, and that no other module uses backend-specific APIs."""

import ast
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from backend import NAME, REAL
from kinds import has
from kinds import kind as error_kind
from simulated import device

from iobench.base.errors import DeviceUnavailable, InvalidSettings
from iobench.host import device as devices
from iobench.host.device import Cuda, Mps, device_of, pick_device
from iobench.loading.host_to_device import HostToDevice
from iobench.stream.transfer import BlockingTransfer, transfer_to

pytest_plugins = "plugged"

ROOT = Path(__file__).parent.parent.parent
BACK_ENDS = {"torch.cuda", "torch.accelerator", "torch.mps", "torch.xpu"}


def named_in(path):
    """Yield the names of torch backends in a file, in expressions and imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            yield ast.unparse(node)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_no_other_file_uses_torchs_device_apis():
    product = [*ROOT.glob("iobench/**/*.py"), *ROOT.glob("scripts/*"), *ROOT.glob("scripts/**/*.py")]
    python = [
        path
        for path in product
        if path.is_file() and path.read_text().startswith(('"""', "#!/usr/bin/env python"))
    ]
    result = {path.relative_to(ROOT) for path in python if BACK_ENDS & set(named_in(path))}
    assert result, "the device package itself names them"
    assert {path.as_posix() for path in result} == {"iobench/host/device.py"}, result


def test_it_imports_torch_only_on_use():
    code = "import sys, iobench.host.device as d; d.in_use(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.fixture
def built_for(monkeypatch):
    """Make torch appear to be built for a kind of accelerator with `count` devices."""

    def built_for(kind, count, current=0):
        if kind == NAME and REAL is not None:
            pytest.skip("no simulated devices together with a real one")
        result = torch.device(kind) if kind else None
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: result)
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)
        monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: current)

    return built_for


@pytest.mark.parametrize(
    ("kind", "count", "current", "named"),
    [
        (None, 0, 0, {"auto": "cpu"}),
        ("cuda", 0, 0, {"auto": "cpu"}),
        ("mps", 1, 0, {"auto": "mps:0"}),
        *(
            (one, 2, 0, {"cpu": "cpu", one: f"{one}:0", f"{one}:1": f"{one}:1"})
            for one in ("cuda", "xpu", NAME)
        ),
        ("cuda", 4, 3, {"auto": "cuda:3", "cuda": "cuda:3", "cuda:1": "cuda:1"}),  # as a rank has set it
    ],
)
def test_a_name_is_a_device(built_for, kind, count, current, named):
    built_for(kind, count, current)
    assert {name: str(pick_device(name)) for name in named} == named


@pytest.mark.parametrize(
    "name", ["", "tpu", "cpu:0", "auto:1", "cuda:", "cpu:", "cuda:x", "cuda:-1", "CUDA", "sim:"]
)
def test_an_unknown_device_is_refused_with_the_known_ones(built_for, name):
    built_for("cuda", 1)
    with pytest.raises(InvalidSettings, check=error_kind("unknown-device")) as caught:
        pick_device(name)
    assert repr(name) in caught.value.problem
    assert all(known in caught.value.hint for known in ("auto", "cpu", "cuda", "cuda:0"))


@pytest.mark.parametrize(
    ("kind", "count", "name", "available"),
    [
        ("cuda", 0, "cuda:2", "no CUDA device"),
        ("cuda", 1, "cuda:2", "1 CUDA device"),
        ("cuda", 2, "cuda:2", "2 CUDA devices"),
        *((None, 0, one, f"no {one.upper()} device") for one in ("cuda", "xpu", "mps")),
    ],
)
def test_a_missing_device_is_refused_with_those_available(built_for, kind, count, name, available):
    built_for(kind, count)
    refused = error_kind("device-unavailable", found=available, hint=has("--device cpu"))
    with pytest.raises(DeviceUnavailable, check=refused):
        pick_device(name)


def test_a_device_is_one_object_with_one_side_stream_for_the_life_of_the_process(late):
    first, second = device_of(device(0)), device_of(device(1))
    assert device_of(torch.device(NAME, 0)) is first
    assert first.side_stream is first.side_stream
    assert first.side_stream.sim is not second.side_stream.sim
    assert len(late.streams) == 4  # the default ones and these


def test_the_host_has_nothing_to_wait_for():
    host = device_of(torch.device("cpu"))
    host.use()
    host.synchronize()
    host.reset_peak()
    host.empty_caches()
    with host.current():
        assert (host.peak_bytes(), host.allocations(), host.identity(), host.uuid) == (None, None, None, None)
    assert (host.is_host, host.pins, host.side_streams) == (True, False, False)
    assert host.memory(5).shape == (5,)


def test_cuda_s_events_sleep_and_are_not_the_generic_ones(monkeypatch):
    """The generic event ignores `blocking`: a waiting thread would keep a core busy."""
    made = []
    monkeypatch.setattr(torch.cuda, "Event", lambda **options: made.append(options))
    cuda = Cuda(torch.device("cuda:0"))
    cuda.event()
    cuda.timing_event()
    assert made == [{"blocking": True}, {"enable_timing": True}]


def test_mps_goes_without_pinned_memory_and_side_streams(monkeypatch):
    mps = Mps(torch.device("mps:0"))
    assert (mps.pins, mps.side_streams, mps.peak_bytes(), mps.allocations()) == (False, False, None, None)
    mps.reset_peak()
    assert mps.memory(3).shape == (3,)
    transfer = BlockingTransfer(Mps(torch.device("cpu")))
    assert transfer.send([{"x": torch.ones(3)}])[0]["x"].tolist() == [1] * 3
    transfer.hand_over({})


def test_a_device_without_side_streams_is_fed_by_waiting(late, monkeypatch):
    kinds = {**devices.KINDS, NAME: type("Plain", (devices.KINDS[NAME],), {"side_streams": False})}
    monkeypatch.setattr(devices, "KINDS", kinds)
    device_of.cache_clear()
    transfer = transfer_to(device(0))
    assert type(transfer) is BlockingTransfer
    (batch,) = transfer.send([{"x": torch.ones(3)}])
    assert late.unfinished() == 0
    assert batch["x"].cpu().tolist() == [1] * 3
    HostToDevice(device(0), False).release_memory()


def test_the_accelerator_in_use_differs_from_one_that_is_only_available(late, built_for, monkeypatch):
    built_for(NAME, 2)
    assert devices.in_use() == "cpu"
    torch.empty(3, device=device(0))
    assert devices.in_use() == NAME
    built_for(None, 0)
    assert devices.in_use() == "cpu"


def test_the_generic_device_uses_torch_accelerator(monkeypatch):
    """XPU and others use it; the calls are torch's own, by name."""
    requested = []
    for name in ("set_device_index", "synchronize", "reset_peak_memory_stats"):
        monkeypatch.setattr(
            torch.accelerator, name, lambda where, name=name: requested.append((name, str(where)))
        )
    monkeypatch.setattr(torch.accelerator, "empty_cache", lambda: requested.append("empty_cache"))
    monkeypatch.setattr(torch.accelerator, "max_memory_allocated", lambda where: 3)
    monkeypatch.setattr(torch.accelerator, "max_memory_reserved", lambda where: 5)
    monkeypatch.setattr(torch.accelerator, "memory_stats", lambda where: {"num_device_alloc": 7})
    properties = SimpleNamespace(name="a card", total_memory=9)
    module = SimpleNamespace(get_device_properties=lambda where: properties)
    monkeypatch.setattr(torch, "get_device_module", lambda where: module)
    one = devices.Accelerator(torch.device("xpu:1"))
    one.use()
    one.synchronize()
    one.reset_peak()
    one.empty_caches()
    assert requested == [
        ("set_device_index", "xpu:1"),
        ("synchronize", "xpu:1"),
        ("reset_peak_memory_stats", "xpu:1"),
        "empty_cache",
    ]
    assert (one.peak_bytes(), one.allocations()) == ((3, 5), 7)
    monkeypatch.setattr(torch.accelerator, "memory_stats", lambda where: {})  # before the first allocation
    assert one.allocations() == 0
    assert one.identity() == {"name": "a card", "memory_bytes": 9, "driver": None}
    module.memory_stats = lambda where: {"num_device_alloc": 8}
    monkeypatch.delattr(torch.accelerator, "memory_stats")  # as before torch 2.9
    assert one.allocations() == 8
