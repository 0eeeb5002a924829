"""`iobench plan`: cases solved by hand, a simulation over synthetic hosts, and refusals."""

import json
import random
from dataclasses import replace

import pytest
from kinds import complaint_kind, kind
from record_cases import MIB, a_record, rounds_of

from iobench.base.errors import InvalidSettings, RecordError
from iobench.base.units import parse_rate
from iobench.results import record_file
from iobench.results.capacity import plan_capacity
from iobench.results.cluster import Cluster
from iobench.results.parts import LimitPart

STEADY = [1000.0] * 5  # MiB/s of one rank over samples of 1 MiB, batches of 256
PAGE_CACHE = "node page cache"
STEP_S = 0.512  # a demand of 500 MiB/s


def measured(speeds=STEADY, cores=64, cpu_s=2.0, limit=10_000, **common):
    """Return rounds of 1 GiB on a host of 64 cores with 2 CPU seconds each: 32,768 MiB/s at most."""
    made = rounds_of(speeds, **common)
    return [
        replace(
            one,
            machine=replace(one.machine, usable_cores=cores),
            processor=replace(one.processor, cpu_s=cpu_s),
            limit=LimitPart(name="page cache", bytes_per_s=limit * MIB, now_bytes_per_s=limit * MIB),
        )
        for one in made
    ]


def planned(records=None, **cluster):
    return plan_capacity(
        records or measured(), Cluster(**{"ranks": 1024, "nodes": 128, "step_s": STEP_S, **cluster})
    )


def utilisation(plan):
    return {one.resource.name: one.utilisation.median for one in plan.uses}


def test_a_case_solved_by_hand():
    """8 ranks of a node need 4,000 MiB/s, all ranks 512,000 MiB/s."""
    plan = planned(network_bytes_per_s=8000 * MIB, storage_bytes_per_s=128_000 * MIB)
    assert utilisation(plan) == pytest.approx(
        {
            "storage": 4.0,
            "node network": 0.5,
            "loader": 0.5,
            PAGE_CACHE: 0.4,
            "node CPU": 4000 / 32768,
        }
    )
    first = plan.uses[0]
    assert (first.resource.name, first.max_ranks.median) == ("storage", pytest.approx(256))
    assert plan.achieved_bytes_per_s.median == pytest.approx(125 * MIB)
    assert plan.outcome == "exhausted"
    assert all(text in plan.sentence for text in ("storage", "256 of 1,024", "25%", "75%"))


def test_a_node_that_is_too_full():
    plan = planned(network_bytes_per_s=2000 * MIB)
    first = plan.uses[0]
    assert (first.resource.name, first.resource.per) == ("node network", "node")
    assert first.max_ranks.median == pytest.approx(512)
    assert "4 on each" in plan.sentence
    assert plan.achieved_bytes_per_s.median == pytest.approx(250 * MIB)


def test_a_loader_that_is_too_slow_is_so_with_any_number_of_ranks():
    plan = planned(measured([250.0] * 5))
    first = plan.uses[0]
    assert (plan.outcome, first.resource.name, first.max_ranks) == ("exhausted", "loader", None)
    assert first.utilisation.median == pytest.approx(2.0)


def test_nothing_is_exhausted():
    plan = planned(ranks=8, nodes=1)
    assert (plan.outcome, plan.uses[0].resource.name) == ("sufficient", "loader")
    assert plan.achieved_bytes_per_s.median == plan.demand_bytes_per_s.median


def test_without_a_step_the_demand_is_the_rate_of_the_loader():
    plan = planned(step_s=0.0)
    assert plan.demand_bytes_per_s.median == 1000 * MIB
    assert plan.uses[0].resource.name == PAGE_CACHE  # 8 × 1,000 of 10,000
    assert utilisation(plan)[PAGE_CACHE] == pytest.approx(0.8)


def test_fewer_shards_than_ranks_feed_as_many_ranks():
    plan = planned(shard_bytes=4 * MIB)  # 1 GiB: 256 shards
    assert plan.uses[0].max_ranks.median == pytest.approx(256)
    assert plan.uses[0].utilisation.low == plan.uses[0].utilisation.high
    workers = measured(loader="dataloader:num_workers=4")
    assert planned(workers, shard_bytes=4 * MIB).uses[0].max_ranks.median == pytest.approx(64)


def test_compressed_data_pass_a_network_as_stored():
    half = measured(dataset={"stored_bytes": 512 * MIB})
    plan = planned(half, network_bytes_per_s=2000 * MIB)
    assert utilisation(plan)["node network"] == pytest.approx(1.0)


def test_the_interval_is_that_of_the_rounds():
    plan = planned(measured([400.0, 500.0, 600.0] * 5))
    loader = next(one for one in plan.uses if one.resource.name == "loader")
    assert (loader.utilisation.low, loader.utilisation.median, loader.utilisation.high) == pytest.approx(
        (5 / 6, 1.0, 5 / 4)
    )
    assert plan.outcome == "inconclusive"


