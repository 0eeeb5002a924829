"""Isolated cases: the same figures and failures, and no case affects another."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from conftest import damage
from kinds import kind

import iobench
from iobench.base.errors import CaseDied, WrongContent
from iobench.bench import isolated
from iobench.bench.case import Case
from iobench.bench.case_grid import cases_of
from iobench.bench.executor import InProcess, Tick
from iobench.bench.isolated import Isolated
from iobench.bench.options import RunOptions
from iobench.bench.outcome import Observer


def options(*loaders, **more):
    chosen = {"device": ("cpu",), "order": ("sequential",), "limits": False, "isolate": True, "rounds": "2"}
    return RunOptions(("npy",), loaders, **{**chosen, **more})


def a_case(manifest, loader="native", **more):
    (case,) = cases_of(manifest, options(loader, **more), ["cpu"])
    return case


@pytest.fixture
def executor(images):
    made = Isolated(images, 60.0)
    yield made
    made.close()


EARLIER = set()  # servers of other tests, and their children
own_server = pytest.mark.as_for_users


@pytest.fixture(autouse=True)
def earlier_servers(request):
    EARLIER.clear()
    EARLIER.update(children())
    if request.node.get_closest_marker("as_for_users"):
        EARLIER.update(servers())


def servers():
    return [p for p in set(psutil.Process().children()) - EARLIER if is_server(p)]


def is_server(process):
    with contextlib.suppress(psutil.Error):  # it has just ended
        living = process.status() != psutil.STATUS_ZOMBIE
        return living and any("serve_forks" in word for word in process.cmdline())
    return False


def children():
    return [child for server in servers() for child in server.children() if child not in EARLIER]


def test_it_measures_what_this_process_does(images, executor):
    case = a_case(images, "dataloader:num_workers=1", model=("mlp",))
    executor.prove(case, 1, Tick())
    (apart,) = executor.measure(case, 1, Tick())
    here = InProcess(images)
    here.prove(case, 1, Tick())
    (own,) = here.measure(case, 1, Tick())
    assert apart.loss == own.loss
    assert apart.timing.samples % images.schema.samples == 0
    assert apart.memory.peak_bytes > 0
    assert apart.processor.cpu_s > 0


def test_the_memory_of_a_case_does_not_depend_on_the_number_of_others(images, executor):
    lasting = "dataloader:num_workers=2,persistent_workers=yes"  # its workers are there when memory is read
    loaders = (lasting, "native", "dataloader", "stream")
    first, *others = cases_of(images, options(*loaders), ["cpu"])
    peaks = []
    for started in ([first], others):
        for case in started:
            executor.prove(case, 1, Tick())
        (measured,) = executor.measure(first, 1, Tick())
        peaks.append(measured.memory.peak_bytes)
    assert peaks[1] == pytest.approx(peaks[0], rel=0.1)


def test_when_memory_runs_short_the_least_recently_used_process_ends(images, executor, monkeypatch):
    first, second = a_case(images), a_case(images, "dataloader")
    monkeypatch.setattr(isolated.memory, "free_memory", isolated.memory.total_memory)
    for case in (first, second):
        executor.prove(case, 1, Tick())
    assert len(children()) == 2, "each case has its own"
    monkeypatch.setattr(isolated.memory, "free_memory", lambda: 0.0)
    executor.prove(a_case(images, "stream"), 1, Tick())
    assert len(children()) == 1
    (again,) = executor.measure(first, 1, Tick())  # in a new process
    assert again.timing.samples >= images.schema.samples


def test_a_process_that_was_ended_is_warmed_up_before_its_next_round(images, monkeypatch):
    """Otherwise its first epoch, with its imports and fresh memory, would be timed."""
    asked, send = [], isolated.Child.send

    def noted(process, message):
        if message[0] in ("prove", "warm up", "measure", "trace"):
            asked.append((process, message[0]))
        send(process, message)

    monkeypatch.setattr(isolated.Child, "send", noted)
    monkeypatch.setattr(isolated.memory, "free_memory", lambda: 0.0)
    made = iobench.run(images, options("native", "dataloader", trace=True))
    assert not made.failures
    rounds = [process for process, what in asked if what == "measure"]
    assert len(rounds) == 4
    for process in rounds:
        before = [what for one, what in asked if one is process]
        assert {"prove", "warm up"} & {*before[: before.index("measure")]}


def test_processes_end_to_keep_data_of_warm_cases_in_memory(images, executor, monkeypatch):
    first, second = a_case(images), a_case(images, "dataloader")
    stored = images.artifacts["npy"].stored_bytes
    kept = isolated.KEPT_FREE * isolated.memory.total_memory()
    executor.prove(first, 1, Tick())
    monkeypatch.setattr(isolated.memory, "free_memory", lambda: kept + stored)
    executor.prove(second, 1, Tick())
    assert len(children()) == 2, "memory suffices for all"
    monkeypatch.setattr(isolated.memory, "free_memory", lambda: kept + stored / 2)
    executor.prove(a_case(images, "stream"), 1, Tick())
    assert len(children()) == 1, "else its data would be evicted"


@own_server
def test_a_process_lives_through_all_rounds_and_ends_with_the_run(images, executor):
    """Batches are seen as they come, and threads of this process are not in the way."""
    case, tick, stop = a_case(images, batch_size=(8,)), Tick(), threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    executor.prove(case, 1, tick)
    assert tick.progress.count > 0
    (first,) = children()
    for number in (1, 2, 3):
        executor.measure(case, number, Tick())
        assert [child.pid for child in children()] == [first.pid]
    executor.close()
    assert not servers()
    stop.set()
    thread.join()


def test_wrong_content_raises_the_same_error_as_in_this_process(own_images, executor):
    damage(own_images.files_of("npy")[0])
    errors = []
    for made in (Isolated(own_images, 60.0), InProcess(own_images)):
        with pytest.raises(WrongContent) as caught:
            made.prove(a_case(own_images), 1, Tick())
        errors.append(caught.value.fields())
        made.close()
    assert errors[0] == errors[1]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGBUS])
def test_a_process_that_is_killed_is_a_failure_of_its_case_and_of_no_other(
    images, tmp_path, monkeypatch, number
):
    processes, send = {}, isolated.Child.send

    def note(process, message):
        if isinstance(message[0], Case):
            processes[message[0].loader.name] = process
        send(process, message)

    class Killing(Observer):
        def recorded(self, key, record):
            if record.case["loader"] == "native":
                os.kill(processes["native"].pid, number)

    monkeypatch.setattr(isolated.Child, "send", note)
    asked = options("native", "stream", rounds="3")
    result = iobench.run(images, asked, out=tmp_path / "r.jsonl", observer=Killing())
    ((key, error),) = result.failures.items()
    assert str(result.labels[key]) == "npy · native"
    assert error.kind == "process-ended"
    assert number.name in error.problem
    assert "\n" not in str(error)
    assert [one.case["loader"] for one in result.records].count("stream") == 3
    assert all(one.case["isolated"] for one in result.records)
    assert not children()


def test_a_process_that_hangs_is_killed(images, executor):
    quick = Isolated(images, 30.0)
    case = a_case(images)
    quick.prove(case, 1, Tick())
    (child,) = children()
    child.suspend()
    quick.timeout_s = 0.5
    with pytest.raises(CaseDied, check=kind("timeout"), match=r"0\.5 s") as caught:
        quick.measure(case, 1, Tick())
    assert "--timeout" in caught.value.hint
    assert not children()
    quick.close()


def test_an_interrupt_ends_every_process(images, executor):
    case = a_case(images)
    executor.prove(case, 1, Tick())

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        executor.measure(case, 1, Tick(interrupt))
    executor.close()
    assert not children()


@own_server
def test_a_fork_server_that_was_killed_is_replaced(images, executor):
    first, second = a_case(images), a_case(images, "dataloader")
    executor.prove(first, 1, Tick())
    (server,) = servers()
    server.kill()
    with pytest.raises(CaseDied, check=kind("process-ended"), match="SIGKILL"):
        executor.measure(first, 1, Tick())
    executor.prove(second, 1, Tick())
    assert len(servers()) == len(children()) == 1


SENDING_TO_THE_DEAD = """
import gc, os
from iobench.host.child import Child, ChildEnded
def send():
    child = Child("iobench.studies._rounds:serve")
    os.kill(child.pid, 9)
    child.exit_code()
    try:
        while True:
            child.send(b"x" * 100_000)
    except ChildEnded as error:
        error.itself = error  # a cycle, with all that its traceback holds
for _ in range(5):
    send()
gc.collect()
"""


def test_the_error_of_a_child_that_has_ended_can_be_collected():
    """Python 3.12 crashed, or printed a SystemError, over the message that was being sent."""
    done = subprocess.run([sys.executable, "-c", SENDING_TO_THE_DEAD], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


ORPHANING = """
import os, psutil, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_isolated import a_case
from iobench.bench.executor import Tick
from iobench.bench.isolated import Isolated
from iobench.dataset.manifest import Manifest
manifest = Manifest.load(Path(sys.argv[1]))
Isolated(manifest, 60.0).prove(a_case(manifest), 1, Tick())
server, process = psutil.Process().children(recursive=True)
print(process.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_it_ends_with_its_parent(images):
    command = [sys.executable, "-c", ORPHANING, images.root, str(Path(__file__).parent)]
    pid = int(subprocess.run(command, capture_output=True, text=True).stdout)
    deadline = time.monotonic() + 60
    with contextlib.suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.05)
