"""Resume check: loaders that lose, repeat, reorder, hang, die or refuse after a stop are told apart."""

import json

import pytest
from conftest import SAMPLES
from kinds import complaint_kind, kind

from iobench.base.errors import InvalidSettings, LoaderFailed, TargetError, WrongContent
from iobench.bench.resume_check import OwnLoader, ResumePlan, resumable_loaders, resume_check
from iobench.loading import checkpoint
from iobench.loading.order import ORDERS

MODULE = """
import os, signal, time
import numpy as np
import torch
from iobench import StreamLoader

class Exact:
    def __init__(self, rank=0, world_size=1, num_workers=0):
        self.batches = list(torch.arange(rank, 96, world_size).split(4))
        self.at = 0
    def __iter__(self):
        while self.at < len(self.batches):
            self.at += 1
            yield self.batches[self.at - 1]
        self.at = 0
    def state_dict(self):
        return {"at": self.at}
    def load_state_dict(self, state):
        self.at = state["at"]
        self.loaded()
    def loaded(self):
        pass

class OfRank(Exact):
    def __init__(self, rank=0, world_size=1):
        super().__init__(rank, world_size)
        self.own = [rank, world_size]
    def state_dict(self):
        return {"at": self.at, "own": self.own}
    def load_state_dict(self, state):
        Exact.__init__(self, *state["own"])
        self.at = state["at"]

class Losing(Exact):
    def loaded(self):
        self.at += 1

class Repeating(Exact):
    def loaded(self):
        self.at -= 1

class Reordering(Exact):
    def loaded(self):
        self.batches[self.at :] = reversed(self.batches[self.at :])

class Turning(Exact):
    def loaded(self):
        self.batches[self.at :] = [batch.flip(0) for batch in self.batches[self.at :]]

class Changing(Exact):
    def loaded(self):
        self.batches[-1] = self.batches[-1] + 1000

class Hanging(Exact):
    def loaded(self):
        self.batches = HangingBatches(self.batches)

class HangingBatches(list):
    def __getitem__(self, number):
        time.sleep(600)

class Killed(Exact):
    def loaded(self):
        os.kill(os.getpid(), signal.SIGKILL)

class Refusing(Exact):
    def loaded(self):
        raise ValueError("with these ranks it cannot resume")

class Breaking(Exact):
    def loaded(self):
        self.batches[-1] = None

class Endless(Exact):
    def loaded(self):
        self.batches *= 100

class Unsaved(Exact):
    def state_dict(self):
        return {"at": lambda: self.at}

class Stateless:
    def __iter__(self):
        return iter(Exact())

class Random(Exact):
    def __init__(self):
        super().__init__()
        self.batches = [batch + 1000 * np.random.randint(1, 10**6) for batch in self.batches]

class Shuffled(Exact):
    def __init__(self):
        super().__init__()
        self.order = np.random.permutation(96).tolist()
        self.fill()
    def fill(self):
        self.batches = list(torch.tensor(self.order).split(4))
    def state_dict(self):
        return {"at": self.at, "order": tuple(self.order)}
    def load_state_dict(self, state):
        self.at, self.order = state["at"], state["order"]
        self.fill()

def stream(path):
    return StreamLoader(path, format="npy", batch_size=4, order="random")

class Ahead(StreamLoader):
    def __init__(self, path):
        super().__init__(path, format="npy", batch_size=4)
    def state_dict(self):
        self._consumed += 1  # a batch that was read ahead
        return super().state_dict()
"""
GOOD = ("Exact", "Reordering", "Turning", "Shuffled")
BAD = ("Losing", "Repeating", "Changing", "Killed", "Breaking", "Endless", "Refusing", "Unsaved")


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    file = tmp_path_factory.mktemp("own") / "own.py"
    file.write_text(MODULE)
    return file


@pytest.fixture(scope="module")
def resumes(module):
    """The resume of each of the classes, by its name."""
    checked = resume_check([OwnLoader(f"{module}:{name}") for name in GOOD + BAD], ResumePlan(stop_after=8))
    return dict(zip(GOOD + BAD, checked.resumes, strict=True))


def counts(one):
    return one.lost, one.repeated, one.foreign


@pytest.mark.parametrize(
    ("name", "expected", "same_order"),
    [
        ("Exact", (0, 0, 0), True),
        ("Losing", (4, 0, 0), False),
        ("Repeating", (0, 4, 0), False),
        ("Reordering", (0, 0, 0), False),
        ("Turning", (0, 0, 0), False),  # samples within a batch
        ("Changing", (4, 0, 4), False),
        ("Shuffled", (0, 0, 0), None),  # by a generator without a seed
    ],
)
def test_samples_are_counted_and_the_order_is_compared(resumes, name, expected, same_order):
    one = resumes[name]
    assert (counts(one), one.same_order) == (expected, same_order)
    assert one.outcome == ("wrong" if any(expected) else "complete")
    assert (one.samples, one.stop_after, one.change) == (96, 8, "same")
    assert one.first_batch_s > 0


def test_a_resumed_epoch_that_does_not_end_is_cut_off(resumes):
    assert resumes["Endless"].outcome == "wrong"
    assert 0 < resumes["Endless"].repeated < 3 * 96


