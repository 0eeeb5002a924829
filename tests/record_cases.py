"""Records as a run would leave them, made up."""

from dataclasses import asdict

from iobench.bench.case import Settings, case
from iobench.loading.stages import STAGES
from iobench.results.record import Record

MIB = 2**20
MACHINE = {
    "host": "here",
    "cpu": "Z80",
    "cores": 2,
    "usable_cores": 2,
    "memory_bytes": 2**34,
    "kernel": "6.1",
    "disk": {"file_system": "ext4", "device": "/dev/sda", "model": "fast", "read_ahead_kib": 128},
    "gpu": None,
    "versions": {"iobench": "0.1.0"},
}
SAMPLES = 1024


def a_record(mib_per_s, number=1, variant="npy", loader="native", settings=None, **changes):
    """One round at this speed over a dataset of 1 GiB."""
    one = case(variant, loader, settings or Settings())
    logical = SAMPLES * MIB
    dataset = {
        "name": "d",
        "samples": SAMPLES,
        "fields": [{"name": "x", "shape": [MIB], "dtype": "uint8"}],
        "source": {"kind": "generated"},
        "content": "0123456789abcdef",
        "stored_bytes": logical,
        "write_s": 2.0,
    }
    defaults = {
        "run": "r1",
        "time": f"2026-01-02T03:{number:02}:05.678+00:00",
        "round": number,
        "dataset": dataset,
        "case": one.as_dict(),
        "device": "cpu",
        "cache": {"mode": "warm", "method": "read through in order", "residency": 1.0},
        "model": "none",
        "machine": MACHINE,
        "samples": SAMPLES,
        "logical_bytes": logical,
        "open_s": 0.01,
        "epoch_s": logical / MIB / mib_per_s,
        "first_batch_s": 0.2,
        "wait_s": 0.5,
        "wait_p50_s": 0.001,
        "wait_p99_s": 0.002,
        "cpu_s": 1.5,
        "disk_bytes": 0,
        "major_faults": 0,
        "memory_bytes": 100 * MIB,
        "steal_s": 0.0,
        "device_disk_bytes": 0,
        "gpu_allocated_bytes": None,
        "gpu_reserved_bytes": None,
        "loss": None,
        "limit": {"name": "page cache", "how": "", "bytes_per_s": 10_000 * MIB, "reads_per_s": None},
    }
    return Record(**{**defaults, **changes})


def rounds_of(speeds, **common):
    """One record per speed, in MiB/s."""
    return [a_record(speed, number, **common) for number, speed in enumerate(speeds, 1)]


def profiled(record, seconds):
    """The same record with its epoch split evenly over these stages."""
    stages = {stage: seconds.get(stage, 0.0) for stage in STAGES}
    return Record(**{**asdict(record), "stages": stages, "beside_s": 0.5, "spans_s": 0.001})
