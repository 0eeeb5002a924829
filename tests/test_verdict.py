"""Verdicts: the fastest pair, the effect of the format under each loader, headroom and opening."""

import json
import re

import pytest
from record_cases import STEADY, rounds_of, times

from iobench.results import verdict
from iobench.results.per_loader import per_loader
from iobench.results.ranking import verdict_on
from iobench.results.record_json import plain
from iobench.results.summary import summarise
from iobench.results.verdict import MAX_LOADERS, brief, findings, sentences


def lines_of(records):
    return sentences(summarise(records).contexts)


def findings_of(records):
    """Return the findings about the only context of these records."""
    (context,) = summarise(records).contexts
    return findings(context)


def effects_of(records):
    """Return the effect of the format under each loader with several formats."""
    result = [one for one in findings_of(records) if one.kind == "format-effect"]
    return {one.values["loader"]: one for one in result}


def grid(speeds, **common):
    """Return records of `format · loader` at these multiples of the speed."""
    return [
        one
        for (variant, loader), factor in speeds.items()
        for one in rounds_of(times(factor), variant=variant, loader=loader, **common)
    ]


MIXED = {
    ("npy", "native"): 9,
    ("hdf5", "native"): 3,
    ("npy", "dataloader"): 1,
    ("memmap", "dataloader"): 1.001,
    ("hdf5", "dataloader"): 1 / 2.7,
}


def test_the_fastest_pair_comes_first_and_then_the_effect_of_the_format_under_each_loader():
    fastest, native, dataloader = findings_of(grid(MIXED))
    assert (fastest.kind, fastest.values["fastest"]) == ("fastest", "npy · native")
    assert fastest.values["ratio"] == pytest.approx(3.0, rel=0.01)
    assert fastest.values["low"] < 3 < fastest.values["high"]
    assert native.values == {
        "loader": "native",
        "outcome": "fastest",
        "fastest_formats": "npy",
        "slower_formats": "hdf5",
        "largest_relative_time": pytest.approx(3.0, rel=0.01),
    }
    assert dataloader.values == {
        "loader": "dataloader",
        "outcome": "equivalent",
        "fastest_formats": "memmap, npy",
        "slower_formats": "hdf5",
        "largest_relative_time": pytest.approx(2.7, rel=0.01),
    }
    lines = lines_of(grid(MIXED))
    assert lines == [f"{fastest.sentence}.", f"  {native.message}", f"  {dataloader.message}"]


def test_a_round_has_no_rivals_far_behind():
    records = [
        one
        for factor, variant in ((10, "npy"), (9, "lmdb"), (1, "hdf5"))
        for one in rounds_of(times(factor)[:1], variant=variant)
    ]
    contexts = summarise(records).contexts
    finding = verdict.verdict(contexts[0])
    assert finding.kind == "few-rounds"
    assert (finding.values["fastest"], finding.values["runner_up"]) == ("npy · native", "lmdb · native")
    assert finding.values["ratio"] == pytest.approx(10 / 9, rel=0.01)
    assert "low" not in finding.values
    assert "--rounds" in finding.hint
    assert "hdf5" not in finding.sentence
    assert "lmdb" not in brief(contexts)


@pytest.mark.parametrize(
    ("others", "outcome"),
    [((140.0, 130.0), "faster"), ((140.0, 700.0), "inconclusive"), ((800.0,), "inconclusive")],
)
def test_two_rounds_decide_where_they_scatter_far_less_than_they_differ(others, outcome):
    found = verdict_on({"npy": {1: 900.0, 2: 880.0}, "lmdb": dict(enumerate(others, 1))})
    assert (found.fastest, found.outcome) == ("npy", outcome)
    assert (found.ratio.low is None) == (outcome == "inconclusive")


def test_two_cases_of_one_loader_need_no_second_line():
    assert len(lines_of(grid({("npy", "native"): 2, ("hdf5", "native"): 1}))) == 1
    assert len(lines_of(grid({("npy", "native"): 2, ("npy", "stream"): 1}))) == 1


def test_options_of_a_loader_make_loaders_of_their_own():
    speeds = {(f, f"dataloader:fetch={how}"): 1 + (how == "batch") for f in ("npy", "lmdb") for how in HOW}
    loaders = per_loader(summarise(grid(speeds)).contexts[0])
    expected = [f"dataloader, fetch {how}" for how in ("batch", "sample")]
    assert [one.loader for one in loaders] == expected


HOW = ("sample", "batch")


def test_formats_without_a_significant_difference_are_not_called_equal():
    wild = [500, 1600, 900, 1200, 1000]
    records = grid({("npy", "stream"): 1}) + rounds_of(wild, variant="lmdb", loader="stream")
    (loader,) = per_loader(summarise(records).contexts[0])
    assert loader.outcome == "no-significant-difference"
    assert verdict.verdict(summarise(records).contexts[0]).kind == "inconclusive"


