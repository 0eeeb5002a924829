"""Agreement, content check and measurement of several ranks, which are threads here."""

import dataclasses
import os
import threading
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from kinds import kind
from rank_cases import over_threads, run_over

from iobench import RunOptions
from iobench.base.errors import CaseDied, InvalidSettings, LoaderFailed, RanksDiffer
from iobench.bench import executor, limits
from iobench.bench.case_grid import cases_of, skip_notes
from iobench.dataset.manifest import Manifest
from iobench.host import hardware_limits, machine_load, page_cache, rank_info
from iobench.host.hardware_limits import Limit
from iobench.loading.batching import Batching
from iobench.loading.loaders import DEFAULT_LOADERS
from iobench.loading.loaders.native import NativeEpochs
from iobench.loading.order import Order
from iobench.ranks import distributed_backend, rank
from iobench.ranks.group import Collectives, run_on_all_ranks
from iobench.ranks.rank import Rank
from iobench.results import record_file
from iobench.results.parts import LimitPart
from iobench.results.warnings import warnings_of
from iobench.terminal import scaling
from iobench.terminal.runs import TableOptions

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1"}


def test_a_rank_knows_itself_by_what_torchrun_sets():
    info = rank_info.RankInfo.from_env(TORCHRUN)
    assert dataclasses.replace(info, host="b") == rank_info.RankInfo(3, 4, 1, 1, "b")
    assert rank_info.RankInfo.from_env({}) is None
    assert (
        rank_info.RankInfo.from_env(
            {**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"} | {"LOCAL_WORLD_SIZE": "1"}
        )
        is None
    )


@pytest.mark.parametrize("wrong", [{"RANK": "4"}, {"RANK": "one"}, {"LOCAL_RANK": "2"}])
def test_an_impossible_rank_is_refused(wrong):
    with pytest.raises(InvalidSettings, check=kind("invalid-rank")) as caught:
        rank_info.RankInfo.from_env(TORCHRUN | wrong)
    ((name, value),) = wrong.items()
    assert f"{name}={value}" in caught.value.found


LIGHTNING = {"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "2"}
SLURM = {"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_ID": "0"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (0, 1)),
        (TORCHRUN, (3, 4)),
        (TORCHRUN | SLURM | {"SLURM_PROCID": "0"}, (3, 4)),
        (TORCHRUN | {"NODE_RANK": "0", "TORCHELASTIC_RUN_ID": "none"}, (3, 4)),  # of the cluster, not its own
        ({"RANK": "0", "WORLD_SIZE": "1"} | SLURM, (0, 1)),
        (LIGHTNING, (1, 2)),
        (LIGHTNING | {"RANK": "1"}, (1, 2)),
        ({"LOCAL_RANK": "0", "NODE_RANK": "0"}, (0, 1)),  # as Lightning leaves them behind
        ({"LOCAL_RANK": "-1", "RANK": "-1", "WORLD_SIZE": "1"}, (0, 1)),
        (SLURM, (3, 4)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, (1, 2)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, (0, 1)),  # a batch script without srun
    ],
)
def test_the_first_that_says_it_decides_the_rank(variables, expected):
    own = rank_info.process_rank(variables)
    assert (own.rank, own.world_size) == expected


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"WORLD_SIZE": "2"}, "incomplete-ranks"),
        ({"RANK": "1"}, "incomplete-ranks"),
        (LIGHTNING | {"NODE_RANK": "1", "WORLD_SIZE": "4"}, "incomplete-ranks"),  # how many has node 0?
        (LIGHTNING | {"RANK": "0"}, "contradicting-ranks"),
        (TORCHRUN | {"RANK": "4"}, "invalid-rank"),
        (LIGHTNING | {"LOCAL_RANK": "2"}, "invalid-rank"),
        (SLURM | {"SLURM_PROCID": "four"}, "invalid-rank"),
    ],
)
def test_variables_that_leave_the_rank_open_are_refused(variables, named):
    with pytest.raises(InvalidSettings, check=kind(named)) as caught:
        rank_info.process_rank(variables)
    assert "\n" not in str(caught.value)


def test_an_error_of_one_rank_is_raised_on_all_with_its_rank_and_fields():
    def one(group):
        def call():
            if group.info.rank == 1:
                raise LoaderFailed("gone", kind="read-error", path="/d", found="EIO", hint="replace it")
            return Collectives(group).all_gather(group.info.rank)  # never completes

        same = {"path": "/d", "found": "EIO", "hint": "replace it"}
        problem = "rank 1 on b: gone"
        with pytest.raises(LoaderFailed, check=kind("read-error", problem=problem, **same)):
            run_on_all_ranks(group, call)
        return run_on_all_ranks(group, lambda: group.info.rank)  # and they continue together

    assert over_threads(one, ["a", "b", "b"]) == [[0, 1, 2]] * 3


