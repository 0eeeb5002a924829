"""Hostile sources, made from a seed: `iobench prepare --source` refuses each in one clear line, or reads it.

`attack(seed, count)` makes and opens `count` sources, and returns their number and a line for each failure.
"""

import io
import os
import pickle
import random
import socket
import struct
import tempfile
import warnings
import zipfile
import zlib
from functools import lru_cache
from pathlib import Path

import h5py
import numpy as np
from PIL import Image

from iobench.base.errors import SourceError
from iobench.base.text import printable
from iobench.dataset.sources import checked, open_source

NASTY = ["\x1b[31mred", "a\nb", "[bold]x[/]", "[/]", ":dog:", "\u202egnp.exe", "\r", "\x9b2J", "x" * 300, "ü"]
MAX_LINE = 1500
READ = "read"  # verdict of makers whose source is unusual but valid


def attack(seed, count, makers=None):
    """Return the number of sources opened and read, and a line for each that was handled wrongly."""
    rng = random.Random(seed)
    chosen = list(MAKERS if makers is None else makers)
    bad = []
    for number in range(count):
        make = chosen[number % len(chosen)]
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of libraries that write invalid files here
            path, verdict = make(rng, Path(folder))
            if problem := judge(path, verdict, Path(folder)):
                bad.append(f"seed {seed}, source {number} ({make.__name__}): {problem}")
    return count, bad


def judge(path, verdict, folder):
    """Return how a source is handled wrongly, or None. `verdict`: "refuse", "read", or "either"."""
    try:
        read_all(path)
    except SourceError as error:
        line = printable(str(error))
        if not error.path or "/proc/self/fd" in line or not 20 < len(line) < MAX_LINE:
            return f"refused with {line[:200]!r}"
        result = "refuse"
    except Exception as error:  # noqa: BLE001 - any other error is a failure
        return f"{type(error).__name__}: {printable(str(error))[:200]}"
    else:
        result = READ
    if (folder / "sprung").exists():
        return "code in it was executed"
    return None if verdict in (result, "either") else f"expected {verdict}, found {result}"


def read_all(path):
    """Open a source and read it to its end, as prepare does."""
    folder = Path(path).is_dir()
    source = open_source(Path(path), (8, 8) if folder else None)
    samples = 0
    for batch in checked(source):
        for field in source.schema.fields:
            array = batch[field.name]
            assert array.flags.c_contiguous
            assert array.dtype != bool or array.view(np.uint8).max() <= 1
        samples += len(array)
    assert samples == source.schema.samples


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def mutated(rng, data):
    """Return the bytes with some of them changed, cut or moved."""
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 4, 16])):
        at = rng.randrange(len(data))
        data[at] = rng.choice([0, 255, rng.randrange(256)])
    if rng.random() < 0.2:
        del data[rng.randrange(len(data)) :]
    if rng.random() < 0.1:
        data += rng.randbytes(rng.randrange(1, 100))
    return bytes(data)


# .npy


def npy_bytes(header, data=b"", version=1):
    """Return a .npy file with any text as its header."""
    text = header if isinstance(header, bytes) else header.encode("latin1")
    size = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + size + text + data


def array_header(descr="'<f4'", shape="(4, 2)", fortran="False"):
    return f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n"


HEADERS = [
    array_header(shape="(-4, 2)"),
    array_header(shape="(10**12,)"),
    array_header(shape="(1000000000000, 1000000)"),
    array_header(shape="(9223372036854775807, 9223372036854775807)"),
    array_header(shape="(0x" + "f" * 8000 + ", 2)"),
    array_header(shape="(" + "9" * 5000 + ",)"),
    array_header(shape="(" + "1, " * 70 + ")"),
    array_header(shape="(True, 2)"),
    array_header(shape="(2.0, 2)"),
    array_header(shape="[4, 2]"),
    array_header(shape="()"),
    array_header(shape="(0, 2)"),
    array_header(descr="'|O'"),
    array_header(descr="[('a', '|O')]"),
    array_header(descr="'<c8'"),
    array_header(descr="'<U3'"),
    array_header(descr="'<M8[s]'"),
    array_header(descr="'|V1000000000'"),
    array_header(descr="('<f4', (1000000, 1000000))"),
    array_header(descr="[" + "('a', '<f4')," * 500 + "]"),
    array_header(descr="1"),
    array_header(descr="'\\d'"),
    array_header(descr="'\x1b[31m\\n\\n'"),
    array_header(fortran="1"),
    "(" * 5000,
    "[" * 150 + "]" * 150,
    "-" * 9900 + "1",
    "{" * 199,
    "not a header",
    "\0" * 100,
    "{'descr': '<f4'}",
    "__import__('os').system('true')",
    array_header() + " " * 20_000,
    "'" + "\\" * 999,
    "1L" * 500,
]


