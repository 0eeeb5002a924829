"""The interface of a storage format: write batches to files, open the files for reading."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from iobench.base.errors import UnsupportedSchema
from iobench.base.finding import Finding
from iobench.base.options import Options
from iobench.formats.array_schema import Groups
from iobench.formats.reader import Reader
from iobench.formats.schema import DTYPES, NUMPY_DTYPES, Array, Batch, Field, Schema, stored_names


@dataclass(frozen=True)
class WholeDecoder:
    """Decoder of whole JPEG files.

    Attributes
    ----------
    name : str
        Word of its library.
    code : str
        Expression with which users decode `data`, the bytes of a file.
    decode : callable
        Returns the pixels, uint8 (H, W, 3) or (H, W), of a file's bytes, mode (RGB or L), and width and
        height. Raises anything on damaged files; MissingDependency if the library cannot be imported.
    """

    name: str
    code: str
    decode: Callable[[bytes, str, tuple[int, int]], Array]


@dataclass(frozen=True)
class Format(Options, ABC):
    """Base class of storage formats; the dataclass fields are the format's options.

    A format implements `write` and `open`; everything else has a default. `Detectable` and `Checkable` add
    what only some formats have.

    Attributes
    ----------
    library : str
        PyPI name of the package that reads and writes the files.
    dtypes : frozenset of str
        Dtypes that the format can hold, out of `DTYPES`.
    forkable : bool
        True if a process may fork after it has used the library, and both processes may continue.
    holds_ragged : bool
        True if it holds fields whose samples differ in length.
    offered : bool
        True if ``all`` formats include it; the others say how the files of other formats relate.
    survives_unlink : bool
        True if an open reader continues to read after its files were removed.
    """

    kind: ClassVar[str] = "format"
    library: ClassVar[str]
    dtypes: ClassVar[frozenset[str]] = frozenset(NUMPY_DTYPES)
    holds_ragged: ClassVar[bool] = False
    offered: ClassVar[bool] = True
    forkable: ClassVar[bool] = True
    survives_unlink: ClassVar[bool] = True

    def size_bound(self, schema: Schema) -> int:
        """Return an upper bound of the bytes that `write` stores; prepare requires this much free space."""
        offsets = 8 * (schema.samples + 1) * len(schema.ragged)
        return schema.logical_bytes + offsets + (1 << 20)

    def check_schema(self, schema: Schema) -> None:
        """Raise UnsupportedSchema if the format cannot hold the samples; called before anything is written.

        Raises
        ------
        UnsupportedSchema
            Kind ``unsupported-dtype``, ``ragged`` where all samples must have one shape, or
            ``sample-too-large`` where the format limits a sample's size.
        """
        for field in schema.fields:
            problem = f"format {self.name} cannot hold field {field.name}"
            if field.is_ragged and not self.holds_ragged:
                expected, hint = "samples of one shape", "use --format npy"
                raise UnsupportedSchema(problem, "ragged", expected=expected, found=field.typed, hint=hint)
            if field.dtype not in self.dtypes:
                expected = f"one of {', '.join(dtype for dtype in DTYPES if dtype in self.dtypes)}"
                raise UnsupportedSchema(
                    problem,
                    "unsupported-dtype",
                    expected=expected,
                    found=field.dtype,
                    hint="use --format memmap",
                )

    def stored_name(self, name: str) -> str:
        """Return a similar name that the files hold: the same name unless they cannot hold it."""
        return name

    def renamed(self, schema: Schema) -> dict[str, str]:
        """Return the name in the files of each field that has another one there."""
        stored = stored_names(schema.fields, self.stored_name)
        return {name: own for name, own in stored.items() if own != name}

    def _refuse_large(self, schema: Schema, sample_bytes: int, most: int, container: str) -> None:
        """Raise UnsupportedSchema, naming the largest field, if a sample takes more than `most` bytes.

        `container` is the part of a file that sets the limit, such as "a page".
        """
        if sample_bytes > most:
            largest = max(schema.fields, key=lambda field: field.sample_bytes)
            problem = f"format {self.name} cannot hold samples of {sample_bytes} bytes"
            expected = f"at most {most} bytes, the limit of {container}"
            found = f"{largest.sample_bytes} bytes in field {largest.name} alone"
            raise UnsupportedSchema(problem, "sample-too-large", expected=expected, found=found)

    @property
    def libraries(self) -> tuple[str, ...]:
        """PyPI names of all packages whose versions decide the format's speed."""
        return (self.library,)

    @property
    def parallel(self) -> bool:
        """True if threads read sooner than one does: samples are decoded one by one, without the GIL."""
        return False

    @property
    def lossless(self) -> bool:
        """True if reading returns the bytes that were written; a lossy format has an option `lossy`."""
        return True

    def other_decoders(self, large: bool = False) -> tuple[str, ...]:
        """Return variants that decode the same files in other ways, some of them only `large` samples."""
        return ()

    def jpeg_decoders(self) -> Iterator[WholeDecoder]:
        """Yield the installed decoders of JPEG files besides Pillow, of a format that has images."""
        yield from ()

    def roundtrip(self, batch: Batch) -> Batch:
        """Return the batch as reading will return it: the batch itself unless the format is lossy."""
        return batch

    @abstractmethod
    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write all batches, in order, into the new directory `path`.

        The arrays are C-contiguous and match the schema; bools are the bytes 0 and 1 (`plain_bools`).
        """

    @abstractmethod
    def open(self, path: Path, schema: Schema, random: bool = False) -> Reader:
        """Return a reader of what `write` stored in `path`, or of what `Detectable.infer_schema` described.

        `random` announces that rows will be read in random order; any order can be read either way.

        Raises
        ------
        CorruptArtifact
            The files do not match `schema`.
        """


class Detectable(ABC):
    """Mix-in of formats whose files from other programs can be added in place.

    Attributes
    ----------
    selectable : bool
        True if `infer_schema` accepts ``PATH::NAME,NAME``, which selects some of the arrays at a path.
    """

    selectable: ClassVar[bool] = False

    def sniff(self, path: Path) -> bool:
        """Return True if the file or folder at `path` looks like this format, from any program.

        Reads names and first bytes only. If it is always False, `--format` has to name the format.
        """
        return False

    @abstractmethod
    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return the schema of data at `path` that other programs wrote; `open` then reads them.

        Parameters
        ----------
        path : Path
            A file or folder.
        fields : sequence of Field
            The fields to read, for data that do not describe themselves.

        Raises
        ------
        CorruptArtifact
            The data are not in this format, samples differ in shape, or `fields` are needed.
        """

    def files(self, path: Path) -> Sequence[Path] | None:
        """Return the files that are read of a folder at `path`; None if all are. The others are counted."""
        return None

    def others(self, path: Path) -> Sequence[Path]:
        """Return the files below the folder of a file that hold some of its data; none by default."""
        return ()

    def groups(self, path: Path) -> Groups:
        """Return the groups of a file or folder that hold alike arrays: ``PATH/GROUP`` is a part of it."""
        return Groups()

    def notes(self, path: Path, schema: Schema) -> list[Finding]:
        """Return warnings about readable data at `path` that other programs wrote."""
        return []


