"""Verdicts and advice from measurements, good and bad; watched loops; errors of a user's loader."""

import dataclasses
import io
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from threading import Lock
from types import SimpleNamespace

import h5py
import lmdb
import numpy as np
import pytest
import torch
from kinds import kind
from live_loaders import FORK, Samples, Stream, until
from PIL import Image
from record_cases import rounds_at
from torch.utils.data import DataLoader, TensorDataset

import iobench
from iobench.advise import diagnose as session
from iobench.advise.checks import setting_checks
from iobench.advise.checks.call_costs import Profile
from iobench.advise.checks.evidence import VARYING, Evidence
from iobench.advise.checks.loop_stats import LoaderInfo, LoopStats, inspect_loader
from iobench.advise.checks.sample_calls import ChunkedRead, SampleCalls
from iobench.advise.checks.watched_loader import WatchedLoader
from iobench.advise.diagnosis import diagnose, loop_table, verdict_on_all
from iobench.advise.settings import watchdog
from iobench.advise.settings.candidate import BASELINE, Candidate
from iobench.advise.settings.search_space import BATCH_FETCH, LoaderTraits, candidates_for
from iobench.advise.settings.tunable_loader import TunableLoader, rebuilt
from iobench.advise.settings.watchdog import Watchdog
from iobench.base.errors import TargetError
from iobench.base.finding import Finding
from iobench.base.machine import BackgroundLoad
from iobench.loading import user_errors
from iobench.loading.inspection import batch_tensors

GOOD = LoopStats(
    loader=LoaderInfo(
        class_name="DataLoader",
        dataset="Mine",
        workers=2,
        batch_size=64,
        prefetch_factor=2,
        pin_memory=False,
        persistent_workers=True,
        by_sample=False,
    ),
    batches=101,
    samples=6464,
    bytes=6464 * 1000,
    tensors=2,
    elapsed_s=10.0,
    first_wait_s=0.1,
    wait_s=0.2,
    step_s=9.0,
    wait_p50_s=0.001,
    wait_p99_s=0.01,
    wait_max_s=0.02,
    cpu_s=5.0,
    workers=2,
    worker_cpu_s=4.0,
    iowait=0.01,
    disk_bytes=0,
    gpu=None,
    gpu_low=None,
    memory_bytes=1 << 30,
    memory_growth_bytes=0,
)
STARVING = dataclasses.replace(GOOD, wait_s=6.0, step_s=3.0, wait_p50_s=0.06, wait_p99_s=0.1, wait_max_s=0.2)


def loop(of=STARVING, loader=None, **changes):
    return dataclasses.replace(of, loader=dataclasses.replace(of.loader, **(loader or {})), **changes)


def evidence(*parts, **more):
    """Return these measurements as evidence; without a loop, those of one that starves."""
    loops, candidates, profiles = (
        [one for one in parts if isinstance(one, kind)] for kind in (LoopStats, Candidate, Profile)
    )
    others = [one for one in candidates if one is not AS]
    tried = [AS, *others] if candidates else []
    return Evidence((loops or [STARVING])[0], tried, profiles, **more)


def advice(*parts, **options):
    """Return the kinds of the advice that these measurements lead to."""
    return [one.kind for one in diagnose(evidence(*parts), **options).advice]


def candidate(name, rate, **changes):
    kind = "fetch" if "batch_fetch" in changes else {"num_workers": "workers", "prefetch_factor": "prefetch"}
    kind = kind if isinstance(kind, str) else kind.get(next(iter(changes), ""), "")
    rates = {number: rate * factor for number, factor in enumerate((0.99, 1.0, 1.01), 1)}
    return Candidate(name, changes, kind, race=rounds_at(rates), final=rounds_at(rates))


def fetching(rate):
    return candidate(BATCH_FETCH, rate, batch_fetch=True)


def profile(**shares):
    values = {"getitem_share": 0.2, "getitem_calls": 100, "collate_share": 0.1, **shares}
    return Profile("main process", 1.0, [], **values)


def spending(*kinds, **more):
    return profile(costs=dict.fromkeys(kinds, 0.6), **more)


@pytest.mark.parametrize(("workers", "opened", "calls"), [(2, 2, 2), (0, 1, 1), (2, 3, 8)])
def test_a_file_that_each_process_opens_once_is_not_named(workers, opened, calls):
    own = loop(loader={"workers": workers})
    once = spending("openings", outer={"openings": (opened, "h5py File")}, getitem_calls=calls)
    assert "file-reopened" not in advice(own, once)
    often = spending("openings", outer={"openings": (calls + 2, "")}, getitem_calls=calls + 2)
    assert "file-reopened" in advice(own, often)


@pytest.mark.parametrize(
    ("stats", "options", "verdict", "bottleneck"),
    [
        (GOOD, {}, "not-bottleneck", False),
        (STARVING, {}, "bottleneck", True),
        (dataclasses.replace(GOOD, wait_s=1.0, step_s=4.0), {}, "costs-time", True),
        (STARVING, {"alone": True}, "loader-alone", None),
        (dataclasses.replace(STARVING, batches=1), {"alone": True}, "too-short", None),
        (dataclasses.replace(STARVING, batches=2), {}, "too-short", None),
        (dataclasses.replace(STARVING, elapsed_s=0.001), {}, "too-short", None),
        (dataclasses.replace(GOOD, batches=0, samples=0, bytes=0, wait_s=0, step_s=0), {}, "empty", None),
    ],
)
def test_each_loop_has_its_verdict(stats, options, verdict, bottleneck):
    found = diagnose(Evidence(stats, [], [profile(costs={"decoding": 0.9})]), **options)
    assert (found.verdict.kind, found.bottleneck) == (verdict, bottleneck)
    assert bool(found.advice) == bool(bottleneck or options)


