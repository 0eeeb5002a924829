import signal
import threading

import pytest

from iobench.host import interrupts


def interrupt():
    signal.raise_signal(signal.SIGINT)


def test_the_first_interrupt_waits_until_it_is_asked_for():
    with interrupts.deferred() as check:
        check()
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            check()


def test_the_second_acts_at_once():
    with interrupts.deferred():
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            interrupt()


def test_afterwards_interrupts_are_as_they_were():
    with interrupts.deferred():
        pass
    with pytest.raises(KeyboardInterrupt):
        interrupt()


def test_in_other_threads_there_is_nothing_to_do():
    before, during = signal.getsignal(signal.SIGINT), []

    def work():
        with interrupts.deferred() as check:
            check()
            during.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert during == [before]
