"""Fields in which several axes vary: schema, every format that holds ragged ones, checks, generated data."""

import contextlib
import json

import numpy as np
import pytest
from kinds import refused_as
from ragged_cases import BatchSource, PictureSource, pictures_of

import iobench
from iobench import StreamLoader
from iobench.base.errors import ManifestError, SourceError
from iobench.dataset.sources import GeneratedLengths
from iobench.dataset.verify import verify
from iobench.formats import Field, Schema, with_extents

IMAGE = Field("image", (-1, -1, 3), "uint8")
EXTENTS = [(4, 6), (0, 5), (6, 4), (3, 0), (1, 1), (30, 7), (0, 0), (2, 2)]


def test_a_schema_shows_the_field_as_one():
    schema = Schema(2, with_extents((IMAGE, Field("image_size", (), "int64"))), totals={"image": 9})
    assert schema.describe().split(", ") == ["image uint8 *x*x3", "image_size int64"]
    assert schema.extents == {"image": "image_extents"}
    assert IMAGE.typed == "image=uint8[*,*,3]"
    assert (IMAGE.varying, IMAGE.inner, IMAGE.extents) == (2, (3,), Field("image_extents", (2,), "int32"))
    assert Field("tokens", (-1, 2), "uint16").extents is None


@pytest.mark.parametrize("shape", [(3, -1), (-1, 3, -1), (3, -1, -1)])
def test_only_the_first_axes_may_vary(shape):
    with pytest.raises(ValueError, match=r"\*"):
        Field("image", shape, "uint8")


def test_a_field_of_the_user_s_with_that_name_is_refused():
    with pytest.raises(ValueError, match="image_extents"):
        with_extents((IMAGE, Field("image_extents", (2,), "int32")))
    with refused_as("invalid-fields", SourceError, match="image_extents"):
        GeneratedLengths((IMAGE, Field("image_extents", (), "int64")), "uniform:1,9", 1000)


@pytest.mark.parametrize("other", [None, {"dtype": "int64"}, {"shape": [3]}, {"name": "image_sizes"}])
def test_a_manifest_without_the_extents_is_refused(tmp_path, other):
    manifest, _ = iobench.prepare(PictureSource(EXTENTS), ["npy"], data_dir=tmp_path)
    file = manifest.root / "manifest.json"
    body = json.loads(file.read_text())
    (own,) = (field for field in body["fields"] if field["name"] == "image_extents")
    body["fields"].remove(own)
    if other is not None:
        body["fields"].append(own | other)
    file.write_text(json.dumps(body))
    with pytest.raises(ManifestError, match=r"image_extents=int32\[2\]"):
        iobench.Manifest.load(manifest.root)


def test_a_source_without_the_extents_is_refused(tmp_path):
    schema, batch = pictures_of(EXTENTS)
    fields = tuple(field for field in schema.fields if field.name != "image_extents")
    source = BatchSource(Schema(len(EXTENTS), fields, totals=schema.totals), batch)
    with refused_as("not-storable", SourceError, match="image_extents"):
        iobench.prepare(source, ["npy"], data_dir=tmp_path)


@pytest.mark.parametrize(
    ("row", "changed", "wrong"), [(5, (29, 7), "wrong-extents"), (5, (7, 30), "other-content")]
)
def test_other_extents_in_a_file_are_seen_by_verify(tmp_path, row, changed, wrong):
    manifest, _ = iobench.prepare(PictureSource(EXTENTS), ["npy"], data_dir=tmp_path)
    (file,) = manifest.root.glob("npy-*/image_extents.npy")
    extents = np.load(file)
    extents[row] = changed
    np.save(file, extents)
    error = verify(manifest)["npy"]
    assert error.kind == wrong
    if wrong == "wrong-extents":
        assert "sample 5" in error.problem
        assert (error.expected, error.found) == ("a product of 210", "29 x 7")


@pytest.mark.parametrize("lie", [(-4, -6), (1 << 16, 1 << 16), (4, 7)])
def test_extents_of_another_length_are_refused_by_sample(tmp_path, lie):
    schema, batch = pictures_of(EXTENTS)
    batch["image_extents"][0] = lie
    with refused_as("wrong-extents", match="image"):
        iobench.prepare(BatchSource(schema, batch), ["npy"], data_dir=tmp_path)


def test_a_stream_of_the_field_has_its_extents(tmp_path):
    manifest, _ = iobench.prepare(PictureSource(EXTENTS), ["npy"], data_dir=tmp_path)
    loader = StreamLoader(manifest.root, format="npy", batch_size=8, fields=["image"], device="cpu")
    with contextlib.closing(loader):
        (batch,) = loader
        assert list(batch) == ["image", "image_extents"]
        whole = batch["image"].padded(9, extents=batch["image_extents"])
        assert whole.shape == (8, 30, 7, 3)
        assert (whole[0, :4, :6] != 9).any()
        assert (whole[0, 4:] == 9).all()
        assert (whole[0, :, 6:] == 9).all()


def test_generated_sizes_of_each_axis_are_seeded_and_fill_the_size(tmp_path):
    for text in ("lognormal:20,0.5", "uniform:0,30"):
        one, same, other = (GeneratedLengths([IMAGE], text, 300_000, seed) for seed in (1, 1, 2))
        assert one.schema == same.schema != other.schema
        assert 99_900 < one.schema.totals["image"] <= 100_100
        extents = np.concatenate([batch["image_extents"] for batch in one.batches()])
        assert (extents[:, 0] != extents[:, 1]).mean() > 0.8
        assert extents.prod(1).sum() == one.schema.totals["image"]
    file = tmp_path / "sizes.npy"
    np.save(file, np.array([(3, 4), (0, 9), (5, 1)]))
    (batch,) = GeneratedLengths([IMAGE], f"file:{file}", 0).batches()
    assert batch["image"].offsets.tolist() == [0, 12, 12, 17]
    assert batch["image_extents"].tolist() == [[3, 4], [0, 9], [5, 1]]
    for wrong in ([3, 4], [(3, 4, 5)], [(3, -4)], [(0, 9)], [(1 << 40, 0), (1, 1)]):
        np.save(file, np.array(wrong))
        with refused_as("invalid-lengths", SourceError):
            GeneratedLengths([IMAGE], f"file:{file}", 0)
