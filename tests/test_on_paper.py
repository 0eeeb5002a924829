"""`iobench plan`: cases solved by hand, a simulation over fabricated hosts, and what cannot be planned."""

import json
import random
from dataclasses import replace

import pytest
from record_cases import MIB, a_record, rounds_of

from iobench.base.errors import (
    InvalidSettings,
    RecordError,
)
from iobench.base.units import parse_rate
from iobench.results import record
from iobench.results.on_paper import Cluster, outlook
from iobench.results.parts import LimitPart

STEADY = [1000.0] * 5  # MiB/s of one rank over samples of 1 MiB, batches of 256
STEP_S = 0.512  # which asks for 500 MiB/s


def measured(speeds=STEADY, cores=64, cpu_s=2.0, limit=10_000, **common):
    """Rounds of 1 GiB each on a host of 64 cores, which take 2 processor seconds: 32,768 MiB/s at most."""
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
    return outlook(
        records or measured(), Cluster(**{"ranks": 1024, "nodes": 128, "step_s": STEP_S, **cluster})
    )


def used(found):
    return {one.resource.name: one.used.median for one in found.uses}


def test_a_case_solved_by_hand():
    """8 ranks a node ask for 4,000 MiB/s; all for 512,000."""
    found = planned(network_bytes_per_s=8000 * MIB, storage_bytes_per_s=128_000 * MIB)
    assert used(found) == pytest.approx(
        {
            "the storage": 4.0,
            "the network of a node": 0.5,
            "the loader": 0.5,
            "the page cache of a node": 0.4,
            "the processors of a node": 4000 / 32768,
        }
    )
    first = found.uses[0]
    assert (first.resource.name, first.until.median) == ("the storage", pytest.approx(256))
    assert found.got_bytes_per_s.median == pytest.approx(125 * MIB)
    assert found.sentence == (
        "Exhausted first: the storage (enough for 256 of 1,024 ranks). With all of them each rank gets 25% "
        "of what it asks for, and its device waits 75% of the time."
    )


def test_a_node_that_is_too_full():
    found = planned(network_bytes_per_s=2000 * MIB)
    assert "the network of a node (enough for 512 of 1,024 ranks, 4 on each of 128 nodes)" in found.sentence
    assert found.got_bytes_per_s.median == pytest.approx(250 * MIB)


def test_a_loader_that_is_too_slow_is_so_at_any_size():
    found = planned(measured([250.0] * 5))
    assert "whatever the number of ranks: each asks for 200% of what it has" in found.sentence


def test_nothing_is_exhausted():
    found = planned(ranks=8, nodes=1)
    assert found.sentence.startswith("Nothing is exhausted by 8 ranks on 1 node: the most used is the loader")
    assert found.got_bytes_per_s.median == found.asked_bytes_per_s.median


def test_without_a_step_each_rank_asks_for_what_its_loader_gave():
    found = planned(step_s=0.0)
    assert found.asked_bytes_per_s.median == 1000 * MIB
    assert found.uses[0].resource.name == "the page cache of a node"  # 8 × 1,000 of 10,000
    assert used(found)["the page cache of a node"] == pytest.approx(0.8)


def test_fewer_shards_than_ranks_feed_as_many_ranks():
    found = planned(shard_bytes=4 * MIB)  # 1 GiB: 256 shards
    assert found.uses[0].until.median == pytest.approx(256)
    assert found.uses[0].used.low == found.uses[0].used.high
    workers = measured(loader="dataloader:num_workers=4")
    assert planned(workers, shard_bytes=4 * MIB).uses[0].until.median == pytest.approx(64)


def test_compressed_data_pass_a_network_as_they_are_stored():
    half = measured(dataset={"stored_bytes": 512 * MIB})
    found = planned(half, network_bytes_per_s=2000 * MIB)
    assert used(found)["the network of a node"] == pytest.approx(1.0)


