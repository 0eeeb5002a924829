"""Loaders of other projects over a dataset at an address: verified there, or refused in one line."""

import os
import re
import threading
from contextlib import closing
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from conftest import numbers
from kinds import refused_as
from object_cases import SAMPLES

from iobench.base.errors import InvalidSettings, LoaderFailed
from iobench.bench.case_grid import cases_of, skip_notes
from iobench.bench.options import RunOptions
from iobench.bench.run import run
from iobench.dataset.add import add
from iobench.dataset.prepare import prepare
from iobench.dataset.remote_dataset import check_target, open_dataset, publish
from iobench.dataset.verify import verify
from iobench.loading import loaders
from iobench.loading.loaders import Job
from iobench.loading.order import Order
from iobench.objects import reader

pytest_plugins = ("object_fixtures",)
pytestmark = pytest.mark.usefixtures("quick_retries")

FORMATS = {
    "webdataset": "webdataset:shard_bytes=20000",
    "tensorstore": "zarr:chunk_bytes=256",
    "mosaic": "mds:shard_bytes=2000",
    "fsspec": "npy",
    "s3torchconnector": "npy",
    "lance": "lance",
    "huggingface:streaming=yes": "arrow:batch_bytes=2000",
    "litdata": "litdata:chunk_bytes=2000",
}
ORDERS = ("sequential", "random")


def usable(word):
    """The format of a loader that is installed."""
    name = word.partition(":")[0]
    if (reason := {one["name"]: one["usable"] for one in loaders.describe()}[name]) != "yes":
        pytest.skip(reason)
    return FORMATS.get(name) or FORMATS[f"{name}:streaming=yes"]


def at_web(server, tmp_path, variant):
    """A dataset on the web server, and the folder of its artifact there."""
    target = f"file://{tmp_path}/served/one"
    manifest, _ = prepare(numbers(), [variant], data_dir=tmp_path / "local", name="one")
    publish(manifest, check_target(target, False), overwrite=False)
    (artifact,) = manifest.artifacts.values()
    return open_dataset(f"{server.url}/one", tmp_path / "data"), tmp_path / "served/one" / artifact.folder


def at_s3(tmp_path, variant, name):
    manifest, _ = prepare(numbers(), [variant], data_dir=tmp_path / "local", name="one")
    publish(manifest, check_target(f"s3://bucket/{name}", False), overwrite=False)
    return open_dataset(f"s3://bucket/{name}", tmp_path / "data")


def measured(manifest, tmp_path, word, **options):
    given = {"order": ORDERS, "batch_size": (16,), "limits": False, "isolate": False, **options}
    chosen = RunOptions(rounds="1", format=("all",), loader=(word,), **given)
    return run(manifest, chosen, out=tmp_path / "r.jsonl")


def assert_all_came(outcome, cases):
    assert not outcome.failures
    assert len(outcome.records) == cases
    for made in outcome.records:
        assert made.case["cache"] == "remote"
        check = made.content_check
        assert check is None or (check.unverified, check.dropped, check.repeated) == ([], 0, 0)


@pytest.mark.parametrize(
    ("word", "variant"),
    [
        ("webdataset:num_workers=2", None),
        ("tensorstore", None),
        ("tensorstore:prefetch=2", "zarr:chunk_bytes=256,shard_bytes=1024"),
        ("fsspec", "npy"),
        ("fsspec:fetch=batch", "webdataset:shard_bytes=20000"),
        ("huggingface:streaming=yes", None),
    ],
)
def test_from_a_web_server_every_sample_comes(server, tmp_path, word, variant):
    manifest, _ = at_web(server, tmp_path, variant or usable(word))
    usable(word)
    assert_all_came(measured(manifest, tmp_path, word), 2)


