"""Recommendation as data, stored beside the records it rests on, where reports find it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from iobench.advise.answer import Answer
from iobench.base.errors import RecordError
from iobench.base.finding import Finding
from iobench.base.units import bytes_text, price_text, rate_text
from iobench.dataset.manifest import MAX_NAME
from iobench.results.charts import TIMES, standing, with_ends
from iobench.results.display import Chart, Columns, Row
from iobench.results.history import ResultStore, file_name
from iobench.results.metrics import mib_text
from iobench.results.stats import Comparison
from iobench.results.summary import CaseSummary

# roles of finalists
FASTEST, RUNNER_UP, DEFAULT, CHEAPEST = "fastest", "runner-up", "default", "cheapest that feeds the step"
OTHER_LOADER, OWN_FILES = "fastest of its loader", "without a conversion"
PARETO = "Pareto-optimal"  # of formats: no other is at least as small and as fast, and better in one of both


@dataclass(frozen=True, kw_only=True)
class Finalist(CaseSummary):
    """Measured case with its roles, and its costs for the full data.

    Its rounds are without the training step; `stepped` is the case with the step, if there were rounds of it.
    It is a leader if it is not significantly slower than the fastest. `limit` is the lowest of its data path.
    """

    format: str  # variant that it reads
    roles: list[str]
    disk_bytes: float
    write_s: float = 0.0  # to decode and write the data
    against_default: Comparison | None = None  # compared with the default, with the training step if any
    stepped: CaseSummary | None = None
    step_decides: bool = False  # all that are compared have rounds with the step
    decoding_cores: float | None = None  # cores that it keeps busy, where its data are decoded
    user_defined: bool = False  # it is the user's own function
    unknown_files: bool = False  # it reads files of its own that are not in the dataset

    @property
    def text(self) -> str:
        """The case in words."""
        return str(self.label)

    @property
    def decisive(self) -> CaseSummary:
        """Rounds with the training step, if all have some, or those without: the basis of the choice."""
        return self.stepped if self.stepped is not None and self.step_decides else self

    @property
    def rate(self) -> float:
        """Median samples/s of the decisive rounds."""
        return self.decisive.samples_per_s.median

    @property
    def wait_share(self) -> float | None:
        """Share of the time that the device waits, with the training step; None without it."""
        return self.stepped.value("wait_share") if self.stepped is not None else None

    @property
    def row(self) -> Row:
        """Its row in the chart of relative times."""
        return {
            "key": self.key,
            "case": self.text,
            "role": ", ".join(self.roles),
            **with_ends("relative time", self.relative),
            **with_ends("bytes_per_s", self.decisive.bytes_per_s),
            "rounds": self.decisive.rounds,
            "standing": standing(self, self.leader),
        }

    @property
    def significantly_better(self) -> bool:
        """True if it is significantly faster than the default."""
        return self.against_default is not None and self.against_default.outcome == "faster"

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON, from which it can be read again."""
        return {**asdict(self), "case": self.text, "limit_share": self.limit_share}


