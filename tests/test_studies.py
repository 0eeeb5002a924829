"""Published claims, answered by figures either way."""

import json

import pytest
from record_cases import rounds_of

from iobench import record, studies
from iobench.errors import InvalidSettings, RecordError
from iobench.studies import Found, Options, iteration, preallocation, tensordataset
from iobench.studies._base import (
    FAILS,
    HOLDS,
    UNKNOWN,
    Answer,
    all_of,
    claimed_equal,
    claimed_faster,
    take_turns,
    timed,
)


def rounds(seconds, spread=0.001):
    return [seconds * (1 + spread * step) for step in (-2, -1, 0, 1, 2)]


def found(figures=None, **seconds):
    return Found({name.replace("_", " "): rounds(value) for name, value in seconds.items()}, figures or {})


@pytest.mark.parametrize(
    ("one", "other", "faster", "equal"),
    [(1.0, 2.0, HOLDS, FAILS), (2.0, 1.0, FAILS, FAILS), (1.0, 1.01, FAILS, HOLDS)],
)
def test_a_claim_holds_or_does_not(one, other, faster, equal):
    figures = found(one=one, other=other)
    assert claimed_faster("c", figures, "one", "other").answer == faster
    assert claimed_equal("c", figures, "one", "other").answer == equal


def test_rounds_that_scatter_answer_nothing():
    wide = Found({"one": [1, 2, 3, 4, 5], "other": [1.5, 2.2, 2.9, 4.1, 6]})
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


def test_contenders_take_turns_and_warm_up_rounds_do_not_count():
    log = []
    contenders = {name: timed(lambda name=name: log.append(name)) for name in "ab"}
    seconds = take_turns(contenders, rounds=2, warmup=1)
    assert log == ["a", "b"] * 3
    assert [len(values) for values in seconds.values()] == [2, 2]


def answers(study, figures):
    return [answer.answer for answer in study.STUDY.answers(figures)]


def test_the_exhibit_is_answered_both_ways():
    by_sample, by_batch = tensordataset.BY_SAMPLE, tensordataset.BY_BATCH
    slow = {by_sample: rounds(5), by_batch: rounds(1)}
    figures = {"calls": 100, "rows": 100, "shares": {"__getitem__": 0.7, "collate": 0.2}}
    assert answers(tensordataset, Found(slow, figures)) == [HOLDS] * 4
    other = {"calls": 1, "rows": 100, "shares": {"__getitem__": 0.2, "collate": 0.01}}
    assert answers(tensordataset, Found({by_sample: rounds(1), by_batch: rounds(5)}, other)) == [FAILS] * 4


def pieces(few, many):
    """Seconds of each way at 2 and 32 pieces, those of torch.cat being 1."""
    names = (preallocation.CAT, preallocation.TD_CAT, preallocation.FILL)
    seconds = {f"{name}, 2": rounds(value) for name, value in zip(names, few, strict=True)}
    seconds |= {f"{name}, 8": rounds(1) for name in names}
    seconds |= {f"{name}, 32": rounds(value) for name, value in zip(names, many, strict=True)}
    return Found(seconds, {"counts": [2, 8, 32], "memory_bytes": {}})


def test_preallocation_is_answered_both_ways():
    assert answers(preallocation, pieces(few=(1, 1, 1), many=(1, 1, 0.5))) == [HOLDS, HOLDS, HOLDS]
    assert answers(preallocation, pieces(few=(1, 1, 0.5), many=(1, 2, 1.5))) == [FAILS, FAILS, FAILS]
    (wins, *_) = preallocation.STUDY.answers(pieces(few=(1, 1, 1), many=(1, 1, 0.5)))
    assert "from 32 pieces on" in wins.because


def test_iteration_is_answered_both_ways():
    names = (iteration.DATASET, iteration.BATCHED, iteration.SLICED, iteration.FILLED, iteration.BUILT)
    alike = {name: rounds(1) for name in (*names, iteration.LAZY)}
    assert answers(iteration, Found(alike, {"lazy_residency": 1.0})) == [HOLDS, HOLDS, HOLDS, HOLDS, UNKNOWN]
    apart = {name: rounds(2**number) for number, name in enumerate((*names, iteration.LAZY))}
    assert answers(iteration, Found(apart, {"lazy_residency": 0.0})) == [FAILS] * 4 + [UNKNOWN]
    on_gpu = {**alike, iteration.GPU_DATASET: rounds(1), iteration.GPU_SLICED: rounds(1)}
    assert answers(iteration, Found(on_gpu, {"lazy_residency": 0.0}))[-1] == HOLDS


@pytest.fixture
def small(monkeypatch):
    """Studies so small that they take no time."""
    monkeypatch.setattr(tensordataset, "QUICK", 1000)
    monkeypatch.setattr(tensordataset, "BATCH", 100)
    monkeypatch.setattr(iteration, "QUICK", 128 * 300)
    monkeypatch.setattr(preallocation, "ROWS", 10)


@pytest.mark.parametrize("name", studies.names())
def test_every_study_runs_and_answers_each_claim(by_file, small, tmp_path, name):
    result = studies.run(name, Options(tmp_path, quick=True, device="cpu"))
    assert result.answers
    assert {answer.answer for answer in result.answers} <= {HOLDS, FAILS, UNKNOWN}
    assert all(answer.because and "\n" not in answer.because for answer in result.answers)
    studies.save(result, tmp_path)
    (kept,), problems = studies.past(tmp_path)
    assert problems == []
    assert kept.answers == result.answers
    assert kept.found.seconds == result.found.seconds


def test_a_lazy_loop_over_a_cold_file_reads_next_to_nothing(by_file, small, tmp_path):
    result = studies.run("iteration", Options(tmp_path, quick=True, device="cpu"))
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
    for name, text in (("broken", "{"), ("other", "{}"), ("list", "[]")):
        (results / f"{name}.study.json").write_text(text)
    (found,), problems = studies.past(tmp_path)
    assert found.time == "2026-01-02"
    assert len(problems) == 3


def test_an_unknown_study_is_refused_with_the_names():
    with pytest.raises(InvalidSettings, match="unknown study 'speed'; known: iteration, preallocation"):
        studies.study_of("speed")


def test_a_result_that_cannot_be_kept_is_an_error(tmp_path):
    (tmp_path / "results").write_text("")
    result = studies.Result("x", "s", "a", Found({}), [], {}, "2026-01-01T00:00:00+00:00")
    with pytest.raises(RecordError, match="cannot be written"):
        studies.save(result, tmp_path)


def test_the_command_lists_runs_and_feeds_the_report(small, inside, tmp_path):
    listed = inside("study", "list")
    assert [name in listed.stdout for name in studies.names()] == [True] * len(studies.names())
    assert len(json.loads(inside("study", "list", "--json").stdout)) == len(studies.names())
    done = inside("study", "tensordataset", "--quick", "--data-dir", tmp_path, "--device", "cpu")
    assert done.returncode == 0
    assert f"{HOLDS}: An epoch calls __getitem__ once for each sample." in done.stdout
    for one in rounds_of([1000] * 5):
        record.append(tmp_path / "results" / "run.jsonl", one)
    page = tmp_path / "r.html"
    assert inside("report", "--data-dir", tmp_path, "-o", page).returncode == 0
    assert "An epoch calls __getitem__ once for each sample." in page.read_text()
    assert inside("study", "speed").returncode == 2