@pytest.mark.parametrize(
    "word",
    [
        *("webdataset", "tensorstore", "fsspec:fetch=batch", "s3torchconnector:fetch=batch"),
        *("mosaic", "mosaic:cache_limit=8200"),
        *("lance", "huggingface:streaming=yes", "huggingface:streaming=yes,via=arrow", "litdata"),
    ],
)
def test_from_s3_every_sample_comes(s3, tmp_path, word):
    manifest = at_s3(tmp_path, usable(word), re.sub("[:=,]", "-", f"plain-{word}"))
    outcome = measured(manifest, tmp_path, word)
    assert_all_came(outcome, len({*ORDERS} & {*loaders.parse(word).orders}))
    written = (tmp_path / "r.jsonl").read_text()
    assert not any(os.environ[name] in written for name in os.environ if name.startswith("AWS_"))
    counted = [made.requests for made in outcome.records]
    assert all((one is not None) == (word == "webdataset") for one in counted)  # the others have own clients


@pytest.mark.parametrize(
    "word",
    [
        *("webdataset:num_workers=2", "mosaic:num_workers=2"),
        *("fsspec:num_workers=1,fetch=batch", "s3torchconnector:num_workers=1,fetch=batch"),
        *("huggingface:streaming=yes,num_workers=1", "litdata:num_workers=2"),
    ],
)
def test_workers_read_from_s3_too(s3, tmp_path, word):
    manifest = at_s3(tmp_path, usable(word), f"workers-{word.partition(':')[0]}")
    outcome = measured(manifest, tmp_path, word, isolate=True)
    assert_all_came(outcome, 2)
    for made in outcome.records if word.startswith("webdataset") else ():
        assert made.requests.fetched_bytes >= made.timing.logical_bytes


def test_an_object_that_is_gone_from_s3(s3, tmp_path):
    manifest = at_s3(tmp_path, usable("webdataset"), "gone")
    for name in s3_names(s3, "gone"):
        if name.endswith(".tar"):
            s3.delete_object(Bucket="bucket", Key=name)
    for word, isolate in (("webdataset", False), ("webdataset:num_workers=1", True)):
        outcome = measured(manifest, tmp_path, word, order=("sequential",), isolate=isolate)
        assert [error.kind for error in outcome.failures.values()] == ["missing-object"]


def test_workers_that_the_client_does_not_survive_are_one_error(s3, tmp_path):
    manifest = at_s3(tmp_path, usable("webdataset"), "forked")
    outcome = measured(manifest, tmp_path, "webdataset:num_workers=1", order=("sequential",))
    assert [error.kind for error in outcome.failures.values()] == ["forked"]


@pytest.mark.parametrize("word", ["mosaic", "litdata"])
def test_each_epoch_is_read_from_s3_and_leaves_no_copy(s3, tmp_path, monkeypatch, word):
    manifest = at_s3(tmp_path, usable(word), f"epochs-{word}")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    (variant,) = manifest.artifacts
    job = Job(manifest.opener(variant), Order("sequential", 16))
    with closing(loaders.parse(word).on("cpu").open(job)) as epochs:
        assert sum(len(batch["y"]) for batch in epochs.epoch(0)) == SAMPLES
        with closing(epochs.epoch(1)) as batches:
            next(batches)
        for name in s3_names(s3, f"epochs-{word}"):
            s3.delete_object(Bucket="bucket", Key=name)
        with pytest.raises(LoaderFailed):
            list(epochs.epoch(2))
    assert not list((tmp_path / "temporary").glob("iobench-*"))


def test_mosaic_keeps_copies_within_its_limit(s3, tmp_path):
    manifest = at_s3(tmp_path, usable("mosaic"), "kept")
    (variant,) = manifest.artifacts
    job = Job(manifest.opener(variant), Order("random", 16))
    with closing(loaders.parse("mosaic:cache_limit=1000000").on("cpu").open(job)) as epochs:
        for name in s3_names(s3, "kept"):
            s3.delete_object(Bucket="bucket", Key=name)
        for number in (1, 2):
            assert sum(len(batch["y"]) for batch in epochs.epoch(number)) == SAMPLES


