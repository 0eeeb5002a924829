"""Readers that read an artifact to its end, and a check of its content."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

import iobench
from eval.faults.targets import arrays
from iobench import Manifest, RunOptions, StreamLoader, formats

BATCH = 64


class Verify:
    """`iobench verify`."""

    verifies = True

    def __call__(self, root: Path, variant: str) -> None:
        """Raise the damage that verify reports."""
        problem = iobench.verify(Manifest.load(root), [variant])[variant]
        if problem is not None:
            raise problem


class Run:
    """`iobench run` with one loader, in this process."""

    verifies = True

    def __init__(self, loader: str) -> None:
        self.loader = loader

    def __call__(self, root: Path, variant: str) -> None:
        """Run two rounds; raise the error of a failed case."""
        options = RunOptions(
            format=(variant,), loader=(self.loader,), rounds="2", batch_size=(BATCH,), device=("cpu",)
        )
        run = iobench.run(Manifest.load(root), options, out=root.parent / "out.jsonl")
        for error in run.failures.values():
            raise error
        assert len(run.records) == 2, run.records


class Stream:
    """StreamLoader, which does not verify content."""

    verifies = False

    def __init__(self, order: str = "sequential") -> None:
        self.order = order

    def __call__(self, root: Path, variant: str) -> None:
        """Read an epoch."""
        for _ in StreamLoader(root, format=variant, batch_size=BATCH, order=self.order):
            pass


READERS: dict[str, Callable[[Path, str], None]] = {
    "verify": Verify(),
    "run native": Run("native"),
    "run dataloader": Run("dataloader"),
    "run stream": Run("stream"),
    "StreamLoader": Stream(),
    "StreamLoader, random": Stream("random"),
}


def assert_right(root: Path, variant: str) -> None:
    """Raise AssertionError if a verified artifact has wrong content."""
    opener = Manifest.load(root).opener(variant)
    samples = opener.schema.samples
    with opener() as reader:
        batch = reader.batch(slice(0, samples))
    for name, expected in formats.parse(variant).roundtrip(arrays(variant, samples)).items():
        np.testing.assert_array_equal(batch[name], expected, f"{name} was verified but is wrong")
