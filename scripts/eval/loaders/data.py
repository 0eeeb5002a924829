"""Files that the loaders read, created once in a folder."""

from __future__ import annotations

import io
import tarfile
import zlib
from pathlib import Path

import h5py
import lmdb
import numpy as np
from PIL import Image

IMAGES, SIDE = 400, 160
ROWS, WIDE = 4096, 512
TOKENS = 2_000_000
SEQUENCES = 4000
PHOTOS, PHOTO = 40, (1280, 960)
SMALL_FILES = 800
RECORDS, RECORD = 600, 1 << 17


def create_files(folder: Path) -> Path:
    """Create the files unless they exist, and return the folder."""
    if not (folder / "done").exists():
        rng = np.random.default_rng(0)
        for write in (_images, _hdf5, _lmdb, _tokens, _photos, _small_files, _records):
            write(folder, rng)
        (folder / "done").touch()
    return folder


def lengths() -> np.ndarray:
    """Return the lengths of sequences, most of them short."""
    return np.clip(np.random.default_rng(1).lognormal(3.5, 0.8, SEQUENCES).astype(int), 8, 512)


def _images(folder: Path, rng: np.random.Generator) -> None:
    (folder / "images").mkdir(parents=True)
    with tarfile.open(folder / "shard.tar", "w") as tar:
        for number in range(IMAGES):
            smooth = rng.integers(0, 255, (SIDE // 8, SIDE // 8, 3), np.uint8)
            image = Image.fromarray(smooth).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
            image.save(folder / "images" / f"{number:05}.jpg", quality=90)
            body = (folder / "images" / f"{number:05}.jpg").read_bytes()
            for name, data in ((f"{number:05}.jpg", body), (f"{number:05}.cls", str(number % 10).encode())):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


def _hdf5(folder: Path, rng: np.random.Generator) -> None:
    rows = rng.random((ROWS, WIDE), np.float32)
    with h5py.File(folder / "plain.h5", "w") as file:
        file["x"] = rows
    with h5py.File(folder / "gzip.h5", "w") as file:
        file.create_dataset("x", data=rows[:512], chunks=(128, WIDE), compression="gzip")


def _lmdb(folder: Path, rng: np.random.Generator) -> None:
    env = lmdb.open(str(folder / "lmdb"), map_size=64 << 20)
    with env.begin(write=True) as transaction:
        for number in range(ROWS):
            transaction.put(number.to_bytes(4, "big"), rng.random(WIDE, np.float32).tobytes())
    env.close()


def _tokens(folder: Path, rng: np.random.Generator) -> None:
    rng.integers(1, 50_000, TOKENS).astype(np.uint16).tofile(folder / "tokens.bin")


def _photos(folder: Path, rng: np.random.Generator) -> None:
    (folder / "photos").mkdir()
    for number in range(PHOTOS):
        smooth = rng.integers(0, 255, (PHOTO[1] // 16, PHOTO[0] // 16, 3), np.uint8)
        image = Image.fromarray(smooth).resize(PHOTO, Image.Resampling.BICUBIC)
        image.save(folder / "photos" / f"{number:05}.jpg", quality=90)


def _small_files(folder: Path, rng: np.random.Generator) -> None:
    (folder / "small").mkdir()
    for number in range(SMALL_FILES):
        np.save(folder / "small" / f"{number:05}.npy", rng.random(256, np.float32))


def _records(folder: Path, rng: np.random.Generator) -> None:
    """Write records of the same size on disk: a length, and compressed numbers."""
    with (folder / "records.bin").open("wb") as file:
        for _ in range(RECORDS):
            packed = zlib.compress(rng.integers(0, 50, 1 << 15).astype(np.float32).tobytes(), 1)
            file.write((len(packed).to_bytes(4, "big") + packed).ljust(RECORD, b"\0"))
