"""Published claims, with figures that lead to each verdict."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch
from kinds import complaint_kind
from record_cases import rounds_of

import iobench
from iobench import studies
from iobench.base.errors import ColdCacheUnavailable
from iobench.base.machine import BackgroundLoad
from iobench.results import record_file
from iobench.studies import (
    Measurements,
    StudyOptions,
    dataloader_indexing,
    iteration,
    preallocation,
    settings,
    small_batches,
    tensordataset,
    volume,
)
from iobench.studies._claims import INCONCLUSIVE, NOT_REPRODUCED, REPRODUCED, ClaimResult, Claims, all_of
from iobench.studies._rounds import RoundResult, interleave, timed
from iobench.studies._study import Reference, scratch

# claims, without what is in parentheses
DEADLOCK = "The background generator deadlocks together with workers"
FORKS = "HDF5 is vulnerable when read in parallel"


ITERATED = (iteration.DATASET, iteration.BATCHED, iteration.SLICED, iteration.FILLED, iteration.BUILT)


def rounds(seconds, spread=0.001):
    return [seconds * (1 + spread * step) for step in (-2, -1, 0, 1, 2)]


@pytest.mark.parametrize(
    ("one", "other", "faster", "equal"),
    [
        (1.0, 2.0, REPRODUCED, NOT_REPRODUCED),
        (2.0, 1.0, NOT_REPRODUCED, NOT_REPRODUCED),
        (1.0, 1.01, NOT_REPRODUCED, REPRODUCED),
    ],
)
def test_a_claim_is_reproduced_or_not(one, other, faster, equal):
    claims = Claims(Measurements({"one": rounds(one), "other": rounds(other)}))
    verdicts = claims.faster("one", "other").verdict, claims.equal("one", "other").verdict
    assert verdicts == (faster, equal)


def test_scattered_rounds_are_inconclusive():
    wide = Measurements({"one": [1, 2, 3, 4, 5], "other": [1.5, 2.2, 2.9, 4.1, 6]})
    for claimed in (Claims(wide).faster, Claims(wide).equal):
        result = claimed("one", "other")
        assert result.verdict == INCONCLUSIVE
        (values,) = result.values
        assert values["low"] < values["ratio"] < values["high"]


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        ([REPRODUCED, REPRODUCED], REPRODUCED),
        ([REPRODUCED, INCONCLUSIVE], INCONCLUSIVE),
        ([INCONCLUSIVE, NOT_REPRODUCED], NOT_REPRODUCED),
        ([REPRODUCED, NOT_REPRODUCED], NOT_REPRODUCED),
    ],
)
def test_a_claim_of_several_parts_has_the_worst_verdict(parts, whole):
    assert all_of([ClaimResult("", part, "why") for part in parts]) == ClaimResult("", whole, "why; why")


def test_contenders_alternate_in_changing_order_and_warm_up_rounds_do_not_count():
    log = []
    contenders = {name: timed(lambda name=name: log.append(name)) for name in "ab"}
    result = interleave(contenders, rounds=8, warmup=1)
    cycles = list(zip(log[::2], log[1::2], strict=True))
    assert len(cycles) == 9
    assert set(cycles) == {("a", "b"), ("b", "a")}
    assert [len(values) for values in result.seconds.values()] == [8, 8]


def test_metrics_are_stored_by_contender_and_round():
    memory = iter([9, 1, 2, 3])
    contenders = {
        "a": lambda: RoundResult(1.0, {"memory_bytes": next(memory)}),
        "b": lambda: RoundResult(2.0),
    }
    result = interleave(contenders, rounds=3, warmup=1)
    assert result.metrics == {"memory_bytes": {"a": [1, 2, 3]}}
    assert result.median("memory_bytes", "a") == 2
    assert result.median("memory_bytes", "b") is None
    assert [row[-1] for row in result.table()] == ["memory", "2 B", "–"]


@pytest.mark.parametrize(("warmup", "left"), [(1, 3), (0, 2)])
def test_the_remaining_time_is_estimated_after_the_first_round(warmup, left):
    log = []
    contenders = {name: timed(lambda: log.append("turn")) for name in "ab"}
    interleave(contenders, rounds=3, warmup=warmup, on_status=log.append)
    (estimate,) = (text for text in log if text != "turn")
    assert list(map(int, re.findall(r"\d+", estimate)[:2])) == [2, left]  # contenders and rounds
    assert log.index(estimate) == 2  # after one round of both


@pytest.mark.parametrize("claimed", [Claims.faster, Claims.equal])
@pytest.mark.parametrize("pair", [("one", "other"), ("other", "one")])
def test_the_faster_one_is_named_first_whatever_the_claim(claimed, pair):
    claims = Claims(Measurements({"one": rounds(12, 0.05), "other": rounds(1, 0.05)}))
    result = claimed(claims, *pair)
    (values,) = result.values
    assert (values["faster"], values["slower"], round(values["ratio"], 9)) == ("other", "one", 12)
    assert 9 < values["low"] < 12 < values["high"] < 15
    assert result.evidence.startswith("other ")
    assert "12.0 ×" in result.evidence


def test_a_result_names_the_data_and_quick_sizes():
    timed_data = Measurements({"a": rounds(1), "b": rounds(2)}, data="10 samples")
    result = replace(all_of([Claims(timed_data).faster("a", "b")] * 2), claim="claim")
    assert result.with_sizes(quick=False) == result
    assert (result.data, result.claim, result.verdict) == ("10 samples", "claim", REPRODUCED)
    quick = result.with_sizes(quick=True)
    assert quick.data.startswith("10 samples")
    assert "--quick" in quick.data
    for one in (result, quick):
        assert one.sentence.startswith(REPRODUCED)
        assert one.data in one.sentence
        assert one.sentence.endswith(": claim")
    untimed = ClaimResult("c", INCONCLUSIVE, "no GPU")
    assert untimed.with_sizes(quick=True) == untimed


def test_a_reference_names_known_and_unknown_fields():
    assert str(Reference("T", "author", 2019)) == "“T”, author, 2019"
    for reference, missing in (
        (Reference("T", "author", 2019), ["address"]),
        (Reference("T", "author"), ["year", "address"]),
        (Reference("T", "author", 2019, "a library"), []),
    ):
        assert reference.unknown == " and ".join(missing)


def verdicts(study, figures):
    return [result.verdict for result in study.STUDY.evaluate(figures)]


def test_tensordataset_has_either_verdict():
    def found(by_sample_s, by_batch_s, own, collate, calls=100):
        seconds = {tensordataset.BY_SAMPLE: rounds(by_sample_s), tensordataset.BY_BATCH: rounds(by_batch_s)}
        figures = {"calls": calls, "rows": 100, "shares": {"__getitem__": own, "collate": collate}}
        return verdicts(tensordataset, Measurements(seconds, figures=figures))

    assert found(5, 1, [0.7, 0.6], [0.2, 0.3]) == [REPRODUCED] * 4
    assert found(1, 5, [0.2, 0.3], [0.01, 0.02], calls=1) == [NOT_REPRODUCED] * 4
    swinging = [REPRODUCED, INCONCLUSIVE, INCONCLUSIVE, REPRODUCED]
    assert found(5, 1, [0.49, 0.63], [0.09, 0.4]) == swinging
    assert found(0.04, 0.001, [0.7, 0.6], [0.2, 0.3])[-1] == INCONCLUSIVE, "epochs are too short"


def test_dataloader_indexing_has_either_verdict():
    one = dataloader_indexing
    remedies = (one.BY_BATCHES, one.BY_GETITEMS, *one.FROM_FILE)
    slow = {one.BY_SAMPLE: rounds(40), one.TUNED: rounds(36), one.INDEXED: rounds(1)}
    held = verdicts(one, Measurements({**slow, **{name: rounds(2) for name in remedies}}))
    assert held == [REPRODUCED] * 4
    quick = {one.BY_SAMPLE: rounds(5), one.TUNED: rounds(1), one.INDEXED: rounds(1)}
    missed = verdicts(one, Measurements({**quick, **{name: rounds(6) for name in remedies}}))
    assert missed == [NOT_REPRODUCED] * 4
    between = {**slow, one.INDEXED: rounds(4, 0.1), one.TUNED: rounds(20, 0.1)}
    undecided = verdicts(one, Measurements({**between, **{name: rounds(2) for name in remedies}}))
    assert undecided[:2] == [INCONCLUSIVE] * 2


def only(seconds, default=1.0):
    """Return rounds of any contender: the named ones take these seconds, all others the default."""

    class Rounds(dict):
        def __missing__(self, name):
            return rounds(next((s for part, s in seconds.items() if part == name), default))

    return Rounds()


def pieces(few, many):
    """Return rounds of each method with 2, 8 and 32 pieces; torch.cat takes 1 s."""
    names = (preallocation.CAT, preallocation.TD_CAT, preallocation.FILL)
    seconds = {f"{name}, 2 pieces": rounds(value) for name, value in zip(names, few, strict=True)}
    seconds |= {f"{name}, 8 pieces": rounds(1) for name in names}
    seconds |= {f"{name}, 32 pieces": rounds(value) for name, value in zip(names, many, strict=True)}
    return Measurements(seconds, figures={"counts": [2, 8, 32]})


def test_preallocation_has_either_verdict():
    holds, fails = pieces(few=(1, 1, 1), many=(1, 1, 0.5)), pieces(few=(1, 1, 0.5), many=(1, 2, 1.5))
    assert verdicts(preallocation, holds) == [REPRODUCED] * 3
    assert verdicts(preallocation, fails) == [NOT_REPRODUCED] * 3
    (wins, *_) = preallocation.STUDY.evaluate(holds)
    faster = {one["method"]: one["faster_at_pieces"] for one in wins.values if "method" in one}
    assert faster == {preallocation.CAT: "32", preallocation.GROWN: ""}


def test_iteration_has_either_verdict():
    names = (*ITERATED, iteration.LAZY)
    alike, apart = dict.fromkeys(names, rounds(1)), {name: rounds(2**n) for n, name in enumerate(names)}
    resident, lazy = {"lazy_residency": 1.0, "gpu": False}, {"lazy_residency": 0.0, "gpu": False}
    holds = verdicts(iteration, Measurements(alike, figures=resident))
    assert holds == [REPRODUCED] * 4 + [INCONCLUSIVE]
    fails = verdicts(iteration, Measurements(apart, figures=lazy))
    assert fails == [NOT_REPRODUCED] * 4 + [INCONCLUSIVE]
    on_gpu = {**alike, iteration.GPU_DATASET: rounds(1), iteration.GPU_SLICED: rounds(1)}
    assert verdicts(iteration, Measurements(on_gpu, figures={**lazy, "gpu": True}))[-1] == REPRODUCED
    short = verdicts(iteration, Measurements(dict.fromkeys(names, rounds(0.01)), figures=lazy))
    inconclusive = [INCONCLUSIVE] * 5
    inconclusive[2] = NOT_REPRODUCED  # residency needs no clock
    assert short == inconclusive


def settings_measured(seconds, cuda=False, failure=None, allocated=None, hung=False):
    """Return measurements of the study of settings: seconds by row of the table and share."""
    device = "cuda" if cuda else "cpu"
    named = {
        f"{settings.TABLE[row].on(device).label}, at {share} %": s for (row, share), s in seconds.items()
    }
    figures = {
        "gpu": cuda,
        "data_bytes": {"10": 10, "40": 40, "70": 1000},
        "both": {"epochs": 5, "seconds": None if failure else 1.0, "failure": failure, "hung": hung},
    }
    peaks = {}
    for row, by_share in (allocated or {}).items():
        for share, peak in zip((10, 70), by_share, strict=True):
            peaks[f"{settings.TABLE[row].on(device).label}, at {share} %"] = [peak]
    return Measurements(only(named), {"gpu_allocated_bytes": peaks}, figures)


def by_claim(study, figures):
    return {one.claim.partition(" (")[0].rstrip("."): one.verdict for one in study.STUDY.evaluate(figures)}


def test_settings_have_either_verdict_without_a_gpu():
    slow = {(2, 10): 0.1, **{(n, 70): 2 + n % 3 for n in (3, 4)}, (5, 70): 1.5, (6, 70): 1.2, (7, 70): 0.5}
    slow |= {(3, 10): 1.0, (4, 10): 2.0, (6, 10): 1.0, (5, 10): 2.0}
    holds = by_claim(settings, settings_measured(slow, failure="sent no heartbeat for 9 s", hung=True))
    assert [verdict for claim, verdict in holds.items() if "GPU" in claim] == [INCONCLUSIVE] * 2
    assert list(holds.values()).count(INCONCLUSIVE) == 4
    assert NOT_REPRODUCED not in holds.values()
    other = {(2, 10): 3.0, **{(n, 70): 0.5 for n in (3, 4, 5, 6)}, (7, 70): 2.0, (4, 10): 0.5}
    fails = by_claim(settings, settings_measured(other))
    assert fails[DEADLOCK] == NOT_REPRODUCED
    assert list(fails.values()).count(NOT_REPRODUCED) == 6


def test_a_process_that_dies_is_no_evidence_of_a_deadlock():
    died = by_claim(settings, settings_measured({}, failure="was killed by SIGSEGV"))
    assert died[DEADLOCK] == INCONCLUSIVE


def test_settings_have_either_verdict_with_a_gpu():
    def found(seconds, other):
        allocated = dict.fromkeys(range(1, 11), (100, 100)) | {11: (110, 1100)} | other
        measured = by_claim(settings, settings_measured(seconds, True, allocated=allocated))
        about = ("GPU", "Pinned", "not block")
        return [verdict for claim, verdict in measured.items() if any(word in claim for word in about)]

    seconds = {(11, 70): 0.5, (8, 70): 1.0, (9, 70): 2.0, (1, 10): 1.0, (10, 10): 2.0, (2, 10): 1.5}
    seconds |= {(1, 70): 3.0, (10, 70): 3.0, (2, 70): 2.0}
    assert found(seconds, {}) == [REPRODUCED] * 4
    turned = {(11, 70): 2.0, (8, 70): 2.0, (9, 70): 1.0, (2, 70): 1.0, (1, 70): 0.5, (10, 70): 1.0}
    assert found({**turned, (1, 10): 2.0}, {3: (100, 400)}) == [NOT_REPRODUCED] * 4


def small_measured(seconds, wait=None, cuda=False, wrong=0, failure=None, hung=False, busy=(), **libraries):
    """Return measurements of the study of small batches."""
    figures = {
        "batches": [8, 32, 128],
        "workers": [0, 2],
        "gpu": cuda,
        "forks": {"wrong": None if failure else wrong, "failure": failure, "hung": hung, "samples": 100},
        "lmdb": {"refuses": libraries.get("refuses", True), "grows": True},
        "hdf5_resizes": libraries.get("resizes", True),
    }
    shares = {f"png, batch {batch}": rounds(s) for batch, s in zip((8, 32, 128), busy, strict=False)}
    return Measurements(only(seconds), {"wait_s": only(wait or {}), "gpu_busy": shares}, figures)


def test_small_batches_have_either_verdict():
    slow, packed = (
        {"png, batch 8": 2.0, "lmdb:codec=lz4, batch 8": 1.5},
        "LMDB with lz4 is better than PNG, but",
    )
    holds = by_claim(small_batches, small_measured(slow, {"png, batch 8": 2.0}, wrong=3))
    assert list(holds.values()).count(INCONCLUSIVE) == 3  # what needs a GPU
    assert NOT_REPRODUCED not in holds.values()
    quick = {"png, batch 128": 3.0, "png, batch 8, 0 workers": 3.0}
    turned = small_measured(quick, {"png, batch 128": 3.0}, refuses=False, resizes=False)
    assert REPRODUCED not in by_claim(small_batches, turned).values()
    much = by_claim(small_batches, small_measured({"png, batch 8": 5.0}))
    assert next(verdict for claim, verdict in much.items() if claim.startswith(packed)) == NOT_REPRODUCED


@pytest.mark.parametrize(
    ("failure", "hung", "verdict"),
    [
        ("was killed by SIGSEGV", False, REPRODUCED),
        ("raised OSError: Caught OSError in DataLoader worker process 0.", False, REPRODUCED),
        ("sent no heartbeat for 9 s", True, REPRODUCED),
        ("was killed by SIGKILL", False, INCONCLUSIVE),
        ("raised RuntimeError: DataLoader worker exited unexpectedly", False, INCONCLUSIVE),
    ],
)
def test_only_failures_of_hdf5_itself_are_evidence_against_it(failure, hung, verdict):
    by_name = by_claim(small_batches, small_measured({}, failure=failure, hung=hung))
    assert by_name[FORKS] == verdict


def test_small_batches_have_either_verdict_with_a_gpu():
    name = small_batches.pinned_name

    def found(seconds, busy=()):
        measured = by_claim(small_batches, small_measured(seconds, cuda=True, busy=busy))
        return [verdict for claim, verdict in measured.items() if "GPU" in claim or "inned" in claim]

    helps = {name(64, 8, True): 2.0, name(64, 128, False): 2.0}
    assert found(helps, (0.3, 0.5, 0.8)) == [REPRODUCED] * 3
    hurts = {name(64, 8, False): 2.0, name(16, 128, False): 2.0}
    assert found(hurts, (0.8, 0.5, 0.3)) == [NOT_REPRODUCED] * 3
    assert found(helps, (0.0, 0.0, 0.0))[0] == NOT_REPRODUCED, "the GPU is as busy"
    assert found(helps)[0] == INCONCLUSIVE, "it is unknown how busy the GPU is"


def volume_measured(slices=1.0, small=1.0, beyond=0.1, cold_failure=None, limit_failure=None):
    """Return measurements of the study of volumes: 1 GiB/s, or multiples of it."""
    volumes = ["1e5", "1e7", "0.5 × limit", "2 × limit"]
    speeds, seconds = {}, {}
    for volume_ in (*volumes, "1e5, cold", "1e7, cold"):
        for label in (volume.BATCHES, volume.SLICES):
            speed = beyond if volume_.startswith("2") else small if volume_ == "1e5" else 1.0
            speeds[f"{label} at {volume_}"] = [speed * 2**30 * (1 + i / 1000) for i in range(5)]
            seconds[f"{label} at {volume_}"] = rounds(slices if label == volume.SLICES else 1.0)
    failures = {"cold_failure": cold_failure, "limit_failure": limit_failure}
    figures = {"sizes": volumes[:2], "limited": volumes[2:], "limited_data": "much", **failures}
    return Measurements(seconds, {"speed_bytes_per_s": speeds}, figures)


def test_volumes_have_either_verdict():
    assert verdicts(volume, volume_measured()) == [REPRODUCED] * 4
    assert verdicts(volume, volume_measured(slices=2, small=0.1, beyond=1)) == [NOT_REPRODUCED] * 4
    failed = volume_measured(cold_failure="tmpfs", limit_failure="not permitted")
    assert verdicts(volume, failed) == [REPRODUCED, INCONCLUSIVE, REPRODUCED, INCONCLUSIVE]


def result_of(study, figures, claim):
    (result,) = [one for one in study.STUDY.evaluate(figures) if one.claim.startswith(claim)]
    return result


def test_growth_is_compared_with_that_of_the_data_and_needs_long_epochs():
    seconds = {(2, 10): 1.0, (2, 70): 74.0}
    long_enough = result_of(settings, settings_measured(seconds), "Time grows")
    assert long_enough.verdict == REPRODUCED
    assert "with 100 times" in long_enough.evidence
    tiny = result_of(settings, settings_measured({row: s / 500 for row, s in seconds.items()}), "Time grows")
    assert tiny.verdict == INCONCLUSIVE
    assert tiny.values[-1] == {
        "contender": settings.label_at(settings.TABLE[2].on("cpu").label, 10),
        "epoch_s": 0.002,
    }


@pytest.mark.parametrize(("starting", "verdict"), [(0.05, REPRODUCED), (0.9, INCONCLUSIVE)])
def test_rounds_that_mostly_start_workers_are_inconclusive(starting, verdict):
    figures = settings_measured({(n, 70): 2.0 for n in (3, 4, 5, 6)})
    figures.metrics["first_batch_s"] = {
        f"{settings.TABLE[n].on('cpu').label}, at 70 %": [2.0 * starting] for n in (3, 4, 5, 6)
    }
    result = result_of(settings, figures, "Workers slow")
    assert result.verdict == verdict
    shares = [one["start_share"] for one in result.values if "start_share" in one]
    assert shares == ([pytest.approx(starting)] * 4 if verdict == INCONCLUSIVE else [])


@pytest.mark.parametrize(("batches", "verdict"), [(100, REPRODUCED), (8, INCONCLUSIVE)])
def test_prefetching_needs_more_batches_than_workers_prefetch(batches, verdict):
    seconds = {(3, 10): 1.0, (4, 10): 2.0, (6, 10): 1.0, (5, 10): 2.0}
    figures = settings_measured(seconds)
    figures.figures["batches"] = batches
    result = result_of(settings, figures, "With little data")
    assert result.verdict == verdict
    short = [one["batches"] for one in result.values if "prefetched_batches" in one]
    assert short == ([8, 8] if verdict == INCONCLUSIVE else [])


def test_short_epochs_are_inconclusive_about_small_batches():
    tiny = small_measured({"png, batch 8": 0.02, "png, batch 128": 0.01})
    assert result_of(small_batches, tiny, "An epoch").verdict == INCONCLUSIVE


def test_proportional_growth_needs_volumes_that_are_large_enough():
    figures = volume_measured(small=0.1)
    assert result_of(volume, figures, "Time grows").verdict == NOT_REPRODUCED
    figures.seconds[f"{volume.SLICES} at 1e5"] = rounds(0.001)
    assert result_of(volume, figures, "Time grows").verdict == INCONCLUSIVE


def test_background_load_is_a_warning():
    quiet, busy = BackgroundLoad(processors=0.01), BackgroundLoad(processors=0.6)
    for load, count in (([quiet] * 5, 0), ([quiet] * 3 + [busy] * 2, 1)):
        measured = Measurements({}, background=load)
        result = studies.StudyResult("x", "s", "a", measured, [], {"cpu": "Z80"}, "2026-01-01")
        assert len(result.warnings) == count
    (warning,) = result.warnings
    assert warning.kind == "background-cpu"
    assert warning.values == {"highest": 0.6, "affected": 2, "rounds": 5}


@pytest.fixture
def small(monkeypatch):
    """Reduce all sizes, so that studies take little time."""
    monkeypatch.setattr(tensordataset, "QUICK", 1000)
    monkeypatch.setattr(tensordataset, "BATCH", 100)
    monkeypatch.setattr(dataloader_indexing, "QUICK", 700)
    monkeypatch.setattr(iteration, "QUICK", 128 * 300)
    monkeypatch.setattr(preallocation, "ROWS", 10)
    for name, value in {"QUICK": 100, "QUICK_ROUNDS": 1, "QUICK_TOGETHER_EPOCHS": 1}.items():
        monkeypatch.setattr(settings, name, value)
    monkeypatch.setattr(small_batches, "QUICK", 16)
    monkeypatch.setattr(small_batches, "QUICK_BATCHES", (8, 16))
    monkeypatch.setattr(small_batches, "FORK_EPOCHS", 1)
    monkeypatch.setattr(small_batches, "interleave", partial(interleave, rounds=1))
    for name, value in {"QUICK": (2000, 4000), "QUICK_OF_LIMIT": (0.01, 0.02)}.items():
        monkeypatch.setattr(volume, name, value)


ONE_ROUND = ("settings", "small-batches")
IN_HERE = [name for name in studies.names() if name != "distributed-loading"]  # tests/ray_loader has that one


@pytest.mark.parametrize("name", IN_HERE)
def test_every_study_runs_and_has_a_verdict_on_each_claim(by_file, small, tmp_path, name):
    statuses = []
    result = studies.run(name, StudyOptions(tmp_path, quick=True, device="cpu", on_status=statuses.append))
    if name not in ONE_ROUND:  # these have one round here, so nothing is left to estimate
        assert any(": about " in text for text in statuses)
    assert any("(--quick" in one.sentence for one in result.claims)
    assert result.claims
    assert {one.verdict for one in result.claims} <= {REPRODUCED, NOT_REPRODUCED, INCONCLUSIVE}
    assert all(one.evidence and "\n" not in one.evidence for one in result.claims)
    assert result.measurements.figures.get("lazy_residency", 0.0) < 0.5, "the file is cold"
    studies.save(result, tmp_path)
    (loaded,), problems = studies.past(tmp_path)
    assert problems == []
    assert loaded.claims == result.claims
    assert loaded.measurements.seconds == result.measurements.seconds


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@pytest.mark.parametrize("name", ["iteration", "settings", "small-batches", "volume"])
def test_with_a_gpu_no_claim_lacks_one(by_file, small, tmp_path, name):
    result = studies.run(name, StudyOptions(tmp_path, quick=True, device="cuda:0"))
    assert "no GPU" not in {one.evidence for one in result.claims}
    if name in ONE_ROUND:
        assert min(min(values) for values in result.measurements.metrics["gpu_allocated_bytes"].values()) > 0


def test_the_newest_result_is_loaded_and_unreadable_files_are_reported(tmp_path):
    results = tmp_path / "results"
    results.mkdir()
    body = {**dict.fromkeys(("name", "source", "setup"), "x"), "machine": {"cpu": "Z80"}, "claims": []}
    body |= {"time": "2026-01-01", "measurements": {"seconds": {}, "figures": {}}}
    for number in (1, 2):
        text = json.dumps({**body, "time": f"2026-01-0{number}"})
        (results / f"x-{number}.study.json").write_text(text)
    empty = json.dumps({**body, "measurements": {"seconds": {"a": []}}})
    broken = {results / f"{n}.study.json": text for n, text in enumerate(("{", "{}", "[]", empty))}
    for path, text in broken.items():
        path.write_text(text)
    (newest,), problems = studies.past(tmp_path)
    assert newest.time == "2026-01-02"
    assert {(one.kind, one.path) for one in problems} == {("not-a-result", str(path)) for path in broken}
    assert len(problems) == len(broken)


def test_a_quick_result_is_loaded_only_if_there_is_no_other(tmp_path):
    for quick, time in ((False, "2026-01-01T00:00:00"), (True, "2026-01-02T00:00:00")):
        result = studies.StudyResult("x", "s", "a", Measurements({}), [], {"cpu": "Z80"}, time, quick=quick)
        studies.save(result, tmp_path)
    ((loaded,), _) = studies.past(tmp_path)
    assert not loaded.quick
    assert loaded.warnings == []
    (tmp_path / "results" / "x-20260101-000000.study.json").unlink()
    ((loaded,), _) = studies.past(tmp_path)
    assert loaded.quick
    assert [warning.kind for warning in loaded.warnings] == ["quick-sizes"]


@pytest.mark.parametrize("error", [PermissionError("not you"), ColdCacheUnavailable("a disk in memory")])
def test_measured_volumes_are_kept_if_the_memory_limit_fails(by_file, small, monkeypatch, tmp_path, error):
    def refuse(*arguments):
        raise error

    monkeypatch.setattr(volume, "memory_group" if isinstance(error, PermissionError) else "_limited", refuse)
    result = studies.run("volume", StudyOptions(tmp_path, quick=True, device="cpu"))
    assert result.claims[-1].verdict == INCONCLUSIVE
    assert str(error) in result.claims[-1].evidence or "iobench-" in result.claims[-1].evidence
    assert result.measurements.seconds


def test_studies_of_all_sizes_share_a_folder_and_leave_the_user_s_data_the_newest(
    small, monkeypatch, tmp_path
):
    mine = iobench.prepare(iobench.Synthetic(1280), ["npy"], data_dir=tmp_path, name="mine")[0]
    monkeypatch.setattr(iteration, "PUBLISHED", 128 * 400)
    for quick in (True, False):
        studies.run("iteration", StudyOptions(tmp_path, quick=quick, device="cpu"))
    assert iobench.find_dataset(tmp_path).name == mine.name


def test_folders_of_killed_studies_are_removed(tmp_path):
    options = StudyOptions(tmp_path, quick=True, device="cpu")
    child = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], stdout=subprocess.PIPE)
    stale = options.folder / f"scratch-{int(child.stdout)}-x"
    stale.mkdir(parents=True)
    with scratch(options) as one, scratch(options) as other:
        assert one != other
        assert one.is_dir()
        assert not stale.exists()
    assert list(options.folder.iterdir()) == []


def test_a_folder_that_cannot_be_created_is_one_error(small, inside, tmp_path):
    (tmp_path / "file").write_text("")
    done = inside("study", "tensordataset", "--quick", "--data-dir", tmp_path / "file", "--device", "cpu")
    assert complaint_kind(done, 1) == "prepare"
    assert f"{tmp_path / 'file' / 'studies'}: " in done.stderr


def test_the_command_lists_runs_and_feeds_the_report(small, inside, tmp_path):
    listed = inside("study", "list")
    assert [name in listed.stdout for name in studies.names()] == [True] * len(studies.names())
    assert len(json.loads(inside("study", "list", "--json").stdout)) == len(studies.names())
    done = inside("study", "tensordataset", "--quick", "--data-dir", tmp_path, "--device", "cpu")
    assert done.returncode == 0
    (result,), _ = studies.past(tmp_path)
    (calls, *_) = result.claims
    assert calls.verdict == REPRODUCED
    assert calls.sentence in done.stdout
    assert "quick-sizes" in re.findall(r"^warning\[(.+?)\]: ", done.stderr, re.M)
    page = tmp_path / "studies.html"
    assert inside("report", "--data-dir", tmp_path, "-o", page).returncode == 0
    text = page.read_text()
    assert calls.claim in text
    assert "quick sizes" in text
    for one in rounds_of([1000] * 5):
        record_file.append(tmp_path / "results" / "run.jsonl", one)
    page = tmp_path / "r.html"
    assert inside("report", "--data-dir", tmp_path, "-o", page).returncode == 0
    assert calls.claim in page.read_text()
    assert inside("study", "speed").returncode == 2


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_study_that_cannot_be_saved_is_shown(monkeypatch, tmp_path, inside, more):
    shown = studies.StudyResult("volume", "s", "a", Measurements({}), [], {}, "2026-01-01T00:00:00+00:00")
    monkeypatch.setattr(studies, "run", lambda *_: shown)
    (tmp_path / "results").touch()
    done = inside("study", "volume", "--data-dir", tmp_path, *more)
    assert done.stdout
    assert complaint_kind(done) == "not-writable"
