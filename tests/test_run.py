"""Runs in one process: records, cases, failures, and refused options."""

import contextlib
import dataclasses
import json
import multiprocessing
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import complaint, damage
from kinds import kind

import iobench
from iobench import RunOptions
from iobench.advise.candidates import loader_word
from iobench.base import thresholds
from iobench.base.errors import REPREPARE, ColdCacheUnavailable, InvalidOption, InvalidSettings, RecordError
from iobench.base.machine import MachineGpu
from iobench.base.thresholds import COLD_LIMIT, WARM_LIMIT
from iobench.bench import backend, executor
from iobench.bench.budget import Budget
from iobench.bench.case_grid import cases_of
from iobench.bench.epoch import MOST_EPOCHS
from iobench.bench.outcome import Observer
from iobench.dataset.prepare import DEFAULT_FORMATS
from iobench.host import machine_info, machine_load, page_cache
from iobench.host.rank_info import VARIABLES, RankInfo
from iobench.loading import loaders
from iobench.results import record_file
from iobench.results.record_file import plain

FORKED = "num_workers=2,start_method=fork"
LOADERS = loaders.DEFAULT_LOADERS
TUPLES = ("device", "cache", "order", "batch_size", "block_bytes", "window_bytes", "model")


class Forwarding(Observer):
    """Calls back for each status line and each record."""

    def __init__(self, status, recorded):
        self.status, self.recorded = status, lambda key, made: recorded(made)


def ignore(event):
    pass


@pytest.fixture
def measure(tmp_path):
    """iobench.run on the CPU, with its records in a file of this test."""

    def call(manifest, variants=("npy",), loaders=("native",), rounds=1, **options):
        observer = Forwarding(options.pop("on_status", ignore), options.pop("on_record", ignore))
        out, budget = options.pop("out", tmp_path / "records.jsonl"), options.pop("budget", None)
        chosen = {"device": "cpu", "order": "sequential", "limits": False, **options}
        chosen = {name: (value,) if name in TUPLES else value for name, value in chosen.items()}
        asked = RunOptions(tuple(variants), tuple(loaders), rounds=str(rounds), **chosen)
        return iobench.run(manifest, asked, out=out, observer=observer, budget=budget)

    return call


def labels(result):
    """Format and loader of each record, in the order of measurement."""
    return [f"{one.case['format']} · {one.case['loader']}" for one in result.records]


def test_every_case_has_a_record_per_round_and_nothing_is_printed(images, measure, capfd):
    result = measure(images, ["all"], LOADERS, rounds=2)
    assert len(result.cases) == len(DEFAULT_FORMATS) * len(LOADERS)
    cycles = [labels(result)[: len(result.cases)], labels(result)[len(result.cases) :]]
    for cycle in cycles:  # interleaved: each case once before any comes again
        assert sorted(cycle) == sorted(map(str, result.labels.values()))
    assert cycles[0] != cycles[1]
    assert len({one.run for one in result.records}) == 1
    assert [one.round for one in result.records] == [1] * len(result.cases) + [2] * len(result.cases)
    assert not result.failures
    assert capfd.readouterr() == ("", "")


def test_records_hold_what_was_measured(images, measure, monkeypatch):
    monkeypatch.setattr(thresholds, "ROUND_S", 1.0)  # an epoch takes milliseconds, or a pause
    (one,) = measure(images, batch_size=50, seed=3, order="random").records
    epochs = one.timing.epochs
    assert one.timing.samples == 203 * epochs
    assert one.timing.logical_bytes == images.schema.logical_bytes * epochs
    assert epochs > 1
    assert one.timing.epochs_s >= 1.0 or epochs == MOST_EPOCHS  # on a fast machine
    assert (one.case["batch_size"], one.case["seed"], one.case["order"]) == (50, 3, "random")
    assert one.dataset.content == f"{images.content:016x}"
    assert one.dataset.stored_bytes == images.artifacts["npy"].stored_bytes
    assert (one.case["device"], one.case["model"], one.loss) == ("cpu", "none", None)
    assert 0 < one.timing.first_batch_s <= one.timing.wait_s <= one.timing.epochs_s
    assert one.timing.wait_p50_s <= one.timing.wait_p99_s
    assert one.memory.peak_bytes > 0
    assert one.memory.device_allocated_bytes is None


def test_records_are_in_the_file_as_each_round_ends(images, measure, tmp_path):
    out, lines = tmp_path / "records.jsonl", []
    result = measure(images, rounds=3, on_record=lambda made: lines.append(out.read_text().count("\n")))
    assert lines == [1, 2, 3]
    assert [one.round for one in record_file.read(result.path)[0]] == [1, 2, 3]


