"""`iobench recommend`: elimination in a race, findings about the finalists, and code that runs."""

import html
import json
import re
import runpy
import shlex
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import torch
from conftest import installed_formats
from kinds import complaint_kind, kind
from record_cases import by_round, rounds_of

import iobench
from iobench import formats
from iobench.advise import answer, findings, measured_data, recommendation, search
from iobench.advise.candidates import (
    candidate_set,
    default_case,
    loader_word,
    loader_words,
    packages_of,
    storable_variants,
)
from iobench.advise.code import loader_code, prepare_code
from iobench.advise.measured_data import MeasuredData, from_source, sample_count
from iobench.advise.recommend import time_step
from iobench.advise.recommendation import Finalist
from iobench.advise.requirements import Requirements
from iobench.advise.search import Choice, choose, runners_up
from iobench.base import registry, thresholds
from iobench.base.errors import (
    ArtifactExists,
    CaseDied,
    InvalidSettings,
    ManifestError,
    PrepareError,
    RecordError,
    SourceError,
    TargetError,
)
from iobench.base.finding import Finding
from iobench.base.machine import BackgroundLoad
from iobench.bench.budget import Budget
from iobench.bench.case import Case
from iobench.bench.case_grid import cases_of
from iobench.bench.options import RunOptions
from iobench.bench.outcome import Observer
from iobench.bench.policies import SuccessiveHalving
from iobench.bench.run import run
from iobench.contrib.formats.shared.jpeg_decoders import JPEG_LIBRARIES
from iobench.dataset.add import AddedSource, add
from iobench.dataset.manifest import Manifest
from iobench.dataset.sources import FirstSamples, GeneratedLengths, open_source
from iobench.dataset.sources.image_folder import SKIP
from iobench.formats import Field
from iobench.loading import loaders
from iobench.results import stats
from iobench.results.cases import Label

pytestmark = pytest.mark.usefixtures("few_rounds")


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    source = iobench.Synthetic(400_000, (32,))
    return iobench.prepare(source, ["npy", "hdf5"], data_dir=tmp_path_factory.mktemp("data"), name="mine")[0]


def test_a_race_drops_a_loader_that_is_slower_and_measures_it_no_more(manifest, monkeypatch):
    monkeypatch.setattr(thresholds, "ROUND_S", 0.2)  # of one epoch most is starting threads
    words = ("stream", "dataloader")
    options = RunOptions(format=("npy",), loader=words, limits=False)
    found = run(manifest, options, policy=SuccessiveHalving(600.0, rounds=4))
    (slow,) = [case for case in found.cases if case.loader.name == "dataloader"]
    assert list(found.eliminated) == [slow.key]
    rounds = [made.case["loader"] for made in found.records]
    assert rounds.count("dataloader") == found.eliminated[slow.key] < 4
    assert rounds.count("stream") == rounds.count("dataloader"), "a race of one is over"


def test_likely_cases_come_before_all_formats_of_a_loader(tmp_path):
    made, _ = iobench.prepare(iobench.Synthetic(4000, (32,)), ["hdf5", "lmdb", "npy"], data_dir=tmp_path)
    field = candidate_set(made, Requirements(), "cpu", "warm", added=("hdf5",))
    first = [(loader_word(case), case.variant) for case in field.cases[1:5]]
    assert first == [("stream", "npy"), ("stream", "hdf5"), ("native", "hdf5"), ("native", "npy")]


@pytest.mark.parametrize(
    ("asked", "orders"),
    [
        ({"min_shuffle": 0.5}, {"random", "block"}),
        ({"min_shuffle": 1.0}, {"random"}),
        ({"order": "block"}, {"block"}),
    ],
)
def test_order_by_blocks_takes_part_where_it_is_random_enough(manifest, asked, orders):
    cases = candidate_set(manifest, Requirements(**asked), "cpu", "warm").cases
    assert {case.order for case in cases} == orders
    with pytest.raises(InvalidSettings, check=kind("nothing-fits")):
        candidate_set(manifest, Requirements(order="block", min_shuffle=1.0), "cpu", "warm")


def test_the_disk_limit_applies_to_the_full_data(tmp_path):
    source = iobench.Synthetic(64 << 20, (1 << 14,))  # four times what is sampled
    requirements = Requirements(max_disk_bytes=128 << 20, formats=("npy",))
    with pytest.raises(InvalidSettings, check=kind("no-format")):
        from_source(source, (), requirements, tmp_path, lambda text: None)


def test_the_default_is_dataloader_sample_by_sample_over_npy_with_the_first_batch_size(manifest):
    requirements = Requirements(batch_size=(64, 16), step_ms=2.0)
    cases = candidate_set(manifest, requirements, "cpu", "warm").cases
    assert {case.batch_size for case in cases} == {16, 64}
    assert cases[0] is default_case(cases)
    assert (cases[0].variant, loader_word(cases[0]), cases[0].batch_size) == ("npy", "dataloader", 64)
    assert [requirements.step_s(size) for size in (64, 16)] == [0.002, 0.0005]


@pytest.fixture
def sleeping(monkeypatch):
    """Time a step by what it sleeps."""
    slept = [0.0]
    monkeypatch.setattr(time, "sleep", slept.append)
    passed = lambda: sum(slept)  # noqa: E731
    monkeypatch.setattr(
        "iobench.advise.recommend.time", SimpleNamespace(perf_counter=passed, monotonic=passed)
    )


@pytest.fixture
def timed(manifest, tmp_path):
    """Time a step of these lines of code; return the requirements, and the status lines."""

    def timed(lines, of=manifest, **asked):
        (tmp_path / "train.py").write_text(f"import time\ndef step(batch):\n    {lines}\n")
        messages, observer = [], Observer()
        observer.status = messages.append
        wanted = Requirements(step=f"{tmp_path}/train.py:step", **asked)
        return time_step(of, wanted, observer), messages

    return timed


def test_a_step_is_measured_over_each_size_and_done_as_long_in_the_rounds(manifest, sleeping, timed):
    lines = "time.sleep(0.03 if len(batch['x']) == 8 else 0.01)"
    steps = {8: pytest.approx(0.03), 32: pytest.approx(0.01)}
    for of in (iobench.Synthetic(64 * 16, (16,)), manifest):
        requirements, messages = timed(lines, of, batch_size=(8, 32), loaders=("native",))
        assert {size: requirements.step_s(size) for size in steps} == steps
        assert requirements.step_ms == pytest.approx(30.0)
        assert "(" + requirements.step in requirements.describe("warm")
        assert messages[0].endswith(f": {requirements.step}")
    cases = search.with_step(candidate_set(manifest, requirements, "cpu", "warm").cases, requirements)
    assert {case.batch_size: case.step_s for case in cases} == steps


def test_only_core_excludes_what_needs_other_packages(manifest):
    requirements = Requirements(only="core")
    found = candidate_set(manifest, requirements, "cpu", "warm")
    assert {case.loader.name for case in found.cases} == {"native", "stream", "dataloader"}
    assert not any(packages_of(case) for case in found.cases)
    assert found.skipped[0].kind == "excluded"
    assert not any("loader" in one.values for one in found.skipped)
    worth, _ = storable_variants(manifest.schema, requirements)
    assert {"npy", "memmap", "hdf5", "lmdb"} <= set(worth)
    assert {"zarr", "arrow", "safetensors", "tfrecord"}.isdisjoint(worth)
    assert {"safetensors"} <= set(storable_variants(manifest.schema, Requirements())[0])


def test_loaders_are_raced_with_defaults_and_with_recommended_options():
    words = loader_words(Requirements())
    assert {"spdl", "spdl:keep_pipeline=yes"} < set(words)
    assert words.index("spdl:keep_pipeline=yes") > words.index("webdataset"), "defaults come first"
    assert len(words) == len(set(words))


def test_a_loader_is_skipped_with_one_finding(manifest):
    found = candidate_set(manifest, Requirements(), "cpu", "warm")
    assert len([one for one in found.skipped if one.values.get("loader") == "huggingface"]) == 1


