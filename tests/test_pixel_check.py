"""Content check of loaders that decode images themselves, and DALI over image files."""

from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from kinds import refused_as

from iobench import formats
from iobench.base.errors import InvalidOption, WrongContent
from iobench.bench.content_check import PixelCheck, RowCheck
from iobench.bench.executor import InProcess
from iobench.dataset.add import add
from iobench.dataset.opener import Opener
from iobench.loading import loaders
from iobench.loading.loaders import Job
from iobench.loading.order import Order

Image = pytest.importorskip("PIL.Image")

SIZES = ((90, 130), (160, 141), (30, 50), (17, 90), (48, 61), (40, 40))
SHAPES = ("3x20x16", "20x16x3", "20x16", "1x20x16")


@pytest.fixture
def photos(tmp_path):
    """Return a folder of two classes: JPEG files in color, turned by EXIF and gray, and a PNG."""
    rng, folder = np.random.default_rng(0), tmp_path / "photos"
    images = []
    for size in SIZES:
        corners = Image.fromarray(rng.integers(0, 256, (3, 4, 3), dtype=np.uint8))
        images.append(corners.resize(size[::-1], Image.Resampling.BICUBIC))
    turned = Image.Exif()
    turned[0x0112] = 6  # Orientation: a quarter
    (folder / "a").mkdir(parents=True)
    (folder / "b").mkdir()
    for number, image in enumerate(images[:3]):
        image.save(folder / f"a/{number}.jpg", quality=90)
    images[3].save(folder / "b/3.jpg", exif=turned)
    images[4].convert("L").save(folder / "b/4.jpg")
    images[5].save(folder / "b/5.png")
    return folder


def job_over(folder, shape=SHAPES[0], order="random"):
    fmt = formats.parse(f"images:shape={shape}")
    return Job(Opener(fmt, folder, fmt.infer_schema(folder), random=True), Order(order, 4))


def checked(job, change=lambda number, batch: None, skip=0, part=False):
    """Check an epoch whose batches were changed, without the last `skip`."""
    check, request = PixelCheck(job, 2), job.order.batches(job.opener.schema.samples, 0)
    check.expect(request)
    with job.opener() as reader:
        for number, rows in enumerate(request[: len(request) - skip]):
            batch = {name: torch.from_numpy(array) for name, array in reader.batch(rows).items()}
            change(number, batch)
            check.add(batch)
    return check.conclude(part)


def brighter(levels):
    """Return a change of one pixel of the second batch."""

    def change(number, batch):
        pixel = batch["image"][number, 0, 0, 0]
        batch["image"][number, 0, 0, 0] = pixel + levels if pixel < 128 else pixel - levels

    return change


def test_pixels_within_the_tolerance_are_reported(photos):
    (reason,) = checked(job_over(photos), brighter(2)).unverified
    assert (reason.kind, reason.values) == ("other-pixels", {"most": 2, "tolerance": 2})


def other_label(number, batch):
    batch["label"][0] += 1


def another_row(number, batch):
    for name, array in batch.items():
        batch[name] = array.flip(0)


@pytest.mark.parametrize("change", [brighter(3), other_label, another_row])
def test_another_sample_is_wrong(photos, change):
    with refused_as("wrong-row", WrongContent):
        checked(job_over(photos), change)


def test_another_number_of_samples_is_wrong(photos):
    def shorter(number, batch):
        batch["image"] = batch["image"][1:]

    with refused_as("wrong-shape", WrongContent):
        checked(job_over(photos), shorter)
    with refused_as("wrong-count", WrongContent):
        checked(job_over(photos), skip=1)
    assert checked(job_over(photos), skip=1, part=True).unverified


@pytest.mark.parametrize(("tolerance", "check"), [(8, PixelCheck), (0, RowCheck)])
def test_a_loader_with_a_tolerance_is_checked_within_it(photos, tmp_path, tolerance, check):
    manifest, _ = add(photos, "images:shape=3x20x16", name="photos", data_dir=tmp_path / "data")
    loader = SimpleNamespace(user_defined=False, iterable_style=False, tolerance=tolerance)
    case = SimpleNamespace(loader=loader, job=lambda manifest, rank: job_over(photos))
    assert type(InProcess(manifest)._check(case, 1.0)) is check


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("order", ["sequential", "random"])
def test_dali_decodes_image_files_near_pillow(photos, shape, order):
    pytest.importorskip("nvidia.dali", reason="pip install 'iobench[dali]'")
    loader, job = loaders.parse("dali:decode=yes").on("cpu"), job_over(photos, shape, order)
    check, request = PixelCheck(job, loader.tolerance), job.order.batches(len(SIZES), 1)
    check.expect(request)
    with closing(loader.open(job)) as epochs:
        for batch in epochs.epoch(request):
            check.add(batch)
    assert check.conclude().unverified


def test_dali_decodes_only_images_that_pillow_scales_and_crops():
    dali = loaders.class_of("dali")
    decoding, read = dali(decode=True), "images:shape=3x20x16"
    assert decoding.reads(formats.parse(read))
    assert not decoding.reads_at("s3://bucket/photos")
    assert not decoding.reads(formats.parse(f"{read},crop=random"))
    assert not any(decoding.reads(formats.get(name)) for name in ("images", "npy"))
    assert dali().reads(formats.get("npy"))
    assert (dali().tolerance, decoding.tolerance) == (0, 8)
    with refused_as("conflicting-options", InvalidOption):
        dali(decode=True, num_workers=1)