def test_records_are_next_to_the_dataset_by_default(own_images, measure):
    result = measure(own_images, out=None)
    assert result.path.parent == own_images.root.parent / "results"
    assert len(record_file.read(result.path)[0]) == 1


def test_the_loader_s_own_settings_stay_out_of_other_cases(images, measure):
    chosen = {"fetch": ("batch",), "num_workers": (2,), "start_method": ("fork",)}
    result = measure(images, loaders=LOADERS, loader_options=chosen)
    by_loader = {one.case["loader"]: one.case["options"] for one in result.records}
    assert by_loader["native"] == {"pin_memory": False, "non_blocking": False}
    assert by_loader["dataloader"].items() >= {"fetch": "batch", "num_workers": 2}.items()


def test_lists_make_cases_of_valid_combinations(images, measure):
    given = {"num_workers": (0, 1), "prefetch_factor": (3,)}
    result = measure(images, ["npy"], ["dataloader", "stream"], loader_options=given)
    (note,) = result.notes
    assert (note.kind, note.values) == ("skipped", {"reason": "invalid-options"})
    assert "prefetch_factor" in note.message
    assert {str(label) for label in result.labels.values()} == {"npy · dataloader", "npy · stream"}
    words = ["dataloader:fetch=batch", "dataloader"]
    result = measure(images, ["npy"], words, loader_options={"fetch": ("sample",)})
    assert {case.facets["options"]["fetch"] for case in result.cases} == {"batch", "sample"}
    assert len(result.cases) == 2


def test_a_grid_has_every_combination_once(images, measure, tmp_path):
    asked = RunOptions(
        ("npy",),
        ("native", "stream", "native"),  # a case named twice is measured once
        device=("cpu",),
        order=("sequential", "random", "block"),
        batch_size=(32, 64),
        block_bytes=(4096, 8192),
        rounds="1",
        limits=False,
    )
    result = iobench.run(images, asked, out=tmp_path / "r.jsonl")
    assert len(result.cases) == 2 * 2 * (1 + 1 + 2), "sizes of blocks are for block order alone"
    assert len({str(label) for label in result.labels.values()}) == len(result.cases)
    assert len(result.records) == len(result.cases)


def test_loaders_are_measured_with_default_and_recommended_options(images):
    words = ("dataloader", "dataloader:fetch=batch", "stream")
    asked = RunOptions(("npy",), words, recommended_options=True, loader_options={"fetch": ("sample",)})
    cores = len(os.sched_getaffinity(0))
    assert {loader_word(case) for case in cases_of(images, asked, ["cpu"])} == {
        "dataloader",
        "dataloader:fetch=batch",
        f"dataloader:num_workers={cores},persistent_workers=yes",
        "stream",
    }


@pytest.mark.parametrize("name", DEFAULT_FORMATS)
def test_wrong_content_is_a_failure_and_never_timed(own_images, inside, tmp_path, name):
    damage(max(own_images.files_of(name), key=lambda path: path.stat().st_size))
    other, out = "npy" if name != "npy" else "lmdb", tmp_path / "r.jsonl"
    chosen = ("--format", name, "--format", other, "--loader", "native", "--device", "cpu", "--rounds", 1)
    done = inside("run", "--data-dir", own_images.root.parent, *chosen, "--out", out)
    line = complaint(done, 1)
    assert f"{name} · native" in line
    assert REPREPARE in line
    assert other in done.stdout
    assert {one.case["format"] for one in record_file.read(out)[0]} == {other}


def test_cases_that_read_the_same_wrong_data_fail_together(own_images, measure):
    """The data are read again for the first of them, and no other is verified."""
    damage(own_images.files_of("npy")[0])
    result = measure(own_images, ["npy", "lmdb"], ["native", "dataloader"])
    first, second = result.failures.values()
    assert first is second
    assert {one.case["format"] for one in result.records} == {"lmdb"}


@pytest.mark.parametrize("harm", [lambda path: os.truncate(path, 100), Path.unlink])
def test_a_truncated_or_missing_file_fails_its_cases_and_no_other(own_images, measure, harm):
    path = own_images.files_of("npy")[0]
    harm(path)
    result = measure(own_images, ["npy", "lmdb"], LOADERS)
    assert {one.case["format"] for one in result.records} == {"lmdb"}
    assert len(result.failures) == len(LOADERS)
    assert all(error.path == str(path) for error in result.failures.values())


