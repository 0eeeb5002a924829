"""Loaders of a resume check: those of iobench over an artifact, and those that a user's function makes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from iobench import formats
from iobench.base.errors import InvalidSettings, MissingDependency, TargetError
from iobench.bench.case import Case, content_of
from iobench.bench.multi_rank import multi_rank_obstacle
from iobench.bench.opening import epoch_request, opened
from iobench.bench.resume_process import Opened, ResumableLoader, Stretch
from iobench.bench.sample_coverage import Hashes
from iobench.dataset.checksum import Checksum
from iobench.dataset.hashed_rows import HashedRows
from iobench.dataset.manifest import Manifest
from iobench.dataset.remote_dataset import dataset_named
from iobench.dataset.sample_hashes import SampleHashes, sample_hashes
from iobench.formats import Field, Schema
from iobench.loading import checkpoint, loaders, target
from iobench.loading.inspection import batch_tensors, samples_in
from iobench.loading.signature import signature_of
from iobench.loading.tensors import tensor_of

RANKS, WORKERS = ("rank", "world_size"), ("num_workers",)  # parameters of a function that are filled in


@dataclass(frozen=True)
class StoredLoader:
    """A loader of iobench, over an artifact."""

    name: str  # the loader with its options
    case: Case
    root: Path  # of the dataset

    def obstacle(self, stretch: Stretch) -> InvalidSettings | None:
        """Return an obstacle if it shares no rows among ranks, or cannot have so many workers."""
        if stretch.ranks is not None and (error := multi_rank_obstacle(self.case.loader, isolate=False)):
            return error
        try:
            self._with_workers(stretch.workers)
        except InvalidSettings as error:
            return error
        return None

    def open(self, stretch: Stretch) -> Opened:
        """Open it over the artifact."""
        manifest, loader = Manifest.load(self.root), self._with_workers(stretch.workers)
        case = replace(self.case, world_size=stretch.ranks or 1)
        job = replace(case.job(manifest, rank=stretch.rank), dataset=self.root)
        epochs = opened(loader, job)
        if stretch.state is not None:
            epochs.resume(checkpoint.decode(stretch.state))
        batches, hashes = epochs.epoch(epoch_request(loader, job, 0)), Checksum(manifest.schema).hashes
        return (np.asarray(hashes(batch)) for batch in batches), epochs.state

    def expected(self, unbroken: Hashes) -> SampleHashes:
        """Return the hashes of the stored samples."""
        return sample_hashes(Manifest.load(self.root), self.case.variant)

    def _with_workers(self, count: int | None) -> loaders.Loader:
        loader, changes = self.case.loader, {} if count is None else {"num_workers": count}
        if changes and "num_workers" not in loader.settable:
            raise InvalidSettings("it has no option num_workers", kind="no-workers")
        return replace(loader, **changes)


@dataclass(frozen=True)
class OwnLoader:
    """The loader that a user's function makes."""

    name: str  # the function with its arguments: `train.py:make_loader:batch_size=64`

    def obstacle(self, stretch: Stretch) -> InvalidSettings | None:
        """Return an obstacle if the function has no parameters for what is to be set."""
        module, function = self.name.split(":")[:2]
        signature = signature_of(module, function)
        missing = [name for name in self._filled(stretch) if name not in signature.parameters]
        if not missing or signature.var_keyword:
            return None
        return InvalidSettings(f"it has no parameter {', '.join(missing)}", kind="unknown-parameter")

    def open(self, stretch: Stretch) -> Opened:
        """Call the function; TargetError if its result has no state."""
        pairs = ",".join(f"{name}={value}" for name, value in self._filled(stretch).items())
        separator = "" if not pairs else ":" if self.name.count(":") == 1 else ","
        loader: Any = target.parse_target(f"{self.name}{separator}{pairs}").build()
        if not hasattr(loader, "state_dict") or not hasattr(loader, "load_state_dict"):
            raise TargetError(
                f"{self.name}: the result of the function",
                kind="no-state",
                expected="an object with state_dict and load_state_dict",
                found=type(loader).__name__,
            )
        if stretch.state is not None:
            loader.load_state_dict(checkpoint.decode(stretch.state))
        return map(_hashes_of, loader), loader.state_dict

    def expected(self, unbroken: Hashes) -> SampleHashes:
        """Return what came without a stop: what else should come is unknown."""
        return SampleHashes(unbroken, HashedRows.all_of(len(unbroken)))

    def _filled(self, stretch: Stretch) -> dict[str, int]:
        ranks = dict(zip(RANKS, (stretch.rank, stretch.ranks), strict=True)) if stretch.ranks else {}
        return {**ranks, **dict.fromkeys(WORKERS, stretch.workers)} if stretch.workers is not None else ranks


def resumable_loaders(
    words: Sequence[str], data_dir: Path, name: str | None, format: str | None, order: str, batch_size: int
) -> list[ResumableLoader]:
    """Return the loaders that words name; those of iobench are opened over a dataset.

    Raises InvalidSettings if a loader has no state, or cannot read the dataset in this order.
    """

    def stored(word: str) -> StoredLoader:
        loader, manifest = loaders.parse(word).on("cpu"), dataset_named(data_dir, name)
        if not loader.stateful:
            raise InvalidSettings(
                f"loader {loader.name} has no state to resume from",
                kind="no-state",
                hint="name a function whose result has state_dict: train.py:make_loader",
            )
        drawn: dict[str, Any] = {"order": order, "batch_size": batch_size}
        variant = _variant(manifest, loader, format, order)
        case = Case(manifest.name, content_of(manifest), variant=variant, loader=loader, **drawn)
        return StoredLoader(word, case, manifest.root)

    return [OwnLoader(word) if loaders.is_target(word) else stored(word) for word in words]


def _variant(manifest: Manifest, loader: loaders.Loader, format: str | None, order: str) -> str:
    """Return the first variant that the loader reads, or the one that is asked for."""
    for variant in [formats.parse(format).variant] if format else manifest.artifacts:
        with suppress(MissingDependency):
            readable = loader.reads(formats.parse(variant)) and loader.reads_at(manifest.url)
            if readable and order in loader.orders:
                manifest.opener(variant)
                return variant
    raise InvalidSettings(
        f"loader {loader.name} in {order} order",
        kind="no-cases",
        expected=f"orders {', '.join(loader.orders)}; formats {', '.join(loader.format_names) or 'any'}",
        found=f"{order}; {format or ', '.join(manifest.artifacts)}",
    )


def _hashes_of(batch: Any) -> Hashes:
    """Return the hash of each sample over all tensors and arrays that have one row per sample."""
    tensors = batch_tensors(batch)
    count = samples_in(tensors)
    rows = [one if isinstance(one, torch.Tensor) else tensor_of(np.asarray(one)) for one in tensors]
    flat = {
        f"t{number}": one.detach().cpu().contiguous().reshape(count, -1).view(torch.uint8)
        for number, one in enumerate(rows)
        if one.ndim and len(one) == count and one.numel()
    }
    if not flat:
        raise TargetError(
            "the batches of the loader",
            kind="no-tensors",
            expected="a tensor, or a tuple or dict of tensors",
            found=f"{type(batch).__name__} without tensors or arrays",
        )
    fields = tuple(Field(name, (one.shape[1],), "uint8") for name, one in flat.items())
    return np.asarray(Checksum(Schema(count, fields)).hashes(flat))
