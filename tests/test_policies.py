"""Time budgets, stopping rules, and the policies of a run, over a clock that the tests set."""

import itertools
import math
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
from kinds import kind
from record_cases import by_round

import iobench
from iobench.base.errors import InvalidSettings
from iobench.bench.budget import Budget
from iobench.bench.case import Case
from iobench.bench.options import RunOptions
from iobench.bench.outcome import Observer
from iobench.bench.part import Proof, RoundLengths
from iobench.bench.policies import (
    BEHIND,
    EqualShares,
    FinalRounds,
    FixedRounds,
    RunState,
    SuccessiveHalving,
    UntilDecided,
    UntilPrecise,
    interleaved,
    rule_of,
    worst,
)
from iobench.formats import Field, Schema
from iobench.loading import loaders
from iobench.results import stats

SCHEMA = Schema(1000, (Field("x", (4,), "float32"),))
SURE = {"a": by_round(*[100.0] * 5)}
UNSURE = {**SURE, "b": by_round(80.0, 90.0, 100.0, 110.0, 120.0)}


class Clock:
    """A clock that moves only when a test moves it."""

    now = 0.0

    def __call__(self):
        return self.now


@dataclass
class Speed:
    """Seconds of a case's verification and of its rounds, and samples/s of each round."""

    proof_s: float = 1.0
    round_s: float = 1.0
    rate: float = 100.0
    noise: tuple[float, ...] = (1.0, 1.001, 0.999)

    def rate_of(self, number):
        return self.rate * self.noise[number % len(self.noise)]


@dataclass
class Simulated:
    """Events of a run: turns by name of the case and round, and why cases were dropped."""

    turns: list[tuple[str, int]] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)
    limits: dict[tuple[str, int], float] = field(default_factory=dict)
    note: object = None
    proofs: dict[str, Proof] = field(default_factory=dict)
    ended: float = 0.0

    def rounds(self, name):
        return [number for one, number in self.turns if one == name and number]

    def verified(self):
        return [name for name, number in self.turns if not number]

    @property
    def late(self):
        return [name for name, reason in self.dropped.items() if reason != BEHIND]


def simulated(policy, speeds, seconds=math.inf, clock=None, broken=()):
    """Take all turns of a run whose cases have these speeds, by name; those of `broken` fail."""
    clock = clock or Clock()
    budget, done = Budget(seconds, clock=clock), Simulated()
    cases = [Case("d", "", variant=name, loader=loaders.get("native")) for name in speeds]
    state = RunState(cases, budget, RoundLengths(SCHEMA), {case.key: case.variant for case in cases})
    names = {case.key: case.variant for case in cases}

    def drop(key, reason):
        done.dropped[names[key]] = reason
        state.gone.add(key)

    while True:
        for key, reason in policy.drop(state).items():
            drop(key, reason)
        if (turn := policy.next(state)) is None:
            break
        name, case = turn.case.variant, turn.case
        state.begin(turn)
        done.turns.append((name, turn.round))
        done.limits[name, turn.round] = turn.limit_s
        state.lengths.limit_s = turn.round_s
        if turn.proof is not None:
            state.verified(case, turn.proof)
        elif not turn.round:
            clock.now += min(speeds[name].proof_s, max(0.0, turn.cancel_at - clock.now))
            if name in broken:
                state.gone.add(case.key)
            elif clock.now >= turn.cancel_at:
                drop(case.key, "cancelled")
            else:
                took_s = speeds[name].proof_s
                state.verified(case, Proof(None, took_s / 10, took_s / SCHEMA.samples, took_s))
        else:
            took_s = min(speeds[name].round_s, max(turn.limit_s, 0.1))  # a batch
            clock.now += took_s
            rate = speeds[name].rate_of(turn.round)
            state.timed(case, SimpleNamespace(round=turn.round, samples_per_s=rate, epoch_s=took_s), took_s)
    done.note, done.ended = policy.done(state), clock.now
    done.proofs = state.proofs
    return done


def same(*names, **speed):
    return {name: Speed(**speed) for name in names}