def test_a_loader_that_reads_none_of_the_formats_is_an_error(manifest):
    with pytest.raises(InvalidSettings, check=kind("no-cases")):
        candidate_set(manifest, Requirements(loaders=("stream",), order="random", formats=()), "cpu", "warm")


def test_the_first_samples_of_a_source(tmp_path):
    whole = iobench.Synthetic(100 * 8, (8,))
    first = FirstSamples(whole, 30)
    batches = list(first.batches())
    assert sum(len(batch["x"]) for batch in batches) == 30 == first.schema.samples
    expected = np.concatenate([batch["x"] for batch in whole.batches()])[:30]
    np.testing.assert_array_equal(np.concatenate([batch["x"] for batch in batches]), expected)
    assert first.description != whole.description


def test_a_sample_has_some_batches_and_no_more_steps_than_there_is_time_for():
    small = iobench.Synthetic(10**8, (128,))
    assert sample_count(small, Requirements(), cold=False) * small.schema.sample_bytes == 64 << 20
    assert sample_count(small, Requirements(step_ms=10.0), cold=False) == 200 * 256
    assert sample_count(small, Requirements(step_ms=40.0), cold=False) == 75 * 256
    assert sample_count(small, Requirements(step_ms=40.0, max_time_s=60.0), cold=False) == 20 * 256
    large = iobench.Synthetic(10**9, (3, 224, 224))
    in_64_mib = (64 << 20) // large.schema.sample_bytes
    assert sample_count(large, Requirements(batch_size=4), cold=False) == in_64_mib
    assert sample_count(large, Requirements(batch_size=64), cold=False) == 20 * 64
    large.decodes = True
    assert sample_count(large, Requirements(batch_size=64), cold=False) == 4 * 64


def snippet(manifest, loader, order):
    """The code for a loader over some format that it reads, with an assertion about its batches."""
    variant = next(name for name in ("npy", *installed_formats()) if loader.reads(formats.get(name)))
    if variant not in manifest.artifacts:
        source = iobench.Synthetic(100_000, (32,))
        manifest = iobench.prepare(source, [variant], data_dir=manifest.root.parent, name=variant)[0]
    case = Case(manifest.name, "", variant, loader.on("cpu"), order=order)
    code = loader_code(MeasuredData(manifest, 1, False), case, epochs=2)
    assert code.count("for epoch in range(2):") == 1
    return re.sub(r"pass  # x", "assert batch['x'].shape[1:] == (32,)  # x", code)


def usable(word):
    """The loader of that word; skips, with the reason, where it is not installed."""
    states = {one["name"]: one["usable"] for one in loaders.describe()}[word.partition(":")[0]]
    if states != "yes":
        pytest.skip(states)
    return loaders.parse(word)


BOTH = ("sequential", "random")
WITH_PROCESSES = ("ray", "dataloader:num_workers=1,persistent_workers=yes")  # Ray has a cluster to start


@pytest.mark.parametrize("order", BOTH)
@pytest.mark.parametrize(
    "word", [*(n for n in loaders.names() if n != "ray"), "dataloader:fetch=batch", "stream:threads=2"]
)
def test_every_snippet_runs(manifest, word, order, tmp_path):
    loader = usable(word)
    if order not in loader.orders:
        pytest.skip(f"{word} has no {order} order")
    (tmp_path / "train.py").write_text(snippet(manifest, loader, order))
    runpy.run_path(str(tmp_path / "train.py"), run_name="__main__")


RUN_BOTH = """
import runpy
if __name__ == "__main__":
    for order in ("sequential", "random"):
        runpy.run_path(f"{order}.py", run_name="__main__")
"""


@pytest.mark.parametrize("word", WITH_PROCESSES)
def test_snippets_that_start_processes_run(manifest, word, tmp_path):
    for order in BOTH:
        (tmp_path / f"{order}.py").write_text(snippet(manifest, usable(word), order))
    (tmp_path / "train.py").write_text(RUN_BOTH)
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr
    assert word == "ray" or not done.stderr  # which logs


@pytest.fixture(scope="module")
def answered(tmp_path_factory, warm_python):
    folder = tmp_path_factory.mktemp("own")
    np.save(folder / "own.npy", np.random.default_rng(0).random((4000, 64), np.float32))
    few = "--max-time 30 --step-ms 0.5 --epochs 2 --format npy --format hdf5 --only core --json"
    code = (
        "from iobench.advise import search\n"
        "from iobench.__main__ import main\n"
        "search.UNLIMITED = 10\n"  # rounds end it, not the time
        "main()"
    )
    return folder, warm_python(code, "recommend", "--source", "own.npy", *few.split(), cwd=folder)


def test_an_answer_with_code_for_ones_own_file(answered, inside, monkeypatch):
    folder, done = answered
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    roles = [role for one in found["finalists"] for role in one["roles"]]
    late = " ".join(one["values"].get("kinds", one["kind"]) for one in found["findings"])  # under load
    assert "fastest" in roles
    assert "default" in roles or "default-no-time" in late
    assert "runner-up" in roles or "finalists-skipped" in late or "time-limited" in late
    assert found["use"]["key"] in [one["key"] for one in found["finalists"]]
    if found["outcome"] not in ("decided", "tied"):  # under load
        assert (found["prepare"], found["code"]) == ("", "")
        return
    command = shlex.split(found["prepare"])
    assert command[:2] == ["iobench", "add" if found["use"]["format"] == "npy" else "prepare"]
    monkeypatch.chdir(folder)
    prepared = inside(*command[1:])
    assert prepared.returncode == 0, prepared.stderr
    assert "for epoch in range(2):" in found["code"]
    Path("train.py").write_text(found["code"])
    runpy.run_path("train.py", run_name="__main__")


def test_formats_and_loaders_that_take_no_samples_of_different_lengths_are_listed_apart():
    findings = [
        Finding("ragged", "", values=one) for one in ({"format": "tokens"}, {"loader": "lance:via=x"})
    ]
    together = list(answer.skipped_together(findings))
    assert [one.values["names"] for one in together] == ["tokens", "lance"]


@pytest.mark.parametrize("unknown", [True, False])
def test_files_that_only_ones_own_loader_reads_are_not_the_format_to_use(manifest, unknown):
    """Over the default's own format, there is no break-even point."""
    case = case_of(manifest, "stream")
    result = SimpleNamespace(data=measured_data.from_dataset(manifest, Requirements()))
    use = finalist(case, 40.0, against=(4.0, 3.9, 4.1))
    default = finalist(case, 10.0, unknown_files=unknown)
    cost, even = findings.costs(result, use, default, Requirements())
    assert (cost.kind, even.kind, "epochs_low" in even.values) == ("cost", "break-even", unknown)


def test_final_rounds_replace_the_places_of_the_race():
    place = search.final_roles
    assert place(["runner-up", "default"], "fastest") == ["fastest", "default"]
    assert place(["fastest"], "runner-up") == ["runner-up"]
    assert place(["default"], "runner-up") == ["default"]
    assert place([recommendation.OTHER_LOADER], "fastest") == ["fastest"]
    assert place([recommendation.OTHER_LOADER], "runner-up") == [recommendation.OTHER_LOADER]


@pytest.mark.parametrize(("rate", "used"), [(97.0, "cheap"), (88.0, "dear")])
def test_of_those_that_are_tied_the_cheapest_is_used_only_if_it_came_near_the_fastest(manifest, rate, used):
    """Noisy rounds decide nothing, and 12 % would be lost for a few bytes less."""
    words, rates = ("dataloader:num_workers=2", "native"), {"dear": 100.0, "cheap": rate}
    cases = {name: case_of(manifest, word) for name, word in zip(rates, words, strict=True)}
    candidates = [finalist(cases[name], rates[name], leader=name == "cheap") for name in rates]
    chosen = choose(compared(manifest, *cases.values()), candidates)
    assert (chosen.outcome, chosen.use.key, len(chosen.tied)) == ("tied", cases[used].key, 1)
    assert chosen.instead_of is None


