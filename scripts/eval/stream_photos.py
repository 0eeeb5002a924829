"""Compare StreamLoader over JPEG files with decoding by all cores, DataLoader's workers and FFCV, in MB/s.

Pixels count, not stored bytes. The images have the spectrum of photographs: the amplitude of a wave falls
with its frequency, so that JPEG takes about as many bytes for them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from subprocess import PIPE

import numpy as np

import iobench
from eval import harness
from eval.harness import Rate, Row, Trials, against, epoch_rate
from iobench import formats
from iobench.bench.decode_limit import DecodeLimit
from iobench.loading.order import Order

OPTIONS = {
    "rounds": (5, harness.ROUNDS),
    "scale": (1.0, "of the number of images"),
    "decoders": (
        ["simplejpeg", "simplejpeg,dct_scaling=yes"],
        "beside Pillow; the first also under DataLoader",
    ),
    "ffcv": ("", "a Python that has FFCV, whose loader is then measured, too"),
}
SIZES = {"small": (1500, 300, 600), "large": (120, 2000, 3000)}  # images, pixels of a side: least and most
PILLOW = "images:shape=3x224x224"
CROPS = {"center": "", "random": ",crop=random"}
ORDER, CORES, DECODE_S = Order("random", 64), len(os.sched_getaffinity(0)), 2.0


def trials(options: argparse.Namespace) -> Trials:
    return {f"{name}, {crop}": partial(photos, options, name, crop) for name in SIZES for crop in CROPS}


def photos(options: argparse.Namespace, name: str, crop: str) -> Iterator[Row]:
    """Compare the loaders, each over the files as Pillow and as other decoders read them."""
    count, low, high = SIZES[name]
    folder = options.folder / f"{name}-photos"
    if not folder.exists():
        written(folder, round(count * options.scale), low, high)
    variants = {"pillow": PILLOW, **{one: f"{PILLOW},decoder={one}" for one in options.decoders}}
    variants = {title: formats.parse(f"{one}{CROPS[crop]}").variant for title, one in variants.items()}
    for variant in variants.values():
        data = iobench.add(folder, variant, name=f"{name}-{crop}", data_dir=options.folder)[0]
    today = f"dataloader:num_workers={CORES}"
    contenders = {"DataLoader, Pillow": epoch_rate(data, variants["pillow"], today, ORDER)}
    for title, variant in variants.items():
        contenders[f"stream, {title}"] = epoch_rate(data, variant, "stream", ORDER)
        limit = DecodeLimit(data.opener(variant))
        contenders[f"decoding, {title}"] = lambda number, limit=limit: limit(DECODE_S).bytes_per_s
    first = options.decoders[0]
    contenders[f"DataLoader, {first}"] = epoch_rate(data, variants[first], today, ORDER)
    if options.ffcv:
        contenders["FFCV"] = ffcv_rate(options, folder, crop)
    rates = harness.medians(contenders, options.rounds)
    for title in variants:
        others = [(f"decoding, {title}", 0.9), ("DataLoader, Pillow", 1 + (title != "pillow"))]
        for other, expected in [*others, *([("FFCV", 1)] if options.ffcv else [])]:
            yield {"work": f"{name} photos, {crop}", **against(rates, f"stream, {title}", other, expected)}
    yield {"work": f"{name} photos, {crop}", **against(rates, f"stream, {first}", f"DataLoader, {first}", 1)}


def ffcv_rate(options: argparse.Namespace, folder: Path, crop: str) -> Rate:
    """Return a function that measures an epoch of FFCV's loader, in a process of its own."""
    script, beton = Path(__file__).with_name("ffcv_photos.py"), folder.with_suffix(".beton")
    command = [options.ffcv, script, folder, beton, crop, ORDER.batch_size, CORES]
    process = subprocess.Popen([*map(str, command)], stdin=PIPE, stdout=PIPE, text=True)
    options.ends.callback(process.wait)
    assert process.stdin is not None
    assert process.stdout is not None
    requests, answers = options.ends.enter_context(process.stdin), process.stdout

    def rate(number: int) -> float:
        print(number, file=requests, flush=True)
        return float(answers.readline()) * 3 * 224 * 224

    return rate


def written(folder: Path, count: int, low: int, high: int) -> None:
    """Write JPEG files of random sizes, cut out of one large image, in ten folders."""
    from PIL import Image

    generator = np.random.default_rng(0)
    whole = Image.fromarray(spectral(generator, high))
    for number in range(count):
        width, height = generator.integers(low, high, 2).tolist()
        left, top = (int(generator.integers(0, high - side)) for side in (width, height))
        (folder / str(number % 10)).mkdir(parents=True, exist_ok=True)
        cut = whole.crop((left, top, left + width, top + height))
        cut.save(folder / str(number % 10) / f"{number}.jpg", quality=90)


def spectral(generator: np.random.Generator, side: int) -> np.ndarray:
    """Return an image whose amplitudes fall with the frequency, uint8 (side, side, 3)."""
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.fftfreq(side))
    frequency[0, 0] = 1
    noise = np.fft.fft2(generator.normal(size=(3, side, side))) / frequency
    noise[:, 0, 0] = 0
    waves = np.fft.ifft2(noise).real
    return np.clip(waves / waves.std() * 50 + 128, 0, 255).astype(np.uint8).transpose(1, 2, 0).copy()
