"""Published claims, answered by figures either way."""

import json
import re
import subprocess
import sys
from functools import partial

import pytest
import torch
from conftest import complaint
from record_cases import rounds_of

import iobench
from iobench import studies
from iobench.base.errors import (
    ColdCacheUnavailable,
    InvalidSettings,
    RecordError,
)
from iobench.results import record
from iobench.results.parts import OthersPart
from iobench.studies import (
    Measurements,
    StudyOptions,
    _patches,
    iteration,
    preallocation,
    settings,
    small_batches,
    tensordataset,
    volume,
)
from iobench.studies._base import FAILS, HOLDS, UNKNOWN, Answer, Reference, scratch
from iobench.studies._claims import all_of, claimed_equal, claimed_faster
from iobench.studies._turns import Turn, interleave, timed


def rounds(seconds, spread=0.001):
    return [seconds * (1 + spread * step) for step in (-2, -1, 0, 1, 2)]


def found(figures=None, **seconds):
    named = {name.replace("_", " "): rounds(value) for name, value in seconds.items()}
    return Measurements(named, figures=figures or {})


@pytest.mark.parametrize(
    ("one", "other", "faster", "equal"),
    [(1.0, 2.0, HOLDS, FAILS), (2.0, 1.0, FAILS, FAILS), (1.0, 1.01, FAILS, HOLDS)],
)
def test_a_claim_holds_or_does_not(one, other, faster, equal):
    figures = found(one=one, other=other)
    assert claimed_faster("c", figures, "one", "other").answer == faster
    assert claimed_equal("c", figures, "one", "other").answer == equal


def test_rounds_that_scatter_answer_nothing():
    wide = Measurements({"one": [1, 2, 3, 4, 5], "other": [1.5, 2.2, 2.9, 4.1, 6]})
    for claimed in (claimed_faster, claimed_equal):
        answer = claimed("c", wide, "one", "other")
        assert answer.answer == UNKNOWN
        assert "95 % interval" in answer.because


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        ([HOLDS, HOLDS], HOLDS),
        ([HOLDS, UNKNOWN], UNKNOWN),
        ([UNKNOWN, FAILS], FAILS),
        ([HOLDS, FAILS], FAILS),
    ],
)
def test_a_claim_with_parts_is_no_better_than_the_worst(parts, whole):
    assert all_of("c", [Answer("", part, "why") for part in parts]) == Answer("c", whole, "why; why")


def test_contenders_take_turns_in_changing_order_and_warm_up_rounds_do_not_count():
    log = []
    contenders = {name: timed(lambda name=name: log.append(name)) for name in "ab"}
    found = interleave(contenders, rounds=8, warmup=1)
    cycles = list(zip(log[::2], log[1::2], strict=True))
    assert len(cycles) == 9
    assert set(cycles) == {("a", "b"), ("b", "a")}
    assert [len(values) for values in found.seconds.values()] == [8, 8]


def test_what_a_contender_notes_is_kept_by_figure_and_round():
    memory = iter([9, 1, 2, 3])
    noting = {"a": lambda: Turn(1.0, {"memory_bytes": next(memory)}), "b": lambda: Turn(2.0)}
    found = interleave(noting, rounds=3, warmup=1)
    assert found.noted == {"memory_bytes": {"a": [1, 2, 3]}}
    assert found.median("memory_bytes", "a") == 2
    assert found.median("memory_bytes", "b") is None
    assert [row[-1] for row in found.table()] == ["memory", "2 B", "–"]


@pytest.mark.parametrize(
    ("warmup", "told"),
    [(1, ["2 contenders × 3 rounds: about "]), (0, ["2 contenders × 2 more rounds: about "])],
)
def test_how_long_it_takes_is_told_once_the_first_round_has_shown_it(warmup, told):
    log = []
    contenders = {name: timed(lambda: log.append("turn")) for name in "ab"}
    interleave(contenders, rounds=3, warmup=warmup, on_status=log.append)
    assert [re.sub(r"about .*", "about ", said) for said in log if said != "turn"] == told
    assert log.index(next(said for said in log if said != "turn")) == 2  # after one round of both


