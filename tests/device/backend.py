"""The simulated devices as a torch backend named `sim`, registered in Python.

torch allows one such backend per process, permanently; it has devices only while a machine is plugged in.
All operations on its tensors come through `__torch_dispatch__`: shapes are computed with meta tensors, and
the work goes to the calling thread's stream.
"""

import torch
from sim_machine import DEVICES, Machine
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_iter, tree_map

NAME = "sim"
_aten = torch.ops.aten
_kind = torch._C._autograd.DeviceType.PrivateUse1
_plugged: list[Machine] = []


def machine():
    return _plugged[-1]


class Module:
    """torch.sim."""

    @staticmethod
    def device_count():
        return DEVICES if _plugged else 0

    @staticmethod
    def is_available():
        return bool(_plugged)

    @staticmethod
    def is_initialized():
        return bool(_plugged) and bool(machine().woken)

    @staticmethod
    def current_device():
        return machine().device if _plugged else 0

    @staticmethod
    def set_device(index):
        machine().device = torch.device(index).index if isinstance(index, torch.device) else index

    @staticmethod
    def _is_in_bad_fork():
        return False

    @staticmethod
    def manual_seed_all(seed):
        pass


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    def is_available(self):
        return True

    def has_primary_context(self, device):
        return True

    def is_built(self):
        return True


class _Guard(torch._C._acc.DeviceGuard):
    def type_(self):
        return _kind


class SimStream(torch.Stream):
    """A stream of the machine in torch's representation, by numbers."""

    def __new__(cls, stream):
        return super().__new__(
            cls, stream_id=stream.number, device_index=stream.device, device_type=_kind.value
        )

    def __init__(self, stream):
        self.sim, self._before = stream, []

    def wait_event(self, event):
        self.sim.ask(after=event.moment)

    def synchronize(self):
        self.sim.synchronize()

    def __enter__(self):
        here = self.sim.machine
        self._before.append((here.device, here.stream_of(self.sim.device)))
        here.device = self.sim.device
        here.set_stream(self.sim.device, self.sim)
        return self

    def __exit__(self, *exc):
        here = self.sim.machine
        here.device, stream = self._before.pop()
        here.set_stream(self.sim.device, stream)


class SimEvent:
    """An event, with its last recording."""

    def __init__(self, timed=False):
        self.timed, self.moment = timed, None

    def record(self, stream):
        self.moment = stream.sim.record()

    def query(self):
        return self.moment.at is not None

    def synchronize(self):
        moment = self.moment
        with moment.stream.machine.lock:
            moment.stream.run_to(moment.position)
            moment.stream.machine.now = max(moment.stream.machine.now, moment.at)

    def elapsed_time(self, later):
        assert self.timed
        assert later.timed
        if not (self.query() and later.query()):
            raise RuntimeError("both events must be completed before their times are read")
        return (later.moment.at - self.moment.at) * 1e3


class SimTensor(torch.Tensor):
    """A tensor on a simulated device: the host knows shape and strides, but not the content."""

    @staticmethod
    def __new__(cls, meta, block, device):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            meta.shape,
            strides=meta.stride(),
            storage_offset=meta.storage_offset(),
            dtype=meta.dtype,
            device=device,
        )

    def __init__(self, meta, block, device):
        self.meta, self.block = meta, block

    def __repr__(self):
        return f"SimTensor({tuple(self.shape)}, {self.dtype}, {self.device})"

    def memory(self):
        """Return the tensor in the machine's own memory, for operations that run in a stream."""
        return _over(self.block.memory, self.meta)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is _aten.record_stream.default:
            user = machine().streams[args[0].device.index, args[1].stream_id]
            if user is not args[0].block.stream:
                args[0].block.users.add(user)
            return None
        if func is _aten.copy_.default:
            return _copy(*args, **kwargs)
        to = kwargs.get("device")
        if func is _aten._local_scalar_dense.default or (to is not None and to.type == "cpu"):
            return _to_host(func, args, kwargs)
        return _compute(func, args, {k: v for k, v in kwargs.items() if k not in ("device", "pin_memory")})


