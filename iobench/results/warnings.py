"""What to be warned of in the figures of a run: what happened, why that matters, which option helps."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from iobench import thresholds
from iobench.results import cases, limits, others, stats
from iobench.results.record import Record
from iobench.thresholds import BACKED_BYTES_PER_S, CACHED_BELOW, STEAL, WARM_LIMIT
from iobench.units import bytes_text, rate_text, seconds_text

SPREAD = 0.10  # robust standard deviation over median
DRIFT = 0.10  # from the first round to the last
CHANCE = 0.05  # of as clear a drift in rounds that only scatter
FIRST = 0.10  # a first round this far from the rest, and three times as far as these scatter
SHUFFLED = 0.5  # of what a full shuffle is
NEIGHBOURS = 0.05  # of the data, read from the same disk by others
REACH_OF_LIMITS = 0.3  # of the median look at one, from the first quartile to the third
REACH_OF_PACE = 0.1  # of the median pace of processors, from the first quartile to the third
SPANS = 0.01  # of an epoch
SHARED = 0.8  # of what hosts give by themselves, added up: less of it together, and they share something
MOST_NAMED = 3
# kinds of warnings that speak of the machine and its other work, not of the cases
OF_THE_MACHINE = ("steal", "neighbours", "other work", "memory", "limits", "processors")

Cases = Mapping[str, Sequence[Record]]  # by key


@dataclass(frozen=True)
class RunWarning:
    """One reason not to believe a figure; `cases` are the labels of those concerned, none where all are."""

    kind: str
    said: str
    cases: list[str] = field(default_factory=list)

    @property
    def sentence(self) -> str:
        """The warning in one line."""
        if not self.cases:
            return self.said
        more = len(self.cases) - MOST_NAMED
        named = "; ".join(self.cases[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        return f"{named}: {self.said}"


def warnings_of(records: Sequence[Record]) -> list[RunWarning]:
    """Everything that speaks against taking these records at their word."""
    groups, labels = cases.by_case(records), cases.labels_of(records)
    found = [check(groups) for check in _CHECKS] if groups else []
    return [
        RunWarning(warning.kind, warning.said, [str(labels[key]) for key in warning.cases])
        for warning in found
        if warning is not None
    ]


def _few_rounds(groups: Cases) -> RunWarning | None:
    fewest = min(map(len, groups.values()))
    if fewest >= stats.ENOUGH:
        return None
    rounds = f"{fewest} round{'s' * (fewest != 1)}"
    return RunWarning(
        "rounds", f"{rounds}: too few for a sure interval; give --rounds {stats.ENOUGH} or more"
    )


def _short_rounds(groups: Cases) -> RunWarning | None:
    """Of warm cases: a cold round is one epoch, however short."""
    groups = _warm(groups)
    times = {key: statistics.median(r.timing.epochs_s for r in rounds) for key, rounds in groups.items()}
    short = [key for key, time in times.items() if time < thresholds.ROUND_S]
    if not short:
        return None
    least, enough = seconds_text(min(times[key] for key in short)), seconds_text(thresholds.ROUND_S)
    said = f"rounds of {least} and up, below {enough}, "
    return RunWarning(
        "short", said + "measure the moment as much as the case; prepare more data (--size)", short
    )


def _spread(groups: Cases) -> RunWarning | None:
    spreads = {key: stats.spread(_rates(rounds)) for key, rounds in groups.items() if len(rounds) > 2}
    wide = [key for key, spread in spreads.items() if spread > SPREAD]
    if not wide:
        return None
    most = f"rounds differ by up to {max(spreads.values()):.0%} (robust standard deviation)"
    return RunWarning("spread", f"{most}; stop other work, prepare more data, or give more --rounds", wide)


def _by_context(check: Callable[[Cases], RunWarning | None]) -> Callable[[Cases], RunWarning | None]:
    """The check, made of each context by itself: its rounds have a course of their own."""

    def run(groups: Cases) -> RunWarning | None:
        contexts = cases.by_context(record for rounds in groups.values() for record in rounds)
        for records in contexts:
            own = cases.by_case(records)
            if (found := check(own)) is not None:
                return RunWarning(found.kind, found.said, [] if len(contexts) == 1 else list(own))
        return None

    return run


@_by_context
def _drift(groups: Cases) -> RunWarning | None:
    """All cases together, because what changes in a machine changes for all; the first round is apart."""
    cycles = _cycles(groups)[1:]
    if len(cycles) < stats.ENOUGH - 1:
        return None
    change, chance = stats.trend(cycles)
    if abs(change) < DRIFT or chance > max(CHANCE, _least_chance(len(cycles))):
        return None
    course = f"rounds got {'faster' if change > 0 else 'slower'} by {abs(change):.0%} while the run went on"
    cold = next(iter(groups.values()))[0].cache.mode == "cold"
    if cold and change < 0:
        why = "the disk may allow a burst and then throttle; wait, and give --rounds 20 to see where it ends"
        return RunWarning("throttled", f"{course}: {why}")
    return RunWarning("drift", f"{course}: the machine warms up, slows down or shares; wait and run again")


@_by_context
def _first_round(groups: Cases) -> RunWarning | None:
    first, *rest = _cycles(groups) or [1.0]
    if len(rest) < stats.ENOUGH - 1:
        return None
    middle = statistics.median(rest)
    away = first / middle - 1
    if abs(away) < max(FIRST, 3 * stats.spread(rest)):
        return None
    than = f"{abs(away):.0%} {'faster' if away > 0 else 'slower'} than the rest"
    return RunWarning(
        "first round", f"the first round was {than}: something was not yet set up; give --warmup 2"
    )


def _below(groups: Cases) -> RunWarning | None:
    medians = [r.cache.below_s for rounds in groups.values() for r in rounds if r.cache.below_s]
    if not medians or len(medians[0]) != 2 or not medians[0][0] > CACHED_BELOW * medians[0][1]:
        return None
    return RunWarning(
        "below",
        "a layer below this kernel keeps what was read, so reads after the first round may have come from "
        "its memory; prepare more data than it can hold, or read the figures as cold for this kernel only",
    )


def _backed(groups: Cases) -> RunWarning | None:
    rates = [r.cache.prefault_bytes_per_s or BACKED_BYTES_PER_S for each in groups.values() for r in each]
    slow = sum(rate < BACKED_BYTES_PER_S for rate in rates)
    if not slow:
        return None
    return RunWarning(
        "backed",
        f"before {slow} of {len(rates)} rounds the host had to back memory first, at "
        f"{rate_text(min(rates))}B/s; iobench had that done outside the clock, as far as it can, a training "
        "job pays for it: keep the machine busy, or give it memory of its own",
    )


def _not_warm(groups: Cases) -> RunWarning | None:
    least = {key: _least_residency(rounds) for key, rounds in _warm(groups).items()}
    short = {key: value for key, value in least.items() if value is not None and value < WARM_LIMIT}
    if not short:
        return None
    part = f"only {min(short.values()):.0%} of the files was in memory before a round, so it was not warm"
    return RunWarning("residency", f"{part}; free memory or prepare less data", list(short))


def _unverified(groups: Cases) -> RunWarning | None:
    unknown = [
        key
        for key, rounds in _warm(groups).items()
        if _least_residency(rounds) is None and rounds[0].case["format"] != cases.OWN_DATA
    ]
    said = "nobody can tell if the files were in memory; run as their owner"
    return RunWarning("unverified", said, unknown) if unknown else None


def _warm_from_disk(groups: Cases) -> RunWarning | None:
    allowed = 1 - WARM_LIMIT
    read = {
        key: statistics.median(r.disk.read_bytes or 0 for r in rounds)
        for key, rounds in _warm(groups).items()
        if (_least_residency(rounds) or 0) >= WARM_LIMIT
        and statistics.median((r.disk.read_bytes or 0) / r.timing.logical_bytes for r in rounds) > allowed
    }
    if not read:
        return None
    amount = f"a warm round read {bytes_text(max(read.values()))} from disk"
    return RunWarning("reclaimed", f"{amount}: something takes pages out of memory; free memory", list(read))


def _steal(groups: Cases) -> RunWarning | None:
    parts = {
        key: statistics.median(
            (r.processor.steal_s or 0) / r.timing.epochs_s / (r.machine.cores or 1) for r in rounds
        )
        for key, rounds in groups.items()
    }
    robbed = [key for key, part in parts.items() if part > STEAL]
    if not robbed:
        return None
    took = f"the hypervisor gave {max(parts.values()):.0%} of the processors' time to others"
    return RunWarning("steal", f"{took}; run again at another hour, or give more --rounds", robbed)


def _neighbours(groups: Cases) -> RunWarning | None:
    found = {
        key: others.often(list(map(_read_by_others, rounds)), NEIGHBOURS) for key, rounds in groups.items()
    }
    busy = {key: seen for key, seen in found.items() if seen is not None}
    if not busy:
        return None
    amount = f"others read as much as {max(most for _, most in busy.values()):.0%} of the data"
    return RunWarning(
        "neighbours",
        f"{amount} from the same disk meanwhile; see who does with 'pidstat -d 1', and stop it",
        list(busy),
    )


def _sign(sign: others.Sign) -> Callable[[Cases], RunWarning | None]:
    """A sign of other work in enough rounds of some case to move its median."""

    def check(groups: Cases) -> RunWarning | None:
        found = {key: sign.often([r.others for r in rounds]) for key, rounds in groups.items()}
        busy = {key: seen for key, seen in found.items() if seen is not None}
        if not busy:
            return None
        worst = max(busy, key=lambda key: busy[key][1])
        return RunWarning(sign.kind, sign.said(busy[worst], len(groups[worst])), list(busy))

    return check


def _beaten_limit(groups: Cases) -> RunWarning | None:
    beaten = [
        key
        for key, rounds in groups.items()
        if (limits := [r.limit.bytes_per_s for r in rounds if r.limit])
        and statistics.median(r.bytes_per_s for r in rounds) > max(limits)
    ]
    said = "faster than the limit measured for it, also when that was measured again; give more --rounds"
    return RunWarning("limit", said, beaten) if beaten else None


def _shared_between_hosts(groups: Cases) -> RunWarning | None:
    """Limits of several hosts that are less together than what each gave by itself adds up to."""
    parts = {
        (limit.name, limit.bytes_per_s / limit.alone_bytes_per_s)
        for rounds in groups.values()
        for limit in (record.limit for record in rounds)
        if limit is not None and limit.alone_bytes_per_s
    }
    name, part = min(parts, key=lambda one: one[1], default=("", 1.0))
    if part > SHARED:
        return None
    return RunWarning(
        "shared",
        f"the hosts share the {name}: together they got {part:.0%} of what each gets by itself added up; "
        "more hosts will not read faster from it",
    )


def _unsteady_limits(groups: Cases) -> RunWarning | None:
    """Limits of the machine itself that changed while a run went on."""
    by_run: dict[str, list[Record]] = {}
    for record in (record for rounds in groups.values() for record in rounds):
        by_run.setdefault(record.run, []).append(record)
    seen = [(name, looks) for run in by_run.values() for name, looks in limits.looks(run).items()]
    reach, name, looks = max(((_reach(looks), name, looks) for name, looks in seen), default=(0.0, "", []))
    if reach < REACH_OF_LIMITS:
        return None
    ends = f"{rate_text(min(looks))}B/s and {rate_text(max(looks))}B/s"
    return RunWarning(
        "limits",
        f"what the machine itself can do changed while the run went on: the {name} gave between {ends}; "
        "stop other work, and measure again",
    )


def _unsteady_pace(groups: Cases) -> RunWarning | None:
    """Processors that ran now faster, now slower, which neither steal nor other processes tell."""
    every = (record.processor.pace_per_s for rounds in groups.values() for record in rounds)
    paces = [pace for pace in every if pace]
    if len(paces) < stats.ENOUGH or _reach(paces) < REACH_OF_PACE:
        return None
    slow, *_, fast = statistics.quantiles(paces, n=10, method="inclusive")
    return RunWarning(
        "processors",
        f"the processors ran unevenly: plain Python took {fast / slow:.1f} times as long beside some rounds "
        "as beside others, for heat or for neighbours behind a hypervisor; measure again at another hour, or "
        "give more --rounds",
    )


def _reach(looks: Sequence[float]) -> float:
    """How far the middle half of some looks reaches, as a part of their median."""
    if len(looks) < 3:
        return 0.0
    low, middle, high = statistics.quantiles(looks, method="inclusive")
    return (high - low) / middle


def _costly_spans(groups: Cases) -> RunWarning | None:
    costs = {
        key: statistics.median((r.timing.spans_s or 0) / r.timing.epochs_s for r in rounds)
        for key, rounds in groups.items()
    }
    costly = [key for key, cost in costs.items() if cost > SPANS]
    said = f"--profile itself took {max(costs.values()):.1%} of the epoch; give a larger --batch-size"
    return RunWarning("profile", said, costly) if costly else None


def _mixed_software(groups: Cases) -> RunWarning | None:
    """Rounds of one case that other versions of something made."""
    mixed, named = [], set()
    for key, rounds in groups.items():
        software = [
            {**r.machine.versions, "kernel": r.machine.kernel, "python": r.machine.python} for r in rounds
        ]
        differing = {name for one in software for name in one if one.get(name) != software[0].get(name)}
        if differing:
            mixed.append(key)
            named |= differing
    if not mixed:
        return None
    said = f"its rounds were made with different versions of {', '.join(sorted(named))}"
    return RunWarning("versions", f"{said}; compare the runs instead ('iobench compare')", mixed)


def _throttled_device(groups: Cases) -> RunWarning | None:
    reasons = {
        key: {str(why) for r in rounds for s in r.snapshots or () for why in s.get("gpu_throttled") or ()}
        for key, rounds in groups.items()
    }
    slowed = [key for key, whys in reasons.items() if whys]
    if not slowed:
        return None
    named = ", ".join(sorted(set().union(*reasons.values())))
    return RunWarning(
        "device throttled",
        f"the device ran below its clocks although it had work ({named}); cool it or raise its power limit",
        slowed,
    )


def _not_every_sample(groups: Cases) -> RunWarning | None:
    """Of loaders that say they drop or repeat: the proof has counted how many."""
    proofs = {key: rounds[0].proof for key, rounds in groups.items()}
    lost = {key: proof for key, proof in proofs.items() if proof and (proof.dropped or proof.repeated)}
    if not lost:
        return None
    samples = max(groups[key][0].dataset.samples for key in lost)
    counts = {name: max(getattr(proof, name) for proof in lost.values()) for name in ("dropped", "repeated")}
    counted = " and ".join(f"{name} {count:,}" for name, count in counts.items() if count)
    said = f"{counted} of {samples:,} samples in an epoch, so that no two epochs need train on the same"
    return RunWarning("coverage", said, list(lost))


def _own_order(groups: Cases) -> RunWarning | None:
    """Of loaders with an order of their own: where it is far from what was asked for."""
    proofs = {key: rounds[0].proof for key, rounds in groups.items()}
    stored = [key for key, proof in proofs.items() if proof and proof.in_order is False]
    shuffled = {key: proof.shuffledness for key, proof in proofs.items() if proof}
    little = {key: value for key, value in shuffled.items() if value is not None and value < SHUFFLED}
    if not stored and not little:
        return None
    parts = ["samples came in another order than they are stored"] if stored else []
    if little:
        least = min(little.values())
        parts.append(f"its own shuffle is as little as {least:.0%} of a full one, which others here did")
    return RunWarning("own order", "; ".join(parts), [*stored, *little])


def _through_the_host(groups: Cases) -> RunWarning | None:
    """Of KvikIO: without GPUDirect Storage what is measured is another way."""
    modes = {key: (rounds[0].case.get("options") or {}).get("mode") for key, rounds in groups.items()}
    found = [
        key for key, rounds in groups.items() if rounds[0].case["loader"] == "gds" and modes[key] == "posix"
    ]
    said = "GPUDirect Storage was not active: KvikIO read by POSIX calls, through the host"
    return RunWarning("posix", said, found) if found else None


_CHECKS: tuple[Callable[[Cases], RunWarning | None], ...] = (
    _few_rounds,
    _short_rounds,
    _spread,
    _drift,
    _first_round,
    _below,
    _backed,
    _not_warm,
    _unverified,
    _warm_from_disk,
    _steal,
    _neighbours,
    _sign(others.PROCESSORS),
    _sign(others.MEMORY),
    _beaten_limit,
    _shared_between_hosts,
    _unsteady_limits,
    _unsteady_pace,
    _costly_spans,
    _throttled_device,
    _mixed_software,
    _not_every_sample,
    _own_order,
    _through_the_host,
)


def _rates(rounds: Sequence[Record]) -> list[float]:
    return [record.samples_per_s for record in rounds]


def _cycles(groups: Cases) -> list[float]:
    """For each round that all cases have, how fast they were, each as a part of its own median."""
    parts = []
    for rounds in groups.values():
        in_order = sorted(rounds, key=lambda r: (r.time, r.round))
        middle = statistics.median(_rates(rounds))
        parts.append([rate / middle for rate in _rates(in_order)])
    return [statistics.geometric_mean(cycle) for cycle in zip(*parts, strict=False)]


def _least_chance(rounds: int) -> float:
    """What Kendall's test gives for so many rounds that all rise: it cannot be surer."""
    return stats.trend(range(1, rounds + 1))[1]


def _warm(groups: Cases) -> Cases:
    return {key: rounds for key, rounds in groups.items() if rounds[0].cache.mode == "warm"}


def _least_residency(rounds: Sequence[Record]) -> float | None:
    values = [record.cache.residency for record in rounds]
    known = [value for value in values if value is not None]
    return min(known) if len(known) == len(values) else None


def _read_by_others(record: Record) -> float:
    """Bytes that others read from the same disk, per logical byte."""
    if record.disk.device_read_bytes is None or record.disk.read_bytes is None:
        return 0.0
    return max(0, record.disk.device_read_bytes - record.disk.read_bytes) / record.timing.logical_bytes