@pytest.mark.parametrize(
    ("failing", "problem"), [((0, 1, 2), "gone"), ((1, 2), "rank 1 on b (and 1 more of 3 ranks): gone")]
)
def test_an_error_of_several_ranks_counts_them_and_one_of_all_names_none(failing, problem):
    def one(group):
        def call():
            if group.info.rank in failing:
                raise LoaderFailed("gone")

        with pytest.raises(LoaderFailed, check=kind("loader-failed", problem=problem)):
            run_on_all_ranks(group, call)

    over_threads(one, ["a", "b", "b"])


def test_an_unexpected_exception_of_one_rank_is_a_died_case_on_the_others():
    def one(group):
        def call():
            if group.info.rank:
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError if group.info.rank else CaseDied) as caught:
            run_on_all_ranks(group, call)
        return getattr(caught.value, "kind", None)

    assert over_threads(one) == ["rank-raised", None]


@pytest.mark.parametrize("hosts", [["a", "a"], ["a", "b", "b"]])
@pytest.mark.parametrize("order", ["sequential", "random", "block"])
def test_ranks_verify_and_time_the_dataset_together(images, tmp_path, hosts, order):
    formats, loaders = ["npy", "memmap"], list(DEFAULT_LOADERS)
    result = run_over(images, tmp_path / "r.jsonl", hosts, formats, loaders, 2, order=(order,))
    assert not result.failures
    assert not result.stopped
    assert len(result.records) == len(formats) * len(loaders) * 2
    for one in record_file.read(result.path)[0]:
        assert one.case["world_size"] == len(hosts)
        assert [(part.rank, part.host) for part in one.ranks] == list(enumerate(hosts))
        assert one.timing.samples == sum(part.samples for part in one.ranks)
        again = one.content_check.repeated if one.content_check else 0
        assert one.timing.samples == (203 + again) * one.timing.epochs
        assert max(part.own_s for part in one.ranks) <= one.timing.epochs_s * 1.000001


def test_padding_samples_of_distributed_sampler_are_counted(images, tmp_path):
    result = run_over(images, tmp_path / "r.jsonl", loaders=["dataloader", "native"])
    by_loader = {one.case["loader"]: one for one in result.records}
    assert by_loader["dataloader"].content_check.repeated == 1  # 203 samples over 2 ranks
    assert by_loader["dataloader"].timing.samples % 204 == 0
    assert by_loader["native"].content_check is None


@pytest.mark.parametrize("loader", DEFAULT_LOADERS)
def test_a_rank_that_reads_another_s_share_is_detected(images, tmp_path, monkeypatch, loader):
    usual = Batching.order_over
    monkeypatch.setattr(
        Batching, "order_over", lambda self, opener, rank, ranks: usual(self, opener, 0, ranks)
    )
    result = run_over(images, tmp_path / "r.jsonl", loaders=[loader])
    assert {error.kind for error in result.failures.values()} == {"wrong-content"}
    assert not result.records


def test_ranks_with_unequal_batches_are_refused(images, tmp_path, monkeypatch):
    def unequal(order, samples, epoch):
        edges = [0, 150, 203] if order.rank == 0 else [203]
        return [np.arange(*pair) for pair in pairwise(edges)]

    monkeypatch.setattr(Order, "batches", unequal)
    result = run_over(images, tmp_path / "r.jsonl", order=("sequential",))
    (error,) = result.failures.values()
    kind("uneven-batches", expected="2 as on rank 0", found="0 on rank 1")(error)


def test_no_rank_begins_before_all_have_opened(images, tmp_path, monkeypatch):
    seen, opened, epoch = [], NativeEpochs.__init__, NativeEpochs.epoch
    slow = threading.Event()

    def open_slowly(self, loader, job):
        if job.order.rank == 1:
            slow.wait(0.05)
        opened(self, loader, job)
        seen.append("open")

    def epoch_seen(self, asked):
        seen.append("epoch")
        yield from epoch(self, asked)

    monkeypatch.setattr(NativeEpochs, "__init__", open_slowly)
    monkeypatch.setattr(NativeEpochs, "epoch", epoch_seen)
    result = run_over(images, tmp_path / "r.jsonl", rounds=3)
    assert len(result.records) == 3
    opens = [number for number, what in enumerate(seen) if what == "open"]
    assert len(opens) == 2 * 4
    for first, second in zip(opens[::2], opens[1::2], strict=True):
        assert "epoch" not in seen[first:second]


