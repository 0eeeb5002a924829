import json
import multiprocessing
import os
import time
from pathlib import Path

import pytest
from conftest import damage

import iobench
from iobench import Settings, formats
from iobench.bench.case import LOADERS
from iobench.bench.observer import Observer
from iobench.errors import (
    ColdCacheUnavailable,
    DeviceUnavailable,
    InvalidSettings,
    ManifestError,
    RecordError,
)
from iobench.host import cache, counters, machine
from iobench.results import record

FORKED = {"num_workers": 2, "start_method": "fork"}


class Told(Observer):
    """Passes on what it is told."""

    def __init__(self, status, recorded):
        self.status, self.recorded = status, recorded


def ignore(told):
    pass


@pytest.fixture
def measure(tmp_path):
    """iobench.run on the CPU, with its records in a file of this test."""

    def call(manifest, variants=("npy",), loaders=("native",), rounds=1, **options):
        told = Told(options.pop("on_status", ignore), options.pop("on_record", ignore))
        options = {"device": "cpu", "out": tmp_path / "records.jsonl", "observer": told, **options}
        return iobench.run(manifest, variants, loaders, rounds=rounds, **options)

    return call


def labels(found):
    return [one.case["label"] for one in found.records]


def test_every_arm_has_a_record_per_round_and_nothing_is_printed(images, measure, capfd):
    found = measure(images, ["all"], ["all"], rounds=2)
    assert len(found.cases) == len(formats.names()) * len(LOADERS)
    cycles = [labels(found)[: len(found.cases)], labels(found)[len(found.cases) :]]
    for cycle in cycles:  # interleaved: each case once before any comes again
        assert sorted(cycle) == sorted(case.label for case in found.cases)
    assert cycles[0] != cycles[1]
    assert [one.round for one in found.records] == [1] * len(found.cases) + [2] * len(found.cases)
    assert not found.failures
    assert capfd.readouterr() == ("", "")


def test_records_say_what_was_measured(images, measure):
    settings = Settings(batch_size=50, seed=3, order="random")
    (one,) = measure(images, settings=settings).records
    assert (one.samples, one.logical_bytes) == (203, images.schema.logical_bytes)
    assert one.case["label"] == "npy · native"
    assert (one.case["batch_size"], one.case["seed"], one.case["order"]) == (50, 3, "random")
    assert one.dataset["content"] == f"{images.content:016x}"
    assert one.dataset["stored_bytes"] == images.artifacts["npy"].stored_bytes
    assert (one.device, one.model, one.loss, one.gpu_allocated_bytes) == ("cpu", "none", None, None)
    assert 0 < one.first_batch_s <= one.wait_s <= one.epoch_s
    assert one.wait_p50_s <= one.wait_p99_s
    assert one.memory_bytes > 0
    assert one.machine.keys() == machine.describe(images.root, "cpu").keys()


def test_all_records_of_a_run_share_its_id(images, measure):
    found = measure(images, rounds=2)
    assert len({one.run for one in found.records}) == 1
    assert {one.run for one in found.records} != {one.run for one in measure(images).records}


def test_records_are_in_the_file_as_each_round_ends(images, measure, tmp_path):
    lines = []

    def count(made):
        lines.append(len((tmp_path / "records.jsonl").read_text().splitlines()))

    found = measure(images, rounds=3, on_record=count)
    assert lines == [1, 2, 3]
    assert [one.round for one in record.read(found.path)[0]] == [1, 2, 3]


def test_records_go_beside_the_dataset_by_default(own_images, measure):
    found = measure(own_images, out=None)
    assert found.path.parent == own_images.root.parent / "results"
    assert len(record.read(found.path)[0]) == 1


def test_the_loader_s_own_settings_stay_out_of_other_arms(images, measure):
    found = measure(images, loaders=["all"], settings=Settings(fetch="batch", **FORKED))
    by_loader = {one.case["loader"]: one.case for one in found.records}
    assert (by_loader["native"]["num_workers"], by_loader["native"]["start_method"]) == (0, None)
    assert by_loader["dataloader"]["label"] == "npy · dataloader, batch fetch, 2 workers"


def test_an_arm_named_twice_is_measured_once(images, measure):
    assert len(measure(images, ["npy", "npy"], ["native", "native"]).records) == 1


@pytest.mark.parametrize("name", formats.names())
def test_wrong_content_is_a_failure_and_never_timed(own_images, measure, name):
    largest = max(own_images.files_of(name), key=lambda path: path.stat().st_size)
    damage(largest)
    other = "npy" if name != "npy" else "lmdb"
    found = measure(own_images, [name, other])
    assert set(labels(found)) == {f"{other} · native"}
    assert list(found.failures) == [f"{name} · native"]
    assert "\n" not in found.failures[f"{name} · native"]
    assert "prepare it again" in found.failures[f"{name} · native"]


def test_wrong_content_names_both_checksums(own_images, measure):
    damage(own_images.files_of("npy")[0])
    (reason,) = measure(own_images).failures.values()
    assert f"npy · native: wrong content on the device: expected checksum {own_images.content:016x}" in reason


@pytest.mark.parametrize("harm", [lambda path: os.truncate(path, 100), Path.unlink])
def test_a_truncated_or_missing_file_fails_its_arms_and_no_other(own_images, measure, harm):
    path = own_images.files_of("npy")[0]
    harm(path)
    found = measure(own_images, ["npy", "lmdb"], ["all"])
    assert {one.case["variant"] for one in found.records} == {"lmdb"}
    assert len(found.failures) == len(LOADERS)
    assert all(str(path) in reason for reason in found.failures.values())


