"""Hints lead on: what an error says to type is typed; it is neither refused nor fails for that."""

import io
import re
import tarfile

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import typer
from safetensors.numpy import save_file

from iobench.terminal.cli import app

X, Y = np.ones((10, 3), np.float32), np.ones(7, np.int64)
TEXT = ["a", "b", "c"]
LOADER = "def make():\n    return [1.0, 2.0]\n"


def hdf5(path):
    with h5py.File(path, "w") as file:
        file.update({"x": X, "y": Y, "text": ["a"] * 10, "scalar": 3})
        file["pairs"] = np.zeros(10, [("a", "f4"), ("b", "i4")])


def zarr_group(path):
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(path, mode="w")
    group["x"], group["y"] = X, Y


def groups(path):
    with h5py.File(path, "w") as file:
        file.update({f"demo_{number}/x": X for number in range(3)})


def virtual(path):
    layout = h5py.VirtualLayout((10, 3), "f4")
    layout[:] = h5py.VirtualSource("../lengths.h5", "x", (10, 3))
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("x", layout)
        file["y"] = X


def tables(path):
    path.mkdir()
    for number in range(2):
        (path / f"{number}.csv").write_text("a,b\n1,2\n")


def table(**columns):
    return lambda path: pq.write_table(pa.table(columns), path)


def tar(path):
    with tarfile.open(path, "w") as file:
        for number in range(4):
            member = tarfile.TarInfo(f"{number}.raw")
            member.size = 12
            file.addfile(member, io.BytesIO(bytes(12)))


def folder(path):
    path.mkdir()
    (path / "train-00000-of-00001").write_bytes(b"no name that is known")


INPUTS = {
    "lengths.h5": lambda path: h5py.File(path, "w").update({"x": X, "y": Y}),
    "types.h5": hdf5,
    "groups.h5": groups,
    "virtual.h5": virtual,
    "tables": tables,
    "lengths.zarr": zarr_group,
    "lengths.safetensors": lambda path: save_file({"x": X, "y": Y}, path),
    "types.npz": lambda path: np.savez(path, x=X, y=Y, objects=np.array([1, "a"], object), text=["a"] * 10),
    "types.pt": lambda path: torch.save({"x": torch.ones(10), "y": torch.ones(3, 3).to_sparse()}, path),
    "text.parquet": table(text=TEXT, title=TEXT),
    "text-and-number.parquet": table(text=TEXT, id=[1, 2, 3]),
    "tags.parquet": table(tags=[["a"], ["b", "c"], []], text=TEXT, id=[1, 2, 3], n=[4, 5, 6]),
    "nulls.parquet": table(a=[1.0, None, 2.0], b=[1, 2, 3]),
    "null-lists.parquet": table(a=[[1.0], [None], [2.0]], b=[1, 2, 3]),
    "text.csv": lambda path: path.write_text("a,b\nx,1\ny,2\n"),
    "text.jsonl": lambda path: path.write_text('{"a": "x", "b": 1}\n{"a": "y", "b": 2}\n'),
    "tokens.bin": lambda path: path.write_bytes(bytes(4096)),
    "raw.tar": tar,
    "records": folder,
    "train.py": lambda path: path.write_text(LOADER),
}
READ_IN_PLACE = ("h5", "zarr", "safetensors", "parquet", "bin", "tar")
SEEN = [
    *(("prepare", "--format", "npy", "--source", name) for name in INPUTS if not name.endswith(("s", ".py"))),
    *(("add", name) for name in INPUTS if name.endswith(READ_IN_PLACE)),
    *(("add", name) for name in ("types.npz", "text.csv")),
    ("add", "records", "--format", "tfrecord"),
    ("add", "tables"),
    *(
        ("recommend", "--source", name)
        for name in ("raw.tar", "groups.h5", "virtual.h5", "text.csv", "types.npz")
    ),
    ("run", "--loader", "train.py:make"),
]
# hints that name nothing to type but a change of the data
WITHOUT_A_COMMAND = {"text.parquet", "nulls.parquet", "null-lists.parquet", "records"}
QUICK = {"prepare --size 1e7": ("--size", "1e4"), "diagnose": ("--no-variants", "--batches", "1")}
COMMAND = re.compile(r"'iobench ([^']+)'")
SELECTION = re.compile(r"append (::\S+)")
OPTION = re.compile(r"(--[a-z][a-z-]*)(?: '([^']+)'| (?!names)([^\s;,']+))?")  # "--format names it" is prose


def hinted(words, error):
    """Yield the commands that an error says to type, each as the words of a command that takes no time."""
    for text in COMMAND.findall(error):
        yield [*text.split(), *(word for begin in QUICK if text.startswith(begin) for word in QUICK[begin])]
    for selection in SELECTION.findall(error):
        yield [f"{word}{selection}" if word in INPUTS else word for word in words]
    for option, quoted, plain in OPTION.findall(COMMAND.sub("", error)):
        if value := quoted or plain:
            yield [*words, option, value.replace("DTYPE[SHAPE]", "float32[3]")]


def kind_of(done):
    return re.findall(r"^iobench: error\[(.+?)\]", done.stderr, re.MULTILINE)


@pytest.mark.parametrize("words", SEEN, ids=" ".join)
def test_what_a_hint_says_works_when_typed(words, inside, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in INPUTS.keys() & {word.partition(":")[0] for word in words}:
        INPUTS[name](tmp_path / name)
    failed = inside(*words)
    (kind,) = kind_of(failed)
    error = failed.stderr.splitlines()[-1]
    known = {name for one in typer.main.get_command(app).commands[words[0]].params for name in one.opts}
    assert {option for option, *_ in OPTION.findall(COMMAND.sub("", error))} <= known
    commands = list(hinted(words, error))
    for command in commands if words[0] != "recommend" else ():  # which would measure
        done = inside(*command)
        assert done.returncode == 0 or (done.returncode == 1 and kind_of(done) != [kind]), (command, done)
    assert commands or WITHOUT_A_COMMAND & {*words}, error
