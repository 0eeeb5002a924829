import dataclasses
import fcntl
import json
import math
import threading
from pathlib import Path

import pytest
from record_cases import SAMPLES, a_record

from iobench.base.errors import (
    RecordError,
)
from iobench.results import record
from iobench.results.summary import summarise

EXAMPLE = a_record(100)


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


def test_half_of_another_s_line_is_never_taken_for_the_end(path):
    """Who writes one more line waits until the line under way has been written."""
    record.append(path, EXAMPLE)
    line = path.read_text()
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(line[:10])
        file.flush()
        other = threading.Thread(target=record.append, args=(path, EXAMPLE))
        other.start()
        other.join(0.2)
        file.write(line[10:])
    other.join()
    assert path.read_text() == 3 * line


def test_rates_are_per_second_of_the_epoch():
    twice = dataclasses.replace(EXAMPLE.timing, epochs=2)
    one = dataclasses.replace(EXAMPLE, timing=twice)
    assert one.bytes_per_s == pytest.approx(100 * 2**20)
    assert one.samples_per_s == pytest.approx(100)
    assert one.epoch_s == pytest.approx(SAMPLES / 100 / 2)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_json_has_no_number_for_becomes_null(path, value):
    source = dataclasses.replace(EXAMPLE.dataset, source={"a": [{"b": value}]})
    record.append(path, dataclasses.replace(with_loss(value), dataset=source))
    (found,), _ = record.read(path)
    assert found.loss is None
    assert found.dataset.source["a"] == [{"b": None}]


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


def test_what_a_part_does_not_have_is_none(path):
    body = json.loads(changed())
    for part, name in (("processor", "steal_s"), ("timing", "stages"), ("disk", "read_bytes")):
        del body[part][name]
    path.parent.mkdir()
    path.write_text(json.dumps(body) + "\n")
    (found,), _ = record.read(path)
    assert (found.processor.steal_s, found.timing.stages, found.disk.read_bytes) == (None, None, None)


def in_part(part, **changes):
    body = json.loads(changed())
    return json.dumps({**body, part: {**body[part], **changes}})


def deep(levels):
    return [deep(levels - 1)] if levels else []


BROKEN = {
    "hello": "Expecting value",
    "[]": "no record_version",
    "3": "no record_version",
    "null": "no record_version",
    "{}": "it has no record_version",
    '{"record_version": "1"}': "no record_version",
    '{"record_version": true}': "no record_version",
    '{"record_version": 2}': "missing",
    '{"record_version": 1}': "damaged: KeyError",
    changed(record_version=99, run={}): "version 99, newer than 2; upgrade iobench",
    in_part("timing", epochs_s=math.nan): "a figure is NaN",
    in_part("timing", epochs_s=1.5).replace("1.5", "1e999"): "a figure is 1e999",
    in_part("timing", wait_s=math.inf): "a figure is Infinity",
    in_part("timing", epochs_s=0): "epochs_s is 0",
    in_part("timing", epochs=0): "epochs is 0",
    in_part("timing", samples=-1): "samples is -1",
    in_part("timing", epochs_s="1"): "Expected `float`",
    in_part("timing", samples=1.5): "Expected `int`",
    in_part("timing", stages={"read": "much"}): "Expected `float`",
    in_part("machine", cpu=None): "Expected `str`",
    in_part("dataset", fields=[{"name": "x"}]): "missing",
    changed(case={}): "missing required field `format`",
    changed(case={"format": "npy", "loader": 3}): "Expected `str`",
    changed(case={"format": "npy", "loader": "native", "options": []}): "options",
    in_part("case", batch_size={}): "Expected `int`",
    in_part("case", block_bytes="much"): "Expected `int`",
    in_part("case", order=["random"]): "Expected `str`",
    in_part("case", options={"threads": {}}): "Expected `bool",
    changed(cache=None): "Expected `object`",
    changed(time="yesterday"): "yesterday",
    changed(time="2026-01-02T03:04:05"): "has no time zone",
    "[" * 10_000: "",
    in_part("dataset", source={"deep": deep(300)}): "nested deeper than 50 levels",
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


OLD = Path(__file__).parent / "data" / "records-version-1.jsonl"  # as iobench 0.1 wrote them


def test_records_of_version_1_are_read_as_of_this_one():
    records, left_out = record.read(OLD)
    assert not left_out
    assert [one.case["loader"] for one in records] == ["stream", "dataloader", "native", "native"]
    dataloader = next(one for one in records if one.case["loader"] == "dataloader")
    assert dataloader.case["options"].items() >= {"num_workers": 1, "prefetch_factor": 3}.items()
    assert (dataloader.case["order"], dataloader.case["block_bytes"]) == ("block", 1 << 20)
    assert dataloader.timing.epochs == 1
    assert sum(dataloader.timing.stages.values()) == pytest.approx(
        dataloader.timing.epochs_s + dataloader.timing.open_s, rel=0.05
    )
    cold = records[-1]
    assert (cold.cache.mode, cold.case["cache"], cold.case["model"]) == ("cold", "cold", "mlp")
    assert cold.loss > 0
    assert cold.disk.read_bytes > 0
    assert len(summarise(records).cases) == 4


def test_a_number_that_no_figure_can_be_is_left_out(tmp_path):
    path = tmp_path / "r.jsonl"
    record.append(path, EXAMPLE)
    body = json.loads(path.read_text())
    body["case"]["block_bytes"] = 10**39
    with open(path, "a") as file:
        file.write(json.dumps(body) + "\n")
    records, left_out = record.read(path)
    assert len(records) == 1
    assert left_out
