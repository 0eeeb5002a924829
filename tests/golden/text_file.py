"""Golden files: what a command prints, one text file each.

`./scripts/test tests/golden --snapshot-update` writes them again.
"""

import re

from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode


class TextFile(SingleFileSnapshotExtension):
    """One text file for each snapshot."""

    _write_mode = WriteMode.TEXT
    file_extension = "txt"


def without_figures(text):
    """Replace every number, and the padding that depends on its width, by a fixed text."""
    numbers = re.sub(r"(?<![a-z\d])<?\d[\d,]*(\.\d+)?(e-?\d+)?( ?[KMGT]?i?B)?( [µmn]?s\b)?%?", "#", text)
    return re.sub(r"(?<=\S) {2,}|(?<=#) (?=#)", "  ", numbers)