class TestBudget:
    """A deadline and its shares."""

    def test_shares_are_of_what_is_left_and_never_outlast_it(self):
        clock = Clock()
        budget = Budget(10.0, clock=clock)
        clock.now = 4.0
        assert (budget.left(), budget.elapsed(), budget.over) == (6.0, 4.0, False)
        assert (budget.share(0.5).end, budget.sub(2.0).end, budget.sub(99.0).end) == (7.0, 6.0, 10.0)
        assert budget.for_each(3) == 2.0
        clock.now = 11.0
        assert (budget.left(), budget.sub(5.0).left(), budget.over) == (0.0, 0.0, True)

    def test_it_counts_from_the_start_of_the_command_and_never_ends_without_a_limit(self):
        assert Budget(10.0, began=2.0, clock=lambda: 7.0).left() == 5.0
        assert Budget().share(0.3).left() == math.inf


class TestStoppingRules:
    """Ends of the rounds of a run, by its figures."""

    @pytest.mark.parametrize(("given", "planned"), [(3, 3), ("7", 7), ("auto", None), ("decisive", None)])
    def test_a_number_or_a_word(self, given, planned):
        assert rule_of(given).planned == planned

    @pytest.mark.parametrize(
        ("given", "name", "found"),
        [
            (0, "out-of-range", "0"),
            ("-1", "out-of-range", "-1"),
            ("many", "not-a-number", "'many'"),
            ("1.5", "not-a-number", "'1.5'"),
        ],
    )
    def test_anything_else_is_refused(self, given, name, found):
        with pytest.raises(InvalidSettings, check=kind(name, found=found), match="--rounds"):
            rule_of(given)

    @pytest.mark.parametrize("seconds", [-1.0, 0.0, float("nan"), float("inf")])
    @pytest.mark.parametrize("option", ["max_time", "timeout", "round_seconds"])
    def test_seconds_are_a_number_above_0(self, option, seconds):
        with pytest.raises(InvalidSettings, check=kind("out-of-range", found=f"{seconds:g}")):
            RunOptions(**{option: seconds})

    def test_the_case_with_the_widest_interval_is_found(self):
        assert worst(UNSURE) == ("b", pytest.approx(0.2))
        assert worst({"a": {1: 1.0}}) == ("", 0.0)

    def test_precise_figures_need_ten_rounds_and_narrow_intervals(self):
        rule = UntilPrecise()
        assert not rule.enough(SURE, stats.PAIRED_ROUNDS - 1)
        assert rule.enough(SURE, stats.PAIRED_ROUNDS)
        assert not rule.enough(UNSURE, stats.PAIRED_ROUNDS)
        notes = [
            rule.note(rates, done, 1.0, {"b": "B"}) for rates, done in ((SURE, 1), (SURE, 5), (UNSURE, 5))
        ]
        assert [one.kind for one in notes] == ["auto-few-rounds", "auto-precise", "auto-imprecise"]

    @staticmethod
    def rates(rounds, **medians):
        return {key: {n: rate * (1 + n % 3 / 1000) for n in range(rounds)} for key, rate in medians.items()}

    def test_a_decision_compares_cases_within_their_context(self):
        rule = UntilDecided({"a": "warm", "b": "warm", "c": "warm", "d": "cold", "e": "cold"})
        assert rule.behind(self.rates(3, a=100, b=20, c=90, d=5, e=4.9)) == ["b"]
        assert rule.behind(self.rates(2, a=100, b=1)) == [], "every case has three rounds"
        decided = self.rates(12, a=100, d=5, e=4.95)
        open_still = {**decided, "c": {n: 93 + 30 * (-1) ** n for n in range(12)}}
        assert [rule.enough(one, 12) for one in (decided, open_still)] == [True, False]
        assert [rule.note(one, 12, 1.0, {}) is None for one in (decided, open_still)] == [True, False]


