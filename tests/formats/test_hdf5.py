"""HDF5 files whose data lie elsewhere are refused by name, and what they point at is not opened."""

import os

import h5py
import numpy as np
import pytest

from iobench import formats
from iobench.formats import CorruptArtifact
from iobench.formats.hdf5 import refuse_foreign
from iobench.testing._cases import SCHEMA, read_all, store


@pytest.fixture
def artifact(tmp_path):
    return store(formats.get("hdf5", chunk_bytes=0), tmp_path / "a", SCHEMA)


@pytest.fixture
def file(artifact):
    """The artifact's file, opened for writing, without its label."""
    with h5py.File(artifact.path / "data.h5", "r+") as file:
        del file["label"]
        yield file


@pytest.fixture
def elsewhere(tmp_path):
    """Another HDF5 file with the same label."""
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["label"] = np.zeros(SCHEMA.samples, "int64")
    return tmp_path / "other.h5"


def external(file, elsewhere):
    raw = elsewhere.with_name("secret.bin")
    raw.write_bytes(bytes(8 * SCHEMA.samples))
    file.create_dataset("label", (SCHEMA.samples,), "int64", external=[(str(raw), 0, 8 * SCHEMA.samples)])


def virtual(file, elsewhere):
    layout = h5py.VirtualLayout((SCHEMA.samples,), "int64")
    layout[:] = h5py.VirtualSource(str(elsewhere), "label", (SCHEMA.samples,))
    file.create_virtual_dataset("label", layout)


def link(file, elsewhere):
    file["label"] = h5py.ExternalLink(str(elsewhere), "label")


def soft_link_over_another(file, elsewhere):
    file["other"] = h5py.ExternalLink(str(elsewhere), "/")
    file["label"] = h5py.SoftLink("/other/label")


LEAVING = {
    external: r"dataset /label keeps its data in raw files: .*secret\.bin",
    virtual: r"dataset /label keeps its data in other datasets: label of .*other\.h5",
    link: "expected label: .* found a link to label",
    soft_link_over_another: "expected label: .* found a link to /other/label",
}


@pytest.mark.parametrize(
    ("leave", "complaint"), LEAVING.items(), ids=lambda case: getattr(case, "__name__", "")
)
def test_data_outside_the_file_is_refused(artifact, file, elsewhere, leave, complaint):
    leave(file, elsewhere)
    file.close()
    with pytest.raises(CorruptArtifact, match=complaint) as error:
        artifact.open()
    assert "\n" not in str(error.value)
    assert str(error.value).count(str(artifact.path)) == 1


@pytest.mark.parametrize("leave", LEAVING, ids=lambda case: case.__name__)
def test_a_source_can_ask_of_any_dataset(artifact, file, elsewhere, leave):
    leave(file, elsewhere)
    file.close()
    with h5py.File(artifact.path / "data.h5") as opened:
        refuse_foreign(opened["rgb"], artifact.path / "data.h5")
        with pytest.raises(CorruptArtifact, match="dataset /label keeps its data in"):
            refuse_foreign(opened["label"], artifact.path / "data.h5")


def test_a_link_to_a_pipe_does_not_hang(artifact, file, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    file["label"] = h5py.ExternalLink(str(tmp_path / "pipe"), "label")
    file.close()
    assert read_all(artifact.format, artifact.path, SCHEMA) is None


def test_a_missing_field_is_corrupt(artifact, file):
    file.close()
    assert read_all(artifact.format, artifact.path, SCHEMA) is None
