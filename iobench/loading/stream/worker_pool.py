"""Threads that all do one thing; items and results go through queues."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkerPool(Generic[Item, Result]):
    """Threads that turn items into results, begun in the order in which they are given.

    Between them and whoever waits there are only queues written in C: a Ctrl-C that comes at any
    moment leaves no lock behind, as it does in concurrent.futures.
    """

    def __init__(self, work: Callable[[Item], Result], threads: int, name: str = "iobench-stream") -> None:
        self._work = work
        self._asked: SimpleQueue[tuple[Item, SimpleQueue[Result | BaseException]] | None] = SimpleQueue()
        self._closing = False
        self._threads = [
            threading.Thread(target=self._serve, name=f"{name}-{number}", daemon=True)
            for number in range(threads)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def give(self, item: Item) -> Pending[Result]:
        """Have an item worked on; its result comes later."""
        pending: Pending[Result] = Pending()
        self._asked.put((item, pending.queue))
        return pending

    def close(self) -> None:
        """End the threads, after what each is doing."""
        self._closing = True
        for _ in self._threads:
            self._asked.put(None)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _serve(self) -> None:
        while (asked := self._asked.get()) is not None:
            if self._closing:
                continue
            try:
                asked[1].put(self._work(asked[0]))
            except BaseException as error:  # noqa: BLE001 - whoever waits for the result gets it
                asked[1].put(error)
            del asked  # or it would keep the result until there is more to do


class Pending(Generic[Result]):
    """The result of one item, or the error that was raised in its place."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[Result | BaseException] = SimpleQueue()

    def wait(self) -> None:
        """Wait until it is there."""
        self.queue.put(self.queue.get())

    def result(self) -> Result:
        """The result, as soon as it is there, once; an error is raised."""
        found = self.queue.get()
        if isinstance(found, BaseException):
            raise found
        return found
