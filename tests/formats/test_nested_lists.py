"""Lists of lists that other programs wrote: fields in which several axes vary, if samples are rectangular."""

import re

import numpy as np
import pytest
from kinds import refused_as
from ragged_cases import samples
from record_cases import delivered

import iobench
from iobench import formats
from iobench.dataset.add import add

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

SIZES = [(4, 6), (0, 0), (6, 4), (1, 7), (4, 6), (3, 2)]
RNG = np.random.default_rng(0)
IMAGES = [RNG.integers(0, 256, (*size, 3), np.uint8) for size in SIZES]
BYTES = pa.uint8()
LISTS = {
    "lists": pa.list_(pa.list_(pa.list_(BYTES))),
    "fixed pixels": pa.list_(pa.list_(pa.list_(BYTES, 3))),
    "large": pa.large_list(pa.large_list(pa.list_(BYTES, 3))),
}
HOLDERS = ["parquet", "arrow"]


def written(path, format, kind_of_lists, images=IMAGES, rows=2):
    """Write a table in batches of so many rows."""
    columns = pa.schema({"image": kind_of_lists, "label": pa.int64()})
    table = pa.table({"image": [one.tolist() for one in images], "label": [*range(len(images))]}, columns)
    file = path / f"a.{format}"
    if format == "parquet":
        pq.write_table(table, file, row_group_size=rows)
        return file
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, columns) as writer:
        writer.write_table(table, max_chunksize=rows)
    return file


@pytest.mark.parametrize("format", HOLDERS)
@pytest.mark.parametrize("name", LISTS)
def test_rectangular_samples_are_one_field_with_their_extents(tmp_path, format, name):
    path, fmt = written(tmp_path, format, LISTS[name]), formats.get(format)
    schema = fmt.infer_schema(path)
    assert schema.describe().split(", ") == ["image uint8 *x*x3", "label int64"]
    assert schema.totals == {"image": sum(height * width for height, width in SIZES)}
    with fmt.open(path, schema) as reader:
        for some in (slice(0, 6), slice(1, 4), np.array([5, 0, 1, 5])):
            rows = np.arange(6)[some].tolist()
            for batch in (reader.batch(some), reader.native(some)):
                assert list(batch) == ["image", "image_extents", "label"]
                assert samples(batch["image"]) == [IMAGES[row].tobytes() for row in rows]
                assert batch["image_extents"].tolist() == [[*SIZES[row]] for row in rows]
                assert batch["image_extents"].dtype == np.int32
        assert reader.sample(3)["image_extents"].tolist() == [*SIZES[3]]


@pytest.mark.parametrize("format", HOLDERS)
def test_every_loader_delivers_them(tmp_path, format):
    path = written(tmp_path, format, LISTS["lists"])
    manifest, _ = add(path, format, data_dir=tmp_path / "data")
    loaders, chosen = ("native", "stream", "dataloader"), {"batch_size": (4,), "collate": ("jagged", "pad")}
    records = delivered(manifest, (format,), loaders, tmp_path / "records.jsonl", isolate=False, **chosen)
    assert len(records) == 2 * len(loaders)
    assert iobench.verify(manifest) == {format: None}


@pytest.mark.parametrize("format", HOLDERS)
@pytest.mark.parametrize("rows", [2, 6])
def test_a_sample_that_is_not_rectangular_is_named(tmp_path, format, rows):
    class Uneven:
        def tolist(self):
            return [[[1, 2, 3]] * 2, [[1, 2, 3]] * 5]

    path = written(tmp_path, format, LISTS["lists"], [*IMAGES[:3], Uneven(), *IMAGES[4:]], rows)
    with refused_as("unequal-shapes", match=r"\b3\b") as error:
        formats.get(format).infer_schema(path)
    assert re.findall(r"\d+", error.value.found) == ["2", "5"]
