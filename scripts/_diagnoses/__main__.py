"""Accuracy of `iobench diagnose`: sensitivity, false alarms, and predicted against achieved gains.

Each loader is diagnosed, and all advice with a gain is applied: baseline and advised settings take turns
over whole epochs. Advice is a false alarm if applying it gains less than 5 %, or, without a predicted gain,
if the loader was built without that problem.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from _diagnoses import bad, data, good
from iobench.diagnose import session
from iobench.tuning.candidate import BASELINE, Candidate, compare_to_baseline
from iobench.tuning.settings_race import SettingsRace
from iobench.tuning.tunable_loader import TunableLoader
from iobench.tuning.turn import TurnSpec

BURN = "import os, sys\nwhile os.path.exists(sys.argv[1]): sum(range(1_000_000))"  # as long as this lives
ACHIEVED_ROUNDS, ACHIEVED_S = 7, 5.0
WORTH = 1.05


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--seconds", type=float, default=15.0, help="for each diagnosis")
    asked.add_argument("--busy", type=int, default=0, help="neighbours that each keep a core busy")
    asked.add_argument("--part", default="1/1", help="only this part of the loaders, like 2/3")
    asked.add_argument("--only", nargs="*", default=[], help="only loaders of these names")
    asked.add_argument("--out", type=Path, help="add a line of JSON for each loader to this file")
    asked.add_argument("--sum", type=Path, nargs="*", help="sum up such files instead of measuring")
    given = asked.parse_args()
    if given.sum:
        found = [json.loads(line) for path in given.sum for line in path.read_text().splitlines()]
        return summary(found)
    warnings.filterwarnings("ignore", "The given NumPy array is not writable")
    warnings.filterwarnings("ignore", "This DataLoader will create")
    found = []
    with tempfile.TemporaryDirectory() as folder, neighbours(given.busy):
        files = data.made(Path(folder) / "files")
        for name, (make, kinds) in chosen(given.part, given.only).items():
            try:
                found.append(one(name, make, kinds, files, given))
            except Exception as error:  # noqa: BLE001 - a loader that cannot be diagnosed is a finding, too
                print(f"{name:30} {type(error).__name__}: {error}", flush=True)
                found.append({"name": name, "skipped": repr(error)})
            if given.out:
                with given.out.open("a") as lines:
                    lines.write(json.dumps(found[-1]) + "\n")
    summary(found)


def chosen(part: str, only: Sequence[str]) -> dict[str, Any]:
    """Return the loaders of a part, or those of these names."""
    every = {**{name: (make, ()) for name, make in good.LOADERS.items()}, **bad.LOADERS}
    number, of = map(int, part.split("/"))
    names = only or sorted(every)[number - 1 :: of]
    return {name: every[name] for name in names}


def one(name: str, make: Any, kinds: Sequence[str], files: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Diagnose a loader, apply its advice, and return predicted and achieved gains."""
    try:
        own = TunableLoader(make(files))
    except ImportError as error:
        print(f"{name:32} skipped: {error}")
        return {"name": name, "skipped": str(error)}
    began = time.monotonic()
    diagnosis = session.diagnose(own, seconds=given.seconds)
    took_s = time.monotonic() - began
    gains = compare_to_baseline(diagnosis.candidates) if diagnosis.candidates else {}
    advices = []
    for advice in diagnosis.advice:
        taken = [
            t for t in diagnosis.candidates if t.name in gains and gains[t.name].ratio.median == advice.gain
        ]
        candidate = taken[0] if taken else None
        got = achieved(own, candidate) if candidate is not None and advice.gain else None
        false = got < WORTH if got is not None else advice.kind not in kinds
        advices.append({"kind": advice.kind, "predicted": advice.gain, "achieved": got, "false": false})
    found = {
        "name": name,
        "kinds": list(kinds),
        "advices": advices,
        "found": any(one["kind"] in kinds for one in advices),
        "busy": given.busy,
        "noticed": bool(diagnosis.warnings),
        "took_s": took_s,
    }
    show(found)
    return found


def achieved(own: TunableLoader, candidate: Candidate) -> float | None:
    """Return the speed-up of the advised settings over interleaved whole epochs."""
    again = Candidate(candidate.name, candidate.changes, candidate.kind, make=candidate.make)
    both = [Candidate(BASELINE), again]
    race = SettingsRace(own, TurnSpec(lambda tensors: None))
    with race.active():
        for each in both:
            race.warm_up(each, None)
        race.final_rounds(both, ACHIEVED_S, ACHIEVED_ROUNDS, seed=7)
    ratios = compare_to_baseline(both)
    return ratios[again.name].ratio.median if ratios else None


def show(found: dict[str, Any]) -> None:
    """Print a line for each advice on a loader, or that there was none."""
    state = "good" if not found["kinds"] else f"bad: {' or '.join(found['kinds'])}"
    for number, advice in enumerate(found["advices"] or [{}]):
        head = (found["name"], state) if number == 0 else ("", "")
        predicted, got = (f"{advice[n]:.2f} ×" if advice.get(n) else "" for n in ("predicted", "achieved"))
        alarm = "false alarm" if advice.get("false") else ""
        told = advice.get("kind", "nothing")
        took = f"{found['took_s']:.1f} s" if number == 0 else ""
        print(f"{head[0]:30} {head[1]:28} {told:16} {predicted:>9} {got:>9}  {took:>7} {alarm}", flush=True)


def summary(found: Sequence[dict[str, Any]]) -> None:
    """Print sensitivity, false alarms, and predicted against achieved gains."""
    found = [one for one in found if "skipped" not in one]
    for busy in sorted({one["busy"] for one in found}):
        these = [one for one in found if one["busy"] == busy]
        sick, well = [o for o in these if o["kinds"]], [o for o in these if not o["kinds"]]
        advices = [advice for one in these for advice in one["advices"]]
        pairs = [(a["predicted"], a["achieved"]) for a in advices if a["predicted"] and a["achieved"]]
        off = [max(expected / got, got / expected) - 1 for expected, got in pairs]
        alarmed = sum(any(advice["false"] for advice in one["advices"]) for one in well)
        false = sum(advice["false"] for advice in advices)
        noticed = sum(one["noticed"] for one in these)
        print(
            f"{'busy' if busy else 'quiet'}: {sum(one['found'] for one in sick)} of {len(sick)} bad loaders "
            f"found, {alarmed} of {len(well)} good ones with false alarms, {false} of {len(advices)} advices "
            f"false, background load noticed in {noticed} of {len(these)}"
        )
        took = [one["took_s"] for one in these]
        print(f"  a diagnosis took {statistics.median(took):.1f} s in the median, {max(took):.1f} s at most")
        if off:
            most = f"{statistics.median(off):.0%} in the median, {max(off):.0%} at most"
            print(f"  {len(off)} gains predicted: off by {most}")


@contextlib.contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Run processes that each keep a core busy, detached: children would count as the loader's own."""
    shell = '"$0" -c "$1" "$2" > /dev/null & echo $!'
    given = ["sh", "-c", shell, sys.executable, BURN, f"/proc/{os.getpid()}"]
    burning = [int(subprocess.run(given, check=True, stdout=subprocess.PIPE).stdout) for _ in range(count)]
    try:
        yield
    finally:
        for process in burning:
            os.kill(process, signal.SIGKILL)


if __name__ == "__main__":
    main()
