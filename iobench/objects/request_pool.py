"""Send many requests at once, and those that stall a second time."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from iobench.base.errors import LoaderFailed

STALL_S = 1.0  # a request that takes longer, and SLOWER times as long as others, is sent again
SLOWER = 8
RECENT = 64  # requests whose times are compared with
CHECK_S = 0.2
GRACE_S = 5.0  # for requests that were sent shortly before the time was over
CLOSE_S = 0.5  # for requests in flight when a pool is closed; those that take longer are abandoned

_abandoned = set[threading.Thread]()  # each waits for the threads of a closed pool


def abandoned() -> bool:
    """Return whether requests whose answers nothing needs are in flight: Python would wait at exit."""
    return any(thread.is_alive() for thread in _abandoned)


@dataclass(frozen=True)
class Request:
    """`fetch` returns bytes of an object; `use` copies them to where they belong."""

    fetch: Callable[[], memoryview]
    use: Callable[[memoryview], None]


@dataclass(eq=False)
class _Call:
    """A request on its way, perhaps twice; who takes `turn` uses the answer, or reports the error."""

    request: Request
    began: float | None = None
    repeated: bool = False
    done: bool = False
    turn: list[None] = field(default_factory=lambda: [None])

    def claim(self) -> bool:
        try:
            self.turn.pop()  # of one element: without a lock that Ctrl-C could leave held
        except IndexError:
            return False
        return True


class _Run:
    """Requests that are awaited together; `ended` gets the first error, or None after the last answer."""

    def __init__(self, requests: Iterable[Request]) -> None:
        self.calls = [_Call(request) for request in requests]
        self.ended: SimpleQueue[BaseException | None] = SimpleQueue()
        self._left = [*range(len(self.calls))]

    def finish(self, call: _Call, error: BaseException | None) -> None:
        """Note the outcome of a call; the waiting thread is woken once."""
        call.done = True
        if error is not None or self._left.pop() == 0:
            self.ended.put(error)

    def end(self) -> None:
        """Let no later answer be used, and wait for those that are being copied."""
        used = [call for call in self.calls if not call.claim()]
        while not all(call.done for call in used):
            time.sleep(0.001)


class RequestPool:
    """Threads that send requests, so many at a time.

    A request that stalls is sent a second time, and the answer that comes first counts: stores advise it, as
    the second goes to another of their servers. None is awaited once the pool is `stopped`, nor after the
    moment `until` of `time.monotonic`; those that were sent late have GRACE_S.
    """

    def __init__(self, threads: int, until: float = math.inf) -> None:
        self._until, self.stopped = until, False
        self._threads: ThreadPoolExecutor | None = ThreadPoolExecutor(threads, "iobench-requests")
        self._recent: deque[float] = deque(maxlen=RECENT)

    def run(self, requests: Iterable[Request]) -> None:
        """Send requests and use their answers; the first error is raised, and no answer is used after it."""
        run = _Run(requests)
        try:
            for call in run.calls:
                self._submit(run, call)
            if run.calls and (error := self._outcome(run)) is not None:
                raise error
        finally:
            run.end()

    def close(self, then: Callable[[], None] = lambda: None) -> None:
        """End the threads, and call `then`; where requests take long, later, each after its request."""
        threads, self._threads = self._threads, None
        if threads is None:
            return
        threads.shutdown(wait=False, cancel_futures=True)

        def end() -> None:
            threads.shutdown()
            then()
            _abandoned.discard(threading.current_thread())

        ending = threading.Thread(target=end, name="iobench-requests-end", daemon=True)
        _abandoned.add(ending)
        ending.start()
        ending.join(CLOSE_S)

    def _submit(self, run: _Run, call: _Call) -> None:
        if self._threads is None:
            raise ValueError("this reader is closed")
        self._threads.submit(self._send, run, call)

    def _send(self, run: _Run, call: _Call) -> None:
        if not call.turn:
            return
        began = time.monotonic()
        call.began = call.began or began
        error: BaseException | None = None
        try:
            got = call.request.fetch()
            self._recent.append(time.monotonic() - began)
        except BaseException as failed:  # noqa: BLE001 - raised where the answers are awaited
            error = failed
        if not call.claim():
            return
        try:
            if error is None:
                call.request.use(got)
        except BaseException as failed:  # noqa: BLE001
            error = failed
        run.finish(call, error)

    def _outcome(self, run: _Run) -> BaseException | None:
        """Wait until all answers are used, or an error comes; send requests again that stall until then."""
        end = max(self._until, time.monotonic() + GRACE_S)
        while True:
            try:
                return run.ended.get(timeout=CHECK_S)
            except Empty:
                if self.stopped:
                    return CancelledError()
                if time.monotonic() > end:
                    problem = "the object store did not answer in the time of the run"
                    hint = "check the store with 'iobench limits', or allow more time with --max-time"
                    return LoaderFailed(problem, "store-stalled", hint=hint)
                self._repeat(run)

    def _repeat(self, run: _Run) -> None:
        """Send requests that take much longer than others a second time."""
        patience = max(STALL_S, SLOWER * statistics.median(self._recent)) if self._recent else STALL_S
        latest = time.monotonic() - patience
        for call in run.calls:
            if call.turn and not call.repeated and call.began is not None and call.began < latest:
                call.repeated = True
                self._submit(run, call)
