"""A recommendation as data: kept beside the records that it rests on, where reports find it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from iobench.base.units import MIB, bytes_text, rate_text, three_digits
from iobench.results.columns import Columns
from iobench.results.documents import Documents
from iobench.results.stats import Comparison, Estimate

DEFAULT_ROLE = "default"


@dataclass(frozen=True)
class Finalist:
    """A finalist, with the figures of its fresh rounds.

    `against_default` is how many times as fast it is as the default, and `tied` says that it is not told
    apart from the fastest: both with the training step where there is one, as `trained_per_s` is (samples/s
    in `trained_rounds`). `waits` is the part of the time that the device waits with the step.
    `stored_bytes` and `write_s` are those of the real data.
    """

    key: str
    label: str
    format: str  # the variant
    roles: list[str]
    samples_per_s: Estimate
    bytes_per_s: float
    rounds: int
    against_default: Comparison | None
    tied: bool
    limit: str | None
    limit_bytes_per_s: float | None
    waits: float | None
    memory_bytes: int | None
    stored_bytes: float
    write_s: float
    trained_per_s: Estimate | None = None
    trained_rounds: int = 0
    decoding: float | None = None  # processors that it kept busy; None where nothing has to be decoded

    @property
    def decisive_per_s(self) -> Estimate:
        """Samples/s with the training step, or without it where there is none: what it is chosen by."""
        return self.trained_per_s or self.samples_per_s

    @property
    def decisive_rounds(self) -> int:
        """The rounds behind that."""
        return self.trained_rounds if self.trained_per_s else self.rounds

    @property
    def surely_better(self) -> bool:
        """Whether it is surely faster than the default."""
        return self.against_default is not None and self.against_default.outcome == "faster"

    @property
    def reached(self) -> float | None:
        """How much of the lowest limit on its way it reaches; None where none was measured."""
        return self.bytes_per_s / self.limit_bytes_per_s if self.limit_bytes_per_s else None


@dataclass(frozen=True)
class RacedFormat:
    """A format as the race left it: its fastest case, and the bytes that the real data take on disk.

    `pareto` where no other format is both as small and as fast, and better in one of the two.
    """

    format: str
    label: str
    bytes_per_s: float
    stored_bytes: float
    pareto: bool


@dataclass(frozen=True)
class Recommendation:
    """What to use, and everything that it rests on.

    `outcome`: `decided`; `tied` where others are as fast within 5 %, or may be; `fed` where the default
    keeps the device busy already, so that loading is not the problem.
    """

    outcome: str
    use: Finalist
    candidates: list[Finalist]  # the fastest first
    sentences: list[str]
    else_: list[str] = field(default_factory=list)  # what to use if something else matters more
    not_tried: list[str] = field(default_factory=list)
    prepare: str = ""
    code: str = ""
    records: list[str] = field(default_factory=list)  # of the race, then of the fresh rounds, then others
    dataset: str = ""
    raced: list[RacedFormat] = field(default_factory=list)  # the fastest first
    time: str = ""  # ISO 8601, UTC
    warnings: list[str] = field(default_factory=list)  # what speaks against the figures, a sentence each

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @property
    def columns(self) -> Columns:
        """The finalists as the columns of a table."""
        found, marks = self.candidates, {self.use.key: " ←"}
        texts: dict[str, Callable[[Finalist], str | None]] = {
            "case": lambda one: one.label + marks.get(one.key, ""),
            "MiB/s": lambda one: three_digits(one.bytes_per_s / MIB),
            "samples/s": lambda one: rate_text(one.samples_per_s.median),
            "with the step": lambda one: rate_text(one.trained_per_s.median) if one.trained_per_s else None,
            "times the default": _times,
            "waiting": lambda one: None if one.waits is None else f"{one.waits:.1%}",
            "on disk": lambda one: bytes_text(one.stored_bytes),
            "what it is": lambda one: ", ".join(one.roles),
        }
        columns: Columns = [(title, [text(one) for one in found]) for title, text in texts.items()]
        return [(title, cells) for title, cells in columns if any(cell is not None for cell in cells)]


def now() -> str:
    """The time as a recommendation has it."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def save(found: Recommendation, data_dir: Path) -> Path:
    """Write it beside the records of runs, where reports find it; RecordError where that fails."""
    return _KEPT.save(found.as_dict(), found.dataset, found.time, data_dir)


def past(data_dir: Path) -> tuple[list[Recommendation], list[str]]:
    """The newest recommendation for each dataset, the newest first; a sentence for each file without one.

    RecordError where the results cannot be listed.
    """
    every, problems = _KEPT.past(data_dir)
    found: dict[str, Recommendation] = {}
    for one in reversed(every):
        found.setdefault(one.dataset, one)
    return list(found.values()), problems


def fresh(found: Sequence[Recommendation], run: Path) -> Path:
    """Of a recommendation's runs the one with the fresh rounds of its finalists; any other run as it is."""
    for one in found:
        names = [Path(name).name for name in one.records]
        if run.name in names[:1] + names[2:] and (run.parent / names[1]).is_file():
            return run.parent / names[1]
    return run


def _check(found: Recommendation) -> None:
    """ValueError where what a report relies on is not there."""
    speeds = [one.samples_per_s.median for one in found.candidates]
    speeds += [one.bytes_per_s for one in found.candidates] + [one.bytes_per_s for one in found.raced]
    speeds += [one.decisive_per_s.median for one in found.candidates]
    if not found.sentences or not found.candidates or min(speeds) <= 0:
        raise ValueError("it has no sentence, no finalist, or one without a speed")
    if len(found.records) < 2:
        raise ValueError("it does not name its records")


_KEPT = Documents(Recommendation, ".recommendation.json", "a recommendation", _check)


def _times(one: Finalist) -> str | None:
    if one.against_default is None:
        return "1" if DEFAULT_ROLE in one.roles else ""
    ratio = one.against_default.ratio
    if ratio.low is None or ratio.high is None:
        return f"{ratio.median:.2f}"
    return f"{ratio.median:.2f} ({ratio.low:.2f}–{ratio.high:.2f})"
