"""Every format from prepare to a record: verified with every built-in loader, with library versions."""

import numpy as np
import pytest
from conftest import installed_formats
from kinds import refused_as
from ragged_cases import BatchSource, clips_of

import iobench
from iobench import formats
from iobench.base.errors import CorruptArtifact, InvalidSettings
from iobench.dataset.prepare import writable_formats
from iobench.loading import loaders
from iobench.testing.cases import store

SAMPLES = 11


def prepared(folder, **arrays):
    """Prepare arrays in every format that can hold them."""
    np.savez(folder / "a.npz", **arrays)
    source = iobench.open_source(folder / "a.npz")
    every = [*writable_formats(source.schema)[0], "parts", "samples"]
    return iobench.prepare(source, every, data_dir=folder / "data")[0]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Images with labels."""
    images = np.random.default_rng(0).integers(0, 256, (SAMPLES, 8, 6, 3), dtype=np.uint8)
    return prepared(tmp_path_factory.mktemp("images"), image=images, label=np.arange(SAMPLES))


@pytest.fixture(scope="module")
def windows(tmp_path_factory):
    """Windows of tokens."""
    tokens = np.random.default_rng(0).integers(0, 50_257, (SAMPLES, 17)).astype(np.uint16)
    return prepared(tmp_path_factory.mktemp("windows"), tokens=tokens)


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """Clips of different lengths."""
    schema, batch = clips_of([5, 0, 300, 1, 17, 2])
    data_dir = tmp_path_factory.mktemp("clips")
    return iobench.prepare(BatchSource(schema, batch), writable_formats(schema)[0], data_dir=data_dir)[0]


@pytest.fixture(params=["images", "windows", "clips"])
def every(request):
    """A dataset in every format that can hold it."""
    return request.getfixturevalue(request.param)


def test_every_format_holds_images_or_windows_or_clips(images, windows, clips):
    assert {*images.artifacts, *windows.artifacts, *clips.artifacts} == set(installed_formats())


def test_every_format_is_measured_with_every_default_loader(every):
    options = iobench.RunOptions(
        loader=("native", "stream", "dataloader"), batch_size=(4,), rounds="1", limits=False
    )
    result = iobench.run(every, options)
    assert not result.failures
    assert len(result.records) == 3 * len(every.artifacts)
    libraries = {library for name in every.artifacts for library in formats.get(name).libraries}
    assert libraries <= set(result.records[0].machine.versions)


def test_every_artifact_is_intact_also_after_it_was_touched(every):
    assert iobench.verify(every) == dict.fromkeys(every.artifacts)
    for name in every.artifacts:
        next(iter(every.files_of(name))).touch()
    assert iobench.verify(every) == dict.fromkeys(every.artifacts)


def test_workers_of_a_format_that_must_not_be_forked_are_spawned(images):
    loader = "dataloader:num_workers=1,persistent_workers=yes"
    options = iobench.RunOptions(("lance",), (loader,), batch_size=(4,), rounds="1", limits=False)
    assert not iobench.run(images, options).failures
    forked = loaders.parse("dataloader:num_workers=1,start_method=fork")
    with refused_as("not-forkable", InvalidSettings, match="lance"):
        forked.open(loaders.Job(images.opener("lance"), None))


def test_a_librarys_message_about_damage_is_one_short_line(tmp_path):
    """NumPy repeats a header that it cannot parse, however long it is."""
    schema = formats.Schema(9000, (formats.Field("y", (), "int64"),))
    artifact = store(formats.get("npy"), tmp_path / "a", schema)
    file = artifact.path / "y.npy"
    content = bytearray(file.read_bytes())
    content[9] = 20  # of the header's length
    content[-9000 * 8 :] = np.arange(9000).tobytes()
    file.write_bytes(content)
    with pytest.raises(CorruptArtifact) as raised:
        artifact.open()
    assert len(str(raised.value)) < 500
    assert "\n" not in str(raised.value)
