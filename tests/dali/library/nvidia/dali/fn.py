class Node:
    """An edge of a pipeline's graph."""

    def __init__(self, source, on_gpu=False):
        self.source, self.on_gpu = source, on_gpu

    def gpu(self):
        return Node(self.source, on_gpu=True)


def external_source(source, *, num_outputs, batch, batch_info, parallel):
    assert batch
    assert batch_info
    return [Node(source) for _ in range(num_outputs)]