def test_a_verdict_has_the_figures_of_the_loop():
    values = diagnose(Evidence(GOOD)).verdict.values
    assert (values["batches"], values["wait_share"], values["device"]) == (101, GOOD.wait_share, "cpu")
    assert values["samples_per_s"] == pytest.approx(696, rel=1e-3)
    assert values["bytes_per_s"] == pytest.approx(696e3, rel=1e-3)
    assert STARVING.wait_share == pytest.approx(2 / 3)
    assert diagnose(Evidence(loop(device="cuda:0"))).verdict.values["device"] == "cuda:0"
    assert diagnose(Evidence(loop(batches=1)), alone=True).verdict.values["batches"] == 1


def test_a_loop_over_one_batch_or_none_shows_no_figures_of_a_steady_state():
    empty, one = loop(batches=0, elapsed_s=0.0), loop(batches=1, elapsed_s=0.01)
    assert loop_table(empty)[0][1] == ["loader", "batches"]
    shown, steady = (set(loop_table(stats)[0][1]) for stats in (one, loop()))
    assert {"first batch"} <= shown
    assert steady - shown >= {"after that", "waiting", "CPU"}


@pytest.mark.parametrize(("workers", "kind"), [(0, "too-few-workers"), (2, "first-batch")])
def test_the_settings_that_were_measured_are_those_that_are_advised(workers, kind):
    changes = {"num_workers": 16, "persistent_workers": True}
    own = loop(loader={"workers": workers, "persistent_workers": False}, first_wait_s=6.0)
    (found,) = diagnose(evidence(own, tried("persistent", 340, **changes))).advice
    assert (found.kind, found.gain) == (kind, pytest.approx(3.4))
    assert found.values.items() >= {"workers": workers, **changes}.items()
    assert all(f"{name}={value}" in found.hint for name, value in changes.items())
    assert found.sentence.endswith(found.gain_text)


@pytest.mark.parametrize("workers", [0, 4])
def test_whole_batches_are_advised_with_the_workers_they_were_measured_with(workers):
    """They come first, as the largest gain."""
    fetched = candidate(BATCH_FETCH, 340, batch_fetch=True, num_workers=workers)
    own, none = loop(loader={"by_sample": True}), candidate("0 workers", 150, num_workers=0)
    (first, *_) = diagnose(evidence(own, none, fetched)).advice
    assert (first.kind, first.values["num_workers"]) == ("per-sample", workers)
    assert first.gain == pytest.approx(3.4)
    assert ("num_workers=4" in first.hint) == bool(workers)
    assert "sampler=loader.batch_sampler" in first.hint
    assert ("num_workers=0" in first.hint) == (not workers)


def test_workers_come_first_where_whole_batches_gain_mostly_by_leaving_them_out():
    own, none = loop(loader={"by_sample": True, "workers": 16}), candidate("0 workers", 2000, num_workers=0)
    fetched = candidate(BATCH_FETCH, 3400, batch_fetch=True, num_workers=0)
    assert advice(own, none, fetched) == ["workers-cost", "per-sample"]


@pytest.mark.parametrize(("device", "named"), [("cpu", True), ("cuda:0", False)])
def test_pinned_memory_is_named_where_no_device_copies_from_it(monkeypatch, device, named):
    pins = SimpleNamespace(pins=device != "cpu")
    monkeypatch.setattr(setting_checks, "pick_device", lambda name: device)
    monkeypatch.setattr(setting_checks, "device_of", lambda device: pins)
    assert ("pinned-without-device" in advice(loop(loader={"pin_memory": True}))) == named
    assert "pinned-without-device" not in advice(loop())


def test_a_first_wait_counts_once_and_is_no_start_of_workers_where_a_batch_explains_it():
    once = loop(batches=11, epoch_batches=101, elapsed_s=10.0, first_wait_s=8.0, sampler_s=9.0)
    assert (once.epoch_s, once.sampler_epoch_s) == (28.0, 18.0)
    four = {"workers": 4, "persistent_workers": False}
    started = loop(loader=four, batches=16, epoch_batches=16, elapsed_s=8.0, first_wait_s=2.5, wait_s=5.5)
    assert started.start_s == pytest.approx(2.5 - 4 * 5.5 / 15)
    assert "first-batch" not in advice(started)
    assert "first-batch" in advice(dataclasses.replace(started, first_wait_s=5.5, elapsed_s=11.0))


def tried(kind, rate, **changes):
    return dataclasses.replace(candidate(kind, rate, **(changes or {"a": 1})), kind=kind)


AS = candidate(BASELINE, 100)
SCATTERED = rounds_at({1: 90, 2: 300, 3: 400})
UNTRIED = Candidate("persistent workers", {"persistent_workers": True}, "persistent")
RAISED = Finding("raised", "no")
DECODER = {"decoder": "simplejpeg", "code": "f(data)", "times": 2.0, "files": 16, "most": 1}
QUICK = {"samples": 10**7}  # a sample in less than a microsecond


PER_SAMPLE, NO_LASTING = {"by_sample": True}, {"persistent_workers": False}
QUICK_SAMPLES = loop(loader=PER_SAMPLE, **QUICK)
FILES = spending("files", outer={"files": (100, "")})
SLOW_START = loop(loader=NO_LASTING, first_wait_s=6.0)
CHUNKS = ["x: chunks of 100 samples"]
REPEATING = loop(loader={"iterable": True}, repeated=0.9)
FEW = loop(loader={"workers": 0}, workers=0, samples=1000)


