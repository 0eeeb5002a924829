"""Results in a notebook: the one in data/reference/ is executed, and each result shows itself."""

import sys
from dataclasses import fields
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from record_cases import rounds_of

from iobench.base.errors import (
    MissingDependency,
    RecordError,
)
from iobench.bench.options import RunOptions
from iobench.bench.outcome import Run
from iobench.diagnose.watch import Watch
from iobench.notebook.recommend import ShownRecommendation
from iobench.notebook.run import ShownRun
from iobench.notebook.watch import ShownWatch
from iobench.recommendation.result import Candidate, Raced, Recommendation
from iobench.results.stats import Comparison, Estimate
from iobench.terminal.watch import watch

EXAMPLE = Path(__file__).parent.parent / "data" / "reference" / "results.ipynb"
QUICK = """
from iobench.base import thresholds
from iobench.bench import case_limits
from iobench.host import pace
thresholds.ROUND_S, case_limits.SECONDS, pace.SECONDS = 0.01, 0.002, 0.0003
"""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """What each code cell of the example shows, by its kind."""
    notebook = nbformat.read(EXAMPLE, as_version=4)
    for cell in notebook.cells:
        cell.source = cell.source.replace("max_time_s=30", "max_time_s=10")
    notebook.cells.insert(0, nbformat.v4.new_code_cell(QUICK))
    folder = str(tmp_path_factory.mktemp("notebook"))
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": folder}}).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [[one["data"] for one in cell.outputs if "data" in one] for cell in cells[1:]]


def test_the_example_shows_a_run_a_recommendation_and_a_watched_loop(outputs):
    run, frame, plot, advice, candidates, watched = (shown[-1] for shown in outputs)
    for one in (run, advice, watched):
        assert one["text/html"].startswith("<div><table>")
        assert '<img alt="' in one["text/html"]
        assert "data:image/svg+xml;base64," in one["text/html"]
    assert "times as long" in run["text/html"]
    assert "from iobench import" in advice["text/html"]
    assert "waiting" in watched["text/html"]
    assert "hdf5" in frame["text/html"]
    assert "use" in candidates["text/html"]
    assert "vegaEmbed" in plot["text/html"]


def test_the_front_door_hands_out_what_shows_itself():
    import iobench

    assert iobench.run.__doc__.startswith("Measure every case")
    assert issubclass(ShownRun, Run)
    assert [one.name for one in fields(ShownRun)] == [one.name for one in fields(Run)]
    assert issubclass(ShownRecommendation, Recommendation)
    assert isinstance(watch([1, 2]), Watch)


class Manifest:
    name = "<b>"


@pytest.fixture
def run():
    records = rounds_of([1000, 1010, 990, 1005, 995]) + rounds_of([500] * 5, variant="hdf5")
    return ShownRun(Manifest(), RunOptions(), [], Path("r.jsonl"), records)


def test_a_run_is_a_table_sentences_a_frame_and_a_chart(run):
    shown = run._repr_html_()
    assert shown.count("<tr>") == 3
    assert "Fastest: npy · native, 2.00 ×" in shown
    frame = run.to_pandas()
    assert len(frame) == 10
    assert set(frame["case_format"]) == {"npy", "hdf5"}
    assert frame["bytes_per_s"].max() == 1010 * 2**20
    assert "layer" in run.plot().to_dict()


def test_several_contexts_are_drawn_below_each_other(run):
    run.records += rounds_of([100] * 5, chosen={"cache": "cold"}, cache={"mode": "cold"})
    drawn = run.plot().to_dict()
    assert [part["title"] for part in drawn["vconcat"]] == ["warm cache", "cold cache"]


def test_nothing_measured_is_said_and_not_drawn():
    run = ShownRun(Manifest(), RunOptions(), [], Path("r.jsonl"), interrupted=True)
    assert "Nothing was measured" in run._repr_html_()
    assert run.to_pandas().empty
    with pytest.raises(RecordError, match="nothing to draw"):
        run.plot()


@pytest.mark.parametrize(
    ("missing", "call"), [("pandas", "to_pandas"), ("altair", "plot"), ("vl_convert", "_repr_html_")]
)
def test_what_is_missing_is_named_with_the_command(run, missing, call, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    for name in [name for name in sys.modules if name.startswith("iobench.report")]:
        monkeypatch.delitem(sys.modules, name)
    said = f"needs {missing}: pip install 'iobench[notebook]'"
    if call == "_repr_html_":
        assert said.replace("'", "&#x27;") in run._repr_html_()
        assert "<table>" in run._repr_html_()
    else:
        with pytest.raises(MissingDependency) as raised:
            getattr(run, call)()
        assert said in str(raised.value)


def a_candidate(label, mib_per_s, roles, **more):
    bytes_per_s = mib_per_s * 2**20
    ratio = Comparison(Estimate(2.0, 1.9, 2.1), "faster") if roles != ["default"] else None
    return Candidate(
        **{
            "key": label,
            "label": label,
            "format": label.split(" ")[0],
            "roles": roles,
            "samples_per_s": Estimate(mib_per_s, 0.9 * mib_per_s, 1.1 * mib_per_s),
            "bytes_per_s": bytes_per_s,
            "rounds": 15,
            "against_default": ratio,
            "tied": False,
            "limit": "page cache",
            "limit_bytes_per_s": 3 * bytes_per_s,
            "waits": None,
            "memory_bytes": None,
            "stored_bytes": 2**30,
            "write_s": 1.0,
            **more,
        }
    )


def test_a_recommendation_shows_the_choice_the_finalists_and_the_code():
    best, default = a_candidate("npy · <b>", 200, ["fastest"]), a_candidate("npy · x", 100, ["default"])
    raced = [Raced("npy", "npy · x", 2e8, 2**30, True), Raced("hdf5", "hdf5 · x", 1e8, 2**31, False)]
    shown = ShownRecommendation(
        "decided", best, [best, default], ["Use it."], code="print('<x>')", dataset="d", raced=raced
    )
    html = shown._repr_html_()
    assert "npy · &lt;b&gt; ←" in html
    assert "print(&#x27;&lt;x&gt;&#x27;)" in html
    frame = shown.to_pandas()
    assert list(frame["use"]) == [True, False]
    assert list(frame["times the default"].fillna(0)) == [2.0, 0.0]
    assert len(shown.plot().to_dict()["vconcat"]) == 2


def test_a_watched_loader_has_a_row_for_each_loop():
    told = []
    watched = ShownWatch([[1.0]] * 5, "cpu", told.append)
    assert "No loop has gone over it yet" in watched._repr_html_()
    for _ in range(2):
        assert len(list(watched)) == 5
    assert watched.loops == told
    assert watched.seen is told[-1]
    assert list(watched.to_pandas()["loop"]) == [1, 2]
    assert watched._repr_html_().count("<tr>") == 3
