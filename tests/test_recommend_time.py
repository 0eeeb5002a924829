"""`iobench recommend` keeps to its time limit, and lists what there was no time for."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from kinds import kind

import iobench
from iobench.advise import findings, measured_data, recommendation, search
from iobench.advise.answer import DECIDED, KEEP
from iobench.advise.measured_data import MeasuredData, OutOfTime, from_source, other_samples
from iobench.advise.requirements import Requirements
from iobench.advise.search import Choice, nothing_measured
from iobench.base.errors import CaseDied, InvalidSettings, LoaderFailed, WrongContent
from iobench.bench.budget import Budget
from iobench.bench.case_grid import cases_of
from iobench.bench.executor import InProcess
from iobench.bench.options import RunOptions
from iobench.bench.policies import FinalRounds, SuccessiveHalving
from iobench.bench.run import run
from iobench.dataset.sources import FirstSamples

SIX = RunOptions(format=("npy", "hdf5"), loader=("native", "stream", "dataloader"), limits=False)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    source = iobench.Synthetic(40_000, (32,))
    return iobench.prepare(source, ["npy", "hdf5"], data_dir=tmp_path_factory.mktemp("data"), name="mine")[0]


def proving(monkeypatch, error=None):
    """Let each content check fail with that error; return the keys of those that began."""
    began, prove = [], InProcess.prove

    def noted(executor, case, warmup, tick, *limit):
        began.append(case.key)
        if error is not None:
            raise error
        return prove(executor, case, warmup, tick, *limit)

    monkeypatch.setattr(InProcess, "prove", noted)
    return began


def test_data_that_are_wrong_are_proved_wrong_once_for_all_loaders(manifest, monkeypatch):
    began = proving(monkeypatch)
    changes = {"content": 1}, {"ordered": 1}  # seen when it is opened, and not before all was read
    for change in changes:
        began.clear()
        found = run(replace(manifest, **change), SIX, policy=SuccessiveHalving(600.0))
        assert len(began) == 2, "one for each format"
        assert set(found.failures) == {case.key for case in found.cases}
        assert {error.kind for error in found.failures.values()} == {"other-content"}
    assert len(list(findings.skipped_cases(found))) == 2, "a line for each reason, not for each case"


def test_a_loader_that_is_wrong_over_sound_data_is_wrong_alone(manifest, monkeypatch):
    began = proving(monkeypatch, WrongContent("wrong content on the device"))
    found = run(manifest, SIX, policy=SuccessiveHalving(600.0))
    assert len(began) == len(found.failures) == 6


def test_a_run_without_a_case_that_is_right_says_how_many_were_tried(manifest, monkeypatch):
    proving(monkeypatch, CaseDied("it died"))
    failed = run(manifest, SIX, policy=SuccessiveHalving(600.0))
    late = replace(failed, skipped=[case.key for case in failed.cases[3:]])
    with pytest.raises(LoaderFailed, check=kind("no-case-measured")) as it:
        raise nothing_measured(late, Requirements(max_time_s=20.0))
    assert "3 of 6" in it.value.hint
    assert "\n" not in str(it.value)


def test_all_that_more_time_would_change_is_one_line(manifest):
    made = run(manifest, replace(SIX, rounds="1"))
    late = replace(made, skipped=[case.key for case in made.cases[2:]])
    found = search.SearchResult(MeasuredData(manifest, 1, False), late, late, {}, [], step_s=65.0)
    few = SimpleNamespace(text="npy", decisive=SimpleNamespace(rounds=1))
    (one,) = findings.time_limited(found, Choice(DECIDED, few), 30.0)
    kinds = "few-rounds, finalists-skipped, no-time-for-step, time-limited"
    assert (one.kind, one.values) == ("time-limited", {"kinds": kinds, "needed_s": 95.0})
    assert "--max-time 100 " in one.hint
    assert "; ".join(str(made.labels[case.key]) for case in made.cases[2:]) in one.message
    sure = replace(found, race=made, final=made, step_s=0.0)
    assert list(findings.time_limited(sure, Choice(KEEP, few), 30.0)) == []


def test_fresh_rounds_compare_before_they_measure_limits(manifest):
    found = run(manifest, replace(SIX, limits=True), policy=FinalRounds(Budget(600.0), rounds=2))
    assert {(one.round, one.limit is None) for one in found.records} == {(1, True), (2, False)}


def test_the_finalists_come_in_the_order_in_which_they_matter(manifest):
    cases = cases_of(manifest, SIX, ["cpu"])[:3]
    order = [[recommendation.FASTEST], [recommendation.DEFAULT], [recommendation.RUNNER_UP]]
    given = {case.key: role for case, role in zip(cases, order[::-1], strict=True)}
    alike, roles = search.same_isolation(cases, given)
    assert [roles[case.key] for case in alike] == order


def test_a_missing_comparison_with_the_default_has_its_reason(manifest):
    made = run(manifest, replace(SIX, rounds="1"))
    found = search.SearchResult(MeasuredData(manifest, 1, False), made, made, {}, [])
    assert findings.missing_default(found) is None
    default = next(case for case in made.cases if (case.variant, case.loader.name) == ("npy", "dataloader"))
    late = replace(made, records=[one for one in made.records if one.case != default.facets])
    failed = replace(late, failures={default.key: CaseDied("it died")})
    without = replace(made, cases=[case for case in made.cases if case.loader.name != "dataloader"])
    for changes, why in (
        ({"final": late}, "no-time"),
        ({"final": failed}, "case-died"),
        ({"race": without}, "excluded"),
    ):
        finding = findings.missing_default(replace(found, **changes))
        assert (finding.kind, finding.values) == ("no-baseline", {"why": why})


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
    measured_data.half_sample(made, ["npy"], Budget(600.0))
    iobench.prepare(source_of(9), ["npy"], data_dir=tmp_path, name="mine-first-9")  # the user's own
    (tmp_path / "mine-first-nothing").mkdir()
    assert [one.name for one in other_samples(made)] == ["mine-first-20"]


def test_a_format_that_takes_too_long_to_write_is_skipped_and_leaves_nothing(tmp_path, monkeypatch):
    def written(first, variants, data_dir, budget):
        return write(first, variants, data_dir, Budget(0.0) if variants == ["hdf5"] else budget)

    write = measured_data.written
    monkeypatch.setattr(measured_data, "written", written)
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
        measured_data.written(FirstSamples(source_of(40), 40), [variant], tmp_path, Budget(0.0))


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
