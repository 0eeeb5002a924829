"""Who takes part in the race, and why others do not."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from iobench import formats
from iobench.base.errors import (
    InvalidSettings,
    IobenchError,
    MissingDependency,
)
from iobench.base.units import bytes_text
from iobench.bench.case import Case
from iobench.bench.options import RunOptions, cases_of
from iobench.dataset.manifest import Manifest
from iobench.formats import Schema
from iobench.loading import loaders
from iobench.loading.order import shuffledness
from iobench.recommendation.requirements import CORE, Requirements

DEFAULT_LOADER, USUAL = "dataloader", "npy"
OURS = ("stream", "native", DEFAULT_LOADER)  # without a process of their own, so they are asked first
MOST_REASONS = 4  # of why nothing fits, in one line
SHUFFLE_BATCHES = 50  # that an order's randomness is judged by
CORE_PACKAGES = {"torch", "tensordict", "numpy", "h5py", "lmdb"}  # installed with iobench


@dataclass
class CandidateSet:
    """The cases that take part, and a sentence about each choice that does not."""

    cases: list[Case]
    not_tried: list[str]


def loader_words(requirements: Requirements) -> list[str]:
    """Every loader with the settings that people try: as it is, as it is advised, a worker for each core.

    What is quick to prove comes first: with little time that is all that can be raced.
    """
    if "all" not in requirements.loaders:
        return sorted(requirements.loaders, key=lambda word: word.partition(":")[0] not in OURS[:2])
    cores = len(os.sched_getaffinity(0))
    tuned = ["fetch=batch", f"num_workers={cores}", f"num_workers={cores},fetch=batch"]
    ours = [*OURS, *(f"{DEFAULT_LOADER}:{options}" for options in tuned)]
    if requirements.only == CORE:
        return ours
    others = [name for name in loaders.names() if name not in OURS]
    return [*ours, *others, *filter(None, map(_advised, others))]


def _advised(name: str) -> str | None:
    """The word of a loader with what its documentation advises, if it advises anything but its defaults."""
    try:
        return loaders.class_of(name).tuned()
    except IobenchError:
        return None  # a broken package, which is told of where the loader itself is tried


def storable_variants(schema: Schema, requirements: Requirements) -> tuple[list[str], list[str]]:
    """The variants that could hold such samples on the disk there is, and why others could not."""
    found, left_out = [], []
    for word in formats.names() if "all" in requirements.formats else requirements.formats:
        try:
            format = formats.parse(word)
            bound = format.size_bound(schema) * ((requirements.full_bytes or 0) / schema.logical_bytes or 1)
        except IobenchError as error:
            if "all" not in requirements.formats:
                raise
            left_out.append(str(error))
            continue
        if requirements.max_disk_bytes is not None and bound > 1.05 * requirements.max_disk_bytes:
            left_out.append(
                f"{format.variant}: up to {bytes_text(bound)} on disk, more than "
                f"{bytes_text(requirements.max_disk_bytes)}"
            )
            continue
        if requirements.only != CORE or formats.type_of(format.name).library in CORE_PACKAGES:
            found.append(format.variant)  # of others candidate_set says why
    return found, left_out


def candidate_set(manifest: Manifest, requirements: Requirements, device: str, cache: str, added: Sequence[str] = ()) -> CandidateSet:
    """Every case that fits what is needed, the default first, then ours; InvalidSettings where none does.

    `added` are variants that somebody has already: they take part, and the first is what the default reads.
    """
    words = requirements.formats if "all" in requirements.formats else tuple(dict.fromkeys([*requirements.formats, *added]))
    for word in requirements.formats:
        if word != "all":
            formats.parse(word)  # what is no format at all is said once, not for each loader
    too_large = _too_large(manifest, requirements)
    not_tried = list(too_large.values())
    wanted = RunOptions(
        format=words,
        order=requirements.orders,
        batch_size=requirements.batch_sizes,
        cache=(cache,),
        seed=requirements.seed,
    )
    cases, reasons = _cases_by_loader(manifest, requirements, wanted, device)
    cases, not_tried = [case for case in cases if case.variant not in too_large], [*not_tried, *reasons]
    if requirements.only == CORE:
        cases = [case for case in cases if not packages_of(case)]
        not_tried.insert(0, "what needs packages that iobench does not bring: --only core leaves it out")
    least = f"--min-shuffle {requirements.least_shuffle:g}"
    unshuffled = [order for order in requirements.orders if shuffle_of(manifest, requirements, order) < requirements.least_shuffle]
    for order in unshuffled:
        not_tried.insert(0, f"{order} order: its batches are less random than {least}")
        cases = [case for case in cases if case.order != order]
    if not cases:
        shown = "; ".join(not_tried[:MOST_REASONS]) or "no format is prepared"
        more = len(not_tried) - MOST_REASONS
        raise InvalidSettings(f"nothing fits: {shown}" + (f"; and {more} more" if more > 0 else ""))
    first = default_case(cases, *added[:1])  # what all others are held against
    ordered = [*([first] if first else []), *cases]
    return CandidateSet(list({case.key: case for case in ordered}.values()), not_tried)


def _cases_by_loader(
    manifest: Manifest, requirements: Requirements, wanted: RunOptions, device: str
) -> tuple[list[Case], list[str]]:
    """The cases of every loader that takes part, and why others do not, once for each."""
    cases, reasons = list[Case](), dict[str, str]()
    for word in loader_words(requirements):
        try:
            cases += cases_of(manifest, replace(wanted, loader=(word,)), [device])
        except IobenchError as error:
            if "all" not in requirements.loaders:
                raise
            missing = isinstance(error, MissingDependency)
            reasons.setdefault(word.partition(":")[0], str(error) if missing else f"loader {word}: {error}")
    return cases, list(reasons.values())


def shuffle_of(manifest: Manifest, requirements: Requirements, order: str) -> float:
    """How random the least random batches of an order are: see `iobench.loading.order.shuffledness`."""
    if order == "random":
        return 1.0
    return min(_shuffle_of(manifest, order, batch_size) for batch_size in requirements.batch_sizes)


def _shuffle_of(manifest: Manifest, order: str, batch_size: int) -> float:
    drawn = Case("", "", "", loaders.get(DEFAULT_LOADER), order=order, batch_size=batch_size)
    dealt = drawn.row_order(manifest.schema)
    batches = dealt.batches(manifest.schema.samples, 0)[:SHUFFLE_BATCHES]
    return shuffledness(batches, dealt.block_rows, manifest.schema.samples)


def packages_of(case: Case) -> set[str]:
    """The packages that a case needs beside those that iobench brings."""
    needed = {formats.type_of(formats.parse(case.variant).name).library, type(case.loader).library}
    return needed - CORE_PACKAGES


def loader_word(case: Case) -> str:
    """The loader of a case as it is typed: without what follows from the device."""
    if case.loader.foreign:
        return case.loader.variant
    plain = type(case.loader)()
    free, decided = plain.options, plain.on(case.device).options
    same = {name: free[name] for name, value in case.loader.options.items() if value == decided[name]}
    return replace(case.loader, **same).variant


def default_case(cases: Sequence[Case], usual: str = USUAL) -> Case | None:
    """What people use by default: DataLoader, sample by sample, over what is usual or what there is first."""
    plain = [case for case in cases if loader_word(case) == DEFAULT_LOADER and case.order != "block"]
    return next((case for case in plain if case.variant == usual), plain[0] if plain else None)


def _too_large(manifest: Manifest, requirements: Requirements) -> dict[str, str]:
    """Variants that would take more of the disk than there is, each with a sentence."""
    if requirements.max_disk_bytes is None:
        return {}
    scale = (requirements.full_bytes or 0) / manifest.schema.logical_bytes or 1
    needed = {variant: made.stored_bytes * scale for variant, made in manifest.artifacts.items()}
    most = bytes_text(requirements.max_disk_bytes)
    return {
        variant: f"{variant}: {bytes_text(stored)} on disk, more than {most}"
        for variant, stored in needed.items()
        if stored > requirements.max_disk_bytes
    }
