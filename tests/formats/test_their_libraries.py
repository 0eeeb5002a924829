"""Data written by other libraries' usual code: added in place, and measured."""

import pickle

import lmdb
import numpy as np
import pytest
from kinds import refused_as
from own_library import run

import iobench
from iobench.base.errors import SourceError
from iobench.dataset.add import AddedSource, add
from iobench.formats import Field

SAMPLES = 40
IMAGE, LABEL = (16, 12, 3), "int64"
OURS = ("dataloader", "native", "stream")

PICTURES = """
import sys, io, numpy as np
from PIL import Image
rng = np.random.default_rng(0)
pictures = [Image.fromarray(rng.integers(0, 256, (16, 12, 3), dtype=np.uint8)) for _ in range(40)]
"""

SHARDS = (
    PICTURES
    + """
import webdataset as wds
with wds.ShardWriter(sys.argv[1] + "/train-%06d.tar", maxcount=15, verbose=0) as sink:
    for index, picture in enumerate(pictures):
        sink.write({"__key__": f"sample{index:06d}", "jpg": picture, "cls": index % 10,
                    "json": {"caption": "a picture" * index}})
"""
)

MOSAIC = (
    PICTURES
    + """
from streaming import MDSWriter
columns = {"image": "jpeg", "class": "int"}
with MDSWriter(out=sys.argv[1], columns=columns, hashes=["sha1"], size_limit=1 << 14) as out:
    for index, picture in enumerate(pictures):
        out.write({"image": picture, "class": index % 10})
"""
)


def measured(manifest, loaders=OURS):
    """Run the loaders and return the number of verified and timed cases; failures are errors."""
    options = iobench.RunOptions(
        loader=loaders,
        order=("sequential", "random"),
        batch_size=(8,),
        rounds="1",
        limits=False,
        isolate=False,
    )
    result = iobench.run(manifest, options)
    assert not result.failures
    return len(result.records)


def test_tar_shards_of_jpegs_with_labels(tmp_path):
    pytest.importorskip("PIL")
    (tmp_path / "train").mkdir()
    run("webdataset", SHARDS, tmp_path / "train")
    with refused_as("fields-needed", SourceError, match=r"\.json"):
        add(tmp_path / "train", name="d", data_dir=tmp_path / "data")
    fields = (Field("jpg", IMAGE, "uint8"), Field("cls", (), LABEL))
    manifest, _ = add(tmp_path / "train", name="d", fields=fields, data_dir=tmp_path / "data")
    assert manifest.artifacts.keys() == {"webdataset"}
    assert measured(manifest, (*OURS, "webdataset")) == 8
    also, _ = iobench.prepare(AddedSource(manifest), ["npy"], data_dir=tmp_path / "data", name="d")
    assert np.load(also.path_of("npy") / "jpg.npy", mmap_mode="r").shape == (SAMPLES, *IMAGE)


def test_an_mds_of_jpegs_with_labels(tmp_path):
    pytest.importorskip("PIL")
    run("streaming", MOSAIC, tmp_path / "train")
    manifest, _ = add(tmp_path / "train", name="d", data_dir=tmp_path / "data")
    assert set(manifest.schema.fields) == {Field("image", IMAGE, "uint8"), Field("f_class", (), LABEL)}
    assert measured(manifest) == 6


@pytest.mark.parametrize("loader", ["lance", "huggingface", "huggingface:via=arrow,fetch=batch"])
def test_columns_whose_names_are_not_field_names(tmp_path, loader):
    """A loader of added data maps iobench's field names to the columns' own names."""
    pa, name = pytest.importorskip("pyarrow"), loader.partition(":")[0]
    pytest.importorskip({"huggingface": "datasets"}.get(name, name))
    names = ("the label", "the_label", "class", "данные")
    table = pa.table({name: np.arange(SAMPLES) * (number + 0.5) for number, name in enumerate(names)})
    if name == "lance":
        import lance

        lance.write_dataset(table, tmp_path / "train")
    else:
        with (
            pa.OSFile(str(tmp_path / "train.arrow"), "wb") as file,
            pa.ipc.new_file(file, table.schema) as out,
        ):
            out.write_table(table)
    (path,) = tmp_path.iterdir()
    manifest, _ = add(path, name="d", data_dir=tmp_path / "data")
    assert {field.name for field in manifest.schema.fields} == {
        "the_label_2",
        "the_label",
        "f_class",
        "данные",
    }
    options = iobench.RunOptions(
        loader=(loader,), order=("sequential",), batch_size=(8,), rounds="1", limits=False, isolate=False
    )
    result = iobench.run(manifest, options)
    assert (result.failures, len(result.records)) == ({}, 1)


def write_lmdb(path, values):
    """Write an LMDB as in tutorials: keys of digits, a large map size, and the number of samples."""
    with lmdb.open(str(path), map_size=1 << 24) as env, env.begin(write=True) as txn:
        for index, value in enumerate(values):
            txn.put(f"{index:08}".encode("ascii"), value)
        txn.put(b"__len__", str(len(values)).encode())


def test_an_lmdb_of_raw_values(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (SAMPLES, *IMAGE), dtype=np.uint8)
    write_lmdb(tmp_path / "train.lmdb", [image.tobytes() for image in images])
    fields = (Field("image", IMAGE, "uint8"),)
    manifest, _ = add(tmp_path / "train.lmdb", name="d", fields=fields, data_dir=tmp_path / "data")
    assert measured(manifest) == 6


def test_an_lmdb_of_pickles_is_refused_by_name(tmp_path):
    write_lmdb(tmp_path / "train.lmdb", [pickle.dumps((np.zeros(IMAGE, "uint8"), 3))] * SAMPLES)
    with pytest.raises(SourceError, match="pickle"):
        add(tmp_path / "train.lmdb", name="d", data_dir=tmp_path / "data")