@pytest.mark.parametrize("parts", [[], [profile()]], ids=["watched", "profiled"])
def test_sample_by_sample_is_a_cause_only_where_the_dataset_is_known_to_be_quick(parts):
    seconds = loop(loader={**PER_SAMPLE, "workers": 0}, workers=0, samples=250_000)  # 40 µs each
    found = diagnose(evidence(seconds, *parts)).advice
    assert [one.kind for one in found if one.kind == "per-sample"] == ["per-sample"] * bool(parts)


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("per-sample", [QUICK_SAMPLES]),
        ("per-sample", [loop(loader={**PER_SAMPLE, "tensor_dataset": True}, **QUICK)]),
        ("per-sample", [loop(loader=PER_SAMPLE), fetching(300)]),
        ("per-sample", [QUICK_SAMPLES, dataclasses.replace(UNTRIED, kind="fetch")]),
        ("per-sample", [QUICK_SAMPLES, Candidate("", {"a": 1}, "fetch", final=SCATTERED)]),
        ("workers-cost", [candidate("0 workers", 200, num_workers=0)]),
        ("workers-cost", [loop(cpu_s=9.5, worker_cpu_s=3.0)]),
        ("workers-cost", [loop(loader={"workers": 4096}, worker_cpu_s=19.0), tried("threads", 90)]),
        ("too-few-workers", [candidate("4 workers", 200, num_workers=4)]),
        ("too-few-workers", [FEW]),
        ("prefetch", [candidate("prefetch factor 8", 150, prefetch_factor=8)]),
        ("batch-order", [tried("order", 150, in_order=False)]),
        ("prefetch", [loop(wait_p50_s=0.001, wait_max_s=0.5)]),
        ("sampler", [loop(loader={"sampler": "RandomSampler"}, first_wait_s=6.0, sampler_s=5.0)]),
        ("sampler", [loop(loader={"sampler": "Mine"}, sampler_s=5.0)]),
        ("pickling", [loop(loader=NO_LASTING, first_wait_s=6.0, pickling_s=3.0)]),
        ("padding", [loop(padding=0.6)]),
        ("pageable-memory", [loop(loader={"pin_memory": False}, device="cuda:0", pins=True)]),
        ("disk", [loop(iowait=0.5, disk_bytes=10**10)]),
        ("decoding", [spending("decoding")]),
        ("repeated-work", [tried("cache", 300), profile(getitem_share=0.9)]),
        ("jpeg-draft", [tried("draft", 300, width=8, height=8), spending("decoding")]),
        ("jpeg-decoder", [tried("decoder", 300, **DECODER), spending("decoding")]),
        ("jpeg-decoder", [Candidate("", DECODER, "decoder"), spending("decoding")]),
        ("default-collate", [tried("default-collate", 300), profile()]),
        ("torch-threads", [tried("one-thread", 300), profile()]),
        ("garbage-collection", [tried("gc", 300), profile()]),
        ("garbage-collection", [loop(loader={"workers": 0}, gc_s=2.0, **QUICK), profile(gc_share=0.2)]),
        ("garbage-collection", [profile(gc_share=0.2)]),
        ("first-batch", [SLOW_START]),
        ("first-batch", [SLOW_START, UNTRIED]),
        ("first-batch", [SLOW_START, tried("prefetch", 100)]),
        ("repeated-samples", [REPEATING, candidate("4 workers", 200, num_workers=4)]),
        ("queue-memory", [loop(loader={"prefetch_factor": 99}, bytes=100 << 40)]),
        ("collate", [loop(tensors=20), profile(collate_share=0.6)]),
        ("memory-growth", [loop(memory_growth_bytes=1 << 29)]),
        ("open-handles", [loop(GOOD, loader={"handles": ["file (h5py)"]})]),
        ("chunks", [loop(loader={**PER_SAMPLE, "chunks": CHUNKS})]),
    ],
)
def test_each_problem_has_its_advice(kind, parts):
    (found,) = diagnose(evidence(*parts)).advice
    assert found.kind == kind
    assert found.hint
    assert "\n" not in found.sentence


def test_a_small_gain_does_not_precede_what_takes_most_of_the_time():
    slow = loop(loader={"sampler": "Mine"}, sampler_s=7.0)
    assert advice(slow, candidate("0 workers", 150, num_workers=0)) == ["sampler", "workers-cost"]
    clips = SampleCalls(sounds=[(4000, 4000)], shapes=[(100,)])
    workers = candidate("4 workers", 150, num_workers=4)
    found = diagnose(evidence(workers, spending("sound"), sample=clips)).advice
    assert [one.kind for one in found] == ["whole-sound", "too-few-workers"]


@pytest.mark.parametrize(
    ("parts", "command"),
    [
        ([tried("cache", 300), FILES], "'iobench prepare --source FOLDER'"),
        ([tried("cache", 300), spending("rows")], "'iobench diagnose train.py:make --no-variants'"),
        ([], "'iobench tune train.py:make --step-ms MS'"),
        ([UNTRIED], "'iobench diagnose train.py:make --max-time 40'"),
    ],
)
def test_an_answer_begins_with_verdict_cause_remedy_and_command(parts, command):
    found = diagnose(evidence(*parts), alone=True, target="train.py:make", max_time_s=20.0)
    first, *others = found.blocks()
    assert first.lines[0] == found.verdict.sentence
    assert command in first.lines[-1]
    if found.advice:
        assert [line.partition(": ")[0] for line in first.lines[1:]] == ["Cause", "Remedy", "Next"]
        assert found.advice[0].message in first.lines[1]
        assert found.advice[0].gain_text in first.lines[2]
        assert not any(found.advice[0].message in line for one in others for line in one.lines)


@pytest.mark.parametrize("candidates", [[], [Candidate("", DECODER, "decoder")]])
def test_images_that_are_cropped_at_random_are_not_decoded_once_for_all(candidates):
    varying = [Finding(VARYING, "a sample differs each time it is read")]
    images = SampleCalls(shapes=[(3, 64, 96)], images=["/photos/a/1.jpg", "/photos/b/2.jpg"])
    pixels = [*candidates, spending("decoding", "images", "crops")]
    for skipped, wanted, other in (([], "prepare", "crop=random"), (varying, "crop=random", "prepare")):
        (found,) = diagnose(evidence(*pixels, skipped=skipped, sample=images)).advice
        assert wanted in found.hint
        assert other not in found.hint
        assert "--source /photos" in found.hint
    assert "images:shape=3x64x96" in found.hint
    noisy = [*candidates, spending("decoding", "images")]  # what differs is no crop
    (found,) = diagnose(evidence(*noisy, skipped=varying, sample=images)).advice
    assert "images:shape=3x64x96" in found.hint
    assert "crop" not in found.hint
    (sound,) = diagnose(evidence(spending("decoding"), skipped=varying)).advice
    assert "images" not in sound.hint


