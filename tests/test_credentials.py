"""Credentials reach neither the screen, nor a file, nor a command line, nor another server."""

import contextlib
import os
from urllib.parse import quote

import psutil
import pytest
from conftest import complaint, tree
from kinds import kind
from object_cases import published
from range_server import RangeServer

from iobench.base.credentials import known_secrets, scrubbed, shown_address
from iobench.base.errors import LoaderFailed
from iobench.dataset.add import add
from iobench.dataset.remote_dataset import open_dataset
from iobench.objects.url import PROXIES

pytest_plugins = ("object_fixtures",)
pytestmark = pytest.mark.usefixtures("quick_retries")

KEYS = {
    "AWS_ACCESS_KEY_ID": "ASIAIOSFODNN7EXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
    "AWS_SESSION_TOKEN": "FwoGZXIvYXdzEBYaDKsessiontoken0123456789",
}
PASSWORD = "open-sesame"


def leaks(text):
    """The credentials in a text, as they are or as addresses and headers write them."""
    parts = (PASSWORD, "AWS4-HMAC", "Signature=", *KEYS.values())
    return [part for part in parts if part in text or quote(part, safe="") in text]


@pytest.fixture
def keyed(tmp_path, monkeypatch):
    """A server of S3 that gets these credentials."""
    published(tmp_path, ("npy",))
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    with RangeServer(tmp_path / "served").running() as server:
        for name, value in {**KEYS, "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": server.url}.items():
            monkeypatch.setenv(name, value)
        yield server


FORMS = ("{}", "<Error><Code>{}</Code></Error>", 'message: "{}"', "expecting '{}'", "InvalidCertificate({})")


@pytest.mark.parametrize("status", [200, 400, 403, 404, 500])
@pytest.mark.parametrize("form", FORMS)
def test_an_answer_that_repeats_the_request_shows_no_credential(keyed, tmp_path, inside, status, form):
    keyed.echo = (status, form)
    data = ("--data-dir", tmp_path / "data")
    for typed in (
        ("run", "--name", "s3://mine/x"),
        ("add", "s3://mine/x.npy"),
        ("add", "s3://mine/"),
        ("prepare", "--size", "1e3", "--format", "npy", "--to", "s3://mine/new"),
    ):
        done = inside(*typed, *data)
        assert not leaks(done.stdout + complaint(done, 1))
    assert any(one.get("x-amz-security-token") for one in keyed.headers)
    assert not leaks(
        "".join(map(str, tree(tmp_path / "data").values())) if os.path.exists(tmp_path / "data") else ""
    )


WITH_PASSWORD = (
    f"http://user:{PASSWORD}@host/x.npy",
    f"http://user:{PASSWORD}/more@host/x.npy",
    f"http://user:{PASSWORD}?more@host/x.npy",
    f"http://user:{PASSWORD}#more@host/x.npy",
    f"http://user:{PASSWORD} more@host/x.npy",
    f"ftp://user:{PASSWORD}@host/x.npy",
    f"s3://key:{PASSWORD}@bucket/x.npy",
    f"http://host/x.npy#{PASSWORD}",
    f"http://host/x.npy?token={PASSWORD}",
    f"hdfs://user:{PASSWORD}@host/x",
)


@pytest.mark.parametrize("address", WITH_PASSWORD)
@pytest.mark.parametrize(
    "typed",
    [
        ("prepare", "--source"),
        ("prepare", "--size", "1e3", "--name"),
        ("prepare", "--size", "1e3", "--to"),
        ("recommend", "--source"),
        ("add",),
        ("run", "--name"),
        ("run", "--plan"),
        ("verify", "--name"),
        ("compare", "--json"),
        ("report",),
        ("run", "--s3-endpoint"),
    ],
    ids=" ".join,
)
def test_an_address_is_shown_without_credentials(tmp_path, inside, monkeypatch, typed, address):
    monkeypatch.chdir(tmp_path)
    done = inside(*typed, address)
    assert done.returncode
    assert not leaks(done.stdout + done.stderr), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://host:9000/a b/x.npy", "http://host:9000/a b/x.npy"),
        ("http://[::1]:9000/x", "http://[::1]:9000/x"),
        ("s3://bucket/user@example.org/x", "s3://bucket/user@example.org/x"),
        ("s3://key:sec/ret@bucket/x", "s3://bucket/x"),
        ("http://user@host/x", "http://host/x"),
        ("http:/user:password@host/x", "http:/host/x"),  # as pathlib writes it
        ("http://user:pass?word@host/x", "http://…"),
        ("https://host/x?X-Amz-Signature=1#y", "https://host/x"),
        ("file:///data/a#b?c@d", "file:///data/a#b?c@d"),
        ("/data/a:/b@c", "/data/a:/b@c"),
        ("train.h5::x", "train.h5::x"),
    ],
)
def test_what_is_shown_of_an_address(address, shown):
    assert shown_address(address) == shown
    assert scrubbed(f"no {address.replace(' ', '-')}, or?").replace("-b/", " b/") == f"no {shown}, or?"


