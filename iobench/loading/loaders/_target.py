"""Somebody's own DataLoader as a case: `train.py:make_loader`, and what it is called with as a word says.

The function is called in the process of the case. What it asks for by name it is given: `path` and `format`
of the artifact, where it cannot do without, and `batch_size`, `order`, `shuffle`, `seed` and `device` as the
case has them. Whatever its word says (`train.py:make_loader:num_workers=4`) comes before that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from iobench.base.errors import (
    InvalidSettings,
    TargetError,
)
from iobench.formats import Format, Schema
from iobench.formats import word as option_word
from iobench.host.memory import file_behind
from iobench.loading import target
from iobench.loading.loaders._loader import Epochs, Job, Loader
from iobench.loading.signature import signature_of
from iobench.loading.tensors import tensor_of

if TYPE_CHECKING:
    import torch

    from iobench.loading.host_to_device import HostBatch

OF_DATA = ("path", "format")  # given only where a function cannot do without: it may know where its own lie
OF_CASE = ("batch_size", "order", "shuffle", "seed", "device")
MOST = 2  # times the dataset's samples, after which an epoch that has not ended is cut off


@dataclass(frozen=True)
class Target(Loader):
    """What a function of somebody's file returns: any iterable of batches, in an order of its own."""

    name: ClassVar[str] = "target"
    summary: ClassVar[str] = "a loader of your own, as the function makes it that is named"
    library: ClassVar[str] = "torch"
    own_order: ClassVar[bool] = True
    isolated: ClassVar[bool] = True
    foreign: ClassVar[bool] = True

    place: str
    function: str
    given: tuple[tuple[str, target.Value], ...]
    asks: tuple[str, ...]  # what it is given beside that, by name
    only: str | None  # the one format whose artifacts it is given
    sha256: str  # of its file, the first 16 hexadecimal digits

    def __post_init__(self) -> None:
        """Its fields are no options in a word: `parse` has seen to them."""

    @property
    def called(self) -> str:
        """File and function."""
        return f"{self.place}:{self.function}"

    @property
    def options(self) -> dict[str, Any]:
        """What its word gives it, and which state of its file this is."""
        return {**dict(self.given), "file_sha256": self.sha256}

    @property
    def variant(self) -> str:
        """The word for it."""
        only = [("format", self.only)] if self.only else []
        text = ",".join(f"{name}={option_word(value)}" for name, value in [*only, *self.given])
        return self.called + (f":{text}" if text else "")

    @property
    def settable(self) -> tuple[str, ...]:
        """Only by its own word."""
        return ()

    @property
    def own_data(self) -> bool:
        """Whether it is not told where the dataset lies."""
        return not set(OF_DATA) & set(self.asks)

    @property
    def workers(self) -> int:
        """It may have some."""
        return 1

    def reads(self, format: Format) -> bool:
        """Every format, or the one that its word names."""
        return self.only in (None, format.name, format.variant)

    def arguments(self, job: Job) -> dict[str, Any]:
        """What the function is called with."""
        order = job.order
        offered = {
            "path": job.opener.path,
            "format": job.opener.format.variant,
            "batch_size": order.batch_size,
            "order": order.kind,
            "shuffle": order.kind != "sequential",
            "seed": order.seed,
            "device": job.device,
        }
        return {**{name: offered[name] for name in self.asks}, **dict(self.given)}

    def open(self, job: Job) -> Epochs:
        """Call the function; TargetError where that fails."""
        return TargetEpochs(self, job)


def is_target(word: str, known: Iterable[str]) -> bool:
    """Whether a word names a function, and not one of the known loaders."""
    return word.partition(":")[0] not in known and target.WORD.fullmatch(word) is not None


def parse(word: str) -> Target:
    """The loader that a word like `train.py:make_loader:num_workers=4` stands for.

    TargetError where there is no such function, InvalidSettings where it lacks an argument or is given one
    that it does not take.
    """
    match = target.WORD.fullmatch(word)
    assert match is not None  # as `is_target` has found
    given = target.given_in(word)
    found = signature_of(match["place"], match["function"])
    called = f"{match['place']}:{match['function']}"
    only = str(given.pop("format")) if "format" in given else None
    if unknown := [name for name in given if name not in found.takes and not found.anything]:
        raise InvalidSettings(
            f"{called} has no parameter {', '.join(unknown)}",
            kind="unknown-parameter",
            expected=f"one of {', '.join(found.takes)}" if found.takes else "no parameters",
        )
    asks = [name for name in OF_DATA if name in found.needs] + [n for n in OF_CASE if n in found.takes]
    if missing := [name for name in found.needs if name not in given and name not in asks]:
        raise InvalidSettings(
            f"{called} needs {', '.join(missing)}",
            kind="missing-argument",
            hint=f"give it, as in {called}:{missing[0]}=VALUE "
            f"(iobench itself gives {', '.join((*OF_DATA, *OF_CASE))} to a function with such parameters)",
        )
    free = tuple(name for name in asks if name not in given)
    return Target(match["place"], match["function"], tuple(given.items()), free, only, found.sha256)


