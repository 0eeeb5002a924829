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


@pytest.mark.parametrize(
    ("reference", "shown", "unknown"),
    [
        (Reference("T", "author", 2019), "“T”, author, 2019", "address"),
        (Reference("T", "author"), "“T”, author", "year and address"),
        (Reference("T", "author", 2019, "a library"), "“T”, author, 2019, a library", ""),
    ],
)
def test_a_reference_names_known_and_unknown_fields(reference, shown, unknown):
    assert (str(reference), reference.unknown) == (shown, unknown)


LETTERS = {REPRODUCED: "r", NOT_REPRODUCED: "n", INCONCLUSIVE: "i"}


def verdicts(study, measured):
    """Return the verdicts on a study's claims, a letter for each."""
    return "".join(LETTERS[result.verdict] for result in study.STUDY.evaluate(measured))


def tensors(by_sample_s, by_batch_s, own, collate, calls=100):
    seconds = {tensordataset.BY_SAMPLE: rounds(by_sample_s), tensordataset.BY_BATCH: rounds(by_batch_s)}
    figures = {"calls": calls, "rows": 100, "shares": {"__getitem__": own, "collate": collate}}
    return Measurements(seconds, figures=figures)


def indexing(by_sample, tuned, indexed, remedies, spread=0.001):
    one = dataloader_indexing
    seconds = dict.fromkeys((one.BY_BATCHES, one.BY_GETITEMS, *one.FROM_FILE), rounds(remedies))
    seconds |= {one.TUNED: rounds(tuned, spread), one.INDEXED: rounds(indexed, spread)}
    return Measurements({**seconds, one.BY_SAMPLE: rounds(by_sample)})


def pieces(few, many):
    """Return rounds of each method with 2, 8 and 32 pieces; torch.cat takes 1 s."""
    names, by_count = (preallocation.CAT, preallocation.TD_CAT, preallocation.FILL), {2: few, 32: many}
    seconds = {
        f"{name}, {count} pieces": rounds(by_count.get(count, (1, 1, 1))[place])
        for count in (2, 8, 32)
        for place, name in enumerate(names)
    }
    return Measurements(seconds, figures={"counts": [2, 8, 32]})


ITERATED = (iteration.DATASET, iteration.BATCHED, iteration.SLICED, iteration.FILLED, iteration.BUILT)


def iterated(*seconds, resident=0.0, gpu=False):
    names = (*ITERATED, iteration.LAZY, *((iteration.GPU_DATASET, iteration.GPU_SLICED) if gpu else ()))
    given = {name: rounds(seconds[n % len(seconds)]) for n, name in enumerate(names)}
    return Measurements(given, figures={"lazy_residency": resident, "gpu": gpu})


def only(seconds, default=1.0):
    """Return rounds of any contender: the named ones take these seconds, all others the default."""

    class Rounds(dict):
        def __missing__(self, name):
            return rounds(seconds.get(name, default))

    return Rounds()


def row(number, share, cuda=False):
    """Return the contender of a row of the table of settings at a share of the data."""
    return settings.label_at(settings.TABLE[number].on("cuda" if cuda else "cpu").label, share)


def set_to(seconds, cuda=False, failure=None, grown=None, hung=False, **figures):
    """Return measurements of the study of settings: seconds by row of the table and share."""
    both = {"epochs": 5, "seconds": None if failure else 1.0, "failure": failure, "hung": hung}
    figures |= {"gpu": cuda, "data_bytes": {"10": 10, "40": 40, "70": 1000}, "both": both}
    peaks = {row(11, 10, cuda): [110], row(11, 70, cuda): [1100]}
    for number in range(1, 11):
        peaks |= {row(number, 10, cuda): [100], row(number, 70, cuda): [100 + (grown or {}).get(number, 0)]}
    named = {row(*place, cuda): value for place, value in seconds.items()}
    return Measurements(only(named), {"gpu_allocated_bytes": peaks}, figures)


def small_batch(seconds, wait=None, cuda=False, wrong=0, failure=None, hung=False, busy=(), **libraries):
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


def volumes(slices=1.0, small=1.0, beyond=0.1, cold_failure=None, limit_failure=None, shortest=1.0):
    """Return measurements of the study of volumes: 1 GiB/s, or multiples of it."""
    named = ["1e5", "1e7", "0.5 × limit", "2 × limit"]
    speeds, seconds = {}, {}
    for name in (*named, "1e5, cold", "1e7, cold"):
        for label in (volume.BATCHES, volume.SLICES):
            speed = beyond if name.startswith("2") else small if name == "1e5" else 1.0
            speeds[f"{label} at {name}"] = [speed * 2**30 * (1 + i / 1000) for i in range(5)]
            seconds[f"{label} at {name}"] = rounds(slices if label == volume.SLICES else 1.0)
    seconds[f"{volume.SLICES} at 1e5"] = rounds(slices * shortest)
    failures = {"cold_failure": cold_failure, "limit_failure": limit_failure}
    figures = {"sizes": named[:2], "limited": named[2:], "limited_data": "much", **failures}
    return Measurements(seconds, {"speed_bytes_per_s": speeds}, figures)


