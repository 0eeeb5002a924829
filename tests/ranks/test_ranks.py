"""What several ranks agree on, prove and measure, with ranks that are threads."""

import dataclasses
import os
import threading
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from rank_cases import over_threads, run_over

from iobench import RunOptions
from iobench.base.errors import (
    InvalidSettings,
    LoaderFailed,
    RanksDiffer,
)
from iobench.bench import case as case_module
from iobench.bench import case_limits, executor
from iobench.bench.options import cases_of, left_out
from iobench.dataset.manifest import Manifest
from iobench.host import limits, others
from iobench.host.limits import Limit
from iobench.loading.loaders.native import NativeEpochs
from iobench.loading.order import Order
from iobench.ranks import alike, crew, place
from iobench.ranks.rank import Rank
from iobench.ranks.together import Together, all_do
from iobench.results import record
from iobench.results.parts import LimitPart
from iobench.results.warnings import warnings_of
from iobench.terminal import scaling

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1"}


def test_a_rank_knows_itself_by_what_torchrun_sets():
    found = place.of_environment(TORCHRUN)
    assert dataclasses.replace(found, host="b") == place.Place(3, 4, 1, 2, 1, "b")
    assert place.of_environment({}) is None
    assert (
        place.of_environment(
            {**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"} | {"LOCAL_WORLD_SIZE": "1"}
        )
        is None
    )


@pytest.mark.parametrize("wrong", [{"RANK": "4"}, {"RANK": "one"}, {"LOCAL_RANK": "2"}])
def test_a_place_that_cannot_be_is_refused(wrong):
    with pytest.raises(InvalidSettings, match=r"RANK="):
        place.of_environment(TORCHRUN | wrong)


def test_what_fails_on_one_rank_fails_on_all_and_names_it():
    def one(group):
        def call():
            if group.place.rank == 1:
                raise LoaderFailed("the disk is gone")
            return Together(group).gathered(group.place.rank)  # never met

        with pytest.raises(LoaderFailed, match=r"rank 1 on b: the disk is gone$"):
            all_do(group, call)
        return all_do(group, lambda: group.place.rank)  # and they go on together

    assert over_threads(one, ["a", "b", "b"]) == [[0, 1, 2]] * 3


def test_what_fails_on_all_alike_is_said_once():
    def one(group):
        with pytest.raises(LoaderFailed, match=r"^no such file$"):
            all_do(group, lambda: (_ for _ in ()).throw(LoaderFailed("no such file")))

    over_threads(one)


@pytest.mark.parametrize("hosts", [["a", "a"], ["a", "b", "b"]])
@pytest.mark.parametrize("order", ["sequential", "random", "block"])
def test_ranks_prove_and_time_the_dataset_together(images, tmp_path, hosts, order):
    loaders = ["native", "dataloader", "stream"]
    found = run_over(images, tmp_path / "r.jsonl", hosts, ["npy", "memmap"], loaders, 2, order=(order,))
    assert not found.failures
    assert not found.stopped
    assert len(found.records) == 2 * 3 * 2
    for one in record.read(found.path)[0]:
        assert one.case["world_size"] == len(hosts)
        assert [(part.rank, part.host) for part in one.ranks] == list(enumerate(hosts))
        assert one.timing.samples == sum(part.samples for part in one.ranks)
        again = one.proof.repeated if one.proof else 0
        assert one.timing.samples == (203 + again) * one.timing.epochs
        assert max(part.own_s for part in one.ranks) <= one.timing.epochs_s * 1.000001


def test_what_distributed_sampler_repeats_is_counted_and_warned_of(images, tmp_path):
    found = run_over(images, tmp_path / "r.jsonl", loaders=["dataloader", "native"])
    by_loader = {one.case["loader"]: one for one in found.records}
    assert by_loader["dataloader"].proof.repeated == 1  # 203 samples over 2 ranks
    assert by_loader["dataloader"].timing.samples % 204 == 0
    assert by_loader["native"].proof is None


@pytest.mark.parametrize("loader", ["dataloader", "native", "stream"])
def test_a_rank_that_reads_another_s_share_is_found_out(images, tmp_path, monkeypatch, loader):
    usual = case_module.Case.row_order
    monkeypatch.setattr(case_module.Case, "row_order", lambda case, schema, rank=0: usual(case, schema, 0))
    found = run_over(images, tmp_path / "r.jsonl", loaders=[loader])
    assert "wrong content on the device" in found.failures.popitem()[1]
    assert not found.records


def test_ranks_with_unequal_batches_are_refused(images, tmp_path, monkeypatch):
    def unequal(order, samples, epoch):
        edges = [0, 150, 203] if order.rank == 0 else [203]
        return [np.arange(*pair) for pair in pairwise(edges)]

    monkeypatch.setattr(Order, "batches", unequal)
    found = run_over(images, tmp_path / "r.jsonl", order=("sequential",))
    assert "rank 1 had 0 in an epoch, rank 0 had 2" in found.failures.popitem()[1]


def test_no_rank_begins_before_all_have_opened(images, tmp_path, monkeypatch):
    seen, opened, epoch = [], NativeEpochs.__init__, NativeEpochs._epoch
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
    monkeypatch.setattr(NativeEpochs, "_epoch", epoch_seen)
    found = run_over(images, tmp_path / "r.jsonl", rounds=3)
    assert len(found.records) == 3
    opens = [number for number, what in enumerate(seen) if what == "open"]
    assert len(opens) == 2 * 4
    for first, second in zip(opens[::2], opens[1::2], strict=True):
        assert "epoch" not in seen[first:second]


def test_a_failing_rank_is_a_failure_of_the_case_and_the_others_go_on(images, tmp_path, monkeypatch):
    usual = executor.InProcess.measure

    def failing(self, case, number, tick):
        if self._peers.rank == 1 and case.loader.name == "native" and number == 2:
            raise LoaderFailed("the cable is out")
        return usual(self, case, number, tick)

    monkeypatch.setattr(executor.InProcess, "measure", failing)
    found = run_over(images, tmp_path / "r.jsonl", ["a", "b"], loaders=["native", "stream"], rounds=3)
    assert [str(found.labels[key]) for key in found.failures] == ["npy · native"]
    assert found.failures.popitem()[1] == "rank 1 on b: the cable is out"
    assert [one.case["loader"] for one in found.records].count("stream") == 3
    assert [one.case["loader"] for one in found.records].count("native") == 1


def test_another_dataset_on_one_host_stops_the_run(images, floats, tmp_path, monkeypatch):
    usual = Manifest.load.__func__

    def other(cls, root):
        return usual(cls, floats.root if threading.current_thread().name.endswith("_1") else root)

    monkeypatch.setattr(Manifest, "load", classmethod(other))
    with pytest.raises(RanksDiffer, match=r"rank 1 on b: .* holds data .*, on rank 0 it holds"):
        run_over(images, tmp_path / "r.jsonl", ["a", "b"])


def test_other_software_on_one_rank_is_named(monkeypatch):
    version = lambda: "0.0" if threading.current_thread().name.endswith("_1") else "1.0"  # noqa: E731
    monkeypatch.setattr(alike, "_software", lambda: {"iobench": "1", "torch": version()})
    with pytest.raises(RanksDiffer, match=r"rank 1 on b has torch 0.0, rank 0 on a has 1.0"):
        over_threads(alike.check_alike, ["a", "b"])


def test_ranks_of_this_host_are_no_other_work_and_clocks_are_compared(monkeypatch):
    ours = []
    monkeypatch.setattr(others, "count_as_ours", lambda processes: ours.append(sorted(processes)))
    late = lambda: 100.0 + 5 * threading.current_thread().name.endswith("_1")  # noqa: E731
    monkeypatch.setattr(alike, "time", SimpleNamespace(time=late))
    said = over_threads(alike.check_alike, ["a", "b"])
    assert ours == [[os.getpid()]] * 2
    assert said[0] == said[1]
    assert "the clock of rank 1 on b is 5 s apart" in said[0][0]


def test_a_cold_run_evicts_once_for_each_host(floats, tmp_path, monkeypatch, by_file):
    from iobench.host import cache

    evicted, usual = [], cache.establish

    def establish(mode, *rest):
        evicted.append(mode)
        return usual(mode, *rest)

    monkeypatch.setattr(cache, "establish", establish)
    found = run_over(floats, tmp_path / "r.jsonl", ["a", "a", "a"], cache=("cold",))
    assert not found.failures
    assert evicted == ["cold"]
    (one,) = found.records
    assert one.cache.residency < 0.01


def test_hosts_that_evict_in_different_ways_are_named(floats, tmp_path, monkeypatch, by_file):
    from iobench.host import cache

    ways, usual = iter(["drop_caches", "posix_fadvise"]), cache.establish
    monkeypatch.setattr(cache, "establish", lambda *asked: {**usual(*asked), "method": next(ways)})
    found = run_over(floats, tmp_path / "r.jsonl", ["a", "b", "b"], cache=("cold",))
    said = {"drop_caches on a, posix_fadvise on b", "posix_fadvise on a, drop_caches on b"}
    assert found.records[0].cache.method in said
    assert "eviction" in [warning.kind for warning in warnings_of(found.records)]


def test_limits_are_those_of_all_hosts_together(images, tmp_path, monkeypatch):
    measured = []

    def page_cache(file, slot_bytes, slots, threads, seconds):
        measured.append(threads)
        return Limit("page cache", f"{threads} threads", 1e12)

    monkeypatch.setattr(limits, "page_cache", page_cache)
    monkeypatch.setattr(case_limits, "EVERY_S", 1e9)
    (one,) = run_over(images, tmp_path / "r.jsonl", ["a", "a", "b"], limits=True).records
    assert one.limit.bytes_per_s == 2e12
    assert one.limit.how.endswith("2 hosts at once")
    assert len(measured) == 2 * 2 * case_limits.FIRST_LOOKS * len({1, len(os.sched_getaffinity(0))})


def test_what_hosts_share_shows_where_they_read_at_once(images, tmp_path, monkeypatch):
    by_itself, look_alone = set(), Rank.look_alone

    def remembered(self):
        by_itself.add(threading.get_ident())
        look_alone(self)
        by_itself.discard(threading.get_ident())

    def page_cache(file, slot_bytes, slots, threads, seconds):
        return Limit("page cache", "", 1e12 if threading.get_ident() in by_itself else 5e11)

    monkeypatch.setattr(Rank, "look_alone", remembered)
    monkeypatch.setattr(limits, "page_cache", page_cache)
    monkeypatch.setattr(case_limits, "EVERY_S", 1e9)
    found = run_over(images, tmp_path / "r.jsonl", ["a", "b"], limits=True)
    (one,) = found.records
    assert (one.limit.bytes_per_s, one.limit.alone_bytes_per_s) == (1e12, 2e12)
    (said,) = [one.said for one in warnings_of(found.records) if one.kind == "shared"]
    assert "the hosts share the page cache: together they got 50%" in said


def test_each_rank_has_a_way_of_its_own_to_its_device():
    link = LimitPart(name=case_limits.TO_DEVICE, bytes_per_s=10.0, now_bytes_per_s=9.0)
    memory = LimitPart(name="page cache", bytes_per_s=25.0, now_bytes_per_s=25.0)
    found = crew._lowest([[memory, link], [link], [link]])
    assert (found.name, found.bytes_per_s, found.now_bytes_per_s) == ("page cache", 25.0, 25.0)
    found = crew._lowest([[memory, link], [link]])
    assert (found.name, found.bytes_per_s, found.how) == (case_limits.TO_DEVICE, 20.0, ", 2 devices at once")
    assert crew._lowest([[], []]) is None


def test_of_all_loaders_those_that_ranks_cannot_have_are_left_out(images):
    options = RunOptions(("npy",), ("all",))
    cases = cases_of(images, options, ["cpu"], world_size=2)
    assert {case.loader.name for case in cases} == {"dataloader", "native", "stream"}
    assert {(case.world_size, case.isolated) for case in cases} == {(2, False)}
    said = left_out(images, options, 2)
    assert any("spdl over 2 ranks: each of its cases wants a process of its own" in one for one in said)
    more = cases_of(images, RunOptions(("npy",), ("all",), isolate=False), ["cpu"], world_size=2)
    assert "spdl" in {case.loader.name for case in more}


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"model": ("mlp",)}, "--model mlp over 2 ranks: .*--step-ms"),
        ({"isolate": True}, "over 2 ranks: .*--no-isolate"),
        ({"loaders": ["theirs.py:make"]}, "over 2 ranks: iobench does not know how"),
    ],
)
def test_what_ranks_cannot_have_is_refused_by_name(images, tmp_path, monkeypatch, chosen, said):
    (tmp_path / "theirs.py").write_text("def make():\n    pass\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidSettings, match=said):
        run_over(images, tmp_path / "r.jsonl", **chosen)


def test_what_ranks_cannot_have_is_refused_before_any_is_started(images, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(scaling, "over_ranks", lambda *asked: pytest.fail("started"))
    options = RunOptions(("npy",), ("native",), model=("mlp",), device=("cpu",))
    with pytest.raises(InvalidSettings, match="--model mlp over 2 ranks: "):
        scaling.run_over(
            scaling.Over([1, 2]), images, options, [], tmp_path / "r.jsonl", (0.05, False, False)
        )
    assert capsys.readouterr().err == ""
