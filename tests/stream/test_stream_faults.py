import contextlib
import errno
import gc
import os
import shutil
import signal
import threading
import time

import pytest
import torch
from conftest import image_arrays, prepared
from kinds import kind, refused_as
from stream_cases import (
    SAMPLES,
    VECTORS,
    assert_batches,
    assert_nothing_left,
    data_file,
    either_order,
    every_direct_way,
    every_order,
    every_placed,
    every_variant,
    every_way,
    files_in_use,
    in_child,
    loader,
    our_threads,
    rows_of,
    vector_arrays,
)

from iobench import Manifest
from iobench.base.errors import CorruptArtifact, InvalidSettings, LoaderFailed
from iobench.formats import Reader
from iobench.host import io_engines, page_cache
from iobench.stream import pipeline, readahead
from iobench.stream.direct_reader import DirectReader

pytest_plugins = ("stream_fixtures",)

SOURCE = image_arrays(SAMPLES)


@pytest.fixture(autouse=True)
def nothing_left_by_the_test_before():
    """Close a loader that an error's traceback still holds: its threads would be those of this test."""
    gc.collect()


class UserError(Exception):
    """An exception class of the training script."""

    def __init__(self, one, two):
        super().__init__(one, two)


@contextlib.contextmanager
def fails(error, root, *, match=None, cause=None):
    """Expect an error in one line, after which nothing of the epoch is left."""

    def check(caught):
        return "\n" not in str(caught) and (cause is None or kind(cause)(caught))

    with pytest.raises(error, match=match, check=check):
        yield
    assert_nothing_left(root)


# Transforms


@every_way
@pytest.mark.usefixtures("real_direct")
def test_a_transform_gets_each_batch_once_in_host_memory_and_may_change_its_shape(pictures, name, direct):
    seen = []

    def transform(batch):
        seen.append((threading.current_thread().name, {tensor.device.type for tensor in batch.values()}))
        return {"mean": batch["x"].float().mean(dim=(1, 2, 3)), "first": batch["y"][:1], "x": batch["x"]}

    result = list(loader(pictures, name, direct=direct, order="random", transform=transform))
    rows = rows_of("random")
    assert_batches([{"x": batch["x"]} for batch in result], {"x": SOURCE["x"]}, rows)
    for batch, expected in zip(result, rows, strict=True):
        assert batch["first"].tolist() == SOURCE["y"][expected[:1]].tolist()
        assert batch["mean"].tolist() == pytest.approx(SOURCE["x"][expected].mean(axis=(1, 2, 3)).tolist())
    assert len(seen) == len(rows)
    assert all(thread.startswith("iobench-stream") and where == {"cpu"} for thread, where in seen)


@every_way
@pytest.mark.parametrize("at", [0, 5])
@pytest.mark.usefixtures("real_direct")
def test_the_error_of_a_transform_comes_after_the_batches_before_it(vectors, name, direct, at):
    def transform(batch):
        if batch["y"][0] == at * 64:
            raise UserError(1, 2)
        return batch

    one, result = loader(vectors, name, direct=direct, batch_size=64, transform=transform), []
    with pytest.raises(UserError, match="1, 2"):
        result.extend(batch["y"][0].item() // 64 for batch in one)
    assert result == list(range(at))
    assert_nothing_left(vectors.root)
    assert one.state_dict()["remaining"] == [[64 * at, vectors.schema.samples]]


@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError("division by zero"),
        KeyError("z"),
        FileNotFoundError(errno.ENOENT, "No such file or directory", "labels.csv"),
        MemoryError(),
        InvalidSettings("mine"),
        KeyboardInterrupt(),
        SystemExit(3),
    ],
)
def test_the_error_of_a_transform_is_raised_unchanged(pictures, error):
    def transform(batch):
        raise error

    with pytest.raises(type(error)) as caught:
        next(iter(loader(pictures, "npy", transform=transform)))
    assert (type(caught.value), caught.value.args) == (type(error), error.args)
    assert_nothing_left(pictures.root)