@pytest.mark.parametrize(
    "parts",
    [
        [loop()],
        [loop(loader=PER_SAMPLE)],
        [QUICK_SAMPLES, fetching(101)],
        [SLOW_START, Candidate("", {"a": 1}, "persistent", race=rounds_at({1: 90}))],
        [QUICK_SAMPLES, dataclasses.replace(UNTRIED, kind="fetch", failure=RAISED)],
        [candidate("0 workers", 105, num_workers=0)],
        [Candidate("0 workers", {"num_workers": 0}, "workers", final=SCATTERED)],
        [Candidate("0 workers", {"num_workers": 0}, "workers", race=rounds_at({1: 140, 2: 140, 3: 140}))],
        [Candidate("4 workers", {"num_workers": 4}, "workers", failure=RAISED)],
        [loop(loader={"handles": ["file (h5py)"], "workers": 0}, workers=0, **QUICK)],
        [loop(loader={"by_sample": False, "chunks": CHUNKS})],
        [loop(loader={"pin_memory": False})],
        [loop(loader={"prefetch_factor": 8}, wait_p50_s=0.001)],
        [loop(wait_p50_s=0.001, step_s=0.5)],
        [loop(wait_p50_s=0.001, wait_max_s=5.0)],
        [loop(wait_p50_s=0.001, worker_cpu_s=19.0, loader={"workers": 2}), AS],
        [profile(collate_share=0.6)],
        [tried("cache", 101), spending("rows")],
        [spending("files", outer={"files": (10, "")})],
        [loop(loader={"batch_size": None}), FILES],
        [loop(loader={"workers": 0, "by_sample": False}, workers=0, **QUICK), spending("locks")],
        [loop(gc_s=5.0)],
        [loop(loader={"workers": 0}, gc_s=5.0, **QUICK), profile(gc_share=0.05)],
        [tried("gc", 101), profile(gc_share=0.2)],
        [tried("one-thread", 101), profile()],
        [loop(loader={"workers": 4096}), candidate("0 workers", 90, num_workers=0)],
        [loop(loader={"workers": 4096}, worker_cpu_s=1.0), tried("threads", 90)],
        [loop(worker_cpu_s=19.0), Candidate("one thread", {"worker_threads": 1}, "threads")],
        [Candidate("", {"gc": "freeze"}, "gc", race=rounds_at({1: 101})), profile(gc_share=0.2)],
        [loop(loader={"sampler": "Mine"}, first_wait_s=6.0, sampler_s=0.5)],
        [loop(loader={"sampler": "RandomSampler"}, elapsed_s=0.06, first_wait_s=0.03, sampler_s=0.04)],
        [loop(repeated=0.9)],
        [loop(loader={"iterable": True}, repeated=0.01)],
        [loop(loader={"prefetch_factor": 2}, bytes=100 << 40)],
        [loop(memory_growth_bytes=1 << 29, bytes=100 << 30)],
        [loop(iowait=0.5, disk_bytes=10**5)],
        [loop(iowait=0.5, disk_bytes=10**6, background=BackgroundLoad(disk_bytes_per_s=1e8))],
        [dataclasses.replace(STARVING, loader=LoaderInfo(class_name="generator"))],
    ],
)
def test_good_measurements_get_no_advice(parts):
    assert advice(*parts) == []


def test_the_speed_of_a_short_loop_is_that_of_longer_rounds():
    own = loop(GOOD, elapsed_s=0.001, wait_s=10.0, step_s=0.0)
    verdict = next(iter(diagnose(Evidence(own, [candidate(BASELINE, 5000)]), alone=True).findings))
    assert verdict.values["samples_per_s"] == pytest.approx(5000)


@pytest.mark.parametrize(("kinds", "gain"), [(["cache"], 3.0), (["cache", "unchunked"], 2.0)])
def test_a_gain_with_samples_in_memory_is_not_that_of_other_chunks(kinds, gain):
    read = SampleCalls(arrays=[ChunkedRead("HDF5", "x", "x.h5", (512, 8), True, 64, 32768)])
    rates = {"cache": 300, "unchunked": 200}
    every = [tried(one, rates[one]) for one in kinds]
    found = diagnose(evidence(*every, profile(costs={"chunks": 0.9}), sample=read)).advice
    (chunks,) = [one for one in found if one.kind == "chunks"]
    assert chunks.gain == pytest.approx(gain)
    assert ("memory" in chunks.hint) == ("unchunked" not in kinds)


def test_advice_whose_gain_is_open_says_so_with_its_interval():
    open_ = Candidate("cached", {"a": 1}, "cache", final=SCATTERED)
    (found,) = diagnose(evidence(open_, spending("rows"))).advice
    assert found.gain is None
    assert re.search(r"undecided: 3\.\d* × as fast .*interval", found.sentence)


@pytest.mark.parametrize(
    ("rates", "named"), [({1: 90, 2: 300, 3: 400}, False), ({1: 190, 2: 200, 3: 210}, True)]
)
def test_the_collector_is_named_beside_work_that_makes_garbage_only_where_it_was_measured(rates, named):
    frozen = Candidate("", {"gc": "freeze"}, "gc", final=rounds_at(rates))
    parsing = spending("text", outer={"text": (100, "")}, gc_share=0.5)
    kinds = advice(loop(loader={"workers": 0}, gc_s=5.0), frozen, parsing)
    assert "parsed-text" in kinds
    assert ("garbage-collection" in kinds) == named


RACED = Candidate(BASELINE, race=rounds_at({1: 100}))