@pytest.mark.parametrize("mode", ["warm", "cold"])
def test_a_file_that_goes_between_rounds_fails_its_arm(by_file, own_images, measure, mode):
    def remove(made):
        own_images.files_of("npy")[0].unlink(missing_ok=True)

    found = measure(own_images, ["npy", "lmdb"], rounds=3, cache_mode=mode, on_record=remove)
    assert labels(found).count("lmdb · native") == 3
    assert list(found.failures) == ["npy · native"]


def test_an_interrupt_keeps_what_was_measured(images, measure):
    def interrupt(made):
        if made.round == 2:
            raise KeyboardInterrupt

    found = measure(images, rounds=9, on_record=interrupt)
    assert found.interrupted
    assert [one.round for one in found.records] == [1, 2]
    assert record.read(found.path)[0] == found.records


@pytest.mark.parametrize("workers", [{}, FORKED])
@pytest.mark.parametrize("name", ["npy", "lmdb", "hdf5", "memmap"])
def test_a_cold_round_reads_what_is_stored_from_disk(by_file, floats, measure, name, workers):
    settings = Settings(batch_size=4096, fetch="batch", **workers)
    (one,) = measure(floats, [name], ["dataloader"], settings=settings, cache_mode="cold").records
    assert one.cache["method"] == "posix_fadvise"
    assert one.cache["residency"] <= cache.COLD_LIMIT
    assert 0.95 <= one.disk_bytes / floats.artifacts[name].stored_bytes <= 1.3


def test_a_warm_round_reads_nothing_from_disk(floats, measure):
    (one,) = measure(floats, settings=Settings(batch_size=4096)).records
    assert one.cache["mode"] == "warm"
    assert one.cache["residency"] >= cache.WARM_LIMIT
    assert one.disk_bytes < 0.02 * floats.schema.logical_bytes


def test_cold_that_cannot_be_had_ends_the_run(by_file, images, measure):
    with open(images.files_of("npy")[0], "rb") as file, cache.mmap.mmap(file.fileno(), 0, prot=1) as mapped:
        sum(mapped[:: cache.PAGE])
        with pytest.raises(ColdCacheUnavailable, match=f"process {os.getpid()} "):
            measure(images, cache_mode="cold")


def test_memory_of_other_processes_counts(images):
    context = multiprocessing.get_context("fork")
    ready, done = context.Event(), context.Event()

    def hold():
        held = os.urandom(64 << 20)
        ready.set()
        done.wait()
        del held

    before = counters.memory_bytes()
    child = context.Process(target=hold)
    child.start()
    ready.wait()
    assert counters.memory_bytes() - before > 60 << 20
    done.set()
    child.join()


def test_processor_time_of_workers_counts(images):
    context = multiprocessing.get_context("fork")
    counting = counters.Counters(images.root)
    counting.start()
    child = context.Process(target=lambda: [None for _ in iter(lambda: time.process_time() < 0.2, False)])
    child.start()
    child.join()
    assert counting.stop().cpu_s >= 0.2


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_size": 0},
        {"order": "backwards"},
        {"fetch": "all"},
        {"num_workers": -1},
        {"num_workers": 1, "start_method": "teleport"},
        {"num_workers": 1, "prefetch_factor": 0},
        {"prefetch_factor": 2},
        {"start_method": "fork"},
        {"seed": -1},
        {"seed": 2**64},
    ],
)
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(InvalidSettings):
        Settings(**wrong)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"rounds": 0}, InvalidSettings),
        ({"warmup": 0}, InvalidSettings),
        ({"cache_mode": "tepid"}, InvalidSettings),
        ({"model": "transformer"}, InvalidSettings),
        ({"device": "tpu"}, InvalidSettings),
        ({"device": "cuda:99"}, DeviceUnavailable),
        ({"loaders": ["fast"]}, InvalidSettings),
        ({"loaders": []}, InvalidSettings),
        ({"variants": []}, InvalidSettings),
        ({"variants": ["parquet"]}, formats.UnknownFormat),
        ({"variants": ["npy:speed=high"]}, formats.InvalidOption),
        ({"variants": ["hdf5:chunk_bytes=0"]}, ManifestError),
        ({"settings": Settings(pin_memory=True)}, InvalidSettings),
        ({"settings": Settings(non_blocking=True)}, InvalidSettings),
        ({"settings": Settings(num_workers=2), "loaders": ["native", "stream"]}, InvalidSettings),
        ({"settings": Settings(fetch="batch"), "loaders": ["native"]}, InvalidSettings),
        ({"settings": Settings(direct=False), "loaders": ["dataloader"]}, InvalidSettings),
        ({"settings": Settings(threads=2), "loaders": ["native"]}, InvalidSettings),
        ({"out": Path("/dev/null/r.jsonl")}, RecordError),
        ({"out": Path("/proc")}, RecordError),
    ],
)
def test_a_run_that_cannot_be_is_refused_before_it_begins(images, measure, wrong, error):
    began = []
    with pytest.raises(error) as caught:
        measure(images, on_status=began.append, **wrong)
    assert not began
    assert "\n" not in str(caught.value)


def test_a_dataset_without_artifacts_is_refused(own_images, measure):
    own_images.artifacts.clear()
    with pytest.raises(InvalidSettings, match="no case to measure"):
        measure(own_images, ["all"])


def test_the_machine_is_described_with_every_key(images):
    found = machine.describe(images.root, "cpu")
    assert set(found) == {
        *("host", "cpu", "cores", "usable_cores", "memory_bytes", "kernel", "python"),
        *("disk", "gpu", "versions", "commit"),
    }
    assert set(found["disk"]) == {"file_system", "device", "model", "read_ahead_kib"}
    assert set(found["versions"]) == {"iobench", *machine.LIBRARIES}
    assert found["cpu"]
    assert found["gpu"] is None
    json.dumps(found, allow_nan=False)
