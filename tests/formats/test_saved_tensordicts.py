"""Format memmap reads what TensorDict saved: nested, stacked, jagged, consolidated, or a raw file."""

import json
from contextlib import closing

import numpy as np
import pytest
import tensordict
import torch
from kinds import has, refused_as
from tensordict import LazyStackedTensorDict, MemoryMappedTensor, NonTensorStack, TensorDict, tensorclass

from iobench import StreamLoader, StreamOptions, add, formats
from iobench.base.errors import CorruptArtifact
from iobench.dataset.sources import open_source
from iobench.formats import VARIES, Field, Ragged

MEMMAP = formats.get("memmap")
N = 20
X, IMG, ACTION = torch.rand(N, 3), torch.randint(255, (N, 4, 4), dtype=torch.uint8), torch.rand(N, 2)
PARTS = [torch.rand(length, 3) for length in (3, 1, 4, 2)]


@tensorclass
class Inner:
    img: torch.Tensor


@tensorclass
class Outer:
    obs: Inner
    name: str


def nested(tensors=None):
    """Nested TensorDicts, with a key that is no name of a file."""
    return TensorDict({"obs": {"img": IMG, "a vec/": X}, "action": ACTION, **(tensors or {})}, [N])


def tensorclasses():
    return Outer(obs=Inner(img=IMG, batch_size=[N]), name="text", batch_size=[N])


def stack(parts=PARTS):
    return LazyStackedTensorDict(*[TensorDict({"x": part, "y": part[0]}, []) for part in parts])


def strided():
    return TensorDict({"x": torch.nested.nested_tensor(PARTS)}, [len(PARTS)])


def jagged():
    return TensorDict({"x": torch.nested.nested_tensor(PARTS, layout=torch.jagged)}, [len(PARTS)])


def folder(made, path):
    made.memmap(path / "t")
    return path / "t"


def file(made, path):
    made.consolidate(path / "t.pt")
    return path / "t.pt"


def read(path, form=MEMMAP):
    """Return schema and content, which reading in any way yields."""
    schema = form.infer_schema(path)
    with form.open(path, schema) as reader:
        whole = reader.batch(slice(None))
        some = reader.batch([2, 0, 2])
        for name, array in whole.items():
            for own, part in zip((2, 0, 2), values_of(some[name]), strict=True):
                np.testing.assert_array_equal(part, values_of(array)[own])
                np.testing.assert_array_equal(reader.sample(own)[name], part)
        native = reader.native(np.array([1, 0]))
        assert {*reader.placement()} == {*whole}
        for name, array in whole.items():
            got = native[name] if isinstance(native, dict) else native.get(name)
            for own, part in zip((1, 0), values_of(got), strict=True):
                np.testing.assert_array_equal(part, values_of(array)[own])
    return schema, whole


def values_of(array):
    if isinstance(array, Ragged):
        return [array.values[a:b] for a, b in zip(array.offsets, array.offsets[1:], strict=False)]
    return np.asarray(array)


@pytest.mark.parametrize("save", [folder, file])
def test_nested_tensordicts(save, tmp_path):
    schema, whole = read(save(nested(), tmp_path))
    assert schema.renamed == {"obs_img": "obs/img", "obs_a_vec": "obs/a vec/"}
    np.testing.assert_array_equal(whole["obs_img"], IMG)
    np.testing.assert_array_equal(whole["obs_a_vec"], X)
    np.testing.assert_array_equal(whole["action"], ACTION)


@pytest.mark.parametrize("save", [folder, file])
def test_batches_of_nested_tensordicts_are_nested_where_that_is_asked_for(save, tmp_path):
    path, made = save(nested(), tmp_path), nested()
    manifest, row = add(path, data_dir=tmp_path / "data")
    options = {"format": row.variant, "batch_size": 8}
    with closing(StreamLoader(manifest.root, options=StreamOptions(nested=True), **options)) as loader:
        batches = list(loader)
    assert [batch.batch_size[0] for batch in batches] == [8, 8, 4]
    whole = torch.cat(batches)
    assert {*whole.keys()} == {"obs", "action"}
    assert (whole["obs", "img"] == made["obs", "img"]).all()
    assert (whole["action"] == made["action"]).all()
    with closing(StreamLoader(manifest.root, **options)) as loader:
        assert {*next(iter(loader))} == {"obs_img", "obs_a_vec", "action"}


OLDER = pytest.mark.skipif(tensordict.__version__ < "0.15", reason="it cannot consolidate what has no tensor")


@pytest.mark.parametrize("save", [folder, pytest.param(file, marks=OLDER)])
def test_what_has_no_tensor_is_left_out_with_one_line(save, tmp_path):
    path = save(tensorclasses(), tmp_path)
    schema, whole = read(path)
    np.testing.assert_array_equal(whole["obs_img"], IMG)
    (note,) = MEMMAP.notes(path, schema)
    assert note.kind == "not-read"
    assert "name (NonTensorData)" in note.message


