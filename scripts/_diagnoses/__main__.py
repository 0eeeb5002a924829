"""Accuracy of `iobench diagnose`: sensitivity, false alarms, and predicted against achieved gains.

    scripts/diagnoses [--seconds 15] [--busy N] [--part 1/2] [--only NAME...] [--out FILE] [--sum FILE...]

Takes about half a minute for each of 26 loaders. Each loader is diagnosed, and all advice with a gain is
applied: baseline and advised settings take turns over whole epochs. Advice is a false alarm if applying it
gains less than 5 %, or, without a predicted gain, if the loader was built without that problem.
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

from iobench.advise import diagnose as session
from iobench.advise.settings.candidate import BASELINE, Candidate, compare_to_baseline
from iobench.advise.settings.settings_race import SettingsRace
from iobench.advise.settings.tunable_loader import TunableLoader
from iobench.advise.settings.turn import TurnSpec

BURN = "import os, sys\nwhile os.path.exists(sys.argv[1]): sum(range(1_000_000))"  # until this process ends
ACHIEVED_ROUNDS, ACHIEVED_S = 7, 5.0
MIN_GAIN = 1.05


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=15.0, help="time for each diagnosis")
    parser.add_argument(
        "--busy", type=int, default=0, help="number of background processes that each keep a core busy"
    )
    parser.add_argument("--part", default="1/1", help="only this part of the loaders, like 2/3")
    parser.add_argument("--only", nargs="*", default=[], help="only loaders of these names")
    parser.add_argument("--out", type=Path, help="append a line of JSON for each loader to this file")
    parser.add_argument("--sum", type=Path, nargs="*", help="summarise such files instead of measuring")
    options = parser.parse_args()
    if options.sum:
        results = [json.loads(line) for path in options.sum for line in path.read_text().splitlines()]
        return summary(results)
    warnings.filterwarnings("ignore", "The given NumPy array is not writable")
    warnings.filterwarnings("ignore", "This DataLoader will create")
    results = []
    with tempfile.TemporaryDirectory() as folder, background_load(options.busy):
        files = data.create_files(Path(folder) / "files")
        for name, (make, kinds) in chosen(options.part, options.only).items():
            try:
                results.append(one(name, make, kinds, files, options))
            except Exception as error:  # noqa: BLE001 - a loader that cannot be diagnosed is a finding, too
                print(f"{name:30} {type(error).__name__}: {error}", flush=True)
                results.append({"name": name, "skipped": repr(error)})
            if options.out:
                with options.out.open("a") as lines:
                    lines.write(json.dumps(results[-1]) + "\n")
    summary(results)


def chosen(part: str, only: Sequence[str]) -> dict[str, Any]:
    """Return the loaders of a part, or those of these names."""
    every = {**{name: (make, ()) for name, make in good.LOADERS.items()}, **bad.LOADERS}
    number, of = map(int, part.split("/"))
    names = only or sorted(every)[number - 1 :: of]
    return {name: every[name] for name in names}


def one(
    name: str, make: Any, kinds: Sequence[str], files: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """Diagnose a loader, apply its advice, and return predicted and achieved gains."""
    try:
        own = TunableLoader(make(files))
    except ImportError as error:
        print(f"{name:32} skipped: {error}")
        return {"name": name, "skipped": str(error)}
    began = time.monotonic()
    diagnosis = session.diagnose(own, seconds=options.seconds)
    took_s = time.monotonic() - began
    gains = compare_to_baseline(diagnosis.candidates) if diagnosis.candidates else {}
    advices = []
    for advice in diagnosis.advice:
        taken = [
            t for t in diagnosis.candidates if t.name in gains and gains[t.name].ratio.median == advice.gain
        ]
        candidate = taken[0] if taken else None
        got = achieved(own, candidate) if candidate is not None and advice.gain else None
        false = got < MIN_GAIN if got is not None else advice.kind not in kinds
        advices.append({"kind": advice.kind, "predicted": advice.gain, "achieved": got, "false": false})
    result = {
        "name": name,
        "kinds": list(kinds),
        "advices": advices,
        "detected": any(one["kind"] in kinds for one in advices),
        "busy": options.busy,
        "noticed": bool(diagnosis.warnings),
        "took_s": took_s,
    }
    show(result)
    return result


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


def show(result: dict[str, Any]) -> None:
    """Print a line for each advice on a loader, or that there was none."""
    state = "good" if not result["kinds"] else f"bad: {' or '.join(result['kinds'])}"
    for number, advice in enumerate(result["advices"] or [{}]):
        head = (result["name"], state) if number == 0 else ("", "")
        predicted, got = (f"{advice[n]:.2f} ×" if advice.get(n) else "" for n in ("predicted", "achieved"))
        alarm = "false alarm" if advice.get("false") else ""
        kind = advice.get("kind", "nothing")
        took = f"{result['took_s']:.1f} s" if number == 0 else ""
        print(f"{head[0]:30} {head[1]:28} {kind:16} {predicted:>9} {got:>9}  {took:>7} {alarm}", flush=True)


def summary(results: Sequence[dict[str, Any]]) -> None:
    """Print sensitivity, false alarms, and predicted against achieved gains."""
    results = [one for one in results if "skipped" not in one]
    for busy in sorted({one["busy"] for one in results}):
        these = [one for one in results if one["busy"] == busy]
        bad_loaders, good_loaders = [o for o in these if o["kinds"]], [o for o in these if not o["kinds"]]
        advices = [advice for one in these for advice in one["advices"]]
        pairs = [(a["predicted"], a["achieved"]) for a in advices if a["predicted"] and a["achieved"]]
        off = [max(expected / got, got / expected) - 1 for expected, got in pairs]
        alarmed = sum(any(advice["false"] for advice in one["advices"]) for one in good_loaders)
        false = sum(advice["false"] for advice in advices)
        noticed = sum(one["noticed"] for one in these)
        detected = sum(one["detected"] for one in bad_loaders)
        print(
            f"{'busy' if busy else 'quiet'}: {detected} of {len(bad_loaders)} bad loaders detected, "
            f"{alarmed} of {len(good_loaders)} good ones with false alarms, "
            f"{false} of {len(advices)} advices false, "
            f"background load noticed in {noticed} of {len(these)}"
        )
        took = [one["took_s"] for one in these]
        print(f"  a diagnosis took {statistics.median(took):.1f} s in the median, {max(took):.1f} s at most")
        if off:
            most = f"{statistics.median(off):.0%} in the median, {max(off):.0%} at most"
            print(f"  {len(off)} gains predicted: off by {most}")


@contextlib.contextmanager
def background_load(count: int) -> Iterator[None]:
    """Run processes that each keep a core busy, detached: children would count as the loader's own."""
    shell = '"$0" -c "$1" "$2" > /dev/null & echo $!'
    command = ["sh", "-c", shell, sys.executable, BURN, f"/proc/{os.getpid()}"]
    burning = [int(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout) for _ in range(count)]
    try:
        yield
    finally:
        for process in burning:
            os.kill(process, signal.SIGKILL)


if __name__ == "__main__":
    main()
