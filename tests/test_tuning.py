"""Settings of a loader: what is tried, what is said of it, and what cannot be."""

import json
import multiprocessing
import sys
import time

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import iobench
from iobench.base.errors import (
    InvalidSettings,
    TargetError,
)
from iobench.diagnose.diagnosis import diagnose
from iobench.diagnose.padding import padding_of
from iobench.diagnose.watched_loader import WatchedLoader
from iobench.results import record
from iobench.terminal.tuned import candidates_table
from iobench.tuning import search_space, settings_race
from iobench.tuning.candidate import BASELINE, HEADROOM, Candidate, slowing
from iobench.tuning.pickle_check import spawn_problem
from iobench.tuning.search_space import BATCH_FETCH, LoaderTraits, candidates_for
from iobench.tuning.settings_race import ResourceLimits, SettingsRace
from iobench.tuning.tunable_loader import TunableLoader, copied
from iobench.tuning.tune import resolve_target
from iobench.tuning.tuning_result import DECIDED, FED, LEAVE, LIMITED, answer
from iobench.tuning.turn import TurnSpec, take

FORK = {"num_workers": 2, "multiprocessing_context": "fork"}


class Made(Dataset):
    def __init__(self, length, make=lambda row: torch.zeros(4)):
        self.length, self.make, self.file = length, make, None

    def __len__(self):
        return self.length

    def __getitem__(self, row):
        return self.make(row)


class Stream(IterableDataset):
    """Every worker gives all of it."""

    def __iter__(self):
        return iter(torch.arange(64.0))


class Endless(IterableDataset):
    """Nobody knows how much there is of it."""

    def __iter__(self):
        while True:
            time.sleep(0.001)
            yield torch.zeros(4)


def ignored(tensors):
    pass


def names(loader, like=None, limits=None):
    return [candidate.name for candidate in candidates_for(TunableLoader(loader), like or LoaderTraits(threads=False), limits)[0]]


def raced(rates, **wrong):
    """A contest that is over: the loader as it is and others, by their rates in three fresh rounds."""
    candidates = []
    for number, (name, rate) in enumerate(rates.items()):
        fresh = {n: rate * factor for n, factor in enumerate((0.99, 1.0, 1.01), 1)}
        changes = {"num_workers": number} if number else {}
        candidates.append(Candidate(name, changes, "workers", rates=fresh, fresh=fresh, memory_bytes=1 << 20))
    for field, value in wrong.items():
        setattr(candidates[0], field, value)
    return SettingsRace(TunableLoader(DataLoader(Made(8))), TurnSpec(ignored)), candidates


def said(rates, **wrong):
    over, candidates = raced(rates, **wrong)
    return answer(over, candidates, candidates, [], None, False)


def test_what_is_surely_better_is_advised_with_its_gain_and_its_code():
    found = said({BASELINE: 100, "1 worker": 150})
    assert (found.outcome, found.use.name) == (DECIDED, "1 worker")
    assert found.sentences[0].startswith("Consumer 1 worker: 1.50 ×")
    assert "num_workers=1" in found.code


@pytest.mark.parametrize("rate", [104, 80])
def test_it_is_left_as_it_is_where_nothing_is_surely_better_by_a_twentieth(rate):
    found = said({BASELINE: 100, "1 worker": rate})
    assert (found.outcome, found.code) == (LEAVE, "")
    assert found.sentences[0] == "Leave it as it is: of 1 other setting tried none is surely faster by 5 %."


def test_where_nothing_could_be_tried_it_says_so():
    assert said({BASELINE: 100}).sentences[0] == "Leave it as it is: no other setting could be tried."


def test_a_setting_without_a_turn_has_no_row():
    _, candidates = raced({BASELINE: 100, "1 worker": 150, "2 workers": 150, "spawn": 1})
    candidates[2].rates, candidates[2].fresh, candidates[2].epoch_s = {}, {}, []
    candidates[3].rates, candidates[3].fresh, candidates[3].failed = {}, {}, "it raised"
    assert [str(cell) for cell in candidates_table(candidates, {}).columns[0].cells] == [
        BASELINE,
        "1 worker",
        "spawn",
    ]