def test_credentials_of_the_environment_are_known_by_their_names(monkeypatch):
    values = {
        "HF_TOKEN": "hf_abcdefgh",
        "AZURE_STORAGE_ACCOUNT_KEY": "azure/key==",
        "MY_PASSWORD": "correct horse",
    }
    names = {"SSH_KEY": "/home/me/.ssh/id", "TOKENIZERS": "parallel-yes", "A_TOKEN": "short"}
    for name, value in {**values, **names, "HTTPS_PROXY": f"http://me:{PASSWORD}@proxy:1"}.items():
        monkeypatch.setenv(name, value)
    text = " ".join([*values.values(), *map(quote, values.values()), PASSWORD])
    assert not set(scrubbed(text)) - set("… ")
    assert not set(names.values()) & set(known_secrets())


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])  # another port of the same host, another host
def test_no_credential_follows_a_redirect_to_another_origin(keyed, tmp_path, host):
    with RangeServer(tmp_path / "served", host=host).running() as other:
        keyed.redirect = other.url
        for get in (
            lambda: open_dataset("s3://mine", tmp_path / "data"),
            lambda: add("s3://mine/x.npy", name="x"),
        ):
            with pytest.raises(LoaderFailed, check=kind("redirected")):
                get()
        assert keyed.headers
        assert not other.headers


def test_an_address_without_credentials_may_redirect(tmp_path):
    published(tmp_path, ("npy",))
    with (
        RangeServer(tmp_path / "served", host="127.0.0.2").running() as other,
        RangeServer(tmp_path / "served").running() as first,
    ):
        first.redirect = other.url
        assert open_dataset(f"{first.url}/mine", tmp_path / "data").artifacts


def test_a_version_that_repeats_a_credential_is_not_stored(keyed, tmp_path):
    keyed.echo = (200, "{}")
    with pytest.raises(LoaderFailed, check=kind("credentials-in-answer")):
        add("s3://mine/x.npy", name="x", data_dir=tmp_path / "data")


@pytest.mark.parametrize("own", ["--isolate", "--no-isolate"])
def test_a_run_over_s3_leaves_no_credential_anywhere(keyed, tmp_path, inside, monkeypatch, own):
    """In files (records, plans, reports, manifests), on the screen, in the arguments of processes."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    arguments, printed = set(), []

    def seen(number, name):
        if number % 20 == 1:
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):  # it has just ended
                    arguments.update(process.cmdline())

    keyed.fault = seen
    data, named = ("--data-dir", tmp_path / "data"), ("--name", "s3://mine")
    out, plan = tmp_path / "r.jsonl", tmp_path / "p.toml"
    loaders = ("--loader", "stream", own)
    for typed in (
        ("run", *named, *loaders, "--rounds", "1", "--no-limits", "--out", out, "--save-plan", plan),
        ("verify", *named),
        ("limits", *named, "--seconds", "0.01"),
    ):
        done = inside(*typed, *data)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout + done.stderr)
    if own == "--isolate":  # drawing takes seconds
        assert inside("report", out, "--out", tmp_path / "r.html").returncode == 0
    keyed.echo = (403, "{}")
    printed.append(inside("run", *named, *data).stderr)
    written = tree(tmp_path)
    assert {"r.jsonl", "p.toml"} <= written.keys()
    assert ("r.html" in written and arguments) or own == "--no-isolate"
    assert not leaks("\n".join((*printed, *arguments)))
    assert not {name: found for name, content in written.items() if (found := leaks(str(content)))}
