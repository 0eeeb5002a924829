"""A comparison of runs → terminal, and a page that understands Markdown."""

from __future__ import annotations

from rich.table import Table

from iobench.base.text import printable
from iobench.base.units import MIB, three_digits
from iobench.results.compare import Compared
from iobench.results.machine import Machine
from iobench.results.stats import Estimate
from iobench.results.warnings import RunWarning
from iobench.terminal.tables import plain_table

TITLES = [
    "case",
    "new",
    "base MiB/s",
    "95 %",
    "new MiB/s",
    "95 %",
    "ratio",
    "95 %",
    "verdict",
    "machine",
    "differs",
]


def compared_table(found: Compared) -> Table:
    """One line per case and newer run."""
    table = plain_table(*TITLES, left=2)
    for column in table.columns[TITLES.index("verdict") :]:
        column.justify = "left"
    for cells in _cells(found):
        table.add_row(*cells)
    return table


def compared_markdown(found: Compared) -> str:
    """The same for a page that understands Markdown."""
    lines = [TITLES, ["---"] * 2 + ["---:"] * 6 + ["---"] * 3, *_cells(found)]
    escaped = [[printable(cell).replace("|", "\\|") for cell in cells] for cells in lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in escaped) + f"\n\n{compared_line(found)}"


def compared_line(found: Compared) -> str:
    """What the verdicts of a comparison mean."""
    corrected = f"; {found.correction}" if found.correction else ""
    least = f"below {found.smallest:.0%} nothing is called a difference"
    machine = "Machine: its own limit, its processors' speed, and the part of them that others used"
    held = (
        " * The case follows its processors round by round, and the ratio is of MiB/s at one speed of them."
        if any(line.paced for line in found.lines)
        else ""
    )
    return f"Ratios are new over {found.base}; {least}{corrected}. {machine}. {found.rests_on}{held}"


def cannot_tell_lines(found: Compared) -> list[str]:
    """Of which cases nobody can tell, and why: a line for each reason and newer run."""
    doubted: dict[tuple[str, str], list[str]] = {}
    for line in found.lines:
        if line.because:
            doubted.setdefault((line.new, line.because), []).append(line.case)
    told = [
        RunWarning("cannot tell", f"cannot tell how {new} differs, since {why}", cases)
        for (new, why), cases in doubted.items()
    ]
    return [one.sentence for one in told]


def _machine(machine: Machine, paced: bool) -> str:
    """How the machine differed between the runs: its limit, how fast processors ran, what others used.

    A star says that the ratio is held against the processors' speed.
    """
    change, shares, told = machine.limit_change, machine.others, list[str]()
    if change is not None:
        told.append(f"{machine.limit} {change.median:.2f} ×")
    if machine.redefined is not None:
        told.append(f"{machine.redefined} measured in another way since")
    if machine.pace_change is not None:
        told.append(f"processors {machine.pace_change:.2f} ×{'*' if paced else ''}")
    if None not in shares:
        told.append(f"others {shares[0]:.0%} → {shares[1]:.0%}")
    return ", ".join(told)


def _cells(found: Compared) -> list[list[str]]:
    return [
        [
            line.case,
            line.new,
            *_estimate_cells(line.base_bytes_per_s),
            *_estimate_cells(line.new_bytes_per_s),
            f"{line.comparison.ratio.median:.3f}",
            _ratio_interval(line.comparison.ratio),
            line.comparison.outcome,
            _machine(line.machine, line.paced),
            "; ".join([*(f"forced: {text}" for text in line.forced), *line.settings]),
        ]
        for line in found.lines
    ]


def _estimate_cells(estimate: Estimate) -> tuple[str, str]:
    if estimate.low is None or estimate.high is None:
        return three_digits(estimate.median / MIB), "–"
    ends = f"{three_digits(estimate.low / MIB)} – {three_digits(estimate.high / MIB)}"
    return three_digits(estimate.median / MIB), ends


def _ratio_interval(ratio: Estimate) -> str:
    return "–" if ratio.low is None else f"{ratio.low:.3f} – {ratio.high:.3f}"
