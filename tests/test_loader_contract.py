"""Our own loaders keep the contract that other packages' are held to."""

import pytest

from iobench.loading import loaders
from iobench.testing.loaders import LoaderContract


class TestDataLoader(LoaderContract):
    loader = loaders.parse("dataloader")


class TestDataLoaderOfBatches(LoaderContract):
    loader = loaders.parse("dataloader:fetch=batch,num_workers=1,start_method=fork,persistent_workers=yes")


class TestNative(LoaderContract):
    loader = loaders.parse("native")


class TestStream(LoaderContract):
    loader = loaders.parse("stream")


def test_every_loader_is_held_to_it():
    held = {cls.loader.name for cls in LoaderContract.__subclasses__() if cls.__module__ == __name__}
    assert held == set(loaders.names())


@pytest.mark.parametrize("name", loaders.names())
def test_every_loader_is_plain_by_default(name):
    assert loaders.parse(name).variant == name
