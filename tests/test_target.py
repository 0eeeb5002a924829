"""User-defined loaders as cases: their arguments, the content check of their batches, and errors."""

import dataclasses
import json
import sys

import numpy as np
import pytest
import torch
from kinds import complaint_kind, kind

from iobench import formats
from iobench.base.errors import InvalidSettings, TargetError
from iobench.base.finding import Finding
from iobench.bench.case_grid import cases_of, skip_notes
from iobench.bench.executor import InProcess, Tick
from iobench.bench.options import RunOptions
from iobench.host.memory import file_behind
from iobench.loading import loaders, target
from iobench.results import record_file
from iobench.results.parts import ContentCheckPart
from iobench.results.record_file import plain
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

def leaving():
    raise SystemExit(7)

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
    """The user's module, in the current folder."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    target.import_once.cache_clear()
    yield folder
    sys.modules.pop("theirs", None)


def case_of(manifest, word, **chosen):
    options = RunOptions(("npy",), (f"theirs.py:{word}",), device=("cpu",), batch_size=(32,), **chosen)
    (case,) = cases_of(manifest, options, ["cpu"])
    return case


def unverified(manifest, word, **chosen):
    """Return why its content is not verified: a dict of the values by kind."""
    found = InProcess(manifest).prove(case_of(manifest, word, **chosen), 1, Tick()).check
    return {one.kind: one.values for one in found.unverified} if found else {}


@pytest.mark.parametrize("word", ["make", "workers", "workers:num_workers=0", "make:shuffle=yes"])
def test_a_loader_that_gives_each_sample_once_is_verified(images, theirs, word):
    assert unverified(images, word) == {}


def test_its_parameters_are_filled_in_from_the_case_and_the_word(images, theirs):
    case = case_of(images, "make", order=("sequential",))
    arguments = case.loader.call_arguments(case.job(images))
    assert arguments == {"batch_size": 32, "shuffle": False}
    case = case_of(images, "lazily:batch_size=5")
    assert case.loader.call_arguments(case.job(images)) == {"path": images.path_of("npy"), "batch_size": 5}


@pytest.mark.parametrize(
    ("word", "name", "values"),
    [
        ("make:shuffle=no", "other-order", {"requested": "random"}),
        ("stubborn", "other-batch-size", {"largest": 7, "requested": 32}),
        ("dropping", "sample-coverage", {"missing": 11, "foreign": 0, "repeated": 0}),
        ("changing", "other-data", {}),
        ("floating", "other-fields", {}),
        ("partly", "sample-coverage", {"foreign": 32, "missing": 32}),
        ("repeating", "sample-coverage", {"repeated": 203}),
    ],
)
def test_unverified_content_has_its_reason(images, theirs, word, name, values):
    assert values.items() <= unverified(images, word)[name].items()


@pytest.mark.parametrize(
    ("word", "kinds"),
    [("make", []), ("dropping", []), ("changing", ["other-data"]), ("make:shuffle=no", ["other-order"])],
)
def test_of_a_part_nothing_is_missed(images, theirs, word, kinds):
    found = InProcess(images).prove(case_of(images, word), 1, Tick(), limit_s=1e-9).check
    assert [one.kind for one in found.unverified] == kinds
    assert found.verified_samples == (0 if word == "changing" else 32)


def test_time_that_is_over_after_the_last_batch_leaves_no_part(images, theirs):
    case = dataclasses.replace(case_of(images, "make"), batch_size=256)
    assert InProcess(images).prove(case, 1, Tick(), limit_s=1e-9).check is None


def test_another_order_than_requested_is_not_verified(images, theirs):
    assert unverified(images, "make:shuffle=yes", order=("sequential",)).keys() == {"other-order"}
    assert unverified(images, "make", order=("sequential",)) == {}


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
    assert unverified(images, "lazily", order=("sequential",)) == {}


@pytest.mark.parametrize(
    ("word", "name", "place"),
    [
        ("empty", "empty", ""),
        ("words", "no-tensors", ""),
        ("number", "not-iterable", ""),
        ("failing", "raised", r"RuntimeError: mine \(theirs.py:\d+\)$"),
        ("leaving", "ended-process", r": sys.exit\(7\) \(theirs.py:\d+\)$"),
        ("failing_later", "raised", r"ValueError: .* \(theirs.py:\d+\)$"),
    ],
)
def test_an_error_is_one_line_with_its_place(images, theirs, word, name, place):
    with pytest.raises(TargetError, match=place or None, check=kind(name)):
        unverified(images, word)


def test_a_training_step_needs_the_fields(images, theirs):
    assert unverified(images, "changing", model=("mlp",)).keys() == {"other-data"}
    with pytest.raises(TargetError, check=kind("untrainable-batches")):
        unverified(images, "floating", model=("mlp",))


@pytest.mark.parametrize(
    ("word", "error", "name", "fields"),
    [
        ("theirs.py:absent", TargetError, "no-callable", {}),
        ("theirs.py:neds", TargetError, "no-callable", {"hint": "did you mean needs?"}),
        ("nowhere.py:make", TargetError, "missing-file", {"path": "nowhere.py"}),
        ("no.such.module:make", TargetError, "missing-module", {"found": "no.such.module"}),
        ("theirs.py:needs", InvalidSettings, "missing-argument", {}),
        ("theirs.py:make:speed=9", InvalidSettings, "unknown-parameter", {}),
        (
            "theirs.py:make:batchsize=9",
            InvalidSettings,
            "unknown-parameter",
            {"hint": "did you mean batch_size?"},
        ),
        ("theirs.py:make:fast", InvalidSettings, "invalid-argument", {"found": "'fast'"}),
    ],
)
def test_a_bad_word_is_rejected_before_anything_runs(theirs, word, error, name, fields):
    with pytest.raises(error, check=kind(name, **fields)):
        loaders.parse(word)
    assert "theirs" not in sys.modules


def test_a_word_holds_numbers_and_text_and_names_its_function(theirs):
    loader = loaders.parse("theirs:anything:a=4,b=0.5,c=yes,d=none,e=/some/where:else")
    assert dict(loader.arguments) == {"a": 4, "b": 0.5, "c": True, "d": None, "e": "/some/where:else"}
    assert loader.display_name == "theirs:anything"
    assert loaders.parse(loader.variant) == loader
    assert loaders.parse("theirs:Made").requested == ("batch_size", "seed")


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


def test_a_loader_whose_files_are_unknown_is_skipped_with_a_cold_cache(images, theirs):
    asked = options_for("native", "theirs.py:make", cache=("warm", "cold"))
    cold = [case for case in cases_of(images, asked, ["cpu"]) if case.cache == "cold"]
    assert {case.facets["loader"] for case in cold} == {"native"}
    assert [note.values["reason"] for note in skip_notes(images, asked)] == ["unknown-files"]


def test_it_has_a_process_of_its_own_or_none(images, theirs):
    with pytest.raises(InvalidSettings, check=kind("conflicting-options")):
        cases_of(images, options_for("theirs.py:make", isolate=False), ["cpu"])


def test_table_records_and_report_mark_unverified_content(images, theirs, tmp_path, inside):
    out = tmp_path / "r.jsonl"
    loaders = ("--loader", "native", "--loader", "theirs.py:dropping")
    given = ("--format", "npy", *loaders, "--batch-size", 32, "--rounds", 2, "--no-limits", "--out", out)
    done = inside("run", "--data-dir", images.root.parent, "--device", "cpu", *given)
    assert done.returncode == 0, done.stderr
    head, *lines = [line.split() for line in done.stdout.split("\n\n")[2].splitlines()]
    assert head[-1] == "verified"
    assert sorted((line[0], line[-1]) for line in lines) == [("npy", "yes"), ("own", "no")]
    (warned,) = [line for line in done.stderr.splitlines() if "[unverified-content]" in line]
    assert "own data · theirs.py:dropping" in warned
    records = record_file.read(out)[0]
    reasons = {one.case["loader"]: [why.values.get("missing") for why in one.unverified] for one in records}
    assert reasons.keys() == {"native", "theirs.py:dropping"}
    assert reasons["native"] == []
    assert 11 in reasons["theirs.py:dropping"]
    options = next(one.case["options"] for one in records if one.case["loader"] == "theirs.py:dropping")
    assert len(options["file_sha256"]) == 16
    page = pytest.importorskip("iobench.report.page").page(records)
    warnings = [one.lines[0] for part in page.sections for one in part.blocks if one.style == "warning"]
    assert any("not verified" in warning for warning in warnings)


def test_an_unverified_winner_is_marked():
    from record_cases import rounds_of

    fast = [
        dataclasses.replace(one, content_check=ContentCheckPart(unverified=[Finding("other-data", "why")]))
        for one in rounds_of([2000, 2010, 1990, 2005, 1995])
    ]
    slow = rounds_of([1000, 1010, 990, 1005, 995], variant="lmdb")
    (context,) = summarise(fast + slow).contexts
    assert context.cases[0].name == "npy · native (not verified)"
    assert json.loads(json.dumps(plain(context)))["cases"][0]["unverified"][0]["kind"] == "other-data"


def test_an_unknown_word_is_a_usage_error(images, inside):
    done = inside("run", "--data-dir", images.root.parent, "--loader", "native:pin_memory")
    assert complaint_kind(done, 2) == "malformed-option"