@pytest.mark.parametrize(
    ("mode", "harm", "cause"),
    [
        *((mode, lambda path: path.unlink(missing_ok=True), "missing-file") for mode in ("warm", "cold")),
        ("warm", lambda path: path.write_bytes(path.read_bytes()), "changed"),  # its size is as before
    ],
)
def test_a_file_that_vanishes_or_is_rewritten_between_rounds_fails_its_case(
    by_file, own_images, measure, mode, harm, cause
):
    file = own_images.files_of("npy")[0]
    result = measure(own_images, ["npy", "lmdb"], rounds=3, cache=mode, on_record=lambda made: harm(file))
    assert labels(result).count("lmdb · native") == 3
    ((key, error),) = result.failures.items()
    assert str(result.labels[key]) == "npy · native"
    assert kind(cause, path=file)(error)
    assert {one.case["format"] for one in result.valid_records} == {"lmdb"}


@pytest.mark.parametrize(
    ("name", "workers"), [*((name, "num_workers=0") for name in DEFAULT_FORMATS), ("npy", FORKED)]
)
def test_a_cold_round_reads_what_is_stored_from_disk(by_file, floats, measure, name, workers):
    loader = f"dataloader:fetch=batch,{workers}"
    (one,) = measure(floats, [name], [loader], batch_size=4096, cache="cold").records
    assert one.timing.epochs == 1, "a second epoch would be warm"
    assert one.cache.method == "posix_fadvise"
    assert one.cache.residency <= COLD_LIMIT
    assert 0.95 <= one.disk.read_bytes / floats.artifacts[name].stored_bytes <= 1.3


def test_a_warm_round_reads_nothing_from_disk(floats, measure):
    (one,) = measure(floats, batch_size=4096).records
    assert one.cache.mode == "warm"
    assert one.cache.residency >= WARM_LIMIT
    assert one.disk.read_bytes < 0.02 * floats.schema.logical_bytes


def test_a_cache_that_stays_warm_ends_the_run(by_file, images, measure):
    with (
        open(images.files_of("npy")[0], "rb") as file,
        page_cache.mmap.mmap(file.fileno(), 0, prot=1) as mapped,
    ):
        sum(mapped[:: page_cache.PAGE])
        with pytest.raises(ColdCacheUnavailable, match=f"process {os.getpid()} "):
            measure(images, cache="cold")


def test_processor_time_of_workers_counts(images):
    context = multiprocessing.get_context("fork")
    counting = machine_load.Counters(images.root)
    counting.start()
    child = context.Process(target=lambda: [None for _ in iter(lambda: time.process_time() < 0.2, False)])
    child.start()
    child.join()
    assert counting.stop().cpu_s >= 0.2


@pytest.mark.parametrize(
    "word",
    [
        "dataloader:num_workers=9999",
        "dataloader:num_workers=1,start_method=teleport",
        "dataloader:num_workers=1,prefetch_factor=0",
        "dataloader:start_method=fork",
        "dataloader:persistent_workers=yes",
        "stream:threads=0",
        "stream:threads=100000",
        "native:threads=2",
    ],
)
def test_invalid_options_of_a_loader_are_refused(word):
    with pytest.raises((InvalidSettings, InvalidOption)) as caught:
        loaders.parse(word)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"batch_size": 2**60}, InvalidSettings),
        ({"seed": 2**64}, InvalidSettings),
        ({"loaders": []}, InvalidSettings),
        ({"variants": []}, InvalidSettings),
        ({"loaders": ["native:non_blocking=yes"]}, InvalidSettings),
        ({"loaders": ["native", "stream"], "loader_options": {"num_workers": (2,)}}, InvalidSettings),
        ({"loader_options": {"fetch": ("batch",)}}, InvalidSettings),
        ({"loader_options": {"threads": (2,)}}, InvalidSettings),
        ({"out": Path("/dev/null/r.jsonl")}, RecordError),
        ({"out": Path("/proc")}, RecordError),
    ],
)
def test_an_impossible_run_is_refused_before_it_begins(images, measure, wrong, error):
    """Others are in test_cli_run.py."""
    began = []
    with pytest.raises(error) as caught:
        measure(images, on_status=began.append, **wrong)
    assert not began
    assert "\n" not in str(caught.value)


def test_a_dataset_without_artifacts_is_refused(own_images, measure):
    own_images.artifacts.clear()
    with pytest.raises(InvalidSettings, check=kind("no-cases"), match=own_images.name):
        measure(own_images, ["all"])


