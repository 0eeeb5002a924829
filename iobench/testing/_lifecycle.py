"""Contract tests of a format's lifecycle: description, opening, sharing, closing and disk space."""

from __future__ import annotations

import pickle
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.base.errors import CorruptArtifact, UnsupportedSchema
from iobench.base.options import build, read_word
from iobench.formats import Field, Format, Reader, Schema, build_now
from iobench.testing.cases import (
    INDICES,
    SAMPLES,
    Call,
    StoredArtifact,
    assert_rows,
    files_of,
    open_and_read,
    store,
)


class LifecycleTests:
    """Tests of description, opening, sharing, closing and disk space.

    Attributes
    ----------
    blob_axes : tuple of int
        Leading axes of the samples of the disk space test; the last axis is the sample's bytes.
    most_samples, most_bytes : int
        Limits of that test's data.
    """

    blob_axes: tuple[int, ...] = ()
    most_samples, most_bytes = 5_000, 2_000_000

    def test_name_summary_and_library(self, fmt: Format) -> None:
        assert re.fullmatch("[a-z][a-z0-9_-]*", fmt.name)
        assert fmt.summary
        assert "\n" not in fmt.summary
        assert metadata.version(fmt.library), "library must name an installed package"

    def test_variant_describes_the_format_in_one_word(self, fmt: Format) -> None:
        assert read_word(type(fmt), fmt.variant) == fmt
        assert build(type(fmt), fmt.options) == fmt
        assert not set(fmt.variant) & set(" /\\\n")

    def test_a_spawned_process_opens_from_pickled_parts(
        self, artifact: StoredArtifact, elsewhere: Call
    ) -> None:
        parts = pickle.dumps((artifact.format, artifact.path, artifact.schema))
        assert_rows(elsewhere(open_and_read, parts, INDICES), artifact.source, INDICES)

    def test_threads_read_one_reader_at_once(self, artifact: StoredArtifact, reader: Reader) -> None:
        def read(seed: int) -> None:
            rng = np.random.default_rng(seed)
            for _ in range(10):
                start = int(rng.integers(SAMPLES))
                for rows in (rng.integers(0, SAMPLES, 9), slice(start, start + 7)):
                    assert_rows(reader.batch(rows), artifact.source, rows)
                assert_rows(reader.sample(start), artifact.source, start)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(read, range(8)))

    def test_readers_of_one_artifact_are_independent(self, artifact: StoredArtifact) -> None:
        first, second = artifact.open(), artifact.open()
        assert_rows(first.batch(INDICES), artifact.source, INDICES)
        first.close()
        assert_rows(second.batch(INDICES), artifact.source, INDICES)
        second.close()
        with artifact.open() as third:
            assert_rows(third.batch(INDICES), artifact.source, INDICES)

    def test_a_closed_reader_raises(self, artifact: StoredArtifact) -> None:
        reader = artifact.open()
        reader.close()
        reader.close()
        for read in (reader.batch, reader.native):
            for rows in (slice(0, 2), INDICES):
                with pytest.raises(ValueError):
                    read(rows)
        with pytest.raises(ValueError):
            reader.sample(0)

    def test_an_open_artifact_is_not_confused_with_its_replacement(
        self, fmt: Format, schema: Schema, tmp_path: Path
    ) -> None:
        old = store(fmt, tmp_path / "a", replace(schema, samples=3))
        with old.open() as old_reader:
            shutil.rmtree(old.path)
            if not fmt.survives_unlink:
                with suppress(CorruptArtifact):  # data read before may still be in memory
                    assert_rows(old_reader.batch(slice(None)), old.source, slice(None))
                old_reader.close()
            new = store(fmt, tmp_path / "a", schema)
            with new.open() as new_reader:
                assert_rows(new_reader.batch(slice(None)), new.source, slice(None))
                if fmt.survives_unlink:
                    assert_rows(old_reader.batch(slice(None)), old.source, slice(None))

    def test_a_cached_index_gives_the_same_locations(self, artifact: StoredArtifact) -> None:
        """A reader works with an index that another reader built."""
        indices: dict[str, dict[str, np.ndarray[Any, Any]]] = {}

        def cache(name: str, build_index: Any) -> Any:
            indices[name] = build_now(name, build_index)
            assert all(array.ndim == 1 for array in indices[name].values())
            return indices[name]

        rows = np.arange(SAMPLES)
        with artifact.open() as first, artifact.open() as second:
            first.load_or_build, second.load_or_build = cache, lambda name, build: indices[name]
            for one, other in zip(first.placement().items(), second.placement().items(), strict=True):
                assert one[0] == other[0]
                np.testing.assert_array_equal(one[1].locate(rows), other[1].locate(rows))
            for built, cached in zip(first.blocks(), second.blocks(), strict=True):
                np.testing.assert_array_equal(built.offset, cached.offset)

    def test_placement_and_blocks_of_a_closed_reader_are_value_errors_or_as_before(
        self, artifact: StoredArtifact
    ) -> None:
        reader = artifact.open()
        reader.close()
        for locate in (reader.placement, reader.blocks):
            with suppress(ValueError):
                locate()

    def test_size_bound_holds_for_random_data(self, fmt: Format, tmp_path: Path) -> None:
        for sample_bytes in (1, 100, 512, 2048, 5120, 150_000):
            samples = min(self.most_samples, max(3, self.most_bytes // sample_bytes))
            fields = (Field("blob", (*self.blob_axes, sample_bytes), "uint8"),)
            schema = Schema(samples, fields)
            with suppress(UnsupportedSchema):
                fmt.check_schema(schema)
                self.assert_bound(store(fmt, tmp_path / "a", schema))

    @staticmethod
    def assert_bound(artifact: StoredArtifact) -> None:
        """Assert that the artifact takes no more disk space than its format's `size_bound`."""
        stored = sum(file.stat().st_blocks * 512 for file in files_of(artifact.path))
        assert stored <= artifact.format.size_bound(artifact.schema), artifact.schema
        shutil.rmtree(artifact.path)