def npy_header(rng, folder):
    (folder / "a.npy").write_bytes(npy_bytes(rng.choice(HEADERS), rng.randbytes(32), rng.choice([1, 2, 3])))
    return folder / "a.npy", "refuse"


def npy_mutated(rng, folder):
    array = np.arange(40).astype(rng.choice(["<f4", ">i8", "?", "u1"])).reshape(10, 4)
    file = io.BytesIO()
    np.save(file, rng.choice([np.ascontiguousarray, np.asfortranarray])(array))
    (folder / "a.npy").write_bytes(mutated(rng, file.getvalue()))
    return folder / "a.npy", "either"


def npy_long_header(rng, folder):
    """Announce a header of up to 4 GiB in a sparse file of that size."""
    with open(folder / "a.npy", "wb") as file:
        file.write(b"\x93NUMPY\x02\x00" + struct.pack("<I", rng.choice([1 << 20, 0xFFFF_FFFF])))
        file.truncate(5 << 30)
    return folder / "a.npy", "refuse"


def npy_one_huge_sample(rng, folder):
    """Write a sparse file of the size in its header, all of it one sample."""
    size = rng.choice([200 << 20, 8 << 30, 1 << 40])
    order = rng.choice(["True", "False"])
    head = npy_bytes(array_header("'|u1'", f"(1, {size})", order))
    with open(folder / "a.npy", "wb") as file:
        file.write(head)
        file.truncate(len(head) + size)
    return folder / "a.npy", "refuse"


def npy_size_differs(rng, folder):
    more = rng.choice([-31, -1, 1, 40])
    (folder / "a.npy").write_bytes(npy_bytes(array_header(), bytes(32 + more)))
    return folder / "a.npy", "refuse"


def npy_pickle(rng, folder):
    trap = np.array([Trap(folder / "sprung"), None], dtype=object)
    np.save(folder / "a.npy", trap, allow_pickle=True)
    if rng.random() < 0.5:
        (folder / "a.npy").write_bytes(pickle.dumps(Trap(folder / "sprung")))
    return folder / "a.npy", "refuse"


def npy_odd_bools(rng, folder):
    (folder / "a.npy").write_bytes(npy_bytes(array_header("'|b1'", "(8, 4)"), rng.randbytes(32)))
    return folder / "a.npy", READ


# .npz


@lru_cache
def deflated(head, zeros, window):
    """Return some bytes and very many zeros, compressed."""
    packed = zlib.compressobj(1, zlib.DEFLATED, window)
    first = packed.compress(head) + packed.flush(zlib.Z_FULL_FLUSH)
    # each piece knows nothing of what was before
    piece = packed.compress(bytes(1 << 24)) + packed.flush(zlib.Z_FULL_FLUSH)
    return first + piece * (zeros >> 24) + packed.flush()


