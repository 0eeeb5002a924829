"""A DataLoader on Ray: its effect on a training, and when it is faster."""

from __future__ import annotations

import torch

from iobench.base.errors import DeviceUnavailable, MissingDependency
from iobench.contrib.ray import ray_runtime
from iobench.host.device import pick_device
from iobench.studies import _parity
from iobench.studies import _shipping as shipping
from iobench.studies._base import INCONCLUSIVE, ClaimResult, Study, StudyOptions
from iobench.studies._claims import claimed_faster
from iobench.studies._parity import RANKS, SINGLE, RankResults
from iobench.studies._references import DISTRIBUTED_LOADER
from iobench.studies._rounds import Measurements, merged

EPOCHS, QUICK_EPOCHS = 10, 2


class DistributedLoadingStudy(Study):
    """Accuracy and speed of torch's workers and of Ray's actors."""

    reference = DISTRIBUTED_LOADER
    question = "Does a DataLoader on Ray leave a training unchanged, and when is it faster?"

    def setup(self, options: StudyOptions) -> str:
        """Return sizes and settings, in words."""
        costs = ", ".join(shipping.cost_text(cost) for cost in shipping.costs(options))
        epochs = QUICK_EPOCHS if options.quick else EPOCHS
        return (
            f"{shipping.batches(options)} batches of 1 MiB with transforms of {costs}, "
            f"cores of other hosts simulated by sleeping; trainings of {epochs} epochs over 1,800 "
            "generated samples, in one process and by DDP over 2 ranks on the CPU"
        )

    def measure(self, options: StudyOptions) -> Measurements:
        """Measure speed in this process, then run the trainings in processes of their own."""
        if not ray_runtime.installed():
            raise MissingDependency("this study needs Ray", hint="pip install 'iobench[ray]'")
        with ray_runtime.connected(shipping.ELSEWHERE):
            import ray

            options.on_status("starting loaders")
            speed = shipping.speed(options)
            epochs = QUICK_EPOCHS if options.quick else EPOCHS
            address = ray.get_runtime_context().gcs_address
            options.on_status("trainings in one process and over 2 ranks")
            ranks = {
                SINGLE: _parity.trainings(1, address, epochs),
                RANKS: _parity.trainings(2, address, epochs),
            }
        data = f"batches of 1 MiB and trainings on {torch.get_num_threads()} cores"
        return merged([speed, _parity.accuracies(ranks)], data, ranks=ranks, **speed.figures)

    def evaluate(self, measured: Measurements) -> list[ClaimResult]:
        """Return a verdict on each claim."""
        ranks: dict[str, list[RankResults]] = measured.figures["ranks"]
        most = shipping.cost_text(max(measured.figures["costs_s"]))
        light, heavy = (f"{shipping.LIGHT}, ", f"{most}, ")
        return [
            _parity.unaffected(
                "A training in one process is as accurate with it (there 90.65 against 91.09 %).",
                ranks[SINGLE],
            ),
            _data_parallel(),
            _parity.unaffected(
                "A training by DDP is as accurate with it (there 88.98 against 89.84 %).", ranks[RANKS]
            ),
            _parity.over_ranks("DDP over 2 ranks is the same training as one process.", ranks),
            claimed_faster(
                "Where the transform is heavy, processors of other hosts load faster than this host's.",
                measured,
                heavy + shipping.RAY_ELSEWHERE,
                heavy + shipping.TORCH,
                f"; {shipping.crossing(measured)}",
            ),
            claimed_faster(
                "Where it is light, actors load faster than torch's workers.",
                measured,
                light + shipping.RAY,
                light + shipping.TORCH,
                f"; {shipping.starts(measured)}",
            ),
        ]


def _data_parallel() -> ClaimResult:
    claim = "A training by DataParallel is as accurate with it (there 90.67 against 90.32 %)."
    try:
        pick_device("cuda:1")
        reason = "not run: this study trains on the CPU"
    except DeviceUnavailable:
        reason = "not run: needs 2 CUDA devices"
    return ClaimResult(claim, INCONCLUSIVE, f"{reason}; on the CPU DataParallel changes nothing")


STUDY = DistributedLoadingStudy()
