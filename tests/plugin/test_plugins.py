"""Formats from other packages: found through entry points; broken ones are reported and affect no other."""

import os
import subprocess
import sys

import pytest
from kinds import complaint_kind, has, refused_as
from plugin_cases import installed, made

import iobench
from iobench import formats
from iobench.base.errors import BrokenPlugin, MissingDependency, UnknownFormat

OURS = formats.names()


@pytest.fixture
def add(tmp_path, monkeypatch):
    """Install a package with one entry point of this name and value."""

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
    with refused_as("unknown-format", UnknownFormat, match="'rawbin'"):
        formats.get("rawbin")


def test_without_entry_points_the_command_line_names_the_command_that_installs_iobench():
    code = "import importlib.metadata as m; m.entry_points = lambda group: (); "
    code += "import runpy; runpy.run_module('iobench', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code, "run"], capture_output=True, text=True)
    assert complaint_kind(done, 1) == "missing-dependency"


def test_it_is_prepared_verified_and_run(rawbin, tmp_path, inside, monkeypatch):
    data = ("--data-dir", tmp_path / "data")
    prepared = inside("prepare", "--size", 4096, "--format", "rawbin", "--format", "npy", *data)
    assert prepared.returncode == 0, prepared.stderr
    assert "rawbin: intact" in inside("verify", *data).stdout
    asked = (*data, "--format", "rawbin", "--device", "cpu", "--rounds", 1)
    done = inside("run", *asked, "--no-limits", "--out", tmp_path / "r.jsonl")
    assert done.returncode == 0, done.stderr
    assert "rawbin" in (tmp_path / "r.jsonl").read_text()
    manifest = iobench.find_dataset(tmp_path / "data")
    os.truncate(manifest.files_of("rawbin")[0], 100)
    assert iobench.verify(manifest)["rawbin"].kind == "wrong-size"
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder != str(rawbin)])
    assert complaint_kind(inside("verify", *data), 2) == "unknown-format"


def test_a_built_in_name_is_refused_with_both_origins(add):
    add("npy", "other_formats:Npy", other_formats="")
    with refused_as("ambiguous-name", BrokenPlugin, found=has("iobench", "(other_formats:Npy)")) as error:
        formats.get("npy")
    assert str(error.value) == usable("npy")
    assert formats.get("hdf5").name == "hdf5"


def test_two_packages_with_one_name_are_refused_with_both_origins(add):
    add("raw", "one:Raw", "one-package")
    add("raw", "two:Raw", "two-package")
    with refused_as("ambiguous-name", BrokenPlugin, found=has("(one:Raw)", "(two:Raw)")):
        formats.get("raw")


WHOLE = """
from dataclasses import dataclass
from iobench.base.options import option
from iobench.formats import Format
@dataclass(frozen=True)
class Raw(Format):
    name, summary, library = "raw", "raw", "numpy"
    {}
    def write(self, path, schema, batches): ...
    def open(self, path, schema, random=False): ...
"""

BROKEN = {  # source, kind of the error, and what it names
    "raises": ("1 / 0", "broken-plugin", "ZeroDivisionError"),
    "says two lines": ("raise RuntimeError('a\\nb')", "broken-plugin", "RuntimeError"),
    "no syntax": ("class", "broken-plugin", "SyntaxError"),
    "no such class": ("", "broken-plugin", "AttributeError"),
    "no class": ("Raw = 5", "not-a-subclass", "iobench.formats.Format"),
    "another class": ("class Raw: pass", "not-a-subclass", "iobench.formats.Format"),
    "abstract": (WHOLE.replace("def open", "def shut").format(""), "incomplete-class", "open"),
    "no library": (WHOLE.replace("library =", "_ =").format(""), "incomplete-class", "library"),
    "another name": (WHOLE.replace('"raw", "raw"', '"Raw", "raw"').format(""), "wrong-name", "'Raw'"),
    "no option": (WHOLE.format("size: int = 5"), "broken-plugin", "option()"),
}


@pytest.mark.parametrize(("source", "name", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_broken_package_is_reported_with_the_reason_and_affects_no_other(add, source, name, reason):
    before = {name: usable(name) for name in OURS}
    add("raw", "other_formats:Raw", other_formats=source)
    with refused_as(name, BrokenPlugin, problem=has("(other_formats:Raw)")) as error:
        formats.get("raw")
    assert reason in f"{error.value.expected} {error.value.found}"
    assert usable("raw") == str(error.value)
    assert {name: usable(name) for name in OURS} == before


INTERRUPTED = """
class Interrupted:
    def __set_name__(self, owner, name):
        raise KeyboardInterrupt
class Raw:
    size = Interrupted()
"""


def test_an_interrupt_while_a_class_is_made_is_an_interrupt(add):
    add("raw", "other_formats:Raw", other_formats=INTERRUPTED)
    with pytest.raises(KeyboardInterrupt):
        formats.get("raw")


@pytest.mark.parametrize(
    ("value", "source"), [("other_formats:Raw", "import no_such_library"), ("nowhere:Raw", "")]
)
def test_a_missing_library_is_named(add, value, source):
    add("raw", value, other_formats=source)
    with refused_as("missing-dependency", MissingDependency, match=r"no_such_library|nowhere"):
        formats.get("raw")
    assert formats.get("npy").name == "npy"


def test_a_complete_one_is_used(add):
    add("raw", "other_formats:Raw", other_formats=WHOLE.format("level: int = option(1, 'how much')"))
    assert formats.get("raw", level=2).variant == "raw:level=2"


def test_prepare_reports_a_broken_one_in_one_line(add, tmp_path, inside):
    add("raw", "other_formats:Raw", other_formats="1 / 0")
    done = inside("prepare", "--size", "4096", "--format", "raw")
    assert complaint_kind(done, 1) == "broken-plugin"
    assert "ZeroDivisionError" in done.stderr