SLOW_WORKERS = {
    **{(2, 10): 0.1, (3, 70): 2, (4, 70): 3, (5, 70): 1.5, (6, 70): 1.2, (7, 70): 0.5},
    **{(3, 10): 1.0, (4, 10): 2.0, (6, 10): 1.0, (5, 10): 2.0},
}
QUICK_WORKERS = {(2, 10): 3.0, **{(n, 70): 0.5 for n in (3, 4, 5, 6)}, (7, 70): 2.0, (4, 10): 0.5}
ON_GPU = {
    **{(11, 70): 0.5, (8, 70): 1.0, (9, 70): 2.0, (1, 10): 1.0, (10, 10): 2.0, (2, 10): 1.5},
    **{(1, 70): 3.0, (10, 70): 3.0, (2, 70): 2.0},
}
NOT_ON_GPU = {(11, 70): 2.0, (8, 70): 2.0, (9, 70): 1.0, (1, 70): 0.5, (1, 10): 2.0}
SLOW_SMALL, SLOW_LARGE = {"png, batch 8": 2.0, "lmdb:codec=lz4, batch 8": 1.5}, {"png, batch 128": 3.0}
pinned = small_batches.pinned_name
PINNED_HELPS = {pinned(64, 8, True): 2.0, pinned(64, 128, False): 2.0}
PINNED_HURTS = {pinned(64, 8, False): 2.0, pinned(16, 128, False): 2.0}


@pytest.mark.parametrize(
    ("study", "measured", "expected"),
    [
        (tensordataset, tensors(5, 1, [0.7, 0.6], [0.2, 0.3]), "rrrr"),
        (tensordataset, tensors(1, 5, [0.2, 0.3], [0.01, 0.02], calls=1), "nnnn"),
        (tensordataset, tensors(5, 1, [0.49, 0.63], [0.09, 0.4]), "riir"),  # shares that swing
        (tensordataset, tensors(0.04, 0.001, [0.7, 0.6], [0.2, 0.3]), "rrri"),  # too short epochs
        (dataloader_indexing, indexing(40, 36, 1, 2), "rrrr"),
        (dataloader_indexing, indexing(5, 1, 1, 6), "nnnn"),
        (dataloader_indexing, indexing(40, 20, 4, 2, spread=0.1), "iirr"),
        (preallocation, pieces(few=(1, 1, 1), many=(1, 1, 0.5)), "rrr"),
        (preallocation, pieces(few=(1, 1, 0.5), many=(1, 2, 1.5)), "nnn"),
        (iteration, iterated(1, resident=1.0), "rrrri"),
        (iteration, iterated(1, 2, 4, 8, 16, 32), "nnnni"),
        (iteration, iterated(1, gpu=True), "rrnrr"),
        (iteration, iterated(0.01), "iinii"),  # residency needs no clock
        (settings, set_to(SLOW_WORKERS, failure="sent no heartbeat for 9 s", hung=True), "riiiirrrrrr"),
        (settings, set_to(QUICK_WORKERS), "niiiinnnnnr"),
        (settings, set_to({}, failure="was killed by SIGSEGV"), "niiiinnnnir"),  # no evidence of a deadlock
        (settings, set_to(ON_GPU, cuda=True), "rrrrrnnnrnn"),
        (settings, set_to(NOT_ON_GPU, cuda=True, grown={3: 300}), "nnnnnnnnnnr"),
        (small_batches, small_batch(SLOW_SMALL, {"png, batch 8": 2.0}, wrong=3), "rrrriiirrr"),
        (
            small_batches,
            small_batch(
                {**SLOW_LARGE, "png, batch 8, 0 workers": 3.0}, SLOW_LARGE, refuses=False, resizes=False
            ),
            "nnnniiinnn",
        ),
        (small_batches, small_batch({"png, batch 8": 5.0}), "rnrniiinrr"),  # LMDB is much better
        (
            small_batches,
            small_batch({"png, batch 8": 0.02, "png, batch 128": 0.01}),
            "innniiinrr",
        ),  # too short epochs
        (small_batches, small_batch(PINNED_HELPS, cuda=True, busy=(0.3, 0.5, 0.8)), "nnnnrrrnrr"),
        (small_batches, small_batch(PINNED_HURTS, cuda=True, busy=(0.8, 0.5, 0.3)), "nnnnnnnnrr"),
        (small_batches, small_batch(PINNED_HELPS, cuda=True, busy=(0.0, 0.0, 0.0)), "nnnnnrrnrr"),
        (
            small_batches,
            small_batch(PINNED_HELPS, cuda=True),
            "nnnnirrnrr",
        ),  # it is unknown how busy the GPU is
        (volume, volumes(), "rrrr"),
        (volume, volumes(slices=2, small=0.1, beyond=1), "nnnn"),
        (volume, volumes(cold_failure="tmpfs", limit_failure="not permitted"), "riri"),
        (volume, volumes(small=0.1), "rrnr"),
        (volume, volumes(small=0.1, shortest=0.001), "nrir"),  # too short epochs
    ],
)
def test_each_claim_is_reproduced_or_not_or_inconclusive(study, measured, expected):
    assert verdicts(study, measured) == expected


