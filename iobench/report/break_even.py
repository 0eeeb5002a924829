"""Break-even of a conversion: the epochs after which writing the data in another format has paid off."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence

from iobench.report.rows import Row, fastest_by_format
from iobench.results import stats
from iobench.results.record import Record
from iobench.results.stats import Estimate
from iobench.results.summary import CaseSummary, Context, rates

Rates = Mapping[str, Mapping[tuple[str, int], float]]  # by case, run and round


def rows_of(context: Context) -> list[Row]:
    """Return, for each pair of formats, the epochs after which a conversion has paid off.

    Each format counts under its fastest loader. Writing and a longer opening are paid once; every epoch
    saves the difference of the epochs' times. The interval combines those of the slower epoch and of the
    ratio of speeds, corrected for all comparisons, so that it is conservative. Without an interval, or where
    it includes no saving, `pays` is `unclear` and there are no epochs.
    """
    best = fastest_by_format(context.cases)
    pairs = list(itertools.permutations(best, 2))
    by_case = context.by_case
    rows = []
    for have, want in pairs:
        before, after = best[have], best[want]
        write_s = _write_s(by_case[after.key])
        if write_s is not None:
            by_round = rates({case.key: by_case[case.key] for case in (before, after)})
            saved = _saved(before, after, by_round, comparisons=len(pairs) // 2)
            cost = write_s + (after.value("open_s") or 0.0) - (before.value("open_s") or 0.0)
            rows.append({"from": have, "to": want, "write_s": write_s, **_paid_off(max(0.0, cost), saved)})
    return rows


def _saved(before: CaseSummary, after: CaseSummary, by_round: Rates, comparisons: int) -> Estimate:
    """Return the seconds saved per epoch."""
    ratio = stats.compare_paired(by_round[after.key], by_round[before.key], comparisons=comparisons).ratio
    epoch_s, rate = before.metrics["epoch_s"].median, before.bytes_per_s
    saved = epoch_s * (1 - 1 / ratio.median)
    if ratio.low is None or ratio.high is None or rate.low is None or rate.high is None:
        return Estimate(saved, None, None)
    epochs = (epoch_s * rate.median / rate.high, epoch_s * rate.median / rate.low)
    ends = [one * (1 - 1 / times) for one in epochs for times in (ratio.low, ratio.high)]
    return Estimate(saved, min(ends), max(ends))


def _paid_off(cost: float, saved: Estimate) -> Row:
    row: Row = {
        "saved per epoch_s": saved.median,
        "saved per epoch_s low": saved.low,
        "saved per epoch_s high": saved.high,
        "epochs": None,
        "epochs low": None,
        "epochs high": None,
        "pays": "unclear",
    }
    if saved.low is not None and saved.high is not None:
        if saved.low > 0:
            ends = {"epochs": cost / saved.median, "epochs low": cost / saved.high}
            return {**row, **ends, "epochs high": cost / saved.low, "pays": "yes"}
        if saved.high <= 0:
            return {**row, "pays": "never"}
    return row


def _write_s(rounds: Sequence[Record]) -> float | None:
    known = [one.dataset.write_s for one in rounds if one.dataset.write_s is not None]
    return statistics.median(known) if known else None
