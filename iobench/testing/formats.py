"""The contract of formats: subclass `FormatContract` and name your format; see `iobench.testing`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from iobench.formats import Format, Reader, Schema
from iobench.testing._cases import SCHEMA, Artifact, Call, spawned, store
from iobench.testing._content import Content, Rows
from iobench.testing._damage import Damage
from iobench.testing._life import Life
from iobench.testing._places import Places


class NarrowFormatContract(Rows, Life, Places, Damage):
    """As `FormatContract`, for a format that holds some kinds of samples only, like those of `samples`.

    These are 23, in fields `rgb`, `signal` of shape (2, 5), `label` and `mask`.
    """

    format: Format
    samples: Schema = SCHEMA

    @pytest.fixture(scope="class")
    @staticmethod
    def fmt(request: pytest.FixtureRequest) -> Format:
        """The format under test."""
        found: Format = request.cls.format
        return found

    @pytest.fixture(scope="class")
    @staticmethod
    def schema(request: pytest.FixtureRequest) -> Schema:
        """What most tests write."""
        found: Schema = request.cls.samples
        return found

    @pytest.fixture(scope="class")
    @staticmethod
    def artifact(fmt: Format, schema: Schema, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
        """What it wrote of 23 samples; not to be changed."""
        return store(fmt, tmp_path_factory.mktemp("artifact") / "a", schema)

    @pytest.fixture(scope="class")
    @staticmethod
    def reader(artifact: Artifact) -> Iterator[Reader]:
        """An open reader of it."""
        with artifact.open() as reader:
            yield reader

    @pytest.fixture
    @staticmethod
    def damaged(artifact: Artifact, tmp_path: Path) -> Path:
        """A copy for a test to damage."""
        return shutil.copytree(artifact.path, tmp_path / "damaged")

    @pytest.fixture(scope="module")
    @staticmethod
    def elsewhere() -> Iterator[Call]:
        """Calls a function in another process, one for all formats: it takes a second to start."""
        with spawned() as call:
            yield call


class FormatContract(NarrowFormatContract, Content):
    """Everything that iobench relies on in a format, as tests of `format`."""
