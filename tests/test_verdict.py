"""Verdicts: the leaders and how much slower the others are, and the answer over all contexts."""

import re

import pytest
from record_cases import MIB, SAMPLES, STEADY, rounds_of, times

from iobench.results import verdict
from iobench.results.columns import blocks_of, matrix_columns, metric_columns
from iobench.results.parts import FieldSpec, LimitPart
from iobench.results.stats import Estimate, verdict_on
from iobench.results.summary import summarise
from iobench.results.verdict import brief, claim_text, group_text

WILD = [500, 1600, 900, 1200, 1000]
COLD = {"cache": {"mode": "cold", "residency": 0.0}, "chosen": {"cache": "cold"}}
MIXED = {
    ("npy", "stream"): 9,
    ("hdf5", "stream"): 9.01,
    ("npy", "native"): 3,
    ("npy", "dataloader"): 0.3,
    ("hdf5", "dataloader"): 0.1,
}


def grid(speeds, **common):
    """Return records of `format · loader` at these multiples of the speed."""
    return [
        one
        for (variant, loader), factor in speeds.items()
        for one in rounds_of(times(factor), variant=variant, loader=loader, **common)
    ]


def answers(records):
    """Return the answer over these records, by kind."""
    return {one.kind: one for one in verdict.answer(summarise(records))}


def only(records):
    (context,) = summarise(records).contexts
    return verdict.verdict(context)


def of(**rates):
    return verdict_on({name: dict(enumerate(values)) for name, values in rates.items()})


@pytest.mark.parametrize(
    ("rates", "outcome", "leaders"),
    [
        ({"a": [100, 101, 102], "b": [50, 51, 52]}, "fastest", "a"),
        ({"a": [100, 101, 102], "b": [100, 101, 102]}, "equivalent", "ab"),
        ({"a": [100, 150, 300], "b": [90, 140, 310]}, "level", "ab"),
        ({"a": [103] * 5, "b": [98, 99, 100, 101, 102]}, "equivalent", "ab"),  # below the minimum difference
        ({"a": [900, 880], "b": [140, 130]}, "fastest", "a"),  # two rounds, which scatter far less
        ({"a": [900, 880], "b": [140, 700]}, "level", "ab"),
        ({"a": [100], "b": [50]}, "few-rounds", "ab"),
        ({"a": [1000], "b": [50]}, "fastest", "a"),  # far apart
        ({"a": [100, 101, 102]}, "single", "a"),
        ({"a": [9.0] * 5, "b": [8.9] * 5, "c": [3.0] * 5}, "equivalent", "ab"),
    ],
)
def test_leaders_are_the_cases_that_may_be_the_fastest(rates, outcome, leaders):
    result = of(**rates)
    assert (result.outcome, "".join(result.leaders)) == (outcome, leaders)
    assert result.at_least.keys() == rates.keys() - {*leaders}
    assert all(1 <= least <= result.relative[case].median for case, least in result.at_least.items())


def test_noise_that_rounds_share_hides_no_difference():
    rounds = [1.0, 0.5, 1.2, 0.4, 0.9, 0.6, 1.1]
    result = of(a=[100 * one for one in rounds], b=[80 * one for one in rounds])
    assert result.leaders == ["a"]
    assert result.at_least["b"] > 1.1


def test_a_noisy_case_remains_noisy_among_quiet_ones():
    quiet = {f"q{n}": [70.0, 70.1, 69.9, 70.0, 70.2] for n in range(8)}
    assert "wild" in of(wild=[100, 30, 90, 60, 65], **quiet).leaders


def test_an_eliminated_case_is_compared_in_the_rounds_that_it_shares():
    # the slower case was eliminated, and the machine became slower afterwards
    slow, slowest = [100.0] * 10, [50.0] * 3
    result = of(slow=slow, fast=[110.0] * 10 + [100.0] * 12, slowest=slowest)
    assert (result.leaders, list(result.relative)) == (["fast"], ["slow", "slowest"])
    assert result.relative["slow"].median == pytest.approx(1.1)
    # rounds that differ much more leave it open; a matrix product that rounds must not decide it
    assert of(slow=slow, fast=[110.0] * 10 + [80.0] * 12, slowest=slowest).leaders == ["fast", "slow"]


def test_the_verdict_names_the_leaders_and_how_much_slower_the_rest_is():
    finding = only(grid(MIXED))
    assert finding.kind == "equivalent"
    assert finding.values["leaders"].split("; ") == ["hdf5 · stream", "npy · stream"]
    assert finding.values["at_least"] == pytest.approx(3, rel=0.05)


