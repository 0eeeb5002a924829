"""Questions about the device that no command asks; each is asked in a process of its own."""

from __future__ import annotations

import json

from _gpu_check.check import FAILS, HOLDS, UNKNOWN, Check, Verdict


def identity(check: Check) -> Verdict:
    import torch

    from iobench.host.device import device_of

    found = device_of(torch.device(check.device)).identity() or {}
    (check.out / "identity.json").write_text(json.dumps(found, indent=1) + "\n")
    return HOLDS, ", ".join(f"{name} {value}" for name, value in found.items())


def allocations(check: Check) -> Verdict:
    import torch

    from iobench import StreamLoader
    from iobench.host.device import device_of

    device_api, seen = device_of(torch.device(check.device)), []
    loader = StreamLoader(check.manifest().root, format="npy", order="random", device=check.device)
    device_api.empty_caches()
    for _ in range(6):
        before = device_api.allocations()
        if before is None:
            return UNKNOWN, "nobody counts how often device memory is asked for"
        for batch in loader:
            batch["x"].float().mean()
        device_api.synchronize()
        seen.append((device_api.allocations() or 0) - before)
    said = f"device allocations per epoch {seen}, most reserved {(device_api.peak_bytes() or (0, 0))[1] >> 20} MiB"
    return (HOLDS if sum(seen[2:]) == 0 else FAILS), said


def late_consumer(check: Check) -> Verdict:
    import torch

    from iobench import StreamLoader
    from iobench.dataset.checksum import Checksum
    from iobench.loading.host_to_device import HostToDevice

    manifest, transfer = check.manifest(), HostToDevice(torch.device(check.device), non_blocking=True)
    proof = Checksum(manifest.schema)
    for batch in StreamLoader(
        manifest.root, format="npy", order="random", batch_size=64, device=check.device
    ):
        transfer.lag()
        proof.add(batch)
        del batch
    said = f"checksum {proof.content:016x}, expected {manifest.content:016x}"
    return (HOLDS if proof.content == manifest.content else FAILS), said


def clock(check: Check) -> Verdict:
    import torch

    from iobench.bench import epoch
    from iobench.bench.device_clock import DeviceClock
    from iobench.bench.training import Trainer
    from iobench.loading import loaders
    from iobench.loading.host_to_device import HostToDevice
    from iobench.loading.loaders import Job
    from iobench.loading.order import Order

    manifest, said = check.manifest(), []
    for loader in ("native", "stream"):
        for strict in (False, True):
            one, transfer = (
                loaders.get(loader).on(check.device),
                HostToDevice(torch.device(check.device), True),
            )
            job = Job(manifest.opener("npy"), Order("random", 64), check.device)
            trainer = Trainer("cnn", manifest.schema, transfer.device, seed=0)
            found = DeviceClock(transfer.device_api, strict)
            transfer.release_memory()
            with found:
                wanted = epoch.RoundSpec(1, found.around(trainer.step), seconds=0.0)
                done = epoch.measure(one, job, transfer, wanted).timing
            said.append(
                f"{loader}{', strict' * strict}: epoch {done.epochs_s:.3f} s, host waited {done.wait_s:.3f}, "
                f"device waited {found.waits.total_s:.3f}, computed {found.steps.total_s:.3f}, "
                f"first batch {found.waits.first_s * 1e3:.1f} ms"
            )
    return HOLDS, "; ".join(said)


def cudnn(check: Check) -> Verdict:
    import torch
    from torch.profiler import profile

    from iobench.bench.training import Trainer

    manifest, device = check.manifest(), torch.device(check.device)
    batch = {
        field.name: torch.zeros((64, *field.shape), dtype=getattr(torch, field.dtype), device=device)
        for field in manifest.schema.fields
    }
    trainer = Trainer("cnn", manifest.schema, device, seed=0)
    with profile() as seen:
        trainer.step(batch)
    found = sorted({event.key for event in seen.key_averages() if "convolution" in event.key})
    return (HOLDS if any("cudnn" in name for name in found) else FAILS), ", ".join(found)