def test_a_limit_of_mosaic_s_copies_is_for_s3(images):
    usable("mosaic")
    with refused_as("conflicting-options", InvalidSettings):
        loaders.parse("mosaic:cache_limit=1000").open(Job(images.opener("npy"), Order("random", 16)))


class Refusing(BaseHTTPRequestHandler):
    """Answers as S3 does where the signature is wrong: with the id of the key."""

    def do_GET(self):
        key = os.environ["AWS_ACCESS_KEY_ID"]
        body = f"<Error><Code>SignatureDoesNotMatch</Code><AWSAccessKeyId>{key}</AWSAccessKeyId></Error>"
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode() if self.command == "GET" else b"")

    do_HEAD = do_GET

    def log_message(self, *arguments):
        pass


@pytest.mark.parametrize("word", FORMATS)
def test_an_error_of_the_store_does_not_repeat_the_key(s3, tmp_path, word, monkeypatch):
    manifest = at_s3(tmp_path, usable(word), f"refused-{word.partition(':')[0]}")
    refusing = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=refusing.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{refusing.server_port}")
    try:
        outcome = measured(manifest, tmp_path, word, order=("sequential",))
    finally:
        refusing.shutdown()
        refusing.server_close()
    (error,) = outcome.failures.values()
    assert os.environ["AWS_ACCESS_KEY_ID"] not in str(error)


def s3_names(s3, prefix):
    return [one["Key"] for one in s3.list_objects_v2(Bucket="bucket", Prefix=f"{prefix}/")["Contents"]]


# ── what goes wrong on a web server ──


def cut(path):
    path.write_bytes(path.read_bytes()[:5000])


def changed(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("word", "damage", "expected"),
    [
        ("webdataset", Path.unlink, "store-failed"),
        ("webdataset", cut, "store-failed"),
        ("tensorstore", Path.unlink, "raised"),  # by default it would be rows of zeros
        ("tensorstore", changed, "replaced"),
        ("tensorstore", changed, "wrong-row"),  # of a server without versions
        ("fsspec", Path.unlink, "store-failed"),
        ("fsspec", changed, "replaced"),
        ("huggingface:streaming=yes", Path.unlink, "raised"),
        ("huggingface:streaming=yes", changed, "replaced"),
    ],
)
def test_damage_that_the_loader_finds_or_the_verification(server, tmp_path, word, damage, expected):
    server.etags = expected != "wrong-row"
    manifest, folder = at_web(server, tmp_path, usable(word))
    objects = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".json"]
    damage(min(objects))
    outcome = measured(manifest, tmp_path, word, order=("sequential",))
    (error,) = outcome.failures.values()
    assert error.kind == expected
    assert "\n" not in str(error)


@pytest.mark.parametrize("word", ["webdataset", "tensorstore"])
def test_an_object_that_was_replaced_is_noticed_after_the_round(server, tmp_path, word):
    manifest, folder = at_web(server, tmp_path, usable(word))
    assert not measured(manifest, tmp_path, word, order=("sequential",)).failures
    (path, *_) = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".json")
    os.utime(path, (1, 1))  # the same content, so that only its version tells
    (error,) = measured(manifest, tmp_path, word, order=("sequential",)).failures.values()
    assert error.kind == "replaced"


def test_an_object_that_was_replaced_in_s3_is_noticed(s3, tmp_path):
    manifest = at_s3(tmp_path, usable("tensorstore"), "replaced")
    name = next(one for one in s3_names(s3, "replaced") if "/c/" in one)
    content = s3.get_object(Bucket="bucket", Key=name)["Body"].read()
    (variant,) = manifest.artifacts
    opener = manifest.opener(variant)
    opener.check_versions(("s3",))
    s3.put_object(Bucket="bucket", Key=name, Body=content[::-1])
    opener.check_versions(("http",))
    with refused_as("replaced"):
        opener.check_versions(("s3",))
    s3.delete_object(Bucket="bucket", Key=name)
    with refused_as("missing-object"):
        opener.check_versions(("s3",))