@pytest.mark.parametrize(("rate", "beside"), [(150, ""), (200, ", where the step is faster as well")])
def test_what_the_step_waits_and_what_it_would_gain_are_of_the_same_rounds(rate, beside):
    over, candidates = raced({BASELINE: 100, HEADROOM: rate}, waited=[0.2, 1 / 3, 0.4])
    *_, waits, best, _ = answer(over, candidates, candidates, [], None, True).sentences
    assert waits == "As it is the step waits 33.3% of the time."
    assert (", where the step is faster as well" in best) == bool(beside)


def test_headroom_is_a_number_of_batches():
    with pytest.raises(InvalidSettings, match="headroom -3 is below 0"):
        iobench.watch([], headroom=-3)


def test_of_what_is_about_as_fast_the_fewest_workers_are_named():
    assert said({BASELINE: 100, "1 worker": 196, "2 workers": 200}).use.name == "1 worker"


def test_settings_that_do_not_fit_are_left_for_the_fastest_that_do():
    found = said({BASELINE: 100, "1 worker": 60}, unfit="took 2 GiB of memory")
    assert (found.outcome, found.use.name) == (LIMITED, "1 worker")


def test_what_failed_or_did_not_fit_in_the_fresh_rounds_is_none_to_choose():
    over, candidates = raced({BASELINE: 100, "1 worker": 130, "2 workers": 200})
    candidates[2].failed = "took 9 GiB of memory, more than 8 GiB"
    found = answer(over, candidates, candidates, [], None, False)
    assert (found.outcome, found.use.name) == (DECIDED, "1 worker")
    assert list(found.against) == ["1 worker"]
    candidates[0].unfit = "took 10 GiB of memory, more than 8 GiB"
    assert answer(over, candidates, candidates, [], None, False).outcome == LIMITED
    with pytest.raises(InvalidSettings, match=r"nothing fits .* as it is it took 10 GiB.*; 2 workers took 9"):
        answer(over, candidates, [candidates[0], candidates[2]], [], None, False)


def test_what_cannot_be_told_from_the_best_possible_is_not_called_fed():
    over, candidates = raced({BASELINE: 100, "1 worker": 130, HEADROOM: 160})
    candidates[2].make = lambda: []
    candidates[2].fresh = dict(enumerate((90.0, 160.0, 230.0), 1))
    assert answer(over, candidates[:1], [candidates[0], candidates[2]], [], None, 0.5).outcome == LEAVE
    assert answer(over, candidates[:2], candidates, [], None, 0.5).outcome == DECIDED


@pytest.mark.parametrize(
    "endless", [lambda: DataLoader(Endless(), batch_size=4), lambda: Endless()], ids=["loader", "iterable"]
)
def test_an_endless_loader_is_measured_by_its_first_batches(endless, tmp_path):
    found = iobench.tune(endless(), max_time_s=4.0, data_dir=tmp_path)
    assert not found.whole
    assert any("the first batches of an epoch" in one for one in found.sentences)


@pytest.mark.parametrize(("given", "workers"), [("", 3), (":num_workers=8", 8)])
def test_the_workers_of_what_a_function_makes_are_those_that_it_is_told(tmp_path, given, workers):
    (tmp_path / "told_loader.py").write_text("def make(num_workers=3):\n    return [1, 2]\n")
    own, _ = resolve_target(f"{tmp_path}/told_loader.py:make{given}")
    assert own.tells_workers
    assert (own.workers({}), own.workers({"num_workers": 0})) == (workers, 0)
    assert not TunableLoader([1, 2]).tells_workers


