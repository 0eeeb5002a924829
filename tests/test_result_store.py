import os

import pytest
from kinds import kind

from iobench import studies
from iobench.advise import recommendation as recommendations
from iobench.base.errors import RecordError
from iobench.base.files import replace_file
from iobench.studies import Measurements

RESULT = studies.StudyResult("x", "s", "a", Measurements({}), [], {"cpu": "Z80"}, "2026-01-01T00:00:00+00:00")


@pytest.mark.parametrize("past", [studies.past, recommendations.past])
def test_results_that_cannot_be_listed_are_an_error(past, tmp_path):
    (tmp_path / "results").touch()
    with pytest.raises(RecordError, check=kind("not-readable")) as caught:
        past(tmp_path)
    assert "--data-dir" in caught.value.hint


@pytest.mark.parametrize("past", [studies.past, recommendations.past])
def test_a_link_in_a_circle_is_named(past, tmp_path):
    (tmp_path / "results").mkdir()
    for suffix in ("study", "recommendation"):
        loop = tmp_path / "results" / f"x.{suffix}.json"
        loop.symlink_to(loop)
    results, problems = past(tmp_path)
    assert (results, [problem.kind for problem in problems]) == ([], ["not-a-result"])


def test_a_result_is_saved_atomically(monkeypatch, tmp_path):
    path = studies.save(RESULT, tmp_path)
    before = path.read_bytes()

    def full(*paths):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RecordError, check=kind("not-writable", path=path)):
        studies.save(RESULT, tmp_path)
    assert [*path.parent.iterdir()] == [path]
    assert path.read_bytes() == before


def test_a_file_with_the_longest_name_is_replaced(tmp_path):
    replace_file(tmp_path / ("x" * 255), b"content")
    assert (tmp_path / ("x" * 255)).read_bytes() == b"content"
