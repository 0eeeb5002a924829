"""Progress of a run, on a terminal and elsewhere."""

import math
import os
import pty
import re
import subprocess
import time

import pytest
from conftest import command
from record_cases import a_case, a_record, rounds_of
from rich.console import Console

from iobench.results.cases import labels
from iobench.terminal import live


def shown(view):
    console = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(view.render())
    return console.export_text()


def planned(view, batch_bytes=2**20):
    cases = [a_case("npy"), a_case("lmdb")]
    view.planned(labels({c.key: c.facets for c in cases}), dict.fromkeys((c.key for c in cases), batch_bytes))
    return view


NPY, LMDB = a_case("npy").key, a_case("lmdb").key


@pytest.fixture
def view():
    return planned(live.View(3, math.inf))


def test_before_the_first_round_it_shows_the_status(view):
    view.status("busy")
    view.begins(NPY, 0)
    assert "busy" in shown(view)
    assert "round" not in shown(view)


def test_a_running_epoch_has_its_speed_its_round_and_the_time_left(view, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    view.begins(NPY, 0)
    view.begins(NPY, 1)
    now[0] += 2
    view.recorded(NPY, a_record(1000))
    progress = view.begins(NPY, 2)
    progress.count = 300
    now[0] += 1
    text = shown(view)
    for part in ("round 2 of 3", "npy · native", "300 MiB/s", "15.0 s left"):
        assert part in text


def test_with_auto_the_time_left_is_what_max_time_leaves(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    view = planned(live.View(None, 60.0))
    view.begins(NPY, 1)
    view.recorded(NPY, a_record(1000))
    now[0] += 20
    view.begins(NPY, 2)
    assert "round 2 " in shown(view)
    assert "round 2 of" not in shown(view)
    assert "40.0 s left" in shown(view)


def test_cases_are_listed_with_their_last_round_and_median_fastest_first(view):
    for record in [*rounds_of([100, 300, 200], variant="lmdb"), *rounds_of([1000])]:
        view.recorded(record.settings_key, record)
    rows = [line.split() for line in shown(view).splitlines()]
    assert rows[1] == ["npy", "·", "native", "1", "1,000", "1,000"]
    assert rows[2] == ["lmdb", "·", "native", "3", "200", "200"]


def test_elsewhere_a_phase_is_a_line_and_a_long_one_is_a_line_every_few_seconds(capfd, monkeypatch):
    monkeypatch.setattr(live, "LINE_S", math.inf)
    with live.view(2, math.inf) as observer:
        planned(observer)
        for number in range(5):
            observer.status(f"verifying case {number}")
        for number in (1, 2):
            for _ in range(3):
                observer.recorded(NPY, rounds_of([100.0] * number)[-1])
        assert len(capfd.readouterr().err.splitlines()) == 3
        monkeypatch.setattr(live, "LINE_S", 0.0)
        observer.recorded(NPY, rounds_of([100.0] * 2)[-1])
        assert len(capfd.readouterr().err.splitlines()) == 1


def test_elsewhere_a_round_names_its_case_and_figures(capfd):
    with live.view(2, math.inf) as observer:
        planned(observer)
        observer.status("checking")
        observer.begins(NPY, 1)
        observer.recorded(NPY, a_record(1000))
    out, err = capfd.readouterr()
    assert out == ""
    status, line = err.splitlines()
    assert status == "checking"
    for part in ("round 1/2", "npy · native", "1,000 MiB/s", "1.02 s"):
        assert part in line


def test_on_a_terminal_the_view_goes_and_the_table_stays(images, tmp_path):
    arguments = ("--data-dir", images.root.parent, "--format", "npy", "--loader", "native", "--rounds", 3)
    main, terminal = pty.openpty()
    with subprocess.Popen(
        command("run", *arguments, "--out", tmp_path / "r.jsonl", "--no-limits"),
        stdout=subprocess.PIPE,
        stderr=terminal,
        text=True,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"},
    ) as process:
        os.close(terminal)
        seen = read_all(main)
        out = process.communicate(timeout=60)[0]
    assert process.returncode == 0
    assert "npy" in out
    assert "\x1b" not in out
    assert "round 1/3" not in seen, "the view replaces the lines"
    assert re.search(r"npy · native", seen)
    assert "\x1b[" in seen


def read_all(descriptor):
    parts = []
    try:
        while part := os.read(descriptor, 65536):
            parts.append(part)
    except OSError:  # as a terminal ends
        pass
    os.close(descriptor)
    return b"".join(parts).decode(errors="replace")
