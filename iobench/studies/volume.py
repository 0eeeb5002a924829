"""All formats with several volumes of data, warm and cold, and beyond the memory."""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from iobench.base.errors import ColdCacheUnavailable, LoaderFailed, PrepareError
from iobench.base.units import GIB, bytes_text
from iobench.bench.options import RunOptions
from iobench.bench.outcome import Observer
from iobench.bench.run import run
from iobench.dataset.manifest import Manifest
from iobench.dataset.prepare import DEFAULT_FORMATS, prepare
from iobench.dataset.sources import Synthetic
from iobench.host import memory, page_cache
from iobench.studies._claims import EPOCH_S, REPRODUCED, ClaimResult, Claims, all_of
from iobench.studies._rounds import ROUNDS, Heartbeat, Measurements, RoundResult, merged, run_in_subprocess
from iobench.studies._study import IO_EVALUATION, Study, StudyOptions, scratch

LOADERS = {"dataloader": "dataloader:fetch=batch", "native": "native"}  # variant of each loader
NO_SWAP = {"memory.swap.max": "0", "memory.memsw.limit_in_bytes": "{}"}  # cgroup version 2, version 1
RELEASE_S = 5.0  # for the kernel to notice that the last process of a group has ended


class TimeEstimates(Observer):
    """Passes on a run's estimates of its time."""

    def __init__(self, options: StudyOptions, mode: str) -> None:
        self._options, self._mode = options, mode

    def status(self, text: str) -> None:
        """Report the time of the rounds, and no other status."""
        if ": about " in text:
            self._options.on_status(f"{self._mode}: {text}")


def rounds(
    root: Path,
    variants: Sequence[str],
    device: str,
    mode: str,
    volume: str,
    count: int = ROUNDS,
    observer: Observer | None = None,
) -> Measurements:
    """Run rounds of formats with whole batches under DataLoader and under native."""
    options = RunOptions(
        format=tuple(variants),
        loader=tuple(LOADERS.values()),
        device=(device,),
        cache=(mode,),
        order=("sequential",),
        rounds=str(count),
        limits=False,
    )
    done = run(Manifest.load(root), options, out=root / f"{mode}.jsonl", observer=observer)
    if done.interrupted:
        raise KeyboardInterrupt
    for key, failure in done.failures.items():
        raise failure.changed(problem=f"{done.labels[key]}: {failure.problem}")
    measured = Measurements({contender(one.variant, one.loader.name, volume): [] for one in done.cases})
    for record in done.records:
        metrics = {"speed_bytes_per_s": record.bytes_per_s, "residency": record.cache.residency}
        known = {metric: value for metric, value in metrics.items() if value is not None}
        name = contender(record.case["format"], record.case["loader"], volume)
        measured.add(name, RoundResult(record.epoch_s, known))
        if record.background is not None:
            measured.background.append(record.background)
    return measured


def rounds_within(
    heartbeat: Heartbeat, group: Path, rehearsal: Path, root: Path, device: str, volume: str
) -> Measurements:
    """Run warm rounds within a control group's memory; must run in a process of its own."""
    variants = list(Manifest.load(rehearsal).artifacts)
    rounds(
        rehearsal, variants, device, "warm", "", count=1
    )  # memory that libraries allocate once does not count
    join(group)
    heartbeat()
    return rounds(root, variants, device, "warm", volume)


def at(label: str, volume: str) -> str:
    """Return a contender's name: format and loader, and the volume of data."""
    return f"{label} at {volume}"


def contender(variant: str, loader: str, volume: str) -> str:
    """Return a contender's name from its format, loader and volume."""
    return at(f"{variant} · {LOADERS[loader]}", volume)


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """Yield the folder of a temporary control group with a memory limit; PermissionError if not allowed."""
    group = _create(limit_bytes)
    try:
        yield group
    finally:
        until = time.monotonic() + RELEASE_S
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.05)


def join(group: Path) -> None:
    """Move this process into a group, where all memory that it allocates from now on counts."""
    (group / "cgroup.procs").write_text(str(os.getpid()))


def _create(limit_bytes: int) -> Path:
    """Create the group below this process's group or next to it.

    Version 2 has no limits below a group that has processes.
    """
    name, reason = f"iobench-{os.getpid()}", "no control group accounts for memory here"
    for parent in (folder for own in memory.memory_groups() for folder in (own, own.parent)):
        group = parent / name
        try:
            group.mkdir()
        except OSError as error:
            reason = f"{group}: {error.strerror}"
            continue
        try:
            limit = next(group / file for file in memory.LIMIT_FILES if (group / file).exists())
            limit.write_text(str(limit_bytes))
            for file, value in NO_SWAP.items():
                if (group / file).exists():
                    (group / file).write_text(value.format(limit_bytes))
            return group
        except (OSError, StopIteration) as error:
            reason = f"{group}: memory cannot be limited here ({error})" if str(error) else reason
            group.rmdir()
    raise PermissionError(reason)


