import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import image_arrays
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kinds import kind
from stream_cases import SAMPLES, assert_batches, either_order, every_way, loader, rows_of

import iobench
from iobench.base.errors import InvalidSettings
from iobench.loading.order import ORDERS, Order

pytest_plugins = ("stream_fixtures",)

ROOT = Path(iobench.__file__).parent.parent
SOURCE = image_arrays(SAMPLES)


@settings(deadline=None)
@given(
    samples=st.integers(1, 300),
    world_size=st.integers(1, 9),
    epoch=st.integers(0, 5),
    options=st.fixed_dictionaries(
        {
            "kind": st.sampled_from(ORDERS),
            "batch_size": st.integers(1, 80),
            "seed": st.integers(0, 2**40),
            "block_rows": st.integers(1, 40),
            "window_batches": st.integers(1, 4),
            "drop_last": st.booleans(),
        }
    ),
)
def test_ranks_have_equally_many_batches_and_every_sample_once(samples, world_size, epoch, options):
    orders = [Order(rank=rank, world_size=world_size, **options) for rank in range(world_size)]
    try:
        batches = [order.batches(samples, epoch) for order in orders]
    except InvalidSettings:
        assume(False)
    assert {len(own) for own in batches} == {orders[0].length(samples, 0)}
    rows = [[np.arange(samples)[rows] for rows in own] for own in batches]
    assert all(len(batch) for own in rows for batch in own)
    sizes = [sum(map(len, own)) for own in rows]
    every = np.concatenate([np.zeros(0, np.int64), *(batch for own in rows for batch in own)])
    assert len(np.unique(every)) == len(every)
    if options["drop_last"]:
        assert {len(batch) for own in rows for batch in own} <= {options["batch_size"]}
        assert samples - len(every) < world_size * options["batch_size"]
    else:
        assert len(every) == samples
        assert max(sizes) - min(sizes) <= 1


@every_way
@either_order
@pytest.mark.usefixtures("real_direct")
def test_each_rank_reads_its_own_part_in_every_epoch(pictures, name, direct, order):
    for rank in range(3):
        share = {"rank": rank, "world_size": 3}
        one = loader(pictures, name, direct=direct, order=order, **share)
        assert len(one) == 5
        for epoch in range(2):
            assert_batches(one, SOURCE, rows_of(order, epoch, **share))


@pytest.mark.parametrize("drop_last", [False, True])
def test_more_ranks_than_samples_are_refused(pictures, drop_last):
    loader(pictures, "npy", batch_size=1, rank=0, world_size=SAMPLES, drop_last=drop_last)
    with pytest.raises(InvalidSettings, check=kind("uneven-batches", hint="use fewer ranks")):
        loader(pictures, "npy", batch_size=1, rank=0, world_size=SAMPLES + 1, drop_last=drop_last)


def test_uneven_batches_are_refused_with_a_hint(pictures):
    with pytest.raises(InvalidSettings, check=kind("uneven-batches", hint="use drop_last")):
        loader(pictures, "npy", batch_size=1, rank=0, world_size=2)
    assert len(loader(pictures, "npy", batch_size=1, rank=0, world_size=2, drop_last=True)) == SAMPLES // 2


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"rank": 0}, "missing-option"),
        ({"world_size": 2}, "missing-option"),
        ({"rank": 2, "world_size": 2}, "invalid-rank"),
        ({"rank": -1, "world_size": 2}, "invalid-rank"),
        ({"rank": 0, "world_size": 0}, "invalid-rank"),
    ],
)
def test_an_invalid_rank_is_refused(pictures, given, named):
    with pytest.raises(InvalidSettings, check=kind(named)) as caught:
        loader(pictures, "npy", **given)
    assert "\n" not in str(caught.value)


def test_a_rank_that_is_given_goes_before_that_of_torch(monkeypatch, pictures):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
    assert_batches(loader(pictures, "npy"), SOURCE, rows_of("sequential", rank=1, world_size=3))
    alone = loader(pictures, "npy", rank=0, world_size=1)
    assert_batches(alone, SOURCE, rows_of("sequential"))


TRAINING = """
import json, sys
import torch
from torch.nn.functional import cross_entropy
from iobench import StreamLoader

root, meeting, rank = sys.argv[1:]
torch.set_num_threads(1)
torch.manual_seed(int(rank))
torch.distributed.init_process_group("gloo", f"file://{meeting}", rank=int(rank), world_size=2)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(768, 10))
optimiser = torch.optim.SGD(model.parameters(), 0.1)
seen = []
for batch in StreamLoader(root, format="npy", batch_size=16, order="random"):
    optimiser.zero_grad()
    cross_entropy(model(batch["x"].flatten(1) / 255), batch["y"]).backward()
    optimiser.step()
    seen.append(batch["y"].tolist())
weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
print(json.dumps([seen, weights.tolist()]))
torch.distributed.destroy_process_group()
"""


def test_two_processes_train_one_model_on_their_own_samples(pictures, tmp_path):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TRAINING, pictures.root, tmp_path / "meeting", str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
        )
        for rank in range(2)
    ]
    messages = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], messages
    (first, weights), (second, others) = (json.loads(out.splitlines()[-1]) for out, _ in messages)
    for rank, seen in enumerate([first, second]):
        rows = rows_of("random", rank=rank, world_size=2)
        assert seen == [SOURCE["y"][expected].tolist() for expected in rows]
    assert weights == others
    assert all(np.isfinite(weights))
