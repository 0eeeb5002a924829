"""The package's own tests: iobench's contract suite for formats."""

from iobench_rawbin import RawBin

from iobench.testing.formats import FormatContract


class TestRawBin(FormatContract):
    """The contract suite with default options."""

    format = RawBin()
