"""The commands and the code of the pages on data in S3 run as printed, over a server of S3."""

import shlex

import numpy as np
import pytest
from test_pages import ROOT, code, typed

pytest_plugins = ("object_fixtures",)
pytestmark = pytest.mark.usefixtures("quick_retries", "few_rounds")

NAMES = ("data-in-s3", "loaders-over-a-store", "cache-objects")
PAGES = [ROOT / "docs" / "how-to" / f"{name}.md" for name in NAMES]
BUCKET = "my-bucket"
ELSEWHERE = ("http://", "file://", "tensorstore", "zarr")  # not of S3, or of a library that is optional


def calls():
    """Return the calls of iobench that need nothing but S3, in the pages' order, the data's own first."""
    every = [words for page in PAGES for words in typed(page)]
    found = [words for words in every if not any(one in " ".join(words) for one in ELSEWHERE)]
    return [*dict.fromkeys(map(tuple, found))]


def quicker(words):
    """Return a call with one round, or with time enough for few rounds."""
    more = {"run": ("--rounds", "1"), "recommend": ("--max-time", "15", "--batch-size", "16")}
    return (*words, *more.get(words[0], ()))


def test_every_command_of_the_pages_can_be_typed(s3, inside, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    s3.create_bucket(Bucket=BUCKET)
    np.savez("train.npz", x=np.zeros((64, 300), np.uint8), y=np.arange(64))
    np.save("part.npy", np.zeros((64, 30), np.uint8))
    s3.upload_file("part.npy", BUCKET, "train/part.npy")
    done = [words[0] for words in calls() if assert_works(inside, words)]
    assert {"prepare", "recommend", "limits", "run", "verify", "add"} <= {*done}
    (block,) = code(PAGES[0], "python")
    exec(block.replace('device="cuda"', 'device="cpu"'), namespace := {})
    assert sorted(int(one) for batch in namespace["loader"] for one in batch["y"]) == [*range(64)]


def assert_works(inside, words):
    done = inside(*quicker(words))
    assert done.returncode == 0, f"iobench {shlex.join(words)}: {done.stderr[-2000:]}"
    return True