def fed(hosts, ranks_per_node, asks, network, storage):
    """Return the rate of each rank where storage is shared max-min fairly and the slowest rank counts."""
    got = [0.0] * len(hosts)
    left = storage
    waiting = list(range(len(hosts)))
    while waiting and left > 1e-6:
        share = left / len(waiting)
        full = []
        for host in waiting:
            room = min(hosts[host] * ranks_per_node, network, asks * ranks_per_node) - got[host]
            took = min(share, room)
            got[host] += took
            left -= took
            if took >= room - 1e-9:
                full.append(host)
        waiting = [host for host in waiting if host not in full]
        if not full:
            break
    return min(got) / ranks_per_node


def test_the_plan_predicts_a_simulation_of_synthetic_hosts():
    """Hosts scatter by 5 %; each rank's loader is like the measured one, and ranks step together."""
    rng, seen = random.Random(0), set()
    for _ in range(60):
        speed, asks = rng.uniform(200, 2000), rng.uniform(100, 2000)
        nodes, each = rng.choice([1, 4, 32, 128]), rng.choice([1, 4, 8])
        network, storage = rng.uniform(1000, 12_000), rng.uniform(5_000, 200_000)
        rounds = measured([speed * rng.gauss(1, 0.05) for _ in range(40)], cpu_s=0.001, limit=10**6)
        hosts = [speed * min(1.05, max(0.95, rng.gauss(1, 0.02))) for _ in range(nodes)]
        plan = planned(
            rounds,
            ranks=nodes * each,
            nodes=nodes,
            step_s=256 / asks,
            network_bytes_per_s=network * MIB,
            storage_bytes_per_s=storage * MIB,
        )
        true = fed(hosts, each, asks, network, storage) * MIB
        got = plan.achieved_bytes_per_s
        assert 0.98 * got.low <= true <= 1.02 * got.high
        seen.add(plan.uses[0].resource.name)
    assert seen == {"loader", "node network", "storage"}


def test_cases_with_a_step_are_refused():
    stepped = measured(chosen={"step_s": 0.04})
    with pytest.raises(RecordError, check=kind("no-plain-case")):
        planned(stepped)


@pytest.mark.parametrize(
    "wrong", [{"nodes": 2000}, {"nodes": 0}, {"step_s": -1.0}, {"network_bytes_per_s": float("inf")}]
)
def test_impossible_clusters_are_refused(wrong):
    with pytest.raises(InvalidSettings, check=kind("out-of-range")):
        Cluster(**{"ranks": 1024, "nodes": 128, **wrong})


def test_warm_figures_for_data_larger_than_memory_are_a_warning():
    (warning,) = planned(data_bytes=2**41).warnings
    assert warning.kind == "exceeds-memory"
    assert warning.values == {"data_bytes": 2**41, "memory_bytes": 2**34}
    assert any("--cache cold" in hint for hint in warning.hints)
    assert not planned(data_bytes=2**41, storage_bytes_per_s=1e12).warnings


@pytest.mark.parametrize(
    ("text", "rate"), [("100Gbit/s", 12.5e9), ("12.5GB/s", 12.5e9), ("2GiB/s", 2**31), ("800Mbit/s", 1e8)]
)
def test_bandwidths(text, rate):
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["100", "fast", "1.2.3GB/s", "0GB/s", "5Gb/s", "GB/s"])
def test_invalid_bandwidths_are_refused(text):
    with pytest.raises(ValueError, match="100Gbit/s"):
        parse_rate(text)


def test_the_command(inside, tmp_path):
    for one in measured():
        record_file.append(tmp_path / "results" / "mine.jsonl", one)
    args = ("plan", "--ranks", "1024", "--nodes", "128", "--data-dir", tmp_path, "--step-ms", "512")
    limited = (*args, "--network", "100Gbit/s", "--storage", "100GB/s")
    done = inside(*limited)
    assert done.returncode == 0
    assert "Bottleneck: storage" in done.stdout
    shown = json.loads(inside(*limited, "--json", "mine").stdout)
    assert shown["outcome"] == "exhausted"
    assert {one["kind"] for one in shown["assumptions"]} >= {"equal-nodes", "shared-storage", "step-demand"}
    shown = json.loads(inside(*args, "--json", "mine").stdout)
    assert shown["outcome"] == "sufficient"
    assert shown["uses"][0]["resource"]["name"] == "loader"
    wrong = inside(*args, "--network", "fast")
    assert complaint_kind(wrong, 2) == "invalid-bandwidth"


def test_cases_with_several_ranks_are_refused():
    several = [replace(one, case={**one.case, "world_size": 4}) for one in [a_record(100, 1)]]
    with pytest.raises(RecordError, check=kind("no-plain-case")):
        planned(several)
