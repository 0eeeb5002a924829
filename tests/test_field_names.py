"""Names from outside, in any script: each is a field of its own, and the manifest maps it back."""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import iobench
from iobench import Manifest

SCRIPTS = "abAB09_-. /\\:é\u0301ıİßдΩ数据مفहि한ｘ📷🎥\u200b"
NAMES = st.lists(st.text(st.sampled_from(SCRIPTS), max_size=8), min_size=1, max_size=8, unique=True)


@settings(max_examples=40, deadline=None)
@given(NAMES)
def test_names_of_any_script_map_back_to_their_values(names):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.savez(folder / "c.npz", **{name: np.full((4,), place, "f4") for place, name in enumerate(names)})
        source = iobench.open_source(folder / "c.npz", columns="separate")
        root = iobench.prepare(source, ["npy", "memmap"], data_dir=folder / "data", name="d")[0].root
        manifest = Manifest.load(root)
        own = manifest.source.get("renamed", {})
        shown = manifest.schema.describe(own)
        for variant in manifest.artifacts:
            with manifest.opener(variant)() as reader:
                values = {own.get(field, field): array for field, array in reader.sample(0).items()}
            assert values == {name: place for place, name in enumerate(names)}
        assert len(manifest.schema.fields) == len(names)
        assert all(f"{field} from " in shown for field in own)
