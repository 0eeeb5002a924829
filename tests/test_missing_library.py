"""A prepared format whose library is missing does not end a run or a verification of all formats."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kinds import complaint_kind, refused_as
from PIL import Image

import iobench
from iobench.base.errors import MissingDependency
from iobench.bench.case_grid import cases_of, skip_notes
from iobench.bench.options import RunOptions


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


@pytest.mark.parametrize("format", [("lmdb",), RunOptions().format])
def test_a_run_that_names_it_or_has_nothing_else_is_refused(images, without_lmdb, format):
    only = replace(images, artifacts={"lmdb": images.artifacts["lmdb"]})
    manifest = images if format == ("lmdb",) else only
    with refused_as("missing-dependency", MissingDependency, hint="pip install lmdb"):
        cases_of(manifest, RunOptions(format=format, loader=("native",)), ["cpu"])


def test_verify_skips_it_unless_it_is_named(images, without_lmdb, inside):
    done = inside("verify", "--data-dir", images.root.parent)
    assert done.returncode == 0
    assert "install lmdb" in done.stderr
    assert "lmdb" not in done.stdout
    named = inside("verify", "--data-dir", images.root.parent, "--format", "lmdb")
    assert complaint_kind(named, 1) == "missing-dependency"


SCRIPTS = Path(__file__).parent.parent / "scripts"
CORE_ONLY = os.pathsep.join([str(SCRIPTS / "eval" / "faults" / "core_only"), str(SCRIPTS)])


def test_with_the_core_alone_data_are_recognized_and_the_command_to_install_is_named(tmp_path):
    """The kind `missing-libraries` of scripts/faults asks for everything that the registry lists."""
    (tmp_path / "pictures" / "label").mkdir(parents=True)
    Image.new("RGB", (300, 300)).save(tmp_path / "pictures" / "label" / "1.png")
    np.savez(tmp_path / "a.npz", x=np.arange(40).reshape(20, 2))
    names = ["npy", "zarr", "arrow", "parquet", "lance", "tfrecord", "safetensors"]
    manifest, _ = iobench.prepare(iobench.open_source(tmp_path / "a.npz"), names, data_dir=tmp_path / "whole")
    places = [manifest.path_of(name) for name in names[1:]]
    places = [next((one for one in place.glob("*.[asb]*[wsd]") if one.is_file()), place) for place in places]
    asked = [["prepare", "--source", str(place), "--name", "n"] for place in [*places, "pictures"]]
    asked += [["add", "pictures"], ["limits", "--seconds", "0.01", "--data-dir", "whole"]]
    done = subprocess.run(
        [sys.executable, "-m", "eval.faults.core_only"],
        input="".join(json.dumps(one) + "\n" for one in asked),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": CORE_ONLY},
    )
    assert [json.loads(line) for line in done.stdout.splitlines()] == [None] * len(asked), done.stdout
    assert not (tmp_path / "data" / "n").exists()
