"""`iobench run`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from iobench.base.errors import (
    INTERRUPTED,
    InvalidSettings,
)
from iobench.bench.options import MODELS, TIMEOUT_S
from iobench.bench.plan import DEFAULT_ROUNDS, MAX_TIME_S
from iobench.host import interrupts
from iobench.loading.loaders import DEFAULT_LOADERS
from iobench.loading.order import ORDERS
from iobench.terminal.commands._loader_options import with_loader_options
from iobench.terminal.commands._options import (
    AsJson,
    DataDir,
    MinDifference,
    Name,
    listed_bytes,
    listed_floats,
    listed_numbers,
    parse_percent,
    words_of,
)

if TYPE_CHECKING:
    from iobench.bench.outcome import Run
    from iobench.dataset.manifest import Manifest
    from iobench.results.record import Record
    from iobench.terminal import scaling

SHOWING = ("data_dir", "as_json", "wide", "min_difference")
BESIDE_A_PLAN = ("plan", "save_plan", "name", "out", "ranks", "ray", "ranks_per_host", *SHOWING)
BESIDE_A_RUN = ("resume", *SHOWING)


@with_loader_options
def run(
    context: typer.Context,
    format: Annotated[
        list[str] | None,
        typer.Option(
            help="A prepared format or variant, or all; repeatable. [default: all]", show_default=False
        ),
    ] = None,
    loader: Annotated[
        list[str] | None,
        typer.Option(
            help="A loader, with options as in dataloader:num_workers=4,fetch=batch, or all; repeatable. "
            "'iobench loaders' lists them. [default: dataloader, native, stream]",
            show_default=False,
        ),
    ] = None,
    tuned: Annotated[
        bool,
        typer.Option("--tuned", help="Each loader with the options that its documentation advises, too."),
    ] = False,
    device: Annotated[
        str, typer.Option(help="Where batches go: auto, cpu, cuda, cuda:1, …; a list.")
    ] = "auto",
    cache: Annotated[str, typer.Option(help="State of the page cache: warm, cold, or a list.")] = "warm",
    sudo: Annotated[bool, typer.Option("--sudo", help="Drop the page cache through sudo -n.")] = False,
    batch_size: Annotated[str, typer.Option(help="Samples in a batch, or a list.")] = "256",
    order: Annotated[str, typer.Option(help=f"Order of samples: {', '.join(ORDERS)}, or a list.")] = "random",
    block_size: Annotated[str, typer.Option(help="Bytes in a block of block order, or a list.")] = "1MiB",
    window_size: Annotated[
        str, typer.Option(help="Bytes that block order shuffles at a time, or a list.")
    ] = "64MiB",
    model: Annotated[
        str, typer.Option(help=f"Train on each batch: {', '.join(MODELS)}, or a list.")
    ] = "none",
    step_ms: Annotated[
        str,
        typer.Option(help="Milliseconds that each batch keeps the device busy, as a training step would."),
    ] = "0",
    rounds: Annotated[str, typer.Option(help="Timed rounds of each case, or auto.")] = str(DEFAULT_ROUNDS),
    max_time: Annotated[
        float | None,
        typer.Option(
            help="Seconds after which no round begins but the first, before which each case is proved. "
            f"[default: {MAX_TIME_S:g} with --rounds auto]",
            show_default=False,
        ),
    ] = None,
    warmup: Annotated[
        int, typer.Option(help="Untimed epochs of each case; the first proves its content.")
    ] = 1,
    isolate: Annotated[
        bool | None,
        typer.Option(
            "--isolate/--no-isolate",
            help="Measure each case in a process of its own. [default: if a loader of the run asks for it]",
            show_default=False,
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds without a batch after which a case's own process is ended.")
    ] = TIMEOUT_S,
    limits: Annotated[
        bool, typer.Option("--limits/--no-limits", help="Measure what the hardware can do beside each case.")
    ] = True,
    headroom: Annotated[
        bool,
        typer.Option("--headroom", help="Measure the loop over batches that are on the device already, too."),
    ] = False,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Wait for the device after each training step, as no training does."),
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Split epochs into stages, and watch the machine.")
    ] = False,
    trace: Annotated[
        bool, typer.Option("--trace", help="Write a Chrome trace of each case's first batches.")
    ] = False,
    ranks: Annotated[
        str | None,
        typer.Option(
            help="Measure over so many ranks of this host, started by torchrun: 1,2,4.", show_default=False
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(help="Measure over the hosts of the Ray cluster at this address.", show_default=False),
    ] = None,
    ranks_per_host: Annotated[
        str | None,
        typer.Option(help="With --ray: ranks of each host, or a list. [default: 1]", show_default=False),
    ] = None,
    min_difference: MinDifference = "5%",
    seed: Annotated[
        int, typer.Option(help="Seed of the random order, of the order of cases and of the model.")
    ] = 0,
    data_dir: DataDir = Path("data"),
    name: Name = None,
    plan: Annotated[
        Path | None, typer.Option(help="Read the whole run from this TOML file.", show_default=False)
    ] = None,
    save_plan: Annotated[
        Path | None, typer.Option(help="Write the whole run to this TOML file.", show_default=False)
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(help="Go on with this run, which was cut short: a name or a file.", show_default=False),
    ] = None,
    wide: Annotated[bool, typer.Option("--wide", help="Show every metric.")] = False,
    as_json: AsJson = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Append records here. [default: a new file in DATA_DIR/results]", show_default=False
        ),
    ] = None,
    *,
    loader_options: Mapping[str, tuple[Any, ...]],
) -> None:
    """Measure how fast each format is under each loader."""
    from iobench.bench import plan_file
    from iobench.bench.options import RunOptions
    from iobench.bench.resume import earlier
    from iobench.bench.run import run as measure
    from iobench.dataset.manifest import find_dataset
    from iobench.results import history
    from iobench.terminal import display, live, scaling, tables

    smallest = parse_percent("--min-difference", min_difference)
    over = _over(context, ranks, ray, ranks_per_host)
    rounds_before: list[Record] = []
    if resume is not None:
        _check_alone(context, f"the run {resume}", "measure anew", BESIDE_A_RUN)
        out = history.find(data_dir, resume)
        planned, rounds_before = earlier(out)
        options, manifest = planned.run, find_dataset(data_dir, planned.dataset)
    elif plan is None:
        options = RunOptions(
            format=tuple(format or ["all"]),
            loader=tuple(loader or DEFAULT_LOADERS),
            device=words_of(device),
            cache=words_of(cache),
            order=words_of(order),
            batch_size=listed_numbers("--batch-size", batch_size),
            block_bytes=listed_bytes("--block-size", block_size),
            window_bytes=listed_bytes("--window-size", window_size),
            model=words_of(model),
            step_ms=listed_floats("--step-ms", step_ms),
            seed=seed,
            loader_options=loader_options,
            rounds=rounds,
            max_time=max_time,
            warmup=warmup,
            timeout=timeout,
            isolate=isolate,
            sudo=sudo,
            limits=limits,
            headroom=headroom,
            tuned=tuned,
            strict=strict,
            profile=profile,
            trace=trace,
        )
        manifest = find_dataset(data_dir, name)
    else:
        _check_alone(context, f"the plan {plan}", "change it there, or leave --plan out", BESIDE_A_PLAN)
        planned = plan_file.load(plan)
        options, manifest = planned.run, find_dataset(data_dir, name or planned.dataset)
        _check_content(plan, planned.content, manifest)
    if over is not None:
        passed = sys.argv[1:] + ([] if name or plan else ["--name", manifest.name])
        raise typer.Exit(scaling.run_over(over, manifest, options, passed, out, (smallest, as_json, wide)))
    if save_plan is not None:
        plan_file.save(save_plan, options, manifest.name, f"{manifest.content or 0:016x}")
    display.note(
        tables.dataset_line(manifest) + ("" if name or plan or resume else f" (the newest in {data_dir})")
    )
    with live.view(options.plan) as observer:
        found = measure(
            manifest, options, out=out, observer=observer, went_before=rounds_before, crew=context.obj
        )
    try:
        with interrupts.deferred() as check:  # what was measured is shown before anything else
            _show(found, smallest, as_json, wide)
            check()
    except KeyboardInterrupt:
        found.interrupted = True
    if found.interrupted:
        display.note(f"iobench: interrupted; {_kept(context, found, data_dir)}")
        sys.exit(INTERRUPTED)
    raise typer.Exit(1 if found.failures or found.stopped else 0)


def _over(
    context: typer.Context, ranks: str | None, ray: str | None, ranks_per_host: str | None
) -> scaling.Over | None:
    """Over which numbers of ranks, here or on the hosts of a cluster; None where it is this process alone."""
    from iobench.terminal import scaling

    if ranks is None and ray is None and ranks_per_host is None:
        return None
    over = scaling.Over.parse(ranks, ray, ranks_per_host)
    if context.obj is not None:
        raise InvalidSettings("--ranks and --ray start ranks by themselves: leave out torchrun")
    if context.params["resume"] is not None:
        raise InvalidSettings("--resume: a run over several numbers of ranks cannot be gone on with")
    return over


def _kept(context: typer.Context, found: Run, data_dir: Path) -> str:
    """What is left of an interrupted run, and what to type to go on with it."""
    if not found.records:
        return "nothing had been measured yet"
    where = [] if data_dir == Path("data") else ["--data-dir", str(data_dir)]
    named = found.path.parent.resolve() == (data_dir / "results").resolve()
    name = found.path.stem if named else str(found.path)
    starts = "iobench" if context.obj is None else "torchrun … -m iobench"
    command = shlex.join(["run", *where, "--resume", name])
    return f"what had been measured is kept; go on with: {starts} {command}"


def _check_alone(context: typer.Context, what: str, advice: str, beside: Collection[str]) -> None:
    """InvalidSettings where an option was typed beside what says all of them."""
    typed = [
        name
        for name in context.params
        if name not in beside
        and (source := context.get_parameter_source(name)) is not None
        and source.name == "COMMANDLINE"
    ]
    if typed:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in typed)
        raise InvalidSettings(f"{flags}: {what} says that; {advice}")


def _check_content(plan: Path, content: str | None, manifest: Manifest) -> None:
    if content is not None and content != f"{manifest.content or 0:016x}":
        raise InvalidSettings(
            f"--plan {plan} was written for data {content}, dataset {manifest.name} holds "
            f"{manifest.content or 0:016x}; prepare it as it was, or remove 'content' from the plan"
        )


def _show(found: Run, smallest: float, as_json: bool, wide: bool) -> None:
    from iobench.results.summary import summarise
    from iobench.terminal import display

    if as_json:
        display.as_json({**found.as_dict(), **summarise(found.sound, smallest).as_dict()})
    else:
        display.run(found, smallest, wide)
    labels = found.labels
    by_reason: dict[str, list[str]] = {}
    for key, reason in found.failures.items():
        by_reason.setdefault(reason, []).append(str(labels[key]))
    for reason, cases in by_reason.items():
        display.note(f"iobench: {'; '.join(cases)}: {reason}")
    if found.stopped:
        display.note(f"iobench: {found.stopped}")
