"""`iobench run`."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from iobench.base import INTERRUPTED, grouped, interrupts
from iobench.base.errors import InvalidSettings, ManifestError, conflict
from iobench.base.units import parse_percent
from iobench.bench import plans
from iobench.bench.budget import Budget
from iobench.bench.case import content_of
from iobench.bench.options import RunOptions, flag_of
from iobench.bench.outcome import Run
from iobench.dataset.manifest import Manifest
from iobench.dataset.remote_dataset import dataset_named
from iobench.loading.loaders import is_target
from iobench.objects.url import use_endpoint
from iobench.results import history
from iobench.results.record import Record
from iobench.terminal import datasets, display, runs, scaling
from iobench.terminal.commands import _options as shared
from iobench.terminal.commands._declared_options import parse, with_run_options

NEW_RUN = ("name", "plan", "save_plan", "out")  # options that a resumed run cannot have


@with_run_options
def run(
    context: typer.Context,
    *,
    typed: Mapping[str, Any],
    ranks: Annotated[
        str | None, typer.Option(help="Numbers of ranks on this host, started by torchrun, like 1,2,4.")
    ] = None,
    ray: Annotated[
        str | None, typer.Option(help="Address of a Ray cluster: run on all of its hosts.")
    ] = None,
    ranks_per_host: Annotated[
        str | None, typer.Option(help="With --ray: ranks per host, like 1,2. [default: 1]")
    ] = None,
    min_difference: shared.MinDifference = "5%",
    data_dir: shared.DataDir = Path("data"),
    name: shared.NameOrAddress = None,
    s3_endpoint: shared.S3Endpoint = None,
    plan: Annotated[Path | None, typer.Option(help="Read the run's settings from this TOML file.")] = None,
    save_plan: Annotated[
        Path | None, typer.Option(help="Write the run's settings to this TOML file.")
    ] = None,
    resume: Annotated[
        str | None, typer.Option(help="Resume an interrupted run, given by name or file.")
    ] = None,
    long: shared.Long = False,
    wide: shared.Wide = False,
    as_json: shared.AsJson = False,
    out: shared.Out = None,
) -> None:
    """Measure how fast each loader reads each format.

    Example: iobench run --format memmap --device cuda
    """
    from iobench.bench.run import new_path
    from iobench.bench.run import run as measure
    from iobench.terminal import live

    began = time.monotonic()
    use_endpoint(s3_endpoint)
    smallest = shared.parsed("--min-difference", parse_percent, min_difference)
    shown = runs.TableOptions(smallest, as_json, wide, long)
    over = _over(context, ranks, ray, ranks_per_host)
    rounds_before: list[Record] = []
    if resume is None:
        options, manifest = _asked(context, typed, plan, data_dir, name)
    else:
        _check_alone(context, f"the run {resume}", "start a new run", {*typed, *NEW_RUN})
        out = history.find(data_dir, resume)
        planned, rounds_before = plans.interrupted_run(out)
        options, manifest = planned.run, dataset_named(data_dir, planned.dataset)
    if over is not None:
        passed = sys.argv[1:] + ([] if name or plan else ["--name", manifest.name])
        file = out or new_path(manifest)
        code = scaling.run_over(over, manifest, options, passed, file, shown, began)
        if code == INTERRUPTED:
            ranks_of = f"--standalone --nproc-per-node {over.numbers[0]}"
            starts = (
                f"torchrun {ranks_of} -m iobench" if over.address is None and len(over.numbers) == 1 else None
            )
            display.note(f"iobench: interrupted; {_saved(file, data_dir, starts, file.exists())}")
            sys.exit(INTERRUPTED)
        raise typer.Exit(code)
    if save_plan is not None:
        plans.save(save_plan, options, manifest.name, content_of(manifest))
    display.note(datasets.dataset_line(manifest, None if name or plan or resume else data_dir))
    with live.view(options.stopping_rule().planned, options.seconds) as observer:
        outcome = measure(
            manifest,
            options,
            out=out,
            observer=observer,
            earlier_records=rounds_before,
            backend=context.obj,
            budget=Budget(options.seconds, began),
        )
    try:
        with interrupts.deferred() as check:  # Ctrl-C interrupts the run, but not this
            _print(outcome, shown)
            check()
    except KeyboardInterrupt:
        outcome.interrupted = True
    if outcome.interrupted:
        starts = "iobench" if context.obj is None else "torchrun … -m iobench"
        saved = _saved(outcome.path, data_dir, starts, bool(outcome.records))
        display.note(f"iobench: interrupted; {saved}")
        sys.exit(INTERRUPTED)
    raise typer.Exit(1 if outcome.failures or outcome.stopped or not outcome.valid_records else 0)


def _asked(
    context: typer.Context, typed: Mapping[str, Any], plan: Path | None, data_dir: Path, name: str | None
) -> tuple[RunOptions, Manifest]:
    """Return the options and the dataset of a new run: as typed, or those of a plan."""
    if plan is None:
        options = parse(typed)
        try:
            return options, dataset_named(data_dir, name)
        except ManifestError as error:
            own = next(filter(is_target, options.loader), None)
            if own is None or error.kind != "no-dataset":
                raise
            hint = f"'iobench diagnose {own}' needs none; for others, 'iobench prepare --size 1e7' first"
            raise error.changed(hint=hint) from None
    _check_alone(context, f"the plan {plan}", "edit the plan, or omit --plan", {*typed} - {"max_time"})
    planned = plans.load(plan)
    manifest = dataset_named(data_dir, name or planned.dataset)
    if planned.content not in (None, content_of(manifest)):
        raise InvalidSettings(
            f"--plan over dataset {manifest.name}",
            kind="other-content",
            path=plan,
            expected=f"data {planned.content}",
            found=f"data {content_of(manifest)}",
            hint="prepare the same data again, or remove 'content' from the plan",
        )
    if typed["max_time"] is None:
        return planned.run, manifest
    return replace(planned.run, max_time=typed["max_time"]), manifest


def _over(
    context: typer.Context, ranks: str | None, ray: str | None, ranks_per_host: str | None
) -> scaling.Over | None:
    """Return the numbers of ranks to run over, here or on a cluster; None for this process alone."""
    if ranks is None and ray is None and ranks_per_host is None:
        return None
    over = scaling.Over.parse(ranks, ray, ranks_per_host)
    if context.obj is not None:
        raise conflict("--ranks or --ray under torchrun", "start iobench without torchrun")
    if context.params["resume"] is not None:
        raise conflict(
            "--resume with --ranks or --ray",
            "runs over several numbers of ranks cannot be resumed; start a new one",
        )
    return over


def _saved(path: Path, data_dir: Path, starts: str | None, measured: bool) -> str:
    """Say what was saved of an interrupted run, and the command that resumes it, if it can be."""
    if not measured:
        return "nothing was measured yet"
    if starts is None:
        return f"the rounds measured so far are saved in {path}; several numbers of ranks cannot be resumed"
    named = path.parent.resolve() == (data_dir / "results").resolve()
    name = path.stem if named else str(path)
    command = shared.run_command(data_dir, "--resume", name)
    return f"the rounds measured so far are saved; resume with: {starts} {command}"


def _check_alone(context: typer.Context, what: str, advice: str, settings: Collection[str]) -> None:
    """Raise InvalidSettings for a setting typed together with an option that sets all of them."""
    typed = [name for name in context.params if name in settings and shared.was_typed(context, name)]
    if typed:
        flags = ", ".join(map(flag_of, typed))
        raise conflict(f"{flags}: already set by {what}", advice)


def _print(outcome: Run, shown: runs.TableOptions) -> None:
    runs.run(outcome, shown)
    labels = outcome.labels
    failed = grouped(((one.kind, str(one)), str(labels[key])) for key, one in outcome.failures.items())
    for (kind, reason), cases in failed.items():
        display.error(kind, f"{'; '.join(cases)}: {reason}")
    if outcome.stopped:
        display.error(outcome.stopped.kind, str(outcome.stopped))
