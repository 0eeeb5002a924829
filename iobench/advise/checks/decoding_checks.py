"""Checks of decoding: again in each epoch, of whole images that are made small, by a slow library."""

from __future__ import annotations

from collections.abc import Callable

from iobench.advise.checks.cost_checks import fits_in_memory, is_cached, share_of
from iobench.advise.checks.evidence import Advice, Evidence, measured
from iobench.base.units import bytes_text, counted
from iobench.results.run_warning import Values

ONCE = "decode once: 'iobench prepare --source FOLDER'"
CROPS = "let StreamLoader decode, random crops included: format='images:shape=3x224x224,crop=random'"


def _decoding(evidence: Evidence) -> Advice | None:
    """Repeated decoding of the same samples in each epoch."""
    share = share_of(evidence, "decoding")
    if share is None:
        return None
    cached, size = evidence.gain(is_cached), bytes_text(evidence.loop.dataset_bytes)
    if cached is None and (_draft(evidence) or _other_decoder(evidence)):
        return None
    message = f"{share:.0%} of the time is spent decoding, again in each epoch"
    values: Values = {"share": share, "dataset_bytes": evidence.loop.dataset_bytes}
    if cached is not None:
        hint = f"cache the decoded samples in memory: all of them take {size}"
        return Advice("decoding", message, hint, {**values, "cached": 1}, *measured(cached))
    fitting = f"; decoded they take {size}, which fits in memory" if fits_in_memory(evidence.loop) else ""
    return Advice("decoding", message, CROPS if evidence.varying else f"{ONCE}{fitting}", values)


def _draft(evidence: Evidence) -> Advice | None:
    """JPEG images that are decoded whole, and then made much smaller."""
    tried = evidence.gain(lambda one: one.kind == "draft")
    if tried is None:
        return None
    width, height = (tried.candidate.changes[side] for side in ("width", "height"))
    return Advice(
        "jpeg-draft",
        f"JPEG images are decoded whole, and then resized to {width} × {height}",
        f"call image.draft(None, ({width}, {height})) after Image.open(): it decodes at a smaller scale",
        {"width": width, "height": height},
        *measured(tried),
    )


def _other_decoder(evidence: Evidence) -> Advice | None:
    """JPEG images that another library decodes faster than Pillow."""
    tried = next((one for one in evidence.candidates if one.kind == "decoder" and not one.failure), None)
    share = share_of(evidence, "decoding")
    if tried is None or share is None:
        return None
    gain, found = evidence.gain(lambda one: one is tried), tried.changes
    limit = 1 / (1 - share + share / found["times"])
    tensors = (
        f"make tensors of {found['code']} in place of Pillow's images: at most {limit:.1f} × (estimated)"
    )
    change = f"decode by Image.fromarray({found['code']})" if gain else tensors
    return Advice(
        "jpeg-decoder",
        f"{share:.0%} of the time is spent decoding; {found['decoder']} decodes these JPEG files to arrays "
        f"{found['times']:.1f} × as fast as Pillow (measured on {counted(found['files'], 'file')}; pixels "
        f"differ by at most {found['most']} of 255)",
        f"{change}; or {CROPS if evidence.varying else ONCE}",
        {"share": share, "limit": limit, **found},
        *measured(gain),
    )


CHECKS: tuple[Callable[[Evidence], Advice | None], ...] = (_decoding, _draft, _other_decoder)
