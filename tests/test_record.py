"""Records: written, read back, checked."""

import dataclasses
import errno
import fcntl
import json
import math
import os
import re
import threading
from pathlib import Path

import pytest
from kinds import kind
from record_cases import MIB, SAMPLES, a_case, a_record

from iobench.base.errors import RecordError
from iobench.base.machine import MachineGpu
from iobench.results import record, record_file
from iobench.results.parts import FieldSpec
from iobench.results.record import key_of
from iobench.results.summary import summarise

EXAMPLE = a_record(100)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "results" / "r.jsonl"


def line_of(problem):
    """Return the number of the line that an error is about."""
    return int(re.match(r"line (\d+): ", problem.problem)[1])


def with_loss(loss):
    return dataclasses.replace(EXAMPLE, loss=loss)


def test_what_was_appended_is_read_back(path):
    records = [with_loss(float(number)) for number in range(3)]
    for one in records:
        record_file.append(path, one)
    assert record_file.read(path) == (records, [])
    assert len(path.read_text().splitlines()) == len(records)


def test_half_of_another_writers_line_is_never_taken_for_the_end(path):
    """A writer waits until another writer's line is complete."""
    record_file.append(path, EXAMPLE)
    line = path.read_text()
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(line[:10])
        file.flush()
        other = threading.Thread(target=record_file.append, args=(path, EXAMPLE))
        other.start()
        other.join(0.2)
        file.write(line[10:])
    other.join()
    assert path.read_text() == 3 * line


def test_the_key_is_computed_and_never_read_from_the_file(path):
    body = {**json.loads(json.dumps(dataclasses.asdict(EXAMPLE))), "facets": {}}
    forged = record_file.parse(json.dumps({**body, "key": "forged", "settings_key": "forged"}))
    assert (forged, forged.key, forged.settings_key) == (EXAMPLE, EXAMPLE.key, a_case().key)
    record_file.append(path, forged)
    assert not {"key", "facets", "settings_key"} & json.loads(path.read_text()).keys()


DISK = EXAMPLE.machine.disk


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("machine", {"host": "there"}),
        ("machine", {"cpu": "6502"}),
        ("machine", {"usable_cores": 1}),
        ("machine", {"memory_bytes": 2**35}),
        ("machine", {"gpu": MachineGpu(name="Z")}),
        ("machine", {"disk": dataclasses.replace(DISK, file_system="xfs")}),
        ("machine", {"disk": dataclasses.replace(DISK, model="slow")}),
        ("machine", {"disk": dataclasses.replace(DISK, read_ahead_kib=4096)}),
        ("dataset", {"samples": SAMPLES + 1}),
        ("dataset", {"fields": [FieldSpec(name="x", shape=[MIB], dtype="int8")]}),
    ],
)
def test_the_key_holds_machine_and_data_and_the_settings_key_does_not(part, changes):
    other = dataclasses.replace(EXAMPLE, **{part: dataclasses.replace(getattr(EXAMPLE, part), **changes)})
    assert other.key != EXAMPLE.key
    assert other.settings_key == EXAMPLE.settings_key
    assert key_of(dict(reversed(other.facets.items()))) == other.key, "in any order"


def test_a_summary_does_not_compute_the_keys_of_its_records_again():
    limit = dataclasses.replace(EXAMPLE.limit, now_bytes_per_s=EXAMPLE.limit.bytes_per_s)
    records = [dataclasses.replace(EXAMPLE, round=number, limit=limit) for number in (1, 2)]
    (context,) = summarise(records).contexts
    for one, shown in zip(records, context.records, strict=True):
        assert shown is not one, "its limit was replaced"
        assert shown.key is one.key
        assert shown.facets is one.facets


def test_rates_are_per_second_of_the_epoch():
    twice = dataclasses.replace(EXAMPLE.timing, epochs=2)
    one = dataclasses.replace(EXAMPLE, timing=twice)
    assert one.bytes_per_s == pytest.approx(100 * 2**20)
    assert one.samples_per_s == pytest.approx(100)
    assert one.epoch_s == pytest.approx(SAMPLES / 100 / 2)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_figures_that_json_cannot_express_become_null(path, value):
    source = dataclasses.replace(EXAMPLE.dataset, source={"a": [{"b": value}]})
    record_file.append(path, dataclasses.replace(with_loss(value), dataset=source))
    (one,), _ = record_file.read(path)
    assert one.loss is None
    assert one.dataset.source["a"] == [{"b": None}]