def member(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz(folder, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(folder / "a.npz", "w", compression) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return folder / "a.npz"


def npz_mutated(rng, folder):
    pack = rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    path = npz(folder, [("x.npy", member(np.arange(99))), ("y.npy", member(np.ones(99)))], pack)
    path.write_bytes(mutated(rng, path.read_bytes()))
    return path, "either"


def npz_other_packing(rng, folder):
    pack = rng.choice([zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    path = npz(folder, [("x.npy", member(np.arange(9999)))], pack)
    if rng.random() < 0.5:
        path.write_bytes(mutated(rng, path.read_bytes()))
    return path, "refuse"


def npz_bad_member(rng, folder):
    good = member(np.arange(4))
    bad = rng.choice(
        [
            ("../x.npy", good),
            ("d/", b""),
            ("notes.txt", b"hello"),
            ("x.npy", b""),
            ("x.npy", good[:-8]),
            ("x.npy", good + b"more"),
            ("x.npy", npy_bytes(rng.choice(HEADERS), bytes(32))),
            ("x.npy", b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(1 << 20)),
            ("y.npy", good),
        ]
    )
    return npz(
        folder, [("y.npy", good), bad], rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    ), "refuse"


def npz_encrypted(rng, folder):
    path = npz(folder, [("x.npy", member(np.arange(4)))])
    data = path.read_bytes()
    at = data.index(b"PK\x01\x02") + 8
    path.write_bytes(data[:at] + b"\x01" + data[at + 1 :])
    return path, "refuse"


def npz_no_name(rng, folder):
    path = npz(folder, [("x.npy", member(np.arange(4)))])
    path.write_bytes(path.read_bytes().replace(b"x.npy", b"\0.npy"))
    return path, "refuse"


def npz_pickle(rng, folder):
    trap = np.array([Trap(folder / "sprung"), None], dtype=object)
    np.savez(folder / "a.npz", x=np.arange(2), bad=trap)
    return folder / "a.npz", "refuse"


def npz_bomb(rng, folder):
    """Write zeros that unpack to over a hundred times the stored size, behind forged sizes."""
    head = npy_bytes(array_header("'|u1'", "(1, 268435456)"))
    body = deflated(head, 1 << 28, -15)
    size = rng.choice([len(head) + (1 << 28), len(head) + (1 << 20), 0xFFFF_FF00])
    local = struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 8, 0, 0, 0, len(body), size, 5, 0) + b"x.npy"
    entry = b"PK\1\2" + struct.pack("<6H3I5H2I", 20, 20, 0, 8, 0, 0, 0, len(body), size, 5, 0, 0, 0, 0, 0, 0)
    entry += b"x.npy"
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, len(entry), len(local) + len(body), 0)
    (folder / "a.npz").write_bytes(local + body + entry + end)
    return folder / "a.npz", "refuse"


def npz_names(rng, folder):
    name = rng.choice(NASTY)
    array = rng.choice([np.arange(3), np.array(["text"]), np.zeros((0, 2)), np.arange(4)])
    return npz(folder, [("y.npy", member(np.arange(3))), (f"{name}.npy", member(array))]), "either"


def npz_many_members(rng, folder):
    return npz(folder, [(f"{i}.npy", member(np.arange(2))) for i in range(600)]), "refuse"


def npz_odd_bools(rng, folder):
    odd = npy_bytes(array_header("'|b1'", "(8, 4)"), rng.randbytes(32))
    return npz(folder, [("x.npy", odd)], rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])), READ


# HDF5


def hdf5_mutated(rng, folder):
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("x", data=np.arange(200).reshape(50, 4), chunks=(16, 4), compression="gzip")
        file["g/y"] = np.arange(50)
    (folder / "a.h5").write_bytes(mutated(rng, (folder / "a.h5").read_bytes()))
    return folder / "a.h5", "either"


def external_storage(file, folder):
    (folder.parent / "secret").write_bytes(b"secret!!" * 8)
    file.create_dataset("x", (8,), "i8", external=[(str(folder.parent / "secret"), 0, 64)])


def dataset(*shape_and_dtype, **options):
    """Return a maker of an HDF5 file with this dataset alone."""
    return lambda file, folder: file.create_dataset("x", *shape_and_dtype, **options)


ragged = dataset((3,), h5py.vlen_dtype("i4"))
references = dataset((3,), h5py.ref_dtype)
sparse = dataset((10**12, 4), "f4", chunks=(1024, 4))
never_written = dataset((10**12, 4), "f4")
huge_chunks = dataset((1 << 30,), "u1", chunks=(1 << 30,), compression="gzip")
OTHER_DATASETS = [
    dataset((3,), h5py.regionref_dtype),
    dataset((3,), np.dtype("(3,)i4")),
    dataset(data=["one", "two"]),
    dataset(data=np.zeros(3, "V8")),
    dataset((0, 3), "f4", maxshape=(None, 3)),
    dataset(data=h5py.Empty("f4")),
]


def virtual(file, folder):
    layout = h5py.VirtualLayout((4,), "i8")
    layout[:] = h5py.VirtualSource(str(folder / "missing.h5"), "x", (4,))
    file.create_virtual_dataset("x", layout)


def external_link(file, folder):
    with h5py.File(folder.parent / "other.h5", "w") as other:
        other["x"] = np.arange(4)
    file["x"] = h5py.ExternalLink("../other.h5", "x")


def _soft_link(file, folder):
    external_link(file, folder)
    file["y"] = h5py.SoftLink("/x")


def dangling_link(file, folder):
    file["y"], file["x"] = np.arange(4), h5py.SoftLink("/nowhere")


def partly_written(file, folder):
    file.create_dataset("x", (10**6, 4), "f4", chunks=(1024, 4))[:1024] = 1


def _nothing(file, folder):
    file.create_group("g/h/i")


def _lengths(file, folder):
    file["x"], file["y"] = np.zeros(3), np.zeros(4)


