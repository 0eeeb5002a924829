"""Opening does not read the data: a cold epoch reads them while it is timed."""

import pytest
import torch

import iobench
from iobench import formats
from iobench.bench import epoch
from iobench.dataset.prepare import writable_formats
from iobench.host import page_cache
from iobench.loading import loaders
from iobench.loading.host_to_device import HostToDevice
from iobench.loading.loaders import Job
from iobench.loading.order import Order

SAMPLES, WIDTH = 16_000, 1024
MOST = 0.6  # of 64 MB: the kernel may read 8 MB around each byte that is accessed


@pytest.fixture(scope="module")
def every(tmp_path_factory):
    """64 MB in every format that can hold them."""
    source = iobench.Synthetic(SAMPLES * WIDTH, (WIDTH,))
    folder = tmp_path_factory.mktemp("opening")
    return iobench.prepare(source, writable_formats(source.schema)[0], data_dir=folder)[0]


@pytest.mark.parametrize("loader", ["native", "stream"])
@pytest.mark.parametrize("name", formats.names())
def test_the_data_are_read_while_the_epoch_is_timed(every, name, loader, by_file):
    if name not in every.artifacts:
        pytest.skip(f"{name} cannot hold these samples here")
    one, job = loaders.get(loader).on("cpu"), Job(every.opener(name), Order("random", 256))
    with every.opener(name)() as reader:
        reader.placement()  # builds the index of row locations
    page_cache.evict(every.files_of(name))
    measured = epoch.measure(
        one,
        job,
        HostToDevice(torch.device("cpu"), False),
        epoch.RoundSpec(1, lambda batch: None, seconds=0.0),
    )
    if measured.disk.read_bytes is None:
        pytest.skip("the kernel does not count what is read")
    assert measured.disk.opening_bytes < MOST * every.artifacts[name].stored_bytes
