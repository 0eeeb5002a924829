"""Datasets in object stores: uploaded, read by ranges, verified, and what happens if the store fails."""

import json
import os
import random
import shutil
import ssl
import subprocess
import sys
import threading
import time
from contextlib import closing
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from conftest import complaint, numbers, tree
from kinds import complaint_kind, kind
from object_cases import FORMATS, SAMPLES, published
from ragged_cases import RaggedSource
from range_server import FAULTS, RangeServer

import iobench
from iobench.base.errors import ArtifactExists, CorruptArtifact, InvalidSettings, LoaderFailed, ManifestError
from iobench.bench.epoch import RoundSpec, measure
from iobench.bench.options import RunOptions
from iobench.bench.run import run
from iobench.dataset.add import add
from iobench.dataset.prepare import prepare
from iobench.dataset.remote_dataset import check_target, open_dataset, publish
from iobench.loading import loaders
from iobench.loading.host_to_device import HostToDevice
from iobench.loading.loaders import Job
from iobench.loading.order import Order
from iobench.objects import client, limits, request_pool
from iobench.objects.client import ObjectStore
from iobench.objects.reader import RangeReader, request_begins
from iobench.objects.request_log import LOG, RequestLog, RequestSummary
from iobench.objects.store_errors import error_of, may_pass
from iobench.objects.url import ENDPOINT, checked_url, use_endpoint
from iobench.results import record_file
from iobench.results.metrics import METRICS

pytest_plugins = ("object_fixtures",)
pytestmark = pytest.mark.usefixtures("quick_retries")

DAMAGED = (ManifestError, "damaged-manifest")


def rows_of(reader, rows):
    return {name: array.tobytes() for name, array in reader.batch(rows).items()}


def reader_of(opener, request_bytes=1 << 20, gap=64 << 10):
    remote = opener.remote
    return RangeReader(opener.schema, remote.placements(), remote.files, 8, request_bytes, gap)


class SlowLink:
    """A store whose answers come one after the other."""

    REQUEST_S = 0.06  # of which each connection waits for several: a pause of this process is a small part

    def __init__(self, url):
        self.lock, self.free_at = threading.Lock(), 0.0

    def get(self, name, start, length, etag):
        return memoryview(bytes(length))

    def consume(self, name, start, length, came):
        with self.lock:
            self.free_at = until = max(self.free_at, time.perf_counter()) + self.REQUEST_S
        time.sleep(max(0, until - time.perf_counter()))
        came(length)


def test_the_limit_of_a_slow_link_counts_neither_twice_nor_only_what_is_done(remote, monkeypatch):
    monkeypatch.setattr(limits, "ObjectStore", SlowLink)
    size, many = 1000, 8
    files = remote.opener("npy").remote.files
    wide = replace(files, objects={name: replace(one, size=1 << 20) for name, one in files.objects.items()})
    found = limits.ranged_gets([wide], size, many, 0.01)
    assert 0.5 < found.bytes_per_s / (size / SlowLink.REQUEST_S) < 1.3


def test_requests_in_flight_fit_into_memory_together():
    assert limits.many_in_flight(1 << 10) == limits.MANY
    for size in (1 << 20, 4 << 20, 1 << 30):
        assert all(count == 1 or count * size <= limits.MOST_BYTES for count in limits.many_in_flight(size))


@pytest.mark.parametrize("variant", FORMATS)
def test_rows_are_those_of_the_files(variant, remote, tmp_path):
    local = iobench.Manifest.load(tmp_path / "local/mine")
    rng = np.random.default_rng(0)
    with local.opener(variant)() as mine:
        for reader in (remote.opener(variant)(), reader_of(remote.opener(variant), 100, 7)):
            with reader:
                for rows in (slice(0, SAMPLES), slice(7, 8), rng.integers(0, SAMPLES, 99), np.arange(0)):
                    assert rows_of(reader, rows) == rows_of(mine, rows)
                sample = reader.sample(SAMPLES - 1)
                assert all(np.array_equal(sample[n], a) for n, a in mine.sample(SAMPLES - 1).items())
                with pytest.raises(IndexError):
                    reader.sample(SAMPLES)