def test_a_stack_of_texts_and_values_that_are_a_pickle_are_left_out(tmp_path):
    texts = NonTensorStack(*[str(row) for row in range(N)])
    path = folder(nested({"text": texts, "any": object}), tmp_path)
    schema, whole = read(path)
    assert {*whole} == {"obs_img", "obs_a_vec", "action"}
    assert MEMMAP.notes(path, schema)[0].values == {"keys": 2}


@pytest.mark.parametrize("save", [folder, file])
@pytest.mark.parametrize("alike", [False, True])
def test_a_lazy_stack_has_a_sample_per_part(save, alike, tmp_path):
    parts = [part[:1] for part in PARTS] if alike else PARTS
    schema, whole = read(save(stack(parts), tmp_path))
    assert schema.fields == (Field("x", (1 if alike else VARIES, 3), "float32"), Field("y", (3,), "float32"))
    for part, own in zip(values_of(whole["x"]), parts, strict=True):
        np.testing.assert_array_equal(part, own)
    np.testing.assert_array_equal(whole["y"], [part[0].numpy() for part in parts])


@pytest.mark.parametrize(("made", "save"), [(strided, folder), (jagged, file)])
def test_nested_tensors_are_ragged(made, save, tmp_path):
    schema, whole = read(save(made(), tmp_path))
    assert schema.totals == {"x": 10}
    for part, own in zip(values_of(whole["x"]), PARTS, strict=True):
        np.testing.assert_array_equal(part, own)


def test_a_batch_size_of_several_axes_has_two_readings(tmp_path):
    path = folder(TensorDict({"x": torch.rand(4, 5, 2)}, [4, 5]), tmp_path)
    schema, whole = read(path)
    (note,) = MEMMAP.notes(path, schema)
    assert schema.samples == 4
    variant = note.hint.split()[-1]
    other, flat = read(path, formats.parse(variant))
    assert other.samples == 20
    np.testing.assert_array_equal(flat["x"].reshape(4, 5, 2), whole["x"])
    assert not formats.parse(variant).notes(path, other)


def test_a_raw_file_takes_the_field_that_is_given(tmp_path):
    path = tmp_path / "x.memmap"
    MemoryMappedTensor.from_tensor(X, filename=path)
    with refused_as("unknown-shape", hint=has("--field")):
        MEMMAP.infer_schema(path)
    schema = MEMMAP.infer_schema(path, [Field("x", (3,), "float32")])
    with MEMMAP.open(path, schema) as reader:
        np.testing.assert_array_equal(reader.batch(slice(None))["x"], X)


def test_what_cannot_be_read_names_its_key_and_how_to_continue_without_it(tmp_path):
    stacks = LazyStackedTensorDict(*[TensorDict({"z": X}, [N]) for _ in range(2)], stack_dim=1)
    path = folder(TensorDict({"x": X, "inner": stacks}, [N]), tmp_path)
    with refused_as("unequal-shapes", hint=has("::x")) as error:
        MEMMAP.infer_schema(path)
    assert "inner/z" in str(error.value)
    assert [field.name for field in MEMMAP.infer_schema(f"{path}::x").fields] == ["x"]


def test_samples_without_a_key_that_others_have_are_an_error(tmp_path):
    parts = [TensorDict({"x": X[0], **({"y": X[0]} if row else {})}, []) for row in range(3)]
    with refused_as("unequal-shapes", found="1 samples without it"):
        MEMMAP.infer_schema(folder(LazyStackedTensorDict(*parts), tmp_path))


@pytest.mark.parametrize("save", [folder, file])
def test_files_that_were_cut_off_are_refused(save, tmp_path):
    path = save(nested(), tmp_path)
    target = path / "action.memmap" if save is folder else path
    target.write_bytes(target.read_bytes()[:-9])
    with pytest.raises(CorruptArtifact):
        MEMMAP.infer_schema(path)


def test_no_name_of_a_key_leads_out_of_the_folder(tmp_path):
    path = folder(nested(), tmp_path)
    folder(nested(), tmp_path / "other")
    meta = json.loads((path / "meta.json").read_text())
    (path / "meta.json").write_text(json.dumps({**meta, "../other/t": {"type": "TensorDict"}}))
    with pytest.raises(CorruptArtifact):
        MEMMAP.infer_schema(path)


@pytest.mark.parametrize(("made", "save"), [(stack, folder), (nested, file)])
def test_add_and_prepare_read_the_same(made, save, tmp_path):
    path = save(made(), tmp_path)
    manifest, _ = add(path, name="d", data_dir=tmp_path / "data")
    source = open_source(path)
    assert source.schema == manifest.schema
    (batch,) = source.batches()
    _, whole = read(path)
    for name, array in whole.items():
        for part, own in zip(values_of(batch[name]), values_of(array), strict=True):
            np.testing.assert_array_equal(part, own)
