"""Objects that other programs wrote: added by their address, read from there, and what is refused."""

import io
import json
import shutil
import tarfile

import numpy as np
import pytest
from conftest import Arrays, numbers, tree
from kinds import complaint_kind, kind
from ragged_cases import RaggedSource
from range_server import RangeServer

import iobench
from iobench.base.errors import (
    ArtifactExists,
    CorruptArtifact,
    InvalidSettings,
    LoaderFailed,
    ManifestError,
    PrepareError,
    SourceError,
)
from iobench.base.units import bytes_text
from iobench.dataset import add as module
from iobench.dataset.add import add
from iobench.dataset.prepare import prepare
from iobench.dataset.remote_dataset import open_dataset
from iobench.dataset.staging import SEAL
from iobench.dataset.verify import verify
from iobench.objects import client, download
from iobench.objects.client import ObjectStore
from iobench.terminal import display

pytest_plugins = ("object_fixtures",)
pytestmark = pytest.mark.usefixtures("quick_retries")

FORMATS = ("npy", "webdataset", "hdf5:chunk_bytes=256", "lmdb", "memmap")
TRAIN = "s3://bucket/train/"


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """The folder of temporary files, which each test leaves empty."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(module.tempfile, "tempdir", str(folder))
    yield folder
    assert not [*folder.glob("iobench-add-*")]


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """A store with an empty bucket."""
    with RangeServer(tmp_path / "served").running() as server:
        (server.folder / "bucket/train").mkdir(parents=True)
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
        yield server


@pytest.fixture
def data(tmp_path):
    """The folder in which data are registered."""
    return tmp_path / "data"


@pytest.fixture
def refused(data):
    """Return a function that adds what is refused for this cause; nothing stays of it."""

    def refused(error, cause, address=TRAIN, found=None, **options):
        check = kind(cause, **{} if found is None else {"found": found})
        with pytest.raises(error, check=check) as caught:
            add(address, data_dir=data, **options)
        assert not tree(data)
        assert "iobench-add-" not in str(caught.value), "the copy here is named"
        return caught.value

    return refused


def stored(server, variant="npy", source=None):
    """Write a small dataset as another program would; return its manifest on the disk."""
    local = server.folder.parent / "local"
    manifest, _ = prepare(source or numbers(), [variant], data_dir=local, overwrite=True)
    target = server.folder / "bucket/train"
    shutil.rmtree(target)
    shutil.copytree(manifest.path_of(variant), target, ignore=lambda *names: [SEAL])
    return manifest


@pytest.mark.parametrize("failing", [{1}, {2}, {2, 3, 4}, {3, 5}, {4}])
def test_a_page_of_a_listing_that_fails_is_asked_for_again(bucket, failing, monkeypatch):
    monkeypatch.setattr(client, "LISTED", 2)
    for number in range(7):  # four pages
        (path := bucket.folder / f"bucket/train/{number % 3}/{number}").parent.mkdir(
            parents=True, exist_ok=True
        )
        path.write_text("x")
    names = [name for name, _ in ObjectStore(TRAIN).below()]
    bucket.failing_pages = {bucket.pages + one for one in failing}
    assert [name for name, _ in ObjectStore(TRAIN).below()] == names
    assert len(names) == 7
    assert bucket.pages >= 8 + len(failing)


def test_a_listing_that_never_comes_is_an_error(bucket):
    bucket.failing_pages = range(1, 100)
    with pytest.raises(LoaderFailed, check=kind("store-failed")):
        list(ObjectStore(TRAIN).below())


@pytest.mark.parametrize("variant", FORMATS)
def test_rows_and_hashes_are_those_of_the_files(variant, bucket, data):
    local, before = stored(bucket, variant), tree(bucket.folder)
    made, row = add(TRAIN, data_dir=data)
    assert made.name == "train"
    assert row.artifact.stored_bytes == sum(map(len, before.values()))
    loaded = iobench.Manifest.load(data / "train")
    assert (loaded.content, loaded.ordered) == (local.content, local.ordered)
    assert loaded.data_dir == data
    bucket.clear()
    assert verify(loaded) == {row.variant: None}
    assert bucket.requests
    rows = np.random.default_rng(0).integers(0, 203, 50)
    with loaded.opener(row.variant)() as reader, local.opener(variant)() as expected:
        assert {n: a.tobytes() for n, a in reader.batch(rows).items()} == {
            n: a.tobytes() for n, a in expected.batch(rows).items()
        }
    assert tree(bucket.folder) == before  # nothing was written there


def test_a_listing_without_quotes_around_etags(bucket, data):
    bucket.quotes = False
    one, another = (bucket.folder / "bucket" / "train" / f"{name}.npy" for name in "ab")
    np.save(one, np.arange(6.0))
    manifest, _ = add(TRAIN, data_dir=data, name="listed")
    assert not verify(manifest)["npy"]
    np.save(another, np.arange(6.0) + 1)
    another.rename(one)
    assert verify(manifest)["npy"]


def test_one_object_of_a_web_server(bucket, data):
    np.save(bucket.folder / "a b ü.npy", np.arange(40.0).reshape(10, 4))
    made, _ = add(f"{bucket.url}/a%20b%20ü.npy", name="one", data_dir=data)
    (batch,) = iobench.StreamLoader(data / "one", format="npy", batch_size=10, order="sequential")
    assert batch["x"].numpy().tolist() == np.arange(40.0).reshape(10, 4).tolist()
    assert made.source["path"] == f"{bucket.url}/a%20b%20ü.npy"


def test_one_object_of_a_bucket_and_one_of_its_arrays(bucket, data):
    stored(bucket, "hdf5")
    (file,) = (bucket.folder / "bucket/train").iterdir()
    made, _ = add(f"{TRAIN}{file.name}::x", name="one", data_dir=data)
    assert [field.name for field in made.schema.fields] == ["x"]
    assert verify(iobench.Manifest.load(made.root)) == {"hdf5": None}


def test_a_bucket_without_a_prefix_and_names_of_any_script(bucket, data):
    for name in ("ü ß.npy", "100%.npy", "a=b#c.npy"):
        np.save(bucket.folder / "bucket" / name, np.arange(10))
    (bucket.folder / "bucket/empty").touch()  # as the marker of a folder
    made, _ = add("s3://bucket", data_dir=data, format="npy")
    assert len(made.artifacts["npy"].files) == 3
    assert verify(made) == {"npy": None}


@pytest.mark.usefixtures("few_rounds")
def test_add_run_and_verify_as_typed(bucket, tmp_path, inside):
    stored(bucket, "webdataset")
    data = ("--data-dir", tmp_path / "data")
    done = inside("add", TRAIN, *data, "--s3-endpoint", bucket.url)
    assert done.returncode == 0, done.stderr
    assert f"registered in place: {TRAIN}" in done.stderr
    named = (*data, "--name", "train")
    done = inside("run", *named, "--loader", "stream", "--loader", "native", "--rounds", "1", "--no-limits")
    assert done.returncode == 0, done.stderr
    assert "remote cache" in done.stdout
    assert "webdataset: intact" in inside("verify", *named).stdout
    assert "ranged GET" in inside("limits", *named, "--seconds", "0.01").stdout
    assert complaint_kind(inside("run", *named, "--format", "npy")) == "not-prepared"
    assert complaint_kind(inside("run", *named, "--cache", "cold"), 2) == "conflicting-options"
    done = inside("recommend", *named, "--max-time", "120")
    assert done.returncode == 0, done.stderr
    assert complaint_kind(inside("prepare", *named, "--size", "1e3")) == "remote-dataset"


def test_an_existing_dataset_is_replaced_only_with_overwrite(bucket, data):
    stored(bucket)
    prepare(numbers(seed=1), ["memmap"], data_dir=data, name="train")
    before = tree(data)
    bucket.clear()
    with pytest.raises(ArtifactExists, check=kind("other-data")):
        add(TRAIN, data_dir=data)
    assert tree(data) == before
    assert not bucket.requests  # nothing was downloaded
    for _ in range(2):
        made, _ = add(TRAIN, data_dir=data, overwrite=True)
        assert {path.split("/")[0] for path in tree(data / "train")} == {"manifest.json", ".index"}
        assert {path.stem for path in (data / "train/.index").iterdir()} == {made.artifacts["npy"].folder}
    prepare(numbers(seed=1), ["memmap"], data_dir=data, name="train", overwrite=True)
    local = iobench.Manifest.load(data / "train")
    assert (local.url, [*local.artifacts]) == ("", ["memmap"])
    assert verify(local) == {"memmap": None}


def test_a_dataset_that_came_meanwhile_is_not_replaced(bucket, data, monkeypatch):
    stored(bucket)
    find = module.find

    def beside(*arguments):
        prepare(numbers(seed=1), ["memmap"], data_dir=data, name="train")
        return find(*arguments)

    monkeypatch.setattr(module, "find", beside)
    with pytest.raises(ArtifactExists, check=kind("other-data")):
        add(TRAIN, data_dir=data)
    assert verify(iobench.Manifest.load(data / "train")) == {"memmap": None}


def test_a_manifest_in_a_store_cannot_name_objects_elsewhere(bucket, data):
    stored(bucket)
    made, _ = add(TRAIN, data_dir=data)
    shutil.copy(made.root / "manifest.json", bucket.folder / "bucket/train")
    with pytest.raises(ManifestError, check=kind("not-uploaded")):
        open_dataset(TRAIN, data)


# ── refused ──


@pytest.mark.parametrize(
    ("source", "variant", "address", "cause"),
    [
        (numbers(), "hdf5:compression=gzip", TRAIN, "no-placement"),
        (RaggedSource([3, 0, 5]), "arrow", f"{TRAIN}data.arrow", "ragged"),
    ],
    ids=["encoded", "ragged"],
)
def test_rows_that_no_range_holds_are_refused_before_hashing(
    bucket, refused, monkeypatch, source, variant, address, cause
):
    stored(bucket, variant, source)
    monkeypatch.setattr("iobench.dataset.add.hash_rows", lambda *arguments: pytest.fail("hashed"))
    refused(InvalidSettings, cause, address)


def shards(bucket, *shards):
    """Write a tar shard of each of these files by name."""
    for number, files in enumerate(shards):
        with tarfile.open(bucket.folder / f"bucket/train/{number}.tar", "w") as shard:
            for name, content in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                shard.addfile(member, io.BytesIO(content))


@pytest.mark.parametrize("encoded", [True, False])
def test_one_shard_comes_before_the_others_and_none_comes_twice(bucket, data, refused, encoded):
    np.save(stream := io.BytesIO(), np.arange(5.0))
    sample = {"x.npy": stream.getvalue()} | ({"cls": b"7"} if encoded else {})
    pairs = [(0, 1), (2, 3), (4, 5)]
    shards(bucket, *({f"{n}.{end}": part for n in pair for end, part in sample.items()} for pair in pairs))
    if encoded:
        assert refused(InvalidSettings, "no-placement").found.startswith("cls")
    else:
        assert add(TRAIN, data_dir=data)[0].schema.samples == 6
    came = [name for name, _ in bucket.requests]
    assert came[0] == "/bucket/train/0.tar"
    assert len(set(came)) == len(came) == (1 if encoded else 3)


@pytest.mark.parametrize("variant", [None, "images:shape=3x64x64", "images:encoded=yes"])
def test_of_images_in_a_file_each_nothing_is_downloaded(bucket, refused, variant):
    (folder := bucket.folder / "bucket/train/cat").mkdir()
    for number in range(3):
        (folder / f"{number}.JPG").write_bytes(b"x")
    (folder.parent / "labels.csv").write_text("0,cat")
    found = "3 objects like cat/0.JPG"
    assert refused(InvalidSettings, "no-placement", found=found, format=variant).hint == module.CONVERT
    assert not bucket.requests


def test_of_parquet_one_file_shows_that_none_can_be_added(bucket, refused):
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pytest.importorskip("pyarrow").table({"x": np.arange(9.0)})
    for number in range(3):
        parquet.write_table(table, bucket.folder / f"bucket/train/{number}.parquet")
    refused(InvalidSettings, "no-placement")
    assert [name for name, _ in bucket.requests] == ["/bucket/train/0.parquet"]


def test_images_in_shards_get_no_advice_that_only_files_on_a_disk_can_take(bucket, refused):
    image = pytest.importorskip("PIL.Image")
    files = {}
    for side in (4, 5):
        image.new("RGB", (side, 4)).save(stream := io.BytesIO(), "PNG")
        files[f"{side}.png"] = stream.getvalue()
    shards(bucket, files)
    assert refused(SourceError, "unequal-shapes").hint == module.CONVERT


@pytest.mark.parametrize(
    ("address", "error", "cause"),
    [
        ("s3://bucket/none/", SourceError, "empty"),
        ("s3://bucket/none", SourceError, "empty"),
        ("s3://bucket/marker", SourceError, "empty"),
        ("s3://no-bucket/x/", CorruptArtifact, "missing-bucket"),
        ("s3://bucket/a/../b", InvalidSettings, "invalid-url"),
        ("s3://key:secret@bucket/x", InvalidSettings, "credentials-in-url"),
        ("ftp://host/x.npy", InvalidSettings, "unknown-scheme"),
        ("file:///etc/x.npy", InvalidSettings, "local-path"),
        ("SERVER/bucket/", SourceError, "missing-object"),
        ("SERVER/none.npy", SourceError, "missing-object"),
        ("http://127.0.0.1:1/x.npy", LoaderFailed, "store-failed"),
        ("http://[::1]:1/x.npy", LoaderFailed, "store-failed"),  # `::` selects nothing there
    ],
)
def test_addresses_with_nothing_to_add(bucket, data, refused, address, error, cause):
    (bucket.folder / "bucket/marker").touch()
    assert "secret" not in str(refused(error, cause, address.replace("SERVER", bucket.url), name="one"))
    assert not data.exists()


@pytest.mark.parametrize(
    ("name", "error", "cause"),
    [
        ("train/../../x.npy", CorruptArtifact, "invalid-name"),
        ("train//x.npy", CorruptArtifact, "invalid-name"),
        ("train/./x.npy", CorruptArtifact, "invalid-name"),
        ("train/" + "x" * 256, CorruptArtifact, "invalid-name"),
        ("train/x.npy/0", SourceError, "name-clash"),  # x.npy would be a file and a folder
    ],
)
def test_names_that_no_file_here_can_have(bucket, refused, name, error, cause):
    stored(bucket)
    bucket.more_names = [name]
    bucket.more_bytes = 9
    caught = refused(error, cause)
    assert cause != "name-clash" or caught.path == f"s3://bucket/{name}"


@pytest.mark.parametrize("place", ["SERVER", "SERVER/bucket", "s3://bucket"])
@pytest.mark.parametrize("name", ["{}/stolen.npy", "../{}/stolen.npy", "a%5C..%5Cb.npy", "%2E%2E", "a%00b"])
def test_an_object_is_never_written_where_its_name_says(bucket, tmp_path, data, refused, place, name):
    """The server answers with an array at any address."""
    np.save(bucket.folder / "any.npy", np.arange(9))
    bucket.any = bucket.folder / "any.npy"
    (outside := tmp_path / "outside").mkdir()
    typed = name.format(outside).replace("/", "%2F")
    address = f"{place.replace('SERVER', bucket.url)}/{typed}"
    refused((CorruptArtifact, InvalidSettings), "invalid-name", address, name="one")
    assert not tree(outside)
    assert not data.exists()


def test_progress_tells_how_many_objects_there_are_and_how_large(bucket, data):
    stored(bucket)
    total = sum(file.stat().st_size for file in (bucket.folder / "bucket/train").iterdir())
    reports = []
    add(TRAIN, data_dir=data, progress=lambda *report: reports.append(report))
    steps = {what.split()[0]: (what, done, of) for what, done, of in reports}
    assert steps["listing"][1:] == (total, 0)
    expected = f"downloading 2 objects, {bytes_text(total)}, from s3://bucket/train"
    assert steps["downloading"] == (expected, total, total)


def test_a_step_of_unknown_size_tells_the_bytes_so_far(monkeypatch, capsys):
    monkeypatch.setattr(display, "EVERY_S", 0)
    with display.progress() as report:
        report("listing", 0, 0)
        report("listing", 2048, 0)
        report("downloading", 1024, 4096)
    first, second = map(str.split, capsys.readouterr().err.splitlines())
    assert first[:2] == ["listing:", "2.00"]
    assert second[:2] == ["downloading:", "25%"]


def test_too_many_objects(bucket, refused, monkeypatch):
    stored(bucket, "webdataset")
    for number in range(5):
        (bucket.folder / f"bucket/train/{number}.tar").write_bytes(b"x")
    monkeypatch.setattr(download, "MOST_OBJECTS", 3)
    refused(SourceError, "too-many-objects")


def test_a_temporary_folder_without_space(bucket, refused, monkeypatch, temporary):
    stored(bucket)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 9, 9))
    assert refused(PrepareError, "disk-full").path == str(temporary)


@pytest.mark.parametrize(("name", "content"), [("notes.txt", "no data"), ("table.csv", "x\n1\n2\n")])
def test_errors_and_hints_name_the_object_and_not_its_copy(bucket, refused, name, content):
    (bucket.folder / "bucket" / name).write_text(content)
    error = refused(SourceError, "unrecognized", f"s3://bucket/{name}")
    assert error.path == f"s3://bucket/{name}"
    assert name == "notes.txt" or error.hint == module.CONVERT


# ── changes and interruptions ──


@pytest.mark.parametrize("how", ["replaced", "shorter", "removed"])
def test_an_object_that_changes_after_it_was_listed(bucket, refused, monkeypatch, how):
    stored(bucket)
    file = bucket.folder / "bucket/train/x.npy"
    find = module.find

    def changing(*arguments):
        found = find(*arguments)
        file.unlink()
        if how != "removed":
            file.write_bytes(b"other" if how == "shorter" else bytes(found.objects["x.npy"].size))
        return found

    monkeypatch.setattr(module, "find", changing)
    assert refused(SourceError, "changed").path == f"{TRAIN}x.npy"


@pytest.mark.parametrize("error", [KeyboardInterrupt, LoaderFailed])
def test_a_download_that_ends_early_leaves_nothing(bucket, data, monkeypatch, error):
    stored(bucket)
    get, calls = ObjectStore.get, []

    def fails(self, *arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise error("it broke")
        return get(self, *arguments)

    monkeypatch.setattr(ObjectStore, "get", fails)
    with pytest.raises(error):
        add(TRAIN, data_dir=data)
    assert not tree(data)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_registration_that_ends_early_leaves_what_was_there(bucket, data, monkeypatch, overwrite):
    stored(bucket, "webdataset")
    if overwrite:
        add(TRAIN, data_dir=data)
    before = tree(data)

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "check_places", interrupted)
    with pytest.raises(KeyboardInterrupt):
        add(TRAIN, data_dir=data, overwrite=overwrite)
    assert tree(data) == before


def test_faults_of_the_store_cost_retries_only(bucket, data):
    stored(bucket)
    bucket.fault = lambda number, name: (None, "reset", "unavailable", "short")[number % 4]
    made, _ = add(TRAIN, data_dir=data)
    assert json.loads((made.root / "manifest.json").read_text())["url"] == TRAIN.rstrip("/")


def test_the_rows_follow_the_versions_that_were_hashed(bucket, data):
    """Data of other values in the same layout are another dataset."""
    stored(bucket, source=Arrays(x=np.zeros((20, 4), np.float32)))
    first, _ = add(TRAIN, data_dir=data)
    stored(bucket, source=Arrays(x=np.ones((20, 4), np.float32)))
    second, _ = add(TRAIN, data_dir=data, overwrite=True)
    assert first.content != second.content
    assert verify(first)["npy"].kind == "replaced"
    assert verify(second) == {"npy": None}
