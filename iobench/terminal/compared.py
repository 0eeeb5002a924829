"""Tables of a comparison of runs, plain and in Markdown."""

from __future__ import annotations

from collections.abc import Callable

from rich.table import Table

from iobench.base.text import printable
from iobench.base.units import three_digits
from iobench.results.compare import CaseComparison, CompareResult
from iobench.results.metrics import mib_text
from iobench.results.stats import Estimate
from iobench.terminal.tables import plain_table

TITLES = ["case", "new", "base", "95 %", "new", "95 %", "ratio", "95 %", "verdict", "machine", "differs"]


def compared_table(result: CompareResult) -> Table:
    """Return one row per case and newer run."""
    table = plain_table(*_titles(result), left=2)
    for column in table.columns[TITLES.index("verdict") :]:
        column.justify = "left"
    table.columns[TITLES.index("differs")].no_wrap = False
    for cells in _cells(result):
        table.add_row(*cells)
    return table


def compared_markdown(result: CompareResult) -> str:
    """Return the same table in Markdown, with its explanation below."""
    lines = [_titles(result), ["---"] * 2 + ["---:"] * 6 + ["---"] * 3, *_cells(result)]
    escaped = [[printable(cell).replace("|", "\\|") for cell in cells] for cells in lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in escaped) + f"\n\n{compared_line(result)}"


def _titles(result: CompareResult) -> list[str]:
    unit = "samples/s" if result.in_turns else "MiB/s"
    return [f"{title} {unit}" if place in (2, 4) else title for place, title in enumerate(TITLES)]


def compared_line(result: CompareResult) -> str:
    """Return the explanation of a comparison's columns and intervals."""
    corrected = f"; {result.correction}" if result.correction else ""
    least = f"differences below {result.min_difference:.0%} do not count"
    machine = "Machine: change of its own limit, of its CPU speed, and of the background CPU"
    return f"ratio = new / {result.base}; {least}{corrected}. {machine}. {result.basis_note}"


def _machine(line: CaseComparison) -> str:
    """Return how the machine changed between the runs, and the ratio without regard to that."""
    machine, texts = line.machine, list[str]()
    ratio, shares = machine.limit_ratio, machine.background_cpu
    if ratio is not None:
        texts.append(f"{machine.limit} {ratio.median:.2f} ×")
    if machine.cpu_speed_ratio is not None:
        texts.append(f"CPU speed {machine.cpu_speed_ratio:.2f} ×")
    if None not in shares:
        texts.append(f"background CPU {shares[0]:.0%} → {shares[1]:.0%}")
    if line.plain_ratio is not None:
        texts.append(f"ratio of quiet rounds; of all rounds {line.plain_ratio:.3f}")
    return ", ".join(texts)


def _cells(result: CompareResult) -> list[list[str]]:
    return [
        [
            line.case,
            line.new,
            *_estimate_cells(line.base_rate, three_digits if result.in_turns else mib_text),
            *_estimate_cells(line.new_rate, three_digits if result.in_turns else mib_text),
            *_estimate_cells(line.comparison.ratio, "{:.3f}".format),
            line.verdict,
            _machine(line),
            _differences(line),
        ]
        for line in result.cases
    ]


def _differences(line: CaseComparison) -> str:
    forced = (f"forced: {one.sentence}" for one in line.mismatches)
    return "; ".join([*forced, *(one.sentence for one in line.settings)])


def _estimate_cells(estimate: Estimate, form: Callable[[float], str]) -> tuple[str, str]:
    return form(estimate.median), estimate.interval_text(form)