def test_the_machine_is_described(images):
    result = machine_info.describe(images.root, "cpu")
    assert set(result.versions) == set(machine_info.LIBRARIES)
    assert (result.commit is not None) == (Path(iobench.__file__).parents[1] / ".git").exists()
    assert result.cpu
    assert result.gpu is None
    json.dumps(plain(result), allow_nan=False)


@pytest.mark.parametrize("lying", ["npy", "hdf5"])
def test_a_case_with_another_loss_fails_and_its_records_are_invalid(images, measure, monkeypatch, lying):
    original = executor.InProcess.measure

    def measured(self, case, *rest):
        result = original(self, case, *rest)
        wrong = 1e-3 if case.variant == lying else 0.0
        return [dataclasses.replace(one, loss=one.loss + wrong) for one in result]

    monkeypatch.setattr(executor.InProcess, "measure", measured)
    result = measure(images, ["npy", "lmdb", "hdf5"], ["native"], rounds=3, model="mlp")
    assert lying in {case.variant for case in result.cases if case.key in result.failures}
    assert lying not in {one.case["format"] for one in result.valid_records}
    assert {error.kind for error in result.failures.values()} == {"loss-mismatch"}
    for error in result.failures.values():
        assert error.expected not in (None, "", error.found)
        assert "\n" not in str(error)


def test_records_are_kept_when_the_cache_cannot_be_made_cold_any_more(by_file, images, measure):
    with contextlib.ExitStack() as held:

        def hold(made):
            if made.round == 2:
                file = held.enter_context(open(images.files_of("npy")[0], "rb"))
                mapped = held.enter_context(page_cache.mmap.mmap(file.fileno(), 0, prot=1))
                sum(mapped[:: page_cache.PAGE])

        result = measure(images, rounds=5, cache="cold", on_record=hold)
    assert isinstance(result.stopped, ColdCacheUnavailable)
    assert result.as_dict()["stopped"]["kind"] == result.stopped.kind
    assert [one.round for one in result.records] == [1, 2]


def test_names_of_host_and_disk_that_are_not_utf8_are_recorded_and_read_back(images, monkeypatch, tmp_path):
    disk = SimpleNamespace(mountpoint="/", fstype="nfs", device="server:/\udcff", opts="rw")
    monkeypatch.setattr("psutil.disk_partitions", lambda all: [disk])
    monkeypatch.setattr("platform.node", lambda: "h\udcff")
    torchrun = dict.fromkeys(VARIABLES, "0") | {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
    assert RankInfo.from_env(torchrun).host == r"h\xff"
    options = iobench.RunOptions(("npy",), ("native",), rounds="1", limits=False)
    result = iobench.run(images, options, out=tmp_path / "r.jsonl")
    records, problems = record_file.read(result.path)
    assert (len(records), problems, result.failures) == (1, [], {})
    assert (records[0].machine.host, records[0].machine.disk.device) == (r"h\xff", r"server:/\xff")


@pytest.mark.parametrize(
    ("odd", "cause"),
    [
        ({"cpu": "\udcff"}, "not-utf-8"),
        ({"gpu": MachineGpu(name="\udcff")}, "not-utf-8"),
        ({"cores": "8"}, "not-a-record"),
    ],
    ids=["cpu", "gpu", "cores"],
)
def test_a_machine_that_no_record_could_hold_is_refused_before_the_first_round(
    images, monkeypatch, tmp_path, odd, cause
):
    described = machine_info.describe
    monkeypatch.setattr(machine_info, "describe", lambda *a: dataclasses.replace(described(*a), **odd))
    rounds = []
    options = iobench.RunOptions(("npy",), ("native",), rounds="1", limits=False)
    watching = Observer()
    monkeypatch.setattr(watching, "status", rounds.append)
    with pytest.raises(RecordError, check=kind(cause)):
        iobench.run(images, options, out=tmp_path / "r.jsonl", observer=watching)
    assert (rounds, list(tmp_path.iterdir())) == ([], [])


def test_the_time_of_a_case_is_without_that_of_the_limits(images, measure, monkeypatch):
    """Limits that take most of the time make no case slow."""
    clock = SimpleNamespace(now=0.0)

    def sample_limits(self):
        clock.now += 100.0

    monkeypatch.setattr(backend.RunBackend, "sample_limits", sample_limits)
    budget = Budget(1400.0, clock=lambda: clock.now)
    result = measure(images, ["npy", "lmdb", "hdf5"], rounds=3, max_time=1400.0, budget=budget)
    assert len(result.records) == 3 * 3
