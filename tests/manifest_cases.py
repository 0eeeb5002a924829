"""The error with which a manifest is refused."""

import pytest
from kinds import kind

from iobench.base.errors import ManifestError
from iobench.dataset.manifest import Manifest


def refusal(manifest, name="damaged-manifest"):
    """Return the error of this kind with which the manifest is refused, a single line."""
    with pytest.raises(ManifestError, check=kind(name, path=manifest.root / "manifest.json")) as error:
        Manifest.load(manifest.root)
    assert "\n" not in str(error.value)
    return error.value
