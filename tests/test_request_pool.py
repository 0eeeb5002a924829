"""Requests that are sent at once: their answers, their errors, and those that stall."""

import threading
import time
from concurrent.futures import CancelledError
from types import SimpleNamespace

import pytest
from kinds import kind

from iobench.base.errors import LoaderFailed
from iobench.objects import request_pool
from iobench.objects.request_pool import Request, RequestPool


@pytest.fixture
def pool():
    made = RequestPool(4)
    yield made
    made.close()


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(request_pool, "STALL_S", 0.05)
    monkeypatch.setattr(request_pool, "CHECK_S", 0.01)


class Server:
    """Answers request n with the byte n, or raises; holds back the first `copies` of those in `stalled`."""

    def __init__(self, stalled=(), failing=(), copies=1):
        self.stalled, self.failing, self.copies, self.sent, self.used = stalled, failing, copies, [], []
        self.released = threading.Event()

    def requests(self, count):
        return [Request(lambda n=n: self.fetch(n), self.used.append) for n in range(count)]

    def fetch(self, number):
        self.sent.append(number)
        if number in self.stalled and self.sent.count(number) <= self.copies:
            self.released.wait(30)
        if number in self.failing:
            raise OSError(number)
        return memoryview(bytes([number]))


def test_each_answer_is_used_once(pool):
    server = Server()
    pool.run(server.requests(100))
    assert sorted(map(bytes, server.used)) == [bytes([n]) for n in range(100)]
    pool.run(iter(()))


def test_an_error_is_raised_and_no_later_answer_is_used(pool):
    server = Server(stalled=[1, 2, 3], failing=[0])
    with pytest.raises(OSError, match="0"):
        pool.run(server.requests(50))
    used = len(server.used)
    server.released.set()
    pool.run(Server().requests(20))  # what was waiting is behind it
    assert len(server.used) == used


def test_an_error_of_use_is_raised(pool):
    with pytest.raises(ZeroDivisionError):
        pool.run([Request(lambda: memoryview(b""), lambda got: 1 // 0)])


@pytest.mark.usefixtures("impatient")
def test_a_request_that_stalls_is_sent_again_and_its_late_answer_is_not_used(pool):
    server = Server(stalled=[7, 8])
    pool.run(server.requests(20))
    assert sorted(map(bytes, server.used)) == [bytes([n]) for n in range(20)]
    assert [server.sent.count(number) for number in (7, 8)] == [2, 2]
    assert set(server.sent) == {*range(20)}  # others may stall, too, where this process is paused
    server.released.set()
    pool.close()
    assert len(server.used) == 20


@pytest.mark.usefixtures("impatient")
def test_a_request_is_sent_twice_at_most(pool):
    server = Server(stalled=[0], copies=9)

    def release():
        until = time.monotonic() + 20
        while server.sent.count(0) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.3)  # in which it would be sent a third time
        server.released.set()

    threading.Thread(target=release).start()
    pool.run(server.requests(3))
    assert server.sent.count(0) == 2


@pytest.mark.usefixtures("impatient")
def test_an_error_that_comes_after_the_second_answer_is_none(pool):
    server = Server(stalled=[0])

    def fetch():
        got = server.fetch(0)
        if server.released.is_set():
            raise OSError
        return got

    pool.run([Request(fetch, server.used.append)])
    server.released.set()
    pool.close()
    assert len(server.used) == 1


def test_a_slow_store_is_not_asked_twice(pool, monkeypatch):
    clock, repeat = SimpleNamespace(now=1.0), pool._repeat
    patched = SimpleNamespace(monotonic=lambda: clock.now, sleep=time.sleep)
    monkeypatch.setattr(request_pool, "time", patched)
    monkeypatch.setattr(request_pool, "STALL_S", 0.3)
    monkeypatch.setattr(request_pool, "CHECK_S", 0.01)

    def sent_twice(seconds):
        """Return how many of four requests are sent again that take this long by the clock."""
        looked, calls = threading.Event(), []

        def look(run):
            if not looked.is_set() and all(call.began is not None for call in run.calls):
                clock.now += seconds
                repeat(run)
                calls.extend(run.calls)
                looked.set()

        def fetch():
            assert looked.wait(30)
            return memoryview(b"")

        monkeypatch.setattr(pool, "_repeat", look)
        pool.run([Request(fetch, len)] * 4)
        return sum(call.repeated for call in calls)

    assert [sent_twice(seconds) for seconds in (0.2, 0.5, 60.0)] == [0, 0, 4]


@pytest.mark.usefixtures("impatient")
def test_requests_that_stall_after_the_time_of_a_run_are_abandoned(monkeypatch):
    monkeypatch.setattr(request_pool, "GRACE_S", 0.02)
    server, pool = Server(stalled=[0], copies=9), RequestPool(4, until=time.monotonic())
    with pytest.raises(LoaderFailed, check=kind("store-stalled")):
        pool.run(server.requests(3))
    assert not server.released.is_set()
    server.released.set()
    pool.close()


@pytest.mark.usefixtures("impatient")
def test_a_pool_that_is_stopped_or_closed_does_not_wait_for_requests_that_stall(monkeypatch):
    monkeypatch.setattr(request_pool, "CLOSE_S", 0.01)
    server, pool, closed = Server(stalled=[0], copies=9), RequestPool(4), threading.Event()
    threading.Timer(0.05, lambda: setattr(pool, "stopped", True)).start()
    with pytest.raises(CancelledError):
        pool.run(server.requests(1))
    pool.close(closed.set)
    assert request_pool.abandoned()
    assert not closed.is_set()  # what they use stays open
    server.released.set()
    assert closed.wait(30)


def test_a_closed_pool_refuses(pool):
    pool.close()
    with pytest.raises(ValueError, match="closed"):
        pool.run(Server().requests(1))