@pytest.mark.parametrize("claimed", [claimed_faster, claimed_equal])
@pytest.mark.parametrize("pair", [("one", "other"), ("other", "one")])
def test_the_faster_one_is_told_first_whichever_was_claimed_to_be(claimed, pair):
    told = claimed("c", Measurements({"one": rounds(12, 0.05), "other": rounds(1, 0.05)}), *pair).because
    sentence = r"other \(1.00 s\) is 12.0 × as fast \(95 % interval (.+) to (.+)\) as one \(12.0 s\)"
    low, high = map(float, re.fullmatch(sentence, told).groups())
    assert 9 < low < 12 < high < 15


def test_an_answer_names_the_data_and_whether_they_were_of_quick_sizes():
    timed_data = Measurements({"a": rounds(1), "b": rounds(2)}, data="10 samples of 4 B")
    answer = all_of("c", [claimed_faster("", timed_data, "a", "b")] * 2)
    assert answer.in_full(quick=False).sentence == "holds here, measured on 10 samples of 4 B: c"
    quick = answer.in_full(quick=True).sentence
    assert quick == "holds here, measured on 10 samples of 4 B (--quick sizes): c"
    untimed = Answer("c", UNKNOWN, "no GPU")
    assert untimed.in_full(quick=True) == untimed


def test_a_reference_says_what_is_known_of_it_and_what_is_not():
    assert str(Reference("T", "an author", 2019)) == "“T”, an author, 2019"
    assert Reference("T", "an author", 2019).unknown == "its address is not known here"
    assert Reference("T", "an author").unknown == "its year and address are not known here"
    assert Reference("T", "an author", 2019, "a library").unknown == ""


def answers(study, figures):
    return [answer.answer for answer in study.STUDY.answers(figures)]


def test_the_exhibit_is_answered_both_ways():
    by_sample, by_batch = tensordataset.BY_SAMPLE, tensordataset.BY_BATCH
    slow = {by_sample: rounds(5), by_batch: rounds(1)}
    figures = {"calls": 100, "rows": 100, "shares": {"__getitem__": [0.7, 0.6], "collate": [0.2, 0.3]}}
    assert answers(tensordataset, Measurements(slow, figures=figures)) == [HOLDS] * 4
    other = {"calls": 1, "rows": 100, "shares": {"__getitem__": [0.2, 0.3], "collate": [0.01, 0.02]}}
    assert (
        answers(tensordataset, Measurements({by_sample: rounds(1), by_batch: rounds(5)}, figures=other))
        == [FAILS] * 4
    )
    swinging = {**figures, "shares": {"__getitem__": [0.49, 0.63], "collate": [0.09, 0.4]}}
    assert answers(tensordataset, Measurements(slow, figures=swinging)) == [HOLDS, UNKNOWN, UNKNOWN, HOLDS]


def only(seconds, default=1.0):
    """Rounds of whatever contender is asked for: those named take so many seconds, the others alike."""

    class Rounds(dict):
        def __missing__(self, name):
            return rounds(next((s for part, s in seconds.items() if part == name), default))

    return Rounds()


def pieces(few, many):
    """Seconds of each way at 2 and 32 pieces, those of torch.cat being 1."""
    names = (preallocation.CAT, preallocation.TD_CAT, preallocation.FILL)
    seconds = {f"{name}, 2 pieces": rounds(value) for name, value in zip(names, few, strict=True)}
    seconds |= {f"{name}, 8 pieces": rounds(1) for name in names}
    seconds |= {f"{name}, 32 pieces": rounds(value) for name, value in zip(names, many, strict=True)}
    return Measurements(seconds, figures={"counts": [2, 8, 32]})


