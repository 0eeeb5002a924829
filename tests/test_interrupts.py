import os
import signal
import subprocess
import sys
import threading
from itertools import count

import pytest
from conftest import complaint

from iobench.base import interrupts
from iobench.host.maps import GuardedMap
from iobench.host.page_cache import residency


def interrupt():
    signal.raise_signal(signal.SIGINT)


def test_the_first_interrupt_is_deferred_until_the_check_and_the_second_acts_at_once():
    for then in (lambda check: check(), lambda check: interrupt()):
        with interrupts.deferred() as check:
            check()
            interrupt()
            with pytest.raises(KeyboardInterrupt):
                then(check)
    with pytest.raises(KeyboardInterrupt):  # afterwards interrupts are as they were
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


# each of these is the beginning of a program that then calls iobench
AT_IMPORT = """
import os, signal, sys, time

class Interrupt:
    def find_spec(self, name, *_):
        if name == {module!r}:
            sys.meta_path.remove(self)
            try:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.2)
            except KeyboardInterrupt:
                {then}

sys.meta_path.insert(0, Interrupt())
"""
SWALLOWING = """
import importlib.util, os, signal, sys, time
from iobench.terminal import display
noted = display.note

class Swallowing:
    def find_spec(self, name, *_):
        return importlib.util.spec_from_loader(name, self) if name == "torch._swallowing" else None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)
        except KeyboardInterrupt:
            pass  # as modules do that try what is installed

def importing(*arguments):
    noted(*arguments)
    import torch._swallowing

sys.meta_path.insert(0, Swallowing())
display.note = importing
"""
AT_TABLE = """
import os, signal
from iobench.terminal import runs
shown = runs.run

def interrupted(*arguments):
    os.kill(os.getpid(), signal.SIGINT)
    shown(*arguments)

runs.run = interrupted
"""

AT_VERIFICATION = """
import os, signal
from iobench.bench.executor import InProcess
proved = InProcess.prove

def interrupted(*arguments):
    os.kill(os.getpid(), signal.SIGINT)
    return proved(*arguments)

InProcess.prove = interrupted
"""


MAIN = """
from iobench.__main__ import main
main()
"""


def new_python(code, *arguments):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def interrupted_at(code, manifest, tmp_path, python=new_python):
    where = ("--data-dir", manifest.root.parent, "--name", manifest.name, "--out", tmp_path / "out.jsonl")
    what = ("run", "--format", "npy", "--loader", "native", "--rounds", "1", "--no-limits")
    return python(code + MAIN, *what, *where)


@pytest.mark.parametrize("module", ["iobench.terminal.cli", "numpy", "torch", "iobench.bench.run"])
def test_an_interrupted_import_is_one_line(images, tmp_path, module):
    done = interrupted_at(AT_IMPORT.format(module=module, then="raise"), images, tmp_path)
    assert complaint(done, 130) == "iobench: interrupted"
    assert not (tmp_path / "out.jsonl").exists()


def test_an_import_that_aborts_on_an_interrupt_is_one_line(images, tmp_path):
    aborting = AT_IMPORT.format(module="torch.nn", then="os.abort()  # as libraries in C++ do")
    done = interrupted_at(aborting, images, tmp_path)
    assert complaint(done, 130) == "iobench: interrupted"
    assert not (tmp_path / "out.jsonl").exists()


def test_an_interrupt_in_an_import_that_swallows_it_is_not_lost(images, tmp_path, warm_python):
    done = interrupted_at(SWALLOWING, images, tmp_path, warm_python)
    assert complaint(done, 130).startswith("iobench: interrupted")


def test_an_interrupted_table_is_shown(images, tmp_path, warm_python):
    done = interrupted_at(AT_TABLE, images, tmp_path, warm_python)
    assert "--resume" in complaint(done, 130)
    assert "native" in done.stdout
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 1


def test_a_run_interrupted_while_verifying_content_saves_nothing(images, tmp_path, warm_python):
    done = interrupted_at(AT_VERIFICATION, images, tmp_path, warm_python)
    assert complaint(done, 130).startswith("iobench: interrupted; ")
    assert "--resume" not in done.stderr


def test_where_ctrl_c_is_ignored_it_stays_ignored(images, tmp_path):
    ignoring = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n{AT_IMPORT}"
    done = interrupted_at(ignoring.format(module="torch", then="raise"), images, tmp_path)
    assert done.returncode == 0, done.stderr


IN_CALLBACK = """
import os, signal, time, weakref
from iobench.dataset import manifest
find = manifest.find_dataset

class Some:
    pass

def interrupted(*arguments):
    one = Some()
    watched = weakref.ref(one, lambda _: os.kill(os.getpid(), signal.SIGINT))
    del one
    time.sleep(0.5)
    return find(*arguments)

manifest.find_dataset = interrupted
"""


def test_an_interrupt_in_a_callback_is_not_lost(images, tmp_path, warm_python):
    done = interrupted_at(IN_CALLBACK, images, tmp_path, warm_python)
    assert complaint(done, 130)
    assert "Exception ignored" not in done.stderr


WHILE_WRITING = """
import os, signal
from iobench.dataset.sources.generated import Synthetic
batches = Synthetic.batches

def terminated(self):
    yield next(batches(self))
    os.kill(os.getpid(), signal.SIGTERM)
    yield from batches(self)

Synthetic.batches = terminated
"""


def test_sigterm_acts_as_ctrl_c_and_leaves_nothing_behind(tmp_path, warm_python):
    what = ("prepare", "--size", "1e5", "--format", "npy", "--data-dir", tmp_path / "data")
    done = warm_python(WHILE_WRITING + MAIN, *what)
    assert complaint(done, 130) == "iobench: interrupted"
    assert not any((tmp_path / "data").glob("*"))


@pytest.mark.parametrize(
    ("look", "opens"),
    [(lambda file: residency([file]), {"cached_pages"}), (lambda file: GuardedMap([file], [8192]), {"_map"})],
)
def test_an_interrupt_at_any_line_leaves_no_file_open(tmp_path, look, opens):
    file = tmp_path / "x"
    file.write_bytes(bytes(8192))
    look(file)  # what is imported or measured once
    was_open = len(os.listdir("/proc/self/fd"))
    for place in count():
        left = place

        def trace(frame, event, argument):
            nonlocal left
            left -= event == "line" and frame.f_code.co_name in opens
            if left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            look(file)
            break
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        assert len(os.listdir("/proc/self/fd")) == was_open
    assert place > 2
