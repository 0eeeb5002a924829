"""Ray for the tests of this folder."""

import pytest


@pytest.fixture(scope="module")
def cluster():
    """Ray in this process, until the tests of a file are over; skips, with the reason, where it is not installed."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    ray.init(
        "local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=100 << 20,
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield ray
    ray.shutdown()
