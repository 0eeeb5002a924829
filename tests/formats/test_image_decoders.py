"""Contract of every decoder of scaled images: pixels near Pillow's, and its limits and errors."""

import os
import struct
from dataclasses import replace
from importlib import import_module
from io import BytesIO

import numpy as np
import pytest
from kinds import has, refused_as

from iobench import formats
from iobench.base import registry
from iobench.base.errors import InvalidOption, MissingDependency
from iobench.contrib.formats.shared.jpeg_decoders import JPEG_LIBRARIES, jpeg_decoder
from iobench.dataset.add import add
from iobench.dataset.manifest import Manifest, missing_libraries

Image = pytest.importorskip("PIL.Image")

PILLOW = formats.parse("images:shape=3x20x16")
EVERY = (PILLOW.variant, f"{PILLOW.variant},dct_scaling=yes", *PILLOW.other_decoders(large=True))
SIZES = ((90, 130), (160, 141), (30, 50), (17, 90), (1, 40))


def usable(word):
    """Skip where a decoder's library is not installed, or was built for another torch."""
    try:
        jpeg_decoder(word, False)
    except MissingDependency as error:
        pytest.skip(str(error))


@pytest.fixture(params=EVERY, ids=lambda variant: variant.partition("x16")[2] or "pillow")
def fmt(request):
    word = request.param.partition("decoder=")[2].partition(",")[0]
    if word:
        usable(word)
    return formats.parse(request.param)


def smooth(size, rng):
    """Return an image of smooth colors, which decoders scale alike."""
    corners = Image.fromarray(rng.integers(0, 256, (3, 4, 3), dtype=np.uint8))
    return corners.resize(size[::-1], Image.Resampling.BICUBIC)


@pytest.fixture
def photos(tmp_path):
    """Return a folder with RGB JPEG files first, then a gray one, and those that Pillow always decodes."""
    rng, folder = np.random.default_rng(0), tmp_path / "photos/all"
    folder.mkdir(parents=True)
    turned = Image.Exif()
    turned[0x0112] = 6  # Orientation: a quarter
    for number, size in enumerate(SIZES):
        smooth(size, rng).save(folder / f"{number}.jpg", quality=90)
    smooth((70, 40), rng).save(folder / "progressive.jpg", progressive=True, subsampling=1)
    smooth((60, 100), rng).save(folder / "turned.jpg", exif=turned)
    smooth((33, 47), rng).convert("L").save(folder / "u-gray.jpg")
    smooth((50, 40), rng).convert("CMYK").save(folder / "v-print.jpg")
    smooth((52, 41), rng).save(folder / "w.png")
    return folder.parent


def read(fmt, folder):
    with fmt.open(folder, fmt.infer_schema(folder)) as reader:
        return reader.batch(slice(0, len(SIZES) + 5))["image"].astype(int)


@pytest.mark.parametrize("shape", ["3x20x16", "20x16x3", "20x16", "1x20x16"])
@pytest.mark.parametrize("crop", ["center", "random"])
def test_pixels_are_near_pillows(photos, fmt, shape, crop):
    expected = read(replace(PILLOW, shape=shape, crop=crop), photos)
    found = read(replace(fmt, shape=shape, crop=crop), photos)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= (25 if fmt.dct_scaling else 3)
    by_pillow = read(replace(fmt, decoder="pillow", shape=shape, crop=crop), photos)
    assert np.array_equal(found[-2:], by_pillow[-2:]), "Pillow decodes CMYK and PNG, whatever the decoder"


def test_a_scale_is_used_only_for_larger_images(photos, fmt):
    whole, found = read(replace(fmt, dct_scaling=False), photos), read(fmt, photos)
    scaled = [not np.array_equal(*pair) for pair in zip(whole, found, strict=True)]
    assert any(scaled[:2]) == fmt.dct_scaling
    assert not any(scaled[2:5]), "these are less than twice as large as the shape"


