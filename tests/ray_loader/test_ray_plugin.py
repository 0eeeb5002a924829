"""The loader `ray` of `iobench run`."""

from contextlib import closing

import numpy as np
import psutil
import pytest
from kinds import refused_as

from iobench import formats
from iobench.base.errors import InvalidOption, IobenchError
from iobench.loading import loaders
from iobench.testing.cases import SCHEMA, store
from iobench.testing.loaders import as_arrays, epoch_request, job_over, read_all


@pytest.fixture
def artifact(tmp_path):
    return store(formats.parse("npy"), tmp_path / "a", SCHEMA)


@pytest.mark.parametrize("word", ["ray", "ray:fetch=batch,num_workers=1,persistent_workers=yes"])
def test_batches_hold_the_requested_rows_and_actors_end(word, cluster, artifact):
    loader = loaders.parse(word).on("cpu")
    job, before = job_over(artifact, "random"), actors()
    with closing(loader.open(job)) as epochs:
        for number in range(2):
            rows = epoch_request(loader, job, number)
            for expected, batch in zip(rows, map(as_arrays, epochs.epoch(rows)), strict=True):
                for name, source in artifact.source.items():
                    np.testing.assert_array_equal(batch[name], source[expected], strict=True)
    left = [process for process in actors() if process not in before]
    assert not psutil.wait_procs(left, timeout=10)[1]


def test_a_missing_artifact_is_one_error_without_an_actor(cluster, artifact):
    (artifact.path).rename(artifact.path.with_name("b"))
    with pytest.raises(IobenchError) as caught:
        read_all(loaders.parse("ray"), job_over(artifact, "sequential"))
    assert "\n" not in str(caught.value)


def test_at_least_one_actor_is_required():
    pytest.importorskip("ray")
    with refused_as("invalid-value", InvalidOption, match="num_workers"):
        loaders.parse("ray:num_workers=0")


def actors():
    """Return the processes of actors, which Ray names after their class."""
    return [
        p for p in psutil.process_iter(["cmdline"]) if (p.info["cmdline"] or [""])[0].startswith("ray::Actor")
    ]