def compared(manifest, *cases):
    """Return what `choose` needs of a search with these finalists."""
    return SimpleNamespace(finalists=list(cases), data=SimpleNamespace(manifest=manifest))


def test_a_significant_gain_is_preferred_to_a_higher_uncertain_median(manifest):
    words = ("stream", "native", "dataloader:fetch=batch", "dataloader")
    cases = [case_of(manifest, word) for word in words]
    found = compared(manifest, *cases)

    def one(number, rate, **changes):
        return finalist(cases[number], rate, label=Label("npy", words[number]), **changes)

    fastest = one(0, 142.0, against=(1.42, 0.89, 1.74))
    sure = [
        one(1, 134.0, leader=True, against=(1.37, 1.31, 1.52)),
        one(2, 132.0, leader=True, against=(1.32, 1.24, 1.44)),
    ]
    default = one(3, 100.0, leader=True, roles=[recommendation.DEFAULT])
    chosen = choose(found, [fastest, *sure, default])
    assert (chosen.outcome, chosen.use, chosen.instead_of) == ("tied", sure[0], fastest)
    assert chosen.tied == [fastest, sure[1], default]
    head = findings.headline(chosen, [fastest, *sure, default], MeasuredData(manifest, 1, False))
    assert head.kind == "tied"
    expected = {"use": "npy · native", "default": "npy · dataloader", "gain": 1.37}
    assert head.values.items() >= expected.items()
    (reason,) = findings.certainty(chosen)
    assert (reason.kind, reason.values["instead_of"]) == ("tied", "npy · stream")
    surely = one(0, 142.0, against=(1.42, 1.2, 1.7))
    assert choose(found, [surely, *sure, default]).instead_of is None
    unsure = [one(n, 130.0, against=(1.1, 0.9, 1.3)) for n in range(3)]
    assert choose(found, [*unsure, default]) == Choice("keep", default)


def test_two_rounds_decide_only_what_is_far_above_their_scatter():
    far, near = stats.compared(by_round(900, 880), by_round(10, 11), 1), by_round(140, 100)
    assert (far.outcome, far.ratio.low > 1.05) == ("faster", True)
    unsure = stats.compared(near, by_round(70, 95), 1)
    assert (unsure.outcome, unsure.ratio.ends) == ("inconclusive", None)
    one_round = [stats.compared(by_round(*rates), by_round(10), 1) for rates in ([900], [99], [0.9])]
    assert [one.outcome for one in one_round] == ["faster", "inconclusive", "slower"]
    assert {one.ratio.low for one in one_round} == {None}
    scattered = by_round(11, 7.4)  # sure alone, not as one of twelve comparisons
    outcomes = [stats.compared(scattered, by_round(1.22, 0.82), count).outcome for count in (1, 12)]
    assert outcomes == ["faster", "inconclusive"]


def test_a_default_without_a_rival_is_undecided(manifest):
    case = case_of(manifest, "dataloader")
    default = default_of(case, 10.0)
    chosen = choose(compared(manifest, case), [default])
    assert chosen == Choice("undecided", default)
    assert findings.headline(chosen, [default], MeasuredData(manifest, 1, False)).kind == "undecided"


def test_a_gain_over_files_that_were_not_measured_is_not_stated(tmp_path, manifest):
    image = pytest.importorskip("PIL.Image")
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        image.new("RGB", (9, 9)).save(tmp_path / "pets" / name / "0.jpg")
    (tmp_path / "pets/cat/1.jpg").write_bytes(b"damaged")
    data = MeasuredData(manifest, 1, False, source=open_source(tmp_path / "pets", on_error="skip"))
    default = default_of(case_of(manifest, "dataloader"), 10.0)
    use = finalist(case_of(manifest, "stream"), 40.0, against=(4.0, 3.9, 4.1))
    for chosen in (Choice("decided", use), Choice("keep", default)):
        assert findings.headline(chosen, [use, default], data).kind == "no-baseline"
    own, others = replace(data, added=(default.format,)), MeasuredData(manifest, 1, False, added=("hdf5",))
    for known, is_own in ((own, True), (others, False)):
        head = findings.headline(Choice("decided", use), [use, default], known)
        assert (head.kind, "your files" in head.message) == ("decided", is_own)


@pytest.mark.parametrize("suffix", ["npz", "pt", "csv"])
def test_the_cost_is_told_against_files_that_no_format_reads(tmp_path, suffix):
    path, x = tmp_path / f"own.{suffix}", np.random.default_rng(0).random((500, 8))
    if suffix == "npz":
        np.savez(path, x=x)
    elif suffix == "pt":
        torch.save({"x": torch.from_numpy(x)}, path)
    else:
        path.write_text("\n".join([",".join("abcdefgh"), *(",".join(map(str, row)) for row in x.tolist())]))
    wanted = Requirements(batch_size=8, formats=("npy",), full_bytes=10 * x.nbytes)
    data = from_source(open_source(path), (), wanted, tmp_path / "data", lambda text: None)
    assert data.own_format is None
    assert data.own_bytes == pytest.approx(10 * path.stat().st_size)
    assert "arrays in memory" in findings.describe_default(None, data)


def test_what_conversion_loses_is_told(tmp_path, manifest):
    """By a source of packed columns; and by what each kind of source says."""
    path = tmp_path / "table.csv"
    path.write_text("a,b,label\n" + "1.5,2.5,1\n" * 8)
    np.savez(tmp_path / "own.npz", x=np.zeros((8, 2)), z=np.zeros((8, 2)))
    np.arange(64, dtype=np.uint16).tofile(tmp_path / "train.bin")
    table = open_source(path)
    assert table.losses == ("2 columns become features",)
    assert open_source(tmp_path / "own.npz::x").losses == ("of own.npz only x is written",)
    assert not open_source(tmp_path / "own.npz").losses
    (windows,) = open_source(tmp_path / "train.bin", format="tokens:dtype=uint16,window=9").losses
    assert windows.startswith("windows of 9 tokens")
    data = MeasuredData(manifest, 1, False, source=table)
    case = case_of(manifest, "dataloader")
    told = list(findings.costs(SimpleNamespace(data=data), finalist(case, 10.0), None, Requirements()))
    assert told[-1].message == "Conversion loses: 2 columns become features"


def test_nothing_is_recommended_unless_it_beat_the_default_in_rounds_of_its_own(manifest, measured):
    use, default = (case_of(manifest, word).key for word in ("stream", "dataloader"))
    roles = {use: [recommendation.FASTEST], default: [recommendation.DEFAULT]}

    def answer(final, confirmed=True):
        data = MeasuredData(manifest, 1, False)
        found = search.SearchResult(data, faster, final, roles, [], confirmed=confirmed)
        return findings.recommendation_of(found, Requirements())

    faster, alike = at(measured, {use: 1e4, default: 5e3}), at(measured, {use: 5e3, default: 5e3})
    better = answer(faster)
    assert (better.outcome, better.use.key) == ("decided", use)
    assert "←" in table_text(better)
    assert better.code
    once = answer(replace(faster, records=[one for one in faster.records if one.round == 1]))
    kept = (once, "undecided"), (answer(faster, confirmed=False), "undecided"), (answer(alike), "keep")
    for one, outcome in kept:
        assert (one.outcome, one.findings[0].kind, one.use.key) == (outcome, outcome, default)
        assert (one.code, one.prepare, "←" in table_text(one)) == ("", "", False)


class Ending(Observer):
    """Ends the run of that number, the race being the first, by an exception in its second round."""

    def __init__(self, run, exception):
        self.run, self.exception, self.planned_runs, self.rounds = run, exception, 0, 0

    def planned(self, labels, batch_bytes):
        self.planned_runs, self.rounds = self.planned_runs + 1, 0

    def recorded(self, key, record):
        self.rounds += 1
        if (self.planned_runs, self.rounds) == (self.run, 2):
            raise self.exception


ASKED = Requirements(formats=("npy",), loaders=("native", "dataloader"), max_time_s=60.0)