def test_preallocation_is_answered_both_ways():
    assert answers(preallocation, pieces(few=(1, 1, 1), many=(1, 1, 0.5))) == [HOLDS, HOLDS, HOLDS]
    assert answers(preallocation, pieces(few=(1, 1, 0.5), many=(1, 2, 1.5))) == [FAILS, FAILS, FAILS]
    (wins, *_) = preallocation.STUDY.answers(pieces(few=(1, 1, 1), many=(1, 1, 0.5)))
    assert "faster with 32 pieces than torch.cat," in wins.because
    assert "faster with no number of pieces tried than torch.cat, piece by piece" in wins.because


def test_iteration_is_answered_both_ways():
    names = (iteration.DATASET, iteration.BATCHED, iteration.SLICED, iteration.FILLED, iteration.BUILT)
    alike = {name: rounds(1) for name in (*names, iteration.LAZY)}
    assert answers(iteration, Measurements(alike, figures={"lazy_residency": 1.0})) == [
        HOLDS,
        HOLDS,
        HOLDS,
        HOLDS,
        UNKNOWN,
    ]
    apart = {name: rounds(2**number) for number, name in enumerate((*names, iteration.LAZY))}
    assert answers(iteration, Measurements(apart, figures={"lazy_residency": 0.0})) == [FAILS] * 4 + [UNKNOWN]
    on_gpu = {**alike, iteration.GPU_DATASET: rounds(1), iteration.GPU_SLICED: rounds(1)}
    assert answers(iteration, Measurements(on_gpu, figures={"lazy_residency": 0.0}))[-1] == HOLDS


def settings_found(seconds, cuda=False, failure=None, allocated=None, hung=False):
    """What the study of settings would have found: seconds by row of the table and share."""
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
    return {one.claim.partition(" (")[0].rstrip("."): one.answer for one in study.STUDY.answers(figures)}


def test_settings_are_answered_both_ways_without_a_gpu():
    slow = {(2, 10): 0.1, **{(n, 70): 2 + n % 3 for n in (3, 4)}, (5, 70): 1.5, (6, 70): 1.2, (7, 70): 0.5}
    slow |= {(3, 10): 1.0, (4, 10): 2.0, (6, 10): 1.0, (5, 10): 2.0}
    holds = by_claim(settings, settings_found(slow, failure="gave no sign of life for 9 s", hung=True))
    assert [answer for claim, answer in holds.items() if "GPU" in claim] == [UNKNOWN] * 2
    assert list(holds.values()).count(UNKNOWN) == 4
    assert FAILS not in holds.values()
    other = {(2, 10): 3.0, **{(n, 70): 0.5 for n in (3, 4, 5, 6)}, (7, 70): 2.0, (4, 10): 0.5}
    fails = by_claim(settings, settings_found(other))
    assert fails["The background generator deadlocks together with workers"] == FAILS
    assert list(fails.values()).count(FAILS) == 6


def test_a_process_that_dies_of_something_else_proves_no_deadlock():
    died = by_claim(settings, settings_found({}, failure="was killed by SIGSEGV"))
    assert died["The background generator deadlocks together with workers"] == UNKNOWN


def test_settings_are_answered_both_ways_with_a_gpu():
    seconds = {(11, 70): 0.5, (8, 70): 1.0, (9, 70): 2.0, (1, 10): 1.0, (10, 10): 2.0, (2, 10): 1.5}
    seconds |= {(1, 70): 3.0, (10, 70): 3.0, (2, 70): 2.0}
    same = dict.fromkeys(range(1, 11), (100, 100))
    holds = by_claim(settings, settings_found(seconds, True, allocated={**same, 11: (110, 1100)}))
    assert [answer for claim, answer in holds.items() if _of_copying(claim)] == [HOLDS] * 4
    turned = {
        (11, 70): 2.0,
        (8, 70): 2.0,
        (9, 70): 1.0,
        (2, 70): 1.0,
        (1, 70): 0.5,
        (10, 70): 1.0,
        (1, 10): 2.0,
    }
    fails = by_claim(
        settings, settings_found(turned, True, allocated={**same, 3: (100, 400), 11: (110, 1100)})
    )
    assert [answer for claim, answer in fails.items() if _of_copying(claim)] == [FAILS] * 4


