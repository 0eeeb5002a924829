"""Windows of a stream of tokens, shared by formats that store tokens end to end: tokens and megatron.

A sample is a window: `window` tokens in a row, `stride` tokens after the beginning of the one before. Windows
of T + 1 tokens at a stride of T overlap by one token, so inputs and targets cover each token once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from iobench.base.errors import CorruptArtifact, InvalidOption, UnsupportedSchema, corrupt, expecting
from iobench.base.files import regular
from iobench.base.finding import Finding
from iobench.base.options import option
from iobench.base.units import counted
from iobench.contrib.formats.shared.mapped_files import copy_rows
from iobench.contrib.formats.shared.record_writer import check_described, describe
from iobench.formats import (
    Array,
    Batch,
    Detectable,
    Field,
    Format,
    MappedReader,
    Rows,
    Schema,
    Strided,
    check_sample,
    raw_bytes,
    unclosed,
)
from iobench.formats.folders import NOT_READ

FIELD = "tokens"  # of a file that another program wrote
WINDOW = 1025  # nanoGPT's block_size of 1024, and the target of the last input


@dataclass(frozen=True)
class TokenStream:
    """Tokens end to end in a file, from a byte offset to the end."""

    file: Path
    dtype: str
    tokens: int
    offset: int = 0

    @classmethod
    def to_the_end(cls, file: Path, dtype: str, offset: int = 0) -> TokenStream:
        """Return the tokens up to the end of a file; CorruptArtifact if its size is no multiple of theirs."""
        with expecting(file, "a file of tokens", OSError):
            stored, width = regular(file).stat().st_size - offset, np.dtype(dtype).itemsize
        if stored % width:
            raise corrupt(file, f"a multiple of {width} bytes, for {dtype}", f"{stored:,} bytes")
        return cls(file, dtype, stored // width, offset)

    def windows(self, window: int, stride: int) -> int:
        """Return the number of whole windows."""
        return max(0, (self.tokens - window) // stride + 1)


@dataclass(frozen=True)
class TokenWindows(Format, Detectable):
    """Base class of formats of one field: windows of a stream of tokens.

    `write` makes a folder with the tokens and a schema file; what other programs wrote is a single file.
    """

    library: ClassVar[str] = "numpy"

    window: int = option(
        WINDOW, "tokens per sample of an existing file: T + 1, inputs and the last target", minimum=2
    )
    stride: int | None = option(
        None,
        "tokens from a sample to the next; by default window - 1 in an existing file, else window",
        minimum=1,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stride is not None and self.stride > self.window:
            problem = f"{self.name}:stride={self.stride} would skip tokens between windows"
            expected, hint = f"at most window={self.window}", "give a larger window too, or a smaller stride"
            raise InvalidOption(problem, "conflicting-options", expected=expected, hint=hint)

    @abstractmethod
    def data_file(self, path: Path) -> Path:
        """Return the file of tokens of the folder `path` that `write` made."""

    @abstractmethod
    def stream(self, path: Path, dtype: str | None) -> TokenStream:
        """Return the tokens of a folder that `write` made, or of a file; of this dtype if it does not say.

        Raises CorruptArtifact if the files are damaged, or nothing says of which dtype they are.
        """

    def finish(self, path: Path, schema: Schema, stride: int) -> None:
        """Write what else belongs into the folder `path`; nothing unless overridden."""
        return

    def check_schema(self, schema: Schema) -> None:
        """Raise UnsupportedSchema (``not-windows``) also for anything but one field of one axis."""
        super().check_schema(schema)
        if not _is_window(schema) or not self._takes(schema.fields[0].shape[0]):
            size = "" if self.window == WINDOW else f" of {self.window}"
            problem = f"{self.variant} cannot hold the samples"
            expected = f"one field of one axis{size}, no shorter than the stride"
            raise UnsupportedSchema(problem, "not-windows", expected=expected, found=schema.describe())

    def _takes(self, window: int) -> bool:
        return self.window in (WINDOW, window) and (self.stride or 0) <= window

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write each window, without the tokens that it shares with the one before."""
        path.mkdir()
        describe(path, schema)
        (field,) = schema.fields
        windows, stride = (batch[field.name] for batch in batches), self._step(schema, True)
        with open(self.data_file(path), "wb") as file:
            for tokens in _without_overlap(windows, stride):
                file.write(raw_bytes(np.ascontiguousarray(tokens)))
        self.finish(path, schema, stride)

    def open(self, path: Path, schema: Schema, random: bool = False) -> WindowReader:
        """Compare the tokens with the schema, and return a reader over a map of them."""
        written = path.is_dir()
        if written:
            check_described(path, schema)
        if not _is_window(schema):
            raise corrupt(path, "one field of one axis", schema.describe())
        (field,) = schema.fields
        stream, stride = self.stream(path, field.dtype), self._step(schema, written)
        if stream.dtype != field.dtype:
            raise corrupt(stream.file, f"{field.dtype} tokens", stream.dtype)
        if (samples := stream.windows(field.shape[0], stride)) != schema.samples:
            raise corrupt(stream.file, counted(schema.samples, "window"), counted(samples, "window"))
        return WindowReader(schema, stream, stride)

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return the schema of the windows in a file.

        CorruptArtifact of kind ``not-a-file``, or ``too-few-tokens`` for a single window.
        """
        if path.is_dir():
            expected, hint = "a file of tokens", f"read all files in it by parts:of={self.name}"
            raise CorruptArtifact("a folder", "not-a-file", path, expected=expected, hint=hint)
        stream = self.stream(path, None)
        field = window_field(path, self.name, self.window, stream.dtype, stream.tokens)
        return Schema(stream.windows(self.window, self.stride or self.window - 1), (field,))

    def notes(self, path: Path, schema: Schema) -> list[Finding]:
        """Return the tokens at the end that are in no window."""
        (field,) = schema.fields
        stream = self.stream(path, field.dtype)
        (window,), stride = field.shape, self._step(schema, False)
        rest = stream.tokens - (schema.samples - 1) * stride - window
        if not rest:
            return []
        message = f"the last {counted(rest, 'token')} of {stream.tokens:,} are in no window"
        return [Finding(NOT_READ, message, values={"tokens": stream.tokens, "left_over": rest})]

    def _step(self, schema: Schema, written: bool) -> int:
        """Return the tokens from a window to the next, in what `write` made or in a file."""
        (window,) = schema.fields[0].shape
        return self.stride or (window if written else max(1, window - 1))


class WindowReader(MappedReader):
    """Reads windows, which may overlap, of a mapped file; `native` is the loop of a nanoGPT script."""

    def __init__(self, schema: Schema, stream: TokenStream, stride: int) -> None:
        (field,) = schema.fields
        width = np.dtype(field.dtype).itemsize
        stored = np.memmap(stream.file, np.uint8, "r")
        self._tokens: Array | None = stored[stream.offset :].view(field.dtype)
        self._stored: Array | None = np.asarray(stored)
        self._stride, self._place = stride, Strided((stream.file,), stream.offset, stride * width)
        windows: Array = np.ndarray(
            (schema.samples, *field.shape), field.dtype, stored, stream.offset, (stride * width, width)
        )
        super().__init__(schema, {field.name: windows}, {field.name: self._place})

    def native(self, rows: Rows) -> Batch:
        """Return a stack of slices of `np.memmap`, one for each window."""
        tokens, stride, (field,) = unclosed(self._tokens), self._stride, self.schema.fields
        checked, count = self._checked(rows)
        if not count:
            return self.schema.empty(0)
        numbers = range(checked.start, checked.stop) if isinstance(checked, slice) else checked.tolist()
        begins = [number * stride for number in numbers]
        return {field.name: np.stack([tokens[begin : begin + field.shape[0]] for begin in begins])}

    def close(self) -> None:
        """Drop the maps; they are released with the last view of them."""
        super().close()
        self._tokens = self._stored = None

    def _read_rows(self, rows: npt.NDArray[np.int64], out: Mapping[str, Array]) -> None:
        stored = unclosed(self._stored)
        for target in out.values():  # np.take would copy all windows first
            flat = target.reshape(len(rows), -1).view(np.uint8)
            copy_rows(stored, self._place.locate(rows)[1], flat, np.arange(len(rows)))


def window_field(
    path: Path, format_name: str, window: int, dtype: str, tokens: int, where: str = ""
) -> Field:
    """Return the field of windows of a stream of tokens; CorruptArtifact of kind ``too-few-tokens``."""
    field = Field(FIELD, (window,), dtype)
    check_sample("", field.shape, field.sample_bytes, path)
    if tokens < window:
        problem, expected = "too few tokens for a window", f"at least {window:,}{where}"
        hint = f"name the format with a smaller window: {format_name}:window={max(2, tokens)}"
        raise CorruptArtifact(
            problem, "too-few-tokens", path, expected=expected, found=f"{tokens:,}", hint=hint
        )
    return field


def _is_window(schema: Schema) -> bool:
    return len(schema.fields) == 1 and len(schema.fields[0].shape) == 1


def _without_overlap(batches: Iterable[Array], stride: int) -> Iterator[Array]:
    """Yield the tokens of windows at a stride; UnsupportedSchema if two of them differ where they overlap."""
    before: Array | None = None
    for windows in batches:
        if not len(windows):
            continue
        overlap = windows.shape[1] - stride
        if before is None:
            yield windows[0, :overlap]
            before = windows[:0]
        joined = np.concatenate([before, windows])
        if (joined[:-1, stride:] != joined[1:, :overlap]).any():
            problem = f"windows at a stride of {stride} differ where they overlap"
            raise UnsupportedSchema(problem, "windows-differ", hint="omit stride, to write whole windows")
        yield windows[:, overlap:]
        before = windows[-1:]
