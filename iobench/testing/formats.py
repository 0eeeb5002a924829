"""Contract suite of formats: subclass `FormatContract` and set `format`; see `iobench.testing`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from iobench.formats import Format, Reader, Schema
from iobench.testing._content import ContentTests, RowTests
from iobench.testing._lifecycle import LifecycleTests
from iobench.testing.cases import SCHEMA, Call, StoredArtifact, spawned, store
from iobench.testing.corruption import CorruptionTests
from iobench.testing.placements import PlacementTests


class NarrowFormatContract(RowTests, LifecycleTests, PlacementTests, CorruptionTests):
    """`FormatContract` without the tests of arbitrary schemas, for formats that hold only some.

    Attributes
    ----------
    format : Format
        The format under test.
    samples : Schema
        A schema of 23 samples that the format holds.
    """

    format: Format
    samples: Schema = SCHEMA

    @pytest.fixture(scope="class")
    @staticmethod
    def fmt(request: pytest.FixtureRequest) -> Format:
        """Return the format under test."""
        fmt: Format = request.cls.format
        return fmt

    @pytest.fixture(scope="class")
    @staticmethod
    def schema(request: pytest.FixtureRequest) -> Schema:
        """Return the schema that most tests write."""
        schema: Schema = request.cls.samples
        return schema

    @pytest.fixture(scope="class")
    @staticmethod
    def artifact(fmt: Format, schema: Schema, tmp_path_factory: pytest.TempPathFactory) -> StoredArtifact:
        """Return an artifact of 23 samples; tests must not modify it."""
        return store(fmt, tmp_path_factory.mktemp("artifact") / "a", schema)

    @pytest.fixture(scope="class")
    @staticmethod
    def reader(artifact: StoredArtifact) -> Iterator[Reader]:
        """Yield an open reader of the artifact."""
        with artifact.open() as reader:
            yield reader

    @pytest.fixture
    @staticmethod
    def damaged(artifact: StoredArtifact, tmp_path: Path) -> Path:
        """Return a copy of the artifact that the test may damage."""
        return shutil.copytree(artifact.path, tmp_path / "damaged")

    @pytest.fixture(scope="module")
    @staticmethod
    def elsewhere() -> Iterator[Call]:
        """Yield a function that calls others in a shared process, which takes a second to start."""
        with spawned() as call:
            yield call


class FormatContract(NarrowFormatContract, ContentTests):
    """Tests of everything that iobench relies on in a format; set `format` in a subclass."""
