"""An epoch's time, told apart."""

import json

import numpy as np
import pytest
import torch

import iobench
from iobench import formats
from iobench.bench import trace
from iobench.bench.case import LOADERS, Settings
from iobench.errors import RecordError
from iobench.loading.stages import STAGES, UNTIMED, Profile
from iobench.results.record import Record
from iobench.results.summary import summarise


class Clock:
    """Tells the time that a test sets."""

    ns = 0

    def __call__(self):
        return self.ns


def taking(clock, seconds, result=None):
    def work(*_):
        clock.ns += int(seconds * 1e9)
        return result

    return work


def test_every_call_counts_for_its_stage_and_returns_what_it_did():
    clock = Clock()
    profile = Profile(clock)
    read = profile.timed("read", taking(clock, 2, "rows"))
    assert [read(), read()] == ["rows", "rows"]
    profile.timed("compute", taking(clock, 3))()
    found = profile.seconds(open_s=1, epoch_s=8, wait_s=4, ahead=False)
    assert found == {**dict.fromkeys(STAGES, 0), "open": 1, "read": 4, "compute": 3, "other": 1}


def test_decoding_is_taken_off_the_read_that_it_is_part_of():
    clock = Clock()
    profile = Profile(clock)
    decode = profile.timed("decode", taking(clock, 2))
    profile.timed("read", lambda: (decode(), taking(clock, 1)()))()
    found = profile.seconds(0, 3, 3, ahead=False)
    assert (found["read"], found["decode"], found["other"]) == (1, 2, 0)


@pytest.mark.parametrize(("ahead", "stage"), [(True, "wait"), (False, "other")])
def test_what_next_took_beyond_all_stages_is_waiting_only_where_something_reads_ahead(ahead, stage):
    clock = Clock()
    profile = Profile(clock)
    profile.timed("read", taking(clock, 2))()
    assert profile.seconds(0, 5, 5, ahead)[stage] == 3


def test_the_stages_of_an_epoch_add_up_to_it():
    clock = Clock()
    profile = Profile(clock)
    for stage in ("read", "collate", "host_to_device", "compute"):
        profile.timed(stage, taking(clock, 1))()
    found = profile.seconds(open_s=5, epoch_s=10, wait_s=4.5, ahead=True)
    assert sum(found.values()) == 15


def test_what_threads_read_is_apart():
    clock = Clock()
    profile = Profile(clock)
    profile.beside(taking(clock, 2))()
    assert profile.beside_s == 2
    assert profile.seconds(0, 3, 0, False)["read"] == 0


def test_spans_cost_next_to_nothing_and_say_how_much():
    profile = Profile()
    span = profile.timed("read", int)
    for _ in range(10_000):
        span()
    assert 0 <= profile.cost_s < 0.1


def test_without_a_profile_functions_are_left_alone():
    assert UNTIMED.timed("read", np.sum) is np.sum
    assert UNTIMED.beside(np.sum) is np.sum


@pytest.fixture
def profiled(images, tmp_path):
    def call(variants=("npy",), loaders=("all",), **options):
        options = {"device": "cpu", "profile": True, "limits": False, "rounds": 1, **options}
        return iobench.run(images, variants, loaders, out=tmp_path / "r.jsonl", **options)

    return call


@pytest.mark.parametrize("name", formats.names())
def test_every_profiled_round_is_split_without_a_rest(profiled, name):
    found = profiled([name])
    assert len(found.records) == len(LOADERS)
    for record in found.records:
        assert set(record.stages) == set(STAGES)
        assert sum(record.stages.values()) == pytest.approx(record.epoch_s + record.open_s, rel=0.01)
        assert min(record.stages.values()) >= 0
        ahead = record.case["loader"] == "stream"
        assert (record.stages["wait"] > 0) == ahead
        assert (record.beside_s > 0) == ahead
        assert (record.stages["read"] > 0) != ahead
        assert record.spans_s < record.epoch_s
        collated = record.case["loader"] == "dataloader"
        assert (record.stages["collate"] > 0) == collated


def test_workers_are_waited_for(profiled):
    settings = Settings(num_workers=1, start_method="fork")
    (record,) = profiled(loaders=["dataloader"], settings=settings).records
    assert record.stages["wait"] == pytest.approx(record.wait_s)
    assert record.stages["read"] == record.stages["collate"] == 0


def test_training_is_compute(profiled):
    (record,) = profiled(loaders=["native"], model="mlp").records
    assert record.stages["compute"] > 0
    assert record.stages["host_to_device"] == 0


def test_lz4_is_decoding(tmp_path):
    source = iobench.Synthetic(200_000, compressibility=0.5)
    manifest, _ = iobench.prepare(source, ["lmdb:codec=lz4", "lmdb"], data_dir=tmp_path)
    options = {"device": "cpu", "profile": True, "limits": False, "rounds": 1, "out": tmp_path / "r.jsonl"}
    found = iobench.run(manifest, ["all"], ["native"], **options)
    decoding = {record.case["variant"]: record.stages["decode"] for record in found.records}
    assert decoding["lmdb:codec=lz4"] > 0
    assert decoding["lmdb"] == 0


def test_a_run_without_profile_has_none(profiled):
    (record,) = profiled(loaders=["native"], profile=False).records
    assert (record.stages, record.beside_s, record.spans_s, record.system) == (None,) * 4
    (case,) = summarise([record]).cases
    assert (case.stages, case.spans_share) == (None, None)


def test_a_summary_has_the_median_of_each_stage(profiled):
    found = profiled(loaders=["native"], rounds=3)
    (case,) = summarise(found.records).cases
    assert case.stages["read"] == float(np.median([r.stages["read"] for r in found.records]))
    assert isinstance(found.records[0], Record)


def test_a_trace_has_a_span_for_each_step_of_each_batch(images, tmp_path):
    settings = Settings(batch_size=50)
    options = {"device": "cpu", "trace": True, "limits": False, "rounds": 1, "settings": settings}
    found = iobench.run(images, ["npy"], ["native", "dataloader"], out=tmp_path / "r.jsonl", **options)
    assert [path.name for path in found.traces] == [
        "r-npy-native.trace.json",
        "r-npy-dataloader-sample-fetch.trace.json",
    ]
    for path in found.traces:
        spans = [event.get("name") for event in json.loads(path.read_text())["traceEvents"]]
        assert [spans.count(name) for name in ("open", "next", "move", "consume")] == [1, 6, 5, 5]


def test_traces_of_variants_do_not_share_a_name(tmp_path):
    names = {
        trace.path_beside(tmp_path / "r.jsonl", label).name
        for label in ("hdf5:a=1 · native", "hdf5 · native")
    }
    assert len(names) == 2


def test_a_trace_that_cannot_be_written_is_an_error(images, tmp_path, monkeypatch):
    def refuse(self, path):
        raise RuntimeError("full")

    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", refuse)
    options = {"device": "cpu", "trace": True, "limits": False, "rounds": 1}
    with pytest.raises(RecordError, match=r"a trace cannot be written to .*full"):
        iobench.run(images, ["npy"], ["native"], out=tmp_path / "r.jsonl", **options)
