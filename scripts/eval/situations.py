"""Regret of `iobench recommend` on data of a user's own, situation by situation.

Each situation makes files as users have them and runs the command on them. Then its sample is also written in
the usual formats that there was no time for. The candidates over these, the user's files and the recommended
format are measured in fresh interleaved rounds, as in `recommendations`, but in the time for the grid:
`missing` counts those that there was no time for. Regret is how much longer the recommended case takes than
the fastest of them, by the medians; `held out` is the same against the case that is fastest in every second
round, by the other rounds, and vice versa. `compared` says whether the default and at least one other case
had final rounds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import torch

import iobench
from eval import harness, recommendations
from eval.harness import Row, Trials
from iobench import Manifest, Requirements
from iobench.advise.candidates import candidate_set, loader_word
from iobench.base.errors import IobenchError
from iobench.bench.case import Case
from iobench.dataset import seal
from iobench.dataset.add import add
from iobench.dataset.added_source import AddedSource
from iobench.dataset.prepare import DEFAULT_FORMATS
from iobench.formats import Field

OPTIONS = {
    "rounds": (9, "rounds of the grid"),
    "max_time": (60.0, "seconds for each recommendation"),
    "grid_time": (60.0, "seconds for the grid: half for one round of all candidates, half for those near"),
    "scale": (1.0, "of the number of samples"),
    "packages": ("installed", "packages to consider: installed, or core"),
    "show": (False, "print what each command prints"),
    "neighbour": (False, "with another process that keeps one core busy"),
}
COLUMNS, WINDOW = 40, 257
OWN = """\
import numpy as np
import torch

def make_loader(path):
    x = torch.from_numpy(np.load({path!r}))
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), 256, shuffle=True)
"""

Words = list[str]  # arguments of `iobench recommend`
Make = Callable[[Path, int], Words]


def images(folder: Path, count: int) -> Words:
    """JPEG files of different sizes in a folder per label."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for number in range(count // 200):
        (target := folder / "photos" / f"label{number % 5}").mkdir(parents=True, exist_ok=True)
        rough = rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)
        size = (300 + number % 200, 240 + number * 7 % 200)
        Image.fromarray(rough).resize(size).save(target / f"{number}.jpg", quality=90)
    return ["--source", str(folder / "photos")]


def table(folder: Path, count: int) -> dict[str, Any]:
    """Return columns of numbers and a label."""
    rng = np.random.default_rng(0)
    columns = {f"f{number}": rng.normal(size=count).astype(np.float32) for number in range(COLUMNS)}
    return {**columns, "label": rng.integers(0, 10, count)}


def csv_table(folder: Path, count: int) -> Words:
    """A table of 41 columns as text."""
    from pyarrow import csv as pyarrow_csv
    from pyarrow import table as pyarrow_table

    pyarrow_csv.write_csv(pyarrow_table(table(folder, count)), folder / "table.csv")
    return ["--source", str(folder / "table.csv")]


def parquet_table(folder: Path, count: int) -> Words:
    """The same in Parquet."""
    from pyarrow import parquet
    from pyarrow import table as pyarrow_table

    parquet.write_table(pyarrow_table(table(folder, count)), folder / "table.parquet")
    return ["--source", str(folder / "table.parquet")]


def tokens(folder: Path, count: int) -> Words:
    """NanoGPT's train.bin, in windows."""
    np.random.default_rng(0).integers(0, 50_000, 128 * count, dtype=np.uint16).tofile(folder / "train.bin")
    return ["--source", str(folder / "train.bin"), "--source-format", f"tokens:dtype=uint16,window={WINDOW}"]


def hdf5(folder: Path, count: int, **options: Any) -> Words:
    """Samples of 1.75 KiB in HDF5, in datasets with these options."""
    with h5py.File(folder / "own.h5", "w") as file:
        file.create_dataset("x", data=samples(count), **options)
        file.create_dataset("y", data=np.arange(count) % 10)
    return ["--source", str(folder / "own.h5")]


def samples(count: int) -> Any:
    """Return float32 arrays of which some bytes can be compressed."""
    return np.random.default_rng(0).integers(0, 40, (count, 16, 28)).astype(np.float32)


def lmdb_of_others(folder: Path, count: int) -> Words:
    """LMDB with a value of raw bytes for each key."""
    own = lmdb.open(str(folder / "own"), map_size=1 << 32)
    with own, own.begin(write=True) as put:
        for number, sample in enumerate(samples(count)):
            put.put(f"{number:08}".encode(), sample.tobytes())
    add(folder / "own", "lmdb", fields=[Field("x", (16, 28), "float32")], data_dir=folder / "data")
    return ["--name", "own"]


def npz(folder: Path, count: int) -> Words:
    """A compressed archive of arrays."""
    np.savez_compressed(folder / "own.npz", x=samples(count), y=np.arange(count) % 10)
    return ["--source", str(folder / "own.npz")]