def race_only(kind, rate, **changes):
    return Candidate(kind, changes or {"a": 1}, kind, race=rounds_at({1: rate}))


@pytest.mark.parametrize(
    ("kind", "rate", "changes", "expected"),
    [
        ("default-collate", 900, {}, ["default-collate"]),
        ("default-collate", 150, {}, []),
        ("workers", 900, {"num_workers": 0}, ["workers-cost"]),
        ("workers", 150, {"num_workers": 0}, []),
        ("threads", 900, {"worker_threads": 1}, ["threads"]),
        ("threads", 150, {"worker_threads": 1}, []),
        ("one-thread", 900, {}, ["torch-threads"]),
    ],
)
def test_a_cause_is_named_as_undecided_where_time_was_too_short_for_final_rounds(
    kind, rate, changes, expected
):
    found = diagnose(Evidence(loop(), [RACED, race_only(kind, rate, **changes)], [profile()])).advice
    assert [one.kind for one in found] == expected
    assert all(one.gain is None and "undecided: 9.00 ×" in one.sentence for one in found)


@pytest.mark.parametrize(
    ("raced", "expected"), [(race_only("cache", 90), True), (race_only("workers", 90, num_workers=2), False)]
)
def test_more_workers_are_advised_unless_a_race_was_against_them(raced, expected):
    kinds = [one.kind for one in diagnose(Evidence(FEW, [RACED, raced])).advice]
    assert ("too-few-workers" in kinds) == expected


def test_settings_are_not_compared_where_each_turn_took_longer():
    slower = evidence(candidate("0 workers", 200, num_workers=0), slowdown=2.0)
    found = diagnose(slower)
    assert [one.kind for one in found.warnings] == ["slowing-down"]
    assert not any(one.gain for one in found.advice)


def test_what_makes_samples_wrong_precedes_the_verdict():
    shared = loop(loader={"handles": ["file (h5py)"], "persistent_workers": False}, first_wait_s=6.0)
    found = diagnose(evidence(shared, tried("cache", 300), profile(getitem_share=0.9)))
    wrong, *others = found.advice
    assert wrong.kind == "open-handles"
    assert {one.kind for one in others} == {"repeated-work", "first-batch"}
    assert wrong.sentence in next(found.blocks()).lines[0]
    assert found.verdict.kind in [one.kind for one in found.findings[1:2]]


def test_decoding_inside_a_file_that_is_read_counts_as_decoding():
    for decoding, expected in ((0.6, ["decoding", "file-per-sample"]), (0.8, ["decoding"])):
        costs = {"decoding": decoding, "files": 1.0}
        assert advice(profile(costs=costs, outer={"files": (100, "")})) == expected


class Rows(Samples):
    """Sixty-four floats a sample, with what a test adds."""

    def __init__(self, samples=64, work=lambda: None, **attributes):
        data = torch.arange(samples * 64, dtype=torch.float32).reshape(samples, 64)
        super().__init__(samples, data=data, work=work, **attributes)

    def __getitem__(self, row):
        self.work()
        return {"x": self.data[row], "y": row}


def watched(loader, step=lambda batch: None, stop=None):
    """The batches of a watched loop, and the watched loader."""
    watched_loader, batches = WatchedLoader(loader, "cpu", lambda stats: None), []
    for batch in watched_loader:
        batches.append(batch)
        step(batch)
        if len(batches) == stop:
            break
    return batches, watched_loader


def test_a_watched_loader_yields_the_very_same_objects_and_has_the_loader_s_attributes():
    items = [{"x": torch.ones(3)}, [1, "a", None], None, "text", (torch.zeros(2), {"y": np.ones(4)})]
    batches, watch = watched(items)
    assert all(a is b for a, b in zip(batches, items, strict=True))
    assert (watch.stats.batches, len(watch)) == (5, 5)
    assert watch.stats.samples == 3 + 2
    assert watch.stats.bytes == 3 * 4 + 2 * 4 + 4 * 8
    assert watch.append.__self__ is items


