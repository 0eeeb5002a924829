"""Which rank is given up, by whom, and who says so, on a clock that only the test moves."""

import subprocess
import sys
import threading
import time

import pytest

from iobench.base.errors import (
    InvalidSettings,
    RankLost,
)
from iobench.ranks import watch
from iobench.ranks.group import Gloo
from iobench.ranks.place import Place
from iobench.ranks.watch import Board, Watch

PLACES = [Place(0, 3, 0, 2, 0, "a"), Place(1, 3, 1, 2, 0, "a"), Place(2, 3, 0, 1, 1, "b")]


class Notes(Board):
    """A board in memory that can go away."""

    def __init__(self):
        self.notes, self.gone = {}, False

    def _reach(self):
        if self.gone:
            raise RuntimeError("connection refused")
        return self.notes

    def write(self, name, text):
        self._reach()[name] = text

    def write_first(self, name, text):
        return self._reach().setdefault(name, text)

    def read(self, names):
        return [self._reach().get(name) for name in names]


class Turn:
    """The event that a watch's loops wait for: they go round once each time that they are called."""

    def __init__(self):
        self.over = self.taken = False

    def set(self):
        self.over = True

    def wait(self, seconds):
        self.taken = not self.taken
        return self.over or not self.taken


class Clock:
    """Time in which every watch beats and looks as often as its threads would."""

    def __init__(self):
        self.now, self.beaten, self.loops = 1000.0, 1000.0, []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        end = self.now + seconds
        while self.beaten + watch.BEAT_S <= end:
            self.now = self.beaten = self.beaten + watch.BEAT_S
            for loop in self.loops:
                loop()
        self.now = end

    def until(self, true, seconds=200.0):
        end = self.now + seconds
        while not true():
            assert self.now < end
            self.sleep(watch.BEAT_S)


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(watch, "time", made)
    return made


@pytest.fixture
def ranks(clock):
    """Three watches over one board."""
    board = Notes()
    found = [Watch(place, board) for place in PLACES]
    for one in found:
        one._threads, one._over = [], Turn()  # the clock has them go round instead
        one.start(PLACES)
        clock.loops += [lambda one=one: one._keep_beating(), lambda one=one: one._keep_watching()]
    return found


@pytest.fixture
def verdict_of(clock):
    def verdict_of(one):
        clock.until(lambda: one.verdict is not None)
        return one.verdict

    return verdict_of


def test_ranks_that_live_are_never_given_up(ranks, clock):
    clock.sleep(10 * watch.SILENT_S)
    for one in ranks:
        one.check()


def test_a_watch_beats_and_looks_in_threads_of_its_own(monkeypatch):
    monkeypatch.setattr(watch, "BEAT_S", 0.001)
    one, beaten, looked = Watch(PLACES[0], Notes()), threading.Event(), threading.Event()
    monkeypatch.setattr(one, "_beat", beaten.set)
    monkeypatch.setattr(one, "_end_where_stuck", looked.set)
    one.start(PLACES)
    assert beaten.wait(60)
    assert looked.wait(60)
    one.stop()


def test_no_beat_outlives_a_watch(monkeypatch):
    """A thread that is in torch's code as Python ends would abort the process."""
    monkeypatch.setattr(watch, "BEAT_S", 0.001)
    one, begun = Watch(PLACES[0], Notes()), threading.Event()
    monkeypatch.setattr(one, "_beat", lambda: (begun.set(), time.sleep(0.2)))
    one.start(PLACES)
    assert begun.wait(60)
    one.stop()
    assert not any(thread.is_alive() for thread in one._threads)
    for thread in one._threads:
        thread.join(60)
        assert not thread.is_alive()


def test_a_rank_that_falls_silent_is_named_to_all_by_rank_0(ranks, verdict_of):
    ranks[2].stop()
    for one in ranks[:2]:
        assert verdict_of(one).startswith("rank 2 on b gave no sign of life")
        with pytest.raises(RankLost, match="rank 2 on b"):
            one.check()
    assert [one.speaks for one in ranks[:2]] == [True, False]


def test_the_board_stays_until_all_have_read_the_verdict(ranks):
    ranks[0].give_up("rank 2 on b hangs")
    ranks[0].let_others_read()
    assert {one.verdict for one in ranks} == {"rank 2 on b hangs"}


