"""The finalists with the figures of their fresh rounds: what the race had guessed of them is measured now."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from iobench.bench.case import Case
from iobench.bench.outcome import Run
from iobench.recommendation.alternatives import case_labels
from iobench.recommendation.result import Finalist
from iobench.recommendation.search import CHEAPEST, DEFAULT, FASTEST, OTHER_LOADER, RUNNER_UP, Found
from iobench.results import stats
from iobench.results.cases import key_of
from iobench.results.record import Record

ByRound: TypeAlias = dict[str, dict[int, float]]  # samples/s by a case's key and the round's number

WORTH_IT = 0.05  # a loader that brings less than this part of a training's time is not worth changing


def measured(found: Found) -> list[Finalist]:
    """The finalists by their fresh rounds, with the training step if there is one: the fastest first."""
    plain = {case.key: rounds_of(found.final, case.key) for case in found.finalists}
    stepped = _with_step(found)
    rounds = stepped if any(stepped.values()) else plain
    named = case_labels(found.finalists)
    default = next((key for key, roles in found.roles.items() if DEFAULT in roles and rounds.get(key)), None)
    waits = _waits(found)
    made = [
        _candidate(found, case, named[case.key], (plain, rounds), default, waits.get(case.key))
        for case in found.finalists
        if plain[case.key] and rounds.get(case.key)
    ]
    fastest, *others = sorted(made, key=lambda one: one.decisive_per_s.median, reverse=True)

    def told_apart(other: Finalist) -> bool:
        held = stats.compare_paired(rounds[fastest.key], rounds[other.key], comparisons=len(others))
        return held.outcome == "faster"

    return [
        replace(fastest, roles=of_fresh_rounds(fastest.roles, FASTEST)),
        *(
            replace(other, roles=of_fresh_rounds(other.roles, RUNNER_UP), tied=not told_apart(other))
            for other in others
        ),
    ]


def of_fresh_rounds(roles: Sequence[str], place: str) -> list[str]:
    """The roles of a finalist whose place in the race is now another one."""
    raced = {FASTEST, RUNNER_UP}
    held = place == FASTEST or not raced.isdisjoint(roles)
    gone = raced | ({OTHER_LOADER} if place == FASTEST else set())  # the fastest of all is that of its loader
    return [*([place] if held else []), *(role for role in roles if role not in gone)]


def _candidate(
    found: Found,
    case: Case,
    label: str,
    known: tuple[ByRound, ByRound],
    default: str | None,
    waits: float | None,
) -> Finalist:
    """One finalist; `known` are all rounds without the step, and those that decide."""
    plain, rounds = known
    own = [made for made in found.final.valid_records if key_of(made.case) == case.key]
    artifact, scale = found.data.manifest.artifacts[case.variant], found.data.scale
    limit = max((made.limit for made in own if made.limit), key=lambda one: one.bytes_per_s, default=None)
    speed = statistics.median(made.bytes_per_s for made in own)
    against = None
    if default is not None and default != case.key:
        others = sum(map(bool, rounds.values())) - 1  # as where the fastest is held against each
        against = stats.compare_paired(rounds[case.key], rounds[default], comparisons=others)
    return Finalist(
        key=case.key,
        label=label,
        format=case.variant,
        roles=[role for role in found.roles[case.key] if role != CHEAPEST or _feeds(waits)],
        samples_per_s=stats.estimate(list(plain[case.key].values())),
        bytes_per_s=speed,
        rounds=len(plain[case.key]),
        against_default=against,
        tied=False,
        limit=limit.name if limit else None,
        limit_bytes_per_s=limit.bytes_per_s if limit else None,
        waits=waits,
        memory_bytes=max((made.memory.peak_bytes for made in own if made.memory.peak_bytes), default=None),
        stored_bytes=artifact.stored_bytes * scale,
        write_s=artifact.write_s * scale,
        trained_per_s=None if rounds is plain else stats.estimate(list(rounds[case.key].values())),
        trained_rounds=0 if rounds is plain else len(rounds[case.key]),
        decoding=_busy(own) if _decodes(found, case) else None,
    )


def _busy(rounds: Sequence[Record]) -> float:
    """How many processors were at work for a case."""
    return statistics.median(made.processor.cpu_s / made.timing.epochs_s for made in rounds)


def _decodes(found: Found, case: Case) -> bool:
    """Whether most of its bytes are stored alternatives than they are in memory, as far as its reader knows."""
    if case.loader.foreign:
        return False
    with found.data.manifest.opener(case.variant)() as reader:
        as_stored = reader.placement().keys()
        encoded = sum(field.sample_bytes for field in reader.schema.fields if field.name not in as_stored)
        return encoded > reader.schema.sample_bytes / 2


def _feeds(waits: float | None) -> bool:
    """Whether a case keeps the device busy, as far as that was measured: the race had only guessed it."""
    return waits is None or waits < WORTH_IT


def rounds_of(run: Run, key: str) -> dict[int, float]:
    """The samples/s of a case's rounds, by their number."""
    return {made.round: made.samples_per_s for made in run.valid_records if key_of(made.case) == key}


def _with_step(found: Found) -> ByRound:
    """The samples/s of the rounds with the training step, by the key of the case without."""
    if found.stepped is None:
        return {}
    return {_plain(case): rounds_of(found.stepped, case.key) for case in found.stepped.cases}


def _plain(stepping: Case) -> str:
    """The key of a case without its training step."""
    return replace(stepping, step_s=0.0, model="none").key


def _waits(found: Found) -> dict[str, float]:
    """The part of the time that the device waits with the training step, by the key of the case without."""
    if found.stepped is None:
        return {}
    keys = {case.key: _plain(case) for case in found.stepped.cases}
    shares: dict[str, list[float]] = {}
    for made in found.stepped.valid_records:
        key = keys[key_of(made.case)]
        shares.setdefault(key, []).append(made.timing.wait_s / made.timing.epochs_s)
    return {key: statistics.median(values) for key, values in shares.items()}
