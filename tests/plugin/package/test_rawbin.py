"""The package's own tests: what iobench expects of a format."""

from iobench_rawbin import RawBin

from iobench.testing.formats import FormatContract


class TestRawBin(FormatContract):
    """With its default options."""

    format = RawBin()
