"""Collective calls: what all ranks do at the same time, and their common error if one fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from iobench.base.errors import CaseDied, IobenchError
from iobench.host.rank_info import RankInfo
from iobench.ranks.group import RankGroup

T = TypeVar("T")


@dataclass(frozen=True)
class _Failure:
    """Sent by a rank in place of a value: its error, after which it makes no further call."""

    error: IobenchError


class _OtherRankFailed(IobenchError):
    """Another rank failed; `answers` are what all ranks sent."""

    def __init__(self, answers: list[Any]) -> None:
        super().__init__("another rank failed")
        self.answers = answers


class Collectives:
    """The process group of a rank that verifies or measures its share: see iobench.bench.process_group."""

    def __init__(self, group: RankGroup) -> None:
        self._group = group
        self.rank, self.world_size = group.info.rank, group.info.world_size

    def barrier(self) -> None:
        """Block until all ranks arrive and none has failed."""
        self.all_gather(None)
        self._group.barrier()

    def all_gather(self, value: T) -> list[T]:
        """Return the values of all ranks, by rank."""
        answers: list[Any] = self._group.all_gather(value)
        if any(isinstance(one, _Failure) for one in answers):
            raise _OtherRankFailed(answers)
        return answers


def run_on_all_ranks(group: RankGroup, call: Callable[[], T]) -> list[T]:
    """Call a function on every rank and return all results, by rank, on every rank.

    If some ranks raise IobenchError, all raise the first one's, with its rank and host in `problem`. Any
    other exception propagates on its own rank, and is a CaseDied on the others.
    """
    try:
        answers: list[Any] = Collectives(group).all_gather(call())
    except _OtherRankFailed as error:
        answers = error.answers
    except IobenchError as error:
        if not group.alive:
            raise
        answers = group.all_gather(_Failure(error.changed()))
    except BaseException as error:
        if group.alive:
            died = CaseDied(f"{type(error).__name__}: {error}".strip(": "), kind="rank-raised")
            group.all_gather(_Failure(died))
        raise
    errors = [one.error if isinstance(one, _Failure) else None for one in answers]
    common = common_error(list(zip(group.ranks, errors, strict=True)))
    if common is not None:
        raise common
    return answers


def common_error(errors: Sequence[tuple[RankInfo, IobenchError | None]]) -> IobenchError | None:
    """Return the first error, with its rank and host and the number of other failed ranks in `problem`.

    No rank is named if all ranks have the same error. None if there is no error.
    """
    failed = [(rank, error) for rank, error in errors if error is not None]
    if not failed:
        return None
    rank, first = failed[0]
    if len(failed) == len(errors) and all(error.fields() == first.fields() for _, error in failed):
        return first.changed()
    more = f" (and {len(failed) - 1} more of {len(errors)} ranks)" if len(failed) > 1 else ""
    return first.changed(problem=f"{rank}{more}: {first.problem}".removesuffix(": "))