def result_of(study, measured, claim):
    (result,) = [one for one in study.STUDY.evaluate(measured) if one.claim.startswith(claim)]
    return result


def test_the_numbers_of_pieces_at_which_preallocation_wins_are_values():
    wins, *_ = preallocation.STUDY.evaluate(pieces(few=(1, 1, 1), many=(1, 1, 0.5)))
    faster = {one["method"]: one["faster_at_pieces"] for one in wins.values if "method" in one}
    assert faster == {preallocation.CAT: "32", preallocation.GROWN: ""}


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
    measured = small_batch({}, failure=failure, hung=hung)
    assert result_of(small_batches, measured, "HDF5 is vulnerable").verdict == verdict


def test_growth_is_compared_with_that_of_the_data_and_needs_long_epochs():
    seconds = {(2, 10): 1.0, (2, 70): 74.0}
    long_enough = result_of(settings, set_to(seconds), "Time grows")
    assert long_enough.verdict == REPRODUCED
    assert "with 100 times" in long_enough.evidence
    tiny = result_of(settings, set_to({place: s / 500 for place, s in seconds.items()}), "Time grows")
    assert tiny.verdict == INCONCLUSIVE
    assert tiny.values[-1] == {"contender": row(2, 10), "epoch_s": 0.002}


@pytest.mark.parametrize(("starting", "verdict"), [(0.05, REPRODUCED), (0.9, INCONCLUSIVE)])
def test_rounds_that_mostly_start_workers_are_inconclusive(starting, verdict):
    measured = set_to({(n, 70): 2.0 for n in (3, 4, 5, 6)})
    measured.metrics["first_batch_s"] = {row(n, 70): [2.0 * starting] for n in (3, 4, 5, 6)}
    result = result_of(settings, measured, "Workers slow")
    assert result.verdict == verdict
    shares = [one["start_share"] for one in result.values if "start_share" in one]
    assert shares == ([pytest.approx(starting)] * 4 if verdict == INCONCLUSIVE else [])


@pytest.mark.parametrize(("batches", "verdict"), [(100, REPRODUCED), (8, INCONCLUSIVE)])
def test_prefetching_needs_more_batches_than_workers_prefetch(batches, verdict):
    result = result_of(settings, set_to(SLOW_WORKERS, batches=batches), "With little data")
    assert result.verdict == verdict
    short = [one["batches"] for one in result.values if "prefetched_batches" in one]
    assert short == ([8, 8] if verdict == INCONCLUSIVE else [])


def test_background_load_is_a_warning():
    quiet, busy = BackgroundLoad(processors=0.01), BackgroundLoad(processors=0.6)
    measured = Measurements({}, background=[quiet] * 3 + [busy] * 2)
    (warning,) = studies.StudyResult("x", "s", "a", measured, [], {"cpu": "Z80"}, "2026-01-01").warnings
    assert (warning.kind, warning.values) == ("background-cpu", {"highest": 0.6, "affected": 2, "rounds": 5})


@pytest.fixture
def small(monkeypatch):
    """Reduce all sizes, so that studies take little time."""
    for study, sizes in {
        tensordataset: {"QUICK": 1000, "BATCH": 100},
        dataloader_indexing: {"QUICK": 700},
        iteration: {"QUICK": 128 * 300, "PUBLISHED": 128 * 400},
        preallocation: {"ROWS": 10},
        settings: {"QUICK": 100, "QUICK_ROUNDS": 1, "QUICK_TOGETHER_EPOCHS": 1},
        small_batches: {"QUICK": 16, "QUICK_BATCHES": (8, 16), "FORK_EPOCHS": 1},
        volume: {"QUICK": (2000, 4000), "QUICK_OF_LIMIT": (0.01, 0.02)},
    }.items():
        for name, value in sizes.items():
            monkeypatch.setattr(study, name, value)
    monkeypatch.setattr(small_batches, "interleave", partial(interleave, rounds=1))


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


def test_studies_of_all_sizes_share_a_folder_and_leave_the_user_s_data_the_newest(small, tmp_path):
    mine = iobench.prepare(iobench.Synthetic(1280), ["npy"], data_dir=tmp_path, name="mine")[0]
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