def _of_copying(claim):
    return "GPU" in claim or "Pinned" in claim or "not block" in claim


def small_found(seconds, wait=None, cuda=False, wrong=0, failure=None, hung=False, busy=(), **libraries):
    """What the study of small batches would have found."""
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


def test_small_batches_are_answered_both_ways():
    slow, packed = (
        {"png, batch 8": 2.0, "lmdb:codec=lz4, batch 8": 1.5},
        "LMDB with lz4 is better than PNG, but",
    )
    holds = by_claim(small_batches, small_found(slow, {"png, batch 8": 2.0}, wrong=3))
    assert list(holds.values()).count(UNKNOWN) == 3  # what needs a GPU
    assert FAILS not in holds.values()
    quick = {"png, batch 128": 3.0, "png, batch 8, 0 workers": 3.0}
    turned = small_found(quick, {"png, batch 128": 3.0}, refuses=False, resizes=False)
    assert HOLDS not in by_claim(small_batches, turned).values()
    much = by_claim(small_batches, small_found({"png, batch 8": 5.0}))
    assert next(answer for claim, answer in much.items() if claim.startswith(packed)) == FAILS


@pytest.mark.parametrize(
    ("failure", "hung", "answer"),
    [
        ("was killed by SIGSEGV", False, HOLDS),
        ("raised OSError: Caught OSError in DataLoader worker process 0.", False, HOLDS),
        ("gave no sign of life for 9 s", True, HOLDS),
        ("was killed by SIGKILL", False, UNKNOWN),
        ("raised RuntimeError: DataLoader worker exited unexpectedly", False, UNKNOWN),
    ],
)
def test_only_what_hdf5_does_to_forks_is_held_against_it(failure, hung, answer):
    found = by_claim(small_batches, small_found({}, failure=failure, hung=hung))
    assert found["HDF5 is vulnerable when read in parallel"] == answer


def test_small_batches_are_answered_both_ways_with_a_gpu():
    name = _patches.pinned_name
    helps = {name(64, 8, True): 2.0, name(64, 128, False): 2.0}
    holds = by_claim(small_batches, small_found(helps, cuda=True, busy=(0.3, 0.5, 0.8)))
    assert [answer for claim, answer in holds.items() if "inned" in claim or "GPU" in claim] == [HOLDS] * 3
    hurts = {name(64, 8, False): 2.0, name(16, 128, False): 2.0}
    fails = by_claim(small_batches, small_found(hurts, cuda=True, busy=(0.8, 0.5, 0.3)))
    assert [answer for claim, answer in fails.items() if "inned" in claim or "GPU" in claim] == [FAILS] * 3
    alike = by_claim(small_batches, small_found(helps, cuda=True, busy=(0.0, 0.0, 0.0)))
    assert next(answer for claim, answer in alike.items() if "GPU" in claim) == FAILS
    untold = by_claim(small_batches, small_found(helps, cuda=True))
    assert next(answer for claim, answer in untold.items() if "GPU" in claim) == UNKNOWN


def volume_found(slices=1.0, small=1.0, beyond=0.1, cold_failure=None, limit_failure=None):
    """What the study of volumes would have found: 1 GiB/s, or so many times that."""
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


def test_volumes_are_answered_both_ways():
    assert answers(volume, volume_found()) == [HOLDS] * 4
    assert answers(volume, volume_found(slices=2, small=0.1, beyond=1)) == [FAILS] * 4
    untold = volume_found(cold_failure="tmpfs", limit_failure="not permitted")
    assert answers(volume, untold) == [HOLDS, UNKNOWN, HOLDS, UNKNOWN]


def told(study, figures, claim):
    (answer,) = [one for one in study.STUDY.answers(figures) if one.claim.startswith(claim)]
    return answer


