"""Settings of a loader: candidates, race, findings and errors."""

import json
import multiprocessing
import signal
import sys
import time
from contextlib import nullcontext, suppress
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import torch
from kinds import complaint_kind, kind
from live_loaders import FORK, Samples, Stream
from record_cases import rounds_at
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import iobench
from iobench.advise.answer import DECIDED, KEEP, LIMITED, NOT_BOTTLENECK, UNDECIDED
from iobench.advise.checks.evidence import Advice, Evidence
from iobench.advise.checks.loop_stats import padding_of
from iobench.advise.checks.watched_loader import WatchedLoader
from iobench.advise.diagnosis import diagnose
from iobench.advise.settings import search_space, settings_race, watchdog
from iobench.advise.settings.candidate import (
    BASELINE,
    HEADROOM,
    Candidate,
    candidates_table,
    compare_to_baseline,
    slowdown,
    unsuccessful,
)
from iobench.advise.settings.search_space import BATCH_FETCH, LoaderTraits, candidates_for
from iobench.advise.settings.settings_race import ResourceLimits, SettingsRace
from iobench.advise.settings.tunable_loader import TunableLoader, spawn_problem
from iobench.advise.settings.turn import Consumer, Turn, TurnSpec
from iobench.advise.settings.watchdog import LEAST, DeadlineReached, Watchdog, loader_budget
from iobench.advise.tune import next_step, result_of
from iobench.base.errors import InvalidSettings, TargetError
from iobench.base.finding import Finding
from iobench.base.machine import BackgroundLoad
from iobench.bench.budget import Budget
from iobench.loading.inspection import shallow_copy
from iobench.results import record_file


class Endless(IterableDataset):
    """Has no length."""

    def __iter__(self):
        while True:
            time.sleep(0.001)
            yield torch.zeros(4)


def names(loader, like=None, limits=None):
    return [
        candidate.name
        for candidate in candidates_for(TunableLoader(loader), like or LoaderTraits(threads=False), limits)[0]
    ]


def raced(rates, **wrong):
    """A race that is over: the baseline and others, by their rates in three final rounds."""
    candidates = []
    for number, (name, rate) in enumerate(rates.items()):
        rounds = {n: rate * factor for n, factor in enumerate((0.99, 1.0, 1.01), 1)}
        changes = {"num_workers": number} if number else {}
        candidates.append(
            Candidate(name, changes, "workers", race=rounds_at(rounds), final=rounds_at(rounds))
        )
    for field, value in wrong.items():
        setattr(candidates[0], field, value)
    return SettingsRace(TunableLoader(DataLoader(Samples(8))), TurnSpec()), candidates


def tuned(rates, **wrong):
    over, candidates = raced(rates, **wrong)
    return result_of(over, candidates, candidates)


def values_of(result, kind):
    """The values of the only finding of a kind."""
    (found,) = [one for one in result.findings if one.kind == kind]
    return found.values


MEMORY = Finding("memory-limit", "used too much")


@pytest.mark.parametrize(
    ("rates", "wrong", "outcome", "use", "values"),
    [
        ({"1 worker": 150}, {}, DECIDED, "1 worker", {"use": "1 worker", "gain": pytest.approx(1.5)}),
        ({"1 worker": 196, "2 workers": 200}, {}, DECIDED, "1 worker", None),  # the fewest of similar rates
        ({"1 worker": 104}, {}, KEEP, BASELINE, {"tried": 1}),
        ({"1 worker": 80}, {}, KEEP, BASELINE, {"tried": 1}),
        ({}, {}, KEEP, BASELINE, {"tried": 0}),
        ({"1 worker": 60}, {"over_limit": MEMORY}, LIMITED, "1 worker", {"use": "1 worker"}),
    ],
)
def test_each_race_has_its_outcome(rates, wrong, outcome, use, values):
    found = tuned({BASELINE: 100, **rates}, **wrong)
    assert (found.outcome, found.use.name, found.findings[0].kind) == (outcome, use, outcome)
    assert values in (None, found.findings[0].values)
    assert ("num_workers=1" in found.code) == (use == "1 worker")


@pytest.mark.parametrize("rate", [150, 80])
def test_work_that_no_setting_changes_is_named_with_its_remedy(rate):
    over, candidates = raced({BASELINE: 100, "1 worker": rate})
    cause = Advice("jpeg-draft", "JPEG images are decoded whole", "call image.draft()", {"share": 0.8}, 1.6)
    found = result_of(over, candidates, candidates, work=(cause, None))
    assert values_of(found, "beyond-settings") == {"cause": "jpeg-draft", "share": 0.8}
    (named,) = [one for one in found.findings if one.kind == "beyond-settings"]
    assert cause.message in named.message
    assert named.hint == cause.hint