class Checkable(ABC):
    """Mix-in of formats whose library does not survive all damage.

    Attributes
    ----------
    empty_page : bytes
        Page in which the library finds no data, in place of one that cannot be read from a mapped file; zeros
        if empty.
    """

    empty_page: ClassVar[bytes] = b""

    @abstractmethod
    def check(self, path: Path, schema: Schema) -> None:
        """Raise CorruptArtifact if `path` is damaged such that reading could end the process.

        Called once before an artifact is read in this process or its workers. It is separate from `open`
        because it may read much of the files and so bring them into the page cache.
        """


@dataclass(frozen=True)
class StoreAddress:
    """Address of an artifact in an object store; the credentials are those in the environment.

    Attributes
    ----------
    url : str
        Address above the objects.
    names : collection of str
        Names of the objects below it.
    endpoint : str or None
        That of S3; None for AWS.
    region : str
        Region of S3.
    public : bool
        Whether requests to S3 are to be sent without credentials.
    """

    url: str
    names: Collection[str]
    endpoint: str | None = None
    region: str = "us-east-1"
    public: bool = False


class Addressable(ABC):
    """Mix-in of formats without places of rows, whose library reads them from an object store by itself.

    Attributes
    ----------
    schemes : tuple of str
        Schemes of addresses that it reads.
    """

    schemes: ClassVar[tuple[str, ...]]

    def reads_at(self, address: str) -> bool:
        """Return whether the library reads datasets at an address."""
        return address.partition("://")[0] in self.schemes

    @abstractmethod
    def open_at(self, address: StoreAddress, schema: Schema) -> Reader:
        """Return a reader of the objects at an address; no error repeats credentials.

        Raises
        ------
        CorruptArtifact
            The objects do not match `schema`.
        LoaderFailed
            The library could not read the store.
        """