class TestEqualShares:
    """Policy of a run: equal shares of the time."""

    def test_every_round_has_every_case_once_in_its_own_order(self):
        done = simulated(EqualShares(FixedRounds(8)), same(*"abcdef"))
        rounds = [[name for name, number in done.turns if number == wanted] for wanted in range(1, 9)]
        assert all(sorted(one) == list("abcdef") for one in rounds)
        assert len({tuple(one) for one in rounds}) > 4
        assert done.note is None
        turns = [(name, number) for name, number in done.turns if number]
        assert [(name, number) for number, name in interleaved("abcdef", lambda done: done < 8)] == turns
        assert turns != [(n, r) for r, n in interleaved("abcdef", lambda done: done < 8, seed=2)]

    def test_no_round_begins_that_would_end_after_the_deadline(self):
        done = simulated(EqualShares(FixedRounds(50)), same("a", "b"), seconds=20.0)
        assert done.ended == 20.0
        assert done.rounds("a") == list(range(1, 10))
        note, values = done.note, done.note.values
        assert (note.kind, values["rounds"], values["planned"]) == ("max-time-reached", 9, 50)

    def test_the_first_case_is_measured_and_cut_whatever_the_time(self):
        done = simulated(EqualShares(FixedRounds(3)), same("a", "b", "c", proof_s=100.0), seconds=10.0)
        assert done.turns == [("a", 0), ("a", 1)]
        assert done.limits["a", 1] == 0.0
        assert done.late == ["b", "c"]

    def test_verifications_have_equal_shares_of_30_percent_and_end_after_twice_that(self):
        slow = {**same(*"abc", proof_s=20.0), "d": Speed(0.1)}
        done = simulated(EqualShares(FixedRounds(1)), slow, seconds=60.0)
        assert done.limits["a", 0] == pytest.approx(0.3 * 60 / 4)
        assert done.limits["b", 0] == 0.0, "it is verified over its first batch"
        assert done.late == ["b", "c", "d"], "the second was cancelled, and so is all that follows"

    def test_a_slow_case_takes_no_more_than_twice_its_share(self):
        speeds = {"slow": Speed(0.0, 10.0), **same("b", "c", "d", proof_s=0.0)}
        done = simulated(EqualShares(FixedRounds(1000)), speeds, seconds=60.0)
        assert len(done.rounds("slow")) == 3, "four would take more than twice 15 s"
        assert len(done.rounds("b")) == 10, "the others have what is left"
        assert done.ended <= 60.0

    def test_a_failed_case_has_no_further_turn(self):
        done = simulated(EqualShares(FixedRounds(2)), same("a", "b"), broken=["a"])
        assert done.turns == [("a", 0), ("b", 0), ("b", 1), ("b", 2)]

    def test_auto_ends_when_all_are_precise(self):
        quiet = simulated(EqualShares(UntilPrecise()), same("a", "b"), seconds=1e4)
        assert quiet.rounds("a") == list(range(1, stats.PAIRED_ROUNDS + 1))
        assert quiet.note.kind == "auto-precise"
        noisy = simulated(
            EqualShares(UntilPrecise()), same("a", noise=(1.0, 1.5, 0.7, 1.2, 0.8, 1.9, 0.6)), seconds=40.0
        )
        assert noisy.ended == 40.0

    def test_a_decision_drops_what_is_behind_after_a_round(self):
        speeds = {"a": Speed(rate=100.0), "b": Speed(rate=20.0), "c": Speed(rate=99.0)}
        done = simulated(EqualShares(UntilDecided({})), speeds, seconds=1e4)
        assert done.dropped == {"b": BEHIND}
        assert done.rounds("b") == [1, 2, 3]
        assert done.note is None

    def test_a_resumed_run_takes_the_turns_that_it_lacks(self):
        cases = [Case("d", "", variant=name, loader=loaders.get("native")) for name in "ab"]
        state = RunState(cases, Budget(), RoundLengths(SCHEMA), {})
        state.add(cases[0].key, 1, 100.0)
        policy, turns = EqualShares(FixedRounds(2)), []
        while (turn := policy.next(state)) is not None:
            state.begin(turn)
            turns.append((turn.case.variant, turn.round))
            if turn.round:
                state.add(turn.case.key, turn.round, 100.0)
        assert sorted(turns) == [("a", 0), ("a", 2), ("b", 0), ("b", 1), ("b", 2)]


