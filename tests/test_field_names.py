"""Names from outside: each of a field maps back in every format, and none of a file leaves its folder."""

import contextlib
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from conftest import installed_formats
from hypothesis import given, settings
from hypothesis import strategies as st

import iobench
from iobench import Manifest
from iobench.base.errors import CorruptArtifact
from iobench.base.files import path_below

SCRIPTS = "abAB09_-. /\\:é\u0301ıİßΣςдДΩ数据مفहि한ｘ📷🎥\u200b"
NAMES = st.lists(st.text(st.sampled_from(SCRIPTS), max_size=20), min_size=1, max_size=8, unique=True)
ONE_FIELD = ("megatron", "tokens")
SAMPLES = {"images": np.zeros((4, 8, 8, 3), "u1"), **dict.fromkeys(ONE_FIELD, np.zeros((4, 8), "u2"))}


@pytest.mark.parametrize("variant", [name for name in installed_formats() if name != "audio"])  # no arrays
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


PARTS = st.sampled_from(
    ["", ".", "..", "a", "A", "~", " ", "a\0b", "..\\x", "\ud800", "\udcff", "…/..", "é" * 128, "x" * 255]
)
FILES = st.lists(PARTS | st.text(max_size=300), min_size=1, max_size=5).map("/".join)
LEAVING = [
    *("", "/", "/etc/passwd", "//h/x", "..", "a/../../b", "./a", "a//b", "a/", "a\\..\\b", "a\0"),
    *("x" * 256, "\ud800"),
]


def is_refused(folder, name):
    try:
        path_below(folder, name)
    except CorruptArtifact as error:
        return error.kind == "outside-folder"
    return False


@settings(derandomize=True, max_examples=300)
@given(names=st.lists(FILES | st.sampled_from(LEAVING), min_size=1, max_size=4, unique=True))
def test_a_name_is_one_file_below_the_folder_or_refused(names):
    with tempfile.TemporaryDirectory() as here:
        folder = Path(here) / "inner"
        paths = [path_below(folder, name) for name in names if not is_refused(folder, name)]
        assert len(set(paths)) == len(paths)  # no two names are one file
        for path in paths:
            with contextlib.suppress(FileExistsError, NotADirectoryError):  # one may be a folder of another
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch(exist_ok=False)
                assert os.path.realpath(path) == str(path)
        assert os.listdir(here) == ["inner"] * bool(paths)


@pytest.mark.parametrize("name", [*LEAVING, None, 3, ["x"]])
def test_a_name_that_leaves_its_folder_is_refused(name):
    assert is_refused(Path("/folder"), name)


@pytest.mark.parametrize(
    "name", ["x.npy", "c/0/1", "a b.npy", "..x", "x..", "…", "100%.npy", "ü/ß", "x" * 255]
)
def test_an_ordinary_name_is_kept(name):
    assert path_below(Path("/folder"), name) == Path("/folder") / name
