"""Contract suites: what iobench expects of every plug-in, as pytest classes to run over your own.

A package that adds a format by the entry point group `iobench.formats` tests it with

    from iobench.testing.formats import FormatContract
    from my_package.module import RawBin

    class TestRawBin(FormatContract):
        format = RawBin()

and one that adds a loader by `iobench.loaders` likewise with `iobench.testing.loaders.LoaderContract`:

    class TestTape(LoaderContract):
        loader = Tape()

and `pytest`. Needs pytest and hypothesis. A class for each variant, `RawBin(level=3)`, tests options.
For a format that keeps nothing but samples in a file, garbage of the right size is content: the suite
finds those files by the reader's `placement`.
"""

import pytest

pytest.register_assert_rewrite(
    "iobench.testing.loaders",
    "iobench.testing._cases",
    "iobench.testing._content",
    "iobench.testing._damage",
    "iobench.testing._life",
    "iobench.testing._places",
)