@pytest.mark.parametrize(
    ("exception", "noted"),
    [(KeyboardInterrupt(), "interrupted"), (RecordError("full", kind="not-writable"), "stopped")],
)
@pytest.mark.parametrize("run", [1, 2])
def test_a_search_that_is_ended_answers_with_what_it_has(manifest, run, exception, noted, tmp_path):
    answer = iobench.recommend(manifest, ASKED, observer=Ending(run, exception))
    assert noted in [one.kind for one in answer.findings]
    assert len(answer.finalists) == 2
    assert answer.confirmed == (run == 2)
    assert ("race" in next(answer.charts()).caption) == (run == 1)
    recommendation.save(answer, tmp_path)
    assert [kept.use.key for kept in recommendation.past(tmp_path)[0]] == [answer.use.key]
    if run == 1:  # nothing was confirmed
        assert (answer.outcome, answer.code) == ("undecided", "")


def test_a_search_whose_final_rounds_cannot_be_kept_answers_with_the_race(manifest, monkeypatch):
    paths = iter([manifest.root.parent / "results" / "race.jsonl", Path("/dev/null/final.jsonl")])
    monkeypatch.setattr("iobench.bench.run.new_path", lambda _: next(paths))
    answer = iobench.recommend(manifest, ASKED)
    assert (answer.outcome, "stopped" in [one.kind for one in answer.findings]) == ("undecided", True)
    assert len(answer.finalists) == 2


def unsaved(*arguments):
    raise RecordError("cannot be written", kind="not-writable")


@pytest.mark.parametrize(
    ("target", "instead", "code", "error"),
    [
        ("iobench.terminal.live.view", lambda *_, **__: nullcontext(Ending(2, KeyboardInterrupt())), 130, ""),
        ("iobench.advise.recommendation.save", unsaved, 1, "error[not-writable]"),
    ],
    ids=["interrupted", "not saved"],
)
def test_an_answer_is_shown_however_the_command_ends(
    manifest, inside, monkeypatch, target, instead, code, error
):
    monkeypatch.setattr(target, instead)
    line = "recommend --name mine --format npy --loader native --loader dataloader --max-time 60 --data-dir"
    done = inside(*line.split(), manifest.root.parent)
    assert (done.returncode, error in done.stderr) == (code, True)
    assert "npy" in done.stdout


def table_text(answer):
    return str(list(answer.tables()))


def test_where_decoding_takes_the_cores_no_limit_is_blamed(tmp_path):
    source = iobench.Synthetic(20_000, (32,))
    folder = tmp_path / "data"
    made = iobench.prepare(source, ["npy", "parquet", "hdf5:compression=gzip"], data_dir=folder, name="x")[0]
    cases = [case_of(made, "native", one) for one in made.artifacts]
    found = SimpleNamespace(data=SimpleNamespace(manifest=made))
    assert {one.variant: search.decodes(found, one) for one in cases} == {
        "npy": False,
        "parquet": True,
        "hdf5:compression=gzip": True,
    }
    slow = finalist(cases[0], 10.0)
    metrics = {**slow.metrics, "limit_bytes_per_s": stats.Estimate(5000.0, None, None)}
    slow = replace(slow, limit="page cache", metrics=metrics, decoding_cores=3.9)
    (finding,) = findings.limit_share(slow)
    assert (finding.kind, finding.values["cores"], finding.hint) == ("limit-share", 3.9, None)
    (photos,) = findings.limit_share(replace(slow, format="images:shape=3x64x64"))
    assert "dct_scaling=yes" in photos.hint or "pip install" in photos.hint
    for other in (replace(slow, decoding_cores=None), replace(slow, decoding_cores=0.3)):
        (finding,) = findings.limit_share(other)
        assert (finding.kind, finding.values["limit"]) == ("limit-share", "page cache")
        assert finding.values["limit_share"] < 0.01


@pytest.mark.parametrize(
    ("lengths", "dtype", "told"),
    [
        ("lognormal:50,1", "uint16", True),
        ("uniform:50,60", "uint16", False),
        ("lognormal:50,1", "uint8", False),
    ],
)
def test_padding_that_would_be_mostly_zeros_is_told(tmp_path, lengths, dtype, told):
    source = GeneratedLengths((Field("tokens", (-1,), dtype),), lengths, 20_000)
    made, _ = iobench.prepare(source, ["npy"], data_dir=tmp_path)
    wanted = RunOptions(rounds="1", limits=False, loader=("native",), device=("cpu",))
    done = iobench.run(made, wanted, out=tmp_path / "records.jsonl")
    found = SimpleNamespace(data=SimpleNamespace(manifest=made), race=done, final=done)
    kinds = [one.kind for one in findings.padding(found)]
    assert kinds == (["padding"] if told else [])
    if told:
        (one,) = findings.padding(found)
        assert one.values["fill"] == done.records[0].content_check.fill < 0.5


def test_with_a_step_loaders_that_may_read_during_it_are_measured_with_it(manifest):
    """Without the step they are slower than one that reads between steps."""
    words = {"native": 900.0, "dataloader": 90.0, "stream": 800.0, "dataloader:num_workers=2": 500.0}
    cases = {word: case_of(manifest, word) for word in words}
    rates = {cases[word].key: rate for word, rate in words.items()}
    requirements = Requirements(step_ms=1.0, batch_size=1)  # 1,000 samples/s are enough
    known = {cases["native"].key}
    named = search.for_step(list(cases.values()), rates, known, manifest, requirements)
    hopeful = ("stream", "dataloader:num_workers=2")  # the cheapest first; 474 is native's lower bound
    assert named == [(recommendation.OTHER_LOADER, cases[word].key) for word in hopeful]
    requirements = Requirements(step_ms=4.0, batch_size=1)  # of which 250 are enough
    named = search.for_step(list(cases.values()), rates, set(), manifest, requirements)
    assert named[0] == (recommendation.CHEAPEST, cases["native"].key)
    assert [key for _, key in named[1:]] == [cases[word].key for word in hopeful]


def at(run, rates, waiting=None):
    """Return the part of a run over these cases, by key, at these samples/s and shares of time to wait."""
    waiting, records = waiting or {}, []
    for one in (one for one in run.records if one.settings_key in rates):
        epochs_s = one.timing.samples / rates[one.settings_key]
        waits_s = epochs_s * waiting.get(one.settings_key, 0.0)
        # the whole of it, also where the machine was busy and the round was cut
        timing = replace(one.timing, epochs_s=epochs_s, wait_s=waits_s, partial=None)
        records.append(replace(one, timing=timing))
    return replace(run, cases=[case for case in run.cases if case.key in rates], records=records)


@pytest.fixture(scope="module")
def measured(manifest):
    """Return a run of five rounds of both formats under three loaders."""
    words = ("native", "stream", "dataloader")
    cases = [case_of(manifest, word, name) for name in ("npy", "hdf5") for word in words]
    return run(manifest, RunOptions(rounds="5", limits=False), observer=Observer(), cases=cases)


@pytest.fixture(scope="module")
def stepping(manifest):
    """Return a run of native and stream with a training step, and the keys of its cases."""
    cases = [replace(case_of(manifest, word), step_s=0.001) for word in ("native", "stream")]
    return run(manifest, RunOptions(rounds="5", limits=False), cases=cases), *(case.key for case in cases)


@pytest.fixture
def loading(manifest, measured):
    """Return the same cases without the step: a run in which native loads twice as fast, and their keys."""
    keys = [case_of(manifest, word).key for word in ("native", "stream")]
    return at(measured, dict(zip(keys, (2e4, 1e4), strict=True))), *keys


def answer_to(manifest, final, roles, stepped=None, **asked):
    found = search.SearchResult(MeasuredData(manifest, 1, False), final, final, roles, [], stepped)
    return findings.recommendation_of(found, Requirements(**asked))