@pytest.mark.parametrize(
    ("made", "named"),
    [
        (None, "NoneType"),
        ([torch.zeros(1)], "list"),
        (torch.zeros(1), "Tensor"),
        ({"x": torch.zeros(1), "y": 3}, "'y'.* int"),
        ({"x": SOURCE["x"]}, "'x'.* ndarray"),
    ],
)
def test_a_transform_that_returns_no_tensors_is_named(pictures, made, named):
    with fails(LoaderFailed, pictures.root, cause="invalid-transform", match=named):
        list(loader(pictures, "npy", transform=lambda batch: made))


# Epochs left before their end


@every_way
@pytest.mark.parametrize(("order", "how"), [("sequential", "break"), ("block", KeyboardInterrupt)])
@pytest.mark.usefixtures("real_direct")
def test_an_epoch_that_is_left_leaves_nothing_behind(pictures, name, direct, order, how):
    def leave():
        for number, _ in enumerate(loader(pictures, name, direct=direct, order=order, batch_size=4)):
            if number == 3:
                if how == "break":
                    break
                raise how

    if how == "break":
        leave()
    else:
        with pytest.raises(how):
            leave()
    assert_nothing_left(pictures.root)


@pytest.fixture
def pieces(monkeypatch, by_file):
    """Slow down readahead in 256 pieces; return a list with one entry per piece read."""
    read, pieces = os.preadv, []

    def slowly(*arguments):
        pieces.append(time.sleep(0.05))
        return read(*arguments)

    monkeypatch.setattr(readahead, "PIECE_BYTES", VECTORS * 4000 // 256)
    monkeypatch.setattr(os, "preadv", slowly)
    return pieces


@every_placed
@either_order
def test_leaving_does_not_wait_until_all_is_read_ahead(vectors, pieces, name, order):
    with vectors.opener(name)() as reader:
        reader.placement()  # builds an index, once
    one = loader(vectors, name, order=order, batch_size=16, fields=["x"], threads=1)
    page_cache.evict(vectors.files_of(name))
    pieces.clear()
    next(iter(one))
    assert len(pieces) < 128
    assert_nothing_left(vectors.root)


@every_order
def test_the_first_batch_does_not_wait_until_all_is_read_ahead(monkeypatch, vectors, pieces, order):
    as_a_read_begins(monkeypatch, lambda: time.sleep(0.1))  # the other threads overtake the first batch's
    page_cache.evict(vectors.files_of("npy"))
    one = loader(vectors, "npy", order=order, batch_size=16, fields=["x"], threads=3)
    with contextlib.closing(iter(one)) as batches:
        next(batches)
        until_then = len(pieces)
    assert until_then < 128


@every_way
@pytest.mark.usefixtures("real_direct")
def test_a_signal_ends_a_loop_that_waits_for_a_batch(pictures, name, direct):
    def interrupted():
        def transform(batch):
            if (batch["x"].numpy() == SOURCE["x"][100]).all():
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.1)
            return batch

        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            for _ in loader(pictures, name, direct=direct, batch_size=1, transform=transform):
                pass
        except KeyboardInterrupt:
            return our_threads(), files_in_use(pictures.root)

    assert in_child(interrupted) == ([], set())


@every_way
@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
@pytest.mark.usefixtures("real_direct")
def test_an_error_while_an_epoch_is_opened_leaves_nothing_behind(monkeypatch, pictures, name, direct, error):
    def refuse(*_):
        raise error

    def begin():
        with pytest.raises(error):
            next(iter(loader(pictures, name, direct=direct, copy=True)))
        assert_nothing_left(pictures.root)

    monkeypatch.setattr(pipeline, "GroupMemory", refuse)
    in_child(begin)


@every_way
@pytest.mark.usefixtures("real_direct")
def test_an_interrupt_between_two_epochs_leaves_nothing_behind(monkeypatch, pictures, name, direct):
    """It comes while the files that are kept are looked at."""
    stat = os.stat

    def interrupting(*given, **options):
        signal.raise_signal(signal.SIGINT)
        return stat(*given, **options)

    def go_on():
        one = loader(pictures, name, direct=direct)
        list(one)
        with monkeypatch.context() as patch:
            patch.setattr(os, "stat", interrupting)
            with pytest.raises(KeyboardInterrupt):
                next(iter(one))
        assert our_threads() == []
        assert_nothing_left(pictures.root)

    in_child(go_on)


