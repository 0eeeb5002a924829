"""The study of loading on Ray: verdicts from given figures, and a short run."""

from copy import deepcopy

import pytest
from kinds import refused_as

from iobench import studies
from iobench.base.errors import MissingDependency
from iobench.contrib.ray import ray_runtime
from iobench.studies import Measurements, StudyOptions, distributed_loading
from iobench.studies._claims import INCONCLUSIVE, NOT_REPRODUCED, REPRODUCED
from iobench.studies.distributed_loading import over_ranks, unaffected

LOSSES = [2.3, 1.7, 1.1]


def trained(accuracies=(0.91, 0.90, 0.92, 0.91, 0.90)):
    once = {"losses": LOSSES, "accuracy": 0.9, "seconds": 1.0}
    normed = [{**once, "accuracy": accuracy} for accuracy in accuracies]
    return {"float64": once, "float32": once, "batchnorm": normed, "hashes": ["a", "b"]}


def ranks(count):
    return [{"torch's workers": trained(), "Ray's actors": trained()} for _ in range(count)]


def test_equal_trainings_are_reproduced():
    result = unaffected(ranks(2))
    assert result.verdict == REPRODUCED
    values = {name: value for one in result.values for name, value in one.items()}
    assert (values["same_batches"], values["batches"]) == (2, 2)
    assert values["accuracy"] == values["other_accuracy"] == pytest.approx(0.908)


@pytest.mark.parametrize(
    ("dtype", "off", "expected"),
    [
        ("float64", 1e-11, NOT_REPRODUCED),
        ("float64", 1e-13, REPRODUCED),
        ("float32", 1e-4, NOT_REPRODUCED),
        ("float32", 1e-6, REPRODUCED),
    ],
)
def test_a_different_loss_is_detected(dtype, off, expected):
    trainings = ranks(1)
    trainings[0]["Ray's actors"][dtype] = {"losses": [*LOSSES[:2], LOSSES[2] + off]}
    assert unaffected(trainings).verdict == expected
    assert over_ranks({"one process": ranks(1), "DDP of 2": ranks(2)}).verdict == REPRODUCED


def test_a_different_batch_on_any_rank_is_detected():
    trainings = ranks(2)
    trainings[1]["Ray's actors"]["hashes"] = ["a", "c"]
    assert unaffected(trainings).verdict == NOT_REPRODUCED
    trainings[1]["Ray's actors"]["hashes"] = ["a"]
    assert unaffected(trainings).verdict == NOT_REPRODUCED


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ((0.911, 0.901, 0.919, 0.911, 0.901), REPRODUCED),  # an image or two
        ((0.81, 0.80, 0.83, 0.81, 0.80), NOT_REPRODUCED),
        ((0.95, 0.86, 0.97, 0.85, 0.94), INCONCLUSIVE),  # five scattered seeds are inconclusive
    ],
)
def test_equivalence_of_accuracies_is_decided_over_seeds(others, expected):
    trainings = {"one process": ranks(1), "DDP of 2": ranks(2)}
    trainings["DDP of 2"][0]["torch's workers"] = trained(others)
    assert over_ranks(deepcopy(trainings)).verdict == expected


def test_without_ray_the_hint_is_the_pip_command(monkeypatch, tmp_path):
    monkeypatch.setattr(ray_runtime, "installed", lambda: False)
    with refused_as("missing-dependency", MissingDependency, hint="pip install 'iobench[ray]'"):
        studies.run("distributed-loading", StudyOptions(tmp_path, quick=True, device="cpu"))


@pytest.mark.timeout(200)
def test_it_runs_and_has_a_verdict_on_each_claim(cluster, tmp_path, monkeypatch):
    """Replace its trainings, which take half a minute."""
    monkeypatch.setattr(distributed_loading, "ELSEWHERE", 2)
    monkeypatch.setattr(distributed_loading, "QUICK_BATCHES", 4)
    monkeypatch.setattr(distributed_loading, "trainings", lambda count, *_: ranks(count))
    result = studies.run("distributed-loading", StudyOptions(tmp_path, quick=True, device="cpu"))
    by_claim = {one.claim: one for one in result.claims}
    assert len(by_claim) == 6
    assert [one.verdict for claim, one in by_claim.items() if "DataParallel" in claim] == [INCONCLUSIVE]
    assert isinstance(result.measurements, Measurements)
    assert result.measurements.table()
    studies.save(result, tmp_path)
    assert studies.past(tmp_path)[1] == []
