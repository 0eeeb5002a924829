"""Accuracy of `iobench diagnose`: true causes named first, false advice, predicted and achieved gains.

Each loader is diagnosed, and all advice with a gain is applied: baseline and advised settings take turns over
whole epochs. Advice is false if the loader's right answer says so, if applying it gains less than 5 %, or,
without a predicted gain, if the right answer does not know it.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from eval import harness
from eval.harness import Row, Trials
from eval.loaders import data, good, reading, working
from eval.loaders.answers import Answer
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
    files = data.create_files(options.folder / "files")
    options.ends.enter_context(harness.background_load(options.busy))
    answers = {**reading.ANSWERS, **working.ANSWERS, **good.ANSWERS}
    return {
        make.__name__: partial(
            harness.in_process, diagnosed, make, answer, files, options.seconds, options.busy
        )
        for make, answer in sorted(answers.items(), key=lambda one: one[0].__name__)
    }


def diagnosed(make: Any, answer: Answer, files: Path, seconds: float, busy: int) -> Row:
    """Diagnose a loader, apply its advice, and return what was said."""
    warnings.filterwarnings("ignore", "The given NumPy array is not writable")
    warnings.filterwarnings("ignore", "This DataLoader will create")
    try:
        own = TunableLoader(make(files))
    except ImportError as error:
        return {"skipped": str(error)}
    diagnosis, took_s = harness.timed(lambda: session.diagnose(own, max_time_s=seconds))
    gains = compare_to_baseline(diagnosis.candidates) if diagnosis.candidates else {}
    return {
        "first": list(answer.first),
        "second": list(answer.second),
        "named": [one.sentence for one in diagnosis.findings if one.kind in NAMED],
        "advices": [advice_row(own, one, diagnosis.candidates, gains, answer) for one in diagnosis.advice],
        "busy": busy,
        "noticed": bool(diagnosis.warnings),
        "took_s": took_s,
    }


def advice_row(
    own: TunableLoader, advice: Any, candidates: Sequence[Candidate], gains: Any, answer: Answer
) -> Row:
    """Return what an advice predicts, what following it achieves, and whether it is false."""
    taken = [one for one in candidates if one.name in gains and gains[one.name].ratio.median == advice.gain]
    got = achieved(own, taken[0]) if taken and advice.gain else None
    known = advice.kind in (*answer.first, *answer.second, *answer.also)
    false = advice.kind in answer.false or (got < MIN_GAIN if got is not None else not known)
    return {"kind": advice.kind, "predicted": advice.gain, "achieved": got, "false": false}


def achieved(own: TunableLoader, candidate: Candidate) -> float | None:
    """Return the speed-up of the advised settings over interleaved whole epochs."""
    again = Candidate(candidate.name, candidate.changes, candidate.kind, make=candidate.make)
    both = [Candidate(BASELINE), again]
    race = SettingsRace(own, TurnSpec())
    with race.active():
        for each in both:
            race.take(each, None)
        race.final_rounds(both, ACHIEVED_S, ACHIEVED_ROUNDS, seed=7)
    ratios = compare_to_baseline(both)
    return ratios[again.name].ratio.median if ratios else None


def evaluated(measured: Row) -> Row:
    """Return a row of text for each loader, with what the summary needs."""
    if "skipped" in measured:
        return measured
    first, advices = measured["first"], measured["advices"]
    named = [one["kind"] for one in advices]
    others = {*measured["second"]} <= {*named}
    answer = " and ".join(filter(None, [" or ".join(first), *measured["second"]]))
    return {
        "trial": measured["trial"],
        "right answer": answer or "no advice",
        "advice (predicted, achieved)": "; ".join(map(text_of, advices)) or "none",
        "right": bool({*named[:1]} & {*first}) and others if first else not named,
        "s": measured["took_s"],
        "measured": measured,
    }


def text_of(advice: Row) -> str:
    gains = ", ".join(f"{advice[one]:.2f} ×" for one in ("predicted", "achieved") if advice[one])
    return f"{advice['kind']} ({gains}){' FALSE' * advice['false']}"


def summary(rows: Sequence[Row]) -> Iterator[str]:
    for busy in sorted({row["measured"]["busy"] for row in rows if "measured" in row}):
        these = [row for row in rows if "measured" in row and row["measured"]["busy"] == busy]
        yield from accuracy("busy" if busy else "quiet", these)


def accuracy(state: str, rows: Sequence[Row]) -> Iterator[str]:
    """Yield how often the answer was right, and predicted against achieved gains."""
    measured = [row["measured"] for row in rows]
    slow, good = (
        [row["right"] for row in rows if bool(row["measured"]["first"]) == one] for one in (True, False)
    )
    advices = [advice for row in measured for advice in row["advices"]]
    false, noticed = sum(one["false"] for one in advices), sum(row["noticed"] for row in measured)
    yield (
        f"{state}: true cause first in {sum(slow)} of {len(slow)} slow loaders, no advice for {sum(good)} "
        f"of {len(good)} good ones, {false} of {len(advices)} advices false, background load noticed in "
        f"{noticed} of {len(rows)}"
    )
    took = [row["took_s"] for row in measured]
    yield f"a diagnosis took {statistics.median(took):.1f} s in the median, {max(took):.1f} s at most"
    pairs = [(a["predicted"], a["achieved"]) for a in advices if a["predicted"] and a["achieved"]]
    yield from differences("gains predicted, against the same settings again", pairs)


def differences(what: str, pairs: Sequence[tuple[float, float]]) -> Iterator[str]:
    """Yield by how much the second of each pair differs from the first, if there are any."""
    off = [max(expected / got, got / expected) - 1 for expected, got in pairs]
    if off:
        near = sum(one <= NEAR for one in off)
        most = f"{statistics.median(off):.0%} in the median, {max(off):.0%} at most"
        yield f"{len(off)} {what}: {near} within {NEAR:.0%}; off by {most}"
