"""Backends of a run: one process with its children, or several ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from iobench.base.finding import Finding
from iobench.bench.case import Case
from iobench.bench.executor import Executor, InProcess
from iobench.bench.hosts import Hosts, LocalHost
from iobench.bench.isolated import Isolated
from iobench.bench.options import RunOptions
from iobench.dataset.manifest import Manifest


class ExecutorFactory(Protocol):
    """Provides the executors of a run's cases, and what is done once per host."""

    world_size: int

    def begin(self, manifest: Manifest, options: RunOptions, cases: Sequence[Case]) -> list[Finding]:
        """Prepare for a run and return notes about it.

        Raises RanksDiffer if the ranks would not measure the same thing.
        """

    def executor(self, case: Case) -> Executor:
        """Return the executor that verifies and measures a case."""

    @property
    def hosts(self) -> Hosts:
        """The hosts whose page caches and limits belong to the run."""

    def close(self) -> None:
        """End all processes started for the run."""


class LocalBackend:
    """Runs cases in this process, or each isolated case in a process of its own."""

    world_size = 1

    def begin(self, manifest: Manifest, options: RunOptions, cases: Sequence[Case]) -> list[Finding]:
        """Create the executors; there are no notes."""
        self._executors: dict[bool, Executor] = {
            False: InProcess(manifest),
            True: Isolated(manifest, options.timeout),
        }
        self._hosts = LocalHost(manifest, cases, options.sudo, options.limits)
        self._hosts.begin()
        return []

    def executor(self, case: Case) -> Executor:
        """Return the in-process executor, or the isolating one if the case asks for it."""
        return self._executors[case.isolated]

    @property
    def hosts(self) -> Hosts:
        """The local host."""
        return self._hosts

    def close(self) -> None:
        """End the processes of cases, and remove the object caches."""
        for executor in self._executors.values():
            executor.close()
        self._hosts.close()
