"""A trial: a mapped file as pinned memory."""

from __future__ import annotations

import ctypes
import mmap
import re
import time
from pathlib import Path
from typing import Any

import numpy as np

from _gpu_check.check import FAILS, HOLDS, UNKNOWN, Check, Verdict

READ_ONLY = 0x08  # cudaHostRegisterReadOnly
TIMES = 3  # that a file is copied: the best one counts


def host_register(check: Check) -> Verdict:
    """A mapped file as pinned memory: what is copied from it takes no step of its own on the host."""
    import torch

    from iobench.host.device import device_of

    device_api = device_of(torch.device(check.device))
    device_api.use()
    device_api.synchronize()  # CUDA's runtime is loaded
    library = _runtime()
    if library is None:
        return UNKNOWN, "this torch has no libcudart of its own"
    path = max(check.manifest().files_of("npy"), key=lambda file: file.stat().st_size)
    with (
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ) as mapped,
    ):
        array = np.frombuffer(mapped, np.uint8)
        try:
            return _tried(library, device_api, array)
        finally:
            del array  # or the map could not be closed


def _tried(library: Any, device_api: Any, array: Any) -> Verdict:
    import torch

    host = torch.from_numpy(array)
    there = torch.empty_like(host, device=device_api.torch)
    before = _copied(device_api, there, host)
    began = time.perf_counter()
    code = library.cudaHostRegister(array.ctypes.data, array.nbytes, READ_ONLY)
    took = time.perf_counter() - began
    if code:
        library.cudaGetLastError()  # or the next call to CUDA would report it
        return UNKNOWN, f"cudaHostRegister of a read-only map gives error {code}"
    there.zero_()
    after = _copied(device_api, there, host)
    library.cudaHostUnregister(array.ctypes.data)
    said = (
        f"{host.nbytes >> 20} MiB registered in {took:.3f} s, copied at {after:.2f} GB/s, before that at "
        f"{before:.2f} (best of {TIMES})"
    )
    return (HOLDS, said) if torch.equal(there.cpu(), host) else (FAILS, f"other bytes arrived; {said}")


def _copied(device_api: Any, there: Any, host: Any) -> float:
    """GB/s by the device's clock."""
    rates = []
    for _ in range(TIMES):
        device_api.synchronize()
        start = device_api.mark()
        there.copy_(host, non_blocking=True)
        end = device_api.mark()
        device_api.synchronize()
        rates.append(host.nbytes / end.seconds_since(start) / 1e9)
    return max(rates)


def _runtime() -> Any:
    """CUDA's runtime as torch has loaded it; None where it has none of its own."""
    loaded = re.search(r"(\S*libcudart\S*)", Path("/proc/self/maps").read_text())
    if loaded is None:
        return None
    library = ctypes.CDLL(loaded.group(1))
    library.cudaHostRegister.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint]
    library.cudaHostUnregister.argtypes = [ctypes.c_void_p]
    return library