def test_growth_is_told_beside_that_of_the_data_and_not_where_an_epoch_is_all_beginning():
    seconds = {(2, 10): 1.0, (2, 70): 74.0}
    long_enough = told(settings, settings_found(seconds), "Time grows")
    assert long_enough.answer == HOLDS
    assert long_enough.because.endswith("with 100 times as much data for the latter")
    tiny = told(settings, settings_found({row: s / 500 for row, s in seconds.items()}), "Time grows")
    assert tiny.answer == UNKNOWN
    assert tiny.because.startswith(
        "the data are too small to tell: an epoch of nothing set, at 10 % takes 2.00 ms"
    )


@pytest.mark.parametrize(("starting", "called"), [(0.05, HOLDS), (0.9, UNKNOWN)])
def test_workers_that_are_mostly_started_slow_nothing_down(starting, called):
    figures = settings_found({(n, 70): 2.0 for n in (3, 4, 5, 6)})
    figures.noted["first_batch_s"] = {
        f"{settings.TABLE[n].on('cpu').label}, at 70 %": [2.0 * starting] for n in (3, 4, 5, 6)
    }
    answer = told(settings, figures, "Workers slow training down")
    assert answer.answer == called
    assert ("of its epochs to start its workers" in answer.because) == (called == UNKNOWN)


@pytest.mark.parametrize(("batches", "called"), [(100, HOLDS), (8, UNKNOWN)])
def test_prefetching_needs_more_batches_than_workers_are_ahead_by(batches, called):
    seconds = {(3, 10): 1.0, (4, 10): 2.0, (6, 10): 1.0, (5, 10): 2.0}
    figures = settings_found(seconds)
    figures.figures["batches"] = batches
    answer = told(settings, figures, "With little data")
    assert answer.answer == called
    assert ("an epoch has 8 batches" in answer.because) == (called == UNKNOWN)


def test_short_epochs_answer_no_claim_about_loaders():
    short = {name: rounds(0.01) for name in (iteration.DATASET, iteration.BATCHED, iteration.SLICED)}
    short |= {name: rounds(0.01) for name in (iteration.FILLED, iteration.BUILT, iteration.LAZY)}
    found = answers(iteration, Measurements(short, figures={"lazy_residency": 0.0}))
    assert found == [UNKNOWN, UNKNOWN, FAILS, UNKNOWN, UNKNOWN]  # what was read needs no clock
    remedy = {tensordataset.BY_SAMPLE: rounds(0.04), tensordataset.BY_BATCH: rounds(0.001)}
    shares = {"calls": 100, "rows": 100, "shares": {"__getitem__": [0.7, 0.6], "collate": [0.2, 0.3]}}
    assert answers(tensordataset, Measurements(remedy, figures=shares))[-1] == UNKNOWN
    tiny = small_found({"png, batch 8": 0.02, "png, batch 128": 0.01})
    assert told(small_batches, tiny, "An epoch with a larger batch").answer == UNKNOWN


def test_one_volume_does_not_speak_for_all_where_the_others_are_too_small():
    figures = volume_found(small=0.1)
    assert told(volume, figures, "Time grows in proportion").answer == FAILS
    figures.seconds[f"{volume.SLICES} at 1e5"] = rounds(0.001)
    assert told(volume, figures, "Time grows in proportion").answer == UNKNOWN


def test_what_others_did_during_the_turns_is_a_warning():
    quiet, busy = OthersPart(processors=0.01), OthersPart(processors=0.6)
    for others, count in (([quiet] * 5, 0), ([quiet] * 3 + [busy] * 2, 1)):
        found = Measurements({}, others=others)
        result = studies.Result("x", "s", "a", found, [], {"cpu": "Z80"}, "2026-01-01")
        assert len(result.warnings) == count
    assert "other processes used up to 60% of the processors during 2 of 5 turns" in result.warnings[0]


