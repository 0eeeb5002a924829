"""`iobench recommend` keeps to its time limit, and lists what there was no time for."""

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from kinds import kind

import iobench
from iobench.advise import alternatives, measured_data, recommendation, sample_writer, search
from iobench.advise.measured_data import MeasuredData, from_source, other_samples
from iobench.advise.requirements import Requirements
from iobench.advise.sample_writer import OutOfTime
from iobench.advise.unmeasured import nothing_measured, skipped_finalists
from iobench.base.errors import CaseDied, InvalidSettings, LoaderFailed, WrongContent
from iobench.bench import run_loop
from iobench.bench.case_grid import cases_of
from iobench.bench.executor import InProcess
from iobench.bench.options import RunOptions
from iobench.bench.run import run
from iobench.bench.search_strategies import FinalRounds, SuccessiveHalving
from iobench.dataset.sources import FirstSamples

SIX = RunOptions(format=("npy", "hdf5"), loader=("native", "stream", "dataloader"), limits=False)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    source = iobench.Synthetic(40_000, (32,))
    return iobench.prepare(source, ["npy", "hdf5"], data_dir=tmp_path_factory.mktemp("data"), name="mine")[0]


@pytest.fixture
def clock(monkeypatch):
    """The seconds of a race, which pass only when a test adds some."""
    found = SimpleNamespace(now=0.0)
    for module in ("run", "run_loop"):
        monkeypatch.setattr(f"iobench.bench.{module}.time", SimpleNamespace(monotonic=lambda: found.now))
    return found


def proving(monkeypatch, clock, seconds, error=None):
    """Make each content check take so long and fail with that error; returns the keys of those that began."""
    began, prove = [], InProcess.prove

    def slowly(executor, case, warmup, tick, *limit):
        began.append(case.key)
        clock.now += seconds
        tick()
        if error is not None:
            raise error
        return prove(executor, case, warmup, tick, *limit)

    monkeypatch.setattr(InProcess, "prove", slowly)
    return began


def test_a_proof_that_takes_the_time_of_the_rounds_is_given_up(manifest, monkeypatch, clock):
    began = proving(monkeypatch, clock, 6.0)
    found = run(manifest, SIX, strategy=SuccessiveHalving(10.0, rounds=1, proofs_s=12.0, end_s=100.0))
    keys = [case.key for case in found.cases]
    assert began == keys[:3]
    assert found.skipped == keys[2:]
    assert {one.round for one in found.records} == {1}
    assert len(found.records) == 2
    assert found.failures == {}


@pytest.mark.parametrize(("proofs_s", "rounds"), [(0.0, [1]), (12.0, [1, 2, 3])])
def test_proofs_that_are_late_take_their_time_from_the_race(manifest, monkeypatch, clock, proofs_s, rounds):
    proving(monkeypatch, clock, 6.0)
    monkeypatch.setattr(SuccessiveHalving, "behind", lambda self, rates: [])  # whichever is faster
    two = replace(SIX, format=("npy",), loader=("native", "stream"))
    found = run(manifest, two, strategy=SuccessiveHalving(10.0, rounds=3, proofs_s=proofs_s))
    assert sorted({one.round for one in found.records}) == rounds


def test_a_slow_default_leaves_time_for_quick_cases(manifest, monkeypatch, clock):
    def slowly(self, case, *rest):
        clock.now += 50.0 if case.loader.name == "dataloader" else 0.1
        return time_case(self, case, *rest)

    time_case = run_loop.RunLoop.time_round
    monkeypatch.setattr(run_loop.RunLoop, "time_round", slowly)
    (slow,) = cases_of(manifest, replace(SIX, format=("npy",), loader=("dataloader",)), ["cpu"])
    quick = cases_of(manifest, replace(SIX, loader=("native", "stream")), ["cpu"])
    found = run(manifest, SIX, cases=[slow, *quick], strategy=SuccessiveHalving(10.0, end_s=100.0))
    assert found.skipped == []


