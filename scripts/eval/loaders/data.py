"""Files that good loaders read, created once in a folder."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import h5py
import lmdb
import numpy as np
from PIL import Image

IMAGES, SIDE = 400, 160
ROWS, WIDE = 4096, 512
TOKENS = 2_000_000
SEQUENCES = 4000


def create_files(folder: Path) -> Path:
    """Create the files unless they exist, and return the folder."""
    if not (folder / "done").exists():
        rng = np.random.default_rng(0)
        for write in (_images, _hdf5, _lmdb, _tokens):
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


def _lmdb(folder: Path, rng: np.random.Generator) -> None:
    env = lmdb.open(str(folder / "lmdb"), map_size=64 << 20)
    with env.begin(write=True) as transaction:
        for number in range(ROWS):
            transaction.put(number.to_bytes(4, "big"), rng.random(WIDE, np.float32).tobytes())
    env.close()


def _tokens(folder: Path, rng: np.random.Generator) -> None:
    rng.integers(1, 50_000, TOKENS).astype(np.uint16).tofile(folder / "tokens.bin")
