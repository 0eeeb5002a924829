"""Iteration speed of Dataset under DataLoader, tensorclass under DataLoader, and tensorclass by slices."""

from __future__ import annotations

import statistics
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from torch.utils.data import DataLoader

from iobench.base.units import bytes_text, seconds_text
from iobench.dataset.manifest import Manifest
from iobench.dataset.sources import Synthetic
from iobench.host import page_cache
from iobench.loading import loaders
from iobench.loading.loaders import Job
from iobench.loading.order import Order
from iobench.studies._claims import ClaimResult, Claims, all_of, judged
from iobench.studies._epochs import epochs
from iobench.studies._rounds import Contender, Measurements, exhaust, interleave, timed
from iobench.studies._study import IO_EVALUATION, Study, StudyOptions, warm_dataset

PUBLISHED, QUICK = 10**8, 5 * 10**6  # elements
BATCH = 256
DATASET, BATCHED = "Dataset under DataLoader", "tensorclass under DataLoader"
SLICED, INDEXED = "tensorclass slices", "tensorclass indices"
IN_MEMORY, LAZY = "in memory, slices", "lazy slices, 'moved' to the CPU"
GPU_DATASET, GPU_SLICED = "Dataset under DataLoader, to the GPU", "tensorclass slices, to the GPU"
FILLED, BUILT = "filling a pre-allocated TensorDict", "building the TensorDict"


def _setup(options: StudyOptions) -> str:
    size = f"{options.sized(PUBLISHED, QUICK):,} float32 in samples of 128"
    return f"{size}, memory-mapped and warm, batch {BATCH}, to the CPU{' and GPU' if options.gpu else ''}"


def _measure(options: StudyOptions) -> Measurements:
    source = Synthetic(options.sized(PUBLISHED, QUICK))
    manifest = warm_dataset(options, source, ["memmap"], f"iteration-{source.size}")
    held = TensorDict({"x": _mapped(manifest)["x"].clone()}, [manifest.schema.samples])
    contenders = {
        DATASET: _contender(manifest, "dataloader"),
        BATCHED: timed(lambda: exhaust(DataLoader(_mapped(manifest), BATCH, collate_fn=lambda batch: batch))),
        SLICED: _contender(manifest, "native"),
        INDEXED: _contender(manifest, "native", order="random"),
        IN_MEMORY: timed(lambda: exhaust(held[start : start + BATCH].clone() for start in _starts(held))),
        LAZY: timed(lambda: _slice_lazily(_mapped(manifest))),
        FILLED: timed(lambda: _fill(held["x"])),
        BUILT: timed(lambda: TensorDict({"x": held["x"].clone()}, [len(held)])),
    }
    if options.gpu:
        contenders |= {
            GPU_DATASET: _contender(manifest, "dataloader", options.device),
            GPU_SLICED: _contender(manifest, "native", options.device),
        }
    measured = interleave(contenders, on_status=options.on_status)
    files = manifest.files_of("memmap")
    page_cache.evict(files)
    _slice_lazily(_mapped(manifest))
    lazy = page_cache.residency([path for path in files if path.suffix == ".memmap"])
    data = f"{manifest.schema.samples:,} samples of {bytes_text(manifest.schema.sample_bytes)}"
    return replace(measured, figures={"lazy_residency": lazy, "gpu": options.gpu}, data=data)


def _verdicts(claims: Claims) -> dict[str, ClaimResult]:
    return {
        "Dataset, tensorclass under DataLoader and slices iterate equally fast.": all_of(
            [_equal(claims, one, DATASET) for one in (BATCHED, SLICED)]
        ),
        "Slicing by itself brings no visible gain.": _equal(claims, SLICED, BATCHED),
        "To the CPU both load in 0.00 s, so all the time is the copy to the GPU.": _copying(claims),
        "Filling a pre-allocated TensorDict costs what building one does.": _equal(claims, FILLED, BUILT),
        "To the GPU, tensordict and DataLoader cost the same.": claims.on_gpu(
            partial(_equal, one=GPU_SLICED, other=GPU_DATASET)
        ),
    }


def _equal(claims: Claims, one: str, other: str) -> ClaimResult:
    """Return the verdict on a claim of equal times; inconclusive if the slower one is too short."""
    slower = max(one, other, key=lambda name: statistics.median(claims.measured.seconds[name]))
    return claims.equal(one, other, long=[slower])


def _copying(claims: Claims) -> ClaimResult:
    measured, touched = claims.measured, claims.figures["lazy_residency"]
    lazy, read = (seconds_text(min(measured.seconds[name])) for name in (LAZY, SLICED))
    evidence = (
        f"a loop that only slices a memory map and 'moves' the slices to the CPU took {lazy} and brought "
        f"{touched:.1%} of a cold file into memory; a loop that reads every byte took {read}"
    )
    if touched < 0.5:
        evidence += "; slicing alone reads nothing, so its time is not that of loading"
    return judged(touched >= 0.5, evidence, measured.data, lazy_residency=touched)


def _mapped(manifest: Manifest) -> Any:
    return TensorDict.load_memmap(str(manifest.path_of("memmap")), mode="r")


def _contender(manifest: Manifest, loader: str, device: str = "cpu", order: str = "sequential") -> Contender:
    return epochs(loaders.get(loader), Job(manifest.opener("memmap"), Order(order, BATCH), device))


def _slice_lazily(mapped: Any) -> None:
    for start in _starts(mapped):
        mapped[start : start + BATCH].to("cpu")


def _starts(rows: Any) -> range:
    return range(0, len(rows), BATCH)


def _fill(source: torch.Tensor) -> None:
    whole = TensorDict({"x": torch.empty_like(source)}, [len(source)])
    whole["x"].copy_(source)


QUESTION = "Is tensorclass a faster way to feed training than DataLoader?"
STUDY = Study(IO_EVALUATION, QUESTION, _setup, _measure, _verdicts, "experiments 1, 3 and 4")
