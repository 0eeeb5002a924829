"""The index of past runs: it changes how long their list takes, and nothing else."""

import errno
import os
from dataclasses import replace

import pytest
from record_cases import rounds_of

from iobench.results import history, record_file

SPEEDS = [1000, 1010, 990]


def write(path, number, speeds=SPEEDS):
    for one in rounds_of(speeds):
        record_file.append(
            path, replace(one, run=f"run{number}", time=f"2026-01-0{number + 1}{one.time[10:]}")
        )


@pytest.fixture
def root(tmp_path):
    """A data folder with four runs."""
    for number in range(4):
        write(tmp_path / "results" / f"run-{number}.jsonl", number)
    return tmp_path


@pytest.fixture
def read(monkeypatch):
    """The names of the runs that are read, as they are read."""
    names, whole = [], history.read_run

    def noted(path):
        names.append(path.stem)
        return whole(path)

    monkeypatch.setattr(history, "read_run", noted)
    return names


def index_of(root):
    return root / "results" / history.INDEX


@pytest.mark.parametrize("command", [[], ["--json"], ["trend"], ["trend", "--json"]])
def test_the_output_is_the_same_with_and_without_an_index(root, inside, command):
    first = inside("runs", "--data-dir", root, *command)
    assert index_of(root).is_file()
    second = inside("runs", "--data-dir", root, *command)
    assert (first.returncode, first.stdout, first.stderr) == (0, second.stdout, second.stderr)
    index_of(root).unlink()
    assert inside("runs", "--data-dir", root, *command).stdout == first.stdout


def test_only_new_and_changed_files_are_read(root, read):
    before = history.past(root)
    assert len(read) == 4
    assert history.past(root) == before
    assert len(read) == 4
    write(root / "results" / "run-4.jsonl", 4)
    record_file.append(before[0].path, rounds_of(SPEEDS)[0])
    history.past(root)
    assert sorted(read[4:]) == sorted(["run-4", before[0].name])


def test_a_change_that_keeps_size_and_time_counts_too(root):
    newest, *_ = history.past(root)
    before = newest.path.stat()
    newest.path.write_text(newest.path.read_text().replace('"name": "d"', '"name": "e"'))
    while newest.path.stat().st_ctime_ns == before.st_ctime_ns:  # a file system's clock ticks seldom
        os.utime(newest.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.utime(newest.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert newest.path.stat().st_size == before.st_size
    assert history.past(root)[0].dataset == "e"


def test_an_append_during_the_reading_is_read_the_next_time(root, monkeypatch):
    whole = history.read_run

    def outrun(path):
        run = whole(path)
        write(path, 3, [1000])
        return run

    with monkeypatch.context() as patched:
        patched.setattr(history, "read_run", outrun)
        history.past(root)
    assert {one.rounds for one in history.past(root)} == {len(SPEEDS) + 1}


def test_a_deleted_run_leaves_the_list_and_the_index(root, read):
    gone, *rest = history.past(root)
    history.delete(gone.path)
    assert history.past(root) == rest
    assert gone.name.encode() not in index_of(root).read_bytes()
    assert len(read) == 4


def flipped(content, place):
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


DAMAGE = {
    "empty": lambda content: b"",
    "cut off": lambda content: content[: len(content) // 2],
    "no index": lambda content: b"\x80" * 100,
    "checksum": lambda content: flipped(content, 0),
    "a figure": lambda content: content.replace(b'"rounds":3', b'"rounds":4'),
    "last byte": lambda content: flipped(content, len(content) - 1),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_index_is_replaced(root, read, kind):
    before, intact = history.past(root), index_of(root).read_bytes()
    index_of(root).write_bytes(DAMAGE[kind](intact))
    assert index_of(root).read_bytes() != intact
    assert history.past(root) == before
    assert (len(read), index_of(root).read_bytes()) == (8, intact)


def test_an_intact_index_of_other_types_is_replaced(root, read):
    before = history.past(root)
    body = index_of(root).read_bytes().partition(b"\n")[2].replace(b'"rounds":3', b'"rounds":"3"')
    index_of(root).write_bytes(history.checksum_of(body) + b"\n" + body)
    assert history.past(root) == before
    assert len(read) == 8


def test_an_index_of_other_code_is_replaced(root, read, monkeypatch):
    history.past(root)
    monkeypatch.setattr(history, "own_code", lambda: b"changed")
    history.past(root)
    history.past(root)
    assert len(read) == 8


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_something_else_of_that_name_is_no_index(root, make):
    make(index_of(root))
    assert len(history.past(root)) == 4


def test_a_folder_that_is_read_only_needs_no_index(root, read, monkeypatch):
    def refuse(path, content):
        raise OSError(errno.EROFS, "read-only", str(path))

    monkeypatch.setattr(history, "replace_file", refuse)
    before = history.past(root)
    assert history.past(root) == before
    assert (len(read), index_of(root).exists()) == (8, False)


def test_unreadable_files_and_odd_names_are_listed_as_without_an_index(root):
    (root / "results" / "broken.jsonl").write_text("{}\n")
    os.link(root / "results" / "run-0.jsonl", os.fsencode(root) + b"/results/\xff.jsonl")
    first, second = history.past(root), history.past(root)
    assert [one.as_dict() for one in first] == [one.as_dict() for one in second]
    assert [one.name for one in second if one.problem] == ["broken"]


def test_a_data_folder_that_moves_keeps_its_index(root, read):
    history.past(root)
    moved = root.rename(root.with_name("moved"))
    assert {one.path.parent for one in history.past(moved)} == {moved / "results"}
    assert len(read) == 4


def test_reading_many_runs_reports_progress(root, monkeypatch):
    reports = []
    history.past(root, lambda *report: reports.append(report))
    assert not reports
    index_of(root).unlink()
    monkeypatch.setattr(history, "MANY", 4)
    history.past(root, lambda *report: reports.append(report))
    total = sum(one.path.stat().st_size for one in history.past(root))
    assert len(reports) == 4
    assert [done for _, done, _ in reports] == sorted({done for _, done, _ in reports})
    assert {whole for *_, whole in reports} == {total}
