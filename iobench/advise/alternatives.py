"""Alternatives to a recommendation, and what was skipped or failed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from iobench import formats
from iobench.advise import answer
from iobench.advise.candidates import default_case
from iobench.advise.choice import measured_case, rounds_of
from iobench.advise.recommendation import PARETO, Finalist
from iobench.advise.search import SearchResult, cost_of, labels_of, rate_of, texts_of
from iobench.base.finding import Finding
from iobench.base.units import three_digits
from iobench.bench.case import Case
from iobench.bench.outcome import Run
from iobench.results import stats
from iobench.results.run_warning import Values

CLOSE = 0.9  # of the fastest, from which on an alternative is worth naming
WORTH_NAMING = 1.1  # times the default, from which on another way to read the user's own files is
SMALLER = 0.95  # of the bytes, below which one is
SLOW = 0.1  # of the speed, below which the time says more
MAX_CLOSE = 3


def raced_formats(result: SearchResult) -> list[Finalist]:
    """Return each format by its fastest case in the race, fastest first, and if it is Pareto-optimal."""
    measured = _measured(result.race)
    names = labels_of([case for case, _ in measured])
    best: dict[str, Finalist] = {}
    for case, _ in sorted(measured, key=lambda one: -one[1]):
        if case.variant not in best:
            rounds = rounds_of(result.race, case.key)
            one = measured_case(result, case, names[case.key], rounds, ())
            best[case.variant] = replace(one, format=case.variant)
    merits = {variant: (one.rate, -one.disk_bytes) for variant, one in best.items()}
    return [
        one
        if any(stats.dominates(other, merits[variant]) for other in merits.values())
        else replace(one, roles=[PARETO])
        for variant, one in best.items()
    ]


def alternatives(result: SearchResult, use: Finalist) -> Iterator[Finding]:
    """Yield cases to use if something else matters more than speed, from the race."""
    measured = _measured(result.race)
    best = max(rate for _, rate in measured)
    manifest, names = result.data.manifest, texts_of([case for case, _ in measured])
    close = [(case, rate) for case, rate in measured if rate >= CLOSE * best]
    used = next(case for case in result.race.cases if result.final_case(case).key == use.key)
    yield from _smallest(result, used)
    plain = [(case, rate) for case, rate in measured if cost_of(case, manifest)[0] == 0]
    if plain and cost_of(used, manifest)[0]:
        case, rate = max(plain, key=lambda one: one[1])
        yield _alternative("no-packages", "nothing to install", names[case.key], rate / best)
    yield from _without_conversion(result, used)
    for word in {case.loader.variant: case for case in result.finalists if case.loader.user_defined}:
        message = f"Your own loader: 'iobench diagnose {word}' tries what would make it faster as it is"
        yield Finding("own-loader", message, values={"loader": word})
    shuffled = [(case, rate) for case, rate in measured if case.order == "random"]
    if used.order == "block" and shuffled:
        case, rate = max(shuffled, key=lambda one: one[1])
        yield _alternative("full-shuffle", "full shuffle", names[case.key], rate / best)
    # the final rounds say more about finalists
    left = [names[case.key] for case, _ in close if result.final_case(case).key not in result.roles]
    if left:
        named = "; ".join(left[:MAX_CLOSE])
        yield Finding(
            "close-in-race",
            f"Also within {1 - CLOSE:.0%} of the fastest in the race: {named}",
            values={"cases": named, "count": len(left)},
        )


def _smallest(result: SearchResult, used: Case) -> Iterator[Finding]:
    """Yield the fastest case that takes the least disk space, if that is less than the recommended one's."""
    rates = _best_known(result)
    cases = [case for case in result.race.cases if case.key in rates]
    stored = {case.key: result.data.full_stored_bytes(case.variant) for case in cases}
    smallest = min(cases, key=lambda case: (stored[case.key], -rates[case.key]))
    size, speed = stored[smallest.key] / stored[used.key], rates[smallest.key] / max(rates.values())
    if size < SMALLER:
        label = texts_of(cases)[smallest.key]
        yield _alternative("smallest", "least disk space", label, speed, size)


