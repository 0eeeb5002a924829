"""Output of the commands over fixed records, and its form over measured ones."""

import numpy as np
import pytest
from conftest import prepared
from record_cases import a_large_run, a_record, rounds_of
from text_file import TextFile, without_figures

from iobench.results import record_file

OLD = {"npy": 3000, "hdf5": 1500, "lmdb": 2900}
NEW = {"npy": 3000, "hdf5": 1200, "lmdb": 3100}
SPREAD = (1.0, 1.01, 0.99, 1.004, 0.996, 1.002, 0.998, 1.006, 0.994, 1.0)


def a_run(speeds, run):
    """Return ten rounds of each variant under two loaders."""
    return [
        a_record(speed * factor * share, number, variant=name, loader=loader, run=run)
        for loader, share in (("native", 1.0), ("dataloader", 0.1))
        for name, speed in speeds.items()
        for number, factor in enumerate(SPREAD, 1)
    ]


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A data folder with a dataset, small runs and a large one; commands add only the index of its runs."""
    folder = tmp_path_factory.mktemp("golden")
    prepared(folder, {"x": np.zeros((64, 8), np.float32)}, ["npy", "hdf5"])
    runs = {"old": a_run(OLD, "old"), "new": a_run(NEW, "new"), "large": a_large_run()}
    runs["few"] = rounds_of([3000, 3100], run="few")
    for name, records in runs.items():
        for one in records:
            record_file.append(folder / "data" / "results" / f"{name}.jsonl", one)
    return folder / "data"


@pytest.fixture
def data_dir(stored, monkeypatch):
    """`stored`, in the current folder."""
    monkeypatch.chdir(stored.parent)
    monkeypatch.setenv("COLUMNS", "120")
    return stored


COMMANDS = {
    "runs": ("runs",),
    "runs-show": ("runs", "show", "new"),
    "runs-show-wide": ("runs", "show", "new", "--wide"),
    "runs-show-large": ("runs", "show", "large"),
    "runs-show-few": ("runs", "show", "few"),
    "runs-trend": ("runs", "trend"),
    "compare": ("compare", "old", "new"),
    "compare-markdown": ("compare", "old", "new", "--markdown"),
    "compare-gate": ("compare", "old", "new", "--fail-on", "slower:5%"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_output_over_fixed_records(name, data_dir, inside, snapshot):
    done = inside(*COMMANDS[name])
    shown = f"exit code {done.returncode}\n{done.stdout}\n--- stderr\n{done.stderr}"
    assert shown.replace(str(data_dir.parent), "FOLDER") == snapshot(extension_class=TextFile)


MISTAKES = (
    ("run", "--format", "csv"),
    ("run", "--format", "hdf5:speed=1"),
    ("run", "--format", "hdf5:compression=zip"),
    ("run", "--loader", "fast"),
    ("run", "--batch-size", "0"),
    ("run", "--order", "backwards"),
    ("run", "--cache", "tepid"),
    ("run", "--name", "nothing"),
    ("run", "--resume", "nothing"),
    ("prepare", "--size", "many"),
    ("prepare", "--dtype", "float12"),
    ("prepare", "--source", "nothing.npz"),
    ("add", "nothing"),
    ("add", "data", "--field", "x"),
    ("compare", "old", "nothing"),
    ("compare", "old", "new", "--fail-on", "faster:5%"),
    ("recommend", "--sample-shape", "3x2x2"),
    ("diagnose", "train.py"),
    ("diagnose", "train.py:make_loader"),
    ("tune", "train.py:make_loader", "--max-time", "0"),
    ("study", "nothing"),
    ("report", "nothing"),
    ("verify", "--name", "nothing"),
    ("limits", "--seconds", "-1"),
)


def test_mistakes_get_one_line_each(data_dir, inside, snapshot):
    lines = []
    for words in MISTAKES:
        done = inside(*words)
        lines += [f"$ iobench {' '.join(words)}   # exit code {done.returncode}", done.stderr.rstrip(), ""]
    assert "\n".join(lines).replace(str(data_dir.parent), "FOLDER") == snapshot(extension_class=TextFile)


@pytest.mark.parametrize("name", ["formats", "loaders"])
def test_options_of_formats_and_loaders(name, inside, snapshot):
    _, options = inside(name).stdout.split("\n\n")  # the first table depends on what is installed
    assert options == snapshot(extension_class=TextFile)


def test_list_of_studies(inside, snapshot):
    assert inside("study", "list").stdout == snapshot(extension_class=TextFile)


def test_form_of_prepare_and_verify(tmp_path, inside, snapshot, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prepared = inside("prepare", "--size", "1e5")
    verified = inside("verify")
    shown = "\n".join(f"{done.stdout}--- stderr\n{done.stderr}" for done in (prepared, verified))
    assert without_figures(shown) == snapshot(extension_class=TextFile)
