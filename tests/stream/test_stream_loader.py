import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import every_dtype_arrays, image_arrays
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kinds import kind, refused_as
from stream_cases import (
    BATCH,
    DIRECT,
    SAMPLES,
    WAYS,
    assert_batches,
    assert_nothing_left,
    every_order,
    every_variant,
    every_way,
    loader,
    rows_of,
)

import iobench
from iobench.base.errors import (
    DeviceUnavailable,
    InvalidOption,
    InvalidSettings,
    ManifestError,
    UnknownFormat,
)
from iobench.host import page_cache
from iobench.loading.order import ORDERS, Order
from iobench.stream import direct_reader as direct_reads
from iobench.stream import readahead
from iobench.stream.epoch_position import EpochPosition

pytest_plugins = ("stream_fixtures",)

ROOT = Path(iobench.__file__).parent.parent
SOURCE = image_arrays(SAMPLES)
BATCHES = -(-SAMPLES // BATCH)


@pytest.mark.parametrize(("name", "direct"), [*WAYS, *(way for way in DIRECT if way not in WAYS)])
@every_order
@pytest.mark.usefixtures("real_direct")
def test_every_sample_comes_once_in_its_place_and_nothing_is_left(pictures, name, direct, order):
    assert_batches(loader(pictures, name, order=order, direct=direct), SOURCE, rows_of(order))
    assert_nothing_left(pictures.root)


@every_variant
@pytest.mark.parametrize(
    ("order", "long_bytes"), [("sequential", 1), ("random", 1 << 20), ("block", 1), ("block", 1 << 20)]
)
def test_cold_files_give_the_same_batches(by_file, monkeypatch, pictures, name, order, long_bytes):
    monkeypatch.setattr(readahead, "PIECE_BYTES", 1 << 13)
    monkeypatch.setattr(readahead, "WINDOW_BYTES", 1 << 13)
    monkeypatch.setattr(readahead, "LONG_BYTES", long_bytes)
    page_cache.evict(pictures.files_of(name))
    assert_batches(loader(pictures, name, order=order), SOURCE, rows_of(order))
    assert_nothing_left(pictures.root)


@every_way
@pytest.mark.usefixtures("real_direct")
def test_every_dtype_comes_through(every_kind, name, direct):
    assert_batches(loader(every_kind, name, direct=direct), every_dtype_arrays(), [range(16), range(16, 29)])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    way=st.sampled_from(WAYS),
    order=st.sampled_from(ORDERS),
    requested=st.fixed_dictionaries(
        {
            "batch_size": st.integers(1, 2 * SAMPLES),
            "seed": st.integers(0, 2**63 - 1),
            "drop_last": st.booleans(),
            "rank": st.integers(0, 2),
            "world_size": st.just(3),
        }
    ),
    block_rows=st.integers(1, 2 * SAMPLES),
    window_batches=st.integers(1, 5),
    epoch=st.integers(0, 2**40),
    threads=st.sampled_from([None, 1, 3]),
    state=st.data(),
)
def test_any_settings_resume_from_any_batch(
    monkeypatch, pictures, way, order, requested, block_rows, window_batches, epoch, threads, state
):
    monkeypatch.setattr(direct_reads, "SMALL_BYTES", 0)
    sample_bytes = pictures.schema.sample_bytes
    blocks = {
        "block_bytes": block_rows * sample_bytes,
        "window_bytes": window_batches * requested["batch_size"] * sample_bytes,
    }
    ordered = {"block_rows": min(block_rows, SAMPLES), "window_batches": window_batches}
    try:
        rows = rows_of(order, epoch, **requested, **ordered)
    except InvalidSettings:
        with pytest.raises(InvalidSettings, check=kind("uneven-batches")):
            loader(pictures, way[0], order=order, **requested, **blocks)
        return
    one = loader(pictures, way[0], direct=way[1], order=order, threads=threads, **requested, **blocks)
    assert len(one) == len(rows)
    start = state.draw(st.integers(0, len(rows)))
    position = EpochPosition.start(Order(order, **requested, **ordered), SAMPLES, epoch)
    after = position.after(Order(order, **requested, **ordered), SAMPLES, start)
    one.load_state_dict({**one.state_dict(), **vars(after)})
    assert_batches(one, SOURCE, rows[start:])


@every_way
@pytest.mark.usefixtures("real_direct")
def test_two_loops_over_one_loader_do_not_disturb_each_other(pictures, name, direct):
    one = loader(pictures, name, direct=direct, order="random")
    first = iter(one)
    begun = [next(first)]
    one.set_epoch(1)
    pairs = list(zip(one, first, strict=False))
    assert_batches([b for b, _ in pairs], SOURCE, rows_of("random", 1)[: len(pairs)])
    assert_batches(begun + [a for _, a in pairs], SOURCE, rows_of("random", 0))