def test_waits_and_steps_are_distinguished(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(time, "perf_counter_ns", lambda: round(now[0] * 1e9))

    def spend(seconds):
        now[0] += seconds

    def slow():
        for number in range(6):
            spend(0.03)
            yield number

    _, watch = watched(slow(), step=lambda batch: spend(0.01))
    assert watch.stats.wait_share == pytest.approx(0.75)
    assert watch.stats.elapsed_s == pytest.approx(6 * 0.04)
    waits = (watch.stats.first_wait_s, watch.stats.wait_p50_s, watch.stats.wait_p99_s, watch.stats.wait_max_s)
    assert waits == pytest.approx((0.03,) * 4)


@pytest.mark.parametrize("stop", [None, 2])
def test_the_callback_runs_however_the_loop_ends(stop):
    reported = []
    watch = WatchedLoader(DataLoader(Rows(), batch_size=16), "cpu", reported.append)
    for number, _ in enumerate(watch, 1):
        if number == stop:
            break
    del _
    assert [one.batches for one in reported] == [stop or 4]
    assert reported[0].samples == 16 * (stop or 4)


def test_errors_of_the_loader_and_of_the_step_pass_through():
    with pytest.raises(KeyError, match="mine"):
        watched(DataLoader(Rows(work=fails), batch_size=16))
    with pytest.raises(KeyError, match="mine"):
        watched(DataLoader(Rows(), batch_size=16), step=lambda batch: fails())


def test_watching_costs_microseconds():
    batch = {"x": torch.ones(8, 8), "y": torch.ones(8)}
    loops = []
    for _ in range(3):
        began = time.process_time()
        watched([batch] * 5000)
        loops.append((time.process_time() - began) / 5000)
    assert min(loops) < 50e-6  # CPU time, not wall time


def test_workers_are_sampled_while_they_live():
    def work():
        until = time.process_time() + 0.02
        while time.process_time() < until:
            pass

    _, watch = watched(DataLoader(Rows(work=work), batch_size=8, **FORK))
    assert watch.stats.workers >= 2
    assert watch.stats.worker_cpu_s > 0.5 * 64 * 0.02
    assert watch.stats.loader.workers == 2


def test_the_settings_of_a_dataloader():
    info = inspect_loader(DataLoader(Rows(), batch_size=16, **FORK))
    assert (info.class_name, info.dataset, info.workers, info.batch_size) == ("DataLoader", "Rows", 2, 16)
    assert (info.by_sample, info.tensor_dataset) == (True, False)
    assert inspect_loader(DataLoader(TensorDataset(torch.ones(4)))).tensor_dataset
    assert inspect_loader(DataLoader(Stream())).by_sample is False
    assert inspect_loader(x for x in ()) == LoaderInfo(class_name="generator")


def test_open_files_and_chunks_are_found(tmp_path):
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file.create_dataset("x", data=np.ones((100, 4)), chunks=(50, 4))
    env = lmdb.open(str(tmp_path / "l"))
    with h5py.File(tmp_path / "f.h5") as file:
        info = inspect_loader(DataLoader(Rows(file=file, env=env), **FORK))
    env.close()
    assert set(info.handles) == {"file (h5py)", "env (lmdb)"}
    assert info.chunks == ["file: chunks of 50 samples"]


def test_an_open_lance_dataset_is_found(tmp_path):
    lance, arrow = pytest.importorskip("lance"), pytest.importorskip("pyarrow")
    held = lance.write_dataset(arrow.table({"x": [1, 2]}), str(tmp_path / "d.lance"))
    assert inspect_loader(DataLoader(Rows(held=held))).handles == ["held (lance)"]


def as_lists(loader):
    return [[tensor.tolist() for tensor in batch_tensors(batch)] for batch in loader]


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(Rows(), batch_size=10),
        DataLoader(Rows(), batch_size=10, drop_last=True),
        DataLoader(Rows(), batch_size=None),
        DataLoader(Stream(), batch_size=3),
        DataLoader(Rows(), batch_sampler=[[3, 1], [2]]),
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_variant_yields_what_the_loader_yields(loader, workers):
    changes = FORK | {"num_workers": 1} if workers else {"num_workers": 0}
    assert as_lists(rebuilt(loader, changes)) == as_lists(loader)


def test_fetching_whole_batches_is_tried_where_it_gives_the_same():
    dataset = TensorDataset(torch.arange(10), torch.arange(20).reshape(10, 2))
    loader = DataLoader(dataset, batch_size=4)
    candidates, _ = candidates_for(TunableLoader(loader), LoaderTraits())
    (found,) = [one for one in candidates if one.name == BATCH_FETCH]
    assert as_lists(rebuilt(loader, found.changes)) == as_lists(loader)


class Lists(Rows):
    """Gives something else for a list of samples."""

    def __getitem__(self, row):
        return self.data[row] if isinstance(row, int) else torch.zeros(len(row), 64)


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(Lists(), batch_size=4),
        DataLoader(Rows(), batch_size=4),  # its y is a list then
        DataLoader(Stream(), batch_size=4),
        DataLoader(TensorDataset(torch.ones(9)), batch_size=4, collate_fn=lambda batch: batch),
        DataLoader(TensorDataset(torch.ones(9)), batch_size=None),
    ],
)
def test_fetching_whole_batches_is_not_tried_elsewhere(loader):
    assert BATCH_FETCH not in [one.name for one in candidates_for(TunableLoader(loader), LoaderTraits())[0]]


def run_session(loader, **options):
    seconds = 2.0 if options.get("variants", True) else 600.0  # in which the data end
    return session.diagnose(loader, **{"max_time_s": seconds, "batches": 50, **options})


def session_fails(loader, name, problem="", traceback="", **options):
    """Return the error with which a session ends, of this kind and with these parts."""
    with pytest.raises(TargetError, check=kind(name)) as caught:
        run_session(loader, **{"max_time_s": 30.0, **options})
    assert caught.value.problem.endswith(problem)
    assert traceback in caught.value.traceback
    return caught.value