def test_with_a_step_the_fastest_training_is_chosen_not_the_fastest_loading(manifest, loading, stepping):
    (final, native, stream), (stepped, *steps) = loading, stepping
    trains = at(stepped, dict(zip(steps, (1e3, 2e3), strict=True)), dict(zip(steps, (0.7, 0.5), strict=True)))
    roles = {native: [recommendation.FASTEST], stream: [recommendation.OTHER_LOADER]}
    result = answer_to(manifest, final, roles, trains, step_ms=1.0, loaders=("native", "stream"))
    assert (result.outcome, result.use.key) == ("decided", stream)
    assert result.use.wait_share == pytest.approx(0.5)
    assert [one.key for one in result.finalists] == [stream, native]
    assert result.finalists[0].samples_per_s.median < result.finalists[1].samples_per_s.median
    assert answer_to(manifest, final, roles).use.key == native


@pytest.mark.parametrize(("share", "told"), [(0.9, True), (0.1, False)])
def test_where_the_default_mostly_waits_for_its_first_batch_the_gain_is_an_upper_bound(
    manifest, loading, share, told
):
    final, native, stream = loading
    waits_s = share * manifest.schema.samples / 1e4
    records = [replace(one, timing=replace(one.timing, first_batch_s=waits_s)) for one in final.records]
    roles = {native: [recommendation.FASTEST], stream: [recommendation.DEFAULT]}
    answer = answer_to(manifest, replace(final, records=records), roles)
    assert ("up to" in answer.findings[0].message) == told
    assert any(one.kind == "start-up" for one in answer.findings) == told


def test_rounds_with_the_step_that_miss_the_default_do_not_decide(manifest, loading, stepping):
    """The time ended after the first case with the step: without it both were compared."""
    (final, native, stream), (stepped, first, _) = loading, stepping
    roles = {native: [recommendation.FASTEST], stream: [recommendation.DEFAULT]}
    result = answer_to(manifest, final, roles, at(stepped, {first: 1e3}), step_ms=1.0)
    assert (result.outcome, result.use.key) == ("decided", native)
    assert result.use.against_default.outcome == "faster"
    assert not result.use.step_decides
    assert result.use.wait_share is not None


def test_a_case_that_fails_with_the_step_is_skipped_and_not_chosen(manifest, loading, stepping):
    (final, native, stream), (stepped, first, second) = loading, stepping
    failed = replace(stepped, failures={first: CaseDied("its process was killed", kind="killed")})
    failed.records = [one for one in stepped.records if one.settings_key == second]
    roles = {key: [recommendation.FASTEST] for key in (native, stream)}
    result = answer_to(manifest, final, roles, failed)
    assert [one.key for one in result.finalists] == [result.use.key] == [stream]
    assert (result.skipped[-1].kind, result.skipped[-1].values["failed"]) == ("killed", 1)


def test_of_finalists_the_fresh_rounds_speak_and_of_others_near_the_fastest_the_race(manifest, measured):
    keys = [case_of(manifest, word).key for word in ("native", "stream", "dataloader")]
    alike = at(measured, dict.fromkeys(keys, 1e4))
    roles = {keys[0]: [recommendation.FASTEST], keys[1]: [recommendation.RUNNER_UP]}
    found = search.SearchResult(MeasuredData(manifest, 1, False), alike, alike, roles, [])
    result = findings.recommendation_of(found, Requirements())
    assert [one.values["case"] for one in result.alternatives] == ["npy · dataloader"]
    slow = replace(found, data=replace(found.data, decoding_s=100.0))
    both = [one.finalists[0].write_s for one in (result, findings.recommendation_of(slow, Requirements()))]
    assert both[1] - both[0] == pytest.approx(100.0)


def case_of(manifest, loader, format="npy"):
    return cases_of(manifest, RunOptions(format=(format,), loader=(loader,)), ["cpu"])[0]


def finalist(case, rate, leader=False, against=None, **changes):
    """A case with fifteen rounds at this rate; `against` is the ratio to the default, with its interval."""
    figures = {name: stats.estimate([rate] * 15) for name in ("samples_per_s", "bytes_per_s")}
    relative = stats.Estimate(1.0, None, None)
    label = changes.pop("label", None) or Label(case.variant, case.loader.variant)
    if against is not None:
        outcome = "faster" if against[1] > 1 else "inconclusive"
        changes["against_default"] = stats.Comparison(stats.Estimate(*against), outcome)
    changes = {"format": case.variant, "roles": [], "disk_bytes": 1.0, "write_s": 1.0, **changes}
    return Finalist(case.key, label, case.facets, 15, figures, relative, leader=leader, **changes)


def default_of(case, rate, **changes):
    return finalist(case, rate, roles=[recommendation.DEFAULT], **changes)


def test_cases_near_the_fastest_are_measured_again(manifest):
    assert runners_up({"a": 100.0, "b": 95.0, "c": 90.0, "d": 85.0, "e": 84.0}) == ["b", "c", "d"]
    assert runners_up({"a": 100.0, "b": 50.0, "c": 45.0}) == ["b"]
    assert runners_up({"a": 100.0}) == []


def test_the_figures_of_the_answer_are_of_fresh_rounds(answered):
    folder, done = answered
    found = json.loads(done.stdout)
    runs = [list(map(json.loads, (folder / path).read_text().splitlines())) for path in found["records"]]
    if len(runs) == 1:  # under load
        assert found["outcome"] == "undecided"
        return
    race, final = runs[:2]
    assert {one["run"] for one in race}.isdisjoint({one["run"] for one in final})
    use = found["use"]["metrics"]["samples_per_s"]["median"]
    rates = [one["timing"]["samples"] / one["timing"]["epochs_s"] for one in final]
    assert min(rates) <= use <= max(rates)


def test_warnings_hint_only_at_options_of_recommend():
    paces = [100, 80, 101, 99, 60, 100, 70, 100, 99, 100]
    records = [
        replace(
            replace(one, processor=replace(one.processor, cpu_speed_per_s=pace)),
            background=BackgroundLoad(steal=0.5),
        )
        for one, pace in zip(rounds_of([1000] * 10), paces, strict=True)
    ]
    result = SimpleNamespace(final=SimpleNamespace(valid_records=records), with_step=None)
    messages = findings.relevant_warnings(result)
    assert len(messages) == 2
    assert all("--max-time" in one.hints[-1] for one in messages)


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("--source", "x.npy", "--name", "y"), "conflicting-options"),
        (("--source", "x.npy", "--add", "y"), "conflicting-options"),
        (("--add", "x.npy", "--sample-shape", "3"), "missing-option"),
        (("--add", "x.npy", "--on-error", "skip"), "missing-option"),
        (("--source", "x.npy", "--on-error", "sometimes"), "unknown-choice"),
        (("--source", "x.npy", "--sample-shape", "abc"), "invalid-shape"),
        (("--full-size", "1KB"), "invalid-size"),
        (("--model", "mlp", "--step-ms", "3"), "conflicting-options"),
        (("--step-ms", "-1"), "out-of-range"),
        (("--step-ms", "nan"), "out-of-range"),
        (("--batch-size", "0"), "out-of-range"),
        (("--batch-size", "64,x"), "not-a-number"),
        (("--only", "any"), "unknown-choice"),
        (("--max-time", "nan"), "out-of-range"),
        (("--max-time", "1"), "out-of-range"),
        (("--min-shuffle", "2"), "out-of-range"),
        (("--epochs", "0"), "out-of-range"),
        (("--seed", "-1"), "out-of-range"),
        (("--order", "sequential", "--min-shuffle", "0.5"), "conflicting-options"),
        (("--model", "transformer"), "unknown-choice"),
        (("--order", "sideways"), "unknown-choice"),
        (("--format", "nonsense"), "unknown-format"),
        (("--loader", "nonsense"), "unknown-loader"),
        (("--max-disk", "1KiB"), "nothing-fits"),
    ],
)
def test_bad_input_is_one_line(manifest, inside, arguments, kind):
    done = inside("recommend", "--data-dir", manifest.root.parent, *arguments)
    assert (complaint_kind(done, 2), done.stdout) == (kind, "")
    assert done.stderr.count("\n") == 1