@pytest.fixture
def small(monkeypatch):
    """Studies so small that they take no time."""
    monkeypatch.setattr(tensordataset, "QUICK", 1000)
    monkeypatch.setattr(tensordataset, "BATCH", 100)
    monkeypatch.setattr(iteration, "QUICK", 128 * 300)
    monkeypatch.setattr(preallocation, "ROWS", 10)
    for name, value in {"QUICK": 100, "QUICK_TURNS": 1, "QUICK_TOGETHER_EPOCHS": 1}.items():
        monkeypatch.setattr(settings, name, value)
    monkeypatch.setattr(_patches, "QUICK", 16)
    monkeypatch.setattr(_patches, "QUICK_BATCHES", (8, 16))
    monkeypatch.setattr(small_batches, "FORK_EPOCHS", 1)
    monkeypatch.setattr(small_batches, "interleave", partial(interleave, rounds=1))
    for name, value in {"QUICK": (2000, 4000), "QUICK_OF_LIMIT": (0.01, 0.02)}.items():
        monkeypatch.setattr(volume, name, value)


IN_HERE = [name for name in studies.names() if name != "distributed-loading"]  # which tests/ray_loader runs


@pytest.mark.parametrize("name", IN_HERE)
def test_every_study_runs_and_answers_each_claim(by_file, small, tmp_path, name):
    told = []
    result = studies.run(name, StudyOptions(tmp_path, quick=True, device="cpu", on_status=told.append))
    if name not in ("settings", "small-batches"):  # here of one round, after which nothing is left
        assert any(" rounds: about " in text for text in told)
    assert any("(--quick sizes): " in answer.sentence for answer in result.answers)
    assert result.answers
    assert {answer.answer for answer in result.answers} <= {HOLDS, FAILS, UNKNOWN}
    assert all(answer.because and "\n" not in answer.because for answer in result.answers)
    studies.save(result, tmp_path)
    (kept,), problems = studies.past(tmp_path)
    assert problems == []
    assert kept.answers == result.answers
    assert kept.found.seconds == result.found.seconds


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@pytest.mark.parametrize("name", ["iteration", "settings", "small-batches", "volume"])
def test_with_a_gpu_no_claim_wants_for_one(by_file, small, tmp_path, name):
    result = studies.run(name, StudyOptions(tmp_path, quick=True, device="cuda:0"))
    assert "no GPU" not in {answer.because for answer in result.answers}
    if name in ("settings", "small-batches"):
        assert min(min(values) for values in result.found.noted["gpu_allocated_bytes"].values()) > 0


def test_a_lazy_loop_over_a_cold_file_reads_next_to_nothing(by_file, small, tmp_path):
    result = studies.run("iteration", StudyOptions(tmp_path, quick=True, device="cpu"))
    assert result.found.figures["lazy_residency"] < 0.5


def test_of_several_results_the_newest_counts_and_what_is_none_is_named(tmp_path):
    results = tmp_path / "results"
    results.mkdir()
    body = {
        "name": "x",
        "source": "s",
        "about": "a",
        "time": "2026-01-01",
        "machine": {"cpu": "Z80"},
        "found": {"seconds": {}, "figures": {}},
        "answers": [],
    }
    for number in (1, 2):
        text = json.dumps({**body, "time": f"2026-01-0{number}"})
        (results / f"x-{number}.study.json").write_text(text)
    for name, text in (
        ("broken", "{"),
        ("other", "{}"),
        ("list", "[]"),
        ("empty", json.dumps({**body, "found": {"seconds": {"a": []}}})),
    ):
        (results / f"{name}.study.json").write_text(text)
    (found,), problems = studies.past(tmp_path)
    assert found.time == "2026-01-02"
    assert len(problems) == 4


def test_quick_answers_give_way_to_others(tmp_path):
    for quick, time in ((False, "2026-01-01T00:00:00"), (True, "2026-01-02T00:00:00")):
        result = studies.Result("x", "s", "a", Measurements({}), [], {"cpu": "Z80"}, time, quick=quick)
        studies.save(result, tmp_path)
    ((kept,), _) = studies.past(tmp_path)
    assert not kept.quick
    assert kept.warnings == []
    (tmp_path / "results" / "x-20260101-000000.study.json").unlink()
    ((kept,), _) = studies.past(tmp_path)
    assert kept.quick
    assert kept.warnings