def store_again(s3, name):
    """Replace an object by the same content in one piece, which is another version than that in parts."""
    place = {"Bucket": "bucket", "Key": name}
    before = s3.head_object(**place)["ETag"]
    s3.put_object(**place, Body=s3.get_object(**place)["Body"].read())
    assert s3.head_object(**place)["ETag"] != before


@pytest.mark.parametrize("word", ["tensorstore", "mosaic", "huggingface:streaming=yes", "litdata"])
def test_an_object_that_was_replaced_in_s3_is_noticed_after_the_round(s3, tmp_path, word):
    name = re.sub("[:=]", "-", f"again-{word}")
    manifest = at_s3(tmp_path, usable(word), name)
    assert not measured(manifest, tmp_path, word, order=("sequential",)).failures
    data = ("/c/", ".mds", ".arrow", "chunk-0")
    store_again(s3, next(one for one in s3_names(s3, name) if any(part in one for part in data)))
    (error,) = measured(manifest, tmp_path, word, order=("sequential",)).failures.values()
    assert error.kind == "replaced"


def test_webdataset_needs_curl_for_a_web_server(server, tmp_path, monkeypatch):
    manifest, _ = at_web(server, tmp_path, usable("webdataset"))
    monkeypatch.setenv("PATH", "")
    outcome = measured(manifest, tmp_path, "webdataset", order=("sequential",))
    assert [error.kind for error in outcome.failures.values()] == ["no-curl"]


# ── a format that its library reads from the store ──


@pytest.fixture
def lance(s3, tmp_path, request):
    """A Lance dataset in S3."""
    return at_s3(tmp_path, usable("lance"), request.node.name.translate({ord(c): "-" for c in "[]:,= "}))


@pytest.mark.parametrize(
    "word", ["native", "stream", "dataloader:fetch=batch", "dataloader:num_workers=1", "spdl"]
)
def test_every_loader_reads_lance_by_lance_s_client(lance, tmp_path, word):
    outcome = measured(lance, tmp_path, word, isolate="num_workers" in word)
    assert_all_came(outcome, 2)
    assert all(made.requests is None for made in outcome.records)


def test_a_lance_dataset_in_s3_is_verified(s3, lance):
    assert verify(lance) == {"lance": None}
    (data,) = (name for name in s3_names(s3, lance.url.rpartition("/")[2]) if name.endswith(".lance"))
    content = bytearray(s3.get_object(Bucket="bucket", Key=data)["Body"].read())
    content[100] ^= 1
    s3.put_object(Bucket="bucket", Key=data, Body=bytes(content))
    (damage,) = verify(lance).values()
    assert damage.kind in ("other-content", "store-failed")
    s3.delete_object(Bucket="bucket", Key=data)
    (damage,) = verify(lance).values()
    assert (damage.kind, damage.path.partition("/lance-")[0]) == ("store-failed", lance.url)


@pytest.mark.parametrize("word", ["lance", "native", "stream"])
def test_a_replaced_lance_object_is_noticed_by_every_loader(s3, lance, tmp_path, word):
    assert not measured(lance, tmp_path, word, order=("sequential",)).failures
    store_again(s3, next(n for n in s3_names(s3, lance.url.rpartition("/")[2]) if n.endswith(".lance")))
    (error,) = measured(lance, tmp_path, word, order=("sequential",)).failures.values()
    assert error.kind == "replaced"


def test_a_lance_dataset_of_others_is_added_where_it_lies(s3, tmp_path):
    usable("lance")
    library, arrow = pytest.importorskip("lance"), pytest.importorskip("pyarrow")
    at_store = {"aws_endpoint": os.environ["AWS_ENDPOINT_URL"], "allow_http": "true"}
    table = arrow.table({"x": arrow.array(range(100), arrow.int32()), "y": [1.5] * 100})
    library.write_dataset(table, "s3://bucket/theirs", storage_options=at_store)
    manifest, _ = add("s3://bucket/theirs/", data_dir=tmp_path / "data")
    assert verify(manifest) == {"lance": None}
    assert_all_came(measured(manifest, tmp_path, "native"), 2)
    assert_all_came(measured(manifest, tmp_path, "lance"), 1)
    library.write_dataset(table, "s3://bucket/theirs", mode="append", storage_options=at_store)
    (damage,) = verify(manifest).values()
    assert damage.kind == "corrupt-artifact"