@pytest.mark.parametrize(("best", "outcome"), [(101, FED), (200, LEAVE)])
def test_loading_is_no_problem_where_no_loader_could_be_faster(best, outcome):
    over, candidates = raced({BASELINE: 100, HEADROOM: best})
    candidates[1].make = lambda: []
    found = answer(over, candidates[:1], candidates, [], None, 0.01)
    assert found.outcome == outcome
    assert ("Loading is not your problem" in found.sentences[0]) == (outcome == FED)


def test_each_setting_of_a_dataloader_is_tried_and_of_anything_else_what_its_function_takes():
    assert names(DataLoader(Made(64))) == [
        BASELINE,
        *(n for n in names(DataLoader(Made(64))) if "worker" in n),
    ]
    assert BATCH_FETCH in names(DataLoader(TensorDataset(torch.zeros(8))))
    forked = names(DataLoader(Made(64), **FORK))
    assert {"0 workers", "prefetch factor 8", "workers that persist"} <= set(forked)
    own = TunableLoader([1], lambda num_workers=0: [1], ["num_workers"])
    assert all("worker" in one.name for one in candidates_for(own, LoaderTraits())[0][1:])
    assert [one.name for one in candidates_for(TunableLoader([1]), LoaderTraits())[0]] == [BASELINE]


def starts(loader, **like):
    """How else its workers could start, and which ways are said not to be tried."""
    candidates, left_out = candidates_for(TunableLoader(loader), LoaderTraits(threads=False, **like))
    tried = [one.changes["multiprocessing_context"] for one in candidates if one.kind == "start"]
    return tried, [sentence for sentence in left_out if sentence.startswith("workers ")]


@pytest.mark.parametrize(
    ("default", "others"), [("fork", ["forkserver", "spawn"]), ("forkserver", ["fork", "spawn"])]
)
def test_workers_start_in_every_other_way_whatever_python_s_own_is(monkeypatch, default, others):
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: None)
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: [default, *others])
    own = DataLoader(TensorDataset(torch.zeros(8)), num_workers=2)
    assert starts(own) == (others, [])
    assert starts(own, starting=False) == ([], []), "where starting takes no time, how does not matter"
    assert "multiprocessing_context='spawn'" in search_space.code_of(
        TunableLoader(own), {"multiprocessing_context": "spawn"}
    )


@pytest.mark.parametrize(
    ("given", "changes"),
    [
        ({"batch_size": 3, "shuffle": True}, {"num_workers": 1, "multiprocessing_context": "fork"}),
        ({"batch_size": 3, "drop_last": True, "collate_fn": torch.stack}, {"pin_memory": False}),
        ({"batch_size": None}, {"num_workers": 1, "prefetch_factor": 4, "multiprocessing_context": "fork"}),
        ({"batch_size": 3, **FORK, "persistent_workers": True}, {"num_workers": 0}),
    ],
)
def test_code_for_settings_runs_as_it_is_printed(given, changes):
    loader = DataLoader(Made(7), **given)
    made = eval(search_space.code_of(TunableLoader(loader), changes), {"DataLoader": DataLoader, "loader": loader})
    assert [one.shape for one in made] == [one.shape for one in loader]
    assert made.num_workers == changes.get("num_workers", loader.num_workers)
    assert made.collate_fn is loader.collate_fn


def test_code_for_whole_batches_runs_as_it_is_printed():
    loader = DataLoader(TensorDataset(torch.zeros(7, 2)), batch_size=3)
    said = search_space.code_of(TunableLoader(loader), {"batch_fetch": True, "num_workers": 0})
    assert said == "DataLoader(loader.dataset, batch_size=None, sampler=loader.batch_sampler)"
    (one, *_) = eval(said, {"DataLoader": DataLoader, "loader": loader})
    assert one[0].shape == (3, 2)


def test_code_for_fewer_threads_keeps_what_workers_do_first():
    loader = DataLoader(Made(7), 3, **FORK, worker_init_fn=print)
    said = search_space.code_of(TunableLoader(loader), {"worker_threads": 1})
    assert "threadpool_limits(1), loader.worker_init_fn(number))" in said
    eval(said, {"DataLoader": DataLoader, "loader": loader})