def test_where_rank_0_falls_silent_one_of_the_others_says_so(ranks, verdict_of):
    ranks[0].stop()
    assert verdict_of(ranks[1]) == verdict_of(ranks[2])
    assert "rank 0 on a gave no sign of life" in verdict_of(ranks[1])
    assert [one.speaks for one in ranks[1:]].count(True) == 1


def test_after_a_broken_connection_who_has_gone_is_soon_known(ranks):
    ranks[1].stop()
    assert "rank 1 on a is gone" in str(ranks[0].broken("connection closed by peer"))


def test_a_broken_connection_with_all_ranks_there_says_what_broke(ranks, verdict_of):
    assert str(ranks[0].broken("reset")) == "rank 0 on a lost the other ranks: reset"
    assert "reset" in verdict_of(ranks[2])


def test_what_another_rank_decides_is_said_once_by_rank_0(ranks, verdict_of):
    ranks[1].give_up("rank 1 on a lost the other ranks: reset")
    assert verdict_of(ranks[0]) == verdict_of(ranks[1])
    assert not ranks[1].speaks  # rank 0 hears it, and says what it hears


class Meeting:
    """A meeting of all ranks, for which the wait is over just before they have come."""

    def __init__(self, broke):
        self.waits, self.broke = 0, broke

    def wait(self, *limit):
        self.waits += 1
        if self.waits == 1 or self.broke:
            raise RuntimeError("Connection closed" if self.broke else "Operation timed out!")

    def is_completed(self):
        return True


def test_a_meeting_to_which_all_come_as_the_wait_is_over_has_not_broken():
    assert Gloo._came(Meeting(broke=False))
    with pytest.raises(RuntimeError, match="Connection closed"):
        Gloo._came(Meeting(broke=True))


def test_a_rank_that_never_meets_the_others_ends_with_a_line():
    code = (
        "import time\nfrom iobench.ranks.place import Place\n"
        "from iobench.terminal.ranked import _met_within\n"
        "with _met_within(0.1, Place(2, 4, 0, 2, 1, 'b'), print): time.sleep(30)"
    )
    done = subprocess.run([sys.executable, "-u", "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout.startswith("rank 2 on b has not reached the other ranks within 0 s")


def test_a_rank_that_keeps_others_waiting_without_a_batch_hangs(ranks, clock):
    ranks[0].arrived()
    ranks[1].arrived()
    clock.sleep(8)
    ranks[0].check(10)
    clock.sleep(4)
    ranks[0].check(10)  # which gives it up
    with pytest.raises(RankLost, match=r"rank 2 on b hangs: .* no batch came for 10 s"):
        ranks[0].check(10)


def test_a_rank_that_gets_batches_is_waited_for(ranks, clock):
    ranks[0].arrived()
    for _ in range(100):
        ranks[1].progress.batches += 1
        ranks[2].progress.batches += 1
        clock.sleep(1)
        ranks[0].check(10)


def test_a_main_thread_that_hangs_is_ended_with_the_verdict(ranks, clock):
    ended = []
    ranks[1].end = ended.append
    ranks[2].stop()
    clock.until(lambda: ranks[1].verdict is not None)
    clock.sleep(watch.STUCK_S - 1)
    assert not ended
    clock.sleep(2)
    assert ended[0].startswith("rank 2 on b gave no sign of life")


def test_where_the_board_has_gone_each_host_says_so_once(ranks, verdict_of):
    ranks[0]._board.gone = True
    assert "lost rank 0 on a" in verdict_of(ranks[2])
    verdict_of(ranks[1])
    assert [one.speaks for one in ranks[1:]] == [False, True]


def test_a_board_that_does_not_answer_is_lost_as_well(ranks, verdict_of, monkeypatch):
    monkeypatch.setattr(ranks[2], "_keep_beating", lambda: None)  # whose thread waits for the answer
    assert "lost rank 0 on a" in verdict_of(ranks[2])


def test_an_interrupt_of_rank_0_hurries_the_others(ranks, clock):
    ranks[0].interrupt()
    clock.sleep(watch.BEAT_S)
    assert ranks[2].interrupted


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf", "nan"])
def test_a_timeout_that_is_no_number_of_seconds_is_refused(monkeypatch, text):
    monkeypatch.setenv(watch.TIMEOUT, text)
    with pytest.raises(InvalidSettings, match=r"IOBENCH_RANK_TIMEOUT="):
        watch.own_timeout()
