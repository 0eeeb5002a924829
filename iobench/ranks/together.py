"""One thing that all ranks do at the same time, and what they agree on where some of them fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from iobench.base.errors import (
    CaseDied,
    IobenchError,
)
from iobench.ranks.group import Group, named

T = TypeVar("T")


@dataclass(frozen=True)
class _Failed:
    """What a rank says in the place of a value: it goes no further."""

    kind: type[Exception]
    said: str


class _OtherFailed(IobenchError):
    """Another rank failed: all have been told, and nobody waits for this one."""

    def __init__(self, said: list[Any]) -> None:
        super().__init__("another rank failed")
        self.said = said


class Together:
    """The other ranks of a group, for whoever proves or measures a share: see iobench.bench.peers."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.rank, self.count = group.place.rank, group.place.world_size

    def ready(self) -> None:
        """Meet the others, none of which has failed, and part from them at the same moment."""
        self.gathered(None)
        self._group.barrier()

    def gathered(self, value: T) -> list[T]:
        """The values of all ranks."""
        said: list[Any] = self._group.gather(value)
        if any(isinstance(one, _Failed) for one in said):
            raise _OtherFailed(said)
        return said


def all_do(group: Group, call: Callable[[], T]) -> list[T]:
    """Have every rank call it, each for itself; what each returned, on every rank.

    Where some raise a IobenchError or a IobenchError, all do: the first rank's, which names rank and host.
    Whatever else a rank raises goes on there, and is a CaseDied for the others.
    """
    peers = Together(group)
    try:
        said: list[Any] = peers.gathered(call())
    except _OtherFailed as error:
        said = error.said
    except IobenchError as error:
        if not group.alive:
            raise
        said = group.gather(_Failed(type(error), str(error)))
    except BaseException as error:
        if group.alive:
            group.gather(_Failed(CaseDied, f"{type(error).__name__}: {error}".strip(": ")))
        raise
    problems = [one.said if isinstance(one, _Failed) else None for one in said]
    for one in said:
        if isinstance(one, _Failed):
            raise one.kind(named(list(zip(group.places, problems, strict=True))))
    return said
