"""safetensors: its own library and iobench read the same files."""

import json
import re
import struct

import numpy as np
import pytest
import torch
from kinds import refused_as

from iobench import formats
from iobench.formats import Field, Schema
from iobench.testing.cases import INDICES, SCHEMA, assert_rows, assert_same, random_batch, store

safetensors = pytest.importorskip("safetensors")
SAFETENSORS = formats.get("safetensors")


def test_its_own_library_reads_what_was_written(tmp_path):
    from safetensors.numpy import load_file

    artifact = store(SAFETENSORS, tmp_path / "a", SCHEMA)
    loaded = load_file(artifact.path / "data.safetensors")
    assert loaded.keys() == artifact.source.keys()
    assert_rows(loaded, artifact.source, slice(None))


def test_what_its_own_library_wrote_is_read_in_place(tmp_path):
    from safetensors.torch import save_file

    source, file = random_batch(SCHEMA), tmp_path / "theirs.safetensors"
    save_file({f"train/{name}": torch.from_numpy(a.copy()) for name, a in source.items()}, file, {"of": "x"})
    assert SAFETENSORS.sniff(file)
    schema = SAFETENSORS.infer_schema(file)
    assert {field.name for field in schema.fields} == {f"train_{name}" for name in source}
    with SAFETENSORS.open(file, schema) as reader:
        assert_rows(reader.batch(INDICES), {f"train_{n}": a for n, a in source.items()}, INDICES)
        for name, placement in reader.placement().items():
            _, offset = placement.locate(np.array([7]))
            width = schema.field(name).sample_bytes
            stored = file.read_bytes()[int(offset[0]) : int(offset[0]) + width]
            assert stored == source[name.removeprefix("train_")][7].tobytes()


def test_some_of_the_tensors_can_be_selected(tmp_path):
    from safetensors.numpy import save_file

    file = tmp_path / "theirs.safetensors"
    save_file({"x": np.arange(12.0).reshape(4, 3), "step": np.array([7])}, file)
    with refused_as("unequal-lengths", path=file) as error:
        SAFETENSORS.infer_schema(file)
    assert re.findall(r"(\w+) has (\d+)", error.value.found) == [("step", "1"), ("x", "4")]
    schema = SAFETENSORS.infer_schema(file, [Field("x", (3,), "float64")])
    with SAFETENSORS.open(file, schema) as reader:
        assert_same(reader.batch(slice(None))["x"], np.arange(12.0).reshape(4, 3))


def write_header(file, described, data=b""):
    text = described if isinstance(described, bytes) else json.dumps(described).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.mark.parametrize(
    "described",
    [
        b"[1]",
        b"\xff",
        b'{"x": 1}',
        {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 9]}},
        {"x": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}},
        {"x": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}},
        *({"x": {"dtype": "F32", "shape": one, "data_offsets": [0, 8]}} for one in ([4], [0], [1, 10**10])),
        {"x": {"dtype": "F32", "shape": ["2"], "data_offsets": [0, 8]}},
        {"x": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}},
        {"x": {"dtype": [], "shape": [2], "data_offsets": [0, 8]}},
        {"x": {"shape": [2], "data_offsets": [0, 8]}},
        b"[" * 100_000,
    ],
    ids=range(14),
)
def test_an_inconsistent_header_is_corrupt(tmp_path, described):
    file, schema = tmp_path / "a.safetensors", Schema(2, (Field("x", (), "float32"),))
    write_header(file, described, bytes(8))
    for read in (SAFETENSORS.infer_schema, lambda path: SAFETENSORS.open(path, schema)):
        with refused_as("corrupt-artifact", path=file):
            read(file)


def test_a_dtype_that_iobench_does_not_hold_is_named(tmp_path):
    file = tmp_path / "a.safetensors"
    write_header(file, {"x": {"dtype": "F8_E4M3", "shape": [8], "data_offsets": [0, 8]}}, bytes(8))
    with refused_as("unsupported-dtype", found="F8_E4M3", path=file):
        SAFETENSORS.infer_schema(file)
