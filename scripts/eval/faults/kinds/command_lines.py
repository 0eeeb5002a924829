"""Random invalid command lines: each must end with a documented exit code and one error line."""

from __future__ import annotations

import functools
import os
import random
import resource
from collections.abc import Iterator, Sequence
from pathlib import Path

import iobench
from eval.faults.children import run_forked, run_or_raise, tried
from eval.faults.cli_runs import run_cli
from eval.faults.foreign_data import foreign_data
from eval.faults.registry import Outcome, Trials, kind
from eval.faults.scenarios import NAME, PrepareCall
from eval.faults.targets import VerifiedDatasets, installed_formats
from iobench import RunOptions

NUMBERS = (
    "0 -1 1 2 9e999999KiB 1e400 1e7 10**9 999999999999 99999999999999999999999 nan inf -inf 0x10 1_0 ١٢ 1.5 "
    ".5 1e-400 4GiB -4GiB 9EiB 1KiB,2KiB 5% -5% 1e99% 1,2,3 0,0 , 1, ,1"
).split()
WORDS = [
    *("", " ", "x" * 300, "x" * 5000, "\x1b[31mred", "a\nb", "\u202e", "\udcff", "1x" * 40 + "1"),
    *", ,, all all,all nonsense npy npy,lmdb hdf5:compression=gzip hdf5: hdf5:compression= hdf5:x=1".split(),
    *"hdf5:compression=gzip,compression=gzip npy:npy : = a=b dataloader native stream".split(),
    *"dataloader:num_workers=99999999 dataloader:num_workers=-1 dataloader:prefetch_factor=1".split(),
    *"stream:threads=100000000 stream:direct=maybe ../x / é [bold]x[/] -- - -x %s%n {0}".split(),
    *"cpu cuda cuda:99 cuda:-1 cuda:x meta warm cold warm,cold random block sequential".split(),
    *"slower:5% slower: faster:x auto mlp cnn settings list 3x224x224 0x0 float32 complex64 object".split(),
    *"good bad good.jsonl os:getcwd os: :x nowhere.py:f json:loads a.py dataset d".split(),
]
PATHS = [
    *"fifo fifo.jsonl fifo.toml fifo.html fifo.csv fifo.npz fifo.npy fifo.h5 folder folder.csv".split(),
    *"empty empty.npz empty.h5 nowhere nowhere/x link loop /dev/null /dev/full /dev/zero /dev/null/x".split(),
    *"/proc/self/mem /proc/version data . data/d/manifest.json data/results/good.jsonl new.jsonl".split(),
    *"new.html new.csv new.parquet new.toml bytes.jsonl source.npz source.npz::x source.npz::".split(),
    *("x" * 300, "x/" * 2500),
]
SWITCHES = (
    "--json --wide --quick --sudo --isolate --no-isolate --profile --no-limits --force --markdown --yes"
).split()
# the options of each command; each may get words, numbers or paths
COMMANDS = {
    tuple(command.split()): options.split()
    for command, options in {
        "prepare": "--size --sample-shape --dtype --seed --compressibility --source --format --name "
        "--overwrite",
        "add": "--format --name --field --overwrite --data-dir",
        "recommend": "--source --sample-shape --format --loader --order --min-shuffle --batch-size "
        "--full-size --step-ms --epochs --max-disk --seed",
        "run": "--format --loader --device --cache --batch-size --order --block-size --window-size --model "
        "--rounds --max-time --warmup --timeout --min-difference --seed --name --plan --save-plan --out "
        "--fetch --num-workers --threads --prefetch-factor --start-method --pin-memory --direct --trace",
        "compare": "--min-difference --fail-on --force --markdown --json",
        "report": "--out --png",
        "runs": "--json --data-dir",
        "runs show": "--wide --json --data-dir",
        "runs delete": "--data-dir",
        "runs export": "--out -o --data-dir",
        "verify": "--format --name",
        "formats": "--json",
        "loaders": "--json",
        "study": "--device",
        "limits": "--batch-size --device --seconds --name",
        "diagnose": "--batches --max-time --timeout --device",
        "": "--version --help",
    }.items()
}
# options that limit the time of commands that would honor large numbers
TIME_LIMITS = {
    "run": ["--max-time", "0.2", "--rounds", "2"],
    "limits": ["--seconds", "0.01"],
    "recommend": ["--max-time", "0.2", "--loader", "native"],
}
MAX_FILE_BYTES = 64 << 20  # of a file that a child writes


@kind("command-lines")
def command_lines(trials: Trials) -> Iterator[Outcome]:
    """Type random combinations of values that are hard to parse."""
    some = trials.sample(installed_formats(), quick=2)
    values = (NUMBERS, [*WORDS, *some], [*PATHS, *_make_files(trials.folder, some)])
    for number in trials.numbers(full=500, quick=24):
        arguments = _random_command(trials.rng, values)
        shown = [argument if len(argument) < 60 else f"{argument[:50]}…" for argument in arguments]
        yield tried(f"command line {number}: {shown!r}", _run, trials.folder, arguments)


def _make_files(folder: Path, some: Sequence[str]) -> list[str]:
    """Create a dataset, a run and special files of every type; return paths of data that can be added."""
    run_or_raise(functools.partial(PrepareCall(0, ("npy", "lmdb")), folder / "data", 1 << 12))

    def measure() -> None:
        manifest = iobench.find_dataset(folder / "data", NAME)
        options = RunOptions(format=("npy",), loader=("native",), rounds="2", limits=False)
        iobench.run(manifest, options, out=folder / "data" / "results" / "good.jsonl")

    assert run_forked(measure).code == 0
    for name in PATHS:
        path = folder / name
        if name.startswith("fifo"):
            os.mkfifo(path)
        elif name.startswith("folder"):
            path.mkdir()
        elif name.startswith("empty"):
            path.touch()
    (folder / "link").symlink_to(folder / "nowhere")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "bytes.jsonl").write_bytes(b"\xff\x00{\n")
    data = foreign_data(VerifiedDatasets(folder / "whole", some, samples=30), folder / "foreign")
    return [str(one.path.relative_to(folder)) for one in data]


def _random_command(rng: random.Random, values: Sequence[Sequence[str]]) -> list[str]:
    command = rng.choice(list(COMMANDS))
    made = list(command)
    made += [_value(rng, values) for _ in range(rng.choice((0, 0, 1, 1, 2)))]
    if command and command[0] in TIME_LIMITS:
        made += TIME_LIMITS[command[0]]
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        options = COMMANDS[command]
        made.append(rng.choice(options) if rng.random() < 0.9 else rng.choice(SWITCHES))
        if rng.random() < 0.9:
            made.append(_value(rng, values))
    if rng.random() < 0.05:
        made.insert(rng.randrange(len(made) + 1), rng.choice(("--x", "--", "-h", "--help", "-")))
    return [part.replace("\0", "") for part in made]


def _value(rng: random.Random, values: Sequence[Sequence[str]]) -> str:
    return rng.choice(rng.choice(values))


def _run(folder: Path, arguments: list[str]) -> None:
    os.chdir(folder)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, MAX_FILE_BYTES))
    problem = run_cli(*arguments).problem
    assert problem is None, problem