def test_each_loader_sends_the_requests_that_it_says(server, remote):
    opener = remote.opener("npy")

    def requests_of(read, *rows):
        server.clear()
        read(*rows)
        return sorted(span for name, span in server.requests if "/x.npy" in name), len(server.requests)

    with opener() as reader:
        assert requests_of(reader.sample, 3)[1] == 2  # one per field
        assert requests_of(reader.batch, np.array([5, 6, 7, 20]))[1] == 2  # likewise: the gap is small
    with reader_of(opener, gap=13 * 20) as reader:
        (((start, end),), _) = requests_of(reader.batch, np.array([5, 6, 7, 21]))
        assert end - start + 1 == 17 * 20
    with reader_of(opener, gap=13 * 20 - 1) as reader:
        assert len(requests_of(reader.batch, np.array([5, 6, 7, 21]))[0]) == 2


@pytest.mark.parametrize("loader", ["native", "stream"])
@pytest.mark.parametrize("order", ["sequential", "block"])
def test_records_of_tar_shards_share_requests(tmp_path, loader, order):
    published(tmp_path, ("webdataset",))
    with RangeServer(tmp_path / "served").running() as server:
        opener = open_dataset(f"{server.url}/mine", tmp_path / "data").opener("webdataset")
        drawn = Order(order, batch_size=50, block_rows=50)
        server.clear()
        with closing(loaders.parse(loader).open(Job(opener, drawn, "cpu"))) as epochs:
            assert sum(len(batch["x"]) for batch in epochs.epoch(drawn.batches(SAMPLES, 0))) == SAMPLES
        assert len(server.requests) <= 5  # one per batch, of both fields


def test_requests_cover_all_rows_within_their_size():
    rng = np.random.default_rng(1)
    for size, gap in ((50, 0), (100, 30), (7, 5)):
        starts = np.sort(rng.integers(0, 5000, 300))
        ends = starts + rng.integers(1, 20, 300)
        begins = request_begins(starts, ends, size, gap)
        assert begins[0] == 0
        assert begins == sorted(set(begins))
        for low, high in zip(begins, [*begins[1:], 300], strict=True):
            assert high == low + 1 or ends[low:high].max() - starts[low] <= size
            covered = np.maximum.accumulate(ends[low:high])
            assert (starts[low + 1 : high] - covered[:-1] <= gap).all()


@pytest.mark.parametrize(
    ("variants", "orders"),
    [(("npy",), ("sequential", "block")), (("all",), ("random",)), (("all",), ("sequential", "block"))],
)
def test_a_run_verifies_and_counts(remote, tmp_path, variants, orders):
    options = RunOptions(variants, rounds="1", order=orders, batch_size=(64,))
    outcome = run(remote, options, out=tmp_path / "r.jsonl")
    assert not outcome.failures
    assert len(outcome.records) == (4 if variants == ("all",) else 1) * 3 * len(orders)
    for made in record_file.read(tmp_path / "r.jsonl")[0]:
        assert made.cache.mode == made.case["cache"] == "remote"
        assert made.cache.residency is None
        assert made.content_check is None  # all of it came as requested
        assert made.limit.name == "object store"
        assert made.requests.fetched_bytes >= made.timing.logical_bytes
        figures = {metric.name: metric.of(made) for metric in METRICS}
        assert figures["read_amplification"] == made.requests.fetched_bytes / made.timing.logical_bytes >= 1
        assert figures["requests"] == made.requests.count / made.timing.epochs
        assert made.requests.retries == figures["request_retries"] == 0
        assert 0 < made.requests.p50_s <= made.requests.p99_s
        if made.case["loader"] == "dataloader":
            assert made.requests.count == made.timing.samples * 2


