"""Names from outside, in any script: each is a field of its own, and every format maps it back."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import iobench
from iobench import Manifest, formats

SCRIPTS = "abAB09_-. /\\:é\u0301ıİßΣςдДΩ数据مفहि한ｘ📷🎥\u200b"
NAMES = st.lists(st.text(st.sampled_from(SCRIPTS), max_size=20), min_size=1, max_size=8, unique=True)
ONE_FIELD = ("megatron", "tokens")
SAMPLES = {"images": np.zeros((4, 8, 8, 3), "u1"), **dict.fromkeys(ONE_FIELD, np.zeros((4, 8), "u2"))}


@pytest.mark.parametrize("variant", [name for name in formats.names() if name != "audio"])  # no arrays
@settings(max_examples=10, deadline=None)
@given(names=NAMES)
def test_names_of_any_script_map_back_to_their_values(variant, names):
    names = names[:1] if variant in ONE_FIELD else names
    samples = SAMPLES.get(variant, np.zeros((4,), "f4"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.savez(folder / "c.npz", **{name: samples + place for place, name in enumerate(names)})
        source = iobench.open_source(folder / "c.npz", columns="separate")
        root = iobench.prepare(source, [variant], data_dir=folder / "data", name="d")[0].root
        manifest = Manifest.load(root)
        own = manifest.source.get("renamed", {})
        shown = manifest.schema.describe(own)
        with manifest.opener(variant)() as reader:
            values = {own.get(field, field): array.max() for field, array in reader.sample(0).items()}
        assert values == {name: place for place, name in enumerate(names)}
        assert len(manifest.schema.fields) == len(names)
        assert all(f"{field} from " in shown for field in own)
