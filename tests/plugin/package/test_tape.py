"""The package's own tests: iobench's contract suite for loaders."""

from iobench_tape import Clip, Loop, Tape

from iobench.testing.loaders import LoaderContract


class TestTape(LoaderContract):
    """Every sample once, in the loader's order."""

    loader, formats = Tape(buffer=5), ("npy", "lmdb", "zarr")


class TestLoop(LoaderContract):
    """Repeated samples."""

    loader, formats = Loop(), ("npy",)


class TestClip(LoaderContract):
    """Dropped samples."""

    loader, formats = Clip(), ("npy",)