def _without_conversion(result: SearchResult, used: Case) -> Iterator[Finding]:
    """Yield the fastest way to read the user's own files, if it is not the recommended one."""
    data, rates = result.data, _best_known(result)
    default = default_case(result.race.cases, data.own_format)
    own = [case for case in result.race.cases if case.variant in data.added and case.key in rates]
    if default is None or default.key not in rates or not own or used.variant in data.added:
        return
    fastest = max(own, key=lambda case: rates[case.key])
    gain, speed = (rates[fastest.key] / rates[one.key] for one in (default, used))
    if gain >= WORTH_NAMING:
        label = texts_of(result.race.cases)[fastest.key]
        other = "" if formats.parse(fastest.variant).lossless else " (its pixels differ)"
        times = f"{three_digits(gain)} × the default, {_speed_text(speed)}"
        yield Finding(
            "no-conversion",
            f"Without a conversion: {label}{other}, {times}",
            values={"case": label, "gain": gain, "speed": speed},
        )


def _best_known(result: SearchResult) -> dict[str, float]:
    """Return the samples/s of cases by key: of the final rounds, or else of the race."""
    final = {case.key: rate_of(result.final, result.final_case(case).key) for case in result.race.cases}
    return {key: rate for key, one in final.items() if (rate := one or rate_of(result.race, key))}


def _alternative(kind: str, aim: str, case: str, speed: float, size: float | None = None) -> Finding:
    part = f"{size:.0%} of the bytes, " if size is not None else ""
    values: Values = {"case": case, "speed": speed}
    return Finding(
        kind,
        f"For {aim}: {case}, {part}{_speed_text(speed)}",
        values=values if size is None else {**values, "size": size},
    )


def _speed_text(speed: float) -> str:
    """Return a share of the fastest speed; of small shares the time, which a percentage rounds to nothing."""
    return f"{speed:.0%} of the speed" if speed >= SLOW else f"takes {three_digits(1 / speed)} × as long"


def time_limited(race: Run) -> Iterator[Finding]:
    """Yield the finding for cases that the race had no time for."""
    if race.skipped:
        tried, cases = len(race.cases) - len(race.skipped), len(race.cases)
        message = f"Tried {tried} of {cases} cases"
        yield Finding("time-limited", message, values={"tried": tried, "cases": cases})


def skipped_cases(race: Run) -> Iterator[Finding]:
    """Yield the cases that failed in the race, or that there was no time for."""
    labels = texts_of(race.cases)
    yield from _failed(race, "")
    yield from answer.no_time([labels[key] for key in race.skipped])


def failed_in_final(result: SearchResult) -> Iterator[Finding]:
    """Yield the finalists that failed in the final rounds, or with the training step."""
    yield from _failed(result.final, ", final rounds")
    if result.with_step is not None:
        yield from _failed(result.with_step, ", with the step")


def missing_default(result: SearchResult) -> Iterator[Finding]:
    """Yield why there is no comparison with the default; nothing where there is one."""
    default = default_case(result.race.cases, result.data.own_format)
    subject = "No comparison with the default (DataLoader, sample by sample)"
    if default is None:
        yield Finding("default-excluded", f"{subject}: it did not take part")
        return
    final = result.final_case(default).key
    failures = {**result.race.failures, **result.final.failures}
    if (error := failures.get(default.key) or failures.get(final)) is not None:
        yield Finding("default-failed", f"{subject}: it failed ({error})", values={"error": error.kind})
    elif not any(one.settings_key == final for one in result.final.valid_records):
        yield Finding("default-no-time", f"{subject}: no time was left")


def _failed(run: Run, when: str) -> Iterator[Finding]:
    labels = texts_of(run.cases)
    return answer.failures([(labels[key], error) for key, error in run.failures.items()], when)


def _measured(race: Run) -> list[tuple[Case, float]]:
    return [(case, rate) for case in race.cases if (rate := rate_of(race, case.key))]