def test_one_round_decides_nothing_but_cases_far_apart():
    speeds = {"npy": 10, "lmdb": 9, "hdf5": 0.1}
    records = [one for name, factor in speeds.items() for one in rounds_of(times(factor)[:1], variant=name)]
    finding = only(records)
    assert (finding.kind, finding.values["leaders"].count(";")) == ("few-rounds", 1)
    assert "--rounds" in finding.hint
    assert "hdf5" not in brief(summarise(records).contexts)


def test_leaders_with_one_loader_are_named_by_it_once():
    records = grid({("npy", "stream"): 1, ("npy", "native"): 0.1}) + rounds_of(
        WILD, variant="lmdb", loader="stream"
    )
    (context,) = summarise(records).contexts
    assert [group_text(context.leaders).count(word) for word in ("stream", "npy", "lmdb")] == [1, 1, 1]
    assert only(records).kind == "level"


def test_the_answer_says_what_to_use_what_it_brings_what_decides_and_the_limit():
    limit = LimitPart(name="gather", bytes_per_s=18_000 * MIB)
    answer = answers(grid(MIXED, limit=limit) + grid(MIXED, limit=limit, **COLD))
    assert list(answer) == ["same-everywhere", "gain", "effect", "limit"]
    assert answer["same-everywhere"].values["use"] == "hdf5 · stream"
    assert answer["gain"].values["dataloader_low"] == pytest.approx(90, rel=0.05)
    assert answer["gain"].values["native_high"] == pytest.approx(3, rel=0.05)
    assert answer["effect"].values["loader_ratio"] == pytest.approx(30, rel=0.05)
    assert answer["effect"].values["format_ratio"] < 1.1
    assert answer["effect"].values["other_loader"] == "dataloader"
    assert answer["limit"].values == {"gather": pytest.approx(0.5, rel=0.05)}


@pytest.mark.parametrize(
    ("stream", "judged", "other"), [(9.1, 1, ("native", 90)), (9, 1, ("native", 90)), (7, 90, ("stream", 1))]
)
def test_the_loader_is_named_with_which_the_format_matters_more_or_less(stream, judged, other):
    speeds = {("npy", "native"): 9, ("hdf5", "native"): 0.1}
    effect = answers(grid({**speeds, ("npy", "stream"): stream, ("hdf5", "stream"): stream}))["effect"]
    assert effect.values["format_ratio"] == pytest.approx(judged, rel=0.05)
    assert effect.values["other_loader"] == other[0]
    assert effect.values["other_format_ratio"] == pytest.approx(other[1], rel=0.05)
    assert ("decides" in effect.message) == (judged == 90)


def test_where_contexts_differ_the_answer_says_so():
    warm, cold = {("npy", "stream"): 2, ("lmdb", "stream"): 1}, {("npy", "stream"): 1, ("lmdb", "stream"): 2}
    assert answers(grid(warm) + grid(cold, **COLD))["same-loader"].values == {"use": "stream"}
    other = {("npy", "stream"): 1, ("lmdb", "native"): 2}
    assert "depends" in answers(grid(warm) + grid(other, **COLD))


def test_the_gain_is_told_of_one_choice_also_where_another_leads():
    rates = [{("npy", "stream"): stream, ("npy", "native"): 1} for stream in (3, 2, 0.5)]
    contexts = [{}, {"chosen": {"batch_size": 64}}, COLD]
    every = [one for own, context in zip(rates, contexts, strict=True) for one in grid(own, **context)]
    gain = answers(every)["gain"].values
    assert (gain["native_low"], gain["native_high"]) == (
        pytest.approx(0.5, rel=0.05),
        pytest.approx(3, rel=0.05),
    )


def test_what_is_uncertain_is_said():
    records = grid({("npy", "stream"): 1}) + rounds_of(WILD, variant="lmdb", loader="stream")
    assert answers(records)["uncertain"].values["undecided"] == 1
    assert "uncertain" not in answers(grid(MIXED))


def test_a_single_case_is_compared_with_the_limit():
    alone = answers(rounds_of(STEADY))
    assert list(alone) == ["single-case"]
    assert "10%" in alone["single-case"].message
    several = [one for size in (64, 256) for one in rounds_of(STEADY, chosen={"batch_size": size})]
    assert list(answers(several)) == ["single-case"]