@pytest.mark.parametrize("seed", range(3))
def test_faults_cost_their_retries_and_no_sample(server, remote, tmp_path, seed, monkeypatch):
    monkeypatch.setattr("range_server.SLOW_S", 0.01)
    draw, injected = random.Random(seed), []

    def fault(number, name):
        chosen = draw.choice([None] * 36 + list(FAULTS))
        injected.extend([chosen] * (chosen not in (None, "slow")))
        return chosen

    server.fault = fault
    LOG.clear()
    options = RunOptions(
        rounds="1", format=("npy", "lmdb"), order=("random",), batch_size=(16,), limits=False
    )
    outcome = run(remote, options, out=tmp_path / "r.jsonl")
    assert not outcome.failures
    assert len(outcome.records) == 6
    assert all(made.content_check is None for made in outcome.records)
    assert len(injected) > 100
    assert sum(made.requests.retries for made in outcome.records) > 20


def test_retries_are_counted_one_by_one(server, remote):
    server.fault = lambda number, name: (None, "reset", "unavailable", "short")[number % 4]
    with remote.opener("npy")() as reader:
        server.clear()
        LOG.clear()
        reader.batch(slice(0, 50))
        taken = LOG.take()
    assert taken.count == len(server.requests)
    assert taken.retries == taken.count - 2
    assert taken.throttles == len([number for number in range(1, taken.count + 1) if number % 4 == 2])


def test_requests_of_workers_are_those_of_the_process_that_has_them():
    own, workers = RequestLog(), [RequestLog(), RequestLog()]
    own.succeeded(0.5, "one", 0, 10)  # before anything counts
    with own.counting() as log:
        assert own.take(log) is None
        own.join(log)
        own.succeeded(0.5, "one", 0, 10)
        for worker in workers:
            worker.join(replace(log, owner=-1))
            worker.succeeded(0.25, "other", 20, 100)
            worker.retried(throttled=worker is workers[0])
            worker.looked_up(7, 3)
            worker.rejected(2)
            assert worker.take() is None
        assert own.take(log) == RequestSummary(5, 0.25, 0.5, 2, 1, 210, 100, 14, 6, 4, total_s=1.0)
        assert own.take(log, epochs=2).refetched_bytes == 0
        assert own.take() == RequestSummary(1, 0.5, 0.5, fetched_bytes=10, total_s=0.5)
    assert not log.path.exists()
    own.succeeded(0.5, "one", 0, 10)
    assert own.take() is None


def test_rows_of_another_library_s_client_are_no_requests():
    log = RequestLog()
    log.clear()
    log.read(50)
    assert log.take() is None
    log.looked_up(50, 50)  # of a cache
    assert log.take().count == 0


def test_requests_for_rows_that_never_came_are_left_out():
    log = RequestLog()
    log.clear()
    for number in range(8):
        log.succeeded(0.1, "one", 100 * number, 100)
        log.read(50)
    log.retried(throttled=True)
    log.retried(throttled=False)
    assert log.take() == log.take(delivered=400)
    assert log.take(delivered=100) == replace(log.take(), count=2, retries=0, throttles=0, fetched_bytes=200)


@pytest.mark.parametrize("word", ["dataloader:num_workers=1", "dataloader", "stream:coalesce_bytes=0"])
def test_a_round_that_is_cut_off_counts_the_requests_of_what_came(server, remote, monkeypatch, word):
    monkeypatch.setattr("range_server.SLOW_S", 0.01)
    server.fault = lambda number, name: "slow"
    job = Job(remote.opener("npy"), Order("random", 8))
    spec = RoundSpec(1, lambda batch: time.sleep(0.2), 0.0, batches=1000, limit_s=0.5)
    made = measure(loaders.parse(word).on("cpu"), job, HostToDevice(torch.device("cpu"), False), spec)
    assert made.timing.partial.short
    assert made.timing.samples < SAMPLES
    answered = (
        8 * remote.schema.sample_bytes
    )  # a batch at most, whose rows were not counted yet when time ended
    assert 0 < made.requests.fetched_bytes < 1.01 * made.timing.logical_bytes + answered