class TestSuccessiveHalving:
    """Policy of a search's race."""

    @staticmethod
    def behind(rates):
        return sorted(SuccessiveHalving(60.0).behind(rates))

    def test_one_round_eliminates_only_cases_three_times_slower(self):
        rates = {"a": by_round(90.0), "b": by_round(60.0), "c": by_round(31.0), "d": by_round(29.0)}
        assert self.behind(rates) == ["d"]

    def test_only_the_slower_half_drops_while_there_are_few_rounds(self):
        rates = {name: by_round(*[100.0 / (place * 4)] * 5) for place, name in enumerate("abcde", 1)}
        assert self.behind(rates) == ["d", "e"]
        many = {name: by_round(*[100.0 / (place * 4)] * 12) for place, name in enumerate("abcde", 1)}
        assert self.behind(many) == ["b", "c", "d", "e"]

    def test_a_case_that_was_faster_once_is_not_eliminated(self):
        assert self.behind({"a": by_round(100.0, 100.0, 100.0), "b": by_round(50.0, 50.0, 101.0)}) == []

    def test_noise_alone_never_drops_the_best_for_long(self):
        """Two cases that are alike and one that is 10 % faster: it is still there after 15 noisy rounds."""
        rng = np.random.default_rng(0)
        for _ in range(15):
            live = {name: {} for name in "abc"}
            for number in range(1, 16):
                for name in live:
                    live[name][number] = (110.0 if name == "a" else 100.0) * rng.lognormal(0.0, 0.15)
                for name in self.behind(live) if len(live) > 1 else []:
                    del live[name]
            assert "a" in live

    def test_two_cases_are_timed_as_soon_as_they_are_verified_and_the_rest_quick_ones_first(self):
        speeds = {"a": Speed(), "b": Speed(), "c": Speed(3.0), "quick": Speed(0.5)}
        done = simulated(SuccessiveHalving(600.0, rounds=1, proofs_s=60.0), speeds, seconds=1e4)
        assert done.turns == [
            *(("a", 0), ("b", 0), ("a", 1), ("b", 1)),
            *(("c", 0), ("quick", 0), ("quick", 1), ("c", 1)),
        ]

    def test_a_race_of_one_is_over(self):
        speeds = {"a": Speed(), "slow": Speed(rate=10.0)}
        done = simulated(SuccessiveHalving(600.0, proofs_s=60.0), speeds, seconds=1e4)
        assert done.dropped == {"slow": BEHIND}
        assert done.rounds("a") == done.rounds("slow") == [1]

    def test_it_ends_when_it_is_sure(self):
        done = simulated(SuccessiveHalving(600.0, proofs_s=60.0), same("a", "b"), seconds=1e4)
        assert len(done.rounds("a")) == stats.PAIRED_ROUNDS

    @pytest.mark.parametrize(
        ("race", "speeds", "verified", "late"),
        [
            # the default and one rival are verified whatever the time for it
            (SuccessiveHalving(5.0, proofs_s=10.0), same(*"abcd", proof_s=15.0), "ab", "cd"),
            # a verification that takes the time of the rounds is cancelled
            (SuccessiveHalving(10.0, 1, 12.0), same(*"abcd", proof_s=6.0, round_s=0.0), "abc", "cd"),
            # a slow default leaves time for quick cases
            (
                SuccessiveHalving(10.0),
                {"a": Speed(0.1, 50.0), **same(*"bcd", proof_s=0.1, round_s=0.1)},
                "abcd",
                "",
            ),
            (SuccessiveHalving(5.0, 1, 20.0), {"a": Speed(20.0), **same(*"bcd", round_s=0.0)}, "abcd", ""),
        ],
    )
    def test_what_there_is_time_to_verify(self, race, speeds, verified, late):
        done = simulated(race, speeds, seconds=100.0)
        assert (done.verified(), done.late) == (list(verified), list(late))
        assert all(done.rounds(name)[0] == 1 for name in set(verified) - set(late))

    def test_while_fewer_than_two_are_right_others_are_tried_until_the_end(self):
        speeds = same(*"abcdef", proof_s=5.0)
        done = simulated(SuccessiveHalving(5.0, proofs_s=5.0), speeds, seconds=16.0, broken="abcdef")
        assert done.verified() == ["a", "b", "c", "d"]
        assert done.late == ["e", "f"] or done.late == ["d", "e", "f"]

    @pytest.mark.parametrize(("proofs_s", "rounds"), [(0.0, [1]), (12.0, [1, 2, 3])])
    def test_a_late_verification_takes_its_time_from_the_race(self, proofs_s, rounds):
        speeds = same("a", "b", proof_s=6.0)
        done = simulated(SuccessiveHalving(8.0, rounds=3, proofs_s=proofs_s), speeds, seconds=100.0)
        assert done.rounds("a") == rounds

    def test_the_very_first_round_leaves_half_of_the_time_to_its_rivals(self):
        done = simulated(SuccessiveHalving(10.0, rounds=2), same("a", "b", round_s=6.0), seconds=100.0)
        assert done.limits["a", 1] == 5.0
        assert done.limits["b", 1] == 5.0
        assert SuccessiveHalving(10.0).planned is None

    def test_no_turn_begins_after_the_deadline(self):
        speeds = same(*"abcdef", proof_s=0.0, round_s=10.0)
        done = simulated(SuccessiveHalving(1000.0), speeds, seconds=25.0)
        assert len([number for _, number in done.turns if number]) == 3
        assert len(done.late) == 3


