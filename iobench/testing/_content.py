"""Contract tests of content: all schemas and all selections of rows are read back as written."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from iobench.base.errors import UnsupportedSchema
from iobench.formats import DTYPES, Array, Batch, Field, Format, Reader, Schema, field_names
from iobench.testing.cases import (
    INDICES,
    SAMPLES,
    SCHEMA,
    StoredArtifact,
    assert_rows,
    assert_same,
    column,
    flat,
    other_dtype,
    store,
    turned,
    varied_field,
)

# Each format's class runs the same method, which hypothesis reports as a mistake by default.
contract = settings(
    max_examples=min(25, settings().max_examples),  # of which a profile of hypothesis may ask fewer
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.differing_executors],
)


def field_lists(fmt: Format) -> st.SearchStrategy[Any]:
    """Return a strategy for shapes and dtypes of a few fields that a format can hold."""
    shapes = st.lists(st.integers(1, 5), max_size=3)
    return st.lists(st.tuples(shapes, st.sampled_from(supported(fmt))), min_size=1, max_size=4)


def supported(fmt: Format) -> list[str]:
    """Return the dtypes that a format can hold, in the order of DTYPES."""
    return [dtype for dtype in DTYPES if dtype in fmt.dtypes]


def garbage(schema: Schema, count: int) -> Batch:
    """Return a batch of other content, to be overwritten."""
    out = schema.empty(count)
    for array in out.values():
        array.reshape(-1).view(np.uint8)[:] = 0xA5 if array.dtype != bool else 1
    return out


WRONG: dict[str, Callable[[Field], Array]] = {
    "count": lambda field: np.empty((5, *field.shape), field.dtype),
    "shape": lambda field: np.empty((6, *turned(field.shape)), field.dtype),
    "flat": lambda field: np.empty((6, *flat(field.shape)), field.dtype),
    "dtype": lambda field: np.empty((6, *field.shape), other_dtype(field, "int32", "float32")),
    "byte order": lambda field: np.empty((6, *field.shape), ">f4"),
    "fortran": lambda field: np.empty((6, *(field.shape or (2,))), field.dtype, order="F"),
    "strided": lambda field: np.empty((12, *field.shape), field.dtype)[::2],
}

RESERVED = ("data", "schema", "meta", "keys", "names", "batch_size", "dtype", "type")
ODD_NAMES = (
    *("X", "x_2", "x_3", "a_longer_name_of_one_field", "a_longer_name_of_another"),
    *("данные", "数据", "é", "e\u0301", "📷", "a b", "a_b", "a/b", "..", "\0", "", "class", "я" * 90),
)

ODD_SHAPES = {"three": (3,), "one": (), "five": (5,), "seven": (7, 1)}
ODD_SIZES = (
    replace(SCHEMA, samples=1),
    Schema(11, (*(Field(*field, "uint8") for field in ODD_SHAPES.items()), Field("f", (), "float64"))),
    Schema(9, (Field("image", (3, 100, 33), "uint8"),)),  # larger than a page and a chunk
)


class ContentTests:
    """Tests of many schemas, written in batches of any size."""

    @contract
    @given(st.integers(1, 20), st.lists(st.integers(0, 9), max_size=4), st.data())
    def test_any_schema_is_read_back_in_order(
        self, fmt: Format, samples: int, batch_sizes: list[int], data: Any
    ) -> None:
        specs = data.draw(field_lists(fmt))
        fields = tuple(Field(f"f{i}", tuple(shape), dtype) for i, (shape, dtype) in enumerate(specs))
        rows = data.draw(st.lists(st.integers(0, samples - 1), max_size=30))
        with tempfile.TemporaryDirectory() as folder:
            artifact = store(fmt, Path(folder, "a"), Schema(samples, fields), batch_sizes)
            with artifact.open() as reader:
                assert_rows(reader.batch(slice(None)), artifact.source, slice(None))
                assert_rows(reader.batch(np.array(rows, np.int64)), artifact.source, rows)

    def test_every_dtype_as_scalar_and_as_array(self, fmt: Format, tmp_path: Path) -> None:
        dtypes = supported(fmt)
        fields = [Field(f"{dtype}_{len(shape)}", shape, dtype) for dtype in dtypes for shape in ((), (3, 2))]
        artifact = store(fmt, tmp_path / "a", Schema(7, tuple(fields)))
        with artifact.open() as reader:
            assert_rows(reader.batch(slice(None)), artifact.source, slice(None))
            for row in range(7):
                assert_rows(reader.sample(row), artifact.source, row)
            assert_rows(reader.batch(np.array([6, 0, 6])), artifact.source, [6, 0, 6])

    def test_samples_of_odd_numbers_and_sizes(self, fmt: Format, tmp_path: Path) -> None:
        for number, schema in enumerate(ODD_SIZES):
            artifact, last = store(fmt, tmp_path / str(number), schema), schema.samples - 1
            with artifact.open() as reader:
                assert len(reader) == schema.samples
                for rows in (slice(1, -1), [last, 0, last // 2, 0]):
                    assert_rows(reader.batch(rows), artifact.source, rows)
                assert_rows(reader.sample(last), artifact.source, last)

    def test_names_that_libraries_reserve(self, fmt: Format, tmp_path: Path) -> None:
        self._assert_names(fmt, tmp_path, RESERVED)

    def test_names_of_any_script_and_similar_names_for_others(self, fmt: Format, tmp_path: Path) -> None:
        self._assert_names(fmt, tmp_path, field_names(ODD_NAMES))

    @staticmethod
    def _assert_names(fmt: Format, folder: Path, names: Iterable[str]) -> None:
        fields = (*(Field(name, (2,), "int16") for name in names), Field("x", (), "uint8"))
        artifact = store(fmt, folder / "a", Schema(4, fields))
        with artifact.open() as reader:
            assert_rows(reader.batch(slice(None)), artifact.source, slice(None))
            native = reader.native(np.array([3, 0]))
            for name, array in artifact.source.items():
                assert_same(column(native, name), array[[3, 0]])

    def test_an_unsupported_dtype_is_refused_by_name(self, fmt: Format) -> None:
        for dtype in DTYPES:
            schema = Schema(1, (Field("x", (2,), dtype),))
            if dtype in fmt.dtypes:
                fmt.check_schema(schema)
            else:
                with pytest.raises(UnsupportedSchema, match=dtype) as error:
                    fmt.check_schema(schema)
                assert error.value.kind == "unsupported-dtype"


class RowTests:
    """Tests of rows as slices and indices, read into the caller's arrays or new ones."""

    def test_length_and_schema(self, reader: Reader, schema: Schema) -> None:
        assert len(reader) == SAMPLES
        assert reader.schema == schema

    @contract
    @given(st.lists(st.integers(0, SAMPLES - 1), max_size=40))
    @example([])
    @example([22, 0, 7, 7, 3, 22])
    def test_indices_in_any_order_with_duplicates(
        self, artifact: StoredArtifact, reader: Reader, rows: Any
    ) -> None:
        assert_rows(reader.batch(np.array(rows, np.int64)), artifact.source, rows)

    @contract
    @given(st.slices(SAMPLES))
    @example(slice(None))
    @example(slice(5, 5))
    @example(slice(9, 2))
    @example(slice(-4, None))
    @example(slice(20, 1000))
    @example(slice(None, None, 3))
    @example(slice(None, None, -1))
    @example(slice(18, 3, -4))
    def test_slices_as_in_numpy(self, artifact: StoredArtifact, reader: Reader, rows: Any) -> None:
        assert_rows(reader.batch(rows), artifact.source, rows)

    def test_indices_of_any_integer_dtype(self, artifact: StoredArtifact, reader: Reader) -> None:
        for dtype in ("int64", "int32", "uint8", "uint64"):
            assert_rows(reader.batch(INDICES.astype(dtype)), artifact.source, INDICES)

    def test_rows_outside_are_index_errors(self, reader: Reader) -> None:
        for rows in ([-1], [SAMPLES], [0, SAMPLES], [3, -1, 2], [2**62]):
            with pytest.raises(IndexError):
                pytest.fail(f"{rows} gave {reader.batch(np.array(rows))}")

    def test_rows_that_are_not_one_axis_of_integers_are_value_errors(self, reader: Reader) -> None:
        odd: list[Any] = [[1.0], [[1]], [True], np.zeros((0, 2), np.int64), ["1"]]
        for rows in odd:
            with pytest.raises(ValueError):
                pytest.fail(f"{rows} gave {reader.batch(np.array(rows))}")

    def test_out_is_overwritten_and_not_retained(self, artifact: StoredArtifact, reader: Reader) -> None:
        out = garbage(artifact.schema, 6)
        for rows in (slice(4, 10), slice(20, 2, -3), INDICES, slice(4, 10)):
            reader.read(rows, out)
            assert_rows(out, artifact.source, rows)
            out.update(garbage(artifact.schema, 6))
            for array in out.values():
                array[...] = 1
        with artifact.open() as fresh:
            assert_rows(fresh.batch(slice(None)), artifact.source, slice(None))

    def test_out_may_hold_some_of_the_fields(self, artifact: StoredArtifact, reader: Reader) -> None:
        for rows in (slice(4, 10), INDICES):
            fields = list(artifact.source)
            for names in (fields[-1:], fields[2::-2], []):
                out = {name: garbage(artifact.schema, 6)[name] for name in names}
                reader.read(rows, out)
                for name in names:
                    assert_same(out[name], artifact.source[name][rows])

    def test_out_of_the_wrong_kind_is_a_value_error(self, reader: Reader, schema: Schema) -> None:
        field = varied_field(schema)
        for make in WRONG.values():
            for rows in (slice(4, 10), INDICES):
                with pytest.raises(ValueError, match=field.name):
                    reader.read(rows, {field.name: make(field)})

    def test_out_with_an_unknown_field_is_a_key_error(self, reader: Reader) -> None:
        with pytest.raises(KeyError, match="depth"):
            reader.read(slice(0, 1), {"depth": np.empty(1)})

    def test_sample_is_one_row_of_every_field(self, artifact: StoredArtifact, reader: Reader) -> None:
        for row in range(SAMPLES):
            sample = reader.sample(row)
            assert list(sample) == list(artifact.source)
            assert_rows(sample, artifact.source, row)

    def test_announcing_random_order_changes_no_content(self, artifact: StoredArtifact) -> None:
        with artifact.format.open(artifact.path, artifact.schema, random=True) as reader:
            for rows in (slice(4, 10), INDICES):
                assert_rows(reader.batch(rows), artifact.source, rows)
            assert_rows(reader.sample(3), artifact.source, 3)

    def test_sample_past_the_end_is_an_index_error(self, reader: Reader) -> None:
        with pytest.raises(IndexError):
            reader.sample(SAMPLES)

    def test_native_batches_have_the_same_content(self, artifact: StoredArtifact, reader: Reader) -> None:
        for rows in (slice(4, 10), slice(None, None, 5), INDICES):
            native = reader.native(rows)
            for name, array in artifact.source.items():
                assert_same(column(native, name), array[rows])