@pytest.mark.parametrize(
    ("name", "outcome", "reason"),
    [
        ("Refusing", "refused", "raised"),
        ("Unsaved", "refused", "not-plain-state"),
        ("Killed", "failed", "process-ended"),
        ("Breaking", "failed", "no-tensors"),
    ],
)
def test_a_refusal_is_no_failure(resumes, name, outcome, reason):
    one = resumes[name]
    assert (one.outcome, one.reason.kind) == (outcome, reason)
    assert counts(one) == (None, None, None)


@pytest.mark.timeout(100)  # less than what a process is given that has not begun
def test_a_loader_that_hangs_is_killed(module):
    (one,) = resume_check([OwnLoader(f"{module}:Hanging")], ResumePlan(timeout_s=3)).resumes
    assert (one.outcome, one.reason.kind) == ("failed", "timeout")


@pytest.mark.parametrize(
    ("name", "plan", "error"),
    [
        ("Stateless", {}, (TargetError, "no-state")),
        ("Random", {}, (WrongContent, "foreign-samples")),
        ("Exact", {"stop_after": 24}, (InvalidSettings, "out-of-range")),
        ("missing", {}, (TargetError, "no-callable")),
    ],
)
def test_what_cannot_be_checked_is_an_error(module, name, plan, error):
    with pytest.raises(error[0], check=kind(error[1])):
        resume_check([OwnLoader(f"{module}:{name}")], ResumePlan(**plan))


def test_each_rank_resumes_with_its_own_state(module):
    plan = ResumePlan(stop_after=3, ranks=(3,))
    (one,) = resume_check([OwnLoader(f"{module}:OfRank")], plan).resumes
    assert (one.outcome, counts(one), one.same_order) == ("complete", (0, 0, 0), True)


def test_own_functions_are_given_ranks_and_workers_if_they_take_them(module):
    plan = ResumePlan(ranks=(2, 3), workers=(0, 1))
    first, ranks, workers = resume_check([OwnLoader(f"{module}:Exact")], plan).resumes
    assert [one.change for one in (first, ranks, workers)] == ["same", "ranks 2→3", "workers 0→1"]
    assert [one.outcome for one in (first, ranks, workers)] == ["complete", "wrong", "complete"]
    assert ranks.lost == 4 * ranks.stop_after  # three ranks skip as many batches as two have read
    assert ranks.same_order is False
    _, *others = resume_check([OwnLoader(f"{module}:Shuffled")], plan).resumes
    assert [one.reason.kind for one in others] == ["unknown-parameter"] * 2


@pytest.mark.parametrize("order", ORDERS)
def test_stream_loses_nothing_over_ranks_1_2_3(images, order):
    loaders = resumable_loaders(["stream"], images.root.parent, images.name, "npy", order, 8)
    same, ranks = resume_check(loaders, ResumePlan(ranks=(1, 2, 3))).resumes
    assert (same.outcome, same.same_order, same.samples) == ("complete", True, SAMPLES)
    assert (ranks.outcome, ranks.change) == ("complete", "ranks 1→2→3")
    assert ranks.same_order is (order == "random")  # each rank's share of the others is consecutive


def test_a_function_without_a_rank_is_checked_as_under_torchrun(module, images):
    own = OwnLoader(f"{module}:stream:path={images.root}")
    for one in resume_check([own], ResumePlan(ranks=(1, 2))).resumes:
        assert (one.outcome, counts(one), one.samples) == ("complete", (0, 0, 0), SAMPLES)


def test_a_state_of_stream_that_counts_what_was_read_ahead_is_caught(module, images):
    own = OwnLoader(f"{module}:Ahead:path={images.root}")
    (one,) = resume_check([own], ResumePlan()).resumes
    assert (one.outcome, counts(one)) == ("wrong", (4, 0, 0))


def test_the_command_fails_if_samples_were_lost_silently(module, images, inside):
    folder = ("--data-dir", images.root.parent, "--name", images.name, "--batch-size", 8, "--json")
    done = inside("resume-check", "stream", *folder, "--workers", "0,2")
    printed = json.loads(done.stdout)
    assert done.returncode == 0
    assert [one["outcome"] for one in printed["resumes"]] == ["complete", "skipped"]
    done = inside("resume-check", f"{module}:Losing", f"{module}:Refusing", "--json")
    assert done.returncode == 1
    assert [one["outcome"] for one in json.loads(done.stdout)["resumes"]] == ["wrong", "refused"]
    done = inside("resume-check", f"{module}:Refusing")
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (("dataloader",), "no-state"),
        (("stream", "--world-size", "2,x"), "not-a-number"),
        (("stream", "--workers", "-1,2"), "out-of-range"),
        (("stream", "--stop-after", "0"), "out-of-range"),
        (("stream", "--order", "backwards"), "no-cases"),
    ],
)
def test_usage_errors(images, inside, typed, expected):
    done = inside("resume-check", *typed, "--data-dir", images.root.parent, "--name", images.name)
    assert complaint_kind(done, 2) == expected


class Code:
    def __reduce__(self):
        return print, ("executed",)


@pytest.mark.parametrize("state", [{"a": 1}, {"a": (1, 2)}, {1: b"x"}, [None, 0.5, {"a", "b"}]])
def test_a_checkpoint_keeps_plain_values(state):
    assert checkpoint.decode(checkpoint.encode(state)) == state


def test_a_checkpoint_executes_nothing(capsys):
    with pytest.raises(LoaderFailed, check=kind("not-plain-state")):
        checkpoint.encode({"a": Code()})
    assert capsys.readouterr().out == ""
