import dataclasses

import pytest

from iobench.results.parts import (
    DiskPart,
    Measured,
    MemoryPart,
    OfFirst,
    PartialEpoch,
    ProcessorPart,
    TimingPart,
    joined,
)


def of_rank(rank, **timing):
    """Return what one of two ranks measured: each figure another one."""
    figures = {
        **{"samples": 10, "logical_bytes": 100, "epochs_s": 3.0, "own_s": 2.0 + rank, "open_s": 0.1 * rank},
        **{"first_batch_s": 0.5 + rank, "wait_s": 1.0 + rank, "wait_p50_s": 0.1, "wait_p99_s": 0.3 * rank},
        "stages": {"read": 1.0 + rank},
        "partial": PartialEpoch(batches=5, epoch_batches=50, epoch_s=10.0 + rank, epoch_samples=100.0),
    }
    return Measured(
        timing=TimingPart(**{**figures, **timing}),
        processor=ProcessorPart(cpu_s=2.0, major_faults=3, cpu_speed_per_s=1.0 + rank, suspended_s=rank),
        disk=DiskPart(read_bytes=7, opening_bytes=1 if rank else None, device_read_bytes=9),
        memory=MemoryPart(peak_bytes=11),
        loss=0.5,
        ranks=[f"part of rank {rank}"],
    )


def test_figures_of_all_ranks_are_joined():
    both = joined([of_rank(0), of_rank(1)])
    timing = both.timing
    assert (timing.samples, timing.logical_bytes, timing.epochs_s) == (20, 200, 3.0)
    assert (timing.own_s, timing.open_s, timing.first_batch_s, timing.wait_p99_s) == (None, 0.1, 1.5, 0.3)
    assert timing.wait_s == pytest.approx(1.5)
    assert timing.stages == {"read": 1.5}
    assert timing.partial == PartialEpoch(batches=5, epoch_batches=50, epoch_s=11.0, epoch_samples=200.0)
    assert (both.processor.cpu_s, both.processor.major_faults, both.processor.suspended_s) == (4.0, 6, 1)
    assert both.processor.cpu_speed_per_s == pytest.approx(1.5)
    assert both.disk == DiskPart(read_bytes=14, opening_bytes=None, device_read_bytes=9)
    assert both.memory == MemoryPart(peak_bytes=22)
    assert both.ranks == ["part of rank 0", "part of rank 1"]


def test_what_a_single_rank_measured_is_unchanged():
    only = of_rank(0)
    assert joined([only]) == only


def test_no_figure_is_dropped_in_silence():
    # each field of what is measured declares how ranks join it, or this is an error
    assert joined([of_rank(0, partial=None), of_rank(1, partial=None)]).timing.partial is None

    @dataclasses.dataclass(kw_only=True)
    class Undeclared:
        declared: OfFirst[int] = 1
        new: int = 2

    with pytest.raises(TypeError, match="new"):
        joined([Undeclared(), Undeclared()])
