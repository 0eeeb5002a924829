"""Profile of an epoch by stage."""

import gc
import json

import numpy as np
import pytest
import torch
from kinds import kind

import iobench
from iobench.base.errors import RecordError
from iobench.bench.outcome import Observer
from iobench.dataset.prepare import DEFAULT_FORMATS
from iobench.loading import loaders as known_loaders
from iobench.loading.stages import STAGES, TRIAL, UNTIMED, StageProfile, nothing
from iobench.results.summary import summarise


class Clock:
    """A clock set by a test."""

    ns = 0

    def __call__(self):
        return self.ns


def taking(clock, seconds, result=None):
    def work(*_):
        clock.ns += int(seconds * 1e9)
        return result

    return work


def test_every_call_counts_for_its_stage_and_returns_its_result():
    clock = Clock()
    profile = StageProfile(clock)
    read = profile.timed("read", taking(clock, 2, "rows"))
    assert [read(), read()] == ["rows", "rows"]
    profile.timed("compute", taking(clock, 3))()
    result = profile.seconds(open_s=1, epoch_s=8, wait_s=4, ahead=False)
    assert result == {**dict.fromkeys(STAGES, 0), "open": 1, "read": 4, "compute": 3, "other": 1}


def test_decoding_is_taken_off_the_read_that_it_is_part_of():
    clock = Clock()
    profile = StageProfile(clock)
    decode = profile.timed("decode", taking(clock, 2))
    profile.timed("read", lambda: (decode(), taking(clock, 1)()))()
    result = profile.seconds(0, 3, 3, ahead=False)
    assert (result["read"], result["decode"], result["other"]) == (1, 2, 0)


@pytest.mark.parametrize(("ahead", "stage"), [(True, "wait"), (False, "other")])
def test_unaccounted_time_in_next_is_wait_only_with_readahead(ahead, stage):
    clock = Clock()
    profile = StageProfile(clock)
    profile.timed("read", taking(clock, 2))()
    result = profile.seconds(0, 5, 5, ahead)
    assert (result[stage], sum(result.values())) == (3, 5)


def test_background_reads_are_counted_separately():
    clock = Clock()
    profile = StageProfile(clock)
    profile.timed_in_background(taking(clock, 2))()
    assert profile.background_s == 2
    assert profile.seconds(0, 3, 0, False)["read"] == 0


def test_spans_say_how_much_they_cost(monkeypatch):
    """As many trials of an empty span, less as many of nothing, on a clock of their own."""
    profile, trials = StageProfile(), []

    def repeat(function, number, repeat):
        trials.append((number, repeat))
        span = function is not nothing
        return [number * (3e-6 if span else 1e-6) * slower for slower in range(1, repeat + 1)]

    monkeypatch.setattr("iobench.loading.stages.repeat", repeat)
    span = profile.timed("read", int)
    for _ in range(100):
        span()
    assert profile.cost_s == pytest.approx(100 * 2e-6)
    assert trials == [(TRIAL, 3)] * 2


def test_without_a_profile_functions_are_left_alone():
    assert UNTIMED.timed("read", np.sum) is np.sum
    assert UNTIMED.timed_in_background(np.sum) is np.sum


def profiled_run(manifest, folder, variants, loaders, rounds=1, **options):
    chosen = {"device": ("cpu",), "order": ("sequential",), "limits": False, **options}
    requested = iobench.RunOptions(tuple(variants), tuple(loaders), rounds=str(rounds), **chosen)
    return iobench.run(manifest, requested, out=folder / "r.jsonl")


@pytest.fixture
def profiled(images, tmp_path):
    def call(variants=("npy",), loaders=known_loaders.DEFAULT_LOADERS, **options):
        return profiled_run(images, tmp_path, variants, loaders, **{"profile": True, **options})

    return call


@pytest.mark.parametrize("name", DEFAULT_FORMATS)
def test_every_profiled_round_is_split_without_a_rest(profiled, name):
    result = profiled([name], model=("mlp",))
    assert len(result.records) == len(known_loaders.DEFAULT_LOADERS)
    for record in result.records:
        timing, stages = record.timing, record.timing.stages
        assert set(stages) == set(STAGES)
        assert sum(stages.values()) == pytest.approx(timing.epochs_s + timing.open_s, rel=0.01)
        assert min(stages.values()) == stages["host_to_device"] == 0
        assert stages["compute"] > 0
        ahead = record.case["loader"] == "stream"
        assert (stages["wait"] > 0) == ahead
        assert (timing.reader_threads_s > 0) == ahead
        assert (stages["read"] > 0) != ahead
        assert timing.profiling_s < timing.epochs_s
        collated = record.case["loader"] == "dataloader"
        assert (stages["collate"] > 0) == collated


