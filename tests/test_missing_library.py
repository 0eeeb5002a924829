"""A prepared format whose library is missing does not end a run or a verification of all formats."""

import sys

import pytest
from kinds import complaint_kind, kind

from iobench.base.errors import MissingDependency
from iobench.bench.options import RunOptions, cases_of, skip_notes


@pytest.fixture
def without_lmdb(monkeypatch):
    monkeypatch.setitem(sys.modules, "lmdb", None)
    for name in [name for name in sys.modules if name.startswith("iobench.formats.lmdb")]:
        monkeypatch.delitem(sys.modules, name)


def test_a_run_of_all_formats_skips_it_with_a_note(images, without_lmdb):
    options = RunOptions(loader=("native",), device=("cpu",))
    assert {case.variant for case in cases_of(images, options, ["cpu"])} == set(images.artifacts) - {"lmdb"}
    (note,) = skip_notes(images, options)
    assert (note.kind, note.values["reason"]) == ("skipped", "missing-dependency")
    assert "install lmdb" in note.message


def test_a_run_that_names_it_is_refused(images, without_lmdb):
    with pytest.raises(MissingDependency, check=kind("missing-dependency", hint="pip install lmdb")):
        cases_of(images, RunOptions(format=("lmdb",), loader=("native",)), ["cpu"])


def test_a_run_with_nothing_else_is_refused(images, without_lmdb, monkeypatch):
    monkeypatch.setattr(images, "artifacts", {"lmdb": images.artifacts["lmdb"]})
    with pytest.raises(MissingDependency, check=kind("missing-dependency", hint="pip install lmdb")):
        cases_of(images, RunOptions(loader=("native",)), ["cpu"])


def test_verify_skips_it_unless_it_is_named(images, without_lmdb, inside):
    done = inside("verify", "--data-dir", images.root.parent)
    assert done.returncode == 0
    assert "install lmdb" in done.stderr
    assert "lmdb" not in done.stdout
    named = inside("verify", "--data-dir", images.root.parent, "--format", "lmdb")
    assert complaint_kind(named, 1) == "missing-dependency"
