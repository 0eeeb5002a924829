"""Ways to read an artifact to its end, and whether what they give is what was prepared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

import iobench
from _faults.attacked import arrays
from iobench import Manifest, RunOptions, StreamLoader, formats
from iobench.base.errors import (
    LoaderFailed,
)

BATCH = 64


class Verify:
    """`iobench verify`."""

    proves = True

    def __call__(self, root: Path, variant: str) -> None:
        """LoaderFailed where it says that something is wrong."""
        problem = iobench.verify(Manifest.load(root), [variant])[variant]
        if problem is not None:
            raise LoaderFailed(str(problem))


class Run:
    """`iobench run` with one loader, in this process."""

    proves = True

    def __init__(self, loader: str) -> None:
        self.loader = loader

    def __call__(self, root: Path, variant: str) -> None:
        """LoaderFailed where the case fails."""
        options = RunOptions(
            format=(variant,), loader=(self.loader,), rounds="2", batch_size=(BATCH,), device=("cpu",)
        )
        found = iobench.run(Manifest.load(root), options, out=root.parent / "out.jsonl")
        for problem in found.failures.values():
            raise problem
        assert len(found.records) == 2, found.records


class Stream:
    """StreamLoader, which proves nothing."""

    proves = False

    def __init__(self, order: str = "sequential") -> None:
        self.order = order

    def __call__(self, root: Path, variant: str) -> None:
        """Read an epoch."""
        for _ in StreamLoader(root, format=variant, batch_size=BATCH, order=self.order):
            pass


WAYS: dict[str, Callable[[Path, str], None]] = {
    "verify": Verify(),
    "run native": Run("native"),
    "run dataloader": Run("dataloader"),
    "run stream": Run("stream"),
    "StreamLoader": Stream(),
    "StreamLoader, random": Stream("random"),
}


def assert_right(root: Path, variant: str) -> None:
    """AssertionError where an artifact that was proved to be right is not."""
    opener = Manifest.load(root).opener(variant)
    samples = opener.schema.samples
    with opener() as reader:
        found = reader.batch(slice(0, samples))
    for name, wanted in formats.parse(variant).roundtrip(arrays(variant, samples)).items():
        np.testing.assert_array_equal(found[name], wanted, f"{name}, which was proved, is wrong")