def test_an_unknown_study_is_refused_with_the_names():
    with pytest.raises(
        InvalidSettings, match="unknown study 'speed'; known: distributed-loading, iteration, preallocation"
    ):
        studies.study_of("speed")


def test_a_result_that_cannot_be_kept_is_an_error(tmp_path):
    (tmp_path / "results").write_text("")
    result = studies.Result("x", "s", "a", Measurements({}), [], {}, "2026-01-01T00:00:00+00:00")
    with pytest.raises(RecordError, match="cannot be written"):
        studies.save(result, tmp_path)


@pytest.mark.parametrize("error", [PermissionError("not you"), ColdCacheUnavailable("a disk in memory")])
def test_volumes_that_were_measured_are_kept_where_the_limit_fails(
    by_file, small, monkeypatch, tmp_path, error
):
    def refuse(*arguments):
        raise error

    monkeypatch.setattr(volume, "memory_group" if isinstance(error, PermissionError) else "_limited", refuse)
    result = studies.run("volume", StudyOptions(tmp_path, quick=True, device="cpu"))
    assert result.answers[-1].answer == UNKNOWN
    assert str(error) in result.answers[-1].because or "iobench-" in result.answers[-1].because
    assert result.found.seconds


def test_a_quick_study_and_a_whole_one_share_a_folder_and_leave_the_user_s_data_the_newest(
    small, monkeypatch, tmp_path
):
    mine = iobench.prepare(iobench.Synthetic(1280), ["npy"], data_dir=tmp_path, name="mine")[0]
    monkeypatch.setattr(iteration, "PUBLISHED", 128 * 400)
    for quick in (True, False):
        studies.run("iteration", StudyOptions(tmp_path, quick=quick, device="cpu"))
    assert iobench.find_dataset(tmp_path).name == mine.name


def test_what_a_study_that_was_killed_left_behind_goes(tmp_path):
    options = StudyOptions(tmp_path, quick=True, device="cpu")
    child = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], stdout=subprocess.PIPE)
    left = options.folder / f"scratch-{int(child.stdout)}-x"
    left.mkdir(parents=True)
    with scratch(options) as one, scratch(options) as other:
        assert one != other
        assert one.is_dir()
        assert not left.exists()
    assert list(options.folder.iterdir()) == []


def test_a_folder_that_refuses_is_one_line(small, inside, tmp_path):
    (tmp_path / "file").write_text("")
    done = inside("study", "tensordataset", "--quick", "--data-dir", tmp_path / "file", "--device", "cpu")
    assert "file/studies: Not a directory" in complaint(done, 1)


def test_the_command_lists_runs_and_feeds_the_report(small, inside, tmp_path):
    listed = inside("study", "list")
    assert [name in listed.stdout for name in studies.names()] == [True] * len(studies.names())
    assert len(json.loads(inside("study", "list", "--json").stdout)) == len(studies.names())
    done = inside("study", "tensordataset", "--quick", "--data-dir", tmp_path, "--device", "cpu")
    assert done.returncode == 0
    assert f"{HOLDS}: An epoch calls __getitem__ once for each sample." in done.stdout
    assert "warning: quick sizes" in done.stderr
    page = tmp_path / "studies.html"
    assert inside("report", "--data-dir", tmp_path, "-o", page).returncode == 0
    assert "tensordataset, quick sizes" in page.read_text()
    for one in rounds_of([1000] * 5):
        record.append(tmp_path / "results" / "run.jsonl", one)
    page = tmp_path / "r.html"
    assert inside("report", "--data-dir", tmp_path, "-o", page).returncode == 0
    assert "An epoch calls __getitem__ once for each sample." in page.read_text()
    assert inside("study", "speed").returncode == 2
