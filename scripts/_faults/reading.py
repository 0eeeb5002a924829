"""Ways to read an artifact to its end, and whether what they give is what was prepared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

import iobench
from iobench import Manifest, RunOptions, StreamLoader
from iobench.errors import LoaderFailed
from iobench.formats import Batch

BATCH = 64


def arrays(samples: int = 300) -> Batch:
    """What is prepared: vectors, their rows, and flags."""
    rng = np.random.default_rng(3)
    x = rng.random((samples, 64), np.float32)
    return {"x": x, "y": np.arange(samples), "flag": rng.random((samples, 3)) < 0.5}


def prepare(data_dir: Path, variants: tuple[str, ...], samples: int = 300) -> Manifest:
    """Prepare it in every variant."""
    data_dir.mkdir(parents=True, exist_ok=True)
    np.savez(data_dir / "source.npz", **arrays(samples))  # type: ignore[arg-type]
    source = iobench.open_source(data_dir / "source.npz")
    return iobench.prepare(source, variants, data_dir=data_dir, name="d")[0]


class Verify:
    """`iobench verify`."""

    proves = True

    def __call__(self, root: Path, variant: str) -> None:
        """LoaderFailed where it says that something is wrong."""
        problem = iobench.verify(Manifest.load(root), [variant])[variant]
        if problem is not None:
            raise LoaderFailed(problem)


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
            raise LoaderFailed(problem)
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


def assert_right(root: Path, variant: str, samples: int = 300) -> None:
    """AssertionError where an artifact that was proved to be right is not."""
    opener = Manifest.load(root).opener(variant)
    with opener() as reader:
        found = reader.batch(slice(0, opener.schema.samples))
    for name, wanted in arrays(samples).items():
        np.testing.assert_array_equal(found[name], wanted, f"{name}, which was proved, is wrong")
