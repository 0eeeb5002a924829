"""The curve over numbers of ranks, its sentence, and how it is started."""

import dataclasses

import pytest
from kinds import kind
from record_cases import MIB, STEADY, a_record, rounds_of, times

from iobench.base import INTERRUPTED
from iobench.base.errors import InvalidSettings
from iobench.ranks import launch
from iobench.results import metrics, record_file
from iobench.results.parts import RankPart
from iobench.results.record_file import plain
from iobench.results.scaling_curve import curves
from iobench.terminal import scaling
from iobench.terminal.runs import TableOptions


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
    assert [round(point.each_bytes_per_s / MIB) for point in curve.points] == [1000, 900, 600]
    assert (curve.outcome, curve.helpful_ranks) == ("scales", 4)
    assert plain(curve)["points"][2]["each_bytes_per_s"] == curve.points[2].each_bytes_per_s


@pytest.mark.parametrize(
    ("speeds", "outcome", "helpful"),
    [([(1, 1), (2, 1.8), (4, 1.81)], "stops", 2), ([(1, 1), (2, 0.7)], "stops", 1), ([(3, 1)], "single", 3)],
)
def test_a_curve_reports_where_more_ranks_stop_helping(speeds, outcome, helpful):
    (curve,) = curves(over(*speeds))
    assert (curve.outcome, curve.helpful_ranks) == (outcome, helpful)
    assert plain(curve)["outcome"] == outcome


def test_scattered_rounds_are_inconclusive():
    scattered = [500, 1000, 1500, 700, 1300]
    records = [*rounds_of(scattered), *rounds_of([1.1 * s for s in scattered], chosen={"world_size": 2})]
    assert curves(records)[0].outcome == "inconclusive"


def rank_part(rank, own_s, **more):
    figures = {"samples": 512, "logical_bytes": 512 * MIB, "wait_s": 0.1, "open_s": 0.1, "first_batch_s": 0.1}
    where = {"local_rank": rank, "node": 0, "host": "a", "device": "cpu", "threads": 1, "cpu_s": 1.0}
    return RankPart(rank=rank, own_s=own_s, **figures, **{**where, **more})


def ranked(own_s, number=1):
    record = a_record(1024 / max(own_s), number, chosen={"world_size": len(own_s)})
    return dataclasses.replace(record, ranks=[rank_part(rank, own) for rank, own in enumerate(own_s)])


def test_imbalance_and_waits_are_those_of_the_round():
    one = ranked([1.0, 2.0, 1.0])
    assert metrics.imbalance(one) == 2.0
    assert metrics.straggler_wait_share(one) == pytest.approx(0.5)
    assert metrics.device_wait_share(one) == pytest.approx((1.1 + 0.1 + 1.1) / 3 / 2)
    assert metrics.straggler_wait_share(a_record(1000)) is None
    assert metrics.device_wait_share(a_record(1024)) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("second", "sure"), [([1.5, 1.6, 1.5, 1.4, 1.5], True), ([1.1, 0.9, 1.1, 0.9, 1.1], False)]
)
def test_the_slowest_rank_is_named_where_intervals_allow_it(second, sure):
    firsts = [1.0, 1.02, 0.98, 1.0, 1.01]
    pairs = zip(firsts, second, strict=True)
    result = metrics.slowest_rank([ranked(list(pair), number) for number, pair in enumerate(pairs, 1)])
    assert (result.rank, result.host, result.significant) == (1, "a", sure)
    assert metrics.slowest_rank(rounds_of(STEADY)) is None


def test_two_rounds_name_no_straggler():
    assert not metrics.slowest_rank([ranked([1.0, 2.0]), ranked([1.0, 2.0], 2)]).significant


@pytest.mark.parametrize("text", ["", "0", "two", "1,,2", "2000", "1.5"])
def test_invalid_numbers_of_ranks_are_refused(text):
    with pytest.raises(InvalidSettings, check=kind("out-of-range", found=repr(text)), match="--ranks"):
        scaling.numbers_of(text)


def test_the_ranks_get_the_command_line_without_options_that_are_not_theirs():
    typed = ["run", "--ranks", "1,2", "--json", "--format", "npy", "--out=x", "--out", "y", "--ranks=4"]
    assert scaling.passed_on(typed) == ["run", "--format", "npy"]


@pytest.mark.parametrize("complained", [True, False])
def test_a_traceback_of_torchrun_is_dropped_if_a_rank_has_reported_an_error(
    monkeypatch, tmp_path, complained
):
    lines = ["W1122 08:00:00.1 12 torch/x.py:1] a warning", "round 1/2", *["iobench: no"] * complained]
    lines += ["Traceback (most recent call last):", "  of torchrun"]
    (tmp_path / "fake.py").write_text(f"import sys; sys.stderr.write({chr(10).join(lines)!r}); sys.exit(1)")
    monkeypatch.setattr(launch, "TORCHRUN", f"import runpy; runpy.run_path({str(tmp_path / 'fake.py')!r})")
    forwarded = []
    assert launch.torchrun(2, ["run"], forwarded.append) == 1
    assert forwarded == (["round 1/2", "iobench: no"] if complained else ["round 1/2", *lines[2:]])


def test_all_numbers_of_ranks_share_the_time(tmp_path, monkeypatch):
    now, given = [100.0], []
    monkeypatch.setattr(scaling.time, "monotonic", lambda: now[0])

    def launch(number, arguments, say):
        given.append(float(arguments[arguments.index("--max-time") + 1]))
        now[0] += given[-1] + 4.0  # to start its ranks
        return 0

    scaling.over_ranks([1, 2, 4], [], tmp_path / "r.jsonl", TableOptions(), launch, ends_at=97.0 + 60.0)
    assert given == [19.0, 13.0, 13.0], "a third of 57 s; half of 34 less 4; 17 less 4"
    assert now[0] == 97.0 + 60.0


def test_without_a_time_none_is_given(tmp_path):
    launched = []
    launch = lambda number, arguments, say: launched.append(arguments) or 0  # noqa: E731
    scaling.over_ranks([1, 2], ["run"], tmp_path / "r.jsonl", TableOptions(), launch, ends_at=None)
    assert launched == [["run", "--out", str(tmp_path / "r.jsonl")]] * 2


def test_an_interrupt_shows_what_was_measured_and_starts_no_more_ranks(tmp_path, capfd):
    started = []

    def launch(number, arguments, say):
        started.append(number)
        for record in over((number, 1)):
            record_file.append(tmp_path / "r.jsonl", record)
        say("iobench: interrupted; the rounds measured so far are saved; resume with: …")  # of rank 0
        raise KeyboardInterrupt

    end = scaling.over_ranks([1, 2], ["run"], tmp_path / "r.jsonl", TableOptions(), launch, ends_at=None)
    assert (end, started) == (INTERRUPTED, [1])
    printed = capfd.readouterr()
    assert "MiB/s" in printed.out
    assert "resume" not in printed.err  # the command says how, once
