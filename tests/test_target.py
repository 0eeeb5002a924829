"""Somebody's own loader as a case: what it is called with, and what can be said of what it gives."""

import dataclasses
import json
import sys

import numpy as np
import pytest
import torch
from conftest import complaint

from iobench import formats
from iobench.base.errors import (
    InvalidSettings,
    TargetError,
)
from iobench.bench.executor import InProcess, Tick
from iobench.bench.options import RunOptions, cases_of, left_out
from iobench.host.memory import file_behind
from iobench.loading import loaders
from iobench.loading.loaders import _target
from iobench.results import record
from iobench.results.parts import ProofPart
from iobench.results.summary import summarise

MODULE = """
import os
import numpy as np, torch
from torch.utils.data import DataLoader, TensorDataset

def arrays():
    with np.load(os.path.join(os.path.dirname(__file__), "arrays.npz")) as file:
        return {name: file[name] for name in ("x", "y")}

def tensors():
    return [torch.from_numpy(array) for array in arrays().values()]

def make(batch_size, shuffle):
    return DataLoader(TensorDataset(*tensors()), batch_size=batch_size, shuffle=shuffle)

def workers(batch_size, num_workers=1):
    return DataLoader(TensorDataset(*tensors()), batch_size=batch_size, shuffle=True, num_workers=num_workers)

def stubborn():
    return DataLoader(TensorDataset(*tensors()), batch_size=7)

def dropping(batch_size):
    return DataLoader(TensorDataset(*tensors()), batch_size=batch_size, shuffle=True, drop_last=True)

def changing(batch_size):
    for x, y in make(batch_size, True):
        yield x + 1, y

def floating(batch_size):
    for x, y in make(batch_size, True):
        yield {"image": x.float(), "label": y, "path": ["a"] * len(y)}

def partly(batch_size):
    for number, (x, y) in enumerate(make(batch_size, True)):
        yield (x, y) if number else (x.clone().fill_(3), y)

def repeating(batch_size):
    loader = make(batch_size, True)
    while True:
        yield from loader

def lazily(path, batch_size):
    x, y = (np.load(path / f"{name}.npy", mmap_mode="r+") for name in ("x", "y"))
    for start in range(0, len(x), batch_size):
        yield torch.from_numpy(x[start : start + batch_size]), torch.from_numpy(y[start : start + batch_size])

def empty():
    return []

def words():
    return ["a", "b"]

def number():
    return 3

def failing():
    raise RuntimeError("mine")

def failing_later(batch_size):
    yield next(iter(make(batch_size, True)))
    raise ValueError("in the middle")

def needs(root, batch_size=3, *, other): ...

def anything(**options): ...

class Made:
    def __init__(self, batch_size, seed=3): ...
"""


@pytest.fixture(scope="module")
def folder(images, tmp_path_factory):
    made = tmp_path_factory.mktemp("theirs")
    (made / "theirs.py").write_text(MODULE)
    (made / "arrays.npz").write_bytes((images.root.parent.parent / "arrays.npz").read_bytes())
    return made