PUBLISHED, QUICK = tuple(10**power for power in range(5, 10)), (10**5, 10**7)  # elements
ITEM_BYTES = 4
DISK_SHARE, MEMORY_SHARE = 0.6, 0.4  # of free space and memory: all formats together; the arrays
LIMIT_BYTES, QUICK_LIMIT_BYTES = 512 << 20, 128 << 20
OF_LIMIT, QUICK_OF_LIMIT = (0.25, 0.5, 1.0, 2.0), (0.5, 2.0)
QUICK_LIMITED = ("npy", "memmap")
LIMITED_S = 1200.0  # for the rounds over one volume
SAMPLE_BYTES = 512
BATCHES, SLICES = (f"memmap · {word}" for word in LOADERS.values())


def _setup(options: StudyOptions) -> str:
    few, *_, many = options.sized(PUBLISHED, QUICK)
    fits = "" if options.quick else " or what fits"
    return (
        f"{_power(few)} to {_power(many)} float32{fits}, in samples of 128, batch 256, in order, "
        f"to {options.device}, warm and cold; and {_limited_data(options)}"
    )


def _measure(options: StudyOptions) -> Measurements:
    parts, cold_failure, sizes = list[Measurements](), None, _sizes(options)
    for size in sizes:
        options.on_status(f"{_power(size)} elements")
        with _prepared(options, size, DEFAULT_FORMATS) as manifest:
            measure = partial(rounds, manifest.root, DEFAULT_FORMATS, options.device)
            parts.append(measure("warm", _power(size), observer=TimeEstimates(options, "warm")))
            try:
                cold = measure("cold", f"{_power(size)}, cold", observer=TimeEstimates(options, "cold"))
                parts.append(cold)
            except ColdCacheUnavailable as error:
                cold_failure = str(error)
    limited, limit_failure = _under_a_limit(options)
    return merged(
        [*parts, *limited],
        f"{bytes_text(sizes[0] * ITEM_BYTES)} to {bytes_text(sizes[-1] * ITEM_BYTES)} "
        f"in samples of {SAMPLE_BYTES} B",
        sizes=[_power(size) for size in sizes],
        limited=[_of_limit(share) for share in _limits(options)[1]],
        limited_data=_limited_data(options),
        cold_failure=cold_failure,
        limit_failure=limit_failure,
    )


def _verdicts(claims: Claims) -> dict[str, ClaimResult]:
    sizes, equal = claims.figures["sizes"], "DataLoader and tensorclass cost the same"
    return {
        f"{equal}, whatever the volume.": _equal(claims, sizes),
        f"{equal} from a cold disk, too (not tested there).": claims.unless(
            "cold_failure", partial(_equal, volumes=[f"{size}, cold" for size in sizes])
        ),
        "Time grows in proportion to the volume, so that one volume speaks for all.": _proportional(
            claims, sizes
        ),
        "Where memory ends, so does the warm cache: reading slows down (not tested there).": claims.unless(
            "limit_failure", _beyond_memory
        ),
    }


def _sizes(options: StudyOptions) -> tuple[int, ...]:
    """Return the numbers of elements that fit on the disk and in memory."""
    if options.quick:
        return QUICK
    free = shutil.disk_usage(options.folder).free * DISK_SHARE / len(DEFAULT_FORMATS)
    most = min(free, memory.free_memory() * MEMORY_SHARE) / ITEM_BYTES
    return tuple(size for size in PUBLISHED if size <= max(most, PUBLISHED[0]))


def _limits(options: StudyOptions) -> tuple[int, tuple[float, ...], Sequence[str]]:
    """Return the memory limit in bytes, the volumes as multiples of it, and the formats."""
    if options.quick:
        return QUICK_LIMIT_BYTES, QUICK_OF_LIMIT, QUICK_LIMITED
    return LIMIT_BYTES, OF_LIMIT, DEFAULT_FORMATS


@contextmanager
def _prepared(options: StudyOptions, size: int, variants: Sequence[str]) -> Iterator[Manifest]:
    with scratch(options) as folder:
        yield prepare(Synthetic(size), variants, data_dir=folder, name="volume")[0]


