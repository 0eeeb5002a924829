"""Registry of formats: lookup, variants, missing libraries and import rules."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from kinds import has, refused_as

from iobench import formats
from iobench.base.errors import IobenchError, MissingDependency, UnknownFormat
from iobench.loading import loaders

FOLDER = Path(formats.__file__).parent
PROJECT = tomllib.loads((FOLDER.parents[1] / "pyproject.toml").read_text())["project"]
EXTRAS = {"safetensors", "pyarrow", "zarr", "lance", "PIL"}
LIBRARIES = {"torch", "tensordict", "h5py", "lmdb", "lz4", *EXTRAS}


def test_names_are_the_entry_points_of_the_package():
    assert formats.names() == sorted(PROJECT["entry-points"]["iobench.formats"])
    assert {"npy", "hdf5", "lmdb", "memmap"} <= set(formats.names())


@pytest.mark.parametrize("name", ["csv", "", "_base", "npy.py", "HDF5"])
def test_an_unknown_format_lists_the_known_ones(name):
    for find in (formats.type_of, formats.get, formats.parse):
        with refused_as("unknown-format", UnknownFormat, hint=has(", ".join(formats.names()))) as error:
            find(name)
        assert isinstance(error.value, LookupError)


FORMAT, LOADER, OPTION = "unknown-format", "unknown-loader", "unknown-option"
CHUNKS, ZIPPED = "did you mean chunk_bytes? it has chunk_bytes", "hdf5:chunk_bytes=0,compression=gzip"


@pytest.mark.parametrize(
    ("parse", "typed", "kind", "field", "text"),
    [
        (formats.get, "npy,hdf5", FORMAT, "hint", "--format"),  # several: the option is to be repeated
        (formats.get, "HDF", FORMAT, "hint", "did you mean hdf5?"),
        (formats.get, "numpy", FORMAT, "hint", "did you mean npy?"),
        (formats.get, "parqet", FORMAT, "hint", "did you mean parquet?"),
        (formats.get, "JPEG", FORMAT, "hint", "did you mean images?"),
        (formats.get, "wds", FORMAT, "hint", "did you mean webdataset?"),
        (loaders.parse, "pytorch", LOADER, "hint", "did you mean dataloader?"),
        (loaders.parse, "mds", LOADER, "hint", "did you mean mosaic?"),
        (formats.parse, "hdf5:chunk_byte=4096", OPTION, "hint", CHUNKS),
        (formats.parse, "hdf5:Chunk_Bytes=4096", OPTION, "hint", CHUNKS),
        (formats.parse, "npy:level=3", OPTION, "problem", "'level'"),
        (formats.parse, "hdf5:compression=zip", "invalid-value", "expected", "none, lzf, gzip"),
        (formats.parse, ZIPPED, "conflicting-options", "found", "chunk_bytes=0"),
    ],
)
def test_an_error_suggests_a_similar_or_usual_word_or_names_the_valid_ones(parse, typed, kind, field, text):
    with refused_as(kind, IobenchError, **{field: has(text)}):
        parse(typed)


def test_a_missing_library_gives_the_pip_command(monkeypatch):
    monkeypatch.delitem(sys.modules, "iobench.formats.hdf5", raising=False)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with refused_as("missing-dependency", MissingDependency, hint="pip install h5py") as error:
        formats.get("hdf5")
    assert "h5py" in str(error.value)
    assert isinstance(error.value, ImportError)
    assert formats.get("npy").name == "npy"


def test_a_missing_library_of_an_extra_names_the_extra_and_is_listed_with_its_options(monkeypatch):
    import iobench.contrib.formats.safetensors  # noqa: F401 - its module loads without its library

    monkeypatch.setitem(sys.modules, "safetensors", None)
    command = "pip install 'iobench[safetensors]'"
    for find in (formats.type_of, formats.get, formats.parse):
        with refused_as("missing-dependency", MissingDependency, hint=command):
            find("safetensors")
    row = next(row for row in formats.describe() if row["name"] == "safetensors")
    assert row["summary"]
    assert command in row["usable"]


@pytest.mark.parametrize("name", formats.names())
def test_the_libraries_of_a_format_are_an_extra(name):
    form = formats.class_of(name)
    core = {re.split(r"[^\w-]", needed)[0] for needed in PROJECT["dependencies"]}
    if set(form.modules) - core:
        packages = {re.split(r"[^\w-]", needed)[0] for needed in PROJECT["optional-dependencies"][name]}
        assert form.library in packages


def test_a_format_loads_no_library_but_its_own_and_modules_load_none_of_an_extra():
    needed = {module for name in formats.names() for module in formats.class_of(name).modules}
    names = ", ".join(formats.class_of(name).__module__ for name in formats.names())
    loaded = "print(*sys.modules)"
    code = f"import sys; from iobench import formats; formats.get('npy'); {loaded}; import {names}; {loaded}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    with_npy, with_all = (set(line.split()) for line in done.stdout.splitlines())
    assert not with_npy & {*LIBRARIES, "pytest", "hypothesis", "iobench.testing"}
    assert not with_all & {*needed, "torch", "tensordict"}  # 2 s, of each `iobench add`


def test_descriptions_are_plain_data_as_on_the_command_line():
    described = {row["name"]: row for row in formats.describe()}
    assert json.loads(json.dumps(described)) == described
    chunk_bytes, compression = described["hdf5"]["options"]
    assert (chunk_bytes["type"], chunk_bytes["minimum"]) == ("int", 0)
    assert (compression["default"], compression["choices"]) == ("none", ["none", "lzf", "gzip"])
