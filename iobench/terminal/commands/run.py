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
from iobench.bench.round_plan import DEFAULT_ROUNDS, MAX_TIME_S
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

# options that may be combined with --plan and with --resume, which set all the others
OUTPUT = ("data_dir", "as_json", "wide", "min_difference")
WITH_PLAN = ("plan", "save_plan", "name", "out", "ranks", "ray", "ranks_per_host", *OUTPUT)
WITH_RESUME = ("resume", *OUTPUT)


@with_loader_options
def run(
    context: typer.Context,
    format: Annotated[
        list[str] | None,
        typer.Option(
            help="Format or variant of the dataset, or all; repeatable. [default: all]", show_default=False
        ),
    ] = None,
    loader: Annotated[
        list[str] | None,
        typer.Option(
            help="Loader with its options, like dataloader:num_workers=4,fetch=batch, or all; repeatable. "
            "'iobench loaders' lists them. [default: dataloader, native, stream]",
            show_default=False,
        ),
    ] = None,
    recommended_options: Annotated[
        bool,
        typer.Option(
            "--recommended-options",
            help="Add each loader with the options that its documentation recommends.",
        ),
    ] = False,
    device: Annotated[str, typer.Option(help="Target devices: auto, cpu, cuda, cuda:1, …; a list.")] = "auto",
    cache: Annotated[str, typer.Option(help="Page cache: warm, cold, or both as warm,cold.")] = "warm",
    sudo: Annotated[bool, typer.Option("--sudo", help="Drop the page cache with sudo -n.")] = False,
    batch_size: Annotated[str, typer.Option(help="Samples per batch; a list.")] = "256",
    order: Annotated[str, typer.Option(help=f"Order of samples: {', '.join(ORDERS)}; a list.")] = "random",
    block_size: Annotated[str, typer.Option(help="Block order: bytes per block; a list.")] = "1MiB",
    window_size: Annotated[
        str, typer.Option(help="Block order: bytes of the shuffle window; a list.")
    ] = "64MiB",
    model: Annotated[
        str, typer.Option(help=f"Training step on each batch: {', '.join(MODELS)}; a list.")
    ] = "none",
    step_ms: Annotated[
        str,
        typer.Option(help="Milliseconds of a simulated training step on each batch; a list."),
    ] = "0",
    rounds: Annotated[str, typer.Option(help="Timed rounds per case, or auto.")] = str(DEFAULT_ROUNDS),
    max_time: Annotated[
        float | None,
        typer.Option(
            help="Start no further round after this many seconds; verification and the first round of each "
            f"case always run. [default: {MAX_TIME_S:g} with --rounds auto]",
            show_default=False,
        ),
    ] = None,
    warmup: Annotated[int, typer.Option(help="Untimed epochs per case; the first verifies the content.")] = 1,
    isolate: Annotated[
        bool | None,
        typer.Option(
            "--isolate/--no-isolate",
            help="Run each case in its own process. [default: if a loader of the run needs it]",
            show_default=False,
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Kill the process of a case after this many seconds without a batch.")
    ] = TIMEOUT_S,
    limits: Annotated[
        bool, typer.Option("--limits/--no-limits", help="Measure the hardware limits of each case.")
    ] = True,
    headroom: Annotated[
        bool,
        typer.Option("--headroom", help="Also time the loop over batches that are already on the device."),
    ] = False,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Synchronise the device after each training step."),
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Split epochs into stages and sample the machine.")
    ] = False,
    trace: Annotated[
        bool, typer.Option("--trace", help="Write a Chrome trace of the first batches of each case.")
    ] = False,
    ranks: Annotated[
        str | None,
        typer.Option(
            help="Numbers of ranks on this host, started by torchrun, like 1,2,4.", show_default=False
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(help="Address of a Ray cluster: run on all of its hosts.", show_default=False),
    ] = None,
    ranks_per_host: Annotated[
        str | None,
        typer.Option(help="With --ray: ranks per host; a list. [default: 1]", show_default=False),
    ] = None,
    min_difference: MinDifference = "5%",
    seed: Annotated[int, typer.Option(help="Seed of the sample order, the case order and the model.")] = 0,
    data_dir: DataDir = Path("data"),
    name: Name = None,
    plan: Annotated[
        Path | None,
        typer.Option(help="Read the run's settings from this TOML file.", show_default=False),
    ] = None,
    save_plan: Annotated[
        Path | None, typer.Option(help="Write the run's settings to this TOML file.", show_default=False)
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(help="Resume an interrupted run, given by name or file.", show_default=False),
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
    """Measure how fast each loader reads each format."""
    from iobench.bench import plan_file
    from iobench.bench.options import RunOptions
    from iobench.bench.resume import interrupted_run
    from iobench.bench.run import run as measure
    from iobench.dataset.manifest import find_dataset
    from iobench.results import history
    from iobench.terminal import display, live, scaling, tables

    smallest = parse_percent("--min-difference", min_difference)
    over = _over(context, ranks, ray, ranks_per_host)
    rounds_before: list[Record] = []
    if resume is not None:
        _check_alone(context, f"the run {resume}", "start a new run", WITH_RESUME)
        out = history.find(data_dir, resume)
        planned, rounds_before = interrupted_run(out)
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
            recommended_options=recommended_options,
            strict=strict,
            profile=profile,
            trace=trace,
        )
        manifest = find_dataset(data_dir, name)
    else:
        _check_alone(context, f"the plan {plan}", "edit the plan, or omit --plan", WITH_PLAN)
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
        outcome = measure(
            manifest, options, out=out, observer=observer, earlier_records=rounds_before, backend=context.obj
        )
    try:
        with interrupts.deferred() as check:  # show the results before handling Ctrl-C
            _show(outcome, smallest, as_json, wide)
            check()
    except KeyboardInterrupt:
        outcome.interrupted = True
    if outcome.interrupted:
        display.note(f"iobench: interrupted; {_saved(context, outcome, data_dir)}")
        sys.exit(INTERRUPTED)
    raise typer.Exit(1 if outcome.failures or outcome.stopped else 0)


def _over(
    context: typer.Context, ranks: str | None, ray: str | None, ranks_per_host: str | None
) -> scaling.Over | None:
    """Return the numbers of ranks to run over, here or on a cluster; None for this process alone."""
    from iobench.terminal import scaling

    if ranks is None and ray is None and ranks_per_host is None:
        return None
    over = scaling.Over.parse(ranks, ray, ranks_per_host)
    if context.obj is not None:
        raise InvalidSettings(
            "--ranks or --ray under torchrun",
            kind="conflicting-options",
            hint="start iobench without torchrun",
        )
    if context.params["resume"] is not None:
        raise InvalidSettings(
            "--resume with --ranks or --ray",
            kind="conflicting-options",
            hint="runs over several numbers of ranks cannot be resumed; start a new one",
        )
    return over


def _saved(context: typer.Context, outcome: Run, data_dir: Path) -> str:
    """Say what was saved of an interrupted run, and the command that resumes it."""
    if not outcome.records:
        return "nothing was measured yet"
    where = [] if data_dir == Path("data") else ["--data-dir", str(data_dir)]
    named = outcome.path.parent.resolve() == (data_dir / "results").resolve()
    name = outcome.path.stem if named else str(outcome.path)
    starts = "iobench" if context.obj is None else "torchrun … -m iobench"
    command = shlex.join(["run", *where, "--resume", name])
    return f"the rounds measured so far are saved; resume with: {starts} {command}"


def _check_alone(context: typer.Context, what: str, advice: str, beside: Collection[str]) -> None:
    """Raise InvalidSettings for an option typed together with one that sets all of them."""
    typed = [
        name
        for name in context.params
        if name not in beside
        and (source := context.get_parameter_source(name)) is not None
        and source.name == "COMMANDLINE"
    ]
    if typed:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in typed)
        raise InvalidSettings(f"{flags}: already set by {what}", kind="conflicting-options", hint=advice)


def _check_content(plan: Path, content: str | None, manifest: Manifest) -> None:
    if content is not None and content != f"{manifest.content or 0:016x}":
        raise InvalidSettings(
            f"--plan over dataset {manifest.name}",
            kind="other-content",
            path=plan,
            expected=f"data {content}",
            found=f"data {manifest.content or 0:016x}",
            hint="prepare the same data again, or remove 'content' from the plan",
        )


def _show(outcome: Run, smallest: float, as_json: bool, wide: bool) -> None:
    from iobench.results.summary import summarise
    from iobench.results.verdict import as_json as summary_as_json
    from iobench.terminal import display

    if as_json:
        display.as_json({**outcome.as_dict(), **summary_as_json(summarise(outcome.valid_records, smallest))})
    else:
        display.run(outcome, smallest, wide)
    labels = outcome.labels
    by_reason: dict[tuple[str, str], list[str]] = {}
    for key, error in outcome.failures.items():
        by_reason.setdefault((error.kind, str(error)), []).append(str(labels[key]))
    for (kind, reason), cases in by_reason.items():
        display.note(f"iobench: error[{kind}]: {'; '.join(cases)}: {reason}")
    if outcome.stopped:
        display.note(f"iobench: error[{outcome.stopped.kind}]: {outcome.stopped}")
