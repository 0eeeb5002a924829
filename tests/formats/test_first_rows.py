"""The first rows of data that hold more: read by every path as if the others were not there."""

import json
from dataclasses import replace

import h5py
import numpy as np
import pytest
from kinds import has, refused_as

import iobench
from iobench import Requirements, formats
from iobench.advise import measured_data
from iobench.base.errors import ManifestError
from iobench.bench.case_grid import cases_of
from iobench.bench.options import RunOptions
from iobench.bench.run import run
from iobench.dataset.add import AddedSource, AddOptions, add_files
from iobench.dataset.manifest import Manifest
from iobench.dataset.sources import open_source
from iobench.formats import Field, Schema
from iobench.formats.reader import FirstRows

X = np.arange(4000.0).reshape(500, 8)
FIRST = 210  # a part of the fifth block of 50 rows
ROWS = Schema(FIRST, (Field("x", (8,), "float32"),))
SOURCE = iobench.Synthetic(500 * 8, (8,))
NAMES = ("hdf5", "hdf5:compression=gzip", "lmdb", "npy", "zarr", "parquet", "arrow", "webdataset")


@pytest.fixture(scope="module", params=NAMES)
def added(request, tmp_path_factory):
    """Return a dataset of the first samples of data that another program wrote."""
    form, tmp_path = formats.parse(request.param), tmp_path_factory.mktemp("added")
    path = own_files(form.variant, tmp_path)
    manifest, _ = add_files(path, AddOptions(form.name, data_dir=tmp_path / "data", first=ROWS))
    return Manifest.load(manifest.root), next(SOURCE.batches())["x"]


def own_files(variant, folder):
    """Return a folder of the user's with the files of an artifact of all samples."""
    whole = iobench.prepare(SOURCE, [variant], data_dir=folder / "whole", name="all")[0]
    (folder / "own").mkdir()
    for file in whole.path_of(variant).iterdir():
        if file.name != "seal.json":
            file.rename(folder / "own" / file.name)
    return folder / "own"


def test_only_the_first_rows_are_there(added):
    manifest, expected = added
    (variant,) = manifest.added
    assert manifest.schema.samples == FIRST
    assert manifest.source["first"] == FIRST
    (name,) = (field.name for field in manifest.schema.fields)
    with manifest.opener(variant)() as reader:
        assert len(reader) == FIRST
        rows = np.array([FIRST - 1, 0, 170])
        np.testing.assert_array_equal(reader.batch(rows)[name], expected[rows])
        np.testing.assert_array_equal(reader.batch(slice(0, 500))[name], expected[:FIRST])
        np.testing.assert_array_equal(reader.sample(FIRST - 1)[name], expected[FIRST - 1])
        for read in (reader.sample, lambda row: reader.batch(np.array([row]))):
            with pytest.raises(IndexError):
                read(FIRST)


def test_every_loader_delivers_them_and_verification_passes(added):
    manifest, _ = added
    options = RunOptions(loader=("stream", "native", "dataloader"), rounds="1", limits=False)
    made = run(manifest, options)
    assert not made.failures
    assert {one.case["loader"] for one in made.valid_records} == {"stream", "native", "dataloader"}
    assert {one.cache.residency for one in made.valid_records} == {None}, "the rest is not read"


def test_loaders_that_would_read_all_of_the_files_do_not_take_part(tmp_path):
    path = own_files("webdataset", tmp_path)
    for first, names in ((None, {"webdataset", "native"}), (ROWS, {"native"})):
        manifest, _ = add_files(path, AddOptions(data_dir=tmp_path / f"data{len(names)}", first=first))
        options = RunOptions(loader=("webdataset", "native"), order=("sequential",))
        assert {case.loader.name for case in cases_of(manifest, options, ["cpu"])} == names


def test_they_can_be_the_source_of_other_formats(added, tmp_path):
    manifest, expected = added
    made, _ = iobench.prepare(AddedSource(manifest), ["memmap"], data_dir=tmp_path / "data", name="copy")
    with made.opener("memmap")() as reader:
        (array,) = reader.batch(slice(0, FIRST)).values()
    np.testing.assert_array_equal(array, expected[:FIRST])


def test_a_large_file_is_compared_with_where_it_lies(tmp_path, monkeypatch):
    with h5py.File(tmp_path / "own.h5", "w") as file:
        file.create_dataset("x", data=X, chunks=(50, 8), compression="gzip")
    monkeypatch.setattr(measured_data, "sample_count", lambda *given: FIRST)
    source, wanted = open_source(tmp_path / "own.h5"), Requirements(batch_size=8, formats=("npy",))
    data = measured_data.from_source(source, (), wanted, tmp_path / "data", lambda text: None)
    assert data.own_format == "hdf5"
    assert data.manifest.schema.samples == FIRST
    assert data.manifest.path_of("hdf5") == tmp_path / "own.h5"
    assert data.full_stored_bytes("hdf5") == data.manifest.artifacts["hdf5"].stored_bytes


class InBlocks(formats.Reader):
    """Rows in blocks of 50, each of which is decoded as a whole."""

    def blocks(self):
        first = np.arange(0, 500, 50)
        number = np.arange(len(first))
        return [formats.Blocks(("x",), (), first, number * 0, number, number, self.decode)]

    def decode(self, number, stored, out):
        out["x"][...] = X[50 * number : 50 * number + 50]  # ValueError for another number of rows

    def close(self):
        pass

    def _read_rows(self, rows, out):
        out["x"][...] = X[rows]


@pytest.mark.parametrize(("samples", "blocks"), [(1, 1), (199, 4), (200, 4), (FIRST, 5), (500, 10)])
def test_no_block_without_one_of_the_first_rows_is_there_and_only_these_are_taken(samples, blocks):
    schema = Schema(500, (Field("x", (8,), "float64"),))
    (table,) = FirstRows(InBlocks(schema), replace(schema, samples=samples)).blocks()
    assert table.first.tolist() == list(range(0, 50 * blocks, 50))
    for number, first in enumerate(table.first.tolist()):
        last = min(first + 50, samples)
        out = {"x": np.zeros((last - first, 8))}
        table.decode(number, memoryview(b""), out)
        np.testing.assert_array_equal(out["x"], X[first:last])


@pytest.fixture
def own(tmp_path):
    """A dataset of the first rows of a file of the user's."""
    np.save(tmp_path / "own.npy", X)
    return add_files(tmp_path / "own.npy", AddOptions(data_dir=tmp_path / "data", first=ROWS))[0]


@pytest.mark.parametrize("samples", [0, FIRST - 1, FIRST])
def test_files_hold_more_samples_than_the_dataset(own, samples):
    path = own.root / "manifest.json"
    body = json.loads(path.read_text())
    assert body["artifacts"]["npy"]["added"]["samples"] == len(X)
    body["artifacts"]["npy"]["added"]["samples"] = samples
    path.write_text(json.dumps(body))
    with refused_as("damaged-manifest", ManifestError):
        Manifest.load(own.root)


def test_files_that_changed_are_sampled_again_not_added(own, tmp_path):
    np.save(tmp_path / "own.npy", X + 1)
    with refused_as("changed", hint=has("iobench recommend")):
        own.opener("npy")