def test_a_truncated_last_line_is_skipped_and_reported(path):
    record_file.append(path, EXAMPLE)
    whole = path.read_text()
    for length in (1, len(whole) // 2, len(whole) - 1):
        path.write_text(whole + whole[:length])
        records, (problem,) = record_file.read(path)
        assert records == [EXAMPLE]
        assert (problem.kind, problem.path, line_of(problem)) == ("truncated", str(path), 2)


def changed(**changes):
    return json.dumps({**dataclasses.asdict(EXAMPLE), **changes})


def test_unknown_keys_are_ignored_and_figures_that_a_part_lacks_are_none(path):
    body = json.loads(changed(of_a_later_release=1))
    for part, name in (("processor", "cpu_speed_per_s"), ("timing", "stages"), ("disk", "read_bytes")):
        del body[part][name]
    path.parent.mkdir()
    path.write_text(json.dumps(body) + "\n")
    (one,), _ = record_file.read(path)
    assert one == dataclasses.replace(EXAMPLE, disk=dataclasses.replace(EXAMPLE.disk, read_bytes=None))


def in_part(part, **changes):
    body = json.loads(changed())
    return json.dumps({**body, part: {**body[part], **changes}})


def deep(levels):
    return [deep(levels - 1)] if levels else []


# each with a word of what is wrong
BROKEN = {
    "hello": "Expecting value",
    "[]": "record_version",
    "3": "record_version",
    "null": "record_version",
    "{}": "record_version",
    '{"record_version": "1"}': "record_version",
    '{"record_version": true}': "record_version",
    '{"record_version": 1}': "missing",
    in_part("timing", epochs_s=math.nan): "NaN",
    in_part("timing", epochs_s=1.5).replace("1.5", "1e999"): "1e999",
    in_part("timing", wait_s=math.inf): "Infinity",
    in_part("timing", epochs_s=0): "epochs_s is 0",
    in_part("timing", epochs=0): "epochs is 0",
    in_part("timing", samples=-1): "samples is -1",
    in_part("timing", epochs_s="1"): "Expected `float`",
    in_part("timing", samples=1.5): "Expected `int`",
    in_part("timing", stages={"read": "much"}): "Expected `float`",
    in_part("machine", cpu=None): "Expected `str`",
    in_part("dataset", fields=[{"name": "x"}]): "missing",
    changed(case={}): "`format`",
    changed(case={"format": "npy", "loader": 3}): "Expected `str`",
    changed(case={"format": "npy", "loader": "native", "options": []}): "options",
    in_part("case", batch_size={}): "Expected `int`",
    in_part("case", block_bytes=10**39): "64 bits",
    in_part("case", block_bytes="much"): "Expected `int`",
    in_part("case", order=["random"]): "Expected `str`",
    in_part("case", options={"threads": {}}): "Expected `bool",
    changed(cache=None): "Expected `object`",
    changed(time="yesterday"): "yesterday",
    changed(time="2026-01-02T03:04:05"): "time zone",
    "[" * 10_000: "",
    in_part("dataset", source={"deep": deep(300)}): "50 levels",
}


@pytest.mark.parametrize("line", [*BROKEN, changed(record_version=99, run={}), '{"record_version": 0}'])
def test_a_line_that_is_no_record_of_this_version_is_skipped_and_reported(path, line):
    record_file.append(path, EXAMPLE)
    path.write_text(path.read_text() + line + "\n" + path.read_text())
    records, (problem,) = record_file.read(path)
    assert records == [EXAMPLE, EXAMPLE]
    assert (problem.path, line_of(problem)) == (str(path), 2)
    assert problem.kind == ("not-a-record" if line in BROKEN else "unknown-version")
    assert BROKEN.get(line, f"expected record_version {record.VERSION}, found ") in str(problem)
    assert "\n" not in str(problem)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "not-readable"),
        (b"\xff\n", "not-readable"),
        (b"", "empty"),
        (b'{"record_ver', "truncated"),
        (b"hello\n[]\n", "not-a-record"),
    ],
)
def test_a_file_without_a_record_is_refused(path, content, problem):
    path.parent.mkdir()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RecordError, check=kind(problem, path=path)) as caught:
        record_file.read(path)
    assert "\n" not in str(caught.value)


def test_a_path_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "r.jsonl"):
        with pytest.raises(RecordError, check=kind("not-writable", path=path)) as caught:
            record_file.check_writable(path)
        assert "--out" in caught.value.hint
        with pytest.raises(RecordError, check=kind("not-writable", path=path)):
            record_file.append(path, EXAMPLE)


def test_a_writable_path_is_left_unchanged(tmp_path):
    record_file.check_writable(tmp_path / "new" / "r.jsonl")
    assert not any(tmp_path.iterdir())


def test_a_second_writer_is_refused_and_the_lock_is_removed(tmp_path):
    path = tmp_path / "results" / "a.jsonl"
    refused = pytest.raises(RecordError, check=kind("in-use", path=path))
    with record_file.only_writer(path), refused, record_file.only_writer(path):
        pytest.fail("two writers")
    with record_file.only_writer(path):
        pass
    assert list(path.parent.iterdir()) == []


def test_dev_null_takes_several_writers():
    nowhere = Path(os.devnull)
    with record_file.only_writer(nowhere), record_file.only_writer(nowhere):
        assert not nowhere.with_name(".null.lock").exists()


def test_a_lock_that_cannot_be_removed_hides_no_error(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "unlink", fail)
    with pytest.raises(ValueError, match="the cause"), record_file.only_writer(tmp_path / "r.jsonl"):
        raise ValueError("the cause")


def test_what_cannot_be_read_back_is_not_written(tmp_path):
    odd = a_record(100, loader="native")
    odd = dataclasses.replace(odd, run="\udcff")
    with pytest.raises(RecordError, check=kind("not-a-record")):
        record_file.append(tmp_path / "a.jsonl", odd)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RecordError, check=kind("not-utf-8", found="\udcff.py:make")):
        record_file.check_parts(case={"loader": "\udcff.py:make"})
    machine = dataclasses.replace(a_record(100, loader="native").machine, cores="many")
    with pytest.raises(RecordError, match="cores", check=kind("not-a-record")):
        record_file.check_parts(machine=machine)