@pytest.mark.parametrize(("rate", "advised"), [(160, True), (100, False)])
def test_a_remedy_that_its_own_rounds_refute_is_not_advised(rate, advised):
    over, candidates = raced({BASELINE: 100, "1 worker": 80, "JPEG at a smaller scale": rate})
    candidates[2].make = lambda: []
    cause = Advice("jpeg-draft", "JPEG images are decoded whole", "call image.draft()", {"share": 0.8})
    found = result_of(over, candidates[:2], candidates, work=(cause, candidates[2]))
    assert (found.outcome, found.use.name) == (KEEP, BASELINE), "it is no setting"
    gains = [one.values["gain"] for one in found.findings if one.kind == "beyond-settings"]
    assert gains == [pytest.approx(1.6)] * advised


def test_the_next_step_fits_the_answer():
    def step(found):
        return next_step(found, "train.py:make", 60.0)

    over, candidates = raced({BASELINE: 100, "1 worker": 300})
    assert step(result_of(over, candidates, candidates)).startswith(
        "return this DataLoader in train.py:make, "
    )
    assert step(tuned({BASELINE: 100, "1 worker": 90})).startswith("iobench diagnose train.py:make, ")
    for one in candidates:
        one.final = one.final[:1]
    undecided = result_of(over, candidates, candidates)
    assert step(undecided) == "iobench tune train.py:make --max-time 120"
    arguments = SimpleNamespace(outcome=DECIDED, code="num_workers=4")
    assert step(arguments) == "call train.py:make with num_workers=4"
    assert "step" in step(SimpleNamespace(outcome=NOT_BOTTLENECK, code=""))


@pytest.mark.parametrize(
    ("race", "final", "outcome"),
    [(1, 0, UNDECIDED), (1, 1, UNDECIDED), (1, 2, DECIDED)],
    ids=["a race alone", "one final round", "two"],
)
def test_a_gain_of_ten_times_needs_two_final_rounds(race, final, outcome):
    over, candidates = raced({BASELINE: 100, "1 worker": 1100})
    for one in candidates:
        one.race, one.final = one.race[:race], one.final[:final]
    found = result_of(over, candidates, candidates)
    assert found.outcome == outcome
    assert final or found.findings[0].values["ratio"] == pytest.approx(11.0)
    shown = dict(candidates_table(candidates, found.against))["outcome"]
    expected = "faster" if final > 1 else "too few rounds" if final else "no time for final rounds"
    assert shown == ["", expected]


def test_settings_are_not_kept_for_good_while_others_had_no_time():
    over, candidates = raced({BASELINE: 100, "1 worker": 90, "2 workers": 90})
    candidates[2].race, candidates[2].final = [], []
    found = result_of(over, candidates, candidates[:2])
    assert (found.outcome, values_of(found, UNDECIDED)) == (UNDECIDED, {"tried": 1, "untried": 1})


def test_without_any_figure_there_is_no_table():
    over, candidates = raced({BASELINE: 100, "1 worker": 90})
    for one in candidates:
        one.race, one.final = [], []
    found = result_of(over, candidates, candidates[:1])
    assert (found.outcome, list(found.tables())) == (UNDECIDED, [])
    watched = WatchedLoader([torch.zeros(2)] * 4, "cpu", lambda stats: None)
    assert len(list(watched)) == 4
    assert (
        len(list(diagnose(Evidence(watched.stats, candidates), alone=True).tables())) == 1
    )  # that of the loop


def test_each_candidate_has_an_outcome():
    rates = {"1 worker": 150, "2 workers": 90, "4 workers": 120, "8 workers": 1, "spawn": 1}
    _, candidates = raced({BASELINE: 100, **rates})
    for one in candidates[2:]:
        one.final = []
    candidates[4].race, candidates[5].race = [], []
    candidates[5].failure = Finding("raised", "it raised")
    shown = dict(candidates_table(candidates, compare_to_baseline(candidates)))
    assert shown["setting"] == [BASELINE, "1 worker", "2 workers", "4 workers", "spawn"]
    in_race = ["not faster in the race", "another was faster in the race"]
    assert shown["outcome"] == ["", "faster", *in_race, "it raised"]
    failed, untried = unsuccessful(candidates)
    assert (failed.kind, untried.kind, untried.values["cases"]) == ("raised", "no-time", "8 workers")