LOADERS = """
import time
from pathlib import Path
import torch

def slower(path):
    calls = Path(__file__).with_name("calls")
    count = len(calls.read_text()) if calls.exists() else 0
    calls.write_text("x" * (count + 1))
    for _ in range(49):
        time.sleep(0.001 * count)  # little, so that a busy machine has time to verify the others
        yield {"x": torch.zeros(256, 32)}

def broken(path):
    raise ValueError("unusable")
"""


def test_loaders_that_get_slower_or_raise_lose_the_race_and_are_listed(manifest, tmp_path):
    (tmp_path / "own.py").write_text(LOADERS)
    slower, broken = (f"{tmp_path / 'own.py'}:{name}" for name in ("slower", "broken"))
    requirements = Requirements(formats=("npy",), loaders=("stream", slower, broken), max_time_s=30.0)
    found = iobench.recommend(manifest, requirements)
    assert found.use.text.startswith("npy · stream")
    assert any("unusable" in one.message for one in found.skipped)
    if found.findings[0].kind in ("decided", "tied"):
        assert "your own loader" in found.findings[0].message


def test_a_function_of_ones_own_is_the_default_and_restricts_nothing(manifest, tmp_path):
    (tmp_path / "own.py").write_text(LOADERS)
    word = f"{tmp_path / 'own.py'}:slower"
    assert {word, "stream", "dataloader", "spdl"} <= set(loader_words(Requirements(loaders=(word,))))
    assert set(loader_words(Requirements(loaders=(word, "stream")))) == {word, "stream"}
    wanted = Requirements(loaders=(word, "dataloader"))
    cases = candidate_set(manifest, wanted, "cpu", "warm").cases
    assert cases[0].loader.user_defined
    own = default_case(cases, "hdf5")
    assert (own.variant, own.loader.user_defined) == ("hdf5", True)


def test_a_format_that_is_not_prepared_is_refused_before_the_step_is_timed(manifest, monkeypatch):
    monkeypatch.setattr("iobench.advise.recommend.time_step", lambda *of: pytest.fail("it was timed"))
    with pytest.raises(ManifestError, check=kind("not-prepared")):
        iobench.recommend(manifest, Requirements(formats=("zarr",), model="mlp"))


def test_a_model_is_timed_and_then_done_in_the_rounds_with_the_step(tmp_path):
    few, _ = iobench.prepare(iobench.Synthetic(32 * 256, (32,)), ["npy"], data_dir=tmp_path)
    requirements = time_step(few, Requirements(model="mlp", batch_size=8), Observer())
    assert requirements.step_ms > 0
    (case,) = cases_of(few, RunOptions(loader=("native",), batch_size=(8,)), ["cpu"])
    once = RunOptions(limits=False, rounds="1")
    made = run(few, once, out=tmp_path / "a.jsonl", cases=search.with_step([case], requirements))
    assert {one.case["model"] for one in made.records} == {"mlp"}


def test_of_batch_sizes_the_one_that_trains_fastest_is_used_however_well_another_is_fed(manifest):
    options = [RunOptions(format=("npy",), loader=("stream",), batch_size=(size,)) for size in (32, 128)]
    small, large = [cases_of(manifest, one, ["cpu"])[0] for one in options]

    def fed(one):
        waits = {**one.metrics, "wait_share": stats.Estimate(0.01, None, None)}
        return replace(one, stepped=replace(one, metrics=waits), step_decides=True)

    default, faster = fed(default_of(small, 10)), fed(finalist(large, 40, against=(4.0, 3.9, 4.1)))
    assert choose(compared(manifest, small, large), [faster, default]) == Choice("decided", faster)
    one_size = compared(manifest, small, replace(large, batch_size=32))
    assert choose(one_size, [faster, default]) == Choice("not-bottleneck", default)


def test_the_step_time_is_that_of_undisturbed_steps(sleeping, timed):
    lines = "time.sleep(next(times))\ntimes = iter([0.0] + [0.005] * 7 + [0.05] * 99)"
    requirements, messages = timed(lines)
    assert requirements.step_ms == pytest.approx(5.0)
    assert "longer" in messages[-1]


def test_a_step_may_take_something_out_of_its_batch(timed):
    assert timed("batch.pop('x').sum()")[0].step_ms > 0