@pytest.fixture
def one_thread():
    """Torch's threads wait for each other, which takes long where other processes want the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_garbage_of_work_that_is_named_needs_a_race_to_be_advice():
    listing = profile(costs={"listings": 0.9}, outer={"listings": (100, "")}, gc_share=0.2)
    assert advice(listing, alone=True) == ["folder-listed"]
    assert set(advice(tried("gc", 300), listing, alone=True)) == {"garbage-collection", "folder-listed"}


def test_work_that_can_be_avoided_comes_first_where_its_gain_is_not_measured():
    searching = profile(costs={"searches": 0.9}, outer={"searches": (100, "")})
    workers = candidate("2 workers", 190, num_workers=2)

    def named(*more, share=0.9):
        profile = dataclasses.replace(searching, costs={"searches": share})
        return advice(loop(loader={"workers": 0}), workers, *more, profile, alone=True)

    assert named() == ["list-searched", "too-few-workers"]
    assert named(share=0.4) == named(tried("cache", 130)) == ["too-few-workers", "list-searched"]
    found = diagnose(
        evidence(loop(loader={"workers": 0}), tried("cache", 3000), searching), alone=True
    ).advice
    gains = {one.kind: (one.gain is not None, one.values.get("undecided")) for one in found}
    assert gains["list-searched"] == (False, None)  # kept samples avoid more than the search


def test_a_tensor_dataset_is_named_and_its_gain_is_measured(one_thread):
    dataset = TensorDataset(torch.randn(40_000, 16, dtype=torch.float64))
    found = until("per-sample", lambda: DataLoader(dataset, batch_size=2048, shuffle=True))
    first = found.advice[0]
    assert (first.kind, first.gain > 1.1) == ("per-sample", True)
    assert first.values["getitem_calls"] > 0
    profile = found.profiles[0]
    assert profile.getitem_share > 0.2 * (1 - profile.gc_share)  # of a heap that other tests filled


def test_decoding_is_found_in_workers_by_their_own_profile(tmp_path):
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (200, 200, 3), np.uint8)).save(buffer, "PNG")

    def decode():
        np.asarray(Image.open(io.BytesIO(buffer.getvalue())))

    rows = Rows(400, decode)  # so many that a pause of a worker is a small share of its time
    found = run_session(DataLoader(rows, batch_size=8, **FORK), variants=False)
    assert [one.where for one in found.profiles] == ["main process", "workers"]
    assert "decoding" in [one.kind for one in found.advice]


def test_an_endless_loader_ends_with_the_time():
    def endless():
        while True:
            yield torch.ones(4)

    found = run_session(endless(), max_time_s=5.0, batches=10**9)  # of which the loop has a second
    assert found.loop.batches > 2


def fails(several_lines=False):
    try:
        raise KeyError("mine")
    except KeyError as error:
        if not several_lines:
            raise
        raise RuntimeError("first\n  second\n500") from error


def hangs_later():
    yield from (torch.zeros(8) for _ in range(3))
    time.sleep(60)
    yield torch.zeros(8)


RAISING = Rows(work=partial(fails, True))


@pytest.mark.parametrize(
    ("loader", "name", "problem", "own_code", "time_s"),
    [
        ((fails() if n else torch.ones(4) for n in range(2)), "raised", " 1 batch: 'mine'", "in fails", 30.0),
        (DataLoader(RAISING, batch_size=8), "raised", " 0 batches: first", "in fails", 30.0),
        (DataLoader(RAISING, batch_size=8, **FORK), "raised", " 0 batches: first", "in fails", 30.0),
        (DataLoader(Rows(work=partial(sys.exit, 7))), "ended-process", ": sys.exit(7)", "", 30.0),
        (hangs_later(), "timeout", "", "in hangs_later", 8.0),
        ([], "empty", "", "", 30.0),
    ],
    ids=["a generator", "the main process", "a worker", "an exit", "a generator that hangs", "nothing"],
)
def test_an_error_has_the_traceback_of_the_user_s_own_code(loader, name, problem, own_code, time_s):
    error = session_fails(loader, name, problem, own_code, max_time_s=time_s)
    assert "/torch/" not in error.traceback


def test_a_worker_s_error_keeps_its_message_and_place():
    with pytest.raises(KeyError) as caught:
        list(DataLoader(Rows(work=fails), batch_size=8, **FORK))
    end_workers()
    assert user_errors.location(caught.value).startswith("test_diagnose.py:")
    assert user_errors.loader_error(caught.value).problem.endswith("KeyError: 'mine'")


@pytest.mark.parametrize("run", [session.diagnose, iobench.tune])
def test_workers_are_not_tried_where_they_could_not_send_the_batches(run, capfd):
    loader = DataLoader(Rows(), batch_size=8, collate_fn=lambda rows: {"x": rows[0], "lock": Lock()})
    answer = run(loader, max_time_s=3.0, device="cpu")
    assert "cannot-pickle-batches" in {one.kind for one in answer.skipped}
    assert not [one for one in answer.candidates if one.changes.get("num_workers")]
    assert "too-few-workers" not in {one.kind for one in answer.findings}
    assert "Traceback" not in capfd.readouterr().err


def end_workers():
    """Kill workers whose loop did not end: torch would wait 5 s for each of them, and its handler raise."""
    handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for worker in multiprocessing.active_children():
        worker.kill()
        worker.join()
    signal.signal(signal.SIGCHLD, handler)


def test_a_loader_that_hangs_has_the_stacks_of_its_processes_and_others_survive():
    def hang():
        time.sleep(60)

    bystander = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    bystander.start()  # without a handler of the signal by which a stack is asked for
    loader, before = DataLoader(Rows(work=hang), batch_size=8, **FORK), signal.getsignal(signal.SIGALRM)
    # keeps the workers for their end; within 3 s these have begun
    error = session_fails(loader, "timeout", traceback="in hang", timeout_s=3.0, max_time_s=60.0)
    assert bystander.is_alive()
    assert "main process:" in error.traceback
    assert signal.getsignal(signal.SIGALRM) is before
    end_workers()


@pytest.mark.parametrize(
    "hanging", ["def make():\n    time.sleep(60)\n", "def make(): ...\ntime.sleep(60)\n"]
)
def test_a_function_that_hangs_is_ended_with_its_stack(tmp_path, hanging):
    (tmp_path / "own.py").write_text(f"import time\n{hanging}")
    session_fails(f"{tmp_path}/own.py:make", "timeout", traceback="time.sleep(60)", timeout_s=1.0)


def test_a_worker_that_is_killed_is_an_error():
    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    error = session_fails(DataLoader(Rows(work=die), batch_size=8, **FORK), "raised")
    assert "RuntimeError after 0" in error.problem
    assert error.traceback == ""  # the frames would be those of torch and iobench


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_alarm_that_a_destructor_swallows_comes_again(monkeypatch):
    monkeypatch.setattr(watchdog, "REPEAT_S", 0.1)

    class SlowToDie:
        def __del__(self):
            time.sleep(0.35)

    def hanging():
        SlowToDie()
        time.sleep(60)
        yield

    limited = Watchdog(0.3)
    with limited.active(), pytest.raises(TargetError, check=kind("timeout")):
        next(limited.guard(hanging()))


ALARMED_IN_A_FORK = """
import ctypes, functools, os, signal
# by C code alone: the alarm is handled at the start of the next hook that is Python code, which is logging's
alarm = functools.partial(ctypes.CDLL(None).kill, os.getpid(), int(signal.SIGALRM))
os.register_at_fork(after_in_parent=alarm)

import logging, threading, time
from iobench.advise.settings.watchdog import Watchdog
from iobench.base.errors import TargetError

