"""Steps that use the device directly, each in a child process."""

from __future__ import annotations

import json

from eval.gpu_check.check import FAIL, PASS, UNKNOWN, Check, Verdict


def identity(check: Check) -> Verdict:
    """Report the GPU, its driver, its link and its NUMA node."""
    import torch

    from iobench.host.device import device_of

    identity = device_of(torch.device(check.device)).identity() or {}
    (check.out / "identity.json").write_text(json.dumps(identity, indent=1) + "\n")
    return PASS, ", ".join(f"{name} {value}" for name, value in identity.items())


def allocations(check: Check) -> Verdict:
    """Check that StreamLoader allocates no device memory from the third epoch on."""
    import torch

    from iobench import StreamLoader
    from iobench.host.device import device_of

    device_api, counts = device_of(torch.device(check.device)), []
    loader = StreamLoader(check.manifest().root, format="npy", order="random", device=check.device)
    device_api.empty_caches()
    for _ in range(6):
        before = device_api.allocations()
        if before is None:
            return UNKNOWN, "this device does not count allocations"
        for batch in loader:
            batch["x"].float().mean()
        device_api.synchronize()
        counts.append((device_api.allocations() or 0) - before)
    peak = (device_api.peak_bytes() or (0, 0))[1]
    evidence = f"device allocations per epoch {counts}, peak reserved {peak >> 20} MiB"
    return (PASS if sum(counts[2:]) == 0 else FAIL), evidence


def late_consumer(check: Check) -> Verdict:
    """Verify an epoch whose batches are used late, on a busy stream without synchronization."""
    import torch

    from iobench import StreamLoader
    from iobench.dataset.checksum import Checksum
    from iobench.loading.host_to_device import HostToDevice

    manifest, transfer = check.manifest(), HostToDevice(torch.device(check.device), non_blocking=True)
    checksum = Checksum(manifest.schema)
    for batch in StreamLoader(
        manifest.root, format="npy", order="random", batch_size=64, device=check.device
    ):
        transfer.lag()
        checksum.add(batch)
        del batch
    evidence = f"checksum {checksum.content:016x}, expected {manifest.content:016x}"
    return (PASS if checksum.content == manifest.content else FAIL), evidence


def clock(check: Check) -> Verdict:
    """Report compute and wait time by the device's clock."""
    import torch

    from iobench.bench import epoch
    from iobench.bench.meter import DeviceClock
    from iobench.bench.training import Trainer
    from iobench.loading import loaders
    from iobench.loading.host_to_device import HostToDevice
    from iobench.loading.loaders import Job
    from iobench.loading.order import Order

    manifest, evidence = check.manifest(), []
    for loader in ("native", "stream"):
        for strict in (False, True):
            one, transfer = (
                loaders.get(loader).on(check.device),
                HostToDevice(torch.device(check.device), True),
            )
            job = Job(manifest.opener("npy"), Order("random", 64), check.device)
            trainer = Trainer("cnn", manifest.schema, transfer.device, seed=0)
            for _ in range(2):  # the first time cuDNN starts, and memory is pinned
                device_clock = DeviceClock(transfer.device_api, strict)
                with device_clock:
                    spec = epoch.RoundSpec(1, device_clock.around(trainer.step), seconds=0.0)
                    done = epoch.measure(one, job, transfer, spec).timing
            transfer.release_memory()
            evidence.append(
                f"{loader}{', strict' * strict}: epoch {done.epochs_s:.3f} s, host waited {done.wait_s:.3f}, "
                f"device waited {device_clock.waits.total_s:.3f}, computed {device_clock.steps.total_s:.3f}, "
                f"first batch {device_clock.waits.first_s * 1e3:.1f} ms"
            )
    return PASS, "; ".join(evidence)


def cudnn(check: Check) -> Verdict:
    """Check that the convolutions of the training step are those of cuDNN."""
    import torch
    from torch.profiler import profile

    from iobench.bench.training import Trainer

    manifest, device = check.manifest(), torch.device(check.device)
    batch = {
        field.name: torch.zeros((64, *field.shape), dtype=getattr(torch, field.dtype), device=device)
        for field in manifest.schema.fields
    }
    trainer = Trainer("cnn", manifest.schema, device, seed=0)
    with profile() as profiler:
        trainer.step(batch)
    kernels = sorted({event.key for event in profiler.key_averages() if "convolution" in event.key})
    return (PASS if any("cudnn" in name for name in kernels) else FAIL), ", ".join(kernels)
