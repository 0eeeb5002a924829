"""StreamLoader over a dataset in an object store, in a person's own code."""

import gc
import json
import os
import time

import pytest
from conftest import numbers
from kinds import kind, refused_as
from object_cases import FORMATS, SAMPLES
from stream_cases import BATCH, in_child, our_threads
from stream_loaders import stream_loader

import iobench
from iobench import StreamLoader
from iobench.base.errors import CorruptArtifact, InvalidOption, InvalidSettings, LoaderFailed, ManifestError
from iobench.dataset.remote_dataset import check_target, publish
from iobench.objects import client, request_pool

pytest_plugins = ("object_fixtures",)
pytestmark = pytest.mark.usefixtures("quick_retries")


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Abandon no request, however busy the machine is."""
    monkeypatch.setattr(request_pool, "CLOSE_S", 60.0)


@pytest.fixture
def loader(server, tmp_path):
    """Return StreamLoaders over the server's dataset, or over its local twin."""

    def made(format="npy", local=False, **options):
        place = tmp_path / "local/mine" if local else f"{server.url}/mine"
        options = {"batch_size": BATCH, "data_dir": tmp_path / "cache", **options}
        return stream_loader(place, format=format, **options)

    return made


def content(batches):
    return [{name: tensor.numpy().tobytes() for name, tensor in batch.items()} for batch in batches]


@pytest.mark.parametrize("variant", FORMATS)
@pytest.mark.parametrize("order", ["sequential", "random", "block"])
def test_batches_are_those_of_the_folder(loader, variant, order):
    options = {"order": order, "seed": 3, "block_bytes": 280, "window_bytes": 1400}
    remote, local = loader(variant, **options), loader(variant, local=True, **options)
    for _ in range(2):
        assert content(remote) == content(local)
    remote.set_epoch(7)
    local.set_epoch(7)
    assert content(remote) == content(local)


@pytest.mark.parametrize("order", ["sequential", "random", "block"])
def test_a_state_resumes_over_a_folder_and_over_a_store(loader, order):
    whole = content(loader(local=True, order=order))
    for stopped, again in ((True, False), (False, True), (False, False)):
        one = loader(local=stopped, order=order)
        for number, _ in enumerate(one, 1):
            if number == 5:
                state = json.loads(json.dumps(one.state_dict()))
                break
        rest = loader(local=again, order=order)
        rest.load_state_dict(state)
        assert content(rest) == whole[5:]


