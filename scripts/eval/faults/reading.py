"""Readers that read an artifact to its end, and a check of its content."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

import iobench
from eval.faults.targets import arrays
from iobench import Manifest, RunOptions, StreamLoader, formats

BATCH = 64


def _verify(root: Path, variant: str) -> None:
    """Raise the damage that `iobench verify` reports."""
    problem = iobench.verify(Manifest.load(root), [variant])[variant]
    if problem is not None:
        raise problem


def _run(loader: str, root: Path, variant: str) -> None:
    """Run two rounds of `iobench run` in this process; raise the error of a failed case."""
    options = RunOptions(
        format=(variant,), loader=(loader,), rounds="2", batch_size=(BATCH,), device=("cpu",)
    )
    run = iobench.run(Manifest.load(root), options, out=root.parent / "out.jsonl")
    for error in run.failures.values():
        raise error
    assert len(run.records) == 2, run.records


def _stream(order: str, root: Path, variant: str) -> None:
    """Read an epoch by StreamLoader, which does not verify content."""
    for _ in StreamLoader(root, format=variant, batch_size=BATCH, order=order):
        pass


VERIFYING: dict[str, Callable[[Path, str], None]] = {
    "verify": _verify,
    **{f"run {loader}": partial(_run, loader) for loader in ("native", "dataloader", "stream")},
}
READERS: dict[str, Callable[[Path, str], None]] = {
    **VERIFYING,
    "StreamLoader": partial(_stream, "sequential"),
    "StreamLoader, random": partial(_stream, "random"),
}


def assert_right(root: Path, variant: str) -> None:
    """Raise AssertionError if a verified artifact has wrong content."""
    opener = Manifest.load(root).opener(variant)
    samples = opener.schema.samples
    with opener() as reader:
        batch = reader.batch(slice(0, samples))
    for name, expected in formats.parse(variant).roundtrip(arrays(variant, samples)).items():
        np.testing.assert_array_equal(batch[name], expected, f"{name} was verified but is wrong")