def test_workers_that_persist_are_no_other_setting_s_memory():
    held = []
    loader = DataLoader(Made(64), 8, worker_init_fn=lambda number: held.append(torch.ones(30 << 20)))
    plain = Candidate(BASELINE)
    kept = Candidate("persistent", {**FORK, "persistent_workers": True}, "persistent")
    before = SettingsRace(TunableLoader(loader), TurnSpec(ignored))
    with before.under_way():
        for candidate in (plain, kept, kept, plain):
            before.look(candidate, 60.0)
    assert kept.memory_bytes > plain.memory_bytes + (2 * 120 << 20) * 0.9


class Handle:
    def __reduce__(self):
        raise TypeError("a handle stays where it is")


def test_a_dataset_that_cannot_be_sent_is_said_and_not_tried(monkeypatch):
    sent = DataLoader(TensorDataset(torch.zeros(1 << 20)), **FORK)
    monkeypatch.setattr("iobench.tuning.pickle_check.MOST_BYTES", 1 << 20)
    assert spawn_problem(sent) is None, "tensors are shared"
    cannot = {
        "it cannot be pickled: a handle stays where it is": DataLoader([Handle()], **FORK),
        "each worker would be sent more than 1.00 MiB of its dataset": DataLoader(np.zeros(1 << 20), **FORK),
    }
    for why, loader in cannot.items():
        assert starts(loader) == ([], [f"workers from a fork server and workers that are spawned: {why}"])


@pytest.mark.parametrize(
    ("text", "why"), [("tune(loader)", "would run own.py again"), ("if __name__ == '__main__': ...", None)]
)
def test_a_script_that_workers_would_run_again_is_not_spawned_from(tmp_path, monkeypatch, text, why):
    (tmp_path / "own.py").write_text(text)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "own.py"), raising=False)
    found = spawn_problem(DataLoader([1]))
    assert why in found if why else found is None


def test_no_more_workers_than_are_allowed():
    assert names(DataLoader(Made(64)), limits=ResourceLimits(workers=1)) == [BASELINE, "1 worker"]
    found, _ = candidates_for(TunableLoader(DataLoader(Made(64), **FORK)), LoaderTraits(), ResourceLimits(workers=1))
    assert "more than --max-workers 1" in found[0].unfit


def test_a_stream_that_every_worker_repeats_is_found_out():
    candidate = Candidate("2 workers", dict(FORK), "workers")
    over = SettingsRace(TunableLoader(DataLoader(Stream(), batch_size=8)), TurnSpec(ignored, least_s=0.0))
    with over.under_way():
        over.race([Candidate(BASELINE), candidate], 30.0)
    assert "its workers do not share them out" in candidate.failed
    assert not any("worker" in name for name in names(DataLoader(Stream()), LoaderTraits(whole=False)))


