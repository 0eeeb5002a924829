"""The plain scripts that a user would write to loop over data, as `fidelity` compares them with iobench."""

from __future__ import annotations

from dataclasses import dataclass

from iobench import Manifest

BATCH = 256
FIELD = '(batch["x"] for batch in loader)'
HEAD = "import sys\nfrom time import {clock}\n\nimport numpy as np\nimport torch\n"
# The user's loop; a line of stdin starts each turn, and names its number of epochs.
LOOP = """
for turn in sys.stdin:
    began, count = {clock}(), 0
    for epoch in range(int(turn)):
        for batch in {batches}:
            count += len(batch)
    print(count / ({clock}() - began), flush=True)
"""
DATASETS = {
    "npy": """
class Samples(torch.utils.data.Dataset):
    def __init__(self):
        self.x = np.load(PATH + "/x.npy", mmap_mode="r")

    def __len__(self):
        return len(self.x)

    def __getitem__(self, row):
        return {{"x": torch.from_numpy(self.x[row])}}

    def __getitems__(self, rows):
        return {{"x": torch.from_numpy(self.x[rows])}}
""",
    "hdf5": """
import h5py

class Samples(torch.utils.data.Dataset):
    x = None

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        if self.x is None:  # in each worker
            self.x = h5py.File(PATH + "/data.h5", "r", rdcc_nbytes=0)["x"]
        return {{"x": torch.from_numpy(self.x[row])}}

    def __getitems__(self, rows):
        if self.x is None:
            self.x = h5py.File(PATH + "/data.h5", "r", rdcc_nbytes=0)["x"]
        return {{"x": torch.from_numpy(np.stack([self.x[row] for row in sorted(rows)]))}}
""",
    "lmdb": """
import lmdb

class Samples(torch.utils.data.Dataset):
    env = None

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        if self.env is None:  # in each worker
            self.env = lmdb.open(PATH, readonly=True, lock=False)
        with self.env.begin() as txn:
            value = txn.get(row.to_bytes(8, "big"))
        return {{"x": torch.from_numpy(np.frombuffer(value, np.float32, offset=8).reshape(SHAPE))}}
""",
    "memmap": """
from tensordict import TensorDict

class Samples(torch.utils.data.Dataset):
    def __init__(self):
        self.samples = TensorDict.load_memmap(PATH)
        self.x = self.samples["x"]

    def __len__(self):
        return len(self.x)

    def __getitem__(self, row):
        return {{"x": self.x[row]}}

    def __getitems__(self, rows):
        return {{"x": self.samples[rows]["x"]}}
""",
    "arrow": """
import pyarrow

class Samples(torch.utils.data.Dataset):
    def __init__(self):
        self.table = pyarrow.ipc.open_file(pyarrow.memory_map(PATH + "/data.arrow")).read_all()

    def __len__(self):
        return len(self.table)

    def __getitem__(self, row):
        return {{"x": torch.from_numpy(self.table["x"][row].values.to_numpy().reshape(SHAPE))}}
""",
}
SHUFFLED = """
def shuffled():
    rows = np.random.permutation(ROWS)
    for start in range(0, ROWS, {batch}):
        yield read(rows[start : start + {batch}])

"""
NATIVE = {
    "npy": 'x = np.load(PATH + "/x.npy", mmap_mode="r")\nread = lambda rows: torch.from_numpy(x[rows])\n',
    "hdf5": """
import h5py
x = h5py.File(PATH + "/data.h5", "r", rdcc_nbytes=0)["x"]
def read(rows):
    return torch.from_numpy(np.stack([x[row] for row in np.sort(rows)]))
""",
    "lmdb": """
import lmdb
env = lmdb.open(PATH, readonly=True, lock=False)
def read(rows):
    with env.begin(buffers=True) as txn:
        values = b"".join(txn.get(row.to_bytes(8, "big"))[8:] for row in rows.tolist())
    return torch.from_numpy(np.frombuffer(values, np.float32).reshape(-1, *SHAPE))
""",
    "memmap": """
from tensordict import TensorDict
samples = TensorDict.load_memmap(PATH)
read = lambda rows: samples[torch.from_numpy(rows)]["x"]
""",
    "arrow": """
import pyarrow
table = pyarrow.ipc.open_file(pyarrow.memory_map(PATH + "/data.arrow")).read_all()
def read(rows):
    taken = table.take(rows)["x"].combine_chunks()
    return torch.from_numpy(taken.flatten().to_numpy().reshape(-1, *SHAPE))
""",
    "zarr": """
import zarr
x = zarr.open(PATH, mode="r")["x"]
read = lambda rows: torch.from_numpy(x.oindex[rows])
""",
}
PARQUET = """
import pyarrow.parquet
def in_order():
    for part in pyarrow.parquet.ParquetFile(PATH + "/data.parquet").iter_batches({batch}):
        yield torch.from_numpy(part["x"].flatten().to_numpy().reshape(-1, *SHAPE))

"""
WEBDATASET = """
import glob
import webdataset
shards = sorted(glob.glob(PATH + "/*.tar"))
data = webdataset.WebDataset(shards, shardshuffle=len(shards)).shuffle(1000).decode()
data = data.to_tuple("x.npy").batched({batch})
loader = webdataset.WebLoader(data, batch_size=None, num_workers={workers})
"""
STREAM = """
from iobench import StreamLoader
loader = StreamLoader(ROOT, format={format!r}, batch_size={batch}, order="random")
"""


@dataclass(frozen=True)
class Pair:
    """A format, a loader as `--loader` names it, rows, order and cache state."""

    format: str
    loader: str
    rows: str = "small"
    order: str = "random"
    cache: str = "warm"

    @property
    def name(self) -> str:
        """Name of the trial."""
        return f"{self.format} {self.loader} {self.rows} {self.order} {self.cache}"

    def script(self, manifest: Manifest, clock: str) -> str:
        """Return the user's script, timed by a function of `time`."""
        kind, _, options = self.loader.partition(":")
        workers = int(options.removeprefix("num_workers=")) if options.startswith("num_workers") else 0
        values = {"batch": BATCH, "workers": workers, "format": self.format}
        constants = {
            "PATH": str(manifest.path_of(self.format)),
            "ROOT": str(manifest.root),
            "ROWS": manifest.schema.samples,
            "SHAPE": manifest.schema.fields[0].shape,
        }
        body, batches = self._body(kind, options == "fetch=batch", workers)
        needed = [f"{key} = {value!r}\n" for key, value in constants.items() if key in body]
        head, loop = HEAD.format(clock=clock), LOOP.format(clock=clock, batches=batches)
        return head + "".join(needed) + body.format(**values) + loop

    def _body(self, kind: str, whole_batches: bool, workers: int) -> tuple[str, str]:
        """Return what opens the loader, and the expression of its batches."""
        if kind == "stream":
            return STREAM, FIELD
        if kind == "webdataset":
            return WEBDATASET, "(batch[0] for batch in loader)"
        if self.format == "parquet":
            return PARQUET, "in_order()"
        if kind == "native":
            return NATIVE[self.format] + SHUFFLED, "shuffled()"
        settings = f"batch_size={BATCH}, shuffle=True"
        settings += f", num_workers={workers}" if workers else ""
        settings += ", collate_fn=dict" if whole_batches else ""
        lines = DATASETS[self.format].splitlines(keepends=True)
        if not whole_batches and "    def __getitems__(self, rows):\n" in lines:
            lines = lines[: lines.index("    def __getitems__(self, rows):\n") - 1]
        return "".join(lines) + f"\nloader = torch.utils.data.DataLoader(Samples(), {settings})\n", FIELD