@dataclass(frozen=True, kw_only=True)
class Recommendation(Answer):
    """A format, a loader and settings to use, and the measurements behind them.

    The outcome is ``decided``: `use` is significantly faster than the default. ``tied``: so it is, and others
    are as fast, or may be. ``keep``: nothing is significantly faster than the default. ``undecided``: too
    few rounds to tell. ``not-bottleneck``: the default keeps the device busy already. Only with the first two
    is there code.
    """

    use: Finalist
    finalists: list[Finalist]  # the fastest first
    alternatives: list[Finding] = field(default_factory=list)  # if something else matters more than speed
    prepare: str = ""  # command that prepares the data
    dataset: str = ""  # name of the measured dataset
    raced: list[Finalist] = field(default_factory=list)  # each format's fastest of the race, fastest first
    time: str = ""  # ISO 8601, UTC
    confirmed: bool = True  # False if it ended before the final rounds: the figures are those of the race

    def tables(self) -> Iterator[Columns]:
        """Yield the finalists."""
        mark = " ←" if self.code else ""

        def times_default(one: Finalist) -> str:
            default = "1" if DEFAULT in one.roles else ""
            return default if one.against_default is None else one.against_default.ratio.text("{:.2f}".format)

        def known(one: Finalist, metric: str, text: Callable[[float], str]) -> str | None:
            return None if (value := one.value(metric)) is None else text(value)

        texts: dict[str, Callable[[Finalist], str | None]] = {
            "case": lambda one: one.text + mark * (one.key == self.use.key),
            "MiB/s": lambda one: mib_text(one.bytes_per_s.median),
            "samples/s": lambda one: rate_text(one.samples_per_s.median),
            "with step": lambda one: rate_text(one.rate) if one.step_decides else None,
            "× default": times_default,
            "wait": lambda one: None if one.wait_share is None else f"{one.wait_share:.1%}",
            "requests/epoch": lambda one: known(one, "requests", rate_text),
            "cost/epoch": lambda one: known(one, "epoch_cost", price_text),
            "stored": lambda one: None if one.unknown_files else bytes_text(one.disk_bytes),
            "role": lambda one: ", ".join(one.roles),
        }
        columns: Columns = [(title, [text(one) for one in self.finalists]) for title, text in texts.items()]
        yield [(title, cells) for title, cells in columns if any(cell is not None for cell in cells)]

    def charts(self) -> Iterator[Chart]:
        """Yield the finalists' relative times, and formats by size and speed where there are several."""
        rounds = "the final rounds" if self.confirmed else "the race"
        trained = " with the training step" if any(one.step_decides for one in self.finalists) else ""
        caption = f"{TIMES} Medians of {rounds}{trained}; lines: 95 % intervals of the medians."
        yield Chart(
            "speeds", "speed", "Relative time of the finalists", caption, [one.row for one in self.finalists]
        )
        if len(self.raced) > 1:
            caption = "Each format by its fastest case in the race. The line joins Pareto-optimal formats."
            rows: list[Row] = [
                {
                    "format": one.format,
                    "stored_bytes": one.disk_bytes,
                    "bytes_per_s": one.bytes_per_s.median,
                    "case": one.text,
                    "frontier": "yes" if PARETO in one.roles else "no",
                }
                for one in self.raced
            ]
            yield Chart("sizes", "size", "Stored size and speed", caption, rows)

    def lists(self) -> Iterator[tuple[str, Sequence[Finding]]]:
        """Yield the alternatives, and what was skipped or failed."""
        yield "Alternatives", self.alternatives
        yield from super().lists()

    def listings(self) -> Iterator[tuple[str, str]]:
        """Yield the command that writes or registers the data, and the code that loads them."""
        yield "Prepare the data", self.prepare
        yield "Load them", self.code

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each finalist."""
        return [
            {
                "case": one.text,
                "format": one.format,
                "roles": ", ".join(one.roles),
                **{name: estimate.median for name, estimate in one.metrics.items()},
                "samples_per_s low": one.samples_per_s.low,
                "samples_per_s high": one.samples_per_s.high,
                "with step": one.rate if one.step_decides else None,
                "wait_share": one.wait_share,
                "rounds": one.rounds,
                "relative to default": one.against_default.ratio.median if one.against_default else None,
                "leader": one.leader,
                "disk_bytes": one.disk_bytes,
                "write_s": one.write_s,
                "use": one.key == self.use.key,
            }
            for one in self.finalists
        ]


def save(recommendation: Recommendation, data_dir: Path) -> Path:
    """Store a recommendation beside the records of runs; RecordError if it cannot be written."""
    name = file_name(recommendation.dataset, kept="._=,-")[:MAX_NAME]  # it may be an address
    return _STORE.save(recommendation, name, recommendation.time, data_dir)


def past(data_dir: Path) -> tuple[list[Recommendation], list[RecordError]]:
    """Return the newest recommendation of each dataset, the newest first, and an error for each bad file.

    RecordError if the results cannot be listed.
    """
    every, problems = _STORE.load(data_dir)
    newest: dict[str, Recommendation] = {}
    for one in reversed(every):
        newest.setdefault(one.dataset, one)
    return list(newest.values()), problems


def final_run(recommendations: Sequence[Recommendation], run: Path) -> Path:
    """Return the final rounds of the recommendation that a run belongs to; any other run unchanged."""
    for one in recommendations:
        race, *others = [run.parent / Path(name).name for name in one.records]
        final = others[0] if others else race
        if run in (race, *others) and final.is_file():
            return final
    return run


def _check(recommendation: Recommendation) -> None:
    finalists = recommendation.finalists
    cases = [summary for one in (*finalists, *recommendation.raced) for summary in (one, one.decisive)]
    speeds = [rate.median for one in cases for rate in (one.samples_per_s, one.bytes_per_s)]
    if not recommendation.findings or not finalists or min(speeds) <= 0:
        raise ValueError("it has no finding, no finalist, or one without a speed")
    if not recommendation.records:
        raise ValueError("it names no records")


_STORE = ResultStore(Recommendation, ".recommendation.json", "a recommendation", _check)
