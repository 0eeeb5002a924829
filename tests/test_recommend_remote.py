"""`iobench recommend` over a dataset in an object store, to which it writes nothing."""

import json
import os
import runpy
from pathlib import Path

import numpy as np
import pytest
from conftest import tree
from kinds import complaint_kind
from object_cases import SAMPLES

import iobench
from iobench.advise.candidates import BUILT_IN, FOR_STORES, candidate_set, loader_word
from iobench.advise.code import loader_code
from iobench.advise.measured_data import from_dataset
from iobench.advise.requirements import Requirements
from iobench.dataset.add import add

pytest_plugins = ("object_fixtures",)
pytestmark = pytest.mark.usefixtures("quick_retries", "few_rounds")

LOADERS = ("dataloader", "native", "stream")  # without workers, whose start takes seconds
FIELDS = 2


@pytest.fixture
def waiting(server, monkeypatch):
    """The server, which waits before each answer; and a search that may be short."""
    monkeypatch.setattr("range_server.SLOW_S", 0.002)
    monkeypatch.setattr("iobench.advise.requirements.MIN_TIME_S", 0.1)
    server.fault = lambda number, name: "slow"
    return server


def arguments(server, tmp_path, *more, max_time="60"):
    words = ["recommend", "--data-dir", tmp_path / "data", "--name", f"{server.url}/mine"]
    words += ["--batch-size", "16"]
    return [*words, *(word for one in LOADERS for word in ("--loader", one)), "--max-time", max_time, *more]


def test_an_answer_names_a_loader_and_the_default_and_writes_nothing(waiting, tmp_path, inside, monkeypatch):
    before = tree(tmp_path / "served")
    done = inside(*arguments(waiting, tmp_path, "--format", "npy", "--format", "lmdb", "--json"))
    assert done.returncode == 0, done.stderr
    assert tree(tmp_path / "served") == before
    found = json.loads(done.stdout)
    (default,) = [one for one in found["finalists"] if "default" in one["roles"]]
    assert default["case"] == "npy · dataloader"
    assert default["metrics"]["requests"]["median"] == SAMPLES * FIELDS
    assert found["use"]["case"].rpartition(" ")[2] in LOADERS
    assert found["use"]["metrics"]["requests"]["median"] > 0
    assert {one["format"] for one in found["finalists"]} <= {"npy", "lmdb"}
    (notice,) = [one for one in found["findings"] if "formats" in one["values"]]
    assert notice["values"] == {"formats": "npy, lmdb"}
    assert "--to" in notice["hint"]
    assert found["prepare"] == ""
    page = tmp_path / "report.html"
    assert inside("report", "--data-dir", tmp_path / "data", "--out", page).returncode == 0
    assert "requests/epoch" in page.read_text()
    if found["code"]:  # not under load
        assert f"{waiting.url}/mine" in found["code"]
        monkeypatch.chdir(tmp_path)
        Path("train.py").write_text(found["code"].replace("range(90)", "range(1)"))
        runpy.run_path("train.py", run_name="__main__")


@pytest.mark.parametrize(("asked", "default"), [(("all",), "npy"), (("lmdb", "memmap"), "lmdb")])
def test_the_default_sends_a_request_per_sample_from_a_worker_per_core(remote, asked, default):
    requirements = Requirements(formats=asked)
    data = from_dataset(remote, requirements)
    cases = candidate_set(remote, requirements, "cpu", "warm", data.added).cases
    usual = f"dataloader:num_workers={len(os.sched_getaffinity(0))}"
    assert (cases[0].variant, loader_word(cases[0])) == (default, usual)
    assert loader_word(cases[1]) == "stream"
    assert {case.loader.name for case in cases} == set(BUILT_IN)
    assert FOR_STORES in {case.loader.variant for case in cases}
    assert {case.cache for case in cases} == {data.cache} == {"remote"}
    assert {case.variant for case in cases} == set(remote.artifacts if asked == ("all",) else asked)


def test_larger_full_data_are_read_from_the_store_too(remote):
    data = from_dataset(remote, Requirements(full_bytes=1 << 60))
    assert (data.cold, data.cache) == (False, "remote")


def run_code_for(manifest, asked):
    """Run the code for the first candidate, in the current folder."""
    data = from_dataset(manifest, asked)
    (case, *_) = candidate_set(manifest, asked, "cpu", "warm", data.added).cases
    Path("train.py").write_text(loader_code(data, case, epochs=1))
    runpy.run_path("train.py", run_name="__main__")


@pytest.mark.parametrize("word", ["native", "dataloader", "dataloader:fetch=batch", "stream"])
def test_the_code_for_an_address_runs(remote, word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_code_for(remote, Requirements(loaders=(word,), batch_size=64))


@pytest.mark.parametrize(("word", "named"), [("stream", set()), ("stream:retries=9", {"retries"})])
def test_the_code_names_the_options_that_were_changed(remote, word, named, tmp_path):
    asked = Requirements(loaders=(word,))
    data = from_dataset(remote, asked)
    (case, *_) = candidate_set(remote, asked, "cpu", "warm", data.added).cases
    code = loader_code(data, case, epochs=1)
    options = ("threads", "in_flight", "request_bytes", "coalesce_bytes", "retries")
    assert {name for name in options if f"{name}=" in code} == named


@pytest.mark.parametrize("word", ["native", "dataloader", "stream"])
def test_the_code_for_data_that_were_added_at_an_address_runs(server, word, tmp_path, monkeypatch):
    np.save(server.folder / "own.npy", np.zeros((64, 8), np.float32))
    added, _ = add(f"{server.url}/own.npy", data_dir=tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    run_code_for(added, Requirements(loaders=(word,), batch_size=8))


def test_batches_at_an_address_are_those_of_the_folder(server, tmp_path):
    def content(place):
        made = iobench.batches(
            place, format="lmdb", loader="native", order="random", data_dir=tmp_path / "data"
        )
        return [{name: tensor.numpy().tobytes() for name, tensor in batch.items()} for batch in made]

    assert content(f"{server.url}/mine") == content(tmp_path / "local/mine")


def test_a_format_that_is_not_at_the_address_is_refused(waiting, tmp_path, inside):
    assert complaint_kind(inside(*arguments(waiting, tmp_path, "--format", "zarr"))) == "not-prepared"


def test_too_little_time_is_one_line(waiting, tmp_path, inside, monkeypatch):
    monkeypatch.setattr("range_server.SLOW_S", 0.02)  # one batch of the default takes 0.6 s
    assert complaint_kind(inside(*arguments(waiting, tmp_path, max_time="0.2"))) == "no-case-measured"
