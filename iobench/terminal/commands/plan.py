"""`iobench plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iobench.base.units import parse_elements, parse_rate
from iobench.terminal.commands._options import AsJson, DataDir, parsed, records_of


def plan(
    ranks: Annotated[int, typer.Option(min=1, help="Number of devices that train together.")],
    nodes: Annotated[int, typer.Option(min=1, help="Number of machines that hold them.")],
    run: Annotated[
        str | None, typer.Argument(help="Run: a name or a file of records. [default: the newest]")
    ] = None,
    network: Annotated[
        str | None, typer.Option(help="Network bandwidth of each node, like 100Gbit/s.")
    ] = None,
    storage: Annotated[
        str | None, typer.Option(help="Bandwidth of the storage for all nodes together.")
    ] = None,
    shard_size: Annotated[str | None, typer.Option(help="Size of the data files, like 256MiB.")] = None,
    full_size: Annotated[
        str | None, typer.Option(help="How large the real data are, like 2TiB. [default: as measured]")
    ] = None,
    step_ms: Annotated[float, typer.Option(help="Milliseconds of a training step.")] = 0.0,
    data_dir: DataDir = Path("data"),
    as_json: AsJson = False,
) -> None:
    """Estimate the bandwidth of many ranks from a run."""
    from iobench.results import history
    from iobench.results.capacity import plan_capacity
    from iobench.results.cluster import Cluster
    from iobench.terminal import display, planned

    cluster = Cluster(
        ranks=ranks,
        nodes=nodes,
        network_bytes_per_s=parsed("--network", parse_rate, network) if network else None,
        storage_bytes_per_s=parsed("--storage", parse_rate, storage) if storage else None,
        shard_bytes=parsed("--shard-size", parse_elements, shard_size) if shard_size else None,
        data_bytes=parsed("--full-size", parse_elements, full_size) if full_size else None,
        step_s=step_ms / 1000,
    )
    path = history.find(data_dir, run) if run else history.newest(data_dir)
    result = plan_capacity(records_of([path]), cluster)
    if as_json:
        display.as_json(result)
    else:
        display.result(*planned.parts(result))
    for warning in result.warnings:
        display.warning(warning)
