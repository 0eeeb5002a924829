"""The line with which a manifest is refused."""

import pytest

from iobench.base.errors import (
    ManifestError,
)
from iobench.dataset.manifest import Manifest


def refusal(manifest):
    """The one line with which the manifest is refused."""
    with pytest.raises(ManifestError) as error:
        Manifest.load(manifest.root)
    assert str(manifest.root / "manifest.json") in str(error.value)
    assert "\n" not in str(error.value)
    return str(error.value)