class TestFinalRounds:
    """Policy of a search's finalists."""

    def final(self, speeds, own_s, seconds=math.inf, **options):
        clock = Clock()
        return simulated(FinalRounds(Budget(own_s, clock=clock), **options), speeds, seconds, clock)

    def test_cases_come_in_order_of_importance(self):
        done = self.final({"a": Speed(0.1, 3.0), "b": Speed(0.1, 2.0), "c": Speed(0.1, 1.0)}, 60.0, rounds=1)
        assert done.turns[3:] == [("a", 1), ("b", 1), ("c", 1)]

    def test_those_that_would_take_the_rounds_of_others_are_skipped(self):
        done = self.final(same(*"abcd", proof_s=4.0, round_s=4.0), 12.0, 30.0, rounds=1)
        assert done.turns == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
        assert done.late == ["c", "d"]

    def test_the_first_is_measured_whatever_the_time(self):
        done = self.final(same("a", "b", proof_s=50.0), 10.0, 20.0)
        assert done.turns == [("a", 0), ("a", 1)]

    def test_a_case_that_was_slow_to_verify_is_not_verified_again(self):
        proofs = simulated(SuccessiveHalving(10.0), same("a", "b", proof_s=6.0), seconds=100.0).proofs
        quick = self.final(same("a", "b", proof_s=6.0, round_s=1.0), 12.0, 30.0, rounds=1, proofs=proofs)
        assert quick.ended == 2.0
        patient = self.final(same("a", "b", proof_s=6.0), 120.0, 300.0, rounds=1, proofs=proofs)
        assert patient.ended == 14.0, "there is time for it"

    def test_two_rounds_may_take_all_of_the_time(self):
        done = self.final(same("a", "b", proof_s=0.0, round_s=4.0), 5.0, 30.0)
        assert done.rounds("a") == [1, 2]
        assert done.limits["a", 1] == 30.0

    def test_nothing_is_eliminated_and_limits_wait_for_a_comparison(self):
        done = self.final({"a": Speed(rate=1000.0), "b": Speed(rate=1.0)}, 600.0)
        assert done.dropped == {}
        assert len(done.rounds("b")) == stats.PAIRED_ROUNDS
        assert FinalRounds(Budget()).limits_from == 2


OPTIONS = {"format": ("npy",), "loader": ("native",), "device": ("cpu",), "limits": False}


class TestRuns:
    """Policies in runs over data."""

    def test_a_run_with_auto_notes_how_it_ended(self, images, tmp_path):
        ticks = itertools.count(0.0, 0.04).__next__
        options = RunOptions(rounds="auto", **OPTIONS)
        result = iobench.run(images, options, out=tmp_path / "r.jsonl", budget=Budget(2.0, clock=ticks))
        (note,) = result.notes
        assert note.values["rounds"] == len(result.records) >= 1
        if len(result.records) < stats.MIN_ROUNDS:
            assert note.kind == "auto-few-rounds"
        else:
            reach = worst({"it": by_round(*[record.samples_per_s for record in result.records])})[1]
            assert note.kind == ("auto-precise" if reach <= 0.02 else "auto-imprecise")
            assert note.values["precision"] == reach

    def test_a_run_estimates_its_duration(self, images, tmp_path):
        class Listening(Observer):
            def status(self, text):
                lines.append(text)

        lines, options = [], RunOptions(rounds="500", max_time=3.0, **OPTIONS)
        result = iobench.run(images, options, out=tmp_path / "r.jsonl", observer=Listening())
        assert lines[-2].startswith("1 case × 500 rounds")
        assert lines[-2].endswith(" 3.00 s")  # of --max-time
        assert "1 of 500" in lines[-1]
        (note,) = result.notes
        found = note.kind, note.values["rounds"], note.values["planned"]
        assert found == ("max-time-reached", len(result.records), 500)
