"""Contract suites: the requirements of iobench on plug-ins, as pytest classes to subclass.

A package that adds a format through the entry point group `iobench.formats` tests it with

    from iobench.testing.formats import FormatContract
    from my_package.module import RawBin

    class TestRawBin(FormatContract):
        format = RawBin()

and a package that adds a loader through `iobench.loaders` with
`iobench.testing.loaders.LoaderContract`:

    class TestTape(LoaderContract):
        loader = Tape()

and runs `pytest`. Needs pytest and hypothesis. Options are tested by one class per variant, such as
`RawBin(level=3)`. In a file that holds only samples, garbage of the right size is valid content; the suite
identifies such files by the reader's `placement`.
"""

import pytest

pytest.register_assert_rewrite(
    "iobench.testing.loaders",
    "iobench.testing.cases",
    "iobench.testing._content",
    "iobench.testing.corruption",
    "iobench.testing._lifecycle",
    "iobench.testing.placements",
)