def forking():
    if os.fork() == 0:
        os._exit(0)
    time.sleep(60)
    yield

watchdog = Watchdog(60.0)
with watchdog.active():
    try:
        next(watchdog.guard(forking()))
    except TargetError as error:
        print(error.kind)
other = threading.Thread(target=logging.getLogger("any").isEnabledFor, args=(17,), daemon=True)
other.start()
other.join(10)
print("alive" if other.is_alive() else "ended", flush=True)
os._exit(0)
"""


def test_an_alarm_during_a_fork_leaves_logging_usable():
    command = [sys.executable, "-c", ALARMED_IN_A_FORK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.stdout.split() == ["timeout", "ended"], done.stderr


MODULE = """
import ctypes
import torch
from torch.utils.data import DataLoader, TensorDataset

def make():
    return DataLoader(TensorDataset(torch.randn(5000, 16)), batch_size=100)

def talking():
    print("by Python")
    ctypes.CDLL(None).puts(b"by C")
    return make()

def with_argument(path, size=3):
    return []

def number():
    return 3

def failing():
    raise RuntimeError("mine")

constant = 3
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    yield tmp_path
    for name in ("mine", "broken"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("command", ["diagnose", "tune"])
def test_what_a_loader_prints_is_no_part_of_the_json(module, inside, command):
    done = inside(command, "mine.py:talking", "--max-time", 2, "--json", "--device", "cpu")
    assert json.loads(done.stdout)["outcome"]
    assert {"by Python", "by C"} <= set(done.stderr.splitlines())


def test_json_has_the_figures_and_the_advice(module, inside):
    def diagnosed(*options):
        return json.loads(inside("diagnose", "mine:make", *options, "--json", "--device", "cpu").stdout)

    found = diagnosed("--max-time", 60, "--no-variants")  # in which the data end
    assert found["loop"]["batches"] == 50
    assert found["outcome"] == found["findings"][0]["kind"] == "loader-alone"
    shown = inside("diagnose", "mine:make", "--max-time", 60, "--no-variants", "--device", "cpu").stdout
    assert {"DataLoader", "TensorDataset,"} <= set(shown.split())
    raced = diagnosed("--max-time", 2)
    assert {one["name"] for one in raced["candidates"]} >= {BASELINE, BATCH_FETCH}


@pytest.mark.parametrize(
    ("target", "kind"),  # others are in tests/golden
    [
        ("mine.py:", "not-a-target"),
        ("nowhere:make", "cannot-import"),
        ("broken.py:make", "cannot-import"),
        ("mine.py:absent", "no-callable"),
        ("mine.py:constant", "no-callable"),
        ("mine.py:with_argument", "missing-argument"),
        ("mine.py:number", "not-iterable"),
        ("mine.py:failing", "raised"),
    ],
)
def test_a_bad_target_is_one_line_after_the_user_s_own_frames(module, inside, target, kind):
    done = inside("diagnose", target)
    assert (done.returncode, done.stdout) == (1, "")
    *before, last = done.stderr.splitlines()
    assert last.startswith(f"iobench: error[{kind}]: ")
    assert before[:1] == ["Traceback (most recent call last):"] * (
        target in ("broken.py:make", "mine.py:failing")
    )
    assert ("in failing" in done.stderr) == (kind == "raised")
    assert "iobench/advise" not in done.stderr


@pytest.mark.parametrize("option", ["--batches", "--max-time", "--timeout"])
def test_limits_must_be_positive(module, inside, option):
    assert inside("diagnose", "mine.py:make", option, 0).returncode == 2


LOOP = """
import iobench, torch, time
from torch.utils.data import DataLoader, TensorDataset
for batch in iobench.watch(DataLoader(TensorDataset(torch.ones(64, 4)), batch_size=8)):
    time.sleep(0.01)
    {then}
"""


@pytest.mark.parametrize(("then", "batches"), [("", 8), ("break", 1), ("raise KeyboardInterrupt", 1)])
def test_a_user_s_own_loop_is_reported_on_stderr(then, batches):
    """The last one ends a process, which reports all the same."""
    if then.startswith("raise"):
        command = [sys.executable, "-c", LOOP.format(then=then)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=400)
        out, report = done.stdout, done.stderr
    else:
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as report:
            exec(LOOP.format(then=then), {})
        out, report = out.getvalue(), report.getvalue()
    assert out == ""
    assert f"batches {batches} of" in " ".join(report.split())
    assert ("Too short" in report) == (batches == 1)  # whatever the wait was, eight batches are judged
    assert "Next:" in report


def test_loops_count_together_by_their_time_and_short_ones_do_not():
    kept_up, starved, short = loop(wait_s=0.1, step_s=9.9), loop(wait_s=0.9, step_s=0.1), loop(batches=1)
    assert verdict_on_all([starved, *[kept_up] * 9]).kind == "not-bottleneck"
    assert verdict_on_all([kept_up, *[starved] * 90]).kind == "bottleneck"
    assert verdict_on_all([short, short]).kind == "too-short"
    assert verdict_on_all([short, starved]).values["wait_share"] == pytest.approx(0.9)


def test_the_rank_that_waits_most_decides_over_all_loops_too():
    once, always = loop(wait_s=0.1, step_s=9.9), loop(wait_s=0.1, step_s=9.9, rank_waits={1: 0.9})
    assert verdict_on_all([always, *[once] * 19]).kind == "not-bottleneck"
    found = verdict_on_all([always] * 3)
    assert (found.kind, found.values["slowest_wait_share"]) == ("bottleneck", pytest.approx(0.9))


def test_the_cost_of_a_sample_is_its_wait_whatever_the_step_took():
    slow_step = loop(loader={"by_sample": True}, samples=10**6, wait_s=5.0, step_s=20.0)
    (found,) = diagnose(Evidence(slow_step)).advice
    assert found.values["sample_s"] == pytest.approx(5.05e-6, rel=1e-3)
