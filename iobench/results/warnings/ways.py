"""What was measured: a way that is not the one that was meant, or a figure that cannot be."""

from __future__ import annotations

import statistics

from iobench.results.warnings._warning import MORE_ROUNDS, Cases, Check, RunWarning

SHUFFLED = 0.5  # of what a full shuffle is
SPANS = 0.01  # of an epoch


def _beaten_limit(groups: Cases) -> RunWarning | None:
    beaten = [
        key
        for key, rounds in groups.items()
        if (limits := [r.limit.bytes_per_s for r in rounds if r.limit])
        and statistics.median(r.bytes_per_s for r in rounds) > max(limits)
    ]
    said = f"faster than the limit that was measured for it, even when measured again; {MORE_ROUNDS}"
    return RunWarning("limit", said, beaten) if beaten else None


def _costly_spans(groups: Cases) -> RunWarning | None:
    costs = {
        key: statistics.median((r.timing.spans_s or 0) / r.timing.epochs_s for r in rounds)
        for key, rounds in groups.items()
    }
    costly = [key for key, cost in costs.items() if cost > SPANS]
    said = f"--profile itself took {max(costs.values()):.1%} of the epoch; give a larger --batch-size"
    return RunWarning("profile", said, costly) if costly else None


def _not_every_sample(groups: Cases) -> RunWarning | None:
    """Of loaders that say they drop or repeat: the proof has counted how many."""
    proofs = {key: rounds[0].proof for key, rounds in groups.items()}
    lost = {key: proof for key, proof in proofs.items() if proof and (proof.dropped or proof.repeated)}
    if not lost:
        return None
    samples = max(groups[key][0].dataset.samples for key in lost)
    counts = {name: max(getattr(proof, name) for proof in lost.values()) for name in ("dropped", "repeated")}
    counted = " and ".join(f"{name} {count:,}" for name, count in counts.items() if count)
    said = f"{counted} of {samples:,} samples in an epoch, so that two epochs need not train on the same ones"
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
        parts.append(f"its own shuffle is only {least:.0%} of a full one, which is what other cases here did")
    return RunWarning("own order", "; ".join(parts), [*stored, *little])


def _through_the_host(groups: Cases) -> RunWarning | None:
    """Of KvikIO: without GPUDirect Storage what is measured is another way."""
    modes = {key: (rounds[0].case.get("options") or {}).get("mode") for key, rounds in groups.items()}
    found = [
        key for key, rounds in groups.items() if rounds[0].case["loader"] == "gds" and modes[key] == "posix"
    ]
    said = "GPUDirect Storage was not active: KvikIO read by POSIX calls, through the host"
    return RunWarning("posix", said, found) if found else None


CHECKS: tuple[Check, ...] = (
    _beaten_limit,
    _costly_spans,
    _not_every_sample,
    _own_order,
    _through_the_host,
)