@pytest.mark.parametrize(
    ("ranges", "epochs", "again"),
    [
        ([("a", 0, 10), ("a", 10, 10), ("b", 0, 10)], 1, 0),
        ([("a", 0, 10), ("a", 5, 10), ("b", 5, 10)], 1, 5),
        ([("a", 0, 10), ("a", 2, 3), ("a", 3, 1)], 1, 4),
        ([("a", 0, 10), ("a", 2, 3), ("a", 3, 1)], 2, 1),
        ([("a", 0, 10)] * 3 + [("a", 1 << 50, 10)] * 2, 2, 10),
    ],
)
def test_bytes_that_come_more_often_than_once_in_an_epoch(ranges, epochs, again):
    log = RequestLog()
    log.clear()
    for one in ranges:
        log.succeeded(0.1, *one)
    assert log.take(epochs=epochs).refetched_bytes == again


@pytest.mark.parametrize(
    ("fault", "error", "expected"),
    [
        ("unavailable", LoaderFailed, "store-failed"),
        ("short", LoaderFailed, "store-failed"),
        ("whole", LoaderFailed, "no-ranges"),
        ("replaced", CorruptArtifact, "replaced"),
    ],
)
def test_a_store_that_does_not_recover_is_one_error(server, remote, fault, error, expected):
    server.fault = lambda number, name: fault
    with remote.opener("npy")() as reader, pytest.raises(error, check=kind(expected)):
        reader.batch(slice(0, 50))


def test_a_request_that_stalls_costs_no_more_than_its_repetition(server, remote, monkeypatch):
    monkeypatch.setattr(request_pool, "STALL_S", 2.0)  # longer than others take on a busy machine
    with remote.opener("npy")() as reader:
        expected, began = rows_of(reader, slice(0, 50)), len(server.requests)
        server.fault = lambda number, name: "stalled" if number == began + 1 else None
        assert rows_of(reader, slice(0, 50)) == expected
        assert len(server.requests) == 2 * began + 1
        assert not server.released.is_set()
        server.released.set()


def test_after_the_time_of_a_run_requests_are_neither_sent_again_nor_awaited(server, remote, monkeypatch):
    monkeypatch.setattr(request_pool, "GRACE_S", 0.05)
    late = replace(remote, index_end=time.monotonic()).opener("npy")
    with late() as reader:
        server.clear()
        server.fault = lambda number, name: "unavailable"
        with pytest.raises(LoaderFailed, check=kind("store-failed")):
            reader.sample(3)
        assert len(server.requests) == 1
        server.fault = lambda number, name: "stalled"
        with pytest.raises(LoaderFailed, check=kind("store-stalled")):
            reader.batch(slice(0, 50))
    assert not server.released.is_set()


@pytest.mark.parametrize("isolate", [False, True])
def test_the_time_of_a_run_bounds_its_requests(server, remote, tmp_path, isolate):
    server.clear()
    server.fault = lambda number, name: "unavailable"
    options = RunOptions(("npy",), ("native",), max_time=1e-3, isolate=isolate, limits=False)
    outcome = run(remote, options, out=tmp_path / "r.jsonl")
    assert {error.kind for error in outcome.failures.values()} == {"store-failed"}
    assert 1 <= len(server.requests) <= 2  # one per field, and none a second time


