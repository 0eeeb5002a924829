"""Select the backend that suits an artifact and the state of the page cache."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from iobench.base.errors import InvalidSettings, IobenchError
from iobench.dataset.artifact_location import ChangeDetector
from iobench.dataset.opener import Opener
from iobench.formats import Blocks, Placement, Reader, Schema, Spans
from iobench.host import memory
from iobench.host.io_engines import DirectUnavailable
from iobench.host.maps import SIGBUS_HANDLED, FolderMapGuard, MapGuard
from iobench.loading.order import Order
from iobench.loading.stages import UNTIMED, Stages
from iobench.stream.backend import (
    Backend,
    CachedBackend,
    CompositeReader,
    DirectBackend,
    Part,
    failures_of,
    is_cold,
    remote_backend,
)
from iobench.stream.block_reader import BlockReader
from iobench.stream.cached_reader import CachedReader, SpanReader
from iobench.stream.consumer_delivery import GatherDelivery, ViewDelivery, segments_of
from iobench.stream.delivery import BatchDelivery
from iobench.stream.direct_reader import DirectReader
from iobench.stream.options import ReadOptions
from iobench.stream.pipeline import Pipeline, Transform
from iobench.stream.transfer import Transfer

FITS = 0.5  # share of the free memory: smaller data will stay in the page cache
MAX_THREADS = 4
# Batches as large as a group of the pipeline are worth more: a group costs Python code, which one thread runs
# at a time. Of 16 cores, 8 threads read warm batches of 19 MB 1.4 to 1.5 × as fast as 4 do, and those of
# 1 MB and less 0.8 to 1.2 × as fast.
LARGE_BATCH_BYTES, MAX_THREADS_LARGE = 8 << 20, 8
# One thread copies rows while the other waits for the disk; more do not help. On four cores, random rows of
# 150 KB came at 1,151 MiB/s with four threads, 1,203 with two and 1,237 with one, in turns of one run.
DIRECT_THREADS = 2
SMALL_BLOCK_ROWS, SMALL_BLOCK_BYTES = 16, 32 << 10  # mean of decoded blocks


def open_delivery(
    opener: Opener,
    schema: Schema,
    options: ReadOptions,
    order: Order,
    transfer: Transfer,
    transform: Transform | None = None,
    copy: bool = False,
    stages: Stages = UNTIMED,
) -> BatchDelivery:
    """Open the way of delivering batches that suits an artifact, an order and a device.

    ========================================================================  ====================
    batches                                                                   delivered as
    ========================================================================  ====================
    in stored order, of samples that lie as in memory, one after the other,   views of the files
    on the CPU, without `copy` and `transform`
    in other orders, of samples that lie as in memory and are in the page     copies by the
    cache, on the CPU, without `threads` and `transform`                      consumer's thread
    all others                                                                copies by threads
    ========================================================================  ====================

    Raises as `select_backend`, by which threads read.
    """
    direct = transfer.on_host and transform is None and SIGBUS_HANDLED
    views = direct and order.kind == "sequential" and not copy
    backend = select_backend(opener, schema, options, order.batch_size, views)
    if direct and isinstance(backend, CachedBackend) and isinstance(reader := backend.reader, CachedReader):
        segments = segments_of(reader.addresses, schema, order) if views else None
        if segments is not None:
            return ViewDelivery(backend, reader.addresses, segments, schema, order)
        if not backend.cold and order.kind != "sequential" and options.threads is None:
            return GatherDelivery(backend, reader, schema, order)
    return Pipeline(backend, schema, order, transfer, transform, stages)


def select_backend(
    opener: Opener, schema: Schema, options: ReadOptions, batch_size: int, views: bool = False
) -> Backend:
    """Open the backend that suits an artifact and the state of the page cache.

    Fields stored as they are in memory are read through the page cache if they are in it or will stay in it,
    else past it, unless `direct` decides. Encoded blocks are read through the page cache and decoded by one
    thread per processor. If a field has neither, or its blocks are small, everything is read by the format's
    reader, in one thread unless it is `parallel`. Samples of different lengths are read through the page
    cache only. With `views`, batches in stored order are views of the files where they can be.

    Raises InvalidSettings if `direct` is True and the artifact, its file system or its store does not allow
    it, LoaderFailed if the disk fails.
    """
    if opener.remote is not None:
        check_direct(opener, schema, options)
        return remote_backend(opener, schema, options)
    threads, direct = options.threads, options.direct
    with failures_of(opener.path):
        files = _files(opener.path)
        unchanged = ChangeDetector(files)  # first: changes during the opening count
        cold = is_cold(files)  # before a reader reads them
        with ExitStack() as ends:
            guard = FolderMapGuard(opener.path, opener.empty_page)  # locating rows accesses maps
            ends.callback(guard.release)
            reader, placements, blocks = _inspected(opener, schema, guard)
            ends.callback(reader.close)
            if direct:
                check_placements(placements, schema, opener.format.variant)
            encoded = {name for table in blocks for name in table.fields}
            if {field.name for field in schema.fields} - placements.keys() - encoded:
                ends.pop_all()
                parallel = opener.format.parallel
                threads = threads or (_cores() if parallel else 1)
                return Backend(opener.path, reader, threads, unchanged, [guard], parallel)
        past = None if encoded or schema.ragged else _direct_reader(schema, placements, direct, cold)
        if past is not None:
            return DirectBackend(opener.path, past, threads or DIRECT_THREADS, unchanged)
        if not threads:
            large = not cold and min(batch_size, schema.samples) * schema.sample_bytes >= LARGE_BATCH_BYTES
            most = MAX_THREADS_LARGE if large else MAX_THREADS
            threads = _cores() if encoded else min(most, _cores())
        cached = _cached_reader(schema, placements, blocks, cold, threads, views)
        cached.epoch = reader.epoch
        return CachedBackend(opener.path, cached, threads, unchanged)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _inspected(
    opener: Opener, schema: Schema, guard: MapGuard
) -> tuple[Reader, Mapping[str, Placement], list[Blocks]]:
    """Open a reader and return it with the location of its rows; OSError if the disk fails meanwhile."""
    try:
        reader = opener()
        try:
            placements, blocks = reader.placement(), _large_blocks(reader, schema)
            guard.check()
        except BaseException:
            reader.close()
            raise
    except IobenchError:
        guard.check()  # its error names the cause
        raise
    return reader, placements, blocks


def check_direct(opener: Opener, schema: Schema, options: ReadOptions) -> None:
    """Raise InvalidSettings if the option `direct` is True and the artifact cannot be read so."""
    if options.direct and opener.remote is not None:
        raise InvalidSettings(
            "direct=yes with a dataset in an object store", kind="no-direct-reads", hint="leave direct out"
        )
    if options.direct:
        with opener() as reader:
            check_placements(reader.placement(), schema, opener.format.variant)


def check_placements(placements: Mapping[str, Placement], schema: Schema, variant: str) -> None:
    """Raise InvalidSettings if a field has to be decoded, or samples differ in length."""
    if schema.ragged or {field.name for field in schema.fields} - placements.keys():
        other = "samples are not stored as they are in memory"
        cause = "samples differ in length" if schema.ragged else other
        problem = f"{variant} cannot be read past the page cache: {cause}"
        raise InvalidSettings(problem, "no-direct-reads", hint="leave direct out")


def _large_blocks(reader: Reader, schema: Schema) -> list[Blocks]:
    """Return the blocks of these fields, without small ones, which are not worth a call each."""
    tables = []
    for table in reader.blocks():
        names = [name for name in table.fields if name in {field.name for field in schema.fields}]
        width = sum(schema.field(name).sample_bytes for name in names)
        rows = schema.samples / len(table.first)
        if names and (rows >= SMALL_BLOCK_ROWS or rows * width >= SMALL_BLOCK_BYTES):
            tables.append(table)
    return tables


def _cached_reader(
    schema: Schema,
    placements: Mapping[str, Placement],
    blocks: Sequence[Blocks],
    cold: bool,
    threads: int,
    views: bool,
) -> Part | CompositeReader:
    spans = {name: place for name, place in placements.items() if isinstance(place, Spans)}
    plain = schema.chosen(placements.keys() - spans.keys())
    ragged = schema.chosen(spans)
    encoded = schema.chosen({field.name for field in schema.fields} - placements.keys())
    parts: list[Part] = []
    if plain.fields:
        parts.append(CachedReader(plain, placements, cold, views))
    if ragged.fields:
        parts.append(SpanReader(ragged, spans, cold))
    if encoded.fields:
        parts.append(BlockReader(encoded, blocks, cold, threads))
    return parts[0] if len(parts) == 1 else CompositeReader(schema, parts)


def _direct_reader(
    schema: Schema, placements: Mapping[str, Placement], direct: bool | None, cold: bool
) -> DirectReader | None:
    """Return the reader past the page cache, unless reading through it is required or better."""
    files = sorted({file for field in schema.fields for file in placements[field.name].files})
    if direct or (direct is None and cold and not _fits(files)):
        try:
            return DirectReader(schema, placements)
        except DirectUnavailable as error:
            if direct:
                raise InvalidSettings(str(error), "no-direct-reads", hint="leave direct out") from error
    return None


def _fits(files: Sequence[Path]) -> bool:
    return sum(file.stat().st_size for file in files) <= FITS * memory.free_memory()


def _files(path: Path) -> list[Path]:
    """Return all files of an artifact, which is a file or a folder."""
    if not path.is_dir():
        return [path]
    paths = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in sorted(names))
    return [Path(file) for file in paths if os.path.isfile(file)]
