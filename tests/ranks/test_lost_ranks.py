"""Which rank is given up, by whom, and who says so."""

import subprocess
import sys
import threading
import time

import pytest

from iobench.errors import InvalidSettings, RankLost
from iobench.ranks import watch
from iobench.ranks.group import Gloo
from iobench.ranks.place import Place
from iobench.ranks.watch import Board, Watch

PLACES = [Place(0, 3, 0, 2, 0, "a"), Place(1, 3, 1, 2, 0, "a"), Place(2, 3, 0, 1, 1, "b")]


class Notes(Board):
    """A board in memory that can go away."""

    def __init__(self):
        self.notes, self.gone, self._lock = {}, False, threading.Lock()

    def _reach(self):
        if self.gone:
            raise RuntimeError("connection refused")
        return self._lock

    def write(self, name, text):
        with self._reach():
            self.notes[name] = text

    def write_first(self, name, text):
        with self._reach():
            return self.notes.setdefault(name, text)

    def read(self, names):
        with self._reach():
            return [self.notes.get(name) for name in names]


@pytest.fixture
def ranks(monkeypatch):
    """Three watches over one board, with beats and times of milliseconds."""
    monkeypatch.setattr(watch, "BEAT_S", 0.005)
    monkeypatch.setattr(watch, "SILENT_S", 0.15)
    monkeypatch.setattr(watch, "SUSPECT_S", 0.1)
    monkeypatch.setattr(watch, "STUCK_S", 0.05)
    board = Notes()
    found = [Watch(place, board) for place in PLACES]
    for one in found:
        one.start(PLACES)
    yield found
    for one in found:
        one.stop()


def verdict_of(one):
    end = time.monotonic() + 30
    while one.verdict is None:
        assert time.monotonic() < end
        time.sleep(0.005)
    return one.verdict


def wait_at_most(one, patience_s):
    end = time.monotonic() + 30
    while time.monotonic() < end:
        one.check(patience_s)
        time.sleep(0.005)


def test_ranks_that_live_are_never_given_up(ranks):
    time.sleep(0.5)
    for one in ranks:
        one.check()


def test_a_rank_that_falls_silent_is_named_to_all_by_rank_0(ranks):
    ranks[2].stop()
    for one in ranks[:2]:
        assert verdict_of(one).startswith("rank 2 on b gave no sign of life")
        with pytest.raises(RankLost, match="rank 2 on b"):
            one.check()
    assert [one.speaks for one in ranks[:2]] == [True, False]


def test_the_board_stays_until_all_have_read_the_verdict(ranks, monkeypatch):
    monkeypatch.setattr(watch, "READING", 60)
    ranks[0].give_up("rank 2 on b hangs")
    ranks[0].let_others_read()
    assert {one.verdict for one in ranks} == {"rank 2 on b hangs"}


def test_where_rank_0_falls_silent_one_of_the_others_says_so(ranks):
    ranks[0].stop()
    assert verdict_of(ranks[1]) == verdict_of(ranks[2])
    assert "rank 0 on a gave no sign of life" in verdict_of(ranks[1])
    assert [one.speaks for one in ranks[1:]].count(True) == 1


def test_after_a_broken_connection_who_has_gone_is_soon_known(ranks):
    ranks[1].stop()
    assert "rank 1 on a is gone" in str(ranks[0].broken("connection closed by peer"))


def test_a_broken_connection_with_all_ranks_there_says_what_broke(ranks):
    assert str(ranks[0].broken("reset")) == "rank 0 on a lost the other ranks: reset"
    assert "reset" in verdict_of(ranks[2])


def test_what_another_rank_decides_is_said_once_by_rank_0(ranks):
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
    code = "; ".join(
        [
            "import time",
            "from iobench.ranks.place import Place",
            "from iobench.terminal.ranked import _met_within",
            "never = _met_within(0.1, Place(2, 4, 0, 2, 1, 'b'), print)",
            "never.__enter__()",
            "time.sleep(30)",
        ]
    )
    done = subprocess.run([sys.executable, "-u", "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout.startswith("rank 2 on b has not reached the other ranks within 0 s")


def test_a_rank_that_keeps_others_waiting_without_a_batch_hangs(ranks):
    ranks[0].arrived()
    ranks[1].arrived()
    with pytest.raises(RankLost, match=r"rank 2 on b hangs: .* no batch came for 0.1 s"):
        wait_at_most(ranks[0], 0.1)


def test_a_rank_that_gets_batches_is_waited_for(ranks):
    ranks[0].arrived()
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        ranks[1].progress.batches += 1
        ranks[2].progress.batches += 1
        ranks[0].check(0.2)
        time.sleep(0.01)


def test_a_main_thread_that_hangs_is_ended_with_the_verdict(ranks):
    ended = threading.Event()
    ranks[1].end = lambda verdict: ended.set()
    ranks[2].stop()
    assert ended.wait(30)


def test_where_the_board_has_gone_each_host_says_so_once(ranks):
    ranks[0]._board.gone = True
    assert "lost rank 0 on a" in verdict_of(ranks[2])
    verdict_of(ranks[1])
    assert [one.speaks for one in ranks[1:]] == [False, True]


def test_a_board_that_does_not_answer_is_lost_as_well(ranks, monkeypatch):
    answered = threading.Event()
    monkeypatch.setattr(ranks[2], "_beat", answered.wait)
    assert "lost rank 0 on a" in verdict_of(ranks[2])
    answered.set()


def test_an_interrupt_of_rank_0_hurries_the_others(ranks):
    ranks[0].interrupt()
    end = time.monotonic() + 30
    while not ranks[2].interrupted:
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf", "nan"])
def test_a_timeout_that_is_no_number_of_seconds_is_refused(monkeypatch, text):
    monkeypatch.setenv(watch.TIMEOUT, text)
    with pytest.raises(InvalidSettings, match=r"IOBENCH_RANK_TIMEOUT="):
        watch.own_timeout()
