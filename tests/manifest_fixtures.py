"""A small dataset with a manifest for tests to edit."""

import json

import pytest
from conftest import numbers

import iobench


@pytest.fixture
def manifest(tmp_path):
    return iobench.prepare(numbers(), ["npy", "lmdb"], data_dir=tmp_path, name="d")[0]


@pytest.fixture
def edit(manifest):
    """Change the manifest's JSON by a function."""

    def edit(change):
        path = manifest.root / "manifest.json"
        body = json.loads(path.read_text())
        change(body)
        path.write_text(json.dumps(body))

    return edit