def test_a_file_that_this_process_opens_is_not_taken_along_by_a_fork(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = np.zeros(4)
    dataset = Made(8)
    own = TunableLoader(DataLoader(dataset, batch_size=4, **FORK))
    here = own.made({"num_workers": 0})
    assert here.dataset is not dataset
    here.dataset.file = h5py.File(tmp_path / "x.h5")
    assert dataset.file is None
    assert own.made({"num_workers": 3}).dataset is dataset
    nested = torch.utils.data.Subset(dataset, [0])
    assert copied(nested).dataset is not dataset


def test_a_long_epoch_is_cut_off_and_told_by_its_pace():
    def slow(row):
        time.sleep(0.01)
        return torch.zeros(4)

    loader = DataLoader(Made(400, slow), batch_size=1)
    turn = take(lambda: loader, 0, TurnSpec(ignored, limit_s=0.05, least_s=0.0))
    assert not turn.complete
    assert turn.batches < turn.of == 400
    assert turn.samples == 400
    assert turn.epoch_s >= 400 * 0.01  # as long as all of its samples sleep


class Pairs:
    """What two workers give, each a batch every 20 ms of a clock that only it moves: always two at once."""

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
    """Half a pair more would look like twice the pace."""
    pairs = Pairs()
    monkeypatch.setattr("iobench.tuning.turn.time", pairs)
    for limit_s in (0.05, 0.07, 0.09):
        pairs.now = 0.0
        turn = take(lambda: pairs, 2, TurnSpec(ignored, limit_s=limit_s, least_s=0.0))
        assert not turn.complete
        assert turn.epoch_s == pytest.approx(100 * 0.02)


def test_what_is_slower_with_each_turn_is_noticed():
    candidates = [Candidate(BASELINE, fresh={1: 100.0}), Candidate("1 worker", fresh={1: 100.0})]
    steady = [(candidates[n % 2], 100.0 + n % 3) for n in range(20)]
    falling = [(candidates[n % 2], 100.0 * 0.9**n) for n in range(20)]
    assert slowing(steady) is None
    assert slowing(falling) > 2
    assert slowing(falling[:5]) is None


LOADERS = """
import time
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

def make(samples=2000):
    return DataLoader(TensorDataset(torch.randn(samples, 16)), batch_size=100)

class Raises(Dataset):
    def __len__(self): return 8
    def __getitem__(self, row): raise KeyError("mine")

class Slow(Dataset):
    def __len__(self): return 64
    def __getitem__(self, row):
        time.sleep(0.1)
        return torch.zeros(4)

class Slower(Dataset):
    def __init__(self): self.seen = 0
    def __len__(self): return 8
    def __getitem__(self, row):
        self.seen += 1
        time.sleep(self.seen * 2e-4)
        return torch.zeros(4)

def raises(): return DataLoader(Raises())
def slow(): return DataLoader(Slow(), batch_size=8)
def slower(): return DataLoader(Slower(), batch_size=4)
def empty(): return []
def generator():
    for number in range(40):
        yield torch.zeros(8, 4)
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(LOADERS)
    return tmp_path


def test_the_command_says_what_to_set_and_keeps_every_turn_as_a_record(mine, inside, monkeypatch):
    monkeypatch.setattr("iobench.tuning.tune.slowing", lambda turns: None)  # whoever else comes meanwhile
    asked = ("--max-time", 3, "--max-workers", 0, "--step-ms", 0.1, "--headroom", "--json", "--device", "cpu")
    done = inside("tune", "mine.py:make:samples=3000", *asked)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["outcome"] in (DECIDED, LEAVE, FED)
    assert {one["name"] for one in found["candidates"]} == {
        BASELINE,
        BATCH_FETCH,
        HEADROOM,
    }
    assert found["headroom"]["ratio"]["median"] > 0
    records, problems = record.read(mine / found["records"])
    assert (problems, records[0].case["loader"], records[0].dataset.samples) == ([], "mine.py:make", 3000)
    assert len({one.run for one in records}) == 2, "the race, and the fresh rounds"
    assert all("nobody can say what should have come" in one.not_proved for one in records)
    shown = inside("runs", "show", found["records"])
    assert (shown.returncode, "not proved" in shown.stdout) == (0, True)


@pytest.mark.parametrize(
    ("target", "options", "code", "told"),
    [
        ("mine.py:raises", (), 1, "the loader raised KeyError: 'mine'"),
        ("mine.py:empty", (), 1, "the loader raised ValueError: it gave no batches"),
        ("mine.py:slow", ("--max-time", 2), 2, "is too short for a round of each of"),
        ("mine.py:make", ("--max-memory", "1MiB"), 2, "nothing fits the limits given"),
        ("mine.py:make:colour=3", (), 2, "has no parameter colour; it takes samples"),
        ("mine.py:make", ("--headroom",), 2, "give --step-ms or --model with it"),
        ("mine.py:make", ("--max-time", 0), 2, "max-time 0 is not above 0"),
        ("mine.py:make", ("--max-workers", -1), 2, "max-workers -1 is below 0"),
        ("mine.py:slower", ("--max-workers", 0, "--max-time", 4), 1, "it is slower with each turn"),
    ],
)
def test_what_cannot_be_is_one_line(mine, inside, target, options, code, told):
    done = inside("tune", target, "--device", "cpu", "--max-time", 4, *options)
    assert (done.returncode, done.stdout) == (code, "")
    assert told in done.stderr.splitlines()[-1]


def test_a_function_that_yields_is_called_for_each_turn(mine):
    found = iobench.tune("mine.py:generator", max_time_s=1.0, device="cpu")
    assert found.outcome == LEAVE
    assert len(found.use.fresh) > 1


def test_an_iterator_alone_cannot_be_tuned():
    with pytest.raises(TargetError, match="gone over only once"):
        iobench.tune(iter([1]))


def test_a_model_needs_something_to_train_on():
    with pytest.raises(InvalidSettings, match="no tensors to train on"):
        iobench.tune([["text"]] * 4, model="mlp", max_time_s=1.0, device="cpu")


def test_one_thread_in_each_worker_is_tried_where_threads_would_be_more_than_cores(monkeypatch):
    monkeypatch.setattr(search_space, "threads_fight", lambda workers: workers > 1)
    assert search_space.ONE_THREAD in names(DataLoader(Made(64), **FORK), LoaderTraits())
    assert any(search_space.ONE_THREAD in name for name in names(DataLoader(Made(64)), LoaderTraits()))
    assert search_space.ONE_THREAD not in names(DataLoader(Made(64), **FORK), LoaderTraits(threads=False))


def test_rounds_that_are_too_few_name_nobody():
    over, candidates = raced({BASELINE: 100, "1 worker": 300})
    for candidate in candidates:
        candidate.fresh = {1: candidate.fresh[1]}
    assert answer(over, candidates, candidates, [], None, False).outcome == LEAVE
    assert settings_race.ROUNDS >= 10


def test_a_watched_loop_says_what_the_best_loader_would_bring(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def loader():
        for number in range(10):
            now[0] += 0.02
            yield torch.full((4,), float(number))

    watch, came = WatchedLoader(loader(), "cpu", lambda seen: None, headroom=20), []
    for batch in watch:
        came.append(float(batch[0]))
        now[0] += 0.01
    assert came == [*range(10), *(n % 8 for n in range(20))]
    assert watch.seen.headroom == pytest.approx(3.0)
    assert watch.seen.batches == 10
    assert "The best possible loader would make the loop" in diagnose(watch.seen).verdict


def test_a_run_says_what_the_best_loader_would_bring(tmp_path, inside):
    iobench.prepare(iobench.Synthetic(32 * 64 * 4, (32,)), ["npy"], data_dir=tmp_path)
    common = ("--data-dir", tmp_path, "--batch-size", 64, "--rounds", 3, "--no-limits", "--loader")
    done = inside("run", *common, "native", "--step-ms", 150, "--headroom")
    assert "Loading is not your problem: over batches that are on the device already" in done.stdout
    done = inside("run", *common, "dataloader", "--step-ms", 0.01, "--headroom", "--json")
    (case,) = json.loads(done.stdout)["contexts"][0]["cases"]
    assert case["metrics"]["headroom"]["median"] > 1.05
    assert "give --step-ms or --model" in inside("run", *common, "native", "--headroom").stderr


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
def test_padding_is_told_from_what_only_looks_like_it(rows, padded):
    assert padding_of([[torch.from_numpy(rows)]]) == padded


@pytest.mark.parametrize(
    ("cores", "idle", "most", "wanted"),
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
def test_numbers_of_workers_go_beyond_the_cores(monkeypatch, cores, idle, most, wanted):
    monkeypatch.setattr(search_space.os, "sched_getaffinity", lambda process: set(range(cores)))
    assert search_space._counts(idle, ResourceLimits(most)) == wanted
