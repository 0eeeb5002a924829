"""Isolated execution: one process per case, which lives through all of its rounds.

Libraries, allocators, thread pools and leaks of one case cannot affect another's figures, and a library
that aborts or hangs ends its own case, not the run. Cases and results travel as pickles of iobench's own
objects, never as open handles.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from iobench.base.errors import CaseDied, IobenchError
from iobench.base.standard_streams import stdout_to_stderr
from iobench.bench.case import Case
from iobench.bench.executor import InProcess, Tick
from iobench.bench.part import Proof
from iobench.dataset.manifest import Manifest
from iobench.host import memory
from iobench.host.child import Child, ChildEnded, ForkServer, SharedCount
from iobench.results.parts import Measured

KEPT_FREE = 0.125  # share of the memory for the case that is measured
PRELOADED = (__name__,)  # and torch with it: modules that every case needs, and no others


class Isolated:
    """Runs each case in a process of its own, and kills it if no batch comes for `timeout_s`.

    Processes live through all rounds. If memory runs short, the least recently used one is ended; it is
    started and warmed up again before its next round.
    """

    def __init__(self, manifest: Manifest, timeout_s: float) -> None:
        self._manifest, self.timeout_s = manifest, timeout_s
        self._children: dict[str, Child] = {}  # by case, ordered by last use
        self._warm = set[str]()  # cases that have run an epoch in their process
        self._room = memory.free_memory()  # before any process is started
        self._server = ForkServer(*PRELOADED)

    def prove(self, case: Case, warmup: int, tick: Tick, limit_s: float = math.inf) -> Proof:
        """Start the case's process and verify in it; raises the errors of `InProcess.prove`."""
        result: Proof = self._ask(case, tick, "prove", (warmup, limit_s))
        self._warm.add(case.key)
        return result

    def ready(self, case: Case, tick: Tick, batches: int | None = None) -> None:
        """If the case's process has ended, start a new one and run an untimed round in it."""
        if case.key not in self._warm:
            self._ask(case, tick, "warm up", batches)
            self._warm.add(case.key)

    def measure(
        self, case: Case, number: int, tick: Tick, batches: int | None = None, limit_s: float = math.inf
    ) -> list[Measured]:
        """Time a round in the case's process."""
        measured: list[Measured] = self._ask(case, tick, "measure", (number, batches, limit_s))
        return measured

    def trace(self, case: Case, path: Path) -> None:
        """Write a trace in the case's process."""
        self._ask(case, Tick(), "trace", path)

    def end(self, case: Case) -> None:
        """End the case's process; a later call starts a new one."""
        if case.key in self._children:
            self._end(case.key)

    def close(self) -> None:
        """End all processes."""
        for key in [*self._children]:
            self._end(key)
        self._server.close()

    def _end(self, key: str) -> None:
        self._warm.discard(key)
        self._children.pop(key).end()

    def _ask(self, case: Case, tick: Tick, what: str, argument: object) -> Any:
        """Call a method of the executor in the case's process, and return its result or raise its error.

        Raises CaseDied if the process ends, or if no batch came for `timeout_s`.
        """
        if case.key in self._children:
            self._children[case.key] = self._children.pop(case.key)
        else:
            self._make_room(case)
            self._children[case.key] = Child(f"{__name__}:serve", start=self._server.fork)
            with contextlib.suppress(ChildEnded):
                self._children[case.key].send((case, self._manifest.root, self._manifest.index_end))
        child = self._children[case.key]
        before = child.heartbeats.count

        def idle() -> None:
            tick.check_interrupt()
            tick.progress.count = child.heartbeats.count - before

        try:
            with contextlib.suppress(ChildEnded):  # which `reply` reports
                child.send((what, argument))
            answer = child.reply(self.timeout_s, idle)
            tick.progress.count = child.heartbeats.count - before
            return answer
        except BaseException as error:  # also after Ctrl-C: the state of the process is unknown
            if not isinstance(error, IobenchError) or isinstance(error, CaseDied):
                self._end(case.key)
            raise

    def _make_room(self, case: Case) -> None:
        """End processes until memory suffices for another one and for the case's data in the page cache."""
        data = self._manifest.artifacts[case.variant].stored_bytes if case.cache == "warm" else 0
        reserve = KEPT_FREE * memory.total_memory() + min(data, self._room / 2)
        while self._children and memory.free_memory() < reserve:
            self._end(next(iter(self._children)))


def serve(connection: Connection, heartbeats: SharedCount) -> None:
    """Execute the parent's commands for one case, until the parent ends."""
    case, root, index_end = connection.recv()
    tick = Tick(progress=heartbeats)
    # what a user's loader prints is for its user
    printed = stdout_to_stderr() if case.loader.user_defined else contextlib.nullcontext()
    with printed, contextlib.suppress(EOFError):
        manifest = replace(Manifest.load(root), index_end=index_end)
        executor = InProcess(manifest)
        calls: dict[str, Callable[[Any], Any]] = {
            "prove": lambda asked: executor.prove(case, asked[0], tick, asked[1]),
            "warm up": lambda batches: executor.warm_up(case, tick, batches),
            "measure": lambda asked: executor.measure(case, asked[0], tick, *asked[1:]),
            "trace": lambda path: executor.trace(case, path),
        }
        while True:
            what, argument = connection.recv()
            try:
                answer = calls[what](argument)
            except IobenchError as error:
                answer = error.changed()  # without its frames, which do not pickle
            connection.send(answer)
