import dataclasses
import json
import math

import pytest

from iobench.errors import RecordError
from iobench.results import record
from iobench.results.record import Record

EXAMPLE = Record(
    run="a1",
    time="2026-01-02T03:04:05.678+00:00",
    round=1,
    dataset={"name": "d", "samples": 10, "fields": [{"name": "x", "shape": [3], "dtype": "uint8"}]},
    case={"variant": "npy", "loader": "native", "label": "npy · native"},
    device="cpu",
    cache={"mode": "warm", "residency": 1.0},
    model="none",
    machine={"cpu": "z80", "disk": {"read_ahead_kib": None}},
    samples=10,
    logical_bytes=30,
    open_s=0.1,
    epoch_s=2.0,
    first_batch_s=0.2,
    wait_s=1.0,
    wait_p50_s=0.1,
    wait_p99_s=0.2,
    cpu_s=1.5,
    disk_bytes=0,
    major_faults=0,
    memory_bytes=1,
    gpu_allocated_bytes=None,
    gpu_reserved_bytes=None,
    loss=None,
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "results" / "r.jsonl"


def with_loss(loss):
    return dataclasses.replace(EXAMPLE, loss=loss)


def test_what_was_appended_is_read_back(path):
    records = [with_loss(float(number)) for number in range(3)]
    for one in records:
        record.append(path, one)
    assert record.read(path) == (records, [])


def test_each_record_is_one_line_of_json_with_its_version(path):
    record.append(path, EXAMPLE)
    record.append(path, EXAMPLE)
    lines = path.read_text().splitlines()
    assert [json.loads(line)["record_version"] for line in lines] == [record.VERSION] * 2


def test_rates_are_per_second_of_the_epoch():
    assert (EXAMPLE.samples_per_s, EXAMPLE.bytes_per_s) == (5, 15)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_json_has_no_number_for_becomes_null(path, value):
    record.append(
        path, dataclasses.replace(with_loss(value), machine={**EXAMPLE.machine, "a": [{"b": value}]})
    )
    (found,), _ = record.read(path)
    assert found.loss is None
    assert found.machine["a"] == [{"b": None}]


def test_a_last_line_that_was_cut_off_is_left_out_and_named(path):
    record.append(path, EXAMPLE)
    whole = path.read_text()
    for length in (1, len(whole) // 2, len(whole) - 1):
        path.write_text(whole + whole[:length])
        assert record.read(path) == ([EXAMPLE], [f"{path}, line 2: cut off in the middle"])


def test_a_file_without_a_finished_round_is_refused(path):
    path.parent.mkdir()
    for content, said in (("", "no round was finished"), ('{"record_ver', "line 1: cut off")):
        path.write_text(content)
        with pytest.raises(RecordError, match=said):
            record.read(path)


def changed(**changes):
    return json.dumps({**dataclasses.asdict(EXAMPLE), **changes})


def test_unknown_keys_are_passed_over(path):
    path.parent.mkdir()
    path.write_text(changed(of_a_later_release=1) + "\n")
    assert record.read(path) == ([EXAMPLE], [])


def test_what_older_records_do_not_have_is_none(path):
    older = {
        key: value
        for key, value in dataclasses.asdict(EXAMPLE).items()
        if key not in ("steal_s", "device_disk_bytes", "stages", "system", "limit", "shuffledness")
    }
    path.parent.mkdir()
    path.write_text(json.dumps(older) + "\n")
    assert record.read(path) == ([EXAMPLE], [])


BROKEN = {
    "hello": "Expecting value",
    "[]": "",
    "3": "",
    "null": "",
    "{}": "it has no 'record_version'",
    '{"record_version": "1"}': "",
    '{"record_version": 2}': "missing",
    changed(record_version=99, run={}): "version 99, newer than 2; upgrade iobench",
    changed(epoch_s=math.nan): "a figure is NaN",
    changed(wait_s=math.inf): "a figure is Infinity",
    changed(epoch_s=0): "epoch_s is 0",
    changed(samples=-1): "samples is -1",
    changed(epoch_s="1"): "",
    changed(case={}): "it has no 'variant'",
    changed(cache=None): "",
    "[" * 10_000: "",
}


@pytest.mark.parametrize("line", BROKEN)
def test_a_line_that_is_no_record_is_left_out_and_named(path, line):
    record.append(path, EXAMPLE)
    path.write_text(path.read_text() + line + "\n" + path.read_text())
    records, (said,) = record.read(path)
    assert records == [EXAMPLE, EXAMPLE]
    assert said.startswith(f"{path}, line 2: not a record of this iobench: ")
    assert BROKEN[line] in said
    assert "\n" not in said


@pytest.mark.parametrize("content", [*(f"{line}\n".encode() for line in BROKEN), b"\xff\n"])
def test_a_file_of_nothing_else_is_refused(path, content):
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(RecordError, match=r"r\.jsonl") as caught:
        record.read(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_refused(path):
    with pytest.raises(RecordError, match="cannot be read"):
        record.read(path)


def test_a_place_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "r.jsonl"):
        with pytest.raises(RecordError, match=f"{path}; name a file"):
            record.check_writable(path)
        with pytest.raises(RecordError, match=f"{path}: "):
            record.append(path, EXAMPLE)


def test_a_place_that_can_be_written_to_is_left_as_it_was(tmp_path):
    record.check_writable(tmp_path / "new" / "r.jsonl")
    assert not any(tmp_path.iterdir())