class TargetEpochs(Epochs):
    """What the function made, gone over once for each epoch; a generator is made anew for each."""

    def __init__(self, loader: Target, job: Job) -> None:
        super().__init__(loader, job)
        self._called = loader.called
        self._arguments = loader.arguments(job)
        self._make = _callable_of(loader.place, loader.function)
        self._loader: Iterable[Any] | None = self._made()

    def _made(self) -> Iterable[Any]:
        try:
            return target.made(self._make, self._called, self._arguments)
        except TargetError as error:
            place = target.where(error.__cause__) if error.__cause__ else ""
            if place:
                raise error.changed(problem=f"{error.problem} ({place})") from error
            raise

    @property
    def ahead(self) -> bool:
        """Nobody knows; what `next()` takes is taken for waiting."""
        return True

    def _epoch(self, asked: int) -> Iterator[HostBatch]:
        schema, came, copied = self.opener.schema, 0, None
        for batch in self._batches():
            tensors = tensors_of(batch, schema)
            if copied is None:  # of one epoch all are alike
                copied = any(map(_lazy, tensors.values()))
            # a view of a mapped file has read nothing, and where nobody looks at it nothing ever will
            yield {name: one.clone() for name, one in tensors.items()} if copied else tensors
            came += samples_of(tensors)
            if came >= MOST * schema.samples:
                return

    def _batches(self) -> Iterator[Any]:
        loader, self._loader = self._loader or self._made(), None
        try:
            iterator = iter(loader)
            if iterator is not loader:
                self._loader = loader
            yield from iterator
        except TargetError:
            raise
        except Exception as error:  # whatever somebody's loader does
            place = target.where(error)
            said = f"{self._called} raised {target.kind_of(error)}"
            raise target.failed(f"{said} ({place})" if place else said, error) from error

    def close(self) -> None:
        """Let go of what the function made, and with that of its workers."""
        self._loader = None


def tensors_of(batch: Any, schema: Schema) -> dict[str, torch.Tensor]:
    """The tensors of a batch by name: its own, those of the dataset's fields in their order, or numbers.

    TargetError where it holds none.
    """
    import torch

    pairs = list(batch.items()) if hasattr(batch, "items") and hasattr(batch, "keys") else None
    values = [value for _, value in pairs] if pairs is not None else batch
    leaves = list(values) if isinstance(values, (list, tuple)) else [values]
    names = [str(name) for name, _ in pairs] if pairs is not None else _names(len(leaves), schema)
    found = {
        name: tensor_of(leaf) if isinstance(leaf, np.ndarray) else leaf
        for name, leaf in zip(names, leaves, strict=True)
        if isinstance(leaf, (torch.Tensor, np.ndarray))
    }
    if not found:
        raise TargetError(
            "the batches of the loader",
            kind="no-tensors",
            expected="a tensor, or a tuple or dict of tensors",
            found=f"{type(batch).__name__} without tensors or arrays",
        )
    return found


def samples_of(batch: Mapping[str, torch.Tensor]) -> int:
    """How many samples a batch holds: the first axis of its first tensor that has one."""
    return next((int(one.shape[0]) for one in batch.values() if one.ndim), 1)


def _names(count: int, schema: Schema) -> list[str]:
    fields = [field.name for field in schema.fields]
    return fields if len(fields) == count else [str(number) for number in range(count)]


def _lazy(tensor: torch.Tensor) -> bool:
    """Whether a tensor looks at a mapped file, and not at memory that was filled."""
    return tensor.device.type == "cpu" and tensor.numel() > 0 and file_behind(tensor.data_ptr()) is not None


_imported: dict[
    tuple[str, str], Any
] = {}  # once a process: what a file does when it is imported is no opening


def _callable_of(place: str, function: str) -> Any:
    if (place, function) not in _imported:
        _imported[place, function] = target.callable_of(place, function)
    return _imported[place, function]