def test_the_options_of_requests_decide_the_requests(loader, server):
    def requests(**options):
        one = loader(batch_size=SAMPLES, fields=["x"], **options)
        server.clear()
        assert len(list(one)) == 1
        return len(server.requests)

    assert requests() == 1
    assert requests(request_bytes=100) == -(-SAMPLES // 5)  # rows of 20 bytes
    assert requests(request_bytes=1, in_flight=2) == SAMPLES
    some = {"rank": 0, "world_size": 2, "order": "random"}
    assert requests(coalesce_bytes=0, **some) > requests(**some) == 1


def test_the_requests_in_flight_are_limited(loader, server, monkeypatch):
    monkeypatch.setattr("range_server.SLOW_S", 0.01)
    server.fault = lambda number, name: "slow"
    list(loader(in_flight=3, request_bytes=1))
    assert server.most_in_flight == 3


@pytest.mark.parametrize("retries", [0, 3])
@pytest.mark.parametrize("object_cache", [None, 1 << 20])
def test_a_request_is_sent_again_as_often_as_the_option_says(loader, server, retries, object_cache):
    one = loader(batch_size=SAMPLES, fields=["y"], retries=retries, object_cache=object_cache)
    server.clear()
    server.fault = lambda number, name: "unavailable"
    with pytest.raises(LoaderFailed, check=kind("store-failed")):
        list(one)
    assert len(server.requests) == 1 + retries
    server.fault = lambda number, name: "unavailable" if number <= 1 + 2 * retries else None
    assert len(list(one)) == 1


@pytest.mark.parametrize("early", [False, True])
def test_nothing_is_left_after_close_or_an_early_end(loader, early):
    one = loader(order="random")
    for _ in one:
        if early:
            break
    one.close()
    gc.collect()
    assert our_threads() == []
    assert len(content(one)) == len(one)  # it opens again


def test_it_reads_datasets_at_file_addresses(loader, tmp_path):
    one = stream_loader(
        f"file://{tmp_path}/served/mine", format="npy", batch_size=BATCH, data_dir=tmp_path / "other"
    )
    assert content(one) == content(loader(local=True))


def test_it_reads_s3(s3, tmp_path):
    local = iobench.prepare(numbers(), ["npy"], data_dir=tmp_path / "local", name="mine")[0]
    publish(local, check_target("s3://bucket/streamed", False), overwrite=False)
    one = stream_loader("s3://bucket/streamed", format="npy", batch_size=BATCH, data_dir=tmp_path / "cache")
    assert content(one) == content(StreamLoader(local.root, format="npy", batch_size=BATCH))
    other = iobench.prepare(numbers(seed=1), ["npy"], data_dir=tmp_path / "other", name="mine")[0]
    listed = s3.list_objects_v2(Bucket="bucket", Prefix="streamed/")["Contents"]
    key = next(each["Key"] for each in listed if each["Key"].endswith("x.npy"))
    s3.put_object(Bucket="bucket", Key=key, Body=(other.path_of("npy") / "x.npy").read_bytes())
    with pytest.raises(CorruptArtifact, check=kind("replaced")):
        list(one)
    fresh = stream_loader("s3://bucket/streamed", format="npy", data_dir=tmp_path / "cache")
    with pytest.raises(CorruptArtifact, check=kind("replaced")):  # the manifest names the version
        list(fresh)


# ── errors ──


def test_missing_things_are_one_error(loader, server, tmp_path):
    def opened(address, format="npy"):
        return stream_loader(address, format=format, data_dir=tmp_path / "cache")

    with pytest.raises(ManifestError, check=kind("no-dataset")):
        opened(f"{server.url}/other")
    with pytest.raises(LoaderFailed, check=kind("store-failed")):
        opened("http://127.0.0.1:1/mine")
    with pytest.raises(InvalidSettings, check=kind("unknown-scheme")):
        opened("ftp://host/x")
    with pytest.raises(ManifestError, check=kind("not-prepared")):
        loader("zarr")
    (tmp_path / "file").write_text("")
    with pytest.raises(ManifestError, match=str(tmp_path / "file")):  # it caches the manifest there
        loader(data_dir=tmp_path / "file")


@pytest.mark.parametrize(
    ("options", "error", "wrong"),
    [
        ({"direct": True}, InvalidSettings, "no-direct-reads"),
        ({"in_flight": 0}, InvalidOption, "invalid-value"),
        ({"request_bytes": 0}, InvalidOption, "invalid-value"),
        ({"coalesce_bytes": -1}, InvalidOption, "invalid-value"),
        ({"retries": -1}, InvalidOption, "invalid-value"),
    ],
)
def test_invalid_options_are_refused_at_once(loader, options, error, wrong):
    with pytest.raises(error, check=kind(wrong)):
        loader(**options)


def test_no_credentials(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(LoaderFailed, check=kind("no-credentials")):
        stream_loader("s3://bucket/mine", format="npy", data_dir=tmp_path)


def test_an_object_that_is_replaced_ends_the_epoch_and_the_next(loader, tmp_path):
    one = loader(batch_size=8, order="random")
    list(one)
    path = next((tmp_path / "served/mine").glob("npy-*/x.npy"))
    content_ = bytearray(path.read_bytes())
    content_[-1] ^= 1
    path.write_bytes(content_)
    for _ in range(2):
        with refused_as("replaced"):
            list(one)
    assert our_threads() == []


def test_batches_before_a_failure_arrive_and_the_loader_can_be_used_again(loader, server):
    one = loader(fields=["y"], in_flight=1, request_bytes=8 * BATCH)
    server.fault = lambda number, name: "unavailable" if number > 4 else None
    server.clear()
    running = iter(one)
    assert len(next(running)["y"]) == BATCH
    with pytest.raises(LoaderFailed, check=kind("store-failed")):
        list(running)
    server.fault = lambda number, name: None
    assert len(content(one)) == len(one)


def test_a_forked_child_is_told_so(loader, server):
    one = loader()
    next(iter(one))

    def child():
        for action in (lambda: list(one), loader):
            with pytest.raises(LoaderFailed, check=kind("forked")):
                action()

    in_child(child)


def test_leaving_an_epoch_costs_no_further_tries(loader, server, monkeypatch):
    monkeypatch.setattr(client, "PAUSE_S", 0)
    one = loader(fields=["y"], request_bytes=8 * BATCH, retries=100)
    server.clear()
    server.fault = lambda number, name: "unavailable" if number > 4 else None
    running = iter(one)
    next(running)
    while len(server.requests) < 99:  # they are sent again and again
        time.sleep(0.001)
    running.close()  # it would wait for all tries
    server.fault = lambda number, name: None
    assert len(content(one)) == len(one)
