"""The cache of objects in a run, in each loader that iobench's client serves, and in StreamLoader."""

import warnings
from contextlib import closing

import pytest
from conftest import numbers
from kinds import refused_as
from object_cases import SAMPLES
from stream_loaders import stream_loader

import iobench
from iobench.base.errors import InvalidSettings, LoaderFailed
from iobench.bench.backend import ObjectCaches
from iobench.bench.case_grid import cases_of
from iobench.bench.options import RunOptions
from iobench.bench.run import run
from iobench.dataset.prepare import prepare
from iobench.dataset.remote_dataset import check_target, publish
from iobench.objects import cache as object_cache
from iobench.results import record_file
from iobench.results.metrics import METRICS
from iobench.results.warnings import warnings_of

pytest_plugins = ("object_fixtures",)
pytestmark = pytest.mark.usefixtures("quick_retries")

PLENTY = 1 << 20


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(object_cache, "PIECE_BYTES", 300)


def options(**chosen):
    common = {"rounds": "2", "batch_size": (16,), "limits": False, "object_cache": (PLENTY,)}
    return RunOptions(("npy",), **{**common, **chosen})


def stored_bytes(manifest):
    return sum(stamp.bytes for stamp in manifest.artifacts["npy"].files.values())


def figures(record):
    return {metric.name: metric.of(record) for metric in METRICS}


@pytest.mark.parametrize(
    ("isolate", "loaders"), [(False, ("dataloader", "native", "stream")), (True, ("native",))]
)
def test_a_first_epoch_fills_it_and_later_ones_send_no_request(remote, tmp_path, isolate, loaders):
    chosen = options(cache=("warm", "cold"), isolate=isolate, loader=loaders)
    outcome = run(remote, chosen, out=tmp_path / "r.jsonl")
    assert not outcome.failures
    records = record_file.read(tmp_path / "r.jsonl")[0]
    assert len(records) == 2 * 2 * len(loaders)
    for made in records:
        assert made.content_check is None
        assert made.case["object_cache"] == PLENTY
        warm = made.cache.mode == made.case["cache"] == "warm object"
        assert warm or made.cache.mode == "cold object"
        figure = figures(made)
        assert figure["requests"] == made.requests.count / made.timing.epochs
        if warm:
            assert figure["object_cache_hits"] == 1
            assert made.requests.count == made.requests.fetched_bytes == figure["read_amplification"] == 0
            assert figure["request_p50_s"] is None
            assert figure["requests_in_flight"] == figure["requests_per_gib"] == 0
        elif not isolate:  # a process of its own has pieces of the usual size
            assert 0 < figure["object_cache_hits"] < 1
            assert made.requests.fetched_bytes == stored_bytes(remote)
            assert figure["requests_in_flight"] == made.requests.total_s / made.timing.epochs_s > 0
            assert figure["requests_per_gib"] == made.requests.count * 2**30 / made.timing.logical_bytes
    assert not [*remote.case_caches.glob("*/*")]


def test_hits_of_workers_are_counted(remote, tmp_path):
    chosen = options(cache=("warm",), isolate=False, loader=("dataloader:num_workers=1",), rounds="1")
    (made,) = run(remote, chosen, out=tmp_path / "r.jsonl").records
    assert made.requests.count == 0
    assert made.requests.needed_bytes == made.requests.cached_bytes == made.timing.logical_bytes


def test_a_round_of_an_empty_cache_is_one_epoch(remote, tmp_path, monkeypatch):
    monkeypatch.setattr("iobench.base.thresholds.ROUND_S", 60.0)
    monkeypatch.setattr("iobench.bench.epoch.MOST_EPOCHS", 3)
    chosen = options(cache=("warm", "cold"), loader=("native",), rounds="1")
    records = run(remote, chosen, out=tmp_path / "r.jsonl").records
    assert {one.case["cache"]: one.timing.epochs for one in records} == {"warm object": 3, "cold object": 1}