def unknown_filter(file, folder):
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((4,))
    properties.set_filter(300, h5py.h5z.FLAG_OPTIONAL, (4,))
    space = h5py.h5s.create_simple((4,))
    h5py.Dataset(h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_INT64, space, properties))[:] = range(4)


def many(file, folder):
    for number in range(600):
        file[f"samples/{number}"] = np.arange(2)


HDF5_REFUSED = [
    *(external_storage, virtual, external_link, _soft_link, dangling_link, ragged, references, sparse),
    *(never_written, partly_written, huge_chunks, _nothing, _lengths, many, unknown_filter, *OTHER_DATASETS),
]


def hdf5_refused(rng, folder):
    with h5py.File(folder / "a.h5", "w") as file:
        rng.choice(HDF5_REFUSED)(file, folder)
    return folder / "a.h5", "refuse"


def hdf5_names(rng, folder):
    with h5py.File(folder / "a.h5", "w") as file:
        file["y"] = np.arange(3)
        file[rng.choice([name for name in NASTY if "/" not in name])] = rng.choice(
            [np.arange(3), np.zeros(0)]
        )
    return folder / "a.h5", "either"


def hdf5_group_in_itself(rng, folder):
    with h5py.File(folder / "a.h5", "w") as file:
        file["g/x"] = np.arange(6)
        file["g/again"], file["alias"], file["soft"] = file["g"], file["g/x"], h5py.SoftLink("/g/x")
    return folder / "a.h5", READ


def hdf5_chunk_bomb(rng, folder):
    """Write a chunk of a kilobyte whose deflate stream is almost endless."""
    bomb = deflated(b"", 3 << 30, 15)
    with h5py.File(folder / "a.h5", "w") as file:
        dataset = file.create_dataset("x", (1024,), "u1", chunks=(1024,), compression="gzip")
        dataset.id.write_direct_chunk((0,), bomb)
    return folder / "a.h5", "refuse"


def hdf5_odd_bools(rng, folder):
    with h5py.File(folder / "a.h5", "w") as file:
        dataset = file.create_dataset("x", (32,), "?", chunks=(32,))
        dataset.id.write_direct_chunk((0,), bytes(rng.choice([0, 1, 2, 77, 255]) for _ in range(32)))
    return folder / "a.h5", READ


# Images


def picture(rng, kind, **options):
    file = io.BytesIO()
    pixels = np.frombuffer(rng.randbytes(12 * 16 * 3), np.uint8).reshape(12, 16, 3)
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def labelled(folder, name, data):
    (folder / "pets/cat").mkdir(parents=True)
    Image.new("RGB", (9, 9)).save(folder / "pets/cat/good.png")
    if data is not None:
        (folder / "pets/cat" / name).write_bytes(data)
    return folder / "pets"


