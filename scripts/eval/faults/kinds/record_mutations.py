"""Mutated records and study results: each is skipped by name, and the rest is shown."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import iobench
from eval.faults.children import limit_memory, run_or_raise, tried
from eval.faults.cli_runs import expect, run_cli
from eval.faults.mutations import mutations, text_of
from eval.faults.registry import Outcome, Trials, kind
from eval.faults.scenarios import NAME, PrepareCall
from iobench import RunOptions

LIMIT_BYTES = 2 << 30
CLAIM = {
    "claim": "it is",
    "verdict": "reproduced",
    "evidence": "the figures",
    "data": "1 MiB",
    "values": [{"faster": "a", "slower": "b", "ratio": 2.0}],
}
STUDY: dict[str, Any] = {
    "kind": "study",
    "name": "settings",
    "source": "a paper",
    "setup": "sizes",
    "measurements": {
        "seconds": {"a": [0.1, 0.2, 0.1, 0.3, 0.2], "b": [0.2, 0.2, 0.4]},
        "metrics": {"open_s": {"a": [0.1, 0.2], "b": [0.2]}},
        "figures": {"rate": 1.5},
        "data": "1 MiB",
    },
    "claims": [CLAIM, CLAIM],
    "machine": {"cpu": "x", "disk": {"device": "y"}, "versions": {"torch": "2"}},
    "time": "2026-01-01T00:00:00+00:00",
    "quick": False,
}


@kind("record-mutations")
def records(trials: Trials) -> Iterator[Outcome]:
    """Replace one to three values, keys or items in a line of a file of records."""
    results, new = recorded_run(trials.folder)
    for number, body, changes in mutations(new[:1], trials.numbers(full=500, quick=8), trials.rng):
        lines = [text_of(body), *map(json.dumps, new[1:3])]
        (results / "bad.jsonl").write_text("\n".join(lines) + "\n", errors="surrogatepass")
        with_report = number % 5 == 0  # reports take longest
        yield tried(f"records {number}: {changes}", _read_mutated, trials.folder, with_report)


@kind("study-mutations")
def studies(trials: Trials) -> Iterator[Outcome]:
    """Replace values, keys or items in the result of a study, next to a valid one."""
    results, _ = recorded_run(trials.folder)
    (results / "valid-1.study.json").write_text(
        json.dumps({**STUDY, "name": "volume", "setup": "valid-study"})
    )
    for number, body, changes in mutations([STUDY], trials.numbers(full=200, quick=8), trials.rng):
        (results / "bad-1.study.json").write_text(text_of(body), errors="surrogatepass")
        yield tried(f"study {number}: {changes}", _report, trials.folder)


def recorded_run(data_dir: Path) -> tuple[Path, list[dict[str, Any]]]:
    """Return the results folder with a valid run, and the records of that run."""
    run_or_raise(functools.partial(PrepareCall(0, ("npy", "lmdb")), data_dir))
    results = data_dir / "results"

    def measure() -> None:
        manifest = iobench.find_dataset(data_dir, NAME)
        options = RunOptions(loader=("native",), rounds="5", batch_size=(64,), profile=True)
        run = iobench.run(manifest, options, out=results / "good.jsonl")
        assert not run.failures, run.failures

    run_or_raise(measure)
    _read(data_dir, "good", with_report=True)  # so that no child has to import the same
    return results, [json.loads(line) for line in (results / "good.jsonl").read_text().splitlines()]


def _read_mutated(data_dir: Path, with_report: bool) -> None:
    """Run every command that reads records; the valid ones must be shown."""
    limit_memory(LIMIT_BYTES)
    _read(data_dir, "bad", with_report)


def _read(data_dir: Path, run: str, with_report: bool) -> None:
    here = ("--data-dir", str(data_dir))
    expect(["runs", *here], "good")
    expect(["runs", "--json", *here], "good")
    expect(["runs", "show", run, *here])
    expect(["runs", "show", run, "--wide", *here])
    expect(["compare", "good", run, "--force", *here])
    table = data_dir / "table.csv"
    table.unlink(missing_ok=True)
    expect(["runs", "export", "--out", str(table), *here])
    assert table.stat().st_size > 1000, "the valid runs are not in the table"
    if with_report:
        expect(["report", "good", run, "--out", str(data_dir / "page.html"), *here])


def _report(data_dir: Path) -> None:
    limit_memory(LIMIT_BYTES)
    page = data_dir / "page.html"
    page.unlink(missing_ok=True)
    result = run_cli("report", "good", "--out", str(page), "--data-dir", str(data_dir))
    assert (result.code, result.problem) == (0, None), f"exit {result.code}: {result.stderr[-2000:]}"
    assert "valid-study" in page.read_text(), "the valid study is not in the report"
