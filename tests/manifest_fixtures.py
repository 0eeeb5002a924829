"""A small dataset with a manifest for tests to edit."""

import json
import shutil

import pytest
from conftest import numbers

import iobench


@pytest.fixture(scope="session")
def written_once(tmp_path_factory):
    return iobench.prepare(numbers(), ["npy", "lmdb"], data_dir=tmp_path_factory.mktemp("once"), name="d")[0]


@pytest.fixture
def manifest(written_once, tmp_path):
    shutil.copytree(written_once.root, tmp_path / "d")
    return iobench.Manifest.load(tmp_path / "d")


@pytest.fixture
def edit(manifest):
    """Change the manifest's JSON by a function."""

    def edit(change):
        path = manifest.root / "manifest.json"
        body = json.loads(path.read_text())
        change(body)
        path.write_text(json.dumps(body))

    return edit
