"""Loaders as found in the wild that read files in a slow way, each with the right answer.

Each makes its files in a folder, unless they are there.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import h5py
import lmdb
import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from eval.loaders.answers import FORK, Answer, Computed
from eval.loaders.data import ROWS

MANY, FEW, POINTS = 800, 48, 400


def written(folder: Path, write: Callable[[Path], None]) -> Path:
    """Return a folder or file that a function has written, once."""
    if not (folder.parent / f"{folder.name}.done").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        write(folder)
        (folder.parent / f"{folder.name}.done").touch()
    return folder


def texts(folder: Path, suffix: str, text_of: Callable[[np.ndarray], str]) -> list[Path]:
    """Return files of text, each with some points."""

    def write(target: Path) -> None:
        target.mkdir()
        rng = np.random.default_rng(0)
        for number in range(MANY):
            (target / f"{number}{suffix}").write_text(text_of(rng.random((POINTS, 2)).round(4)))

    return sorted(written(folder, write).iterdir())


def xml_boxes(folder: Path):
    def xml(points):
        return f"<a>{''.join(f'<p><x>{x}</x><y>{y}</y></p>' for x, y in points)}</a>"

    def parse(row):
        root = ElementTree.parse(paths[row]).getroot()
        return torch.tensor([float(one.find("x").text) for one in root.iter("p")])

    paths = texts(folder / "xml", ".xml", xml)
    return DataLoader(Computed(MANY, parse), 16, shuffle=True)


def json_labels(folder: Path):
    def parse(row):
        return torch.from_numpy(np.array(json.loads(paths[row].read_text())["points"], np.float32))

    paths = texts(
        folder / "json", ".json", lambda points: json.dumps({"points": (1e4 * points).tolist() * 4})
    )
    return DataLoader(Computed(MANY, parse), 16, shuffle=True)


def csv_series(folder: Path):
    def parse(row):
        with paths[row].open() as file:
            return torch.from_numpy(np.array([[float(x) for x in line] for line in csv.reader(file)]))

    paths = texts(folder / "csv", ".csv", lambda points: "\n".join(f"{x},{y}" for x, y in points))
    return DataLoader(Computed(MANY, parse), 16, shuffle=True)


def pandas_series(folder: Path):
    import pandas as pd

    def parse(row):
        return torch.from_numpy(pd.read_csv(paths[row], header=None).to_numpy())

    paths = texts(folder / "csv", ".csv", lambda points: "\n".join(f"{x},{y}" for x, y in points))
    return DataLoader(Computed(MANY, parse), 16, shuffle=True)


def whole_sound(folder: Path):
    import soundfile

    def write(target: Path) -> None:
        target.mkdir()
        for number in range(FEW):
            noise = np.random.default_rng(number).normal(0, 0.1, 16_000 * 30)
            soundfile.write(target / f"{number}.flac", noise, 16_000)

    def window(row):
        start = int(torch.randint(0, 16_000 * 29, ()))
        return torch.from_numpy(soundfile.read(paths[row])[0][start : start + 16_000])

    paths = sorted(written(folder / "sound", write).iterdir())
    return DataLoader(Computed(FEW, window), 8, shuffle=True)


class Mapped(Dataset):
    """Rows of an array that is meant to be mapped."""

    def __init__(self, path):
        self.file = np.load(path, mmap_mode="r")

    def __len__(self):
        return 4000

    def __getitem__(self, row):
        return torch.from_numpy(self.file["x"][row])


def mapped_npz(folder: Path):
    def write(target: Path) -> None:
        np.savez(target, x=np.random.default_rng(0).random((4000, 512), np.float32))

    return DataLoader(Mapped(written(folder / "rows.npz", write)), 16, shuffle=True)


def lmdb_opened(folder: Path):
    def write(target: Path) -> None:
        with lmdb.open(str(target), map_size=1 << 26) as env, env.begin(write=True) as put:
            for number in range(MANY):
                put.put(f"{number:05}".encode(), np.full(256, number, np.float32).tobytes())

    def read(row):
        env = lmdb.open(path, readonly=True, lock=False)
        with env.begin() as get:
            value = bytearray(get.get(f"{row:05}".encode()))
        env.close()
        return torch.frombuffer(value, dtype=torch.float32)

    path = str(written(folder / "lmdb-opened", write))
    return DataLoader(Computed(MANY, read), 16, shuffle=True)


def volumes(folder: Path, **options) -> Path:
    def write(target: Path) -> None:
        rough = np.random.default_rng(0).integers(0, 30, (FEW, 8, 32, 32)).astype(np.int16)
        with h5py.File(target, "w") as file:
            file.create_dataset("x", data=rough.repeat(8, 1).repeat(4, 2).repeat(4, 3), **options)

    return written(folder / f"volumes-{len(options)}.h5", write)


def crop_of(path, row):
    z, y, x = np.random.default_rng().integers(0, (48, 96, 96))
    with h5py.File(path) as file:
        return torch.from_numpy(file["x"][row, z : z + 16, y : y + 32, x : x + 32])


def gzip_crops(folder: Path):
    path = volumes(folder, chunks=(1, 64, 128, 128), compression="gzip")
    return DataLoader(Computed(FEW, partial(crop_of, path)), 4, shuffle=True)


def h5py_opened(folder: Path):
    return DataLoader(Computed(FEW, partial(crop_of, volumes(folder))), 4, shuffle=True)


def zarr_crops(folder: Path):
    import zarr

    def write(target: Path) -> None:
        rough = np.random.default_rng(0).integers(0, 30, (FEW, 8, 32, 32)).astype(np.int16)
        whole = rough.repeat(8, 1).repeat(4, 2).repeat(4, 3)
        zarr.create_array(store=str(target), data=whole, chunks=(4, 64, 128, 128))

    def crop(row):
        y, x = np.random.default_rng().integers(0, (96, 96))
        return torch.from_numpy(array[row, 8:24, y : y + 32, x : x + 32])

    array = zarr.open(str(written(folder / "volumes.zarr", write)), mode="r")
    return DataLoader(Computed(FEW, crop), 4, shuffle=True)


def photos(folder: Path) -> list[Path]:
    def write(target: Path) -> None:
        target.mkdir()
        for number in range(FEW):
            smooth = np.random.default_rng(number).integers(0, 255, (60, 80, 3), np.uint8)
            Image.fromarray(smooth).resize((1280, 960), Image.Resampling.BICUBIC).save(
                target / f"{number}.jpg"
            )

    return sorted(written(folder / "photos", write).iterdir())


def resized_photos(folder: Path):
    def load(row):
        image = Image.open(paths[row]).convert("RGB").resize((224, 224))
        flipped = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if torch.rand(()) < 0.5 else image
        return torch.from_numpy(np.array(flipped)).permute(2, 0, 1)

    paths = photos(folder)
    return DataLoader(Computed(FEW, load), 8, shuffle=True)


def cropped_photos(folder: Path):
    def load(row):
        x, y = torch.randint(0, 400, (2,)).tolist()
        image = Image.open(paths[row % FEW]).convert("RGB").crop((x, y, x + 500, y + 500)).resize((224, 224))
        return torch.from_numpy(np.array(image)).permute(2, 0, 1)

    paths = photos(folder)
    return DataLoader(Computed(8 * FEW, load), 8, shuffle=True, num_workers=2, **FORK)


def listed_pixels(folder: Path):
    def load(row):
        image = Image.open(paths[row])
        image.draft(None, (160, 120))
        return torch.tensor(np.array(image.convert("RGB")).tolist())

    paths = photos(folder)
    return DataLoader(Computed(FEW, load), 8, shuffle=True)


def small_files(folder: Path) -> Path:
    def write(target: Path) -> None:
        target.mkdir()
        for number in range(MANY):
            with gzip.open(target / f"{number}.npy.gz", "wb", 1) as file:
                np.save(file, np.random.default_rng(number).integers(0, 9, 40_000).astype(np.float32))

    return written(folder / "gz", write)


def globbed(folder: Path):
    def load(row):
        path = sorted(source.glob("*.gz"))[row]
        return torch.full((4,), len(path.name))

    source = small_files(folder)
    return DataLoader(Computed(MANY, load), 16, shuffle=True, num_workers=2, **FORK)


def gunzipped(folder: Path):
    def load(row):
        with gzip.open(paths[row]) as file:
            return torch.from_numpy(np.load(file))

    paths, annotations = sorted(small_files(folder).iterdir()), [{"n": [n]} for n in range(300_000)]
    return DataLoader(Computed(MANY, load, held=annotations), 16, shuffle=True, num_workers=2, **FORK)


class Inherited(Dataset):
    """Rows of a file that the constructor opens, as in most examples."""

    def __init__(self, path):
        self.x = h5py.File(path)["x"]

    def __len__(self):
        return len(self.x)

    def __getitem__(self, row):
        return torch.from_numpy(self.x[row, 0, :16, :16])


def shared_hdf5(folder: Path):
    return DataLoader(Inherited(volumes(folder)), 4, shuffle=True, num_workers=2, **FORK)


class LookedUp(Dataset):
    """Keeps the file open, and looks its array up by name for each sample."""

    def __init__(self, path):
        self.path, self.file = path, None

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        self.file = self.file or h5py.File(self.path)
        return torch.from_numpy(self.file["x"][row])


def looked_up(folder: Path):
    return DataLoader(LookedUp(folder / "plain.h5"), 64, shuffle=True)


IMAGES = ("jpeg-decoder", "decoding", "too-few-workers")
ANSWERS = {
    xml_boxes: Answer("parsed-text", also=("file-per-sample", "too-few-workers")),
    json_labels: Answer("parsed-text", also=("file-per-sample", "too-few-workers")),
    csv_series: Answer("parsed-text", also=("file-per-sample", "too-few-workers")),
    pandas_series: Answer(
        "parsed-text", also=("file-per-sample", "too-few-workers"), false=("dataframe-rows",)
    ),
    whole_sound: Answer("whole-sound", also=("too-few-workers",), false=("decoding",)),
    mapped_npz: Answer("npz-members", also=("too-few-workers",), false=("decoding", "file-per-sample")),
    lmdb_opened: Answer("file-reopened", also=("too-few-workers",), false=("file-per-sample",)),
    h5py_opened: Answer("file-reopened", also=("too-few-workers",), false=("chunks",)),
    looked_up: Answer("array-lookup", "per-sample", second=("array-lookup",)),
    gzip_crops: Answer("chunks", also=("too-few-workers",), false=("file-reopened",)),
    zarr_crops: Answer("chunks", also=("too-few-workers",)),
    resized_photos: Answer("jpeg-draft", also=IMAGES),
    cropped_photos: Answer("jpeg-decoder", "decoding", also=IMAGES, false=("threads", "garbage-collection")),
    listed_pixels: Answer("python-lists", "garbage-collection", also=IMAGES),
    globbed: Answer("folder-listed", false=("threads", "garbage-collection")),
    gunzipped: Answer("decoding", also=("file-per-sample",), false=("threads", "garbage-collection")),
    shared_hdf5: Answer("open-handles", also=("file-reopened", "workers-cost", "first-batch")),
}