def _under_a_limit(options: StudyOptions) -> tuple[list[Measurements], str | None]:
    """Run warm rounds in processes with little memory; return them, and the obstacle if there was one."""
    limit, shares, variants = _limits(options)
    parts: list[Measurements] = []
    try:
        with memory_group(limit) as group:
            for share in shares:
                options.on_status(f"{share:g} times a memory limit of {bytes_text(limit)}")
                parts.append(_limited(options, group, limit, share, variants))
    except (PermissionError, ColdCacheUnavailable, PrepareError, LoaderFailed) as error:
        return parts, str(error)
    return parts, None


def _limited(
    options: StudyOptions, group: Path, limit: int, share: float, variants: Sequence[str]
) -> Measurements:
    size, prepared = int(limit * share / ITEM_BYTES), partial(_prepared, options, variants=variants)
    with prepared(PUBLISHED[0]) as rehearsal, prepared(size) as manifest:
        # pages that are already cached would count to another group
        page_cache.evict([file for variant in variants for file in manifest.files_of(variant)])
        arguments = (group, rehearsal.root, manifest.root, options.device, _of_limit(share))
        outcome = run_in_subprocess(rounds_within, *arguments, limit_s=LIMITED_S)
    if outcome.value is None:
        problem = f"under a memory limit of {bytes_text(limit)} the process {outcome.failure}"
        raise LoaderFailed(problem, kind="process-ended")
    return outcome.value


def _limited_data(options: StudyOptions) -> str:
    limit, shares, _ = _limits(options)
    return (
        f"{shares[0]:g} to {shares[-1]:g} times as many bytes as a memory limit of {bytes_text(limit)} allows"
    )


def _power(size: int) -> str:
    return f"{size:.0e}".replace("e+0", "e")


def _of_limit(share: float) -> str:
    return f"{share:g} × limit"


def _gib_of(contender: str) -> str:
    return f"a GiB of {contender}"


def _per_gib(measured: Measurements) -> Claims:
    """Return the claims on the time that each contender takes for a GiB."""
    speeds = measured.metrics["speed_bytes_per_s"]
    seconds = {_gib_of(name): [GIB / speed for speed in values] for name, values in speeds.items()}
    return Claims(Measurements(seconds, data=measured.data))


def _proportional(claims: Claims, sizes: Sequence[str]) -> ClaimResult:
    """Return the verdict from the smallest volume whose epochs are long enough."""
    measured = claims.measured
    epoch_s = {size: statistics.median(measured.seconds[at(SLICES, size)]) for size in sizes}
    large = [size for size in sizes[:-1] if epoch_s[size] >= EPOCH_S] or sizes[:1]
    names, aside = [at(SLICES, size) for size in (large[0], sizes[-1])], _speeds(measured, SLICES, sizes)
    few, many = map(_gib_of, names)
    return claims.long(_per_gib(measured).equal(few, many, f"; {aside}"), names)


def _equal(claims: Claims, volumes: Sequence[str]) -> ClaimResult:
    return all_of([claims.equal(at(SLICES, volume), at(BATCHES, volume)) for volume in volumes])


def _speeds(measured: Measurements, label: str, volumes: Sequence[str]) -> str:
    medians = [measured.median("speed_bytes_per_s", at(label, volume)) or 0.0 for volume in volumes]
    texts = (f"{bytes_text(speed)}/s at {volume}" for volume, speed in zip(volumes, medians, strict=True))
    return f"{label} reads {', '.join(texts)}"


def _beyond_memory(claims: Claims) -> ClaimResult:
    measured, per_gib = claims.measured, _per_gib(claims.measured)
    within, *_, beyond = volumes = claims.figures["limited"]
    labels = [name.partition(" at ")[0] for name in measured.seconds if name.endswith(at("", beyond))]
    slower = {
        label: per_gib.faster(_gib_of(at(label, within)), _gib_of(at(label, beyond))) for label in labels
    }
    fastest = max(labels, key=lambda label: measured.median("speed_bytes_per_s", at(label, within)) or 0.0)
    same = [label for label, result in slower.items() if result.verdict != REPRODUCED]
    unchanged = f"; not significantly slower at {beyond}: {', '.join(same)}" if same else ""
    evidence = f"{slower[fastest].evidence}; {_speeds(measured, fastest, volumes)}{unchanged}"
    return replace(slower[fastest], evidence=evidence, data=claims.figures["limited_data"])


PART = "the volume of data, which it varied, and the disk, which it left out"
QUESTION = "Does the answer depend on how much data there is?"
STUDY = Study(IO_EVALUATION, QUESTION, _setup, _measure, _verdicts, PART)
