"""15 formats under 12 loaders, warm and cold: tables and report stay short, and count what they omit."""

import json

import pytest
from record_cases import FORMATS, LOADERS, STEADY, a_large_run, rounds_of

from iobench.results.columns import blocks_of
from iobench.results.summary import MAX_SHOWN, summarise
from iobench.terminal import runs


@pytest.fixture(scope="module")
def records():
    return a_large_run(2)


@pytest.fixture(scope="module")
def summary(records):
    return summarise(records)


def names(cases, facet):
    return {case.facets[facet] for case in cases}


def test_the_fastest_of_each_format_and_of_each_loader_are_shown(summary):
    for context in summary.contexts:
        assert len(context.cases) == len(FORMATS) * len(LOADERS)
        assert len(context.shown) <= len(FORMATS) + len(LOADERS)
        assert context.shown[0] is context.cases[0]
        assert names(context.shown, "format") == set(FORMATS)
        assert names(context.shown, "loader") == set(LOADERS)
    few = [one for n in range(MAX_SHOWN) for one in rounds_of(STEADY, variant=f"hdf5:chunk_bytes={2**n}")]
    (context,) = summarise(few).contexts
    assert context.shown is context.cases


def test_the_table_counts_omitted_cases_and_wide_shows_them_all(summary):
    _, matrix, _, *more = blocks_of(summary)
    assert len(matrix.columns[0][1]) < 2 * (len(FORMATS) + len(LOADERS))
    for context, omitted, grid in zip(summary.contexts, more[::2], more[1::2], strict=True):
        count = len(context.cases) - len(context.shown)
        assert f"{count} more" in omitted.lines[0]
        assert [title for title, _ in grid.columns[1:]] == list(
            dict.fromkeys(case.label.loader for case in context.cases)
        )
    _, wide, _ = blocks_of(summary, wide=True)
    assert len(wide.columns[0][1]) == 2 * len(FORMATS) * len(LOADERS)


def test_no_line_of_an_answer_and_its_tables_is_longer_than_100(records, capsys):
    few = rounds_of(STEADY) + rounds_of(STEADY, variant="memmap", loader="dataloader")
    for shown in (few, records):
        runs.records(shown, runs.TableOptions(), "run")
        assert max(map(len, capsys.readouterr().out.splitlines())) <= 100


def test_charts_show_some_and_their_tables_all(records):
    content = pytest.importorskip("iobench.report.page").page(records)
    figures = {chart.name: chart for chart in content.charts}
    speed, sizes = figures["1-speed"], figures["1-size"]
    keys = {row["key"] for row in speed.rows}
    assert len(keys) == len(FORMATS) * len(LOADERS)
    spec = json.dumps(speed.drawn)
    assert 0 < len([key for key in keys if key in spec]) <= len(FORMATS) + len(LOADERS)
    assert "180 cases" in speed.caption
    frontier = {row["format"] for row in sizes.rows if row["frontier"] == "yes"}
    assert "blosc2" in frontier  # the smallest of all
    assert "beton" not in frontier
