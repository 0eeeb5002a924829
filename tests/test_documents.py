import os

import pytest

from iobench import studies
from iobench.base.errors import (
    RecordError,
)
from iobench.recommendation import result as recommendations
from iobench.studies import Measurements

RESULT = studies.Result("x", "s", "a", Measurements({}), [], {"cpu": "Z80"}, "2026-01-01T00:00:00+00:00")


@pytest.mark.parametrize("past", [studies.past, recommendations.past])
def test_results_that_cannot_be_listed_are_an_error_of_one_line(past, tmp_path):
    (tmp_path / "results").mkdir()
    for suffix in ("study", "recommendation"):
        loop = tmp_path / "results" / f"x.{suffix}.json"
        loop.symlink_to(loop)
    with pytest.raises(RecordError, match="name another --data-dir"):
        past(tmp_path)


def test_an_answer_is_kept_whole_or_not_at_all(monkeypatch, tmp_path):
    path = studies.save(RESULT, tmp_path)
    before = path.read_bytes()

    def full(*paths):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RecordError, match="cannot be written: No space left on device"):
        studies.save(RESULT, tmp_path)
    assert [*path.parent.iterdir()] == [path]
    assert path.read_bytes() == before