def training(wait, **factors):
    given = {"timing": {"wait_s": wait}, "chosen": {"model": "mlp"}}
    return grid({(name, w): f for name, f in factors.items() for w in ("native", "dataloader")}, **given)


def test_a_training_step_that_takes_the_time_hides_format_and_loader():
    answer = answers(training(0.07, npy=1, hdf5=1.01))
    assert list(answer) == ["step-bound"]
    assert answer["step-bound"].values["step_share"] == pytest.approx(0.93, abs=0.005)


@pytest.mark.parametrize(("wait", "factor"), [(0.4, 1.01), (0.07, 0.5)])
def test_the_format_matters_where_the_loop_waits_or_the_difference_is_significant(wait, factor):
    assert only(training(wait, npy=1, hdf5=factor)).kind != "step-bound"


def test_opening_is_reported_separately_from_reading():
    finding = answers(rounds_of(times(2), timing={"open_s": 5.3}) + rounds_of(STEADY, variant="lmdb"))
    assert finding["opening-cost"].values == {
        "case": "npy · native",
        "open_s": 5.3,
        "other_case": "lmdb · native",
        "other_open_s": 0.01,
        "epochs": pytest.approx((5.3 - 0.01) / (1024 / 1000 - 1024 / 2000), rel=0.01),
    }
    assert "opening-cost" not in answers(rounds_of(times(2)) + rounds_of(STEADY, variant="lmdb"))


def test_a_cold_case_whose_opening_read_the_data_is_marked_and_no_candidate():
    read = rounds_of(times(3), variant="lmdb", disk={"opening_bytes": 5 * SAMPLES * MIB}, **COLD)
    records = [*read, *grid({("npy", "native"): 1, ("hdf5", "native"): 1}, **COLD)]
    (context,) = summarise(records).contexts
    assert [case.candidate for case in context.cases] == [True, True, False]
    assert not context.cases[-1].leader
    assert context.cases[-1].relative.median == pytest.approx(1 / 3, rel=0.02)
    assert dict(metric_columns(context.cases))["relative time (95 %)"][-1] == "not cold"
    columns = dict(matrix_columns(summarise(records + grid({("npy", "native"): 1})).contexts))
    assert columns["cold"][columns["format"].index("lmdb")].endswith("°")


def test_a_matrix_has_a_row_for_each_choice_and_a_column_for_each_context():
    summary = summarise(grid(MIXED) + grid(MIXED, **COLD))
    columns = dict(matrix_columns(summary.contexts))
    assert list(columns) == ["format", "loader", "warm", "cold", "reason"]
    assert len(columns["format"]) == len(MIXED)
    assert [cell.endswith("*") for cell in columns["warm"]] == [True, True, False, False, False]
    assert columns["reason"][-1].endswith("Python")
    styles = [(block.style, len(block.columns)) for block in blocks_of(summary)]
    assert styles == [("answer", 0), ("table", 5), ("text", 0)]
    (_, long, _) = blocks_of(summary, long=True)
    assert len(long.columns[0][1]) == 2 * len(MIXED)


@pytest.mark.parametrize(
    ("ratio", "certain"),
    [
        (Estimate(4.0, 3.0, 5.0), [4.0]),
        (Estimate(84.9, 3.44, 2095.0), [3.44]),
        (Estimate(11_829.0, None, None), [10.0]),
        (Estimate(1.4, None, None), []),
    ],
)
def test_a_gain_is_claimed_as_far_as_it_is_certain(ratio, certain):
    claim = claim_text(ratio, "as fast as npy")
    assert [float(one) for one in re.findall(r"\d[\d.]*", claim)][:1] == certain


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ([FieldSpec(name="input_ids", shape=[-1], dtype="int32", total=50 * SAMPLES)], 50),
        ([FieldSpec(name="words", shape=[-1], dtype="uint16", total=30 * SAMPLES)], 30),
        ([FieldSpec(name="tokens", shape=[1025], dtype="int64")], 1025),
        ([FieldSpec(name="image", shape=[-1], dtype="uint8", total=30 * SAMPLES)], None),
        ([FieldSpec(name="x", shape=[128], dtype="int64")], None),
    ],
)
def test_tokens_are_what_a_ragged_or_named_integer_field_holds(fields, tokens):
    (context,) = summarise(rounds_of(STEADY, dataset={"fields": fields})).contexts
    (case,) = context.cases
    assert case.value("tokens_per_s") == (tokens and pytest.approx(tokens * case.samples_per_s.median))