def tensors(folder: Path, count: int) -> Words:
    """Tensors by torch.save."""
    torch.save({"x": torch.from_numpy(samples(count)), "y": torch.arange(count) % 10}, folder / "own.pt")
    return ["--source", str(folder / "own.pt")]


def written(folder: Path, count: int, variant: str) -> Words:
    """Files in a format as its library writes them."""
    source = iobench.Synthetic(448 * count, (16, 28))
    made = iobench.prepare(source, [variant], data_dir=folder / "made", name="made")[0]
    path = made.path_of(variant).rename(folder / "own")
    (path / seal.FILE_NAME).unlink()
    return ["--source", str(path), "--source-format", variant.partition(":")[0]]


def own_function(folder: Path, count: int) -> Words:
    """Arrays in memory under a function of the user's own."""
    np.save(folder / "own.npy", samples(count))
    (folder / "train.py").write_text(OWN.format(path=str(folder / "own.npy")))
    return ["--source", str(folder / "own.npy"), "--loader", f"{folder / 'train.py'}:make_loader"]


SITUATIONS: dict[str, Make] = {
    "images": images,
    "csv": csv_table,
    "parquet": parquet_table,
    "tokens": tokens,
    "hdf5-bad-chunks": partial(hdf5, chunks=(1024, 2, 28)),
    "hdf5-gzip": partial(hdf5, chunks=(64, 16, 28), compression="gzip"),
    "lmdb": lmdb_of_others,
    "npz": npz,
    "pt": tensors,
    "zarr": partial(written, variant="zarr"),
    "webdataset": partial(written, variant="webdataset"),
    "own-function": own_function,
}


def trials(options: argparse.Namespace) -> Trials:
    options.ends.enter_context(harness.background_load(int(options.neighbour)))
    return {name: partial(regret, options, name, make) for name, make in SITUATIONS.items()}


def regret(options: argparse.Namespace, name: str, make: Make) -> Iterator[Row]:
    """Make the files, run the command, measure the grid, and yield the regret."""
    (folder := options.folder / name).mkdir()
    words = make(folder, int(60_000 * options.scale))
    answer, took_s = harness.timed(lambda: recommended(words, folder / "data", options))
    manifest = completed(Manifest.load(folder / "data" / answer["dataset"]))
    cases, used = cases_of(manifest, words, answer["use"], options.packages)
    half_s = options.grid_time / 2
    rates, _, tried = recommendations.grid(manifest, cases, options, used.key, few_rounds=1, run_s=half_s)
    names = {case.key: f"{case.variant} · {loader_word(case)}" for case in cases}
    roles = [role for one in answer["finalists"] for role in one["roles"]]
    yield {
        "answer": answer["findings"][0]["message"],
        "compared": "default" in roles and len(answer["finalists"]) > 1,
        "of the time": took_s / options.max_time,
        "missing": len(cases) - tried,
        **recommendations.judged(rates, used.key, names),
    }


def recommended(words: Words, data_dir: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run `iobench recommend` and return its answer."""
    command = [sys.executable, "-m", "iobench", "recommend", *words, "--json", "--data-dir", str(data_dir)]
    command += ["--max-time", f"{options.max_time:g}", "--only", options.packages]
    done = subprocess.run(command, capture_output=True, text=True)
    if options.show or done.returncode:
        print(done.stderr, file=sys.stderr)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def completed(sample: Manifest) -> Manifest:
    """Return a sample with the usual formats that it can hold."""
    source = AddedSource(sample) if sample.added else None
    for variant in DEFAULT_FORMATS:
        if variant not in sample.artifacts and source is not None:
            with suppress(IobenchError):
                sample = iobench.prepare(source, [variant], data_dir=sample.root.parent, name=sample.name)[0]
    return sample


def cases_of(manifest: Manifest, words: Words, use: Row, packages: str) -> tuple[list[Case], Case]:
    """Return the candidates and the recommended one."""
    loaders = tuple(word for option, word in itertools.pairwise(words) if option == "--loader")
    requirements = Requirements(loaders=loaders or ("all",), only=packages)
    cases = candidate_set(manifest, requirements, "cpu", "warm", tuple(manifest.added)).cases
    kept = {*DEFAULT_FORMATS, *manifest.added, use["format"]}
    cases = [case for case in cases if case.variant in kept]
    isolated = any(case.isolated for case in cases)
    cases = [replace(case, isolated=isolated) for case in cases]
    # what there is no time for comes last
    cases.sort(key=lambda case: (case.variant != use["format"], case.loader.workers))
    alike = {key: case for case in cases for key in (case.key, replace(case, isolated=not isolated).key)}
    return cases, alike[use["key"]]


def summary(rows: list[Row]) -> Iterator[str]:
    yield (
        f"compared with the default: {sum(row['compared'] for row in rows)} of {len(rows)}; "
        f"{recommendations.regrets(rows)}; "
        f"time taken: worst {max(row['of the time'] for row in rows):.0%} of --max-time"
    )