def test_the_verification_of_a_slow_default_leaves_half_of_the_time_for_it_to_others(
    manifest, monkeypatch, clock
):
    def prove(self, case, *arguments):
        clock.now += 20.0 if case.loader.name == "dataloader" else 1.0
        return proved(self, case, *arguments)

    proved = InProcess.prove
    monkeypatch.setattr(InProcess, "prove", prove)
    (slow,) = cases_of(manifest, replace(SIX, format=("npy",), loader=("dataloader",)), ["cpu"])
    quick = cases_of(manifest, replace(SIX, loader=("native", "stream")), ["cpu"])
    race = SuccessiveHalving(5.0, rounds=1, proofs_s=20.0, end_s=100.0)
    assert run(manifest, SIX, cases=[slow, *quick], strategy=race).skipped == []
    assert (race.excess_s([20.0, 1.0]), race.excess_s([90.0]), race.excess_s([5.0])) == (10.0, 20.0, 0.0)
    assert FinalRounds(20.0).excess_s([90.0]) == SuccessiveHalving(5.0).excess_s([90.0]) == 0.0


def test_final_rounds_verify_no_case_again_that_took_long(manifest, monkeypatch, clock):
    began = proving(monkeypatch, clock, 6.0)
    race = run(manifest, SIX, strategy=SuccessiveHalving(10.0, rounds=1, proofs_s=12.0, end_s=100.0))
    two = [case for case in race.cases if case.key in race.proofs]
    began.clear()
    final = run(manifest, SIX, cases=two, strategy=FinalRounds(12.0, rounds=1, proofs=race.proofs))
    assert began == []
    assert [one.settings_key for one in final.records] == [case.key for case in two]
    run(manifest, SIX, cases=two, strategy=FinalRounds(120.0, rounds=1, proofs=race.proofs))
    assert began == [case.key for case in two], "there is time for it"


def test_a_slow_case_is_cut_off_where_the_time_of_its_round_ends():
    race, final = SuccessiveHalving(10.0), FinalRounds(20.0, end_s=30.0)
    assert race.cut_s(1, 0.0, 50.0, measured=0) == 5.0, "the other half is for its rivals"
    assert race.cut_s(1, 6.0, 50.0, measured=1) == 4.0
    assert race.cut_s(2, 11.0, 50.0, measured=2) == 2.5
    assert final.cut_s(1, 0.0, 10.0, measured=0) == final.cut_s(3, 0.0, 10.0, measured=3) == 20.0


def test_quick_cases_come_first_after_the_opening(manifest, monkeypatch, clock):
    def prove(self, case, *arguments):
        clock.now += (case.variant, case.loader.name) != ("hdf5", "stream")  # all others are slower to prove
        return proved(self, case, *arguments)

    proved = InProcess.prove
    monkeypatch.setattr(InProcess, "prove", prove)
    four = replace(SIX, loader=("native", "stream"))
    found = run(manifest, four, strategy=SuccessiveHalving(600.0, rounds=1))
    first, second, third, quick = (case.key for case in found.cases)
    assert [made.settings_key for made in found.records] == [first, second, quick, third]


def test_the_default_and_one_rival_are_verified_whatever_the_time_for_it(manifest, monkeypatch, clock):
    began = proving(monkeypatch, clock, 15.0)
    found = run(manifest, SIX, strategy=SuccessiveHalving(5.0, proofs_s=10.0, end_s=100.0))
    assert began == [case.key for case in found.cases[:2]] == [one.settings_key for one in found.records]
    assert found.skipped == [case.key for case in found.cases[2:]]


def test_while_fewer_than_two_cases_were_right_others_are_tried_until_the_end(manifest, monkeypatch, clock):
    began = proving(monkeypatch, clock, 5.0, CaseDied("it died"))
    found = run(manifest, SIX, strategy=SuccessiveHalving(5.0, proofs_s=5.0, end_s=15.0))
    assert began == [case.key for case in found.cases[:4]]
    assert found.skipped == [case.key for case in found.cases[3:]]
    with pytest.raises(LoaderFailed, check=kind("no-case-measured")) as it:
        raise nothing_measured(found, Requirements(max_time_s=20.0))
    assert "3 of 6" in it.value.hint
    assert "\n" not in str(it.value)


