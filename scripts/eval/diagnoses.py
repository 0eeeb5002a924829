"""Accuracy of `iobench diagnose`: sensitivity, false alarms, and predicted against achieved gains.

Each loader is diagnosed, and all advice with a gain is applied: baseline and advised settings take turns over
whole epochs. Advice is a false alarm if applying it gains less than 5 %, or, without a predicted gain, if the
loader was built without that problem. Loaders from issue trackers have a repaired twin: its gain in a plain
script is compared with the one that was predicted for the problem.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from eval import harness
from eval.harness import Row, Trials
from eval.loaders import bad, data, good, reported
from iobench.advise import diagnose as session
from iobench.advise.settings.candidate import BASELINE, Candidate, compare_to_baseline
from iobench.advise.settings.settings_race import SettingsRace
from iobench.advise.settings.tunable_loader import TunableLoader
from iobench.advise.settings.turn import TurnSpec

OPTIONS = {
    "seconds": (15.0, "time for each diagnosis"),
    "busy": (0, "number of background processes that each keep a core busy"),
}
ACHIEVED_ROUNDS, ACHIEVED_S = 7, 5.0
MIN_GAIN = 1.05
NEAR = 0.25  # of a gain
NAMED = ("dominating-library", "own-lines")


def trials(options: argparse.Namespace) -> Trials:
    warnings.filterwarnings("ignore", "The given NumPy array is not writable")
    warnings.filterwarnings("ignore", "This DataLoader will create")
    files = data.create_files(options.folder / "files")
    options.ends.enter_context(harness.background_load(options.busy))
    every = {**{name: (make, ()) for name, make in good.LOADERS.items()}, **bad.LOADERS, **reported.LOADERS}
    return {name: partial(diagnosed, name, *every[name], files, options) for name in sorted(every)}


def diagnosed(
    name: str, make: Any, kinds: Sequence[str], files: Path, options: argparse.Namespace
) -> Iterator[Row]:
    """Diagnose a loader, apply its advice, and yield what was found."""
    try:
        own = TunableLoader(make(files))
    except ImportError as error:
        yield {"skipped": str(error)}
        return
    diagnosis, took_s = harness.timed(lambda: session.diagnose(own, max_time_s=options.seconds))
    gains = compare_to_baseline(diagnosis.candidates) if diagnosis.candidates else {}
    advices = [advice_row(own, advice, diagnosis.candidates, gains, kinds) for advice in diagnosis.advice]
    yield {
        "kinds": list(kinds),
        "named": [one.sentence for one in diagnosis.findings if one.kind in NAMED],
        "twin": twin_gain(name, files) if name in reported.TWINS else None,
        "advices": advices,
        "busy": options.busy,
        "noticed": bool(diagnosis.warnings),
        "took_s": took_s,
    }


def twin_gain(name: str, files: Path) -> float:
    """Return how much faster the repaired twin of a loader is, in a process of its own."""
    command = [sys.executable, "-m", "eval.loaders.plain", name, str(files)]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def advice_row(
    own: TunableLoader, advice: Any, candidates: Sequence[Candidate], gains: Any, kinds: Sequence[str]
) -> Row:
    """Return what an advice predicts, what following it achieves, and whether it is a false alarm."""
    taken = [one for one in candidates if one.name in gains and gains[one.name].ratio.median == advice.gain]
    got = achieved(own, taken[0]) if taken and advice.gain else None
    false = got < MIN_GAIN if got is not None else advice.kind not in kinds
    return {"kind": advice.kind, "predicted": advice.gain, "achieved": got, "false": false}


def achieved(own: TunableLoader, candidate: Candidate) -> float | None:
    """Return the speed-up of the advised settings over interleaved whole epochs."""
    again = Candidate(candidate.name, candidate.changes, candidate.kind, make=candidate.make)
    both = [Candidate(BASELINE), again]
    race = SettingsRace(own, TurnSpec())
    with race.active():
        for each in both:
            race.warm_up(each, None)
        race.final_rounds(both, ACHIEVED_S, ACHIEVED_ROUNDS, seed=7)
    ratios = compare_to_baseline(both)
    return ratios[again.name].ratio.median if ratios else None


def evaluated(measured: Row) -> Row:
    """Return a row of text for each loader, with what the summary needs."""
    if "skipped" in measured:
        return measured
    kinds, advices = measured["kinds"], measured["advices"]
    return {
        "trial": measured["trial"],
        "built with": " or ".join(kinds) or "no problem",
        "advice (predicted, achieved)": "; ".join(map(text_of, advices)) or "none",
        "twin": measured["twin"],
        "detected": any(one["kind"] in kinds for one in advices) if kinds else None,
        "s": measured["took_s"],
        "measured": measured,
    }


def predicted_of(measured: Row) -> float | None:
    """Return the gain that was predicted for the problem that a loader was built with."""
    gains = [one["predicted"] for one in measured["advices"] if one["kind"] in measured["kinds"]]
    return max((gain for gain in gains if gain), default=None)


def text_of(advice: Row) -> str:
    gains = ", ".join(f"{advice[one]:.2f} ×" for one in ("predicted", "achieved") if advice[one])
    return f"{advice['kind']} ({gains}){' FALSE ALARM' * advice['false']}"


def summary(rows: Sequence[Row]) -> Iterator[str]:
    for busy in sorted({row["measured"]["busy"] for row in rows if "measured" in row}):
        these = [row for row in rows if "measured" in row and row["measured"]["busy"] == busy]
        yield from accuracy("busy" if busy else "quiet", these)


def accuracy(state: str, rows: Sequence[Row]) -> Iterator[str]:
    """Yield sensitivity, false alarms, and predicted against achieved gains."""
    measured = [row["measured"] for row in rows]
    detected = [row["detected"] for row in rows if row["detected"] is not None]
    alarmed = [any(one["false"] for one in row["advices"]) for row in measured if not row["kinds"]]
    advices = [advice for row in measured for advice in row["advices"]]
    yield (
        f"{state}: {sum(detected)} of {len(detected)} bad loaders detected, "
        f"{sum(alarmed)} of {len(alarmed)} good ones with false alarms, "
        f"{sum(one['false'] for one in advices)} of {len(advices)} advices false, "
        f"background load noticed in {sum(row['noticed'] for row in measured)} of {len(rows)}"
    )
    took = [row["took_s"] for row in measured]
    yield f"a diagnosis took {statistics.median(took):.1f} s in the median, {max(took):.1f} s at most"
    pairs = [(a["predicted"], a["achieved"]) for a in advices if a["predicted"] and a["achieved"]]
    twins = [(gain, row["twin"]) for row in measured if row["twin"] and (gain := predicted_of(row))]
    yield from differences("gains predicted, against the same settings again", pairs)
    yield from differences("gains predicted, against the repaired twin in a plain script", twins)


def differences(what: str, pairs: Sequence[tuple[float, float]]) -> Iterator[str]:
    """Yield by how much the second of each pair differs from the first, if there are any."""
    off = [max(expected / got, got / expected) - 1 for expected, got in pairs]
    if off:
        near = sum(one <= NEAR for one in off)
        most = f"{statistics.median(off):.0%} in the median, {max(off):.0%} at most"
        yield f"{len(off)} {what}: {near} within {NEAR:.0%}; off by {most}"