@every_way
def test_only_the_chosen_fields_come_in_the_given_order(pictures, name, direct):
    only = loader(pictures, name, direct=direct, fields=["y"], order="random")
    assert_batches(only, {"y": SOURCE["y"]}, rows_of("random"))
    turned = loader(pictures, name, direct=direct, fields=("y", "x"), order="block")
    assert_batches(turned, {"y": SOURCE["y"], "x": SOURCE["x"]}, rows_of("block"))


@pytest.mark.parametrize("order", ["random", "block"])
def test_an_epoch_that_has_ended_moves_on_to_the_next(pictures, order):
    one = loader(pictures, "npy", order=order)
    for epoch in range(3):
        assert_batches(one, SOURCE, rows_of(order, epoch))


def test_an_epoch_can_be_chosen(pictures):
    one = loader(pictures, "npy", order="random")
    for epoch in (5, 5, 0, 2**40):
        one.set_epoch(epoch)
        assert_batches(one, SOURCE, rows_of("random", epoch))


IN_A_LOOP = """
import sys
from iobench import StreamLoader

loader = StreamLoader(sys.argv[1], format="npy", batch_size=16, order="random", seed=3)
for epoch in range(2):
    for batch in loader:
        assert batch["x"].shape[1:] == (3, 16, 16)
        print(*batch["y"].tolist())
left_open = [iter(loader) for _ in range(8)]
for batches in left_open:
    next(batches)
"""


def test_another_process_sees_the_same_order_and_may_end_in_the_middle_of_an_epoch(pictures):
    done = subprocess.run(
        [sys.executable, "-c", IN_A_LOOP, pictures.root],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "4"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    result = [list(map(int, line.split())) for line in done.stdout.splitlines()]
    rows = rows_of("random", 0, seed=3) + rows_of("random", 1, seed=3)
    assert result == [SOURCE["y"][expected].tolist() for expected in rows]


@pytest.mark.parametrize(
    ("option", "wrong", "named"),
    [
        ({"batch_size": 0}, "out-of-range", "batch_size.* 0"),
        ({"seed": -1}, "out-of-range", "seed.* -1"),
        ({"threads": 0}, "invalid-value", "threads.* 0"),
        ({"block_bytes": 0}, "out-of-range", "block_bytes.* 0"),
        ({"window_bytes": 0}, "out-of-range", "window_bytes.* 0"),
        ({"batch_size": 2**40 + 1}, "out-of-range", "batch_size"),
        ({"batch_size": "64"}, "not-a-number", "batch_size.* '64'"),
        ({"seed": 2**63}, "out-of-range", "seed"),
        ({"threads": 1025}, "invalid-value", "threads.* 1024.* 1025"),
        ({"window_bytes": 2**41}, "out-of-range", "window_bytes"),
        ({"order": "shuffled"}, "unknown-choice", "sequential.* random.* block.* 'shuffled'"),
        ({"fields": ["y", "label"]}, "unknown-field", "x or y.* label"),
        ({"fields": ["yy"]}, "unknown-field", "yy; did you mean y.$"),
        ({"fields": []}, "no-fields", "x, y"),
        ({"device": "tpu"}, "unknown-device", "'tpu'"),
    ],
)
def test_invalid_settings_are_refused_by_name(pictures, option, wrong, named):
    with refused_as(wrong, (InvalidSettings, InvalidOption), match=named):
        loader(pictures, "npy", **option)


def test_missing_things_are_refused_by_name(pictures, tmp_path):
    with pytest.raises(ManifestError, match=str(tmp_path)):
        loader(tmp_path, "npy")
    with pytest.raises(ManifestError, check=kind("not-prepared"), match="hdf5:chunk_bytes=4096"):
        loader(pictures, "hdf5:chunk_bytes=4096")
    with pytest.raises(UnknownFormat, match="'tape'"):
        loader(pictures, "tape")
    with pytest.raises(DeviceUnavailable, match="cuda:99"):
        loader(pictures, "npy", device="cuda:99")
    for epoch in (-1, 2**63, "1", True):
        with pytest.raises(InvalidSettings, match=r"^epoch:"):
            loader(pictures, "npy").set_epoch(epoch)


@pytest.mark.parametrize("name", ["lmdb:codec=lz4"])
def test_encoded_samples_are_not_read_past_the_cache(pictures, name):
    with pytest.raises(InvalidSettings, check=kind("no-direct-reads"), match=name):
        loader(pictures, name, direct=True)
    assert_nothing_left(pictures.root)
