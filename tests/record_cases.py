"""Synthetic records."""

import random
from dataclasses import is_dataclass, replace

import iobench
from iobench import RunOptions
from iobench.base.machine import Machine, MachineDisk
from iobench.bench.case import Case
from iobench.loading import loaders
from iobench.loading.stages import STAGES
from iobench.results.parts import (
    CachePart,
    DatasetPart,
    DiskPart,
    FieldSpec,
    LimitPart,
    MemoryPart,
    ProcessorPart,
    TimingPart,
)
from iobench.results.record import Record

MIB = 2**20
MACHINE = Machine(
    host="here",
    cpu="Z80",
    cores=2,
    usable_cores=2,
    memory_bytes=2**34,
    kernel="6.1",
    disk=MachineDisk(file_system="ext4", device="/dev/sda", model="fast", read_ahead_kib=128),
    versions={"iobench": "0.1.0"},
)
SAMPLES = 1024
STEADY = [1000, 1010, 990, 1005, 995]
CONTENT = "0123456789abcdef"


def a_case(variant="npy", loader="native", **chosen):
    """Return a case over synthetic data; `loader` is a loader with options, as typed."""
    device = chosen.pop("device", "cpu")
    return Case(
        dataset=chosen.pop("dataset", "d"),
        content=CONTENT,
        variant=variant,
        loader=loaders.parse(loader).on(device),
        device=device,
        order=chosen.pop("order", "sequential"),
        **chosen,
    )


def a_record(mib_per_s, number=1, variant="npy", loader="native", chosen=None, **changes):
    """Return one round at this speed over a dataset of 1 GiB.

    `chosen` are facets of the case; a part's name with a dict changes that part; others are fields.
    """
    case = a_case(variant, loader, **(chosen or {}))
    logical = SAMPLES * MIB
    made = Record(
        run="r1",
        time=f"2026-01-02T03:{number:02}:05.678+00:00",
        round=number,
        case=case.facets,
        dataset=DatasetPart(
            name=case.dataset,
            samples=SAMPLES,
            fields=[FieldSpec(name="x", shape=[MIB], dtype="uint8")],
            source={"kind": "generated"},
            content=CONTENT,
            stored_bytes=logical,
            write_s=2.0,
        ),
        cache=CachePart(mode=case.cache, method="read through in order", residency=1.0),
        machine=MACHINE,
        timing=TimingPart(
            samples=SAMPLES,
            logical_bytes=logical,
            epochs_s=logical / MIB / mib_per_s,
            open_s=0.01,
            first_batch_s=0.2,
            wait_s=0.5,
            wait_p50_s=0.001,
            wait_p99_s=0.002,
        ),
        processor=ProcessorPart(cpu_s=1.5, major_faults=0),
        disk=DiskPart(read_bytes=0, device_read_bytes=0),
        memory=MemoryPart(peak_bytes=100 * MIB),
        limit=LimitPart(name="page cache", bytes_per_s=10_000 * MIB),
    )
    for name, change in changes.items():
        before = getattr(made, name)
        changes[name] = (
            replace(before, **change) if is_dataclass(before) and isinstance(change, dict) else change
        )
    return replace(made, **changes)


def times(factor, speeds=STEADY):
    return [speed * factor for speed in speeds]


def by_round(*rates):
    return dict(enumerate(rates, 1))


def rounds_of(speeds, **common):
    """Return one record per speed, in MiB/s."""
    return [a_record(speed, number, **common) for number, speed in enumerate(speeds, 1)]


def varied(part, name, figures, speeds=STEADY):
    """Return one record per speed, in which a field of a part has one of these figures after the other."""
    pairs = zip(speeds, figures, strict=True)
    return [a_record(speed, n, **{part: {name: figure}}) for n, (speed, figure) in enumerate(pairs, 1)]


def came_once(records):
    """Return whether the samples of each record were all verified, and came once."""
    checks = [record.content_check for record in records if record.content_check]
    lost = any(check.dropped or check.repeated for check in checks)
    return not lost and all(not one.unverified and one.verified is None for one in records)


WHOLE_S = 3600.0  # a round is an epoch, and all of it is verified, however busy the machine is


def run_once(manifest, formats, loaders, out, **options):
    """Run each case for one round of a whole epoch."""
    chosen = {"device": ("cpu",), "rounds": "1", "limits": False, "round_seconds": WHOLE_S, **options}
    return iobench.run(manifest, RunOptions(formats, loaders, **chosen), out=out)


def delivered(manifest, formats, loaders, out, **options):
    """Run each case once, and return the records: none failed, and each sample came once."""
    made = run_once(manifest, formats, loaders, out, **options)
    assert not made.failures
    assert made.records
    assert came_once(made.records)
    return made.records


def rounds_at(rates, **shares):
    """Return one record per round at these samples/s; `shares` of its time are `wait` and `first_batch`."""
    return [
        a_record(rate, n, timing={f"{name}_s": share * SAMPLES / rate for name, share in shares.items()})
        for n, rate in rates.items()
    ]


def profiled(record, seconds):
    """Return the record with its epoch split over these stages, in seconds."""
    stages = {stage: seconds.get(stage, 0.0) for stage in STAGES}
    timing = replace(record.timing, stages=stages, reader_threads_s=0.5, profiling_s=0.001)
    return replace(record, timing=timing, case={**record.case, "profile": True})


FORMATS = {  # stored bytes per logical byte, speed
    "npy": (1.0, 5000),
    "memmap": (1.0, 4900),
    "raw": (1.0, 4800),
    "safetensors": (1.0, 4700),
    "hdf5": (1.02, 3300),
    "zarr": (0.6, 2500),
    "arrow": (1.01, 4300),
    "parquet": (0.55, 700),
    "webdataset": (1.1, 900),
    "mds": (1.05, 600),
    "litdata": (1.04, 1100),
    "beton": (1.2, 2300),
    "tfrecord": (1.03, 1300),
    "lance": (0.95, 1900),
    "blosc2": (0.5, 2100),
}
LOADERS = {
    "stream": 1.0,
    "native": 0.9,
    "ffcv": 0.6,
    "dataloader": 0.05,
    "litdata": 0.2,
    "mosaic": 0.12,
    "webdataset": 0.15,
    "spdl": 0.5,
    "grain": 0.08,
    "torchdata": 0.07,
    "huggingface": 0.1,
    "lance": 0.3,
}


def a_large_run(rounds=5):
    """Return records of 15 formats under 12 loaders, warm and cold."""
    made = []
    rng = random.Random(0)
    for cache in ("warm", "cold"):
        for name, (stored, speed) in FORMATS.items():
            for loader, factor in LOADERS.items():
                for number in range(1, rounds + 1):
                    limit = 1200 if cache == "cold" else 9000
                    mib_per_s = min(speed * factor, 0.9 * limit) * rng.uniform(0.97, 1.03)
                    one = a_record(mib_per_s, number, chosen={"cache": cache}, cache={"mode": cache})
                    made.append(
                        replace(
                            one,
                            case={**one.case, "format": name, "loader": loader},
                            dataset=replace(one.dataset, stored_bytes=int(stored * SAMPLES * MIB)),
                            limit=LimitPart(
                                name="disk" if cache == "cold" else "page cache", bytes_per_s=limit * MIB
                            ),
                        )
                    )
    return made