def test_only_what_there_is_time_for_is_done_with_the_step(manifest):
    """The fastest and the default come first; fewer than two are not compared."""
    cases = [case_of(manifest, word) for word in ("native", "stream", "dataloader")]
    roles = dict(zip([case.key for case in cases], [["runner-up"], ["fastest"], ["default"]], strict=True))
    epoch_s = -(-manifest.schema.samples // 256) * 1.0

    def steppable(left_s, step_ms=1000.0):
        asked = Requirements(step_ms=step_ms, max_time_s=10.0)
        return search.steppable(cases, roles, manifest.schema.samples, asked, left_s)

    assert steppable(6 * epoch_s) == (cases, 6 * epoch_s)
    assert steppable(5 * epoch_s) == (cases[1:], 6 * epoch_s)
    assert steppable(3 * epoch_s) == ([], 6 * epoch_s)
    assert steppable(0.0, step_ms=0.0) == ([], 0.0)


def test_a_failure_of_the_last_check_keeps_the_answer(manifest, monkeypatch):
    def full(*arguments):
        raise PrepareError("the disk is full")

    monkeypatch.setattr(search, "MIN_HALF_S", 0.0)
    monkeypatch.setattr(measured_data, "half_sample", full)
    findings = iobench.recommend(manifest, replace(ASKED, loaders=("stream", "native"))).findings
    (note,) = [one for one in findings if one.kind == "stopped"]
    assert note.values == {"error": "prepare"}


def test_a_step_that_raises_or_is_missing_is_an_error(manifest, timed):
    with pytest.raises(TargetError, check=kind("raised")) as it:
        timed("raise KeyError('no such layer')")
    assert "train.py" in it.value.traceback
    with pytest.raises(TargetError, check=kind("missing-file", path="missing_train.py")):
        time_step(manifest, Requirements(step="missing_train.py:step"), Observer())


def test_a_sample_of_other_data_gives_way_and_nothing_else_does(tmp_path):
    def wanted(name, rows):
        source = iobench.Synthetic(rows * 16, (16,), seed=rows)
        source.name = name
        return source

    def sample(source):
        requirements = Requirements(batch_size=1, formats=("npy",))
        return from_source(source, [], requirements, tmp_path, lambda text: None).manifest

    before = sample(wanted("mine", 40))
    assert sample(wanted("mine", 40)).created == before.created
    other = iobench.Synthetic(40 * 8, (8,))
    other.name = "mine"
    assert sample(other).schema.fields[0].shape == (8,)
    iobench.prepare(wanted("x", 9), ["npy"], data_dir=tmp_path, name="yours-first-40")
    with pytest.raises(ArtifactExists):
        sample(wanted("yours", 40))


installed = registry.is_installed


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Write a folder of images of several sizes, for which no other decoder is installed; return its path."""
    Image = pytest.importorskip("PIL.Image")
    install_only(monkeypatch)
    rng = np.random.default_rng(0)
    for number in range(60):
        folder = tmp_path / "photos" / ("cat", "dog")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (40, 30 + number, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:03}.jpg")
    return tmp_path / "photos"


@pytest.fixture
def sampled(photos, tmp_path):
    """Write the sample of the photos, of 16 pixels a side unless a shape is given."""

    def sampled(shape=(3, 16, 16), words=(), **asked):
        wanted = Requirements(**{"batch_size": 8, "formats": ("npy",), "device": "cpu", **asked})
        source = open_source(photos, shape)
        return from_source(source, words, wanted, tmp_path / "data", lambda text: None)

    return sampled


def test_images_are_compared_with_as_they_are_decoded_now(photos, sampled, monkeypatch):
    data = sampled(loaders=("stream", "dataloader"))
    assert data.decoding_s > 0
    assert (data.added, data.own_format) == (("images:shape=3x16x16",), "images:shape=3x16x16")
    assert Path(data.manifest.added[data.own_format].path) == photos
    wanted = Requirements(batch_size=8, formats=("npy",), device="cpu")
    candidates = candidate_set(data.manifest, wanted, "cpu", "warm", data.added)
    assert candidates.cases[0].variant == data.own_format
    files = sum(file.stat().st_size for file in photos.rglob("*.jpg"))
    assert files <= data.full_stored_bytes(data.own_format) < files + 60 * 8192
    assert len([one for one in data.skipped if one.kind == "missing-dependency"]) == 8
    (together,) = answer.skipped_together(data.skipped)
    assert together.values["names"] == "nvimgcodec, opencv, simplejpeg, torchvision, turbojpeg"
    assert together.hint == f"pip install 'iobench[{','.join(JPEG_LIBRARIES)}]'"


def install_only(monkeypatch, *decoders):
    """Have the other decoders of JPEG files be not installed."""
    without = {one.module for word, one in JPEG_LIBRARIES.items() if word not in decoders}
    monkeypatch.setattr(registry, "is_installed", lambda module: module not in without and installed(module))


@pytest.mark.parametrize(("side", "scaled"), [(32, False), (16, True)])
def test_another_decoder_of_the_users_own_images_takes_part(photos, sampled, side, scaled, monkeypatch):
    pytest.importorskip("simplejpeg")
    install_only(monkeypatch, "simplejpeg")
    data = sampled((3, side, side), ("--source", str(photos)))
    own = f"images:shape=3x{side}x{side}"
    others = [f"{own},decoder=simplejpeg", f"{own},decoder=simplejpeg,dct_scaling=yes"]
    assert data.added == (own, *others[: 1 + scaled])
    wanted = Requirements(batch_size=8, formats=("npy",), loaders=("stream", "dataloader"), device="cpu")
    first = candidate_set(data.manifest, wanted, "cpu", "warm", data.added).cases[: 3 + scaled]
    assert [(case.variant, case.loader.name) for case in first] == [
        (own, "dataloader"),
        ("npy", "stream"),
        *((variant, "stream") for variant in data.added[1:]),
    ]
    command = shlex.split(prepare_code(data, first[-1]))
    assert command[:2] == ["iobench", "add"]
    assert first[-1].variant in command
    assert first[-1].variant in loader_code(data, first[-1], epochs=1)


def test_the_figures_of_a_part_of_the_files_have_no_stored_size(sampled, tmp_path, monkeypatch):
    monkeypatch.setattr(measured_data, "WARM_BYTES", 1)
    data = sampled(batch_size=2)
    options = RunOptions(("all",), ("native",), rounds="1", batch_size=2, limits=False)
    records = run(data.manifest, options, out=tmp_path / "a.jsonl").records
    sizes = {one.case["format"]: one.dataset.stored_bytes for one in records}
    assert [name for name, size in sizes.items() if size is None] == [data.own_format]
    assert len(sizes) == 2


def test_a_damaged_image_is_named_and_no_format_is_blamed(photos, sampled):
    damaged = next(photos.glob("*/*"))
    damaged.write_bytes(damaged.read_bytes()[:-40])
    with pytest.raises(SourceError, check=kind("undecodable", path=damaged, hint=SKIP)):
        sampled()


def test_a_folder_without_jpeg_files_has_no_other_decoder(tmp_path):
    Image = pytest.importorskip("PIL.Image")
    (tmp_path / "photos/cat").mkdir(parents=True)
    Image.new("RGB", (64, 64)).save(tmp_path / "photos/cat/1.png")
    assert open_source(tmp_path / "photos", (3, 16, 16)).other_decoders() == ()


def test_decoders_leave_time_to_measure(photos, tmp_path, monkeypatch):
    pytest.importorskip("simplejpeg")
    install_only(monkeypatch, "simplejpeg")
    budget = Budget(100.0, began=time.monotonic() - measured_data.WRITING * 100.0)
    wanted = Requirements(batch_size=8, formats=("npy",), device="cpu", max_time_s=100.0)
    source = open_source(photos, (3, 16, 16))
    data = from_source(source, (), wanted, tmp_path / "data", lambda text: None, budget)
    assert data.added == ("images:shape=3x16x16",)
    late = [one.values["format"] for one in data.skipped if one.kind == "not-read-in-time"]
    assert late == [one for one in source.other_decoders() if "simplejpeg" in one]


@pytest.mark.parametrize("speed", [2.0, 1.05])
def test_a_faster_way_to_read_the_users_own_files_is_an_alternative(manifest, measured, speed):
    fastest, other, default = (
        case_of(manifest, *way).key for way in (("native",), ("stream", "hdf5"), ("dataloader", "hdf5"))
    )
    raced = at(measured, {fastest: 10.0, other: speed, default: 1.0})
    roles = {fastest: [recommendation.FASTEST], default: [recommendation.DEFAULT]}
    found = search.SearchResult(MeasuredData(manifest, 1, False, added=("hdf5",)), raced, raced, roles, [])
    every = findings.recommendation_of(found, Requirements()).alternatives
    named = [one.values for one in every if one.values["for"] == "no conversion"]
    assert [one["case"] for one in named] == ["hdf5 · stream"] * (speed == 2.0)
    assert all((one["gain"], one["speed"]) == pytest.approx((2.0, 0.2)) for one in named)


@pytest.fixture
def ways(manifest):
    """Return cases: stream over npy, and two ways to read the user's own files, in HDF5."""
    words = [("npy", "stream"), ("hdf5", "dataloader"), ("hdf5", "stream")]
    return [case_of(manifest, word, form) for form, word in words]


def test_another_decoder_is_a_finalist_if_there_is_time(manifest, ways):
    npy, today, other = ways
    faster = replace(other, variant="images:shape=3x16x16,decoder=simplejpeg")
    data = MeasuredData(manifest, 1, False, added=("hdf5", faster.variant))
    rates = {npy.key: 1e6, today.key: manifest.schema.samples / 2.0}
    over_own = partial(search.over_own_files, [today, npy, other, faster], data)
    known = {npy.key: [recommendation.FASTEST], today.key: [recommendation.DEFAULT]}
    needed_s = search.OWN_EPOCHS * 4.0 / search.FINAL  # 2 s as the slowest, twice
    assert over_own(rates, known, 1.05 * needed_s) == faster.key
    assert over_own(rates, known, 0.95 * needed_s) is None
    rates[faster.key] = 1e6
    assert over_own(rates, known, 0.6 * needed_s) == faster.key
    assert over_own(rates, {**known, faster.key: [recommendation.RUNNER_UP]}, 1e9) is None


def test_the_users_own_files_are_finalists_if_they_are_not_far_behind(manifest, ways):
    (npy, today, stream), data = ways, MeasuredData(manifest, 1, False, added=("hdf5",))
    rates, known = {npy.key: 1e6, today.key: 1e3}, {npy.key: ["fastest"], today.key: ["default"]}
    over_own = partial(search.over_own_files, [today, npy, stream], data)
    assert over_own(rates, known, 1e9) is None
    assert over_own({**rates, stream.key: 4e5}, known, 1e9) is None
    assert over_own({**rates, stream.key: 6e5}, known, 1e9) == stream.key
    assert over_own({**rates, stream.key: 6e5}, known, 0.1) is None


def test_a_case_without_a_conversion_costs_least(ways):
    npy, _, own = ways
    artifacts = {
        "npy": SimpleNamespace(added=None, stored_bytes=1),
        "hdf5": SimpleNamespace(added=SimpleNamespace(), stored_bytes=9),
    }
    costs = [search.cost_of(case, SimpleNamespace(artifacts=artifacts)) for case in (npy, own)]
    assert costs[1] < costs[0]


@pytest.mark.parametrize(
    ("word", "shape", "check"),
    [
        ("3x16x16", (3, 16, 16), "batch['x'].shape[1:] == (3, 16, 16)"),
        ("*x*x3", (-1, -1, 3), "batch['x_extents'][:, 0].tolist() == [40] * len(batch['y'])"),
    ],
)
def test_the_code_for_the_users_own_images_runs(
    photos, sampled, tmp_path, inside, monkeypatch, word, shape, check
):
    monkeypatch.setattr(measured_data, "sample_count", lambda *given: 40)
    data = sampled(shape, ("--source", str(photos), "--sample-shape", word))
    assert (data.own_format, data.manifest.schema.samples) == (f"images:shape={word}", 40)
    case = case_of(data.manifest, "stream", data.own_format)
    command = shlex.split(prepare_code(data, case))
    assert command[:2] == ["iobench", "add"]
    assert inside(*command[1:]).returncode == 0
    code = loader_code(data, case, epochs=1)
    (tmp_path / "train.py").write_text(code.replace("pass", f"assert {check}"))
    runpy.run_path(str(tmp_path / "train.py"), run_name="__main__")
    assert Manifest.load(tmp_path / "data" / "photos").schema == open_source(photos, shape).schema


def test_what_images_take_at_their_own_sizes_and_at_one_is_told(sampled):
    kept, cropped = (findings.image_size(sampled(shape)) for shape in ((-1, -1, 3), (3, 16, 16)))
    assert (kept.kind, cropped.kind) == ("image-sizes", "image-sizes")
    held = 60 * (8 + 2 * 4) + 3 * 40 * sum(range(30, 90))  # labels and extents, then pixels
    assert kept.values == {"bytes": held, "cropped_bytes": 60 * 3 * 224 * 224}
    assert cropped.values == {"shape": "3x16x16"}


def test_files_that_changed_since_are_not_the_default(sampled, monkeypatch):
    def changed(*given, **options):
        raise SourceError("changed while it was hashed", kind="changed")

    monkeypatch.setattr(measured_data, "add_files", changed)
    data = sampled()
    assert data.own_format is None
    assert [(one.kind, one.values["format"]) for one in data.skipped] == [("changed", "images:shape=3x16x16")]


def test_the_size_of_the_users_own_files_is_scaled_to_the_full_size(photos, sampled, monkeypatch):
    monkeypatch.setattr(measured_data, "sample_count", lambda *given: 40)
    data = sampled(full_bytes=10 * open_source(photos, (3, 16, 16)).schema.logical_bytes)
    stored = data.manifest.artifacts[data.own_format].stored_bytes
    assert data.full_stored_bytes(data.own_format) == pytest.approx(10 * stored)
    assert data.full_stored_bytes("npy") == pytest.approx(15 * data.manifest.artifacts["npy"].stored_bytes)


@pytest.mark.parametrize("added", [True, False])
def test_the_users_own_hdf5_file_is_what_others_are_compared_with(tmp_path, added):
    """It is not written again, also where it is the only format that is asked for."""
    path, data_dir = tmp_path / "own.h5", tmp_path / "data"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(4000.0).reshape(500, 8), chunks=(50, 2), compression="gzip")
    source = AddedSource(add(path, data_dir=data_dir)[0]) if added else open_source(path)
    for asked, written in (("hdf5", ["hdf5"]), ("hdf5", ["hdf5"]), ("npy", ["hdf5", "npy"])):
        wanted = Requirements(batch_size=8, formats=(asked,))
        data = from_source(source, (), wanted, data_dir, lambda text: None)
        assert (sorted(data.manifest.artifacts), data.own_format) == (written, "hdf5")
        assert Path(data.manifest.added["hdf5"].path) == path


