"""A pool of threads that apply one function to items, with queues for items and results."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkerPool(Generic[Item, Result]):
    """Threads that turn items into results, started in the order in which they are submitted.

    Workers and waiting threads are connected only by queues written in C, so that a Ctrl-C at any moment
    leaves no lock held, as it can in concurrent.futures.
    """

    def __init__(self, work: Callable[[Item], Result], threads: int, name: str = "iobench-stream") -> None:
        self._work = work
        self._submitted: SimpleQueue[tuple[Item, SimpleQueue[Result | BaseException]] | None] = SimpleQueue()
        self._closing = False
        self._threads = [
            threading.Thread(target=self._serve, name=f"{name}-{number}", daemon=True)
            for number in range(threads)
        ]

    def start(self) -> None:
        """Start the threads that do not run yet."""
        for thread in self._threads:
            if thread.ident is None:
                thread.start()

    def is_alive(self) -> bool:
        """Return True if all threads run; they do not in a forked child."""
        return all(thread.is_alive() for thread in self._threads)

    def submit(self, item: Item) -> Pending[Result]:
        """Submit an item; return its pending result."""
        pending: Pending[Result] = Pending()
        self._submitted.put((item, pending.queue))
        return pending

    def close(self) -> None:
        """End the threads, each after its current item."""
        self._closing = True
        for _ in self._threads:
            self._submitted.put(None)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _serve(self) -> None:
        while (task := self._submitted.get()) is not None:
            if self._closing:
                continue
            try:
                task[1].put(self._work(task[0]))
            except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
                task[1].put(error)
            del task  # it would keep the result alive until the next item


class Pending(Generic[Result]):
    """Pending result of one item, or the error raised instead."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[Result | BaseException] = SimpleQueue()

    def wait(self) -> None:
        """Wait until the result is available."""
        self.queue.put(self.queue.get())

    def result(self) -> Result:
        """Wait for the result and return it, or raise its error; may be called once."""
        result = self.queue.get()
        if isinstance(result, BaseException):
            raise result
        return result