@pytest.fixture
def certified(tmp_path):
    """A server at https:// whose certificate is its own authority, and the file of that."""
    if not shutil.which("openssl"):
        pytest.skip("openssl, which makes the certificate, is not installed")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    names = "subjectAltName=IP:127.0.0.1"
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test -addext {names}"
    extensions = ("-addext", "basicConstraints=critical,CA:FALSE")  # a server's own, as the client wants it
    files = ("-keyout", key, "-out", certificate)
    subprocess.run([*command.split(), *extensions, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with RangeServer(tmp_path / "served", tls=context).running() as running:
        yield running, certificate


def test_a_server_is_read_by_tls_if_its_certificate_is_trusted(certified, tmp_path, monkeypatch):
    server, certificate = certified
    local = published(tmp_path, ("npy",))
    with pytest.raises(LoaderFailed, check=kind("untrusted-certificate", found="UnknownIssuer")):
        open_dataset(f"{server.url}/mine", tmp_path / "data")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    manifest = open_dataset(f"{server.url}/mine", tmp_path / "data")
    with manifest.opener("npy")() as reader, local.opener("npy")() as mine:
        assert rows_of(reader, slice(0, SAMPLES)) == rows_of(mine, slice(0, SAMPLES))


def test_a_server_that_is_not_there_is_named_with_the_cause(tmp_path):
    with pytest.raises(LoaderFailed, check=kind("store-failed", found="Connection refused")):
        open_dataset("http://127.0.0.1:1/mine", tmp_path)


def test_a_server_without_versions(server, tmp_path):
    server.etags = False
    manifest = open_dataset(f"{server.url}/mine", tmp_path / "data")
    with manifest.opener("npy")() as reader:
        assert len(reader.batch(slice(0, 9))["x"]) == 9


def test_workers_and_processes_read_it_too(server, remote, tmp_path):
    words = ("dataloader:num_workers=1,start_method=none,persistent_workers=yes", "stream")
    options = RunOptions(rounds="1", format=("npy",), loader=words, isolate=True, limits=False)
    outcome = run(remote, options, out=tmp_path / "r.jsonl")
    assert not outcome.failures
    assert len(outcome.records) == 2
    (made,) = [made for made in outcome.records if made.case["loader"] == "dataloader"]
    assert made.requests.count == made.timing.samples * 2  # one per field, from its worker
    assert made.requests.fetched_bytes == made.timing.logical_bytes
    assert 0 < made.requests.p50_s <= made.requests.p99_s


def test_workers_are_not_forked(remote):
    assert remote.opener("npy").format.forkable
    assert not remote.opener("npy").forkable


def test_an_object_of_another_size_is_refused_when_it_is_opened(server, tmp_path):
    path = next((tmp_path / "served/mine").glob("npy-*/x.npy"))
    path.write_bytes(path.read_bytes() + b"!")
    found = f"{path.stat().st_size} bytes"
    with pytest.raises(CorruptArtifact, check=kind("wrong-size", found=found)):
        open_dataset(f"{server.url}/mine", tmp_path / "data")


def misplaced(body, too_far):
    body["artifacts"]["npy"]["remote"]["placement"]["x"]["offset"] += too_far


def very_many_at_one_place(body):
    """Say that there are so many samples that only arithmetic can check their places."""
    body["artifacts"] = {"npy": body["artifacts"]["npy"]}
    body["logical_bytes"] = body["logical_bytes"] // body["samples"] * 10**12
    body["samples"] = 10**12
    for place in body["artifacts"]["npy"]["remote"]["placement"].values():
        place["stride"] = 0


def of_npy(change):
    """Return a change of what the manifest says of the objects of npy."""
    return lambda body: change(body["artifacts"]["npy"]["remote"])


@pytest.mark.parametrize(
    ("change", "error", "cause", "problem"),
    [
        (partial(misplaced, too_far=1), CorruptArtifact, "misplaced-rows", None),
        (partial(misplaced, too_far=1 << 20), CorruptArtifact, "misplaced-rows", None),
        (very_many_at_one_place, CorruptArtifact, "misplaced-rows", None),
        (of_npy(lambda own: own["etags"].pop("x.npy")), *DAMAGED, "files without a version"),
        (of_npy(lambda own: own["placement"]["x"].update(files=["z.npy"])), *DAMAGED, "it does not have"),
        (of_npy(lambda own: own["placement"]["x"].update(files=[])), *DAMAGED, "it does not have"),
        (of_npy(lambda own: own.update(indexes=["../x"])), *DAMAGED, "an invalid name"),
    ],
)
def test_a_manifest_that_is_wrong_about_objects_is_refused(server, tmp_path, change, error, cause, problem):
    path = tmp_path / "served/mine/manifest.json"
    body = json.loads(path.read_text())
    change(body)
    path.write_text(json.dumps(body))
    with pytest.raises(error, match=problem, check=kind(cause)):
        open_dataset(f"{server.url}/mine", tmp_path / "data")


def test_a_damaged_index_is_an_error(server, tmp_path):
    path = next((tmp_path / "served/mine/.index").glob("lmdb-*.placement"))
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptArtifact, check=kind("missing-index")):
        open_dataset(f"{server.url}/mine", tmp_path / "data")


# ── upload ──


def test_nothing_is_replaced_without_overwrite(tmp_path):
    manifest = published(tmp_path, ("npy",))
    served = tmp_path / "served/mine"
    (served / "notes.txt").write_text("mine")
    before = tree(served)
    with pytest.raises(ArtifactExists, check=kind("other-data")):
        check_target(f"file://{served}", False)
    with pytest.raises(ArtifactExists):  # also if it came after the first check
        publish(manifest, ObjectStore(f"file://{served}"), overwrite=False)
    assert tree(served) == before


def test_a_mounted_upload_is_no_dataset_to_read_in_a_folder(tmp_path):
    published(tmp_path, ("npy",))
    mounted = iobench.Manifest.load(tmp_path / "served/mine")
    with pytest.raises(CorruptArtifact, check=kind("uploaded", path=mounted.path_of("npy"))):
        mounted.opener("npy")
    assert add(mounted.path_of("npy"), data_dir=tmp_path / "data", name="here")[0].content == mounted.content


def test_overwrite_removes_what_the_old_manifest_lists_and_nothing_else(tmp_path):
    published(tmp_path, ("npy", "lmdb"))
    served = tmp_path / "served/mine"
    (served / "notes.txt").write_text("mine")
    old = {path for path in tree(served) if path not in ("notes.txt", "manifest.json")}
    other, _ = prepare(numbers(seed=1), ["npy"], data_dir=tmp_path / "other")
    publish(other, check_target(f"file://{served}", True), overwrite=True)
    now = tree(served)
    assert not old & set(now)
    assert now["notes.txt"] == b"mine"
    assert open_dataset(f"file://{served}", tmp_path / "data").content == other.content


@pytest.mark.parametrize("error", [KeyboardInterrupt, LoaderFailed])
def test_an_upload_that_ends_early_leaves_nothing(tmp_path, monkeypatch, error):
    manifest, _ = prepare(numbers(), ["npy", "lmdb"], data_dir=tmp_path / "local", name="mine")
    upload, count = ObjectStore.upload, iter(range(9))

    def fails(self, name, path, sent):
        if next(count) == 3:
            raise error("it broke")
        return upload(self, name, path, sent)

    monkeypatch.setattr(ObjectStore, "upload", fails)
    with pytest.raises(error):
        publish(manifest, check_target(f"file://{tmp_path}/served", False), overwrite=False)
    assert not tree(tmp_path / "served")


@pytest.mark.parametrize(
    ("source", "other", "cause"),
    [(numbers(), "hdf5:compression=gzip", "no-placement"), (RaggedSource([3, 0, 5]), "mds", "ragged")],
    ids=["encoded", "ragged"],
)
def test_samples_that_no_range_holds_are_refused_before_anything_is_sent(tmp_path, source, other, cause):
    manifest, _ = prepare(source, ["npy", other], data_dir=tmp_path / "local")
    with pytest.raises(InvalidSettings, check=kind(cause)):
        publish(manifest, check_target(f"file://{tmp_path}/served", False), overwrite=False)
    assert not tree(tmp_path / "served")


# ── bad input ──


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("ftp://host/x", "unknown-scheme"),
        ("s3://key:secret@bucket/x", "credentials-in-url"),
        ("s3://bucket/a/../b", "invalid-url"),
        ("s3://bucket/x?sig=secret", "invalid-url"),
        ("s3://", "invalid-url"),
    ],
)
def test_addresses_that_are_refused(word, expected):
    with pytest.raises(InvalidSettings, check=kind(expected)) as error:
        checked_url(word)
    assert "secret" not in str(error.value)