def test_lance_is_not_uploaded_where_its_library_does_not_read(tmp_path):
    manifest, _ = prepare(numbers(), [usable("lance")], data_dir=tmp_path / "local", name="one")
    with refused_as("no-placement", InvalidSettings):
        publish(manifest, check_target(f"file://{tmp_path}/served/one", False), overwrite=False)


# ── loaders that cannot read it ──


def assert_skipped(manifest, word, reason, **options):
    """A loader is skipped for a reason, the others are measured, and it alone is refused."""
    chosen = RunOptions(loader=(word, "native"), **{"format": ("all",), "order": ("sequential",), **options})
    assert {case.loader.name for case in cases_of(manifest, chosen, ["cpu"])} == {"native"}
    assert [note.values["reason"] for note in skip_notes(manifest, chosen)] == [reason]
    with refused_as("no-cases", InvalidSettings):
        cases_of(manifest, replace(chosen, loader=(word,)), ["cpu"])


def test_a_loader_says_where_it_reads(remote):
    assert_skipped(remote, "lance", "address", format=("npy",))
    mosaic = loaders.class_of("mosaic")()
    assert [mosaic.reads_at(url) for url in ("", "s3://bucket/x", "http://host/x")] == [True, True, False]
    assert mosaic.unpinned == ("s3",)  # its own client pins nothing


@pytest.mark.parametrize(("word", "schemes"), [("fsspec", ("s3", "http")), ("s3torchconnector", ("s3",))])
def test_a_client_of_stores_reads_no_disk_and_no_lance(images, lance, word, schemes):
    usable(word)
    loader = loaders.class_of(word)()
    assert [one for one in ("", "s3", "http", "gs") if loader.reads_at(one and f"{one}://b/x")] == [*schemes]
    assert_skipped(images, word, "address", format=("npy",))
    with refused_as("no-cases", InvalidSettings):
        cases_of(lance, RunOptions(loader=(word,), format=("lance",)), ["cpu"])


def test_what_another_client_reads_is_not_cached(server, lance, tmp_path):
    manifest, _ = at_web(server, tmp_path, usable("tensorstore"))
    assert_skipped(manifest, "tensorstore", "object-cache", object_cache=(1 << 20,))
    options = RunOptions(loader=("native",), format=("lance",), object_cache=(1 << 20,))
    assert [note.values["reason"] for note in skip_notes(lance, options)] == ["object-cache"]
    with refused_as("no-cases", InvalidSettings):
        cases_of(lance, options, ["cpu"])


def test_the_files_that_a_library_reads_by_our_client_are_cached(s3, tmp_path):
    manifest = at_s3(tmp_path, usable("webdataset"), "cached")
    outcome = measured(manifest, tmp_path, "webdataset", object_cache=(1 << 20,))
    assert not outcome.failures
    assert [made.requests.count for made in outcome.records] == [0, 0]
    assert all(made.requests.cached_bytes == made.requests.needed_bytes > 0 for made in outcome.records)


# ── an object as a file ──


def test_a_file_of_an_object_holds_its_bytes(server, remote, tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "FILE_PIECE_BYTES", 1000)
    opener = remote.opener("npy")
    (path,) = (tmp_path / "served/mine").glob("npy-*/x.npy")
    server.fault = lambda number, name: "reset" if number == 2 else None
    server.clear()
    assert opener.remote.file("x.npy").read() == path.read_bytes()
    assert len(server.requests) == -(-path.stat().st_size // 1000) + 1
    server.fault = lambda number, name: "replaced"
    with refused_as("replaced"):
        opener.remote.file("x.npy").read()
