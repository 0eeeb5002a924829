"""Formats from other packages: found by entry points, named where they cannot be used, no harm to others."""

import os
import sys

import pytest
from conftest import call, complaint
from plugin_cases import installed, made

import iobench
from iobench import formats
from iobench.base.errors import (
    BrokenPlugin,
    MissingDependency,
    UnknownFormat,
)

OURS = formats.names()


@pytest.fixture
def add(tmp_path, monkeypatch):
    """Install a package whose one entry point is of this name and value."""

    def add(entry, value, package="other-formats", **modules):
        folder = tmp_path / package
        folder.mkdir()
        made(folder, package, {"iobench.formats": {entry: value}}, **modules)
        monkeypatch.syspath_prepend(folder)
        for module in modules:
            monkeypatch.delitem(sys.modules, module, raising=False)

    return add


@pytest.fixture
def rawbin(tmp_path, monkeypatch):
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(installed(folder))
    return folder


def usable(name):
    return {row["name"]: row["usable"] for row in formats.describe()}[name]


def test_it_is_one_of_the_formats(rawbin):
    assert formats.names() == sorted([*OURS, "rawbin"])
    assert formats.parse("rawbin:buffer_bytes=8192").variant == "rawbin:buffer_bytes=8192"
    described = next(row for row in formats.describe() if row["name"] == "rawbin")
    assert described["usable"] == "yes"
    assert described["options"][0]["unit"] == "bytes"


def test_without_the_package_it_is_unknown():
    with pytest.raises(UnknownFormat, match="unknown format 'rawbin'"):
        formats.get("rawbin")


def test_it_is_prepared_verified_and_run_in_this_process(rawbin, tmp_path, inside):
    manifest, _ = iobench.prepare(iobench.Synthetic(4096), ["rawbin", "npy"], data_dir=tmp_path / "data")
    assert iobench.verify(manifest) == {"rawbin": None, "npy": None}
    asked = ("--data-dir", tmp_path / "data", "--format", "rawbin", "--device", "cpu", "--rounds", 1)
    done = inside("run", *asked, "--no-limits", "--out", tmp_path / "r.jsonl")
    assert done.returncode == 0, done.stderr
    assert "rawbin" in (tmp_path / "r.jsonl").read_text()
    os.truncate(manifest.files_of("rawbin")[0], 100)
    assert "expected" in iobench.verify(manifest)["rawbin"]


def test_it_is_prepared_and_verified_on_the_command_line(rawbin, tmp_path):
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(rawbin), os.environ.get("PYTHONPATH", "")])
    }
    there = {"env": environment, "cwd": tmp_path}
    prepared = call("prepare", "--size", "4096", "--format", "rawbin", **there)
    assert prepared.returncode == 0, prepared.stderr
    assert "rawbin: intact" in call("verify", **there).stdout
    gone = call("verify", cwd=tmp_path)
    assert "unknown format 'rawbin'" in complaint(gone, 2)


def test_a_name_of_ours_is_refused_naming_both(add, tmp_path):
    add("npy", "other_formats:Npy", other_formats="")
    with pytest.raises(BrokenPlugin) as error:
        formats.get("npy")
    assert str(error.value) == usable("npy")
    assert "format npy is offered by iobench itself and by other-formats (other_formats:Npy)" in str(
        error.value
    )
    assert formats.get("hdf5").name == "hdf5"


def test_two_packages_with_one_name_are_refused_naming_both(add):
    add("raw", "one:Raw", "one-package")
    add("raw", "two:Raw", "two-package")
    with pytest.raises(BrokenPlugin, match=r"(?=.*one-package \(one:Raw\))(?=.*two-package \(two:Raw\))"):
        formats.get("raw")


WHOLE = """
from dataclasses import dataclass
from iobench.formats import Format, option
@dataclass(frozen=True)
class Raw(Format):
    name, summary, library = "raw", "raw", "numpy"
    {}
    def write(self, path, schema, batches): ...
    def open(self, path, schema, random=False): ...
"""

BROKEN = {
    "raises": ("1 / 0", "ZeroDivisionError: division by zero"),
    "says two lines": ("raise RuntimeError('a\\nb')", "RuntimeError: a"),
    "no syntax": ("class", "SyntaxError: invalid syntax"),
    "no such class": ("", "AttributeError: module 'other_formats' has no attribute 'Raw'"),
    "no class": ("Raw = 5", "it is no class under iobench.formats.Format"),
    "another class": ("class Raw: pass", "it is no class under iobench.formats.Format"),
    "abstract": (WHOLE.replace("def open", "def shut").format(""), "it lacks open"),
    "no library": (WHOLE.replace("summary, library =", "summary, _ =").format(""), "it lacks library"),
    "another name": (WHOLE.replace('"raw", "raw"', '"Raw", "raw"').format(""), "it calls itself Raw"),
    "no option": (WHOLE.format("size: int = 5"), "TypeError: field size is not an option()"),
}


@pytest.mark.parametrize(("source", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_broken_package_is_named_with_the_reason_and_harms_no_other(add, source, reason):
    add("raw", "other_formats:Raw", other_formats=source)
    with pytest.raises(BrokenPlugin) as error:
        formats.get("raw")
    assert f"format raw of other-formats (other_formats:Raw) cannot be used: {reason}" in str(error.value)
    assert "\n" not in str(error.value)
    assert usable("raw") == str(error.value)
    assert all(usable(name) == "yes" for name in OURS)


@pytest.mark.parametrize(
    ("value", "source"), [("other_formats:Raw", "import no_such_library"), ("nowhere:Raw", "")]
)
def test_a_missing_library_is_named(add, value, source):
    add("raw", value, other_formats=source)
    with pytest.raises(MissingDependency, match=r"(no_such_library|nowhere) is not installed"):
        formats.get("raw")
    assert formats.get("npy").name == "npy"


def test_a_whole_one_is_used(add):
    add("raw", "other_formats:Raw", other_formats=WHOLE.format("level: int = option(1, 'how much')"))
    assert formats.get("raw", level=2).variant == "raw:level=2"


def test_run_names_a_broken_one_in_one_line(add, tmp_path, inside):
    add("raw", "other_formats:Raw", other_formats="1 / 0")
    assert "division by zero" in complaint(inside("prepare", "--size", "4096", "--format", "raw"), 1)
