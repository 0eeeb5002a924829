"""A dataset in an object store: a web server in this process, and a server of S3; a plugin."""

import os
import shutil

import pytest
from object_cases import published
from range_server import RangeServer

from iobench.dataset.remote_dataset import open_dataset
from iobench.objects import client, limits, request_pool

pytest.importorskip("obstore", reason="the client of object stores is not installed: iobench[s3]")


@pytest.fixture
def quick_retries(monkeypatch):
    """Retry without pauses that a test would wait for, and nothing that is late on a busy machine."""
    monkeypatch.setattr(client, "PAUSE_S", 0.001)
    monkeypatch.setattr(request_pool, "STALL_S", 60.0)
    monkeypatch.setattr(limits, "MANY", (2, 4))


@pytest.fixture(scope="session")
def uploaded(tmp_path_factory):
    """A folder with a small dataset and its upload, of which each test has a copy."""
    folder = tmp_path_factory.mktemp("uploaded")
    published(folder)
    return folder


@pytest.fixture
def server(uploaded, tmp_path):
    shutil.copytree(uploaded, tmp_path, dirs_exist_ok=True)
    with RangeServer(tmp_path / "served").running() as running:
        yield running


@pytest.fixture
def remote(server, tmp_path):
    return open_dataset(f"{server.url}/mine", tmp_path / "data")


@pytest.fixture(scope="module")
def s3():
    """An S3 server with an empty bucket, and its client."""
    moto = pytest.importorskip(
        "moto.server", reason="the S3 server of the tests is not installed: moto[server]"
    )
    boto3 = pytest.importorskip("boto3")
    running = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    keys = {"AWS_ACCESS_KEY_ID": "testkey", "AWS_SECRET_ACCESS_KEY": "testsecret", "AWS_REGION": "us-east-1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**keys, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}.items():
            patch.setenv(name, value)
        own = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"], region_name="us-east-1")
        own.create_bucket(Bucket="bucket")
        yield own
    running.stop()
