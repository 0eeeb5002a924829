"""Who carries out a run: this process and those that it starts, or several ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from iobench.bench.case import Case
from iobench.bench.executor import Executor, InProcess
from iobench.bench.hosts import Hosts, OneHost
from iobench.bench.isolated import Isolated
from iobench.bench.options import RunOptions
from iobench.dataset.manifest import Manifest


class Crew(Protocol):
    """Executors for the cases of a run, and whoever looks after each host."""

    world_size: int

    def begin(self, manifest: Manifest, options: RunOptions, cases: Sequence[Case]) -> list[str]:
        """Get ready for a run, and say what there is to know about it.

        RanksDiffer where not all would measure the same thing.
        """

    def executor(self, case: Case) -> Executor:
        """Who proves and measures a case."""

    @property
    def hosts(self) -> Hosts:
        """Who makes caches warm or cold, and measures limits."""

    def close(self) -> None:
        """End whatever was started for the run."""


class Alone:
    """This process, or a process of its own for each case."""

    world_size = 1

    def begin(self, manifest: Manifest, options: RunOptions, cases: Sequence[Case]) -> list[str]:
        """Nothing is to be said."""
        self._executors: dict[bool, Executor] = {
            False: InProcess(manifest),
            True: Isolated(manifest, options.timeout),
        }
        self._hosts = OneHost(manifest, cases, options.sudo, options.limits)
        return []

    def executor(self, case: Case) -> Executor:
        """This process, unless the case wants one of its own."""
        return self._executors[case.isolated]

    @property
    def hosts(self) -> Hosts:
        """This one."""
        return self._hosts

    def close(self) -> None:
        """End the processes of cases."""
        for executor in self._executors.values():
            executor.close()
