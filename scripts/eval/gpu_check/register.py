"""Experiment: register a memory-mapped file as pinned memory."""

from __future__ import annotations

import ctypes
import mmap
import re
import time
from pathlib import Path
from typing import Any

import numpy as np

from eval.gpu_check.check import FAIL, PASS, UNKNOWN, Check, Verdict

READ_ONLY = 0x08  # cudaHostRegisterReadOnly
COPIES = 3  # of the file; the best rate counts


def host_register(check: Check) -> Verdict:
    """Register a mapped file as pinned memory, so that copies to the device need no staging on the host."""
    import torch

    from iobench.host.device import device_of

    device_api = device_of(torch.device(check.device))
    device_api.use()
    device_api.synchronize()  # loads CUDA's runtime
    library = cuda_runtime()
    if library is None:
        return UNKNOWN, "this torch does not include libcudart"
    path = max(check.manifest().files_of("npy"), key=lambda file: file.stat().st_size)
    with (
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ) as mapped,
    ):
        array = np.frombuffer(mapped, np.uint8)
        try:
            return _register(library, device_api, array)
        finally:
            del array  # so that the map can be closed


def _register(library: Any, device_api: Any, array: Any) -> Verdict:
    import torch

    host = torch.from_numpy(array)
    target = torch.empty_like(host, device=device_api.torch)
    before = copy_rate(device_api, target, host)
    began = time.perf_counter()
    code = library.cudaHostRegister(array.ctypes.data, array.nbytes, READ_ONLY)
    register_s = time.perf_counter() - began
    if code:
        library.cudaGetLastError()  # clears the error, which the next CUDA call would report
        return UNKNOWN, f"cudaHostRegister of a read-only map: error {code}"
    target.zero_()
    after = copy_rate(device_api, target, host)
    library.cudaHostUnregister(array.ctypes.data)
    evidence = (
        f"{host.nbytes >> 20} MiB registered in {register_s:.3f} s, copied at {after:.2f} GB/s, "
        f"unregistered at {before:.2f} (best of {COPIES})"
    )
    return (PASS, evidence) if torch.equal(target.cpu(), host) else (FAIL, f"wrong bytes; {evidence}")


def copy_rate(device_api: Any, target: Any, host: Any) -> float:
    """Return the best copy rate in GB/s by the device's clock."""
    rates = []
    for _ in range(COPIES):
        device_api.synchronize()
        start = device_api.mark()
        target.copy_(host, non_blocking=True)
        end = device_api.mark()
        device_api.synchronize()
        rates.append(host.nbytes / end.seconds_since(start) / 1e9)
    return max(rates)


def cuda_runtime() -> Any:
    """Return the CUDA runtime that torch has loaded, or None."""
    loaded = re.search(r"(\S*libcudart\S*)", Path("/proc/self/maps").read_text())
    if loaded is None:
        return None
    library = ctypes.CDLL(loaded.group(1))
    library.cudaHostRegister.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint]
    library.cudaHostUnregister.argtypes = [ctypes.c_void_p]
    return library
