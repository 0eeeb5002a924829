"""All formats over volumes of data, warm and cold, and past the end of memory."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import iobench
from iobench import formats
from iobench.bench.case import Settings
from iobench.dataset.manifest import Manifest
from iobench.dataset.sources import Synthetic
from iobench.errors import ColdCacheUnavailable, LoaderFailed, PrepareError, WrongContent
from iobench.host import cache
from iobench.studies._apart import Heartbeat, apart
from iobench.studies._base import HOLDS, ROUNDS, UNKNOWN, Answer, Found, Options, Study, scratch, together
from iobench.studies._claims import all_of, claimed_equal, claimed_faster
from iobench.studies._limited import join, memory_group
from iobench.units import bytes_text

PUBLISHED, QUICK = tuple(10**power for power in range(5, 10)), (10**5, 10**7)  # elements
ITEM_BYTES = 4
DISK_SHARE, MEMORY_SHARE = 0.6, 0.4  # of what is free: all formats at once; the arrays
LIMIT_BYTES, QUICK_LIMIT_BYTES = 512 << 20, 128 << 20
OF_LIMIT, QUICK_OF_LIMIT = (0.25, 0.5, 1.0, 2.0), (0.5, 2.0)
QUICK_LIMITED = ("npy", "memmap")
LIMITED_S = 1200.0  # for the rounds over one volume
BATCHES, SLICES = "memmap · dataloader, batch fetch", "memmap · native"
GIB = 1 << 30


class VolumeStudy(Study):
    """Runs like any other, over volumes."""

    source = "“DataLoader and TensorDict: an IO evaluation”: its variable, and the disk that it left out"
    question = "Does the answer depend on how much data there is?"

    def about(self, options: Options) -> str:
        """Sizes and settings, in words."""
        limit, shares, _ = _limits(options)
        return (
            f"{_power(PUBLISHED[0])} float32 and up to what fits, in samples of 128, batch 256, in order, "
            f"to {options.device}, warm and cold; {shares[0]:g} to {shares[-1]:g} times a memory limit "
            f"of {bytes_text(limit)}"
        )

    def measure(self, options: Options) -> Found:
        """Rounds over every volume, warm and cold; and warm ones under a memory limit."""
        parts, cold_failure, sizes = [], None, _sizes(options)
        for size in sizes:
            options.on_status(f"{_power(size)} elements")
            with _prepared(options, size, formats.names()) as manifest:
                measured = partial(rounds, manifest.root, formats.names(), options.device)
                parts.append(measured("warm", _power(size)))
                try:
                    parts.append(measured("cold", f"{_power(size)}, cold"))
                except ColdCacheUnavailable as error:
                    cold_failure = str(error)
        limited, limit_failure = _under_a_limit(options)
        return together(
            [*parts, *limited],
            sizes=[_power(size) for size in sizes],
            limited=[_of_limit(share) for share in _limits(options)[1]],
            cold_failure=cold_failure,
            limit_failure=limit_failure,
        )

    def answers(self, found: Found) -> list[Answer]:
        """What the rounds say about each claim."""
        sizes = found.figures["sizes"]
        cold, failure = [f"{size}, cold" for size in sizes], found.figures["cold_failure"]
        alike = "DataLoader and tensorclass cost the same"
        return [
            _alike(f"{alike}, whatever the volume.", found, sizes, None),
            _alike(f"{alike} from a cold disk, too (not tested there).", found, cold, failure),
            claimed_equal(
                "Time grows in proportion to the volume, so that one volume speaks for all.",
                _per_gib(found),
                _gib_of(f"{SLICES}; {sizes[0]}"),
                _gib_of(f"{SLICES}; {sizes[-1]}"),
                f"; {_speeds(found, SLICES, sizes)}",
            ),
            _where_memory_ends(found),
        ]


def rounds(
    root: Path, variants: Sequence[str], device: str, mode: str, volume: str, count: int = ROUNDS
) -> Found:
    """Rounds of formats under DataLoader, whole batches, and as their own libraries advise."""
    done = iobench.run(
        Manifest.load(root),
        variants,
        ("dataloader", "native"),
        settings=Settings(fetch="batch"),
        device=device,
        cache_mode=mode,
        rounds=count,
        limits=False,
        out=root / f"{mode}.jsonl",
    )
    if done.interrupted:
        raise KeyboardInterrupt
    for failure in done.failures.values():
        raise WrongContent(failure)
    found = Found({f"{one.label}; {volume}": [] for one in done.cases})
    for made in done.records:
        name = f"{made.case['label']}; {volume}"
        found.seconds[name].append(made.epoch_s)
        noted = {"speed_bytes_per_s": made.bytes_per_s, "in_memory": made.cache["residency"]}
        for figure, value in noted.items():
            if value is not None:
                found.noted.setdefault(figure, {}).setdefault(name, []).append(value)
    return found


def rounds_within(
    heartbeat: Heartbeat, group: Path, rehearsal: Path, root: Path, device: str, volume: str
) -> Found:
    """Warm rounds with no more memory than a group may have; for a process of its own."""
    variants = list(Manifest.load(rehearsal).artifacts)
    rounds(rehearsal, variants, device, "warm", "", count=1)  # what libraries take once is not part of it
    join(group)
    heartbeat()
    return rounds(root, variants, device, "warm", volume)


def _sizes(options: Options) -> tuple[int, ...]:
    """Numbers of elements, as far as they fit."""
    if options.quick:
        return QUICK
    room = shutil.disk_usage(options.folder).free * DISK_SHARE / len(formats.names())
    most = min(room, cache.free_memory() * MEMORY_SHARE) / ITEM_BYTES
    return tuple(size for size in PUBLISHED if size <= max(most, PUBLISHED[0]))


def _limits(options: Options) -> tuple[int, tuple[float, ...], Sequence[str]]:
    """Bytes of the memory limit, what is read under it as a multiple of that, and in which formats."""
    if options.quick:
        return QUICK_LIMIT_BYTES, QUICK_OF_LIMIT, QUICK_LIMITED
    return LIMIT_BYTES, OF_LIMIT, formats.names()


@contextmanager
def _prepared(options: Options, size: int, variants: Sequence[str]) -> Iterator[Manifest]:
    """A dataset for as long as it is looked at."""
    with scratch(options) as folder:
        yield iobench.prepare(Synthetic(size), variants, data_dir=folder, name="volume")[0]


def _under_a_limit(options: Options) -> tuple[list[Found], str | None]:
    """Warm rounds in processes that may have little memory, and what there was against it."""
    limit, shares, _ = _limits(options)
    parts: list[Found] = []
    try:
        with memory_group(limit) as group:
            for share in shares:
                options.on_status(f"{share:g} times a memory limit of {bytes_text(limit)}")
                parts.append(_limited(options, group, share))
    except (PermissionError, ColdCacheUnavailable, PrepareError, LoaderFailed) as error:
        return parts, str(error)
    return parts, None


def _limited(options: Options, group: Path, share: float) -> Found:
    limit, _, variants = _limits(options)
    size = int(limit * share / ITEM_BYTES)
    with (
        _prepared(options, PUBLISHED[0], variants) as rehearsal,
        _prepared(options, size, variants) as manifest,
    ):
        # or pages would stay that count elsewhere
        cache.evict([file for variant in variants for file in manifest.files_of(variant)])
        arguments = (group, rehearsal.root, manifest.root, options.device, _of_limit(share))
        outcome = apart(rounds_within, *arguments, limit_s=LIMITED_S)
    if outcome.value is None:
        raise LoaderFailed(f"under a memory limit of {bytes_text(limit)} the process {outcome.failure}")
    return outcome.value


def _power(size: int) -> str:
    return f"{size:.0e}".replace("e+0", "e")


def _of_limit(share: float) -> str:
    return f"{share:g} × limit"


def _gib_of(contender: str) -> str:
    return f"a GiB of {contender}"


def _per_gib(found: Found) -> Found:
    """Seconds for each GiB in place of seconds."""
    speeds = found.noted["speed_bytes_per_s"]
    return Found({_gib_of(name): [GIB / speed for speed in values] for name, values in speeds.items()})


def _alike(claim: str, found: Found, volumes: Sequence[str], failure: str | None) -> Answer:
    if failure is not None:
        return Answer(claim, UNKNOWN, failure)
    each = [claimed_equal("", found, f"{SLICES}; {volume}", f"{BATCHES}; {volume}") for volume in volumes]
    return all_of(claim, each)


def _speeds(found: Found, label: str, volumes: Sequence[str]) -> str:
    medians = [found.median("speed_bytes_per_s", f"{label}; {volume}") or 0.0 for volume in volumes]
    return ", ".join(
        f"{volume} {bytes_text(speed)}/s" for volume, speed in zip(volumes, medians, strict=True)
    )


def _where_memory_ends(found: Found) -> Answer:
    claim = "Where memory ends, so does the warm cache: reading slows down (not tested there)."
    if found.figures["limit_failure"] is not None:
        return Answer(claim, UNKNOWN, found.figures["limit_failure"])
    within, *_, beyond = volumes = found.figures["limited"]
    labels = [name.partition(";")[0] for name in found.seconds if name.endswith(f"; {beyond}")]
    slower = {
        label: claimed_faster(
            claim, _per_gib(found), _gib_of(f"{label}; {within}"), _gib_of(f"{label}; {beyond}")
        )
        for label in labels
    }
    fastest = max(labels, key=lambda label: found.median("speed_bytes_per_s", f"{label}; {within}") or 0.0)
    same = [label for label, answer in slower.items() if answer.answer != HOLDS]
    unmoved = f"; not surely slower: {', '.join(same)}" if same else ""
    told = f"; {_speeds(found, fastest, volumes)}{unmoved}"
    return replace(slower[fastest], because=slower[fastest].because + told)


STUDY = VolumeStudy()
