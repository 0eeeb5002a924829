"""Stand-in for DALI's GPU pipelines on the simulated devices, as the loader `dali` uses them.

As DALI does, it prefetches batches from its source, copies them on a stream of its own, and returns outputs
on a given stream, or waits for them if no stream is given.
"""

from collections import deque
from types import SimpleNamespace

import torch

from iobench.host.device import device_of
from nvidia.dali import fn

__all__ = ["Pipeline", "fn"]

made = []


class Output:
    """A TensorListGPU: a batch on the device."""

    def __init__(self, tensor):
        self.tensor = tensor

    def as_tensor(self):
        return self


class Pipeline:
    def __init__(self, *, batch_size, num_threads, device_id, prefetch_queue_depth, py_num_workers):
        assert device_id is not None, "the stand-in has GPU pipelines only"
        self.device_id, self.depth, self.requested = device_id, prefetch_queue_depth, 0
        self.ready, self.stream = deque(), None
        made.append(self)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        pass

    def set_outputs(self, *outputs):
        assert all(output.on_gpu for output in outputs)
        self.source = outputs[0].source

    def build(self):
        self.device = device_of(torch.device(torch._C._get_privateuse1_backend_name(), self.device_id))
        self.stream = self.device._new_stream()

    def run(self, stream=None):
        while len(self.ready) < self.depth and self.source is not None:
            self._prefetch()
        if not self.ready:
            raise StopIteration
        outputs, copied = self.ready.popleft()
        if stream is None:
            copied.synchronize()
        else:
            stream.wait_event(copied)
            for output in outputs:  # their memory is released when that stream has finished
                output.tensor.record_stream(stream)
        return tuple(outputs)

    def _prefetch(self):
        try:
            batch = self.source(SimpleNamespace(iteration=self.requested))
        except StopIteration:
            self.source = None
            return
        self.requested += 1
        with self.device.current(), self.device.on(self.stream):
            pinned = [torch.from_numpy(array).pin_memory() for array in batch]
            tensors = [tensor.to(self.device.torch, non_blocking=True) for tensor in pinned]
            copied = self.device.event()
            copied.record(self.stream)
        self.ready.append(([Output(tensor) for tensor in tensors], copied))
