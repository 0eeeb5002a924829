"""Costs of an epoch by the prices of an object store."""

import json

import pytest
from kinds import complaint_kind

from iobench.base.errors import InvalidSettings
from iobench.base.units import GIB, price_text
from iobench.bench.options import RunOptions
from iobench.bench.run import run
from iobench.results.metrics import METRICS
from iobench.results.parts import Prices

pytest_plugins = ("object_fixtures",)
pytestmark = pytest.mark.usefixtures("quick_retries")

(METRIC,) = [one for one in METRICS if one.name == "epoch_cost"]
PRICES = "0.5,2000"


def test_requests_are_paid_by_the_thousand_and_bytes_by_the_gib():
    prices = Prices.parse("0.0004, 0.09")
    assert prices.cost(1000, 0) == 0.0004
    assert prices.cost(0, GIB) == 0.09
    assert prices.cost(3000, 2 * GIB) == pytest.approx(0.1812)
    assert Prices.parse("0,0").cost(1000, GIB) == 0


@pytest.mark.parametrize("text", ["", "0.1", "1,2,3", "a,b", "-1,0", "0,-1", "nan,0", "0,inf", "0.1;0.2"])
def test_what_is_no_price_list_is_refused(text):
    with pytest.raises(InvalidSettings) as caught:
        Prices.parse(text)
    assert caught.value.kind == "invalid-price"
    if text:
        with pytest.raises(InvalidSettings):
            RunOptions(prices=text)


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0.00"), (0.000716, "0.000716"), (0.0000004, "0.000000400"), (12.5, "12.5")]
)
def test_a_price_keeps_three_digits_however_small(value, text):
    assert price_text(value) == text


def test_a_run_shows_what_its_epochs_cost(remote, tmp_path):
    options = RunOptions(format=("npy",), loader=("native",), rounds="1", prices=PRICES, limits=False)
    (made,) = run(remote, options, out=tmp_path / "a.jsonl").records
    paid = 0.5 * made.requests.count / 1000 + 2000 * made.requests.fetched_bytes / GIB
    assert METRIC.of(made) == pytest.approx(paid / made.epochs)
    without = RunOptions(format=("npy",), loader=("native",), rounds="1", limits=False)
    (other,) = run(remote, without, out=tmp_path / "b.jsonl").records
    assert METRIC.of(other) is None
    assert other.key == made.key


def test_the_table_of_a_run_has_it_and_a_disk_is_refused(server, remote, tmp_path, inside):
    words = ["run", "--data-dir", tmp_path / "data", "--loader", "native", "--format", "npy", "--rounds", "1"]
    shown = inside(*words, "--name", f"{server.url}/mine", "--prices", PRICES)
    assert shown.returncode == 0, shown.stderr
    assert "cost/epoch" in shown.stdout
    inside("prepare", "--data-dir", tmp_path / "data", "--size", "1000", "--format", "npy")
    refused = inside(*words, "--prices", PRICES)
    assert refused.returncode == 2
    assert complaint_kind(refused, 2) == "conflicting-options"


@pytest.mark.usefixtures("few_rounds")
def test_recommend_says_what_each_finalist_costs(server, remote, tmp_path, inside, monkeypatch):
    monkeypatch.setattr("iobench.advise.requirements.MIN_TIME_S", 0.1)
    words = ["recommend", "--data-dir", tmp_path / "data", "--name", f"{server.url}/mine", "--format", "npy"]
    words += ["--loader", "dataloader", "--loader", "native", "--max-time", "60", "--batch-size", "16"]
    done = inside(*words, "--prices", PRICES, "--json")
    assert done.returncode == 0, done.stderr
    finalists = json.loads(done.stdout)["finalists"]
    assert finalists
    assert all("epoch_cost" in one["metrics"] for one in finalists)