ENDPOINTS = ("http://key:secret@host", "ftp://host", "host:9000", "127.0.0.1:9000", "http://")


@pytest.mark.parametrize("word", ENDPOINTS)
def test_endpoints_that_are_refused_as_an_option_and_in_the_environment(word, monkeypatch):
    monkeypatch.delenv(ENDPOINT, raising=False)
    with pytest.raises(InvalidSettings, check=kind("invalid-url")) as option:
        use_endpoint(word)
    assert ENDPOINT not in os.environ
    monkeypatch.setenv(ENDPOINT, word)
    with pytest.raises(InvalidSettings, check=kind("invalid-url")) as variable:
        ObjectStore("s3://bucket/x")
    assert "secret" not in f"{option.value} {variable.value}"
    ObjectStore("http://host/x")  # which it has no part in


def test_an_error_of_the_store_repeats_no_address_with_a_signature():
    text = (
        "Error performing GET http://host/x?X-Amz-Signature=secret in 1ms - Server returned status code: 500"
    )
    fails = pytest.importorskip("obstore").exceptions
    error = error_of(OSError(f"Generic S3 error: {text}"), fails, "s3://bucket/x")
    assert kind("store-failed")(error)
    assert error.found == "Server returned status code: 500"
    assert "secret" not in str(error)