@pytest.mark.parametrize(
    ("loader", "behind", "leading"),
    [("stream", 0.1, "stream"), ("native", 0.1, None), ("stream", 1, None), ("stream", None, None)],
)
def test_a_loader_ahead_of_all_others_is_named_where_its_formats_are_not_told_apart(loader, behind, leading):
    wild = [500, 1600, 900, 1200, 1000]
    records = grid({("npy", "stream"): 1}) + rounds_of(wild, variant="lmdb", loader=loader)
    records += grid({("npy", "dataloader"): behind}) if behind else []
    (found, *_) = findings_of(records)
    assert (found.kind, found.values.get("loader")) == ("inconclusive", leading)


def test_a_case_far_behind_is_slower_however_few_rounds_it_has():
    near = grid({("npy", "stream"): 9, ("memmap", "stream"): 9.01})
    slow = rounds_of(times(1 / 50)[:1], variant="zarr", loader="stream")
    some = rounds_of(times(2)[:1], variant="lmdb", loader="stream")
    (loader,) = per_loader(summarise(near + slow + some).contexts[0])
    assert [name for name, _ in loader.slower] == ["zarr"]
    assert set(loader.fastest_formats) == {"npy", "memmap", "lmdb"}  # too few rounds to be called slower
    assert "zarr" in loader.finding.values["slower_formats"]


def training(wait, **factors):
    timing = {"wait_s": wait}
    return [
        one
        for variant, factor in factors.items()
        for loader in ("native", "dataloader")
        for one in rounds_of(
            times(factor), variant=variant, loader=loader, timing=timing, chosen={"model": "mlp"}
        )
    ]


def test_a_training_step_that_takes_the_time_hides_the_format():
    (finding, *_) = findings_of(training(0.07, npy=1, hdf5=1.01))
    assert finding.kind == "step-bound"
    assert finding.values["step_share"] == pytest.approx(0.93, abs=0.005)
    assert len(lines_of(training(0.07, npy=1, hdf5=1.01))) == 1


@pytest.mark.parametrize(("wait", "factor"), [(0.4, 1.01), (0.07, 0.5)])
def test_the_format_matters_where_the_loop_waits_or_the_difference_is_significant(wait, factor):
    assert findings_of(training(wait, npy=1, hdf5=factor))[0].kind != "step-bound"


def test_under_one_loader_alone_the_format_may_not_matter():
    slow = rounds_of(
        times(0.3), variant="npy", loader="stream", chosen={"model": "mlp"}, timing={"wait_s": 2}
    )
    effect = effects_of(training(0.07, npy=1, hdf5=1.01) + slow)["native"]
    assert effect.values["outcome"] == "step-bound"
    assert effect.values["step_share"] == pytest.approx(0.93, abs=0.005)


def test_without_a_training_step_there_is_no_share_of_it():
    assert not any("step_share" in one.values for one in findings_of(grid(MIXED, timing={"wait_s": 0.01})))


def test_opening_is_reported_separately_from_reading():
    fast = rounds_of(times(2), timing={"open_s": 5.3})
    records = fast + rounds_of(STEADY, variant="lmdb")
    finding = findings_of(records)[-1]
    assert finding.kind == "opening-cost"
    assert finding.values == {
        "case": "npy · native",
        "open_s": 5.3,
        "other_case": "lmdb · native",
        "other_open_s": 0.01,
        "epochs": pytest.approx((5.3 - 0.01) / (1024 / 1000 - 1024 / 2000), rel=0.01),
    }
    assert finding.message in lines_of(records)[-1]
    assert len(lines_of(rounds_of(times(2)) + rounds_of(STEADY, variant="lmdb"))) == 1


def test_of_many_contexts_each_has_one_line_about_formats():
    records = [one for size in (1, 2, 3) for one in grid(MIXED, chosen={"batch_size": size})]
    lines = lines_of(records)
    assert len(lines) == 6
    ratios = re.findall(r"(\w+): hdf5 [a-z ]+ ([\d.]+) ×", lines[1])
    assert ratios == [("native", "3.00"), ("dataloader", "2.70")]


def test_of_many_loaders_and_formats_a_few_lines_are_shown():
    formats = [f"hdf5:chunk_bytes={2**n}" for n in range(9, 24)]
    loaders = [f"dataloader:num_workers={n}" for n in range(MAX_LOADERS + 2)]
    speeds = {(f, w): 1.5**n * (1 + m) for n, f in enumerate(formats) for m, w in enumerate(loaders)}
    lines = lines_of(grid(speeds))
    assert len(lines) == 2 + MAX_LOADERS
    assert str(len(loaders) - MAX_LOADERS) in lines[-1]
    assert all(len(line) < 250 for line in lines[1:-1])


def test_findings_are_in_the_json_of_a_summary():
    summary = summarise(grid(MIXED))
    body = json.loads(json.dumps(plain(verdict.as_json(summary))))
    (context,) = body["contexts"]
    assert [one["kind"] for one in context["findings"]] == ["fastest", "format-effect", "format-effect"]