def test_workers_are_waited_for(profiled):
    (record,) = profiled(loaders=["dataloader:num_workers=1,start_method=fork"]).records
    stages = record.timing.stages
    collected = stages["wait"] + stages.get("gc", 0.0)  # a collection while it waits is a stage of its own
    assert stages["wait"] <= record.timing.wait_s * (1 + 1e-6) <= collected * (1 + 2e-6)
    assert stages["read"] == stages["collate"] == 0


def test_lz4_is_decoding_and_a_summary_has_the_median_of_each_stage(tmp_path):
    source = iobench.Synthetic(200_000, compressibility=0.5)
    manifest, _ = iobench.prepare(source, ["lmdb:codec=lz4", "lmdb"], data_dir=tmp_path)
    result = profiled_run(manifest, tmp_path, ["all"], ["native"], rounds=3, profile=True)
    for case in summarise(result.records).cases:
        variant = case.facets["format"]
        rounds = [one.timing.stages for one in result.records if one.case["format"] == variant]
        assert all((stages["decode"] > 0) == (variant == "lmdb:codec=lz4") for stages in rounds)
        assert case.stages["read"] == float(np.median([stages["read"] for stages in rounds]))


def test_a_run_without_profile_has_none(profiled):
    (record,) = profiled(loaders=["native"], profile=False).records
    timing = record.timing
    assert (timing.stages, timing.reader_threads_s, timing.profiling_s, record.snapshots) == (None,) * 4
    (case,) = summarise([record]).cases
    assert (case.stages, case.value("profiling_share")) == (None, None)


def test_a_trace_has_a_span_for_each_step_of_each_batch(images, tmp_path):
    loaders = ["native", "dataloader:fetch=batch", "dataloader"]
    result = profiled_run(images, tmp_path, ["npy"], loaders, trace=True, batch_size=(50,))
    assert {path.relative_to(tmp_path).as_posix() for path in result.traces} == {
        "r.traces/npy-native.json",
        "r.traces/npy-dataloader-fetch-batch.json",
        "r.traces/npy-dataloader-fetch-sample.json",
    }
    for path in result.traces:
        spans = [event.get("name") for event in json.loads(path.read_text())["traceEvents"]]
        assert [spans.count(name) for name in ("open", "next", "move", "consume")] == [1, 6, 5, 5]


def test_a_trace_that_cannot_be_written_is_an_error(images, tmp_path, monkeypatch):
    def refuse(self, path):
        raise RuntimeError("full")

    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", refuse)
    with pytest.raises(RecordError, check=kind("not-writable"), match="full"):
        profiled_run(images, tmp_path, ["npy"], ["native"], trace=True)


def test_the_time_of_the_garbage_collector_is_a_stage_of_its_own():
    clock = Clock()
    profile = StageProfile(clock)
    callback = taking(clock, 2)

    def collect(phase, info):
        if phase == "start":
            gc.callbacks.append(callback)  # after the profile's own
        else:
            gc.callbacks.remove(callback)

    gc.callbacks.append(collect)
    gc.disable()  # none but that of the test
    try:
        with profile:
            profile.timed("read", lambda: (gc.collect(), taking(clock, 1)()))()
    finally:
        gc.enable()
        gc.callbacks.remove(collect)
    gc.collect()
    result = profile.seconds(0, 3, 3, ahead=False)
    assert (result["gc"], result["read"], result["other"]) == (2, 1, 0)


def test_a_round_leaves_the_collector_as_it_is_in_a_users_process(images, tmp_path):
    options = iobench.RunOptions(format=("npy",), loader=("native",), rounds="1", limits=False)
    seen = []

    class Looking(Observer):
        def recorded(self, key, record):
            seen.append((gc.isenabled(), gc.get_freeze_count()))

    before = gc.get_freeze_count()
    iobench.run(images, options, out=tmp_path / "r.jsonl", observer=Looking())
    ((enabled, frozen),) = seen
    assert enabled
    assert 0.9 * before <= frozen <= before  # some of what was frozen may end