def test_the_race_is_judged_by_its_own_figures_where_the_machine_became_slower():
    _, candidates = raced({BASELINE: 150, "1 worker": 150, "2 workers": 120})
    candidates[0].final, candidates[2].final = rounds_at({1: 99.0, 2: 100.0, 3: 101.0}), []
    shown = dict(candidates_table(candidates, compare_to_baseline(candidates)))
    assert shown["samples/s"] == ["150", "150", "120"]
    assert shown["outcome"][2] == "not faster in the race"


@pytest.mark.parametrize(("rate", "faster_step"), [(150, 0), (200, 1)])
def test_the_wait_share_and_the_headroom_are_of_the_same_rounds(rate, faster_step):
    over, candidates = raced({BASELINE: 100, HEADROOM: rate})
    over.spec = TurnSpec(Consumer("cpu", step_ms=1.0))
    candidates[0].final = rounds_at({1: 99.0, 2: 100.0, 3: 101.0}, wait=1 / 3)
    found = result_of(over, candidates, candidates)
    assert values_of(found, "wait-share") == {"wait_share": pytest.approx(1 / 3)}
    assert values_of(found, "headroom")["step_is_faster"] == faster_step


def test_a_candidate_that_failed_in_the_final_rounds_cannot_be_chosen():
    over, candidates = raced({BASELINE: 100, "1 worker": 130, "2 workers": 200})
    candidates[2].failure = MEMORY
    found = result_of(over, candidates, candidates)
    assert (found.outcome, found.use.name) == (DECIDED, "1 worker")
    assert list(found.against) == ["1 worker"]
    candidates[0].over_limit = MEMORY
    assert result_of(over, candidates, candidates).outcome == LIMITED
    with pytest.raises(InvalidSettings, check=kind("nothing-fits")):
        result_of(over, candidates, [candidates[0], candidates[2]])


@pytest.mark.usefixtures("steady")
@pytest.mark.parametrize(
    "endless", [lambda: DataLoader(Endless(), batch_size=4), lambda: Endless()], ids=["loader", "iterable"]
)
def test_an_endless_loader_is_measured_by_its_first_batches(endless, tmp_path):
    found = iobench.tune(endless(), max_time_s=4.0, data_dir=tmp_path)
    assert not found.whole_epochs
    assert values_of(found, "basis")["whole_epochs"] == 0


@pytest.mark.parametrize(("given", "workers"), [("", 3), (":num_workers=8", 8)])
def test_the_workers_of_a_function_s_loader_are_those_it_is_given(tmp_path, given, workers):
    (tmp_path / "given_loader.py").write_text("def make(num_workers=3):\n    return [1, 2]\n")
    own = TunableLoader(f"{tmp_path}/given_loader.py:make{given}")
    assert own.knows_workers
    assert (own.workers({}), own.workers({"num_workers": 0})) == (workers, 0)
    assert not TunableLoader([1, 2]).knows_workers


@pytest.mark.parametrize(
    ("rates", "headroom", "outcome"),
    [
        ({}, (100, 101, 102), NOT_BOTTLENECK),
        ({}, (198, 200, 202), KEEP),
        ({}, (90, 160, 230), KEEP),
        ({"1 worker": 130}, (90, 160, 230), DECIDED),
    ],
    ids=["none", "twice", "uncertain", "uncertain beside a gain"],
)
def test_loading_is_not_the_bottleneck_where_no_loader_could_be_faster(rates, headroom, outcome):
    over, candidates = raced({BASELINE: 100, **rates})
    final = rounds_at(dict(enumerate(map(float, headroom), 1)))
    replay = Candidate(HEADROOM, kind="headroom", make=lambda: [], final=final)
    found = result_of(over, candidates, [*candidates, replay])
    assert found.outcome == found.findings[0].kind == outcome


@pytest.mark.parametrize(
    ("refuses", "error", "name"),
    [
        (lambda: iobench.tune(iter([1])), TargetError, "single-pass"),
        (
            lambda: iobench.tune([["text"]] * 4, model="mlp", max_time_s=1.0, device="cpu"),
            InvalidSettings,
            "untrainable-batches",
        ),
        (lambda: iobench.watch([], headroom=-3), InvalidSettings, "out-of-range"),
    ],
)
def test_what_makes_no_sense_is_refused(refuses, error, name):
    with pytest.raises(error, check=kind(name)):
        refuses()


