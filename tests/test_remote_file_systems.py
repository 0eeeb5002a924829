"""Network and user-space file systems: recognized, recorded, and read with many requests in flight."""

import dataclasses
import os
import shutil
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from delayed_mount import delayed_mount
from record_cases import MACHINE, a_record

import iobench
from iobench.base.machine import MachineDisk
from iobench.bench.limits import remote_notes, survey
from iobench.formats import Field, Schema, Strided
from iobench.host import machine_info, page_cache
from iobench.host.device import pick_device
from iobench.host.hardware_limits import Limit
from iobench.stream import mapped_files, readahead
from iobench.stream.cached_reader import CachedReader

SIZE = 4 << 20


@pytest.fixture
def mounted(tmp_path, monkeypatch):
    """Return a function that lets a folder look like a mounted file system of a type."""

    def mount(file_system, options="rw"):
        entries = [
            SimpleNamespace(mountpoint="/", fstype="ext4", device="/dev/sda", opts="rw,relatime"),
            SimpleNamespace(mountpoint=str(tmp_path), fstype=file_system, device="there:/x", opts=options),
            SimpleNamespace(mountpoint=f"{tmp_path}2", fstype="xfs", device="/dev/sdb", opts="rw"),
        ]
        monkeypatch.setattr(machine_info.psutil, "disk_partitions", lambda all: entries)
        monkeypatch.setattr(machine_info, "block_device", lambda path: Path("/no/such/device"))

    return mount


REMOTE = ("nfs4", "nfs", "cifs", "lustre", "fuse", "fuse.sshfs", "9p")
LOCAL = ("btrfs", "overlay", "zfs", "tmpfs", "fuseblk")  # without a device of their own


@pytest.mark.parametrize("file_system", [*REMOTE, *LOCAL])
def test_network_and_user_space_file_systems_are_remote(tmp_path, mounted, file_system):
    mounted(file_system, "rw,lowerdir=/a:/b")
    described, remote = machine_info.describe_disk(tmp_path), file_system in REMOTE
    assert machine_info.is_remote(tmp_path / "data") == described.remote == remote
    assert described.mount_options == ("rw" if remote else "")


def test_mount_options_are_recorded_without_paths_addresses_and_names(tmp_path, mounted):
    options = "rw,rsize=131072,vers=4.2,username=me,password=secret,addr=10.0.0.1,root=/home/me,actimeo=3"
    mounted("nfs4", options)
    assert machine_info.describe_disk(tmp_path).mount_options == "rw,rsize=131072,vers=4.2,actimeo=3"


def on(**changes):
    """Return the key of a record from a disk with these changes."""
    changed = dataclasses.replace(MACHINE.disk, **changes)
    return a_record(1000, machine={"disk": changed}).key


def test_cases_under_other_mount_options_are_other_cases():
    remote = {"file_system": "nfs4", "remote": True}
    assert on(**remote, mount_options="rsize=4096") != on(**remote, mount_options="rsize=1048576")
    assert on() == on(mount_options="relatime")  # of a local disk


def test_a_disk_without_readahead_is_shown_without_it():
    assert str(MachineDisk(file_system="nfs4", device="a:/b", mount_options="vers=4.2")) == (
        "nfs4 on a:/b (vers=4.2)"
    )


@pytest.fixture
def requested(tmp_path, monkeypatch):
    """Bytes of each request to the kernel for data ahead of a read, of a file of SIZE random bytes."""
    (tmp_path / "x").write_bytes(np.random.default_rng(0).bytes(SIZE))
    counts = []

    def noted(file, offset, count, advice):
        if advice == os.POSIX_FADV_WILLNEED:
            counts.append(count)

    monkeypatch.setattr(os, "posix_fadvise", noted)
    monkeypatch.setattr(mapped_files, "read_ahead_kib", lambda path: 128)
    return counts


def cold_reader(folder, width):
    """Return a reader of rows of 1,024 bytes that uses `width` of them."""
    schema = Schema(SIZE // 1024, (Field("x", (width,), "uint8"),))
    return CachedReader(schema, {"x": Strided((folder / "x",), 0, 1024)}, cold=True)


@pytest.mark.parametrize("remote", [True, False])
def test_slices_of_a_remote_file_are_requested_at_once(tmp_path, monkeypatch, requested, remote):
    """One read after the other would wait for each; a local disk is faster by the kernel's readahead."""
    monkeypatch.setattr(mapped_files, "is_remote", lambda path: remote)
    with closing(cold_reader(tmp_path, 1024)) as reader:
        batch = reader.batch(slice(0, 2048))["x"]
    assert batch.tobytes() == (tmp_path / "x").read_bytes()[: 2048 * 1024]
    assert sum(requested) == (2048 * 1024 if remote else 0)
    assert len(requested) > 1 or not remote


@pytest.mark.parametrize("remote", [True, False])
def test_rows_apart_in_a_remote_file_are_requested_at_once(tmp_path, monkeypatch, requested, remote):
    monkeypatch.setattr(readahead, "is_remote", lambda path: remote)
    with closing(cold_reader(tmp_path, 1000)) as reader:
        reader.read_ahead([slice(0, 2048), slice(2048, 4096)])
        batch = reader.batch(slice(0, 4096))["x"]
    assert np.array_equal(batch, np.fromfile(tmp_path / "x", np.uint8).reshape(-1, 1024)[:, :1000])
    assert (sum(requested) > SIZE - 2048) == remote


@pytest.fixture
def delayed(tmp_path):
    """A mounted file system that waits before each request, with a dataset in it."""
    pytest.importorskip("mfusepy", reason="mfusepy is not installed")
    if shutil.which("fusermount3") is None or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("this machine has no fuse3")
    source = iobench.Synthetic(8_000_000, (100_000,), dtype="uint8")
    iobench.prepare(source, ["npy"], data_dir=tmp_path / "data", name="far")
    try:
        with delayed_mount(tmp_path / "data", 1.0, 0.5) as point:
            yield iobench.Manifest.load(point / "far")
    except OSError as error:
        pytest.skip(f"no file system can be mounted here: {error}")


def test_a_mounted_file_system_is_read_verified_and_surveyed(delayed):
    paths = delayed.files_of("npy")
    assert machine_info.describe_disk(paths[0]).file_system == "fuse.delayed"
    page_cache.evict(paths)
    loader = iobench.StreamLoader(delayed.root, format="npy", batch_size=16)
    came = np.concatenate([batch["x"].numpy() for batch in loader])
    with delayed.opener("npy")() as reader:
        assert np.array_equal(came, reader.batch(slice(0, 80))["x"])
    found = survey(delayed, pick_device("cpu"), 16, 0.5)
    assert {"opening", "waiting"} <= {note.kind for note in found.notes}


@pytest.mark.parametrize(
    ("rates", "kinds"),
    [
        ((989, 503, 91, 25), ["opening", "waiting"]),
        ((1.43, 0.01, 16.2, 2.29), ["opening", "one-reader"]),  # rclone mount without a cache of files
        ((91, 25), ["opening", "waiting"]),  # no reads past the page cache
        ((100, 90, 90, 90), ["opening"]),
    ],
)
def test_reads_in_flight_are_compared_with_one_after_the_other(tmp_path, rates, kinds):
    (file := tmp_path / "x").write_bytes(b"x")
    limits = [Limit("disk", "", rate) for rate in rates]
    assert [note.kind for note in remote_notes(limits, file)] == kinds
