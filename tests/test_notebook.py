"""Results in a notebook: data/reference/results.ipynb is executed, and each result has a display."""

import html
import re
import sys
from functools import partial
from pathlib import Path

import nbformat
import pytest
from kinds import kind
from nbclient import NotebookClient
from record_cases import rounds_of

from iobench.advise.checks.watched_loader import WatchedLoader
from iobench.advise.recommendation import PARETO, Finalist, Recommendation
from iobench.base.errors import MissingDependency, RecordError
from iobench.base.finding import Finding
from iobench.bench.options import RunOptions
from iobench.bench.outcome import Run
from iobench.results.cases import Label
from iobench.results.stats import Comparison, Estimate
from iobench.results.summary import summarise
from iobench.results.verdict import answer

EXAMPLE = Path(__file__).parent.parent / "data" / "reference" / "results.ipynb"
QUICK = """
from iobench.base import thresholds
from iobench.bench import limits
from iobench.host import machine_load
thresholds.ROUND_S, limits.SECONDS, machine_load.CPU_SPEED_S = 0.01, 0.002, 0.0003
"""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """Return the outputs of each code cell of the example."""
    notebook = nbformat.read(EXAMPLE, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(QUICK))
    folder = str(tmp_path_factory.mktemp("notebook"))
    NotebookClient(notebook, timeout=200, resources={"metadata": {"path": folder}}).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [[one["data"] for one in cell.outputs if "data" in one] for cell in cells[1:]]


def test_the_example_shows_a_run_a_recommendation_and_a_watched_loop(outputs):
    run, frame, plot, advice, candidates, watched = (shown[-1] for shown in outputs)
    for one in (run, advice, watched):
        assert one["text/html"].startswith('<div><p class="answer">')
        assert "<table" in one["text/html"]
        assert '<img alt="' in one["text/html"]
        assert "data:image/svg+xml;base64," in one["text/html"]
    assert "relative time" in run["text/html"]
    assert re.search(r"from iobench\S* import", advice["text/html"])
    assert "waiting" in watched["text/html"]
    assert "hdf5" in frame["text/html"]
    assert "use" in candidates["text/html"]
    assert "vegaEmbed" in plot["text/html"]


class Manifest:
    name = "<b>"


@pytest.fixture
def run():
    records = rounds_of([1000, 1010, 990, 1005, 995]) + rounds_of([500] * 5, variant="hdf5")
    return Run(Manifest(), RunOptions(), [], Path("r.jsonl"), records)


def test_a_run_is_a_table_sentences_a_frame_and_a_chart(run):
    shown = run._repr_html_()
    assert shown.count("<tr>") == 3
    assert html.escape(answer(summarise(run.records))[0].sentence) in shown
    frame = run.to_pandas()
    assert len(frame) == 10
    assert set(frame["case_format"]) == {"npy", "hdf5"}
    assert frame["bytes_per_s"].max() == 1010 * 2**20
    assert "layer" in run.plot().to_dict()


def test_several_contexts_are_plotted_below_each_other(run):
    run.records += rounds_of([100] * 5, chosen={"cache": "cold"}, cache={"mode": "cold"})
    drawn = run.plot().to_dict()
    assert [part["title"] for part in drawn["vconcat"]] == ["warm cache", "cold cache"]


def test_a_run_without_measurements_has_no_chart():
    run = Run(Manifest(), RunOptions(), [], Path("r.jsonl"), interrupted=True)
    assert "<table" not in run._repr_html_()
    assert run._repr_html_().count("<p") == 2  # nothing measured, and interrupted
    assert run.to_pandas().empty
    with pytest.raises(RecordError, check=kind("empty")):
        run.plot()


@pytest.mark.parametrize(
    ("missing", "call"),
    [("pandas", "to_pandas"), ("altair", "plot"), ("altair", "report"), ("vl_convert", "_repr_html_")],
)
def test_a_missing_library_is_named_with_the_command(run, missing, call, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, missing, None)
    for name in [name for name in sys.modules if name.startswith("iobench.report")]:
        monkeypatch.delitem(sys.modules, name)
    from iobench import report

    hint = f"pip install 'iobench[{'report' if call == 'report' else 'notebook'}]'"
    if call == "_repr_html_":
        assert missing in run._repr_html_()
        assert html.escape(hint) in run._repr_html_()
        assert "<table" in run._repr_html_()
        return
    write = partial(report.write, run.records, tmp_path / "r.html")
    with pytest.raises(MissingDependency, check=kind("missing-dependency", hint=hint)) as caught:
        (write if call == "report" else getattr(run, call))()
    assert missing in caught.value.problem


TWICE = Comparison(Estimate(2.0, 1.9, 2.1), "faster")


def a_finalist(text, mib_per_s, roles, **more):
    bytes_per_s = Estimate(mib_per_s * 2**20, None, None)
    rates = {"samples_per_s": Estimate(mib_per_s, 0.9 * mib_per_s, 1.1 * mib_per_s)}
    limit = {"limit_bytes_per_s": bytes_per_s.times(3.0)}
    format, _, loader = text.partition(" · ")
    return Finalist(
        **{
            "key": text,
            "label": Label(format, loader),
            "facets": {"loader": loader},
            "format": format,
            "roles": roles,
            "metrics": {**rates, "bytes_per_s": bytes_per_s, **limit},
            "rounds": 15,
            "relative": Estimate(1.0, None, None),
            "against_default": None if roles == ["default"] else TWICE,
            "limit": "page cache",
            "disk_bytes": 2**30,
            "write_s": 1.0,
            **more,
        }
    )


def test_a_recommendation_shows_the_choice_the_finalists_and_the_code():
    best, default = a_finalist("npy · <b>", 200, ["fastest"]), a_finalist("npy · x", 100, ["default"])
    raced = [a_finalist("npy · x", 200, [PARETO]), a_finalist("hdf5 · x", 100, [], disk_bytes=2**31)]
    shown = Recommendation(
        outcome="decided",
        use=best,
        finalists=[best, default],
        findings=[Finding("decided", "Use it")],
        code="print('<x>')",
        dataset="d",
        raced=raced,
    )
    page = shown._repr_html_()
    assert "npy · &lt;b&gt; ←" in page
    assert "print(&#x27;&lt;x&gt;&#x27;)" in page
    frame = shown.to_pandas()
    assert list(frame["use"]) == [True, False]
    assert list(frame["relative to default"].fillna(0)) == [2.0, 0.0]
    assert len(shown.plot().to_dict()["vconcat"]) == 2


def test_a_watched_loader_has_a_row_for_each_loop():
    reported = []
    watched = WatchedLoader([[1.0]] * 5, "cpu", reported.append)
    assert "<table" not in watched._repr_html_()
    for _ in range(2):
        assert len(list(watched)) == 5
    assert watched.loops == reported
    assert watched.stats is reported[-1]
    assert list(watched.to_pandas()["loop"]) == [1, 2]
    assert watched._repr_html_().count("<td") > 14