def test_the_first_proof_ends_with_all_of_the_time(manifest, monkeypatch, clock):
    began = proving(monkeypatch, clock, 50.0)
    found = run(manifest, SIX, strategy=SuccessiveHalving(5.0, proofs_s=10.0, end_s=40.0))
    assert len(began) == 1
    assert len(found.skipped) == 6


def test_data_that_are_wrong_are_proved_wrong_once_for_all_loaders(manifest, monkeypatch, clock):
    began = proving(monkeypatch, clock, 0.0)
    changes = {"content": 1}, {"ordered": 1}  # seen when it is opened, and not before all was read
    for change in changes:
        began.clear()
        found = run(replace(manifest, **change), SIX, strategy=SuccessiveHalving(600.0))
        assert len(began) == 2, "one for each format"
        assert set(found.failures) == {case.key for case in found.cases}
        assert {error.kind for error in found.failures.values()} == {"other-content"}
    assert len(list(alternatives.skipped_cases(found))) == 2, "a line for each reason, not for each case"


def test_a_loader_that_is_wrong_over_sound_data_is_wrong_alone(manifest, monkeypatch, clock):
    began = proving(monkeypatch, clock, 0.0, WrongContent("wrong content on the device"))
    found = run(manifest, SIX, strategy=SuccessiveHalving(600.0))
    assert len(began) == len(found.failures) == 6


def test_fresh_rounds_have_the_fastest_and_the_default_before_all_others(manifest, monkeypatch, clock):
    race = FinalRounds(20.0, end_s=30.0)
    assert race.verifies(99.0, [])
    assert race.verifies(20.0, [10.0])
    assert not race.verifies(21.0, [10.0]), "its round could not begin in time"
    assert race.verifies(10.0, [5.0, 5.0])
    assert not race.verifies(11.0, [5.0, 5.0]), "others would lose their rounds"
    assert race.behind({"a": {1: 9.0}, "b": {1: 1.0}}) == []
    assert [race.first(place, took_s) for place, took_s in ((0, 9.0), (1, 5.0), (2, 1.0))] == [0, 1, 2]
    proving(monkeypatch, clock, 4.0)
    found = run(manifest, SIX, strategy=FinalRounds(12.0, rounds=1, end_s=30.0))
    assert [one.case["loader"] for one in found.records] == [case.loader.name for case in found.cases[:2]]
    (finding,) = skipped_finalists(found, "final rounds")
    names = "; ".join(str(found.labels[case.key]) for case in found.cases[2:])  # no more than are named
    assert (finding.kind, finding.values["cases"], finding.values["skipped"]) == (
        "finalists-skipped",
        names,
        4,
    )


def test_fresh_rounds_compare_before_they_measure_limits(manifest):
    found = run(manifest, replace(SIX, limits=True), strategy=FinalRounds(2.0, rounds=2, end_s=60.0))
    assert {(one.round, one.limit is None) for one in found.records} == {(1, True), (2, False)}


def test_no_turn_begins_after_the_end(manifest, clock, monkeypatch):
    made, time_case = [], run_loop.RunLoop.time_round

    def slowly(self, case, number, *rest):
        made.append(number)
        clock.now += 10.0
        return time_case(self, case, number, *rest)

    monkeypatch.setattr(run_loop.RunLoop, "time_round", slowly)
    found = run(manifest, SIX, strategy=SuccessiveHalving(1000.0, end_s=25.0))
    assert made == [1, 1, 1]
    assert len(found.skipped) == 3


def test_the_finalists_come_in_the_order_in_which_they_matter(manifest):
    cases = cases_of(manifest, SIX, ["cpu"])[:3]
    named = zip(
        cases, ([recommendation.RUNNER_UP], [recommendation.DEFAULT], [recommendation.FASTEST]), strict=True
    )
    alike, roles = search.same_isolation(cases, {case.key: role for case, role in named})
    assert [roles[case.key] for case in alike] == [
        [recommendation.FASTEST],
        [recommendation.DEFAULT],
        [recommendation.RUNNER_UP],
    ]


