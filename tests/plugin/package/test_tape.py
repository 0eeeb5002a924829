"""The package's own tests: what iobench expects of loaders."""

from iobench_tape import Clip, Loop, Tape

from iobench.testing.loaders import LoaderContract


class TestTape(LoaderContract):
    """Every sample once, in an order of its own."""

    loader, formats = Tape(buffer=5), ("npy", "lmdb", "zarr")


class TestLoop(LoaderContract):
    """Some samples twice."""

    loader, formats = Loop(), ("npy",)


class TestClip(LoaderContract):
    """Some samples not at all."""

    loader, formats = Clip(), ("npy",)