def _over(memory, meta):
    return (
        memory[: len(memory) // meta.element_size() * meta.element_size()]
        .view(meta.dtype)
        .as_strided(meta.shape, meta.stride(), meta.storage_offset())
    )


def _allocate(meta, device):
    here = machine()
    here.woken[device.index] += 1
    block = here.pools[device.index].allocate(meta.untyped_storage().nbytes(), here.stream_of(device.index))
    return SimTensor(meta, block, device)


def _copy(target, source, non_blocking=False):
    """Copy between host and device in the current stream; wait where the host has to.

    As with CUDA, the host waits for every copy from or to pageable memory. One from it that was not to be
    waited for is a fault of the machine.
    """
    here, sim = machine(), target if isinstance(target, SimTensor) else source
    stream = here.stream_of(sim.device.index)
    if isinstance(target, SimTensor) and isinstance(source, SimTensor):
        assert target.device == source.device
        return _compute(_aten.copy_.default, (target, source), {})
    seconds = sim.numel() * sim.element_size() / here.copy_bytes_per_s
    if isinstance(target, SimTensor):
        into, read = target.memory(), here.reading(source)
        stream.ask(lambda: into.copy_(read()), seconds)
        pinned = here.pinned.owner(source.data_ptr()) is not None
        if non_blocking and not pinned and source.numel():
            here.faults.append("a non-blocking copy read pageable memory: the host waits for it")
        if not (non_blocking and pinned):
            stream.synchronize()
    else:
        source_memory, write = source.memory(), here.reading(target)
        pinned = here.pinned.owner(target.data_ptr()) is not None
        stream.ask(lambda: (write() if pinned else target).copy_(source_memory), seconds)
        if not (non_blocking and pinned):
            stream.synchronize()
    return target


def _to_host(func, args, kwargs):
    machine().stream_of(args[0].device.index).synchronize()
    return func(args[0].memory().clone(), *args[1:], **kwargs)


def _compute(func, args, kwargs):
    """Run an operation on tensors of one device."""
    sims = [one for one in tree_iter((args, kwargs)) if isinstance(one, SimTensor)]
    device = sims[0].device
    for one in tree_iter((args, kwargs)):
        if isinstance(one, SimTensor) and one.device != device:
            raise RuntimeError(f"tensors on {device} and on {one.device} in {func}")
        if isinstance(one, torch.Tensor) and not isinstance(one, SimTensor) and one.dim():
            raise RuntimeError(f"a tensor of the host among those on {device} in {func}")
    written = func._schema.is_mutable
    metas = tree_map(_meta, (args, kwargs))
    outcome = func(*metas[0], **metas[1])
    if func.is_view:
        made = tree_map(lambda meta: SimTensor(meta, sims[0].block, device), outcome)
        return return_and_correct_aliasing(func, args, kwargs, made)
    made = args[0] if written else tree_map(lambda meta: _made(meta, device), outcome)
    real = tree_map(lambda one: one.memory() if isinstance(one, SimTensor) else one, (args, kwargs))
    targets = [one.memory() for one in tree_iter(made) if isinstance(one, SimTensor)]

    def run():
        with torch.no_grad():
            results = func(*real[0], **real[1])
            for target, result in zip([] if written else targets, _tensors(results), strict=not written):
                target.copy_(result)

    machine().stream_of(device.index).ask(run)
    return return_and_correct_aliasing(func, args, kwargs, made) if written else made


def _meta(one):
    if isinstance(one, SimTensor):
        return one.meta
    return one.to("meta") if isinstance(one, torch.Tensor) else one


def _made(meta, device):
    return _allocate(meta, device) if isinstance(meta, torch.Tensor) else meta


def _tensors(results):
    return [one for one in tree_iter(results) if isinstance(one, torch.Tensor)]


def _empty(size, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    return _allocate(torch.empty(size, dtype=dtype, device="meta"), _numbered(device))


def _empty_strided(size, stride, dtype=None, layout=None, device=None, pin_memory=None):
    return _allocate(torch.empty_strided(size, stride, dtype=dtype, device="meta"), _numbered(device))


def _numbered(device):
    return device if device.index is not None else torch.device(NAME, machine().device)


def pin(tensor, device=None):
    """Replace Tensor.pin_memory while the devices are plugged in."""
    here = machine()
    here.woken[here.device] += 1
    array = here.pinned.allocate(tensor.numel() * tensor.element_size(), by_torch=True)
    return torch.from_numpy(array).view(tensor.dtype).view(tensor.shape).copy_(tensor)


REAL = torch.accelerator.current_accelerator(check_available=True)
if REAL is None:  # torch supports one accelerator: a simulated one would hide a real one
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, Module)
    torch._C._acc.register_python_privateuseone_hook(_Hooks())
    torch._C._acc.register_python_privateuseone_device_guard(_Guard())
    _library = torch.library.Library("aten", "IMPL", "PrivateUse1")
    _library.impl("empty.memory_format", _empty)
    _library.impl("empty_strided", _empty_strided)