@pytest.mark.parametrize("crop", ["center", "random"])
def test_a_file_that_ends_early_is_named(photos, fmt, crop):
    fmt = replace(fmt, crop=crop)
    file, schema = photos / "all/1.jpg", fmt.infer_schema(photos)
    stored = file.read_bytes()
    for part in (stored[: len(stored) // 2], stored[:-2]):
        file.write_bytes(part)
        with fmt.open(photos, schema) as reader, refused_as("undecodable", path=file):
            reader.sample(1)


def test_a_jpeg_of_too_many_pixels_is_not_decoded(photos, fmt):
    file, schema = photos / "all/1.jpg", fmt.infer_schema(photos)
    stored = bytearray(file.read_bytes())
    start = stored.index(b"\xff\xc0") + 5  # the frame's header: height and width
    stored[start : start + 4] = struct.pack(">2H", 30_000, 30_000)
    file.write_bytes(stored)
    with fmt.open(photos, schema) as reader, refused_as("too-many-pixels", path=file):
        reader.sample(1)


def test_add_says_how_far_its_pixels_are_from_pillows(photos, fmt, tmp_path):
    notes = []
    add(photos, fmt.variant, name="photos", data_dir=tmp_path / "data", warn=notes.append)
    assert [note.kind for note in notes] == ["other-pixels"] * (not fmt.lossless)
    assert fmt.lossless == (fmt == PILLOW)
    assert all(note.values["most"] <= (25 if fmt.dct_scaling else 3) for note in notes)
    assert set(fmt.libraries) >= {"pillow"}


@pytest.mark.parametrize("word", [word for word, library in JPEG_LIBRARIES.items() if library.parts])
@pytest.mark.parametrize(
    "options", [{"subsampling": 0}, {"subsampling": 1}, {}, {"progressive": True}], ids=str
)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_part_has_the_pixels_of_the_whole_image(word, options, mode):
    usable(word)
    decode_part = JPEG_LIBRARIES[word].load()
    rng, stored = np.random.default_rng(0), BytesIO()
    Image.fromarray(rng.integers(0, 256, (90, 131, 3), np.uint8)).convert(mode).save(
        stored, "JPEG", **options
    )
    whole = decode_part(stored.getvalue(), mode, (0, 0, 131, 90))
    for left, top in rng.choice((0, 1, 7, 15, 16, 17, 33, 64, 89), (40, 2)).tolist():
        right, bottom = (rng.integers((left, top), (131, 90)) + 1).tolist()
        part = decode_part(stored.getvalue(), mode, (left, top, right, bottom))
        assert np.array_equal(part, whole[top:bottom, left:right])


@pytest.mark.parametrize("word", JPEG_LIBRARIES)
def test_a_decoder_starts_no_thread_that_a_fork_would_lose(word):
    usable(word)
    decode = JPEG_LIBRARIES[word].load()
    stored = BytesIO()
    smooth((1500, 2000), np.random.default_rng(0)).save(stored, "JPEG")
    before = {*os.listdir("/proc/self/task")}
    if JPEG_LIBRARIES[word].parts:
        pixels = decode(stored.getvalue(), "RGB", (0, 0, 2000, 1500))
    else:
        pixels = decode(stored.getvalue(), "RGB", (2000, 1500), (2000, 1500))
    assert pixels.shape == (1500, 2000, 3)
    assert {*os.listdir("/proc/self/task")} <= before  # those of other tests may end


@pytest.mark.parametrize("word", JPEG_LIBRARIES)
def test_a_library_that_is_not_installed_is_named_with_its_extra(photos, tmp_path, monkeypatch, word):
    data, variant = tmp_path / "data", f"{PILLOW.variant},decoder={word}"
    if word == "simplejpeg":
        usable(word)
        add(photos, variant, name="photos", data_dir=data)
    installed, module = registry.is_installed, JPEG_LIBRARIES[word].module
    monkeypatch.setattr(registry, "is_installed", lambda name: name != module and installed(name))
    with refused_as("missing-dependency", MissingDependency, hint=f"pip install 'iobench[{word}]'"):
        add(photos, variant, name="photos", data_dir=data)
    if word == "simplejpeg":
        assert list(missing_libraries(Manifest.load(data / "photos"))) == [variant]  # skipped, by name


@pytest.mark.parametrize(
    ("word", "hint"), [("torchvision", "--upgrade 'iobench[torchvision]'"), ("turbojpeg", "libturbojpeg0")]
)
def test_a_library_that_cannot_be_imported_is_named_with_the_reason(monkeypatch, word, hint):
    def broken():
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setitem(JPEG_LIBRARIES, word, replace(JPEG_LIBRARIES[word], load=broken))
    with refused_as("broken-library", MissingDependency, found=has("torchvision::nms"), hint=has(hint)):
        jpeg_decoder(word, False)


def test_a_decoder_of_whole_images_refuses_to_scale():
    whole = [word for word, library in JPEG_LIBRARIES.items() if not library.dct_scaling]
    assert whole == ["torchvision", "nvimgcodec"]
    for word in whole:
        with refused_as("conflicting-options", InvalidOption):
            replace(PILLOW, decoder=word, dct_scaling=True)


def test_the_other_decoders_scale_where_the_users_choice_does():
    def words(variant, large):
        every = [
            one.removeprefix(f"{PILLOW.variant},decoder=")
            for one in formats.parse(variant).other_decoders(large)
        ]
        return " ".join(one.replace(",dct_scaling=yes", "+") for one in every)

    assert words(PILLOW.variant, False) == "simplejpeg torchvision opencv nvimgcodec turbojpeg"
    scaling = "simplejpeg simplejpeg+ torchvision opencv opencv+ nvimgcodec turbojpeg turbojpeg+"
    assert words(PILLOW.variant, True) == scaling
    assert words(f"{PILLOW.variant},dct_scaling=yes", False) == "simplejpeg+ opencv+ turbojpeg+"
    assert words("images", True) == ""
    assert replace(PILLOW, decoder="opencv").other_decoders(True) == ()


@pytest.mark.parametrize("word", JPEG_LIBRARIES)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_whole_files_are_decoded_as_pillow_does_and_by_the_code_that_users_are_shown(word, mode):
    usable(word)
    (decoder,) = [one for one in PILLOW.jpeg_decoders() if one.name == word]
    file = BytesIO()
    smooth((90, 131), np.random.default_rng(0)).convert(mode).save(file, "JPEG")
    expected, decoded = np.asarray(Image.open(file)), [decoder.decode(file.getvalue(), mode, (131, 90))]
    if mode == "RGB":
        module = import_module(JPEG_LIBRARIES[word].module)
        names = {**vars(module), module.__name__.rpartition(".")[2]: module}
        names |= {"np": np, "torch": pytest.importorskip("torch"), "data": file.getvalue()}
        decoded.append(np.asarray(eval(decoder.code, names)))
    for found in decoded:
        assert found.shape == expected.shape
        assert np.abs(found.astype(int) - expected).max() <= 3
