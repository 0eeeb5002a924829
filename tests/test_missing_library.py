"""A prepared format whose library is not installed ends neither a run of all formats nor a check of them."""

import sys

import pytest
from conftest import complaint

from iobench.base.errors import (
    MissingDependency,
)
from iobench.bench.options import RunOptions, cases_of, left_out


@pytest.fixture
def without_lmdb(monkeypatch):
    monkeypatch.setitem(sys.modules, "lmdb", None)
    for name in [name for name in sys.modules if name.startswith("iobench.formats.lmdb")]:
        monkeypatch.delitem(sys.modules, name)


def test_a_run_of_all_formats_leaves_it_out_and_says_so(images, without_lmdb):
    options = RunOptions(loader=("native",), device=("cpu",))
    assert {case.variant for case in cases_of(images, options, ["cpu"])} == set(images.artifacts) - {"lmdb"}
    (said,) = left_out(images, options)
    assert said.startswith("left out: format lmdb needs lmdb, which is not installed: pip install ")


def test_a_run_that_names_it_is_refused(images, without_lmdb):
    with pytest.raises(MissingDependency, match="pip install"):
        cases_of(images, RunOptions(format=("lmdb",), loader=("native",)), ["cpu"])


def test_a_run_with_nothing_else_is_refused(images, without_lmdb, monkeypatch):
    monkeypatch.setattr(images, "artifacts", {"lmdb": images.artifacts["lmdb"]})
    with pytest.raises(MissingDependency, match="pip install"):
        cases_of(images, RunOptions(loader=("native",)), ["cpu"])


def test_verify_leaves_it_out_unless_it_is_named(images, without_lmdb, inside):
    done = inside("verify", "--data-dir", images.root.parent)
    assert done.returncode == 0
    assert "left out: format lmdb needs lmdb" in done.stderr
    assert "lmdb" not in done.stdout
    named = inside("verify", "--data-dir", images.root.parent, "--format", "lmdb")
    assert "format lmdb needs lmdb, which is not installed" in complaint(named, 1)
