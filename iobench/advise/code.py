"""Code to paste: the command that prepares the data, and a script that loads them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from iobench.advise.candidates import loader_word
from iobench.advise.measured_data import MeasuredData
from iobench.bench.case import Case
from iobench.dataset.prepare import free_name
from iobench.formats import NUMPY_DTYPES, Schema

STREAM = """\
from iobench import {names}

loader = StreamLoader({settings})
for epoch in range({epochs}):
    for batch in loader:
        pass  # {fields} on {device}
"""

TORCH = '''\
import warnings
from pathlib import Path

import torch
from iobench import Manifest
from torch.utils.data import DataLoader, Dataset


warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # collating copies it


class Samples(Dataset):
    """Opens the data on first use, so that each worker has a reader of its own."""

    def __init__(self):
        self.opener, self.reader = Manifest.load(Path({root!r})).opener({variant!r}), None

    def __len__(self):
        return self.opener.schema.samples

    def open(self):
        self.reader = self.reader or self.opener()
        return self.reader

    def {method}


if __name__ == "__main__":
    loader = DataLoader(Samples(), {settings})
    for epoch in range({epochs}):
        for batch in loader:
            batch = {{name: tensor.to({device!r}) for name, tensor in batch.items()}}  # {fields}
'''

SAMPLE = """__getitem__(self, row):
        return self.open().sample(row, torch.from_numpy)"""
BATCH = """__getitems__(self, rows):
        return {name: torch.from_numpy(array) for name, array in self.open().batch(rows).items()}"""

ANY = """\
from iobench import batches

if __name__ == "__main__":
    for epoch in range({epochs}):
        loader = batches(
            {settings},
            epoch=epoch,
        )
        for batch in loader:
            pass  # {fields} on {device}
"""


def prepare_code(data: MeasuredData, case: Case) -> str:
    """Return the command that prepares the full data for a case, or adds the user's own files.

    Empty where they are in a dataset already.
    """
    if data.source is None or (case.variant in data.added and not data.source_words):
        return ""
    name = name_of(data, case)
    words = ["iobench", "prepare", *data.source_words, "--name", name, "--format", case.variant]
    if case.variant in data.added:
        schema = data.source.schema
        chosen = [field for field in schema.fields if field.name not in schema.extents.values()]
        fields = [word for field in chosen for word in ("--field", field.typed)]
        own = data.source.in_place()
        assert own is not None
        words = ["iobench", "add", str(own[0]), "--name", name, "--format", case.variant, *fields]
    root = data.manifest.root.parent
    if str(root) != "data":
        words += ["--data-dir", str(root)]
    return shlex.join(words)


def name_of(data: MeasuredData, case: Case) -> str:
    """Return the name of the dataset of the full data, which a case reads."""
    if data.source is None:
        return data.manifest.name
    own = data.source.in_place() if case.variant in data.added else None
    return free_name(data.source, data.manifest.root.parent, own[0] if own else None)


def loader_code(data: MeasuredData, case: Case, epochs: int) -> str:
    """Return a script that loops over the data as the case did; it runs once they are prepared."""
    if case.loader.user_defined:
        return f"# keep your own loader: {case.loader.variant}\n"
    name, remote = name_of(data, case), bool(data.manifest.url)
    root = name if data.manifest.uploaded else str(data.manifest.root.parent / name)
    schema = data.manifest.schema
    values = {"fields": _described(schema), "device": case.device, "epochs": str(epochs)}
    if case.loader.name == "stream":
        settings = {"format": case.variant, "batch_size": case.batch_size, "order": case.order}
        text, names = _call(root, {**settings, "device": case.device}), "StreamLoader"
        if options := _assignments({**_blocks(case), **case.loader.changed_options}):
            text, names = f"{text}, options=StreamOptions({options})", "StreamLoader, StreamOptions"
        return STREAM.format(names=names, settings=text, **values)
    plain = not schema.ragged and all(field.dtype in NUMPY_DTYPES for field in schema.fields)
    if case.loader.name == "dataloader" and case.order != "block" and plain and not remote:
        return _torch(root, case, values)
    batching = {"batch_size": case.batch_size, "order": case.order, **_blocks(case)}
    words = {"format": case.variant, "loader": loader_word(case), **batching, "device": case.device}
    return ANY.format(settings=_call(root, words, ",\n            "), **values)


def _described(schema: Schema) -> str:
    fixed, ragged = (", ".join(f.name for f in fields) for fields in (schema.fixed.fields, schema.ragged))
    lengths = f"{ragged}: values and offsets" if ragged else ""
    return "; ".join(filter(None, (f"{fixed}: tensors" if fixed else "", lengths)))


def _torch(root: str, case: Case, values: dict[str, str]) -> str:
    options = {name: value for name, value in case.loader.options.items() if value is not None}
    method = BATCH if options.pop("fetch") == "batch" else SAMPLE
    options.pop("non_blocking", None)
    start = options.pop("start_method", None)
    settings = {
        "batch_size": case.batch_size,
        "shuffle": case.order == "random",
        **({"multiprocessing_context": start} if start else {}),
        **{name: value for name, value in options.items() if value},
    }
    text = _assignments(settings)
    if method is BATCH:
        text += ", collate_fn=dict"
    return TORCH.format(root=root, variant=case.variant, method=method, settings=text, **values)


def _blocks(case: Case) -> dict[str, object]:
    blocks: dict[str, object] = {"block_bytes": case.block_bytes, "window_bytes": case.window_bytes}
    return blocks if case.order == "block" else {}


def _assignments(settings: Mapping[str, object], between: str = ", ") -> str:
    return between.join(f"{name}={value!r}" for name, value in settings.items())


def _call(root: str, settings: Mapping[str, object], between: str = ", ") -> str:
    return between.join([repr(root), _assignments(settings, between)])
