"""Failure detection on a simulated clock: which rank is marked dead, and which one reports it."""

import threading
import time

import pytest
from kinds import kind

from iobench.base.errors import InvalidSettings, RankLost
from iobench.host.rank_info import RankInfo
from iobench.ranks import heartbeat
from iobench.ranks.group import RankGroup
from iobench.ranks.heartbeat import HeartbeatMonitor, KVStore

RANKS = [RankInfo(0, 3, 0, 0, "a"), RankInfo(1, 3, 1, 0, "a"), RankInfo(2, 3, 0, 1, "b")]


class MemoryStore(KVStore):
    """A store in memory that can become unreachable."""

    def __init__(self):
        self.values, self.gone = {}, False

    def _reach(self):
        if self.gone:
            raise RuntimeError("connection refused")
        return self.values

    def write(self, name, text):
        self._reach()[name] = text

    def write_first(self, name, text):
        return self._reach().setdefault(name, text)

    def read(self, names):
        return [self._reach().get(name) for name in names]


class Clock:
    """Simulated time in which each monitor sends and watches as often as its threads would."""

    def __init__(self):
        self.now, self.latest, self.monitors = 1000.0, 1000.0, []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        end = self.now + seconds
        while self.latest + heartbeat.HEARTBEAT_S <= end:
            self.now = self.latest = self.latest + heartbeat.HEARTBEAT_S
            for one in self.monitors:
                if not one.stopped.is_set():
                    one.send()
                    one.watch()
        self.now = end

    def until(self, true, seconds=200.0):
        end = self.now + seconds
        while not true():
            assert self.now < end
            self.sleep(heartbeat.HEARTBEAT_S)


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(heartbeat, "time", made)
    return made


@pytest.fixture
def ranks(clock):
    """Three monitors over one store."""
    store = MemoryStore()
    monitors = [HeartbeatMonitor(info, store) for info in RANKS]
    for one in monitors:
        one.expect(RANKS)
    clock.monitors += monitors  # in place of their threads
    return monitors


def is_about(error, name, rank):
    """Return True if an error of this kind names a rank."""
    return error.kind == name and rank in error.problem


@pytest.fixture
def verdict_of(clock):
    def verdict_of(one):
        clock.until(lambda: one.verdict is not None)
        return one.verdict

    return verdict_of


def test_ranks_that_live_are_never_marked_dead(ranks, clock):
    clock.sleep(10 * heartbeat.SILENT_S)
    for one in ranks:
        one.check()


def test_a_monitor_sends_and_watches_in_threads_that_do_not_outlive_it(monkeypatch):
    """A thread that is in torch's code when Python ends would abort the process."""
    monkeypatch.setattr(heartbeat, "HEARTBEAT_S", 0.001)
    sent, watched, before = threading.Event(), threading.Event(), set(threading.enumerate())
    monkeypatch.setattr(HeartbeatMonitor, "send", lambda self: (sent.set(), time.sleep(0.2)))
    monkeypatch.setattr(HeartbeatMonitor, "watch", lambda self: watched.set())
    one = HeartbeatMonitor(RANKS[0], MemoryStore())
    one.start(RANKS)
    assert sent.wait(60)
    assert watched.wait(60)
    own = set(threading.enumerate()) - before
    assert len(own) == 2
    one.stop()
    assert not any(thread.is_alive() for thread in own)


def test_a_rank_that_falls_silent_is_named_to_all_by_rank_0(ranks, verdict_of):
    ranks[2].stop()
    for one in ranks[:2]:
        assert is_about(verdict_of(one), "rank-silent", "rank 2 on b")
        with pytest.raises(RankLost, check=kind("rank-silent", problem=one.verdict.problem)):
            one.check()
        assert one.acknowledged
    assert [one.reports_failure for one in ranks[:2]] == [True, False]


def test_the_store_stays_until_all_have_read_the_verdict(ranks):
    verdict = RankLost("rank 2 on b", kind="rank-hangs", hint="look there")
    ranks[0].mark_dead(verdict)
    ranks[0].wait_for_readers()
    assert [one.verdict.fields() for one in ranks] == [verdict.fields()] * 3


def test_if_rank_0_falls_silent_one_of_the_others_reports_it(ranks, verdict_of):
    ranks[0].stop()
    assert verdict_of(ranks[1]).fields() == verdict_of(ranks[2]).fields()
    assert is_about(verdict_of(ranks[1]), "rank-silent", "rank 0 on a")
    assert [one.reports_failure for one in ranks[1:]].count(True) == 1


def test_after_a_broken_connection_the_lost_rank_is_soon_known(ranks):
    ranks[1].stop()
    assert is_about(ranks[0].connection_broken("reset"), "rank-gone", "rank 1 on a")