# Failing files and disks


def truncate(file):
    os.truncate(file, file.stat().st_size // 3)


def rewrite(file):
    with open(file, "r+b") as opened:
        opened.seek(file.stat().st_size // 8192 * 4096 + 3000)
        opened.write(bytes(64))


def replace(file):
    other = file.with_name("other")
    shutil.copy(file, other)
    os.replace(other, file)


CHANGES = {"truncated": truncate, "rewritten": rewrite, "replaced": replace, "removed": os.unlink}


@every_way
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.usefixtures("real_direct")
def test_a_file_that_changes_during_an_epoch_is_named(own, name, direct, change):
    file, changed = data_file(own, name), []
    order = "random" if change in ("rewritten", "removed") else "sequential"

    def transform(batch):
        """Change the file between two reads."""
        if not changed:
            changed.append(CHANGES[change](file))
        return batch

    def go_on():
        one = loader(own, name, direct=direct, order=order, batch_size=1, threads=1, transform=transform)
        batches = iter(one)
        next(batches)
        with fails(CorruptArtifact, own, match=str(file)):
            list(batches)

    in_child(go_on)


OF_MANY_FILES = ("zarr:chunk_bytes=2048", "mds:shard_bytes=4096")


@pytest.fixture(scope="module")
def many_files(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("many"), SOURCE, OF_MANY_FILES)


@pytest.mark.parametrize("name", OF_MANY_FILES)
@pytest.mark.parametrize("leave", [False, True])
def test_one_file_of_many_that_was_rewritten_is_named_before_the_next_epoch(
    many_files, tmp_path, name, leave
):
    root = shutil.copytree(many_files.root, tmp_path / "own")
    one, files = loader(root, name, batch_size=SAMPLES), Manifest.load(root).files_of(name)
    batches = iter(one)
    next(batches)  # of all files
    file, stat = files[len(files) // 2], files[len(files) // 2].stat()
    file.write_bytes(file.read_bytes())
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as rsync does
    if leave:
        batches.close()
        batches = iter(one)
    with pytest.raises(CorruptArtifact, check=kind("changed", path=file)):
        next(batches)
    assert len(files) > 20
    assert_batches(one, SOURCE, rows_of("sequential", batch_size=SAMPLES))  # an error is raised once


def as_a_read_begins(monkeypatch, happen):
    """Call `happen` once, after a backend has begun to read and before its reader does."""
    read, readers = Reader.read, []

    def then(self, rows, out):
        readers.append(self)
        if len(readers) == 1:
            happen()
        read(self, rows, out)

    monkeypatch.setattr(Reader, "read", then)


@every_way
@pytest.mark.parametrize(("order", "change"), [("sequential", "rewritten"), ("random", "truncated")])
@pytest.mark.usefixtures("real_direct")
def test_a_file_that_changes_in_the_middle_of_a_read_is_named(monkeypatch, own, name, direct, order, change):
    file = data_file(own, name)

    def go_on():
        as_a_read_begins(monkeypatch, lambda: CHANGES[change](file))
        with fails(CorruptArtifact, own, match=str(file)):  # all in one read
            list(loader(own, name, direct=direct, order=order, batch_size=SAMPLES, threads=1, copy=True))

    in_child(go_on)


@every_placed
@pytest.mark.parametrize("left", [0, 1000])
def test_a_file_that_is_cut_while_it_is_opened_is_named(monkeypatch, own, name, left):
    file = data_file(own, name)

    def then_cut(files, sampled):
        os.truncate(file, left)
        return 1.0

    monkeypatch.setattr(page_cache, "residency", then_cut)
    with fails(CorruptArtifact, own, match=str(file)):
        next(iter(loader(own, name)))


@every_variant
@pytest.mark.parametrize("change", ["truncated", "removed"])
def test_a_file_that_is_not_whole_is_refused_before_an_epoch_and_by_a_new_loader(own, name, change):
    one, file = loader(own, name), data_file(own, name)
    list(one)
    CHANGES[change](file)
    for read in (lambda: next(iter(one)), lambda: loader(own, name)):
        with fails(CorruptArtifact, own, match=str(file)):
            read()


def broken(*_):
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@every_placed
@either_order
@pytest.mark.usefixtures("by_file")
def test_a_disk_that_fails_ahead_of_the_cache_is_one_line(monkeypatch, vectors, name, order):
    one = loader(vectors, name, order=order)  # reads files to check them
    page_cache.evict(vectors.files_of(name))
    monkeypatch.setattr(readahead, "SMALL_BYTES", 0)  # pages of small files are not read, but touched
    monkeypatch.setattr(os, "preadv", broken)
    with fails(LoaderFailed, vectors.root, cause="read-error"):
        list(one)


@every_direct_way
@either_order
@pytest.mark.usefixtures("real_direct")
def test_a_disk_that_fails_past_the_cache_is_one_line(monkeypatch, pictures, name, direct, order):
    for engine in (io_engines.LibaioEngine, io_engines.ThreadPoolEngine):
        collect = engine.collect

        def failing(self, least, collect=collect):
            return [(slot, -errno.EIO) for slot, _ in collect(self, least)]

        monkeypatch.setattr(engine, "collect", failing)
    with fails(LoaderFailed, pictures.root, cause="read-error"):
        list(loader(pictures, name, order=order, direct=direct))


def test_a_disk_that_fails_while_an_epoch_is_opened_is_one_line(monkeypatch, pictures):
    monkeypatch.setattr(DirectReader, "_whole", broken)
    with fails(LoaderFailed, pictures.root, cause="read-error"):
        list(loader(pictures, "npy", direct=True))


@pytest.fixture
def failing(loop_disk, vectors):
    """Copy `vectors` to a disk that can be made to fail; return its folder and a function that does so."""

    def failing(name):
        root = loop_disk.path / "vectors"
        shutil.copytree(vectors.path_of(name), root / vectors.path_of(name).name)
        shutil.copy(vectors.root / "manifest.json", root)
        return root, lambda: loop_disk.fail([data_file(root, name)])

    return failing


@every_way
@pytest.mark.parametrize(("order", "cold"), [("sequential", True), ("random", False)])
@pytest.mark.usefixtures("real_direct", "by_file")
def test_a_disk_that_fails_is_one_line_and_no_bus_error(monkeypatch, failing, name, direct, order, cold):
    root, fail = failing(name)
    file = data_file(root, name)
    page_cache.evict([file]) if cold else page_cache.warm([file])

    def go_on():
        as_a_read_begins(monkeypatch, fail)
        with fails(LoaderFailed, root, match=str(file)):
            list(loader(root, name, direct=direct, order=order, batch_size=16, threads=1, copy=True))

    in_child(go_on)


# Forks


@every_way
@pytest.mark.usefixtures("real_direct")
def test_a_fork_during_an_epoch_does_no_harm(pictures, name, direct):
    one = loader(pictures, name, direct=direct, order="random", batch_size=1)
    rows, result = rows_of("random", batch_size=1), []

    def child():
        assert_batches(one, SOURCE, rows)
        with refused_as("forked", LoaderFailed, match=rf"{os.getppid()} .* {os.getpid()}"):
            list(batches)
        assert_batches(one, SOURCE, rows_of("random", 1, batch_size=1))
        assert our_threads() == []

    with contextlib.closing(iter(one)) as batches:
        for _ in range(3):
            result.append(next(batches))
            in_child(child)
        assert_batches([*result, *batches], SOURCE, rows)


@every_variant
def test_repeated_forks_during_an_epoch_do_no_harm(vectors, name):
    def child():
        with contextlib.suppress(LoaderFailed):  # none where the rest was there already
            list(batches)

    result = []
    with contextlib.closing(iter(loader(vectors, name, order="random", batch_size=64))) as batches:
        for batch in batches:
            result.append(batch)
            if len(result) % 3 == 0:
                in_child(child)
    assert_batches(result, vector_arrays(), rows_of("random", samples=VECTORS, batch_size=64))