def test_an_error_of_one_rank_fails_the_case_and_no_other(images, tmp_path, monkeypatch):
    usual = executor.InProcess.measure

    def failing(self, case, number, *rest):
        if self._group.rank == 1 and case.loader.name == "native" and number == 2:
            raise LoaderFailed("unplugged")
        return usual(self, case, number, *rest)

    monkeypatch.setattr(executor.InProcess, "measure", failing)
    result = run_over(images, tmp_path / "r.jsonl", ["a", "b"], loaders=["native", "stream"], rounds=3)
    assert [str(result.labels[key]) for key in result.failures] == ["npy · native"]
    problem = result.failures.popitem()[1].problem
    assert problem.startswith("rank 1 on b")
    assert problem.endswith(": unplugged")
    assert [one.case["loader"] for one in result.records].count("stream") == 3
    assert [one.case["loader"] for one in result.records].count("native") == 1


@pytest.mark.parametrize("name", ["other-content", "no-dataset"])
def test_another_dataset_or_none_on_one_host_stops_the_run(images, floats, tmp_path, monkeypatch, name):
    usual, other = Manifest.load.__func__, floats.root if name == "other-content" else tmp_path

    def load(cls, root):
        return usual(cls, other if threading.current_thread().name.endswith("_1") else root)

    monkeypatch.setattr(Manifest, "load", classmethod(load))
    with pytest.raises(RanksDiffer, check=kind(name)) as caught:
        run_over(images, tmp_path / "r.jsonl", ["a", "b"])
    error = caught.value
    assert error.problem.startswith("rank 1 on b")
    if name == "no-dataset":
        assert str(tmp_path) in error.path
        return
    assert error.path == str(images.root)
    assert error.expected == f"content {images.content:016x}"
    assert error.found == f"{floats.content:016x}"


def test_other_software_on_one_rank_is_named(monkeypatch):
    version = lambda: "0.0" if threading.current_thread().name.endswith("_1") else "1.0"  # noqa: E731
    monkeypatch.setattr(rank, "software", lambda: {"iobench": "1", "torch": version()})
    fields = {"expected": "1.0 as on rank 0 on a", "found": "0.0"}
    with pytest.raises(RanksDiffer, check=kind("other-software", **fields)) as caught:
        over_threads(rank.check_environments, ["a", "b"])
    assert caught.value.problem.startswith("rank 1 on b")
    assert "torch" in caught.value.problem


def test_iobench_s_own_code_is_part_of_the_software():
    assert {"iobench", "torch", "numpy", "iobench's code", "Python"} == set(rank.software())


def test_ranks_of_this_host_are_no_background_load_and_clocks_are_compared(monkeypatch):
    ours = []
    monkeypatch.setattr(machine_load, "exclude_processes", lambda pids: ours.append(sorted(pids)))
    late = lambda: 100.0 + 5 * threading.current_thread().name.endswith("_1")  # noqa: E731
    monkeypatch.setattr(rank, "time", SimpleNamespace(time=late))
    notes = over_threads(rank.check_environments, ["a", "b"])
    assert ours == [[os.getpid()]] * 2
    assert notes[0] == notes[1]
    (note,) = notes[0]
    assert (note.kind, note.values) == ("clock-skew", {"rank": "rank 1 on b", "skew_s": 5.0})


@pytest.mark.parametrize("hosts", [["a", "a", "a"], ["a", "b", "b"]])
def test_each_host_evicts_once_and_other_ways_are_named(floats, tmp_path, monkeypatch, by_file, hosts):
    ways, usual = iter(["drop_caches", "posix_fadvise", "another"]), page_cache.establish
    monkeypatch.setattr(page_cache, "establish", lambda *asked: {**usual(*asked), "method": next(ways)})
    result = run_over(floats, tmp_path / "r.jsonl", hosts, cache=("cold",))
    assert not result.failures
    (one,) = result.records
    assert one.cache.residency < 0.01
    several = "b" in hosts
    either = {"drop_caches on a, posix_fadvise on b", "posix_fadvise on a, drop_caches on b"}
    assert one.cache.method in (either if several else {"drop_caches"})
    assert next(ways) == ("another" if several else "posix_fadvise"), "each host evicts once"
    assert ("mixed-eviction" in [warning.kind for warning in warnings_of(result.records)]) == several


