"""A full disk: what was measured is shown, nothing half-written keeps a final name, and one line says so."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from eval.faults.children import run_or_raise, tried
from eval.faults.cli_runs import expect, run_cli
from eval.faults.mounts import fill, mount_small, mounts_permitted
from eval.faults.registry import Outcome, Trials, kind
from eval.faults.scenarios import NAME, PrepareCall
from eval.faults.targets import accepts, installed_formats
from iobench import studies
from iobench.formats import Field, Schema
from iobench.studies._rounds import Measurements
from iobench.studies._study import StudyResult

SIZE = 1 << 20  # bytes of the disk
IMAGES = Schema(1, (Field("x", (32, 32, 3), "uint8"),))
RUN = "run --rounds 2 --no-limits --format npy --loader native"
SAVING = (  # commands that keep something in the results, and what they show all the same
    (RUN, ""),
    ("study volume", "contender"),
    ("study volume --json", "volume"),
    ("runs export --out data/results/new.csv", ""),
    ("report --out data/results/new.html", ""),
    ("runs", "good"),
)
RECOMMEND = "recommend --max-time 10 --loader native --format npy"  # its shortest search


@kind("full-disk")
def full_disk(trials: Trials) -> Iterator[Outcome]:
    """Fill the disk of the results, or of the data, up to a random number of bytes."""
    if not mounts_permitted():
        yield "skipped, and said so", None
        return
    run_or_raise(functools.partial(PrepareCall(0, ("npy",)), trials.folder / "data", 1 << 12))
    (trials.folder / "data" / "results").mkdir(exist_ok=True)
    (trials.folder / "disk").mkdir()
    for room in trials.sample((0, 4096, 8192, 12288, 16384, 65536), quick=2):
        fault = f"results: {RECOMMEND}, {room} bytes of room"
        yield tried(fault, _results_on_a_full_disk, trials.folder, RECOMMEND, "npy", room)
    for number in trials.numbers(full=120, quick=18):
        room = trials.rng.choice((0, 0, 4096, 8192, 65536))
        line, shown = SAVING[number % len(SAVING)]
        fault = f"results {number}: {line}, {room} bytes of room"
        yield tried(fault, _results_on_a_full_disk, trials.folder, line, shown, room)
        form, room = trials.rng.choice(installed_formats()), trials.rng.randrange(SIZE)
        yield tried(f"data {number}: {form}", _data_on_a_full_disk, trials.folder, form, room)


def _results_on_a_full_disk(folder: Path, line: str, shown: str, room: int) -> None:
    os.chdir(folder)
    results = Path("data/results")
    mount_small(results, SIZE)
    expect([*RUN.split(), "--name", NAME, "--out", str(results / "good.jsonl")])
    fill(results, room)
    before = {path.name: path.read_bytes() for path in results.iterdir()}
    shown_study = StudyResult("volume", "s", "a", Measurements({}), [], {}, "2026-01-01T00:00:00+00:00")
    studies.run = lambda *_: shown_study  # type: ignore[assignment]
    result = run_cli(*line.split())
    assert result.problem is None, result.problem
    measured = any(b"\n" in path.read_bytes() for path in results.glob("*.jsonl") if path.name not in before)
    output = f"{result.stdout[:300]!r} {result.stderr[-500:]!r}"
    assert shown in result.stdout or (line == RECOMMEND and not measured), f"{shown!r} is not shown: {output}"
    for name, content in before.items():
        assert (results / name).read_bytes() == content, f"{name} has changed"
    if result.code:
        new = [path.name for path in results.iterdir() if path.name not in before]
        left = [name for name in new if not name.startswith(".runs") and not name.endswith(".jsonl")]
        assert not left, f"left behind: {left}"


def _data_on_a_full_disk(folder: Path, form: str, room: int) -> None:
    os.chdir(folder)
    mount_small(Path("disk"), SIZE)
    fill(Path("disk"), room)
    where = ["--data-dir", "disk/data", "--name", "n"]
    images = accepts(form, IMAGES)
    data = ["--sample-shape", "32x32x3" if images else "64", "--dtype", "uint8" if images else "uint16"]
    result = run_cli("prepare", "--size", "2e6", *data, "--format", form, *where)
    assert result.code == 1, f"exit {result.code}"
    assert result.problem is None, result.problem
    assert not Path("disk/data/n/manifest.json").exists(), "a manifest of incomplete data"
    free = shutil.disk_usage("disk").free
    assert free >= min(room, SIZE // 2) - (64 << 10), f"{free} bytes are free of {room}"