@pytest.mark.parametrize(
    ("status", "again"),
    [(408, True), (429, True), (500, True), (503, True), (400, False), (404, False), (412, False)],
)
def test_a_request_is_sent_again_where_another_answer_may_come(status, again):
    fails = pytest.importorskip("obstore").exceptions
    error = OSError(f"Error performing GET http://host/x - Server returned status code: {status}")
    assert may_pass(error, fails) is again


@pytest.mark.parametrize(
    ("text", "wrong", "suspect"),
    [
        ("status code: 400 Bad Request: <Error><Code>ExpiredToken</Code></Error>", "access-denied", ""),
        ("status code: 400 Bad Request: ", "store-failed", "AWS_REGION"),  # of HEAD, whose answer has no body
        ("Received redirect without LOCATION, this normally indicates…", "wrong-region", "AWS_REGION"),
        (
            "status code: 400 Bad Request: <Error><Code>AuthorizationHeaderMalformed</Code><Message>…; the "
            "region 'us-east-1' is wrong; expecting 'eu-west-1'</Message></Error>",
            "wrong-region",
            "AWS_REGION=eu-west-1",
        ),
        ("status code: 500", "store-failed", ""),
        ("error sending request", "store-failed", "HTTPS_PROXY"),
    ],
)
def test_an_error_names_what_to_check(monkeypatch, text, wrong, suspect):
    fails = pytest.importorskip("obstore").exceptions
    monkeypatch.setenv("HTTPS_PROXY", "http://user:secret@host:1")
    error = error_of(OSError(f"Error performing GET http://host/x - {text}"), fails, "s3://bucket/x")
    assert kind(wrong)(error)
    assert suspect in error.hint
    named = [word for word in ("AWS_REGION", "HTTPS_PROXY") if word in error.hint]
    assert named == [suspect.partition("=")[0]] * bool(suspect)
    assert "secret" not in str(error)


def test_no_hint_is_to_upload_to_a_web_server_which_is_refused(server, remote, tmp_path):
    with pytest.raises(ManifestError) as missing:
        open_dataset(f"{server.url}/other", tmp_path / "data")
    with pytest.raises(ManifestError, check=kind("not-prepared")) as unknown:
        remote.opener("zarr")
    for hint in (missing.value.hint, unknown.value.hint, remote.location_of("npy").hint):
        assert server.url not in hint


def test_a_copied_dataset_says_how_to_upload_it(tmp_path):
    prepare(numbers(), ["npy"], data_dir=tmp_path, name="mine")
    with pytest.raises(ManifestError, check=kind("not-uploaded")):
        open_dataset(f"file://{tmp_path}/mine", tmp_path / "data")


def test_commands_say_what_is_wrong_in_one_line(server, tmp_path, inside, monkeypatch):
    url, data = f"{server.url}/mine", ("--data-dir", tmp_path / "data")
    assert complaint_kind(inside("run", *data, "--name", url, "--cache", "cold"), 2) == "conflicting-options"
    assert complaint_kind(inside("prepare", *data, "--size", "1e3", "--name", url), 2) == "remote-dataset"
    assert complaint_kind(inside("run", *data, "--name", url, "--format", "zarr")) == "not-prepared"
    assert complaint_kind(inside("prepare", *data, "--size", "1e3", "--to", url), 2) == "read-only"
    monkeypatch.setitem(sys.modules, "obstore", None)
    assert "pip install 'iobench[s3]'" in complaint(inside("run", *data, "--name", url), 1)


