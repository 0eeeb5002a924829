"""15 formats under 12 loaders, warm and cold: table and report stay short, and count what they omit."""

import json

import pytest
from record_cases import FORMATS, LOADERS, STEADY, a_large_run, rounds_of

from iobench.results.summary import MAX_SHOWN, summarise
from iobench.terminal import display, run_tables


@pytest.fixture(scope="module")
def records():
    return a_large_run(2)  # without intervals, which take time


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
    few = summarise(rounds_of(STEADY)).contexts[0]
    assert few.shown == few.cases


def test_the_table_counts_omitted_cases_and_wide_shows_them_all(summary):
    (table,) = run_tables.run_tables(summary, 200)
    assert table.row_count == sum(len(context.shown) for context in summary.contexts)
    for context in summary.contexts:
        more = len(context.cases) - len(context.shown)
        assert f"{more} more" in run_tables.folded_line(context)
        assert "--wide" in run_tables.folded_line(context)
    assert run_tables.run_tables(summary, 200, wide=True)[0].row_count == 2 * len(FORMATS) * len(LOADERS)


@pytest.mark.parametrize("width", [100, 60, 200])
def test_formats_under_loaders_fit_the_terminal(summary, width):
    tables = run_tables.grid_tables(summary.contexts[0], width)
    assert all(run_tables.width_of(table) <= width for table in tables)
    heads = [str(column.header) for table in tables for column in table.columns]
    assert [head for head in heads if head != "relative time"] == list(
        dict.fromkeys(case.label.loader for case in summary.contexts[0].cases)
    )
    assert not run_tables.grid_tables(summarise(rounds_of(STEADY)).contexts[0], width)


def test_a_default_table_has_few_columns_and_fits_100(capsys):
    display.records(rounds_of(STEADY) + rounds_of(STEADY, variant="memmap", loader="dataloader"))
    head = capsys.readouterr().out.split("\n\n")[1].splitlines()[0]
    assert head.split("  ")[0].split() == ["format", "loader"]
    assert "relative time (95 %)" in head
    assert len(head) <= 100


page = pytest.importorskip("iobench.report.page")


@pytest.fixture(scope="module")
def result(records):
    return page.page(records)


def test_the_page_folds_all_but_the_best_of_each_format(result):
    assert [name.split(" · ")[0] for name, _ in result.matrix.rows] != sorted(FORMATS)
    assert {name.split(" · ")[0] for name, _ in result.matrix.rows} == set(FORMATS)
    assert len(result.matrix.rows) + len(result.matrix.folded) == len(FORMATS) * len(LOADERS)


def test_every_format_is_shown_under_every_loader(result):
    for section in result.sections:
        assert set(section.grid.columns) == set(LOADERS)
        assert {name for name, _ in section.grid.rows} == set(FORMATS)
        assert all(cell is not None for _, cells in section.grid.rows for cell in cells)


def test_charts_show_some_and_their_tables_all(result):
    figures = {figure.name: figure for figure in result.figures}
    for figure in map(figures.__getitem__, ("1-speed", "1-cpu", "1-memory")):
        keys = {row["key"] for row in figure.rows}
        assert len(keys) == len(FORMATS) * len(LOADERS)
        spec = json.dumps(figure.spec)
        drawn = {key for key in keys if key in spec}
        assert 0 < len(drawn) <= len(FORMATS) + len(LOADERS)
        assert "180 cases" in figure.caption


def test_the_frontier_holds_the_cases_that_are_not_beaten_in_size_and_speed(result):
    (sizes,) = (figure for figure in result.figures if figure.name == "1-size")
    frontier = {row["format"]: row for row in sizes.rows if row["frontier"] == "yes"}
    for row in sizes.rows:
        beaten = [
            one
            for one in sizes.rows
            if one["stored_bytes"] <= row["stored_bytes"] and one["bytes_per_s"] > row["bytes_per_s"]
        ]
        assert (row["format"] in frontier) is not bool(beaten)
    assert "blosc2" in frontier  # the smallest of all
    assert "beton" not in frontier


def test_conversions_into_the_fastest_formats_are_drawn(result):
    (pays,) = (figure for figure in result.figures if figure.name == "1-break-even")
    assert len({row["to"] for row in pays.rows}) == len(FORMATS)
    drawn = json.dumps(pays.spec)
    assert sum(f'"to": "{name}"' in drawn for name in FORMATS) == 6


def test_a_few_cases_are_not_folded():
    records = [one for n in range(MAX_SHOWN) for one in rounds_of(STEADY, variant=f"hdf5:chunk_bytes={2**n}")]
    (context,) = summarise(records).contexts
    assert context.shown is context.cases
    assert run_tables.folded_line(context) is None
