"""Two processes that train with the real packages: which samples each saw, with `watch` and without."""

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import iobench
from iobench.host.rank_info import torchrun_variables

ROOT = Path(iobench.__file__).parent.parent
SAMPLES = 1000

SCRIPT = """
import json, os, sys
import torch
from torch.utils.data import DataLoader, TensorDataset
import iobench

torch.set_num_threads(1)
root, out = sys.argv[1:]
stream = iobench.StreamLoader(root, format="npy", batch_size=50, order="random")  # before any process group
DATA = TensorDataset(torch.arange(1000.0).reshape(-1, 1))

def loader(watched):
    torch.manual_seed(0)
    made = DataLoader(DATA, batch_size=50, shuffle=True)
    return iobench.watch(made) if watched else made

def rows(batch):
    return (batch["x"] if isinstance(batch, dict) else batch[0]).flatten().int().tolist()

{train}

seen = {{"plain": train(loader(False)), "watched": train(loader(True)), "stream": train(stream)}}
with open(out + os.environ["RANK"], "w") as file:
    json.dump(seen, file)
"""

LIGHTNING = """
import lightning

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(1, 1), []

    def training_step(self, batch, number):
        self.seen += rows(batch)
        return self.layer((batch["x"] if isinstance(batch, dict) else batch[0]).reshape(-1, 1)).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

def train(loader):
    quiet = ["logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"]
    quiet, model = dict.fromkeys(quiet, False), Model()
    lightning.Trainer(max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", **quiet).fit(model, loader)
    return model.seen
"""

ACCELERATE = """
import accelerate
accelerator = accelerate.Accelerator(cpu=True)

def train(loader):
    watched = hasattr(loader, "loops")
    if watched:
        try:
            accelerator.prepare(loader)
        except iobench.base.errors.InvalidSettings as error:
            assert error.kind == "watched-before-prepare"
        loader = DataLoader(DATA, batch_size=50, shuffle=True)
    prepared = accelerator.prepare(loader)
    return [row for batch in (iobench.watch(prepared) if watched else prepared) for row in rows(batch)]
"""

TRANSFORMERS = """
import transformers

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(1, 1), []

    def forward(self, x):
        self.seen += rows({"x": x})
        return {"loss": self.layer(x.reshape(-1, 1)).mean()}

class Trainer(transformers.Trainer):
    def get_train_dataloader(self):
        own = self.given
        if isinstance(own, iobench.StreamLoader):
            return own
        prepared = super().get_train_dataloader()
        return iobench.watch(prepared) if hasattr(own, "loops") else prepared

def train(loader):
    model = Model()
    arguments = transformers.TrainingArguments(
        root + "/trainer", per_device_train_batch_size=50, num_train_epochs=1, use_cpu=True, report_to=[],
        save_strategy="no", logging_strategy="no", disable_tqdm=True, remove_unused_columns=False,
        **({"max_steps": 5} if isinstance(loader, iobench.StreamLoader) else {}),
    )
    trainer = Trainer(model, arguments, train_dataset=[{"x": row[0]} for row in DATA])
    trainer.given = loader
    trainer.train()
    return model.seen
"""


@pytest.mark.parametrize(
    ("package", "train"),
    [("lightning", LIGHTNING), ("accelerate", ACCELERATE), ("transformers", TRANSFORMERS)],
)
def test_each_rank_sees_the_same_samples_with_watch_and_without(numbered, tmp_path, package, train):
    pytest.importorskip(package)
    port = str(free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT.format(train=train), str(numbered.root), str(tmp_path / "seen")],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env=os.environ
            | torchrun_variables(rank, 2)
            | {"NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            | {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)},
        )
        for rank in range(2)
    ]
    errors = [rank.communicate(timeout=200)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], errors
    first, second = (json.loads((tmp_path / f"seen{rank}").read_text()) for rank in range(2))
    for way in ("plain", "watched", "stream"):
        assert len(first[way]) == len(second[way])
        assert sorted(first[way] + second[way]) == list(range(len(first[way]) * 2)), way
    assert len(first["plain"]) == len(first["watched"]) == SAMPLES / 2
    assert len(first["stream"]) == SAMPLES / 4  # the dataset has half as many
    assert all("Every rank reads every sample" not in error for error in errors)
    assert [error.count("first batch") for error in errors] == [1, 0]  # one report: of the watched loop


def free_port():
    """Return a port that no other program gets by asking for any: it is free also when the ranks bind it."""
    while True:
        port = random.SystemRandom().randrange(12_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@pytest.fixture
def numbered(tmp_path):
    import numpy as np

    source = tmp_path / "numbered.npz"
    np.savez(source, x=np.arange(SAMPLES // 2, dtype=np.float32))
    manifest, _ = iobench.prepare(iobench.open_source(source), ["npy"], data_dir=tmp_path / "data")
    return manifest
