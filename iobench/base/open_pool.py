"""Pool of what is opened on demand, such as files, of which a bounded number stays open."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

Resource = TypeVar("Resource")


@dataclass
class _Opened(Generic[Resource]):
    resource: Resource
    users: int = 0


class OpenPool(Generic[Resource]):
    """Thread-safe pool of resources by number; the `most` that were used last stay open, and those in use."""

    def __init__(
        self, opening: Callable[[int], Resource], closing: Callable[[Resource], None], most: int
    ) -> None:
        self._opening, self._closing, self._most = opening, closing, most
        self._opened: OrderedDict[int, _Opened[Resource]] = OrderedDict()
        self._lock = threading.Lock()
        self.is_closed = False

    @contextmanager
    def use(self, number: int) -> Iterator[Resource]:
        """Yield a resource, which stays open until the block ends.

        Raises ValueError after `close`, and the error of opening it.
        """
        with self._lock:
            if self.is_closed:
                raise ValueError("this reader is closed")
            if number not in self._opened:
                self._opened[number] = _Opened(self._opening(number))
            opened = self._opened[number]
            opened.users += 1
            self._opened.move_to_end(number)
            self._trim(self._most)
        try:
            yield opened.resource
        finally:
            with self._lock:
                opened.users -= 1
                self._trim(0 if self.is_closed else self._most)

    def present(self) -> list[Resource]:
        """Return the resources that are open now."""
        with self._lock:
            return [opened.resource for opened in self._opened.values()]

    def close(self) -> None:
        """Close all resources; those in use are closed when their block ends."""
        with self._lock:
            self.is_closed = True
            self._trim(0)

    def _trim(self, most: int) -> None:
        if len(self._opened) > most:
            for number in [number for number, opened in self._opened.items() if not opened.users]:
                self._closing(self._opened.pop(number).resource)
                if len(self._opened) <= most:
                    return
