"""Fields that every format can hold, and bools as the bytes 0 and 1."""

import numpy as np
import pytest
from conftest import installed_formats
from format_cases import CHOSEN

from iobench import formats
from iobench.formats import Field, Ragged, Schema, field_names
from iobench.formats.schema import plain_bools


@pytest.mark.parametrize(
    "name", ["", "1st", "a b", "a/b", "..", "_type", "e\u0301", "class", "shape", "я" * 101]
)
def test_a_field_name_that_some_format_cannot_hold_is_refused(name):
    with pytest.raises(ValueError, match="field name"):
        Field(name, (), "uint8")


ODD = [
    *("данные", "数据", "é", "e\u0301", "📷", "🎥"),
    *("a b", "a/b", "a_b", "..", "\0", "", "\ud800", "class", "f_"),
]


def test_every_name_from_outside_is_a_field_of_its_own_in_any_order():
    names = field_names(ODD)
    assert list(names.values()) == ODD
    assert all(Field(name, (), "uint8").name == name for name in names)
    assert {name for name in ODD if names.get(name) == name} == {"данные", "数据", "é", "a_b", "f_"}
    assert list(field_names(names)) == list(names)
    assert field_names(ODD[::-1]) == names


@pytest.mark.parametrize(
    ("shape", "dtype"), [((0,), "uint8"), ((2, -1), "uint8"), ((), "object"), ((), "<U4")]
)
def test_a_field_without_elements_or_of_another_dtype_is_refused(shape, dtype):
    with pytest.raises(ValueError, match="field x"):
        Field("x", shape, dtype)


def test_bools_of_other_bytes_become_0_and_1():
    odd = np.array([[0, 1, 2], [255, 0, 128]], np.uint8).view(bool)
    batch = {"mask": odd, "ragged": Ragged(odd[0], np.array([0, 0, 3])), "x": np.arange(2)}
    plain = plain_bools(batch)
    assert plain["ragged"].values.tobytes() == bytes([0, 1, 1])
    assert plain["mask"].tobytes() == bytes([0, 1, 1, 1, 0, 1])
    assert np.array_equal(plain["mask"], odd)
    assert plain["x"] is batch["x"]
    assert odd.tobytes() == bytes([0, 1, 2, 255, 0, 128])


def test_plain_bools_and_batches_without_bools_are_returned_unchanged():
    for batch in (
        {"mask": np.array([True, False])},
        {"x": np.array([2], np.uint8)},
        {"mask": np.zeros((0, 3), bool)},
        {"mask": Ragged(np.array([True, False]), np.array([0, 0, 2]))},
    ):
        assert plain_bools(batch) is batch


@pytest.mark.parametrize("name", [name for name in installed_formats() if CHOSEN.get(name) != ()])
def test_every_format_of_any_samples_returns_plain_bools(name, tmp_path):
    odd = {"mask": np.array([[0, 7], [1, 0], [200, 2]], np.uint8).view(bool)}
    schema = Schema(3, (Field("mask", (2,), "bool"),))
    fmt = formats.get(name)
    fmt.write(tmp_path / "a", schema, [plain_bools(odd)])
    with fmt.open(tmp_path / "a", schema) as reader:
        assert reader.batch(slice(None))["mask"].tobytes() == bytes([0, 1, 1, 0, 1, 1])