@pytest.fixture
def theirs(folder, monkeypatch):
    """The module of somebody's own, in the current folder."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(_target, "_imported", {})
    yield folder
    sys.modules.pop("theirs", None)


def case_of(manifest, word, **chosen):
    options = RunOptions(("npy",), (f"theirs.py:{word}",), device=("cpu",), batch_size=(32,), **chosen)
    (case,) = cases_of(manifest, options, ["cpu"])
    return case


def proved(manifest, word, **chosen):
    """What cannot be said of it."""
    found = InProcess(manifest).prove(case_of(manifest, word, **chosen), 1, Tick())
    return found and found.missing


@pytest.mark.parametrize("word", ["make", "workers", "workers:num_workers=0", "make:shuffle=yes"])
def test_a_loader_that_gives_each_sample_once_is_proved(images, theirs, word):
    assert proved(images, word) is None


def test_it_is_given_what_it_asks_for_and_what_its_word_says(images, theirs):
    case = case_of(images, "make", order=("sequential",))
    arguments = case.loader.arguments(case.job(images))
    assert arguments == {"batch_size": 32, "shuffle": False}
    case = case_of(images, "lazily:batch_size=5")
    assert case.loader.arguments(case.job(images)) == {"path": images.path_of("npy"), "batch_size": 5}


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("make:shuffle=no", "in the order in which they are stored, not in random order"),
        ("stubborn", "its batches hold up to 7 samples, not 32"),
        ("dropping", "of 203 samples 11 never came"),
        ("changing", "other content than the dataset's: changed on the way, or other data"),
        (
            "floating",
            "its batches hold image float32 3x16x16, label int64 scalar, the dataset x uint8 3x16x16",
        ),
        ("partly", "of 203 samples 32 are none of the dataset's, 32 never came"),
        ("repeating", "of 203 samples 203 came more than once"),
    ],
)
def test_what_cannot_be_proved_is_said(images, theirs, word, said):
    assert said in proved(images, word)


def test_another_order_than_was_asked_for_is_said(images, theirs):
    assert "not in the one in which they are stored" in proved(
        images, "make:shuffle=yes", order=("sequential",)
    )
    assert proved(images, "make", order=("sequential",)) is None


def test_bytes_are_those_of_its_own_batches(images, theirs):
    (measured,) = InProcess(images).measure(case_of(images, "floating"), 1, Tick())
    timing = measured.timing
    assert timing.logical_bytes == timing.samples * (3 * 16 * 16 * 4 + 8)


def test_views_of_a_mapped_file_are_read(images, theirs):
    case = case_of(images, "lazily", order=("sequential",))
    epochs = case.loader.open(case.job(images))
    batch = next(epochs.epoch(0))
    assert file_behind(batch["x"].data_ptr()) is None
    mapped = np.load(images.path_of("npy") / "x.npy", mmap_mode="r")
    assert file_behind(mapped.ctypes.data).endswith("x.npy")
    assert file_behind(torch.ones(1 << 20).data_ptr()) is None
    assert proved(images, "lazily", order=("sequential",)) is None


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("empty", "it gave no batches"),
        ("words", "its batches are str without tensors or arrays"),
        ("number", "returned int, which cannot be iterated over"),
        ("failing", r"failing\(\) raised RuntimeError: mine \(theirs.py:\d+\)"),
        ("failing_later", r"theirs.py:failing_later raised ValueError: in the middle \(theirs.py:\d+\)"),
    ],
)
def test_what_fails_is_one_line_that_says_where(images, theirs, word, said):
    with pytest.raises(TargetError, match=said):
        proved(images, word)


def test_a_training_step_needs_the_fields(images, theirs):
    assert proved(images, "changing", model=("mlp",)) is not None
    with pytest.raises(
        TargetError, match="a training step needs the dataset's fields: its batches hold image"
    ):
        proved(images, "floating", model=("mlp",))


@pytest.mark.parametrize(
    ("word", "kind", "said"),
    [
        ("theirs.py:absent", TargetError, "defines no function 'absent'"),
        ("nowhere.py:make", TargetError, "nowhere.py: no such file"),
        ("no.such.module:make", TargetError, "no module of that name is found"),
        ("theirs.py:needs", InvalidSettings, "needs root, other: say it, like theirs.py:needs:root=VALUE"),
        ("theirs.py:make:speed=9", InvalidSettings, "has no parameter speed; it takes batch_size, shuffle"),
        ("theirs.py:make:fast", InvalidSettings, "'fast' is not PARAMETER=VALUE"),
    ],
)
def test_a_word_that_stands_for_nothing_is_refused_before_anything_runs(theirs, word, kind, said):
    with pytest.raises(kind, match=said):
        loaders.parse(word)
    assert "theirs" not in sys.modules


def test_a_word_holds_numbers_and_text_and_names_its_function(theirs):
    loader = loaders.parse("theirs:anything:a=4,b=0.5,c=yes,d=none,e=/some/where:else")
    assert dict(loader.given) == {"a": 4, "b": 0.5, "c": True, "d": None, "e": "/some/where:else"}
    assert loader.called == "theirs:anything"
    assert loaders.parse(loader.variant) == loader
    assert loaders.parse("theirs:Made").asks == ("batch_size", "seed")


def test_a_file_that_has_changed_is_another_case(images, theirs):
    before = case_of(images, "make")
    text = (theirs / "theirs.py").read_text()
    try:
        (theirs / "theirs.py").write_text(text + "\n# another line\n")
        after = case_of(images, "make")
    finally:
        (theirs / "theirs.py").write_text(text)
    assert before.key != after.key
    assert before.facets["loader"] == after.facets["loader"] == "theirs.py:make"


def options_for(*loader, **chosen):
    return RunOptions(loader=loader, device=("cpu",), **chosen)


def test_data_of_its_own_make_one_case_whatever_formats_there_are(images, theirs):
    found = cases_of(images, options_for("native", "theirs.py:make", "theirs.py:lazily"), ["cpu"])
    formats = {word: [c.facets["format"] for c in found if c.facets["loader"] == word] for word in WORDS}
    assert formats["theirs.py:make"] == ["own data"]
    assert formats["theirs.py:lazily"] == formats["native"] == list(images.artifacts)
    assert all(case.isolated for case in found)
    only = cases_of(images, options_for("theirs.py:lazily:format=npy"), ["cpu"])
    assert [case.variant for case in only] == ["npy"]


WORDS = ("native", "theirs.py:make", "theirs.py:lazily")


def test_all_loaders_and_ones_own_stand_beside_each_other(images, theirs):
    found = cases_of(images, options_for("all", "theirs.py:make"), ["cpu"])
    here = {one["name"] for one in loaders.describe() if one["usable"] == "yes"}
    fit = {name for name in here if any(loaders.get(name).reads(formats.parse(v)) for v in images.artifacts)}
    orders = {name for name in fit if "random" in loaders.get(name).orders}
    assert {case.facets["loader"] for case in found} == {*orders, "theirs.py:make"}


def test_what_cannot_be_made_cold_is_left_out_and_said(images, theirs):
    asked = options_for("native", "theirs.py:make", cache=("warm", "cold"))
    cold = [case for case in cases_of(images, asked, ["cpu"]) if case.cache == "cold"]
    assert {case.facets["loader"] for case in cold} == {"native"}
    assert "theirs.py:make with a cold cache" in " ".join(left_out(images, asked))


def test_it_has_a_process_of_its_own_or_none(images, theirs):
    with pytest.raises(InvalidSettings, match="leave out --no-isolate"):
        cases_of(images, options_for("theirs.py:make", isolate=False), ["cpu"])


def test_table_records_and_report_say_what_is_not_proved(images, theirs, tmp_path, inside):
    out = tmp_path / "r.jsonl"
    loaders = ("--loader", "native", "--loader", "theirs.py:dropping")
    given = ("--format", "npy", *loaders, "--batch-size", 32, "--rounds", 2, "--no-limits", "--out", out)
    done = inside("run", "--data-dir", images.root.parent, "--device", "cpu", *given)
    assert done.returncode == 0, done.stderr
    head, *lines = [line.split() for line in done.stdout.split("\n\n")[1].splitlines()]
    assert head[-1] == "proved"
    assert sorted((line[0], line[-1]) for line in lines) == [("npy", "yes"), ("own", "no")]
    assert "warning: own data · theirs.py:dropping: not proved: of 203 samples 11 never came" in done.stderr
    records = record.read(out)[0]
    reasons = {one.case["loader"]: one.not_proved for one in records}
    assert reasons == {"native": None, "theirs.py:dropping": "of 203 samples 11 never came"}
    options = next(one.case["options"] for one in records if one.case["loader"] == "theirs.py:dropping")
    assert len(options["file_sha256"]) == 16
    page = pytest.importorskip("iobench.report.page").page(records)
    assert any("not proved" in warning for warning in page.warnings)
    told = {one.loader: one.is_a for one in page.sections[0].loaders}
    assert told["theirs.py:dropping"] == "a loader of your own, made by that function"


def test_a_winner_that_is_not_proved_is_called_so():
    from record_cases import rounds_of

    fast = [
        dataclasses.replace(one, proof=ProofPart(missing="why"))
        for one in rounds_of([2000, 2010, 1990, 2005, 1995])
    ]
    slow = rounds_of([1000, 1010, 990, 1005, 995], variant="lmdb")
    (context,) = summarise(fast + slow).contexts
    assert context.label(context.verdict.fastest) == "npy · native (not proved)"
    assert json.loads(json.dumps(context.as_dict()))["cases"][0]["not_proved"] == "why"


def test_an_unknown_word_is_a_usage_error(images, inside):
    done = inside("run", "--data-dir", images.root.parent, "--loader", "native:pin_memory")
    assert "is not OPTION=VALUE" in complaint(done, 2)