def test_all_settings_of_a_dataloader_are_tried_and_otherwise_the_function_s_parameters(tmp_path):
    first, *others = names(DataLoader(Samples(64)))
    assert first == BASELINE
    assert all("worker" in name for name in others)
    assert BATCH_FETCH in names(DataLoader(TensorDataset(torch.zeros(8))))
    forked = names(DataLoader(Samples(64), **FORK))
    assert {"0 workers", "prefetch factor 8", "persistent workers", "batches in any order"} <= set(forked)
    assert "batches in any order" not in names(DataLoader(Samples(64), **FORK, in_order=False))
    (tmp_path / "sized_loader.py").write_text("def make(num_workers=0):\n    return [1]\n")
    own = TunableLoader(f"{tmp_path}/sized_loader.py:make")
    assert all("worker" in one.name for one in candidates_for(own, LoaderTraits())[0][1:])
    assert [one.name for one in candidates_for(TunableLoader([1]), LoaderTraits())[0]] == [BASELINE]


def starts(loader, **like):
    """Other start methods of its workers that are tried, and those that are skipped, with the reason."""
    candidates, skipped = candidates_for(TunableLoader(loader), LoaderTraits(threads=False, **like))
    tried = [one.changes["multiprocessing_context"] for one in candidates if one.kind == "start"]
    given = "start_methods"
    return tried, [(one.kind, one.values[given]) for one in skipped if given in one.values]


@pytest.mark.parametrize(
    ("default", "others"), [("fork", ["forkserver", "spawn"]), ("forkserver", ["fork", "spawn"])]
)
def test_all_other_start_methods_are_tried_whatever_the_default(monkeypatch, default, others):
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: None)
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: [default, *others])
    own = DataLoader(TensorDataset(torch.zeros(8)), num_workers=2)
    assert starts(own) == (others, [])
    assert starts(own, starting=False) == ([], []), "the method does not matter where starting takes no time"
    assert "multiprocessing_context='spawn'" in TunableLoader(own).code_for(
        {"multiprocessing_context": "spawn"}
    )


@pytest.mark.parametrize(
    ("given", "changes", "text"),
    [
        ({"shuffle": True}, {"num_workers": 1, "multiprocessing_context": "fork"}, ""),
        ({"drop_last": True, "collate_fn": torch.stack}, {"pin_memory": False}, ""),
        (
            {"batch_size": None},
            {"num_workers": 1, "prefetch_factor": 4, "multiprocessing_context": "fork"},
            "",
        ),
        ({**FORK, "persistent_workers": True}, {"num_workers": 0}, ""),
        ({**FORK, "in_order": False}, {"prefetch_factor": 4}, ""),
        (
            {**FORK, "worker_init_fn": print},
            {"worker_threads": 1},
            "threadpool_limits(1), loader.worker_init_fn(",
        ),
        ({}, {"batch_fetch": True, "num_workers": 0}, "batch_size=None, sampler=loader.batch_sampler)"),
    ],
)
def test_code_for_settings_runs_as_it_is_printed(given, changes, text):
    fetch = changes.get("batch_fetch")
    loader = DataLoader(
        TensorDataset(torch.zeros(7, 2)) if fetch else Samples(7), **{"batch_size": 3, **given}
    )
    code = TunableLoader(loader).code_for(changes)
    assert text in code
    made = eval(code, {"DataLoader": DataLoader, "loader": loader})
    assert made.num_workers == changes.get("num_workers", loader.num_workers)
    assert made.in_order == loader.in_order
    assert fetch or made.collate_fn is loader.collate_fn
    if "worker_threads" not in changes:  # which needs a library

        def shapes(of):  # which may come in any order
            return sorted(str([one.shape for one in batch] if fetch else batch.shape) for batch in of)

        assert shapes(made) == shapes(loader)


def test_persistent_workers_do_not_count_as_memory_of_other_candidates():
    held = []
    loader = DataLoader(Samples(64), 8, worker_init_fn=lambda number: held.append(torch.ones(30 << 20)))
    plain = Candidate(BASELINE)
    persistent = Candidate("persistent", {**FORK, "persistent_workers": True}, "persistent")
    before = SettingsRace(TunableLoader(loader), TurnSpec())
    with before.active():
        for candidate in (plain, persistent, persistent, plain):
            before.take(candidate, 60.0)
    assert persistent.memory_bytes > plain.memory_bytes + (2 * 120 << 20) * 0.9


class Handle:
    def __reduce__(self):
        raise TypeError("a handle stays where it is")


