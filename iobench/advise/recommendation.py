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
from iobench.dataset.dataset_folders import MAX_NAME
from iobench.results.columns import Columns
from iobench.results.history import file_name
from iobench.results.metrics import mib_text
from iobench.results.result_store import ResultStore
from iobench.results.stats import Comparison, Estimate

# roles of finalists
FASTEST, RUNNER_UP, DEFAULT, CHEAPEST = "fastest", "runner-up", "default", "cheapest that feeds the step"
OTHER_LOADER, OWN_FILES = "fastest of its loader", "without a conversion"


@dataclass(frozen=True)
class Finalist:
    """A case with the figures of its final rounds."""

    key: str  # of the case
    label: str
    format: str  # variant
    roles: list[str]  # why it is a finalist
    samples_per_s: Estimate  # without the training step
    bytes_per_s: float  # median logical bytes per second
    rounds: int  # final rounds without the step
    against_default: Comparison | None  # compared with the default, with the training step if there is one
    tied: bool  # not significantly slower than the fastest
    limit: str | None  # the lowest of its data path; None if not measured
    limit_bytes_per_s: float | None
    wait_share: float | None  # share of the time that the device waits, with the training step
    memory_bytes: int | None  # peak memory of all its processes
    disk_bytes: float  # of the full data
    write_s: float  # to decode and write them
    trained_per_s: Estimate | None = None  # samples/s with the training step
    trained_rounds: int = 0
    decoding_cores: float | None = None  # cores that it keeps busy, where its data are decoded
    user_defined: bool = False  # it is the user's own function
    unknown_files: bool = False  # it reads files of its own that are not in the dataset
    requests: float | None = None  # of an epoch, to an object store; None if unknown
    epoch_cost: float | None = None  # of these and their bytes, by the stated prices; None without

    @property
    def decisive_per_s(self) -> Estimate:
        """Samples/s with the training step, or without where there is none: the basis of the choice."""
        return self.trained_per_s or self.samples_per_s

    @property
    def decisive_rounds(self) -> int:
        """Rounds behind `decisive_per_s`."""
        return self.trained_rounds if self.trained_per_s else self.rounds

    @property
    def significantly_better(self) -> bool:
        """True if it is significantly faster than the default."""
        return self.against_default is not None and self.against_default.outcome == "faster"

    @property
    def limit_share(self) -> float | None:
        """Share of the lowest hardware limit that it reaches; None if none was measured."""
        return self.bytes_per_s / self.limit_bytes_per_s if self.limit_bytes_per_s else None


@dataclass(frozen=True)
class RacedFormat:
    """A format by its fastest case in the race.

    `disk_bytes` are those of the full data. `pareto` is True if no other format is at least as small and as
    fast, and better in one of the two.
    """

    format: str
    label: str
    bytes_per_s: float
    disk_bytes: float
    pareto: bool


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
    raced: list[RacedFormat] = field(default_factory=list)  # formats of the race, the fastest first
    time: str = ""  # ISO 8601, UTC
    confirmed: bool = True  # False if it ended before the final rounds: the figures are those of the race

    def tables(self) -> Iterator[Columns]:
        """Yield the finalists."""
        mark = " ←" if self.code else ""
        texts: dict[str, Callable[[Finalist], str | None]] = {
            "case": lambda one: one.label + mark * (one.key == self.use.key),
            "MiB/s": lambda one: mib_text(one.bytes_per_s),
            "samples/s": lambda one: rate_text(one.samples_per_s.median),
            "with step": lambda one: rate_text(one.trained_per_s.median) if one.trained_per_s else None,
            "× default": _times,
            "wait": lambda one: None if one.wait_share is None else f"{one.wait_share:.1%}",
            "requests/epoch": lambda one: None if one.requests is None else rate_text(one.requests),
            "cost/epoch": lambda one: None if one.epoch_cost is None else price_text(one.epoch_cost),
            "stored": lambda one: None if one.unknown_files else bytes_text(one.disk_bytes),
            "role": lambda one: ", ".join(one.roles),
        }
        columns: Columns = [(title, [text(one) for one in self.finalists]) for title, text in texts.items()]
        yield [(title, cells) for title, cells in columns if any(cell is not None for cell in cells)]

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
                **{name: value for name, value in asdict(one).items() if not isinstance(value, dict)},
                "roles": ", ".join(one.roles),
                "samples_per_s": one.samples_per_s.median,
                "samples_per_s low": one.samples_per_s.low,
                "samples_per_s high": one.samples_per_s.high,
                "relative to default": one.against_default.ratio.median if one.against_default else None,
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
        names = [Path(name).name for name in one.records]
        if run.name in names[:1] + names[2:] and (run.parent / names[1]).is_file():
            return run.parent / names[1]
    return run


def _check(recommendation: Recommendation) -> None:
    """Raise ValueError if something is missing that reports rely on."""
    finalists = recommendation.finalists
    speeds = [one.samples_per_s.median for one in finalists]
    speeds += [one.bytes_per_s for one in finalists] + [one.bytes_per_s for one in recommendation.raced]
    speeds += [one.decisive_per_s.median for one in finalists]
    if not recommendation.findings or not finalists or min(speeds) <= 0:
        raise ValueError("it has no finding, no finalist, or one without a speed")
    if len(recommendation.records) < 2:
        raise ValueError("it names no records")


_STORE = ResultStore(Recommendation, ".recommendation.json", "a recommendation", _check)


def _times(one: Finalist) -> str:
    if one.against_default is None:
        return "1" if DEFAULT in one.roles else ""
    return one.against_default.ratio.text("{:.2f}".format)