@pytest.mark.parametrize("order", ["sequential", "random"])
def test_a_cache_that_is_too_small_serves_its_share_in_any_order(remote, tmp_path, order):
    chosen = options(object_cache=(stored_bytes(remote) // 2,), loader=("stream",), order=(order,))
    outcome = run(remote, chosen, out=tmp_path / "r.jsonl")
    assert not outcome.failures
    for made in outcome.records:
        assert figures(made)["object_cache_hits"] == pytest.approx(0.5, abs=0.1)  # by whole pieces
        assert made.requests.count > 0


def test_parts_of_an_epoch_come_from_a_filled_cache(remote, tmp_path):
    chosen = options(cache=("warm", "cold"), loader=("native",), max_batches=8, batch_size=(2,))
    outcome = run(remote, chosen, out=tmp_path / "r.jsonl")
    assert not outcome.failures
    for made in outcome.records:
        assert made.timing.partial is not None
        assert (figures(made)["object_cache_hits"] == 1) == (made.case["cache"] == "warm object")


def test_cases_with_and_without_a_cache(remote):
    made = cases_of(
        remote, options(object_cache=(0, PLENTY), cache=("warm", "cold"), loader=("native",)), ["cpu"]
    )
    assert [(case.cache, case.object_cache) for case in made] == [
        ("remote", 0),
        ("warm object", PLENTY),
        ("cold object", PLENTY),
    ]
    assert "object_cache" not in made[0].facets
    assert len({case.object_cache_of(remote).folder for case in made}) == 3


def test_options_that_exclude_each_other(remote, tmp_path):
    local = iobench.Manifest.load(tmp_path / "local/mine")
    for manifest, chosen in ((remote, options(object_cache=(0,), cache=("cold",))), (local, options())):
        with refused_as("conflicting-options", InvalidSettings):
            cases_of(manifest, chosen, ["cpu"])


def test_a_second_run_with_caches_is_one_error(remote, tmp_path):
    caches = ObjectCaches(remote)
    with refused_as("locked", LoaderFailed):
        run(remote, options(loader=("native",)), out=tmp_path / "r.jsonl")
    caches.close()
    assert not run(remote, options(loader=("native",)), out=tmp_path / "s.jsonl").failures


def test_a_disk_that_takes_no_piece_is_a_counted_warning(remote, tmp_path, monkeypatch):
    def full(path, content):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("iobench.objects.cache.replace_file", full)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the run has a warning of its own
        outcome = run(remote, options(loader=("native",)), out=tmp_path / "r.jsonl")
    assert not outcome.failures
    (warning,) = [one for one in warnings_of(outcome.records) if one.kind == "object-cache-disk"]
    assert warning.values["pieces"] == sum(one.requests.rejected_pieces for one in outcome.records) > 0


def batches(url, data_dir, epochs=1, cache=PLENTY, **chosen):
    common = {"format": "npy", "batch_size": 16, "order": "random", "data_dir": data_dir}
    with closing(stream_loader(url, **common, object_cache=cache, **chosen)) as loader:
        return [
            [(batch["x"].numpy().tobytes(), batch["y"].numpy().tobytes()) for batch in loader]
            for _ in range(epochs)
        ]


def test_a_later_loader_finds_what_an_earlier_one_fetched(server, tmp_path):
    url, data_dir = f"{server.url}/mine", tmp_path / "data"
    plain = batches(url, data_dir, 2, None)
    assert batches(url, data_dir, 2) == plain
    server.clear()
    assert batches(url, data_dir, 2) == plain
    assert not server.requests
    assert batches(url, data_dir, 2, None) == plain
    assert server.requests


def test_ranks_share_the_cache_of_their_host(server, tmp_path):
    url, data_dir = f"{server.url}/mine", tmp_path / "data"
    for rank in range(2):
        batches(url, data_dir, rank=rank, world_size=2)
    server.clear()
    cached = batches(url, data_dir)
    assert not server.requests
    assert cached == batches(url, data_dir, cache=None)


def test_a_dataset_that_is_uploaded_again_is_fetched_again(server, tmp_path):
    url, data_dir = f"{server.url}/mine", tmp_path / "data"
    old = batches(url, data_dir)
    manifest, _ = prepare(numbers(SAMPLES, seed=1), ("npy",), data_dir=tmp_path / "newer", name="mine")
    publish(manifest, check_target(f"file://{tmp_path}/served/mine", True), overwrite=True)
    new = batches(url, data_dir)
    assert new != old
    assert new == batches(url, data_dir, cache=None)


def test_a_cache_for_a_dataset_on_a_disk_is_refused(server, tmp_path):
    with refused_as("no-object-store", InvalidSettings):
        batches(tmp_path / "local/mine", tmp_path / "data")
