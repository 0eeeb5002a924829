"""Guarantees of the transfer to a device, under every schedule, on both devices, for all loaders."""

import threading
from contextlib import closing

import checks
import pytest
import torch
from conftest import SAMPLES, image_arrays
from kinds import kind, refused_as
from sim_machine import SCHEDULES
from simulated import device

import iobench
from iobench.base.errors import LoaderFailed
from iobench.bench.executor import activities_on
from iobench.bench.training import Trainer
from iobench.dataset.checksum import Checksum
from iobench.loading import loaders
from iobench.loading.host_to_device import HostToDevice, device_errors
from iobench.stream.transfer import SideStreamTransfer, Transfer, transfer_to

LOADERS = loaders.DEFAULT_LOADERS

pytest_plugins = "plugged"

BATCHES = -(-SAMPLES // checks.BATCH)
TIMEOUT_S = 20.0

schedules = pytest.mark.parametrize("schedule", SCHEDULES)


@schedules
@pytest.mark.parametrize(
    "check",
    [
        pytest.param(one, id=f"{name}{n}")
        for name, every in checks.CHECKS.items()
        for n, one in enumerate(every)
    ],
)
def test_a_guarantee_holds(plug_in, images, schedule, check):
    check(plug_in, schedule, images)


@schedules
@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("pinned", [True, False])
def test_every_loader_brings_the_right_content_to_the_device(
    plug_in, images, schedule, index, loader, pinned
):
    plug_in(schedule)
    chosen = {"pin_memory": pinned, "non_blocking": pinned, "order": "random"}
    assert checks.proved(images, loader, index, **chosen) == images.content


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("variant", ["memmap", "hdf5", "lmdb"])
def test_every_format_arrives(plug_in, every_dtype, variant, loader):
    plug_in("everything late")
    assert checks.proved(every_dtype, loader, 1, variant) == every_dtype.content


@pytest.mark.parametrize("schedule", ["everything late", "out of step"])
def test_every_loader_trains_to_the_same_loss_and_to_that_of_the_cpu(plug_in, images, schedule):
    plug_in(schedule)  # torch runs backward passes on the first device of such a back end only
    losses = []
    for loader in LOADERS:
        trainer = Trainer("mlp", images.schema, device(0), seed=0)
        checks.measured(images, loader, 0, trainer.step)
        losses.append(trainer.loss)
    assert len(set(losses)) == 1
    cpu = Trainer("mlp", images.schema, torch.device("cpu"), seed=0)
    for start in range(0, SAMPLES, checks.BATCH):
        rows = slice(start, start + checks.BATCH)
        cpu.step({name: torch.from_numpy(array[rows]) for name, array in image_arrays().items()})
    assert losses[0] == cpu.loss


@schedules
def test_a_transform_s_batches_are_copied_before_they_are_let_go(plug_in, images, schedule):
    plug_in(schedule)
    transform = lambda batch: {"y": batch["y"] + 1, "x": batch["x"]}  # noqa: E731
    held = list(checks.batches_of_stream(images, 0, "random", transform=transform))
    assert held
    for batch, rows in held:
        assert (batch["y"].cpu().numpy() == image_arrays()["y"][rows] + 1).all()
        assert (batch["x"].cpu().numpy() == image_arrays()["x"][rows]).all()


def test_each_batch_is_handed_over_once_in_the_consumers_thread(late, images, monkeypatch):
    handed = []
    hand_over = SideStreamTransfer.hand_over

    def noting(self, batch):
        handed.append((batch["x"].untyped_storage()._cdata, threading.get_ident()))
        hand_over(self, batch)

    monkeypatch.setattr(SideStreamTransfer, "hand_over", noting)
    here = threading.get_ident()
    for number, (batch, _) in enumerate(checks.batches_of_stream(images, 0, "random"), 1):
        assert len(handed) == number  # not before it is requested
        assert handed[-1] == (batch["x"].untyped_storage()._cdata, here)
    assert len(handed) == BATCHES


def test_batches_are_copied_by_other_threads_and_the_first_two_together(late, images, monkeypatch):
    together, sent = threading.Barrier(2, timeout=TIMEOUT_S), []
    send = SideStreamTransfer.send

    def meeting(self, batches):
        moved = send(self, batches)
        sent.append(threading.get_ident())
        if len(sent) <= 2:
            together.wait()  # raises if no other thread is sending
        return moved

    monkeypatch.setattr(SideStreamTransfer, "send", meeting)
    # without a transform, the consumer's thread copies, too
    batches = checks.batches_of_stream(images, 0, "random", transform=lambda batch: batch)
    assert len(list(batches)) == len(sent) == BATCHES
    assert threading.get_ident() not in sent


def test_one_thread_goes_on_while_the_first_batch_is_consumed(late, images, monkeypatch):
    second, sent = threading.Event(), []
    send = SideStreamTransfer.send

    def noting(self, batches):
        moved = send(self, batches)
        sent.append(1)
        if len(sent) == 2:
            second.set()
        return moved

    monkeypatch.setattr(SideStreamTransfer, "send", noting)
    with closing(checks.batches_of_stream(images, 0, "random", threads=1)) as epoch:
        next(epoch)
        assert second.wait(TIMEOUT_S)


def test_a_batch_is_handed_over_before_its_copy_has_ended(late, images):
    with closing(checks.batches_of_stream(images, 0, "random")) as epoch:
        next(epoch)
        (side,) = [stream for (_, number), stream in late.streams.items() if number]
        assert side.waiting


def test_an_epoch_that_is_left_early_leaves_its_last_batch_whole(machine, images):
    with closing(checks.batches_of_stream(images, 0, "random")) as epoch:
        batch, rows = next(epoch)
    for _ in checks.batches_of_stream(images, 0, "sequential"):
        pass  # reuses the free pinned memory
    assert (batch["x"].cpu().numpy() == image_arrays()["x"][rows]).all()
    assert machine.faults == []


def test_batches_carry_no_attributes_that_cannot_be_saved(late, images):
    """An event can be neither pickled nor copied, and torch.save saves a tensor's attributes as well."""
    own = {"meta", "block"}  # the simulated device's
    loader = iobench.StreamLoader(images.root, format="npy", batch_size=8, device="sim")
    for batches in (checks.batches_of_stream(images, 0, "random"), ((batch, None) for batch in loader)):
        for batch, _ in batches:
            assert [set(vars(tensor)) for tensor in batch.values()] == [own, own]


def test_memory_that_cannot_be_pinned_fails_the_loader_in_one_line(late, images):
    late.pinned.refuse = True
    with refused_as("out-of-memory", LoaderFailed):
        next(checks.batches_of_stream(images, 0, "random"))


@pytest.mark.parametrize(
    ("error", "name", "reason"),
    [
        (torch.OutOfMemoryError("no 5 MiB. Tried hard"), "out-of-memory", "no 5 MiB"),
        (torch.AcceleratorError("CUDA error: bad\nmore"), "device-failed", "CUDA error: bad"),
    ],
)
def test_errors_of_a_device_fail_the_case_in_one_line(error, name, reason):
    with pytest.raises(LoaderFailed, check=kind(name)) as result, device_errors("npy"):
        raise error
    assert result.value.problem.startswith("npy: ")
    assert result.value.problem.endswith(reason)
    assert result.value.hint
    assert "\n" not in str(result.value)


def test_other_errors_pass(tmp_path):
    with pytest.raises(KeyError), device_errors("npy"):
        raise KeyError


def test_a_late_consumer_is_late(late):
    transfer = HostToDevice(device(1), True)
    transfer.lag()
    assert late.unfinished() > 10
    HostToDevice(torch.device("cpu"), False).lag()  # does nothing


def test_a_proof_waits_for_the_device_once_and_not_in_each_batch(late, images):
    """A check that synchronizes gives every copy the time it needs, and cannot detect races."""
    transfer, check = HostToDevice(device(0), True), Checksum(images.schema)
    batch = {name: torch.from_numpy(array[:8]) for name, array in image_arrays().items()}

    def add():
        check.add(transfer.move({name: tensor.pin_memory() for name, tensor in batch.items()}))
        return late.stream_of(0).done

    assert add() == add() == add()


@pytest.mark.parametrize(
    ("kind", "seen"), [("cpu", {"CPU"}), ("cuda", {"CPU", "CUDA"}), ("xpu", {"CPU", "XPU"})]
)
def test_a_trace_sees_the_host_and_the_device(kind, seen):
    assert {activity.name for activity in activities_on(torch.device(kind))} == seen


def test_release_memory_returns_all_memory(machine, images):
    assert sum(1 for _ in checks.batches_of_stream(images, 0, "random")) == BATCHES
    HostToDevice(device(0), True).release_memory()
    assert machine.pools[0].reserved == 0
    assert not machine.pinned.owned


def test_host_batches_are_handed_over_as_they_are():
    transfer = transfer_to(torch.device("cpu"))
    assert type(transfer) is Transfer
    batches = [{"x": torch.ones(3)}]
    assert transfer.send(batches) is batches
    transfer.hand_over(batches[0])
    assert [slot.shape for slot in transfer.allocate(5, 2)] == [(5,), (5,)]


def test_on_the_cpu_batches_are_unchanged_and_there_is_no_device_memory():
    tensor, transfer = torch.ones(3), HostToDevice(torch.device("cpu"), non_blocking=False)
    assert transfer.move({"x": tensor})["x"] is tensor
    assert transfer.peak_bytes() is None
    transfer.release_memory()


@pytest.mark.parametrize("non_blocking", [True, False])
def test_copies_wait_only_if_blocking(late, non_blocking):
    HostToDevice(device(0), non_blocking).move({"x": torch.ones(5).pin_memory()})
    assert bool(late.unfinished()) == non_blocking


def test_streamloader_takes_the_current_device_where_none_is_numbered(late, images):
    late.device = 1
    loader = iobench.StreamLoader(images.root, format="npy", batch_size=64, device="sim")
    assert {str(batch["x"].device) for batch in loader} == {"sim:1"}
    assert set(late.woken) == {1}