def test_a_broken_connection_with_all_ranks_alive_has_its_reason(ranks, verdict_of):
    error = ranks[0].connection_broken("reset")
    assert is_about(error, "connection-lost", "rank 0 on a")
    assert error.problem.endswith(": reset")
    assert verdict_of(ranks[2]).fields() == error.fields()


def test_a_terminated_rank_ends_all_ranks(ranks, verdict_of):
    ranks[1].terminate()
    with pytest.raises(RankLost, check=kind("terminated")):
        ranks[1].check()
    assert is_about(verdict_of(ranks[0]), "terminated", "rank 1 on a")


def test_a_verdict_of_another_rank_is_reported_once_by_rank_0(ranks, verdict_of):
    ranks[1].mark_dead(RankLost("reset", kind="connection-lost"))
    assert verdict_of(ranks[0]).fields() == verdict_of(ranks[1]).fields()
    assert not ranks[1].reports_failure  # rank 0 reads it, and reports it


class Work:
    """Collective that completes just after a wait for it has timed out."""

    def __init__(self, broke):
        self.waits, self.broke = 0, broke

    def wait(self, *limit):
        self.waits += 1
        if self.waits == 1 or self.broke:
            raise RuntimeError("Connection closed" if self.broke else "Operation timed out!")

    def is_completed(self):
        return True


def test_a_collective_that_completes_as_the_wait_ends_has_not_failed():
    assert RankGroup.is_done(Work(broke=False))
    with pytest.raises(RuntimeError, match="Connection closed"):
        RankGroup.is_done(Work(broke=True))


def test_a_rank_that_never_joins_the_others_ends_with_one_line(warm_python):
    code = (
        "import os, time\nfrom iobench.host.rank_info import RankInfo\n"
        "from iobench.terminal.ranked import _met_within\n"
        "def say(*words): os.write(1, ' '.join(words).encode() + b'\\n')\n"
        "with _met_within(0.1, RankInfo(2, 4, 0, 1, 'b'), say): time.sleep(30)"
    )
    done = warm_python(code)
    assert done.returncode == 1
    (line,) = done.stdout.splitlines()
    assert line.startswith("rank 2 on b")
    assert line.endswith(" ranks-unreachable")


def test_a_rank_that_keeps_others_waiting_without_a_batch_hangs(ranks, clock):
    ranks[0].enter_collective()
    ranks[1].enter_collective()
    clock.sleep(8)
    ranks[0].check(10)
    clock.sleep(4)
    ranks[0].check(10)  # marks it dead
    with pytest.raises(RankLost, check=kind("rank-hangs")) as caught:
        ranks[0].check(10)
    assert is_about(caught.value, "rank-hangs", "rank 2 on b")
    assert "10 s" in caught.value.problem


def test_a_rank_that_gets_batches_does_not_hang(ranks, clock):
    ranks[0].enter_collective()
    for _ in range(100):
        ranks[1].progress.count += 1
        ranks[2].progress.count += 1
        clock.sleep(1)
        ranks[0].check(10)


def test_a_main_thread_that_hangs_is_ended_with_the_verdict(ranks, clock):
    ended = []
    ranks[1].end = ended.append
    ranks[2].stop()
    clock.until(lambda: ranks[1].verdict is not None)
    clock.sleep(heartbeat.STUCK_S - 1)
    assert not ended
    clock.sleep(2)
    assert is_about(ended[0], "rank-silent", "rank 2 on b")


def test_an_unreachable_store_is_reported_once_per_host(ranks, verdict_of):
    ranks[0].store.gone = True
    assert is_about(verdict_of(ranks[2]), "host-gone", "rank 0 on a")
    verdict_of(ranks[1])
    assert [one.reports_failure for one in ranks[1:]] == [False, True]


def test_a_store_that_does_not_answer_is_unreachable_as_well(ranks, verdict_of, monkeypatch):
    monkeypatch.setattr(ranks[2], "send", lambda: None)  # its thread waits for the answer
    assert is_about(verdict_of(ranks[2]), "host-gone", "rank 0 on a")


def test_an_interrupt_of_rank_0_reaches_the_others(ranks, clock):
    ranks[0].interrupt()
    clock.sleep(heartbeat.HEARTBEAT_S)
    assert ranks[2].interrupted


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf", "nan"])
def test_an_invalid_timeout_is_refused(monkeypatch, text):
    monkeypatch.setenv(heartbeat.TIMEOUT, text)
    with pytest.raises(
        InvalidSettings, check=kind("out-of-range", found=repr(text)), match=heartbeat.TIMEOUT
    ):
        heartbeat.own_timeout()
