"""Requests of samples to libraries: parts of chunked arrays, stretches of sound, members of archives.

Methods of the libraries are replaced while samples are taken. The profile has the time of such calls; this is
what was asked for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from inspect import BoundArguments, signature
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np

from iobench.base.units import bytes_text, three_digits
from iobench.loading.inspection import batch_tensors

WHOLE_SOUND = 2  # times the frames that a sample keeps, from which on too much was decoded
LARGER = 2  # times the bytes that are asked for, from which on chunks are too large
MIN_SCALE = 2  # of each side of an image, from which on libjpeg can decode less
MOST_FILES = 64  # that are kept open
KEPT_OPEN = {  # functions that open files of many samples, by module
    "h5py": ("File",),
    "zipfile": ("ZipFile",),
    "tarfile": ("open",),
    "zarr": ("open", "open_group", "open_array"),
}


Size: TypeAlias = tuple[int, int]  # width and height


@dataclass(frozen=True)
class ChunkedRead:
    """A read of a part of a chunked array."""

    library: str  # ``HDF5`` or ``Zarr``
    name: str
    path: str  # of its file or folder
    chunks: tuple[int, ...]
    compressed: bool
    read_bytes: int
    touched_bytes: int  # of all chunks that hold some of these

    @property
    def is_wasteful(self) -> bool:
        """True if more is read or decompressed than the sample needs."""
        return self.compressed or self.touched_bytes >= LARGER * self.read_bytes

    @property
    def text(self) -> str:
        """The read in words."""
        kind = f"{'compressed ' if self.compressed else ''}chunks of {' × '.join(map(str, self.chunks))}"
        times = self.touched_bytes / max(1, self.read_bytes)
        more = f", {three_digits(times)} × as much" if times >= LARGER else ""
        whole = bytes_text(self.touched_bytes)
        part = f"{bytes_text(self.read_bytes)} of {self.name}"
        return f"{part}, which {self.library} takes out of {kind}: {whole}{more}"


@dataclass
class SampleCalls:
    """Calls of libraries for some samples."""

    arrays: list[ChunkedRead] = field(default_factory=list)
    sounds: list[tuple[int, int]] = field(default_factory=list)  # frames of a file, and of them decoded
    members: list[tuple[str, str]] = field(default_factory=list)  # archive and array, of each read
    shapes: list[tuple[int, ...]] = field(default_factory=list)  # of the tensors of samples
    images: list[str] = field(default_factory=list)  # files that Pillow opened
    decoded: set[Size] = field(default_factory=set)  # sizes of JPEG images
    resized: set[tuple[Size, Size]] = field(default_factory=set)  # of images, before and after

    @property
    def shares_members(self) -> bool:
        """True if samples read the same array of an archive again."""
        return len(set(self.members)) < len(self.members)

    @property
    def whole_sound(self) -> tuple[int, int] | None:
        """Frames that were decoded and that samples keep, where these are a part of it."""
        most = max((read for _, read in self.sounds), default=0)
        kept = max((max(shape, default=0) for shape in self.shapes), default=0)
        return (most, kept) if 0 < WHOLE_SOUND * kept <= most else None

    @property
    def resized_to(self) -> Size | None:
        """Size that whole JPEG images are resized to, where decoding smaller helps.

        An image that is cropped before it is resized has another size by then than the one it was decoded to.
        """
        wanted = {to for size, to in self.resized if size in self.decoded}
        if len(wanted) != 1 or not self.decoded <= {size for size, _ in self.resized}:
            return None
        (to,) = wanted
        enough = all(min(w // max(1, to[0]), h // max(1, to[1])) >= MIN_SCALE for w, h in self.decoded)
        return to if enough else None

    @property
    def sides(self) -> tuple[int, int] | None:
        """Height and width of the images that samples are, channels first or last."""
        for shape in self.shapes:
            if len(shape) == 3 and 3 in (shape[0], shape[2]):
                return (shape[1], shape[2]) if shape[0] == 3 else (shape[0], shape[1])
        return None

    @property
    def folder(self) -> str:
        """Folder that holds the image files; empty if there are none."""
        parents = [os.path.dirname(os.path.abspath(one)) for one in self.images]
        return os.path.commonpath(parents) if parents else ""


def calls_for(dataset: Any, rows: Sequence[Any]) -> SampleCalls:
    """Take some samples, and return what they asked of libraries."""
    seen = SampleCalls()
    notes: dict[str, Callable[[SampleCalls, Any, Any], None]] = {
        "h5py:Dataset.__getitem__": _array_read,
        "zarr:Array.__getitem__": _array_read,
        "PIL.Image:open": lambda seen, given, image: seen.images.append(os.fspath(image.filename)),
        "PIL.Image:Image.resize": _image_resized,
        "PIL.ImageFile:ImageFile.load": _image_loaded,
        "soundfile:SoundFile.read": lambda seen, given, frames: seen.sounds.append(
            (len(given.args[0]), len(frames))
        ),
        "numpy.lib.npyio:NpzFile.__getitem__": lambda seen, given, array: seen.members.append(
            (str(given.args[0].zip.filename), str(given.args[1]))
        ),
    }
    with ExitStack() as stack:
        for name, note in notes.items():
            module, _, attribute = name.partition(":")
            if module.partition(".")[0] in sys.modules:  # a part of it may be imported by the first sample
                stack.enter_context(_noted(import_module(module), attribute, partial(note, seen)))
        samples = [dataset[row] for row in rows]
    seen.shapes = [tuple(one.shape) for one in batch_tensors(samples)]
    return seen


@contextmanager
def replaced(owner: Any, attribute: str, other: Callable[[Any], Any]) -> Iterator[None]:
    """Replace a function, or a method such as ``File.close``, by what `other` makes of it."""
    *path, name = attribute.split(".")
    holder = attrgetter(*path)(owner) if path else owner
    own, inherited = getattr(holder, name), name not in vars(holder)
    setattr(holder, name, other(own))
    try:
        yield
    finally:
        if inherited:  # else what is replaced in its parent later would not be seen
            delattr(holder, name)
        else:
            setattr(holder, name, own)


@contextmanager
def _all_replaced(names: Mapping[str, Sequence[str]], other: Callable[[Any], Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for module in names.keys() & sys.modules.keys():
            for name in names[module]:
                stack.enter_context(replaced(sys.modules[module], name, other))
        yield


def _noted(
    owner: Any, attribute: str, note: Callable[[BoundArguments, Any], None]
) -> AbstractContextManager[None]:
    """Replace a function by one that also gives its arguments and its result to `note`."""

    def other(own: Any) -> Any:
        def noted(*arguments: Any, **options: Any) -> Any:
            result = own(*arguments, **options)
            with suppress(Exception):  # a user's code must not fail by what looks at it
                note(signature(own).bind(*arguments, **options), result)
            return result

        return noted

    return replaced(owner, attribute, other)


def _array_read(seen: SampleCalls, given: BoundArguments, result: Any) -> None:
    array, selection = given.args[:2]
    if not array.chunks:
        return
    is_zarr = type(array).__module__.startswith("zarr")
    compressed = bool(array.compressors if is_zarr else array.compression)
    path = str(array.store_path).removeprefix("file://") if is_zarr else array.file.filename
    touched = elements_touched(selection, array.shape, array.chunks) * array.dtype.itemsize
    name, kind = (array.name or "the array").strip("/") or "the array", "Zarr" if is_zarr else "HDF5"
    read = int(np.asarray(result).nbytes)
    seen.arrays.append(ChunkedRead(kind, name, path, tuple(array.chunks), compressed, read, touched))


def elements_touched(selection: Any, shape: Sequence[int], chunks: Sequence[int]) -> int:
    """Return the elements of all chunks that hold a selection."""
    parts = list(selection if isinstance(selection, tuple) else (selection,))
    place = next((number for number, one in enumerate(parts) if one is Ellipsis), None)
    if place is not None:
        parts[place : place + 1] = [slice(None)] * (len(shape) - len(parts) + 1)
    parts += [slice(None)] * (len(shape) - len(parts))
    elements = 1
    for part, length, size in zip(parts, shape, chunks, strict=True):
        elements *= size * len({index // size for index in np.arange(length)[part].reshape(-1).tolist()})
    return elements


def _image_loaded(seen: SampleCalls, given: BoundArguments, pixels: Any) -> None:
    if given.args[0].format == "JPEG":
        seen.decoded.add(given.args[0].size)


def _image_resized(seen: SampleCalls, given: BoundArguments, made: Any) -> None:
    if not given.arguments.get("box"):
        seen.resized.add((given.args[0].size, made.size))


@contextmanager
def files_kept_open(opened: dict[Any, Any]) -> Iterator[None]:
    """Let files of many samples that were opened once for reading stay open, and be given again."""

    def keeping(own: Any) -> Any:
        def kept(*arguments: Any, **options: Any) -> Any:
            key, modes = (own, arguments, *options.items()), (*arguments[1:2], options.get("mode", "r"))
            writes = any(str(one)[:1] in "awx" for one in modes)
            if writes or not arguments or not isinstance(arguments[0], (str, os.PathLike)):
                return own(*arguments, **options)
            if key not in opened and len(opened) < MOST_FILES:
                opened[key] = own(*arguments, **options)
                with suppress(AttributeError):  # of a group of Zarr, which nothing closes
                    opened[key].close = lambda: None
            return opened[key] if key in opened else own(*arguments, **options)

        return kept

    with _all_replaced(KEPT_OPEN, keeping):
        yield


@contextmanager
def arrays_kept(known: dict[Any, Any]) -> Iterator[None]:
    """Let an array that was looked up in a group by its name be given again."""

    def keeping(own: Any) -> Any:
        def kept(group: Any, name: Any) -> Any:
            key = (id(group), name)  # the group is kept, too, so that no other one gets its id
            if key not in known:
                if len(known) >= MOST_FILES:
                    return own(group, name)
                known[key] = group, own(group, name)
            return known[key][1]

        return kept

    with _all_replaced({"h5py": ("Group.__getitem__",), "zarr": ("Group.__getitem__",)}, keeping):
        yield


@contextmanager
def arrays_in_memory(arrays: dict[Any, Any]) -> Iterator[None]:
    """Let chunked arrays be read from memory, as from a file without chunks; each is read once as a whole."""

    def plain(own: Any) -> Any:
        def read(array: Any, selection: Any, *others: Any) -> Any:
            if others or not array.chunks:
                return own(array, selection, *others)
            where = array.file.filename if hasattr(array, "file") else str(array.store_path)
            if (key := (where, array.name)) not in arrays:
                arrays[key] = np.asarray(own(array, Ellipsis))
            return np.array(arrays[key][selection])

        return read

    with _all_replaced({"h5py": ("Dataset.__getitem__",), "zarr": ("Array.__getitem__",)}, plain):
        yield
