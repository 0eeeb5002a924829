"""Time budget of a command: a deadline, and shares of the time until it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class Budget:
    """A deadline, `seconds` after `began`, both in the seconds of a clock.

    It is made once, from `--max-time` and the start of the command, and handed on. Nothing else computes with
    the seconds of the plan.
    """

    def __init__(
        self,
        seconds: float = math.inf,
        began: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.now = clock
        self.began = clock() if began is None else began
        self.seconds = seconds

    @property
    def end(self) -> float:
        """Moment of the deadline."""
        return self.began + self.seconds

    @property
    def over(self) -> bool:
        """True from the deadline on."""
        return self.now() >= self.end

    def elapsed(self) -> float:
        """Return the seconds since its start."""
        return self.now() - self.began

    def left(self) -> float:
        """Return the seconds until the deadline; 0 after it."""
        return max(0.0, self.end - self.now())

    def share(self, fraction: float) -> Budget:
        """Return a budget of a fraction of the time that is left."""
        return self.sub(fraction * self.left())

    def for_each(self, count: int) -> float:
        """Return an equal part of the seconds that are left."""
        return self.left() / max(1, count)

    def sub(self, seconds: float) -> Budget:
        """Return a budget of so many seconds from now; it never outlasts this one."""
        return Budget(min(seconds, self.left()), clock=self.now)
