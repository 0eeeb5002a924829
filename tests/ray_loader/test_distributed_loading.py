"""The study of loading on Ray: what it says of figures that were made up, and that it runs."""

from copy import deepcopy

import pytest

from iobench import studies
from iobench.base.errors import (
    MissingDependency,
)
from iobench.loading.ray import ray_runtime
from iobench.studies import Measurements, StudyOptions, _parity, _shipping
from iobench.studies._base import INCONCLUSIVE, NOT_REPRODUCED, REPRODUCED
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
    assert answer.verdict == REPRODUCED
    assert "2 of 2 batches" in answer.evidence
    assert "accuracy 90.80% against 90.80%" in answer.evidence


@pytest.mark.parametrize(
    ("dtype", "off", "expected"),
    [
        ("float64", 1e-11, NOT_REPRODUCED),
        ("float64", 1e-13, REPRODUCED),
        ("float32", 1e-4, NOT_REPRODUCED),
        ("float32", 1e-6, REPRODUCED),
    ],
)
def test_a_loss_that_is_off_is_seen(dtype, off, expected):
    measured = ranks(1)
    measured[0]["Ray's actors"][dtype] = {"losses": [*LOSSES[:2], LOSSES[2] + off]}
    assert unaffected("c", measured).verdict == expected
    assert over_ranks("c", {"one process": ranks(1), "DDP of 2": ranks(2)}).verdict == REPRODUCED


def test_a_batch_that_differs_on_any_rank_is_seen():
    measured = ranks(2)
    measured[1]["Ray's actors"]["hashes"] = ["a", "c"]
    assert unaffected("c", measured).verdict == NOT_REPRODUCED
    measured[1]["Ray's actors"]["hashes"] = ["a"]
    assert unaffected("c", measured).verdict == NOT_REPRODUCED


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ((0.911, 0.901, 0.919, 0.911, 0.901), REPRODUCED),  # an image or two
        ((0.81, 0.80, 0.83, 0.81, 0.80), NOT_REPRODUCED),
        ((0.95, 0.86, 0.97, 0.85, 0.94), INCONCLUSIVE),  # five seeds that scatter do not tell
    ],
)
def test_accuracies_with_batchnorm_are_equivalent_or_not_over_seeds(others, expected):
    measured = {"one process": ranks(1), "DDP of 2": ranks(2)}
    measured["DDP of 2"][0]["torch's workers"] = trained(others)
    assert over_ranks("c", deepcopy(measured)).verdict == expected


def test_without_ray_the_study_gives_the_pip_command(monkeypatch, tmp_path):
    monkeypatch.setattr(ray_runtime, "installed", lambda: False)
    with pytest.raises(MissingDependency, match="pip install 'iobench\\[ray\\]'"):
        studies.run("distributed-loading", StudyOptions(tmp_path, quick=True, device="cpu"))


@pytest.mark.timeout(200)
def test_it_runs_and_answers_each_claim(cluster, tmp_path, monkeypatch):
    """Its trainings not: they take half a minute, and are made up here."""
    monkeypatch.setattr(_shipping, "ELSEWHERE", 2)
    monkeypatch.setattr(_shipping, "QUICK_BATCHES", 4)
    monkeypatch.setattr(_parity, "trainings", lambda count, *_: ranks(count))
    result = studies.run("distributed-loading", StudyOptions(tmp_path, quick=True, device="cpu"))
    told = {answer.claim: answer for answer in result.claims}
    assert len(told) == 6
    assert any("not run: needs 2 CUDA devices" in answer.evidence for answer in result.claims)
    assert isinstance(result.measurements, Measurements)
    assert result.measurements.table()
    studies.save(result, tmp_path)
    assert studies.past(tmp_path)[1] == []
