"""Members of structured .npy arrays are fields, each a stride apart."""

import numpy as np
import pytest

from iobench import formats
from iobench.dataset.sources import open_source
from iobench.testing.placements import assert_placements

KINDS = [("a", "f4"), ("b", "i8"), ("c", "f4", 3)]
TABLE = np.zeros(20, KINDS)
TABLE["a"], TABLE["b"] = np.arange(20), -np.arange(20)
TABLE["c"] = np.arange(60).reshape(20, 3)


@pytest.mark.parametrize("folder", [False, True])
def test_members_of_a_structured_array_are_fields(tmp_path, folder):
    path, prefix = (tmp_path / "d", "t_") if folder else (tmp_path / "t.npy", "")
    if folder:
        path.mkdir()
        np.save(path / "y.npy", np.arange(20))
    np.save(path / "t.npy" if folder else path, TABLE)
    npy, expected = formats.get("npy"), {f"{prefix}{member}": TABLE[member] for member in "abc"}
    if folder:
        expected["y"] = np.arange(20)
    schema = npy.infer_schema(path)
    assert {field.name for field in schema.fields} == set(expected)
    with npy.open(path, schema) as reader:
        for rows in (slice(2, 9), np.array([5, 0, 5])):
            for name, array in reader.batch(rows).items():
                np.testing.assert_array_equal(array, expected[name][rows])
        assert set(reader.placement()) == set(expected)
        assert_placements(reader, expected)


def test_sources_have_the_members_as_fields(tmp_path):
    np.save(tmp_path / "a.npy", TABLE)
    np.savez(tmp_path / "b.npz", t=TABLE, y=np.arange(20))
    for file, prefix in (("a.npy", ""), ("b.npz", "t_")):
        (batch,) = open_source(tmp_path / file).batches()
        for member in "abc":
            np.testing.assert_array_equal(batch[prefix + member], TABLE[member])