def test_start_methods_are_skipped_for_a_dataset_that_cannot_be_pickled(monkeypatch):
    sent = DataLoader(TensorDataset(torch.zeros(1 << 20)), **FORK)
    monkeypatch.setattr("iobench.advise.settings.tunable_loader.MOST_BYTES", 1 << 20)
    assert spawn_problem(sent) is None, "tensors are shared"
    cannot = {
        "cannot-pickle": DataLoader([Handle()], **FORK),
        "dataset-too-large": DataLoader(np.zeros(1 << 20), **FORK),
    }
    for why, loader in cannot.items():
        assert starts(loader) == ([], [(why, "forkserver,spawn")])


@pytest.mark.parametrize(
    ("text", "why"), [("tune(loader)", "script-without-guard"), ("if __name__ == '__main__': ...", None)]
)
def test_workers_of_a_script_without_a_main_guard_are_not_spawned(tmp_path, monkeypatch, text, why):
    (tmp_path / "own.py").write_text(text)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "own.py"), raising=False)
    problem = spawn_problem(DataLoader([1]))
    assert (problem and problem.kind) == why


def test_no_more_workers_than_are_allowed():
    assert names(DataLoader(Samples(64)), limits=ResourceLimits(workers=1)) == [BASELINE, "1 worker"]
    found, _ = candidates_for(
        TunableLoader(DataLoader(Samples(64), **FORK)), LoaderTraits(), ResourceLimits(workers=1)
    )
    assert found[0].over_limit.kind == "worker-limit"
    assert found[0].over_limit.values == {"workers": 2, "limit": 1}


def test_a_stream_that_every_worker_repeats_is_rejected():
    candidate = Candidate("2 workers", dict(FORK), "workers")
    over = SettingsRace(TunableLoader(DataLoader(Stream(), batch_size=8)), TurnSpec())
    with over.active():
        over.race([Candidate(BASELINE), candidate], 30.0)
    assert candidate.failure.kind == "samples-not-sharded"
    assert not any("worker" in name for name in names(DataLoader(Stream()), LoaderTraits(whole=False)))


