"""Format audio: one sound file per sample, decoded when it is read; scalars in NumPy files.

    <field>/000/000000012.wav      row 12 of an audio field, in folders of a thousand files
    <field>.npy                    a field of scalars

Clips of different lengths are a ragged field: int16 or float32, `[*]` for mono and `[*,channels]` otherwise.
Existing folders with one folder per class can be read in place: field `audio` holds the clips, `label` the
number of the class in the order of the folders' names. libsndfile decodes WAV, FLAC, Ogg and MP3 files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from iobench.base.errors import CorruptArtifact, UnsupportedSchema, corrupt, damage
from iobench.base.files import regular
from iobench.base.finding import Finding
from iobench.base.options import option
from iobench.base.text import reason
from iobench.contrib.formats.shared.sample_files import FilesReader, NumberedFiles, class_reader, file_writers
from iobench.formats import VARIES, Array, Batch, Detectable, Field, Format, Schema
from iobench.formats.folders import ClassFolder, is_class_folder
from iobench.formats.npy import Npy

SUFFIXES = (".wav", ".flac", ".ogg", ".mp3")
SUBTYPES = {"int16": "PCM_16", "float32": "FLOAT"}  # of a WAV file, by dtype
SMALL_SUBTYPES = ("PCM_16", "PCM_S8", "PCM_U8")  # that int16 holds
HELD = "int16 or float32 of shape (*) or (*, channels)"
MOST_CHANNELS = 1024  # libsndfile's limit


class Header(NamedTuple):
    """Header of a sound file."""

    frames: int
    channels: int
    rate: int  # in Hz
    subtype: str


@dataclass(frozen=True)
class Audio(Format, Detectable):
    """A WAV file per sample."""

    name: ClassVar[str] = "audio"
    summary: ClassVar[str] = "one WAV file per sample; reads folders of WAV, FLAC, Ogg and MP3 files"
    library: ClassVar[str] = "soundfile"
    modules: ClassVar[tuple[str, ...]] = ("soundfile",)
    survives_unlink: ClassVar[bool] = False
    holds_ragged: ClassVar[bool] = True

    rate: int = option(16_000, "sample rate written into new files, in Hz", minimum=1, maximum=1_000_000)

    @property
    def parallel(self) -> bool:
        """True: libsndfile decodes without the GIL."""
        return True

    def check_schema(self, schema: Schema) -> None:
        """Raise UnsupportedSchema (``not-audio``) also for fields but clips and scalars, or without clips."""
        super().check_schema(schema)
        wrong = [field for field in schema.fields if field.shape and not _is_clip(field)]
        if wrong or not schema.ragged:
            raise UnsupportedSchema(
                f"format {self.name} holds clips and scalars",
                kind="not-audio",
                expected=f"fields {HELD}, or scalars",
                found=", ".join(field.typed for field in wrong or schema.fields),
            )

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write the clips in several threads, and scalars as format npy does."""
        Npy().write(path, schema.fixed, self._clips_written(path, schema, batches))

    def _clips_written(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> Iterator[Batch]:
        start = 0
        with file_writers() as write_all:
            for batch in batches:
                count = len(next(iter(batch.values())))
                for field in schema.ragged:
                    clips: Any = batch[field.name]
                    files = NumberedFiles(path / field.name, ".wav").new(start, count)
                    parts = zip(clips.offsets[:-1].tolist(), clips.offsets[1:].tolist(), strict=True)
                    write_all(self._write, files, [clips.values[low:high] for low, high in parts])
                start += count
                yield {field.name: batch[field.name] for field in schema.fixed.fields}

    def _write(self, file: Path, clip: Array) -> None:
        import soundfile

        soundfile.write(file, clip, self.rate, subtype=SUBTYPES[clip.dtype.name])

    def open(self, path: Path, schema: Schema, random: bool = False) -> FilesReader:
        """Return a reader, which checks each clip's length, channels and dtype when it is read."""
        if wrong := [field for field in schema.fields if field.shape and not _is_clip(field)]:
            raise corrupt(path, wrong[0].typed, "clips and scalars")
        written = [NumberedFiles(path / field.name, ".wav") for field in schema.ragged]
        if not any(files.exist(schema.samples) for files in written):
            return class_reader(ClassFolder.of(path, SUFFIXES), schema, _decoded)
        existing = {
            field.name: files.existing(schema.samples, "a clip")
            for field, files in zip(schema.ragged, written, strict=True)
        }
        return FilesReader(path, schema, existing, Npy().open(path, schema.fixed), _decoded)

    def sniff(self, path: Path) -> bool:
        """Return True for a folder with sound files, in its subfolders or in it, and no other data in it."""
        return is_class_folder(path, SUFFIXES, media=True)

    def files(self, path: Path) -> Sequence[Path]:
        """Return the clips of all classes."""
        return ClassFolder.of(path, SUFFIXES).files

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return the schema of fields `audio` and, if there is one, `label`; reads the header of every file.

        Clips are int16 if that holds all of them, else float32.

        CorruptArtifact if a file cannot be read, of kind ``unequal-channels``, or as from `ClassFolder.of`.
        """
        folder = ClassFolder.of(path, SUFFIXES)
        files = folder.files
        headers = [_header(file) for file in files]
        audio, *labels = folder.names("audio", [field.name for field in fields])
        channels, first = headers[0].channels, files[0]
        for file, header in zip(files, headers, strict=True):
            if header.channels != channels:
                problem, expected = "the clips differ in channels", "clips of one number of channels"
                found = f"{channels} in {first.name} and {header.channels} in {file.name}"
                raise CorruptArtifact(problem, "unequal-channels", path, expected=expected, found=found)
        dtype = "int16" if all(header.subtype in SMALL_SUBTYPES for header in headers) else "float32"
        shape = (VARIES,) if channels == 1 else (VARIES, channels)
        total = sum(header.frames for header in headers)
        clips = Field(audio, shape, dtype)
        scalars = [Field(name, (), "int64") for name in labels]
        return Schema(len(files), (clips, *scalars), totals={audio: total})

    def notes(self, path: Path, schema: Schema) -> list[Finding]:
        """Return how labels were taken, and a note if the clips have several sample rates."""
        folder = ClassFolder.of(path, SUFFIXES)
        rates = sorted({_header(file).rate for file in folder.files})
        if len(rates) == 1:
            return folder.notes()
        text = ", ".join(f"{rate:,}" for rate in rates)
        message = f"the clips have {len(rates)} sample rates ({text} Hz); they are not resampled"
        return [*folder.notes(), Finding("sample-rates", message, values={"rates": text})]


def _is_clip(field: Field) -> bool:
    small = len(field.inner) <= 1 and field.elements <= MOST_CHANNELS
    return field.varying == 1 and small and field.dtype in SUBTYPES


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """Yield the file opened by libsndfile; CorruptArtifact if it cannot be read in the block."""
    import soundfile

    try:
        with soundfile.SoundFile(str(regular(file))) as opened:
            yield opened
    except OSError as error:
        raise damage(error, file, "a sound file") from error
    except soundfile.SoundFileError as error:
        # without the path, which the message of libsndfile repeats
        raise corrupt(file, "a sound file", getattr(error, "error_string", None) or reason(error)) from error


def _header(file: Path) -> Header:
    with _opened(file) as opened:
        return Header(opened.frames, opened.channels, opened.samplerate, opened.subtype)


def _decoded(file: Path, field: Field) -> Array:
    """Return the clip in a file; CorruptArtifact if it is damaged or has other channels."""
    with _opened(file) as opened:
        clip: Array = opened.read(dtype=field.dtype, always_2d=bool(field.inner))
        expected = opened.frames
    if len(clip) != expected:
        raise corrupt(file, f"{expected} frames", f"{len(clip)}", kind="truncated")
    if clip.shape[1:] != field.inner:
        raise corrupt(file, field.typed, f"{field.dtype} {clip.shape}")
    return clip
