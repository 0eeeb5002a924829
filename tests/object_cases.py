"""Shared cases of the tests of datasets in object stores."""

from conftest import numbers

from iobench.dataset.prepare import prepare
from iobench.dataset.remote_dataset import check_target, publish

SAMPLES = 203
FORMATS = ("npy", "hdf5:chunk_bytes=256", "lmdb", "memmap")


def published(tmp_path, variants=FORMATS, source=None):
    """Upload a small dataset to the folder that the server shows."""
    manifest, _ = prepare(source or numbers(), variants, data_dir=tmp_path / "local", name="mine")
    publish(manifest, check_target(f"file://{tmp_path}/served/mine", False), overwrite=False)
    return manifest