def test_a_file_that_this_process_opens_is_not_inherited_by_a_fork(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = np.zeros(4)
    dataset = Samples(8, file=None)
    own = TunableLoader(DataLoader(dataset, batch_size=4, **FORK))
    here = own.with_changes({"num_workers": 0})
    assert here.dataset is not dataset
    here.dataset.file = h5py.File(tmp_path / "x.h5")
    assert dataset.file is None
    assert own.with_changes({"num_workers": 3}).dataset is dataset
    nested = torch.utils.data.Subset(dataset, [0])
    assert shallow_copy(nested).dataset is not dataset


def test_a_long_epoch_is_cut_off_and_extrapolated():
    def slow(row):
        time.sleep(0.01)
        return torch.zeros(4)

    loader = DataLoader(Samples(400, slow), batch_size=1)
    turn = Turn(lambda: loader, 0, TurnSpec(limit_s=0.05)).run()
    assert not turn.complete
    assert turn.batches < turn.epoch_batches == 400
    assert turn.samples == 400
    assert turn.epoch_s >= 400 * 0.01  # as long as all of its samples sleep


@pytest.mark.parametrize(("batches", "counts"), [(1, False), (3, True)])
def test_a_turn_that_the_end_of_the_time_cuts_off_counts_with_enough_batches(batches, counts):
    def ends():
        yield from [torch.zeros(1, 4)] * batches
        raise DeadlineReached("over")

    turn = Turn(ends, 1, TurnSpec())
    with nullcontext() if counts else pytest.raises(DeadlineReached):
        turn.run()
        assert (turn.batches, turn.complete) == (batches, False)


@pytest.mark.parametrize("promised", [True, False])
def test_settings_that_do_not_fit_are_raced_where_the_others_promise_no_gain(promised):
    loader = DataLoader(Samples(8), 4)
    others = [Candidate(f"{number}", {"a": number}, "other", make=lambda: loader) for number in range(4)]
    race = SettingsRace(TunableLoader(loader), TurnSpec(), budget=Budget(9.0))
    given = [Candidate(BASELINE), *others]
    with race.active():
        raced, late = race.race_in_time(given, 1.0, 0.1, lambda raced: promised, lambda text: None, rounds=6)
    assert [one.name for one in (*raced, *late)] == [one.name for one in given]
    assert all(one.rates for one in raced[:2])  # however busy the machine is
    assert (len(raced) == 2) == promised


def test_a_case_that_the_end_of_the_time_cuts_off_is_skipped_and_no_other_begins():
    def late(row):
        if row:
            raise DeadlineReached("over")
        return torch.zeros(4)

    candidates = [Candidate(BASELINE), Candidate("no batches", {"num_workers": 0}, "workers")]
    race = SettingsRace(TunableLoader(DataLoader(Samples(8, late))), TurnSpec(), budget=Budget(60.0))
    with race.active():
        race.race(candidates, 1.0)
        assert [(one.rates, one.failure) for one in candidates] == [({}, None)] * 2
        race.budget = Budget(0.0)
        race.final_rounds(candidates, 0.0)
    assert not any(one.final for one in candidates)


def test_the_end_of_the_time_interrupts_a_loader_and_ends_its_workers(monkeypatch):
    def sleeps(row):
        time.sleep(60)

    monkeypatch.setattr(watchdog, "WRITE_S", 30.0)  # a busy machine lets workers wait
    loader = DataLoader(Samples(8, sleeps), **FORK)
    limited = Watchdog(60.0, Budget(3.0))  # within which they start
    others = set(multiprocessing.active_children())  # of tests before this one
    with limited.active(), pytest.raises(DeadlineReached, check=kind("out-of-time")) as caught:
        list(limited.guard(loader))
    assert "in sleeps" in caught.value.traceback
    for child in set(multiprocessing.active_children()) - others:
        child.join(10)
        assert not child.is_alive()
    with limited.active(), pytest.raises(DeadlineReached):  # nothing begins after it
        next(limited.guard(iter([1])))


def test_what_a_loader_raises_without_its_workers_is_the_end_of_the_time(monkeypatch):
    monkeypatch.setattr(watchdog, "REPEAT_S", 0.1)

    def swallowing():
        for _ in range(2):  # the second interruption ends the workers
            with suppress(DeadlineReached):
                time.sleep(30)
        raise RuntimeError("a worker exited")
        yield

    ending = Watchdog(60.0, Budget(0.1))
    with ending.active(), pytest.raises(DeadlineReached):
        list(ending.guard(swallowing()))


def test_a_handler_for_the_end_of_workers_outlives_the_watchdog():
    def of_torch(number, frame):
        raise RuntimeError("a worker exited")

    def silent():
        signal.signal(signal.SIGCHLD, of_torch)  # as torch does when it starts workers
        time.sleep(30)
        yield

    before = signal.getsignal(signal.SIGCHLD)
    try:
        limited = Watchdog(60.0, Budget(2.0))  # not before it sleeps
        with limited.active(), pytest.raises(DeadlineReached):
            list(limited.guard(silent()))
        assert signal.getsignal(signal.SIGCHLD) is of_torch
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_block_within_a_time_is_interrupted_and_the_loader_goes_on():
    limited = Watchdog(60.0, Budget(60.0))
    with limited.active():
        with pytest.raises(DeadlineReached), limited.within(0.05):
            time.sleep(60)
        assert list(limited.guard([1, 2])) == [1, 2]


def test_the_import_of_a_file_counts_and_leaves_the_loader_some_time():
    now = 100.0
    assert loader_budget(Budget(10.0, now, lambda: now)).end == pytest.approx(now + 9.5)
    assert loader_budget(Budget(10.0, now - 60, lambda: now)).end == pytest.approx(now + LEAST * 10)


class Pairs:
    """Two workers' batches, a pair every 20 ms of a clock that only it advances."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now

    def __len__(self):
        return 200

    def __iter__(self):
        for number in range(200):
            self.now += 0.02 * (number % 2 == 0)
            yield torch.zeros(1, 4)


def test_workers_of_a_cut_turn_are_counted_by_whole_cycles(monkeypatch):
    """Half a pair more would look like twice the rate."""
    pairs = Pairs()
    monkeypatch.setattr("iobench.advise.settings.turn.time", pairs)
    for limit_s in (0.05, 0.07, 0.09):
        pairs.now = 0.0
        turn = Turn(lambda: pairs, 2, TurnSpec(limit_s=limit_s)).run()
        assert not turn.complete
        assert turn.epoch_s == pytest.approx(100 * 0.02)


def test_rates_that_fall_with_each_turn_are_noticed_unless_others_began_meanwhile():
    candidates = [Candidate(name, final=rounds_at({1: 100.0})) for name in (BASELINE, "1 worker")]

    def turns(rates, loads=(0.3,) * 20):
        background = [BackgroundLoad(processors=load) for load in loads[: len(rates)]]
        turns = zip(rates, background, strict=True)
        taken = [SimpleNamespace(samples_per_s=rate, background=load) for rate, load in turns]
        return [(candidates[n % 2], one) for n, one in enumerate(taken)]

    falling = [100.0 * 0.9**n for n in range(20)]
    assert slowdown(turns([100.0 + n % 3 for n in range(20)])) is None
    assert slowdown(turns(falling)) > 2
    assert slowdown(turns(falling[:5])) is None
    assert slowdown(turns(falling, [0.0] * 10 + [0.5] * 10)) is None


LOADERS = """
import time
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

def make(samples=2000):
    return DataLoader(TensorDataset(torch.randn(samples, 16)), batch_size=100)

class Raises(Dataset):
    def __len__(self): return 8
    def __getitem__(self, row): raise KeyError("mine")

class Slower(Dataset):
    def __init__(self): self.seen = 0
    def __len__(self): return 8
    def __getitem__(self, row):
        self.seen += 1
        time.sleep(self.seen * 2e-4)
        return torch.zeros(4)

def raises(): return DataLoader(Raises())
def hangs():
    time.sleep(60)
    yield 1
def slower(): return DataLoader(Slower(), batch_size=4)
def empty(): return []
def texts(): return [["a", "b"]] * 40
def endless():
    while True:
        yield torch.zeros(8, 4)
def generator():
    for number in range(40):
        yield torch.zeros(8, 4)
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(LOADERS)
    return tmp_path


@pytest.fixture
def steady(monkeypatch):
    """Take no other test that begins meanwhile for a loader that gets slower."""
    monkeypatch.setattr("iobench.advise.tune.slowdown", lambda turns: None)


@pytest.mark.usefixtures("steady")
def test_the_command_prints_an_answer_and_stores_every_turn_as_a_record(mine, inside):
    options = ("--max-time", 12, "--max-workers", 0, "--step-ms", 0.1, "--headroom", "--device", "cpu")
    done = inside("tune", "mine.py:make:samples=3000", *options, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["outcome"] in (DECIDED, KEEP, NOT_BOTTLENECK)
    assert {one["name"] for one in found["candidates"]} == {BASELINE, BATCH_FETCH, HEADROOM}
    assert found["headroom"]["ratio"]["median"] > 0
    (path,) = found["records"]
    records, problems = record_file.read(mine / path)
    assert (problems, records[0].case["loader"], records[0].dataset.samples) == ([], "mine.py:make", 3000)
    assert len({one.run for one in records}) == 2, "the race, and the final rounds"
    assert all(one.unverified == [settings_race.UNVERIFIED] for one in records)
    shown = inside("runs", "show", path)
    assert (shown.returncode, "not verified" in shown.stderr) == (0, True)


@pytest.mark.parametrize(
    ("target", "options", "code", "kind"),
    [
        ("mine.py:raises", (), 1, "raised"),
        ("mine.py:empty", (), 1, "empty"),
        ("mine.py:hangs", ("--max-time", 2), 1, "out-of-time"),
        ("mine.py:make", ("--max-memory", "1MiB"), 2, "nothing-fits"),
        ("mine.py:make:colour=3", (), 2, "unknown-parameter"),
        ("mine.py:make", ("--headroom",), 2, "missing-option"),
        ("mine.py:make", ("--max-time", 0), 2, "out-of-range"),
        ("mine.py:make", ("--max-workers", -1), 2, "out-of-range"),
        ("mine.py:slower", ("--max-workers", 0, "--max-time", 20), 1, "slowing-down"),
    ],
)
def test_an_error_is_one_line(mine, inside, request, monkeypatch, target, options, code, kind):
    if kind == "slowing-down":  # also where another test begins meanwhile
        monkeypatch.setattr("iobench.advise.settings.candidate.BACKGROUND_CPU", 1.0)
    else:
        request.getfixturevalue("steady")
    done = inside("tune", target, "--device", "cpu", "--max-time", 4, *options)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.splitlines()[-1].startswith(f"iobench: error[{kind}]: ")


@pytest.mark.usefixtures("steady")
def test_a_function_that_yields_is_called_for_each_turn(mine):
    found = iobench.tune("mine.py:generator", max_time_s=4.0, device="cpu")
    assert found.outcome == KEEP
    assert len(found.use.final_rates) > 1


@pytest.mark.usefixtures("steady")
@pytest.mark.parametrize(
    ("target", "samples", "fields", "batch_size"),
    [("texts", 40, [], None), ("endless", None, [("f0", [4], "float32")], 8)],
)
def test_what_is_unknown_of_a_live_loader_is_absent_in_its_records(
    mine, inside, target, samples, fields, batch_size
):
    done = inside("tune", f"mine.py:{target}", "--max-time", 4, "--device", "cpu", "--out", "own.jsonl")
    assert done.returncode == 0, done.stderr
    records, problems = record_file.read(mine / "own.jsonl")
    assert (problems, records[0].dataset.samples) == ([], samples)
    assert [(one.name, one.shape, one.dtype) for one in records[0].dataset.fields] == fields
    assert records[0].case.get("batch_size") == batch_size
    assert not {"content", "order", "cache"} & records[0].case.keys()
    for command in (("runs", "show"), ("report", "--out", "own.html")):
        assert inside(*command, "own.jsonl").returncode == 0


def test_one_thread_per_worker_is_tried_where_there_are_more_threads_than_cores(monkeypatch):
    monkeypatch.setattr(search_space, "threads_oversubscribed", lambda workers: workers > 1)
    assert search_space.ONE_THREAD in names(DataLoader(Samples(64), **FORK), LoaderTraits())
    assert any(search_space.ONE_THREAD in name for name in names(DataLoader(Samples(64)), LoaderTraits()))
    assert search_space.ONE_THREAD not in names(DataLoader(Samples(64), **FORK), LoaderTraits(threads=False))


def test_a_watched_loop_measures_the_headroom(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(time, "perf_counter_ns", lambda: round(now[0] * 1e9))

    def loader():
        reused = torch.zeros(4)
        for number in range(10):
            now[0] += 0.02
            yield reused.fill_(number)

    watched, came = WatchedLoader(loader(), "cpu", lambda stats: None, headroom=20), []
    for batch in watched:
        came.append(float(batch[0]))
        now[0] += 0.01
    assert came == [*range(10), *(n % 10 for n in range(20))]
    assert watched.stats.headroom == pytest.approx(3.0)
    assert watched.stats.batches == 10
    assert values_of(diagnose(Evidence(watched.stats)), "headroom")["ratio"] == pytest.approx(3.0)


def test_a_run_measures_the_headroom(tmp_path, inside):
    iobench.prepare(iobench.Synthetic(32 * 64 * 4, (32,)), ["npy"], data_dir=tmp_path)
    common = ("--data-dir", tmp_path, "--batch-size", 64, "--rounds", 3, "--no-limits", "--loader")
    slow_step = inside("run", *common, "native", "--step-ms", 150, "--headroom", "--json")
    assert headroom_of(slow_step) < 1.5  # 1, unless this process was paused
    fast_step = inside("run", *common, "dataloader", "--step-ms", 0.01, "--headroom", "--json")
    assert headroom_of(fast_step) > 2
    assert complaint_kind(inside("run", *common, "native", "--headroom"), 2) == "missing-option"


def headroom_of(done):
    (case,) = json.loads(done.stdout)["contexts"][0]["cases"]
    return case["metrics"]["headroom"]["median"]


@pytest.mark.parametrize(
    ("rows", "padded"),
    [
        (np.array([[5, 7, 3, 2, *[0] * 12], [*range(1, 16), 0]]), (12 + 0) / 32),
        (np.eye(16, dtype=np.int64)[:4], None),
        (np.random.default_rng(0).integers(1, 9, (4, 16)), None),
        (np.zeros((4, 16)), None),
    ],
    ids=["padded", "one hot", "no padding", "nothing but one value"],
)
def test_padding_is_distinguished_from_similar_data(rows, padded):
    assert padding_of([[torch.from_numpy(rows)]]) == padded


@pytest.mark.parametrize(
    ("cores", "idle", "most", "expected"),
    [
        (1, False, None, [0, 2, 1]),
        (4, False, None, [0, 2, 4, 8]),
        (4, True, None, [0, 2, 4, 8, 16]),
        (4, False, 3, [0, 2]),
        (4, False, 1, [0, 1]),
        (1, False, 0, [0]),
        (64, False, None, [0, 2, 4, 8, 16]),
    ],
)
def test_numbers_of_workers_go_beyond_the_cores(monkeypatch, cores, idle, most, expected):
    monkeypatch.setattr(search_space.os, "sched_getaffinity", lambda process: set(range(cores)))
    assert search_space.worker_counts(idle, ResourceLimits(most)) == expected


@pytest.mark.usefixtures("steady")
def test_a_short_time_tries_fewer_settings(tmp_path):
    def slow(row):
        time.sleep(0.01)
        return torch.zeros(4)

    loader = DataLoader(Samples(64, slow), batch_size=8)
    found = iobench.tune(loader, max_time_s=3.0, device="cpu", data_dir=tmp_path)
    assert len(found.candidates) >= 2
    assert "no-time" in {one.kind for one in found.skipped}
