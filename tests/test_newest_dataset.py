"""The dataset of a command without --name, and data that are no local files."""

import os
from pathlib import Path

import pytest
from kinds import kind

from iobench.base.errors import SourceError
from iobench.dataset.add import add
from iobench.dataset.manifest import find_dataset
from iobench.dataset.prepare import prepare
from iobench.dataset.sources import FirstSamples, Synthetic, open_source

SOURCE = Synthetic(64, (4,), "float32", seed=0, compressibility=0.0)


def written(source, folder, name, age_s):
    root = prepare(source, ["npy"], data_dir=folder, name=name)[0].root
    changed_ns = 10**18 - age_s * 10**9
    os.utime(root / "manifest.json", ns=(changed_ns, changed_ns))
    return root


def test_the_newest_dataset_is_no_sample_and_no_leftover(tmp_path):
    written(SOURCE, tmp_path, "older", 4)
    written(SOURCE, tmp_path, "newer", 3)
    written(FirstSamples(SOURCE, 8), tmp_path, "sample", 2)
    (written(SOURCE, tmp_path, "killed", 1) / ".tmp-1").mkdir()
    assert find_dataset(tmp_path).name == "newer"


def test_a_sample_is_found_where_there_is_nothing_else(tmp_path):
    written(FirstSamples(SOURCE, 8), tmp_path, "sample", 1)
    assert find_dataset(tmp_path).name == "sample"


@pytest.mark.parametrize("take", [open_source, add])
def test_a_url_is_refused_as_one(take):
    with pytest.raises(SourceError, check=kind("remote-data", path="s3://bucket/x")):
        take(Path("s3://bucket/x"))