def test_limits_are_those_of_all_hosts_together(images, tmp_path, monkeypatch):
    measured = []

    def page_cache(file, slot_bytes, slots, threads, seconds):
        measured.append(threads)
        return Limit("page cache", f"{threads} threads", 1e12)

    monkeypatch.setattr(hardware_limits, "page_cache_read", page_cache)
    monkeypatch.setattr(limits, "EVERY_S", 1e9)
    (one,) = run_over(
        images, tmp_path / "r.jsonl", ["a", "a", "b"], limits=True, order=("sequential",)
    ).records
    assert one.limit.bytes_per_s == 2e12
    assert "2 hosts" in one.limit.how
    assert len(measured) == 2 * 2 * limits.FIRST_SAMPLES * len({1, len(os.sched_getaffinity(0))})


def test_a_resource_shared_by_hosts_shows_when_they_read_at_once(images, tmp_path, monkeypatch):
    by_itself, separately = set(), Rank.sample_separately

    def remembered(self):
        by_itself.add(threading.get_ident())
        separately(self)
        by_itself.discard(threading.get_ident())

    def page_cache(file, slot_bytes, slots, threads, seconds):
        return Limit("page cache", "", 1e12 if threading.get_ident() in by_itself else 5e11)

    monkeypatch.setattr(Rank, "sample_separately", remembered)
    monkeypatch.setattr(hardware_limits, "page_cache_read", page_cache)
    monkeypatch.setattr(limits, "EVERY_S", 1e9)
    result = run_over(images, tmp_path / "r.jsonl", ["a", "b"], limits=True, order=("sequential",))
    (one,) = result.records
    assert (one.limit.bytes_per_s, one.limit.alone_bytes_per_s) == (1e12, 2e12)
    (warning,) = [one for one in warnings_of(result.records) if one.kind == "shared-limit"]
    assert warning.values == {"limit": "page cache", "share": 0.5}


def test_each_rank_has_its_own_link_to_its_device():
    link = LimitPart(name=limits.TO_DEVICE, bytes_per_s=10.0, now_bytes_per_s=9.0)
    memory = LimitPart(name="page cache", bytes_per_s=25.0, now_bytes_per_s=25.0)
    result = distributed_backend.lowest_over_ranks([[memory, link], [link], [link]])
    assert (result.name, result.bytes_per_s, result.now_bytes_per_s) == ("page cache", 25.0, 25.0)
    result = distributed_backend.lowest_over_ranks([[memory, link], [link]])
    assert (result.name, result.bytes_per_s) == (limits.TO_DEVICE, 20.0)
    assert "2 devices" in result.how
    assert distributed_backend.lowest_over_ranks([[], []]) is None


def test_of_all_loaders_those_that_ranks_cannot_use_are_skipped(images):
    options = RunOptions(("npy",), ("all",))
    cases = cases_of(images, options, ["cpu"], world_size=2)
    assert {case.loader.name for case in cases} >= set(DEFAULT_LOADERS)
    assert not any(case.loader.isolated for case in cases)
    assert {(case.world_size, case.isolated) for case in cases} == {(2, False)}
    notes = [one for one in skip_notes(images, options, 2) if one.values["reason"] == "ranks"]
    assert {one.kind for one in notes} == {"skipped"}
    assert any("spdl" in one.message and "2 ranks" in one.message for one in notes)
    more = cases_of(images, RunOptions(("npy",), ("all",), isolate=False), ["cpu"], world_size=2)
    assert "spdl" in {case.loader.name for case in more}


@pytest.mark.parametrize(
    ("chosen", "name", "option"),
    [
        ({"model": ("mlp",)}, "ranks-model", "--step-ms"),
        ({"isolate": True}, "ranks-isolated", "--no-isolate"),
        ({"loaders": ["theirs.py:make"]}, "ranks-own-order", ""),
    ],
)
def test_cases_that_ranks_cannot_measure_are_refused_by_name(
    images, tmp_path, monkeypatch, chosen, name, option
):
    (tmp_path / "theirs.py").write_text("def make():\n    pass\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidSettings, check=kind(name), match="over 2 ranks") as caught:
        run_over(images, tmp_path / "r.jsonl", **chosen)
    assert option in caught.value.hint


def test_cases_that_ranks_cannot_measure_are_refused_before_any_starts(images, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(scaling, "over_ranks", lambda *asked: pytest.fail("started"))
    options = RunOptions(("npy",), ("native",), model=("mlp",), device=("cpu",))
    with pytest.raises(InvalidSettings, check=kind("ranks-model")):
        scaling.run_over(scaling.Over([1, 2]), images, options, [], tmp_path / "r.jsonl", TableOptions(), 0.0)
    assert capsys.readouterr().err == ""