def test_cases_that_there_was_no_time_for_are_counted(manifest):
    raced = run(manifest, RunOptions(limits=False), policy=SuccessiveHalving(600.0, rounds=1, proofs_s=0.0))
    (finding,) = findings.skipped_cases(raced)
    assert (finding.kind, finding.values["skipped"]) == ("no-time", len(raced.skipped))


def test_a_format_that_there_was_no_time_to_write_is_skipped_with_the_reason(inside, tmp_path, monkeypatch):
    monkeypatch.setattr("iobench.advise.requirements.MIN_TIME_S", 1.0)
    monkeypatch.setattr("iobench.advise.measured_data.WRITING", 0.0)
    monkeypatch.setattr("iobench.advise.measured_data.INDISPENSABLE", 1.0)  # for the file itself
    np.save(tmp_path / "own.npy", np.random.default_rng(0).random((4000, 64), np.float32))
    few = ("--format", "memmap", "--loader", "dataloader", "--max-time", "60", "--json")
    data = ("--data-dir", tmp_path / "data")
    done = inside("recommend", "--add", tmp_path / "own.npy", "--name", "mine", *few, *data)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {one["case"] for one in found["finalists"]} <= {"npy · dataloader"}
    assert "out-of-time" in {one["kind"] for one in found["skipped"]}


def test_existing_files_are_added_and_a_recommendation_is_made_for_them(inside, tmp_path, monkeypatch):
    monkeypatch.setattr("iobench.advise.requirements.MIN_TIME_S", 1.0)  # rounds are short here
    np.save(tmp_path / "own.npy", np.random.default_rng(0).random((4000, 64), np.float32))
    few = ("--format", "memmap", "--loader", "stream", "--loader", "dataloader", "--max-time", "30")
    data = ("--data-dir", tmp_path / "data")
    done = inside("recommend", "--add", tmp_path / "own.npy", "--name", "mine", *few, *data, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (default,) = [one["case"] for one in found["finalists"] if "default" in one["roles"]]
    assert default == "npy · dataloader"
    assert "your files as they are" in found["findings"][0]["message"]
    if found["code"] and found["use"]["format"] != "npy":
        assert found["prepare"].startswith("iobench prepare --name mine")
    page = tmp_path / "report.html"
    assert inside("report", *data, "--out", page).returncode == 0
    assert "mine-first-4000" in page.read_text()
    assert html.escape(found["findings"][0]["message"]) in page.read_text()


def test_hashing_of_added_data_has_a_share_of_the_time(inside, tmp_path, monkeypatch):
    given = {}

    def add(path, format, **options):
        given.update(options)
        raise SourceError("stopped", kind="stopped")

    monkeypatch.setattr("iobench.dataset.add.add", add)
    done = inside("recommend", "--add", tmp_path / "own.npy", "--max-time", "40")
    assert "stopped" in done.stderr
    assert given["hash_s"] == pytest.approx(8.0)


def test_the_printed_command_takes_no_name_of_other_data(photos, sampled, tmp_path, inside):
    data = sampled((3, 16, 16), ("--source", str(photos), "--sample-shape", "3x16x16"))
    written, own = case_of(data.manifest, "stream"), data.added[0]
    other = ("--name", "photos", "--format", "images:shape=3x8x8", "--data-dir", tmp_path / "data")
    assert inside("add", photos, *other).returncode == 0
    command = shlex.split(prepare_code(data, written))
    assert "photos-2" in command
    assert "photos-2" in loader_code(data, written, epochs=1)
    assert inside(*command[1:]).returncode == 0
    assert prepare_code(data, written) == shlex.join(command)  # that name is this data's now
    adding = shlex.split(prepare_code(data, replace(written, variant=own)))
    assert adding[adding.index("--name") + 1] == "photos-2"
    assert inside(*adding[1:]).returncode == 0


def test_damaged_images_are_left_out_if_asked(photos, tmp_path, inside, monkeypatch):
    asked = {}

    def search(of, requirements, source_words, **options):
        asked.update(samples=of.schema.samples, words=source_words)
        raise SourceError("stopped", kind="stopped")

    monkeypatch.setattr("iobench.advise.recommend.recommend", search)
    damaged = photos / "cat" / "000.jpg"
    damaged.write_bytes(damaged.read_bytes()[:400])
    words = ("--source", str(photos), "--on-error", "skip")
    done = inside("recommend", *words, "--data-dir", tmp_path / "data")
    assert asked == {"samples": 59, "words": [*words]}
    assert "warning[damaged-skipped]" in done.stderr
