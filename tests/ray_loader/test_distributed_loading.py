"""The study of loading on Ray: what it says of figures that were made up, and that it runs."""

from copy import deepcopy

import pytest

from iobench import studies
from iobench.base.errors import (
    MissingDependency,
)
from iobench.loading.ray import cluster as ray_cluster
from iobench.studies import Measurements, StudyOptions, _parity, _shipping
from iobench.studies._base import FAILS, HOLDS, UNKNOWN
from iobench.studies._parity import over_ranks, unaffected

pytestmark = pytest.mark.xdist_group("ray")
LOSSES = [2.3, 1.7, 1.1]


def trained(accuracies=(0.91, 0.90, 0.92, 0.91, 0.90)):
    once = {"losses": LOSSES, "accuracy": 0.9, "seconds": 1.0}
    normed = [{**once, "accuracy": accuracy} for accuracy in accuracies]
    return {"float64": once, "float32": once, "batchnorm": normed, "hashes": ["a", "b"]}


def ranks(count):
    return [{"torch's workers": trained(), "Ray's actors": trained()} for _ in range(count)]


def test_trainings_that_are_the_same_are():
    answer = unaffected("c", ranks(2))
    assert answer.answer == HOLDS
    assert "2 of 2 batches" in answer.because
    assert "accuracy 90.80% against 90.80%" in answer.because


@pytest.mark.parametrize(
    ("dtype", "off", "expected"),
    [
        ("float64", 1e-11, FAILS),
        ("float64", 1e-13, HOLDS),
        ("float32", 1e-4, FAILS),
        ("float32", 1e-6, HOLDS),
    ],
)
def test_a_loss_that_is_off_is_seen(dtype, off, expected):
    found = ranks(1)
    found[0]["Ray's actors"][dtype] = {"losses": [*LOSSES[:2], LOSSES[2] + off]}
    assert unaffected("c", found).answer == expected
    assert over_ranks("c", {"one process": ranks(1), "DDP of 2": ranks(2)}).answer == HOLDS


def test_a_batch_that_differs_on_any_rank_is_seen():
    found = ranks(2)
    found[1]["Ray's actors"]["hashes"] = ["a", "c"]
    assert unaffected("c", found).answer == FAILS
    found[1]["Ray's actors"]["hashes"] = ["a"]
    assert unaffected("c", found).answer == FAILS


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ((0.911, 0.901, 0.919, 0.911, 0.901), HOLDS),  # an image or two
        ((0.81, 0.80, 0.83, 0.81, 0.80), FAILS),
        ((0.95, 0.86, 0.97, 0.85, 0.94), UNKNOWN),  # five seeds that scatter do not tell
    ],
)
def test_accuracies_with_batchnorm_are_equivalent_or_not_over_seeds(others, expected):
    found = {"one process": ranks(1), "DDP of 2": ranks(2)}
    found["DDP of 2"][0]["torch's workers"] = trained(others)
    assert over_ranks("c", deepcopy(found)).answer == expected


def test_without_ray_the_study_gives_the_pip_command(monkeypatch, tmp_path):
    monkeypatch.setattr(ray_cluster, "installed", lambda: False)
    with pytest.raises(MissingDependency, match="pip install 'iobench\\[ray\\]'"):
        studies.run("distributed-loading", StudyOptions(tmp_path, quick=True, device="cpu"))


@pytest.mark.timeout(200)
def test_it_runs_and_answers_each_claim(cluster, tmp_path, monkeypatch):
    """Its trainings not: they take half a minute, and are made up here."""
    monkeypatch.setattr(_shipping, "ELSEWHERE", 2)
    monkeypatch.setattr(_shipping, "QUICK_BATCHES", 4)
    monkeypatch.setattr(_parity, "trainings", lambda count, *_: ranks(count))
    result = studies.run("distributed-loading", StudyOptions(tmp_path, quick=True, device="cpu"))
    told = {answer.claim: answer for answer in result.answers}
    assert len(told) == 6
    assert any("not run: needs 2 CUDA devices" in answer.because for answer in result.answers)
    assert isinstance(result.found, Measurements)
    assert result.found.table()
    studies.save(result, tmp_path)
    assert studies.past(tmp_path)[1] == []