def image_mutated(rng, folder):
    kind, suffix = rng.choice(
        [("JPEG", "jpg"), ("PNG", "png"), ("WEBP", "webp"), ("GIF", "gif"), ("TIFF", "tif"), ("BMP", "bmp")]
    )
    return labelled(folder, f"a.{suffix}", mutated(rng, picture(rng, kind))), "either"


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, depth=1, colour=0):
    """Return a PNG of zeros with this header."""
    packed = zlib.compressobj(9)
    row = bytes(1 + -(-width * depth * {0: 1, 2: 3, 6: 4}[colour] // 8))
    rows = min(height, (1 << 25) // len(row))
    data = packed.compress(row * rows) + packed.flush()
    head = struct.pack(">2I5B", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def image_bomb(rng, folder):
    width, height = rng.choice([(30_000, 30_000), (12_000, 12_000), (1, 70_000_000), (1, 0), (0, 1)])
    return labelled(folder, "a.png", png(width, height)), "refuse"


def image_thin(rng, folder):
    """Write few pixels that become very many once the shorter side is resized to a sample's."""
    return labelled(folder, "a.png", png(1, 30_000_000)), "refuse"


def image_animated(rng, folder):
    kind, suffix = rng.choice([("GIF", "gif"), ("WEBP", "webp"), ("PNG", "png"), ("TIFF", "tif")])
    frames = [Image.new("RGB", (5, 5), (i, 2 * i, 9)) for i in (1, 50, 90)]
    data = io.BytesIO()
    frames[0].save(data, kind, save_all=True, append_images=frames[1:])
    return labelled(folder, f"a.{suffix}", data.getvalue()), "refuse"


def image_of_another_kind(rng, folder):
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/sprung) (w) file\n"
    name = rng.choice(["a.eps", "a.png", "a.jpg", "a.psd", "a.ico"])
    data = rng.choice([postscript, b"hello", b"", rng.randbytes(200), picture(rng, "ICO")])
    return labelled(folder, name, data), "refuse" if name in ("a.png", "a.jpg") else READ


def image_scans(rng, folder):
    """Write a progressive JPEG with thousands of scans."""
    whole = picture(rng, "JPEG", progressive=True)
    at = whole.rindex(b"\xff\xda")
    return labelled(folder, "a.jpg", whole[:at] + whole[at:-2] * 3000 + whole[-2:]), "refuse"


def image_tiles(rng, folder):
    """Write a TIFF of 16 pixels in one tile of gigabytes."""
    entries = [(256, 4, 4), (257, 4, 4), (258, 3, 8), (259, 3, 8), (262, 3, 1), (277, 3, 1)]
    entries += [(322, 4, 60_000), (323, 4, 60_000), (324, 4, 200), (325, 4, 50)]
    table = b"".join(struct.pack("<2H2I", tag, kind, 1, value) for tag, kind, value in entries)
    data = b"II*\0" + struct.pack("<IH", 8, len(entries)) + table + bytes(4)
    return labelled(folder, "a.tif", data.ljust(200, b"\0") + zlib.compress(bytes(16)).ljust(50)), "refuse"


def image_places(rng, folder):
    path = labelled(folder, "a.png", None)
    case = rng.randrange(6)
    if case == 0:
        os.mkfifo(path / "cat/a.png")
    elif case == 1:
        (path / "cat/a.png").symlink_to("/dev/zero")
    elif case == 2:
        (path / "cat/a.png").symlink_to("a.png")
    elif case == 3:
        (path / "cat/a.png").mkdir()
    elif case == 4:
        (path / "cat/loop").symlink_to(path)
    else:
        Image.new("L", (4, 4)).save(path / "beside.png")
    return path, READ if case in (3, 4) else "refuse"


def image_names(rng, folder):
    """Write valid images with names that are not text, and behind links."""
    path = labelled(folder, "a.png", picture(rng, "PNG"))
    with open(os.fsencode(path / "cat") + b"/\xff\x1b[31m\n.png", "wb") as file:
        file.write(picture(rng, "PNG"))
    (path / "dog").mkdir()
    (path / "dog/link.jpg").symlink_to("../cat/a.png")
    (path / "cat/.hidden.png").write_bytes(b"no picture")
    return path, READ


# Files of special types


def special_file(rng, folder):
    path = folder / f"a.{rng.choice(['npy', 'npz', 'h5', 'hdf5', 'NPZ'])}"
    kind = rng.choice(["fifo", "zero", "null", "socket", "loop", "folder", "broken", "procfs", "empty"])
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            here = os.open(folder, os.O_RDONLY)  # a socket's name may have 107 bytes
            bound.bind(f"/proc/self/fd/{here}/{path.name}")
            os.close(here)
    elif kind == "folder":
        path.mkdir()
    elif kind == "empty":
        path.write_bytes(b"")
    else:
        targets = {"zero": "/dev/zero", "null": "/dev/null", "loop": path.name, "broken": "nothing"}
        path.symlink_to(targets.get(kind, "/proc/self/status"))
    return path, "refuse"


def wrong_choice(rng, folder):
    npz(folder, [("x.npy", member(np.arange(3))), ("y.npy", member(np.arange(4)))])
    names = rng.choice(["z", "", ",", "x,z", "x,y", "\x1b[31m", "x/y", "/"])
    return folder / f"a.npz::{names}", "refuse"


MAKERS = [
    *(npy_header, npy_mutated, npy_long_header, npy_one_huge_sample, npy_size_differs, npy_pickle),
    *(npy_odd_bools, npz_mutated, npz_other_packing, npz_bad_member, npz_encrypted, npz_no_name),
    *(npz_pickle, npz_bomb, npz_names, npz_many_members, npz_odd_bools, hdf5_mutated, hdf5_refused),
    *(hdf5_names, hdf5_group_in_itself, hdf5_chunk_bomb, hdf5_odd_bools, image_mutated, image_bomb),
    *(image_thin, image_animated, image_of_another_kind, image_scans, image_tiles, image_places),
    *(image_names, special_file, wrong_choice),
]
SLOW = [npz_bomb, hdf5_chunk_bomb, image_bomb, image_thin, npz_many_members]  # to make, or to read