def test_a_missing_comparison_with_the_default_has_its_reason(manifest):
    made = run(manifest, replace(SIX, rounds="1"))
    found = search.SearchResult(MeasuredData(manifest, 1, False), made, made, {}, [])
    assert list(alternatives.missing_default(found)) == []
    default = next(case for case in made.cases if (case.variant, case.loader.name) == ("npy", "dataloader"))
    late = replace(made, records=[one for one in made.records if one.case != default.facets])
    (finding,) = alternatives.missing_default(replace(found, final=late))
    assert finding.kind == "default-no-time"
    (finding,) = alternatives.missing_default(
        replace(found, final=replace(late, failures={default.key: CaseDied("it died")}))
    )
    assert (finding.kind, finding.values["error"]) == ("default-failed", "case-died")
    without = replace(made, cases=[case for case in made.cases if case.loader.name != "dataloader"])
    (finding,) = alternatives.missing_default(replace(found, race=without))
    assert finding.kind == "default-excluded"


def source_of(rows):
    found = iobench.Synthetic(rows * 16, (16,))
    found.name = "mine"
    return found


def test_the_sample_is_announced_and_the_default_format_comes_first(tmp_path):
    messages = []
    requirements = Requirements(batch_size=1, formats=("hdf5", "npy"))
    made = from_source(source_of(40), [], requirements, tmp_path, messages.append)
    assert "2.50 KiB" in messages[0]
    assert messages[0].endswith(f" in {tmp_path / 'mine-first-40'}")
    assert [one.rpartition(" ")[2] for one in messages[1:]] == ["npy", "hdf5"]
    assert other_samples(made) == []
    measured_data.half_sample(made, ["npy"], time.monotonic() + 600)
    iobench.prepare(source_of(9), ["npy"], data_dir=tmp_path, name="mine-first-9")  # the user's own
    (tmp_path / "mine-first-nothing").mkdir()
    assert [one.name for one in other_samples(made)] == ["mine-first-20"]


def test_a_format_that_takes_too_long_to_write_is_skipped_and_leaves_nothing(tmp_path, monkeypatch):
    def written(first, variants, data_dir, end):
        return write(first, variants, data_dir, 0.0 if variants == ["hdf5"] else end)

    write = sample_writer.written
    monkeypatch.setattr(sample_writer, "written", written)
    requirements = Requirements(batch_size=1, formats=("hdf5", "memmap", "npy"))
    made = from_source(source_of(40), [], requirements, tmp_path, lambda text: None)
    assert set(made.manifest.artifacts) == {"npy", "memmap"}
    (reason,) = [one for one in made.skipped if one.values["format"] == "hdf5"]
    assert reason.kind == "out-of-time"
    assert not list(made.manifest.root.glob("*hdf5*"))
    assert not list(made.manifest.root.glob(".tmp*"))
    with pytest.raises(InvalidSettings, check=kind("out-of-time")):
        from_source(source_of(50), [], replace(requirements, formats=("hdf5",)), tmp_path, lambda text: None)


@pytest.mark.parametrize("variant", ["npy", "lance", "parquet"])
def test_no_library_hides_the_end_of_the_time(tmp_path, variant):
    with pytest.raises(OutOfTime, match=variant):
        sample_writer.written(FirstSamples(source_of(40), 40), [variant], tmp_path, 0.0)


def test_what_takes_long_to_decode_is_decoded_once(tmp_path):
    class Slow(iobench.Synthetic):
        decodes, name = True, "mine"
        count = 0

        def batches(self):
            Slow.count += 1
            return super().batches()

    requirements = Requirements(batch_size=1, formats=("hdf5", "memmap", "npy"))
    made = from_source(Slow(40 * 16, (16,)), [], requirements, tmp_path, lambda text: None)
    assert set(made.manifest.artifacts) == {"hdf5", "memmap", "npy"}
    assert Slow.count == 1
    assert made.decoding_s > 0
    again = from_source(Slow(40 * 16, (16,)), [], requirements, tmp_path, lambda text: None)
    assert again.decoding_s > 0