def succeeded(done):
    assert done.returncode == 0, done.stderr
    return done


def test_prepare_and_run_as_typed(server, tmp_path, inside):
    to, data = f"file://{tmp_path}/served/typed", ("--data-dir", tmp_path / "data")
    named = (*data, "--name", f"{server.url}/typed")
    prepared = succeeded(inside("prepare", *data, "--size", "2e4", "--format", "npy", "--to", to))
    assert f"next: iobench run --name {to}" in prepared.stderr
    assert not (tmp_path / "data").exists()  # nothing is kept here
    assert "remote cache" in succeeded(inside("run", *named, "--rounds", "1")).stdout
    assert "npy: intact" in succeeded(inside("verify", *named)).stdout
    assert "ranged GET" in succeeded(inside("limits", *named, "--seconds", "0.01")).stdout


# ── S3 ──


def test_s3_end_to_end(s3, tmp_path, inside):
    data, to = ("--data-dir", tmp_path / "data"), "s3://bucket/a b/ü"
    assert complaint_kind(inside("prepare", *data, "--size", "1e4", "--to", to), 2) == "invalid-url"
    to = "s3://bucket/trial/ü"
    sizes = ("--size", "2e4", "--format", "npy", "--format", "lmdb")
    succeeded(inside("prepare", *data, *sizes, "--to", to))
    assert complaint_kind(inside("prepare", *data, *sizes, "--to", to)) == "other-data"
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    succeeded(inside("run", *data, "--name", to, "--rounds", "1", "--s3-endpoint", endpoint))
    succeeded(inside("prepare", *data, *sizes, "--seed", "1", "--to", to, "--overwrite"))
    names = [one["Key"] for one in s3.list_objects_v2(Bucket="bucket", Prefix="trial/")["Contents"]]
    assert len([name for name in names if name.endswith("x.npy")]) == 1


def test_s3_bad_input(s3, tmp_path, inside, monkeypatch):
    data, none = ("--data-dir", tmp_path / "data"), "s3://no-bucket/none"
    assert complaint_kind(inside("run", *data, "--name", "s3://bucket/none")) == "no-dataset"
    assert "no such bucket" in complaint(inside("run", *data, "--name", none), 1)
    assert complaint_kind(inside("prepare", *data, "--size", "1e3", "--to", none)) == "missing-bucket"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert complaint_kind(inside("run", *data, "--name", "s3://bucket/none")) == "store-failed"


def test_ctrl_c_in_a_multipart_upload_aborts_it(s3, tmp_path, monkeypatch):
    monkeypatch.setattr(client, "PART_BYTES", 5 << 20)
    source = tmp_path / "big.bin"
    source.write_bytes(bytes(13 << 20))

    def interrupted(count):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ObjectStore("s3://bucket/cut").upload("big.bin", source, interrupted)
    assert not s3.list_multipart_uploads(Bucket="bucket").get("Uploads")
    assert not s3.list_objects_v2(Bucket="bucket", Prefix="cut/").get("Contents")


@pytest.mark.parametrize(("word", "ranks"), [("stream", ["--world-size", "2,3"]), ("torchdata", [])])
def test_a_resume_is_checked_at_an_address(server, remote, tmp_path, inside, word, ranks):
    if word == "torchdata":
        pytest.importorskip("torchdata")
    typed = ("--name", f"{server.url}/mine", "--data-dir", tmp_path / "data", "--batch-size", 8, "--json")
    resumes = json.loads(succeeded(inside("resume-check", word, *typed, *ranks)).stdout)["resumes"]
    assert resumes
    assert {(one["outcome"], one["lost"], one["repeated"]) for one in resumes} == {("complete", 0, 0)}
