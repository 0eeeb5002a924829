"""Ordinary environments that lack something: encodings, output, descriptors, processes, temporary folders."""

from __future__ import annotations

import functools
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from eval.faults.children import HANGS, TIMEOUT_S, drop_rights, run_or_raise, tried
from eval.faults.cli_runs import CliResult, run_cli
from eval.faults.mounts import mounts_permitted
from eval.faults.registry import Outcome, Trials, kind
from eval.faults.scenarios import LOADER, NAME, PrepareCall

EACH = 4  # commands in each environment
NO_TEMPORARY_FOLDER = "no-temporary-folder"  # a folder of code that hides all of them
RUN = "run --rounds 2 --no-limits --format npy"
COMMANDS = (
    f"{RUN} --loader native",
    f"{RUN} --loader dataloader:num_workers=2",
    f"{RUN} --loader stream --isolate",
    "runs",
    "runs show good",
    "compare good good",
    "plan --ranks 2 --nodes 1",
    "report --out new.html",
    "verify",
    "limits --seconds 0.01",
    "prepare --size 1e4 --name new",
    "prepare --source x.csv --name new",
    "add x.npy",
    "recommend --max-time 10 --loader native",
    "diagnose train.py:make_loader --max-time 1",
    "formats",
    "--help",
)


@dataclass(frozen=True)
class Environment:
    """Variables, and a shell's line that starts the command as "$@"."""

    name: str
    variables: dict[str, str] = field(default_factory=dict)
    line: str = 'exec "$@"'
    mounts: bool = False  # in namespaces of its own, of mounts and of the host name

    def start(self, arguments: list[str], folder: Path) -> CliResult | None:
        """Run a command to its end; None where it hangs."""
        shell = [*(["unshare", "-mu"] if self.mounts else []), "sh", "-c", self.line, "sh"]
        child = subprocess.Popen(
            [*shell, sys.executable, "-m", "iobench", *arguments],
            cwd=folder,
            env=os.environ | self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            out, err = child.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            return None
        texts = [text.decode(errors="backslashreplace") for text in (out, err)]
        return CliResult(child.returncode, *texts)


ENVIRONMENTS = (
    Environment("ASCII output", {"PYTHONIOENCODING": "ascii"}),
    Environment("Latin-1 output", {"PYTHONIOENCODING": "latin-1"}),
    Environment("the C locale", {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    Environment("closed stdout", line='exec "$@" >&-'),
    Environment("closed output", line='exec "$@" <&- >&- 2>&-'),
    Environment("no docstrings", {"PYTHONOPTIMIZE": "2"}),
    Environment("colours into a pipe", {"FORCE_COLOR": "1"}),
    Environment("a terminal of 20 columns", {"COLUMNS": "20"}),
    *(Environment(f"{n} open files", line=f'ulimit -n {n} && exec "$@"') for n in (8, 12, 16, 24, 40)),
    Environment("no home", {"HOME": "/nowhere"}),
    *(
        Environment(
            f"/dev/shm of {size}",
            line=f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"',
            mounts=True,
        )
        for size in ("4k", "64k", "1m")
    ),
    Environment(
        "a host name that is not UTF-8",
        line="""python3 -c 'import socket; socket.sethostname(b"h\\xff")' && exec "$@\"""",
        mounts=True,
    ),
    Environment(
        "a disk whose device is not UTF-8",
        line='mount -t tmpfs "$(printf "d\\377")" /mnt && cp -a . /mnt && mount --bind /mnt . '
        '&& cd "$PWD" && exec "$@"',
        mounts=True,
    ),
    Environment("no temporary folder", {"PYTHONPATH": NO_TEMPORARY_FOLDER}),
    Environment("no /proc", line='mount -t tmpfs tmpfs /proc && exec "$@"', mounts=True),
)


@kind("environments")
def environments(trials: Trials) -> Iterator[Outcome]:
    """Run each command in environments of ordinary people that lack something."""
    _make_files(trials.folder)
    known = [one for one in ENVIRONMENTS if mounts_permitted() or not one.mounts]
    pairs = [(one, line) for one in known for line in trials.rng.sample(COMMANDS, EACH)]
    for environment, line in trials.sample(pairs, quick=14):
        result = environment.start(line.split(), trials.folder)
        yield f"{environment.name}: {line}", _problem(environment, result)
    for line in trials.sample(COMMANDS, quick=6):
        yield tried(f"no other process: {line}", _without_processes, trials.folder, line)


def _problem(environment: Environment, result: CliResult | None) -> str | None:
    if result is None:
        return HANGS
    if environment.name == "closed output":  # nothing can be said, and what can be done is done
        return None if result.code in (0, 1, 2) else f"exit {result.code}"
    if result.code == 1 and "error[too-many-files]" in result.stderr.rpartition("\niobench: ")[2]:
        return None  # a worker of torch's may print a traceback before that
    return result.problem


def _make_files(folder: Path) -> None:
    """Create a dataset, a run, and a loader of the user's."""
    run_or_raise(functools.partial(PrepareCall(0, ("npy",)), folder / "data", 1 << 12))
    (folder / "train.py").write_text(LOADER)
    (folder / NO_TEMPORARY_FOLDER).mkdir()
    hides = "import tempfile; tempfile._candidate_tempdir_list = lambda: ['/no-such-folder']\n"
    (folder / NO_TEMPORARY_FOLDER / "sitecustomize.py").write_text(hides)
    (folder / "x.csv").write_text("a,b\n" + "1,2\n" * 50)

    def rest() -> None:
        import numpy as np

        np.save(folder / "x.npy", np.zeros((200, 4), "f4"))
        out, here = folder / "data" / "results" / "good.jsonl", ("--data-dir", str(folder / "data"))
        words = [*RUN.split(), "--loader", "native", "--name", NAME, "--out", str(out), *here]
        assert run_cli(*words).code == 0

    run_or_raise(rest)


def _without_processes(folder: Path, line: str) -> None:
    """Run a command in this process, a child, that may start no other."""
    os.chdir(folder)
    folder.chmod(0o777)
    for inner in ("data", "data/results", f"data/{NAME}"):
        Path(inner).chmod(0o777)
    drop_rights()  # the limit does not hold for root
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    problem = run_cli(*line.split()).problem
    assert problem is None, problem
