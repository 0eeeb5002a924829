"""The curve over numbers of ranks, its sentence, and how it is started."""

import dataclasses

import pytest
from record_cases import MIB, a_record, rounds_of

from iobench.base.errors import (
    InvalidSettings,
)
from iobench.ranks import launch
from iobench.report import page
from iobench.results import ranks
from iobench.results.parts import RankPart
from iobench.results.scaling import curves
from iobench.terminal import scaling

STEADY = [1000, 1010, 990, 1005, 995]


def times(factor):
    return [speed * factor for speed in STEADY]


def over(*speeds):
    """Rounds at so many times the speed over so many ranks."""
    return [
        record
        for world_size, factor in speeds
        for record in rounds_of(times(factor), chosen={"world_size": world_size})
    ]


def test_each_number_of_ranks_is_a_point_with_its_efficiency():
    (curve,) = curves(over((1, 1), (2, 1.8), (4, 2.4)))
    assert [point.ranks for point in curve.points] == [1, 2, 4]
    assert [round(point.efficiency.median, 2) for point in curve.points] == [1.0, 0.9, 0.6]
    assert [round(point.each / MIB) for point in curve.points] == [1000, 900, 600]
    assert "more ranks gave more each time, up to 4" in curve.sentence
    assert curve.as_dict()["points"][2]["each_bytes_per_s"] == curve.points[2].each


@pytest.mark.parametrize(
    ("speeds", "said"),
    [
        ([(1, 1), (2, 1.8), (4, 1.81)], "more than 2 ranks does not help: 4 together are 1.01 × (95 % "),
        ([(1, 1), (2, 0.7)], "more than 1 rank does not help: 2 together take 1.43 ×"),
        ([(3, 1)], "measured over one number of ranks alone"),
    ],
)
def test_the_sentence_says_where_more_ranks_stop_to_help(speeds, said):
    assert said in curves(over(*speeds))[0].sentence


def test_rounds_that_scatter_leave_it_open():
    scattered = [500, 1000, 1500, 700, 1300]
    records = [*rounds_of(scattered), *rounds_of([1.1 * s for s in scattered], chosen={"world_size": 2})]
    assert "cannot tell if more than 1 rank helps: " in curves(records)[0].sentence


def rank_part(rank, own_s, **more):
    figures = {"samples": 512, "logical_bytes": 512 * MIB, "wait_s": 0.1, "open_s": 0.1, "first_batch_s": 0.1}
    where = {"local_rank": rank, "node": 0, "host": "a", "device": "cpu", "threads": 1, "cpu_s": 1.0}
    return RankPart(rank=rank, own_s=own_s, **figures, **{**where, **more})


def ranked(own_s, number=1):
    record = a_record(1024 / max(own_s), number, chosen={"world_size": len(own_s)})
    return dataclasses.replace(record, ranks=[rank_part(rank, own) for rank, own in enumerate(own_s)])


def test_skew_and_waiting_are_those_of_the_round():
    one = ranked([1.0, 2.0, 1.0])
    assert ranks.skew(one) == 2.0
    assert ranks.wait_share(one) == pytest.approx(0.5)
    assert ranks.device_wait_share(one) == pytest.approx((1.1 + 0.1 + 1.1) / 3 / 2)
    assert ranks.wait_share(a_record(1000)) is None
    assert ranks.device_wait_share(a_record(1024)) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("second", "sure"),
    [([1.5, 1.6, 1.5, 1.4, 1.5], True), ([1.1, 0.9, 1.1, 0.9, 1.1], False)],
)
def test_the_slowest_rank_is_named_where_intervals_allow_it(second, sure):
    firsts = [1.0, 1.02, 0.98, 1.0, 1.01]
    pairs = zip(firsts, second, strict=True)
    found = ranks.slowest([ranked(list(pair), number) for number, pair in enumerate(pairs, 1)])
    assert (found.rank, found.host, found.sure) == (1, "a", sure)
    assert ranks.slowest(rounds_of(STEADY)) is None


def test_the_report_draws_the_wait_for_the_slowest_rank():
    shown = page.page([ranked([1.0, 2.0, 1.0], number) for number in range(1, 6)])
    (figure,) = [one for one in shown.figures if one.name == "1-ranks"]
    (row,) = figure.rows
    assert row["rank_wait_share"] == pytest.approx(0.5)
    assert row["slowest"] == "rank 1 on a"
    assert not [one for one in page.page(rounds_of(STEADY)).figures if one.name == "1-ranks"]


def test_two_rounds_name_nobody():
    assert not ranks.slowest([ranked([1.0, 2.0]), ranked([1.0, 2.0], 2)]).sure


@pytest.mark.parametrize("text", ["", "0", "two", "1,,2", "2000", "1.5"])
def test_numbers_of_ranks_that_cannot_be_are_refused(text):
    with pytest.raises(InvalidSettings, match="no list of numbers"):
        scaling.numbers_of(text)


def test_what_is_typed_goes_on_to_the_ranks_without_what_is_not_theirs():
    typed = ["run", "--ranks", "1,2", "--json", "--format", "npy", "--out=x", "--out", "y", "--ranks=4"]
    assert scaling.passed_on(typed) == ["run", "--format", "npy"]


@pytest.mark.parametrize("complained", [True, False])
def test_a_traceback_of_torchrun_is_left_out_where_a_rank_has_said_what_was_wrong(
    monkeypatch, tmp_path, complained
):
    lines = ["W1122 08:00:00.1 12 torch/x.py:1] a warning", "round 1/2", *["iobench: no"] * complained]
    lines += ["Traceback (most recent call last):", "  of torchrun"]
    (tmp_path / "fake.py").write_text(f"import sys; sys.stderr.write({chr(10).join(lines)!r}); sys.exit(1)")
    monkeypatch.setattr(launch, "_TORCHRUN", f"import runpy; runpy.run_path({str(tmp_path / 'fake.py')!r})")
    said = []
    assert launch.torchrun(2, ["run"], said.append) == 1
    assert said == (["round 1/2", "iobench: no"] if complained else ["round 1/2", *lines[2:]])