def test_the_interval_is_that_of_the_rounds():
    found = planned(measured([400.0, 500.0, 600.0] * 5))
    loader = next(one for one in found.uses if one.resource.name == "the loader")
    assert (loader.used.low, loader.used.median, loader.used.high) == pytest.approx((5 / 6, 1.0, 5 / 4))
    assert found.sentence.startswith("It cannot be told whether the loader can feed 1,024 ranks")


def fed(hosts, ranks_per_node, asks, network, storage):
    """What each rank gets where the storage is shared fairly (max-min) and the slowest rank counts."""
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


def test_it_foretells_a_simulation_of_fabricated_hosts():
    """Hosts scatter by 5 %; each rank's loader as one was measured, ranks step together."""
    rng, seen = random.Random(0), set()
    for _ in range(60):
        speed, asks = rng.uniform(200, 2000), rng.uniform(100, 2000)
        nodes, each = rng.choice([1, 4, 32, 128]), rng.choice([1, 4, 8])
        network, storage = rng.uniform(1000, 12_000), rng.uniform(5_000, 200_000)
        rounds = measured([speed * rng.gauss(1, 0.05) for _ in range(40)], cpu_s=0.001, limit=10**6)
        hosts = [speed * min(1.05, max(0.95, rng.gauss(1, 0.02))) for _ in range(nodes)]
        found = planned(
            rounds,
            ranks=nodes * each,
            nodes=nodes,
            step_s=256 / asks,
            network_bytes_per_s=network * MIB,
            storage_bytes_per_s=storage * MIB,
        )
        true = fed(hosts, each, asks, network, storage) * MIB
        got = found.got_bytes_per_s
        assert 0.98 * got.low <= true <= 1.02 * got.high
        seen.add(found.uses[0].resource.name)
    assert seen == {"the loader", "the network of a node", "the storage"}


def test_what_was_measured_with_a_step_or_several_ranks_is_no_base():
    stepped = measured(chosen={"step_s": 0.04})
    with pytest.raises(RecordError, match="without a training step"):
        planned(stepped)


@pytest.mark.parametrize(
    "wrong", [{"nodes": 2000}, {"nodes": 0}, {"step_s": -1.0}, {"network_bytes_per_s": float("inf")}]
)
def test_clusters_that_cannot_be(wrong):
    with pytest.raises(InvalidSettings):
        Cluster(**{"ranks": 1024, "nodes": 128, **wrong})


def test_warm_figures_for_data_that_fit_no_memory_are_warned_of():
    assert "do not fit" in planned(data_bytes=2**41).warnings[0]
    assert not planned(data_bytes=2**41, storage_bytes_per_s=1e12).warnings


@pytest.mark.parametrize(
    ("text", "rate"), [("100Gbit/s", 12.5e9), ("12.5GB/s", 12.5e9), ("2GiB/s", 2**31), ("800Mbit/s", 1e8)]
)
def test_bandwidths(text, rate):
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["100", "fast", "1.2.3GB/s", "0GB/s", "5Gb/s", "GB/s"])
def test_what_is_no_bandwidth(text):
    with pytest.raises(ValueError, match="100Gbit/s"):
        parse_rate(text)


def test_the_command(inside, tmp_path):
    for one in measured():
        record.append(tmp_path / "results" / "mine.jsonl", one)
    args = ("plan", "--ranks", "1024", "--nodes", "128", "--data-dir", tmp_path, "--step-ms", "512")
    told = inside(*args, "--network", "100Gbit/s", "--storage", "100GB/s")
    assert told.returncode == 0
    assert "Exhausted first: the storage" in told.stdout
    assert "- every node is like here (Z80)" in told.stdout
    found = json.loads(inside(*args, "--json", "mine").stdout)
    assert found["sentence"].startswith("Nothing is exhausted")
    assert found["uses"][0]["resource"]["name"] == "the loader"
    wrong = inside(*args, "--network", "fast")
    assert (wrong.returncode, "--network: 'fast' is not a bandwidth" in wrong.stderr) == (2, True)


def test_a_record_of_several_ranks_alone_is_no_base():
    several = [replace(one, case={**one.case, "world_size": 4}) for one in [a_record(100, 1)]]
    with pytest.raises(RecordError, match="one rank"):
        planned(several)
