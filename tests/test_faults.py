"""scripts/faults, as far as there is time: no injected fault ends badly, and a bad one would be seen."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

KINDS = {
    *("command-lines", "concurrency", "damages", "damages-of-others", "interrupts", "leaks"),
    "manifests-by-type",
    *("prepare-at-calls", "prepare-at-moments", "read-errors", "records-by-type", "sources"),
    "studies-by-type",
}
SCRIPTS = Path(__file__).parent.parent / "scripts"


def python(*arguments, **options):
    path = os.pathsep.join(filter(None, (str(SCRIPTS), os.environ.get("PYTHONPATH"))))
    command, environment = [sys.executable, *map(str, arguments)], {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, capture_output=True, text=True, env=environment, **options)


@pytest.mark.timeout(1200)  # some 30 s on two idle cores; a slow machine is no fault
def test_no_fault_ends_badly(tmp_path):
    done = python("-m", "_faults", "--quick", "--folder", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    assert {row[0] for row in rows} == KINDS
    assert all(int(tried) > 0 == int(bad) for _, tried, bad, _ in rows)
    assert not list(tmp_path.iterdir())


# each piece of code is run in a child of one process that has everything imported; what it prints is told
EACH = """
import json, sys
from _faults import kinds, ready
from _faults.children import forked

kinds.load()
ready.load()
for what, code in json.loads(sys.stdin.read()).items():
    print(json.dumps(what), flush=True)
    ended = forked(lambda: exec(code, {}))
    print(ended.code, ended.said)
"""


def each(codes):
    """What each of these pieces of code prints, and how it ends."""
    done = python("-c", EACH, input=json.dumps(codes))
    assert done.returncode == 0, done.stderr
    parts = re.split("|".join(re.escape(json.dumps(what) + "\n") for what in codes), done.stdout)
    return dict(zip(codes, parts[1:], strict=True))


BREAK = """
import os
import random
import tempfile
from pathlib import Path
from _faults.registry import Trials
from _faults import calls, power, prepares
from _faults.kinds import prepare_struck
from iobench.dataset import artifact_writer, manifest, manifest_file, seal
replacing = prepares.scenarios(("npy",))[2]
prepare_struck.scenarios = lambda formats: [replacing]
prepare_struck.names = lambda: []
prepare_struck.MODES = {modes}
synced = power.Disk.synced


def forget(end):
    # the disk knows nothing of syncs of what is named so
    def some(self, descriptor):
        if not os.readlink(f"/proc/self/fd/{{descriptor}}").endswith(end):
            synced(self, descriptor)
    power.Disk.synced = some


{how}
with tempfile.TemporaryDirectory(dir={folder!r}) as folder:
    tried = prepare_struck.at_calls(Trials(Path(folder), random.Random(0), False))
    print("bad:", next((problem for what, problem in tried if problem), None), flush=True)
"""
KILLED, LOST, NAMES_KEPT = ["killed"], ["power lost"], ["power lost, names kept"]
BY_LOT = [f"power lost, by lot {number}" for number in range(1, 5)]
BROKEN = {
    "files are not synced": (NAMES_KEPT, "artifact_writer.sync = lambda folder: None"),
    "the manifest is not synced": (NAMES_KEPT, "forget('.tmp-manifest.json')"),
    "seals are not synced": (NAMES_KEPT, "forget(seal.FILE_NAME)"),
    "the artifact's new name is not synced": (BY_LOT, "artifact_writer.sync_directory = lambda folder: None"),
    "the manifest's new name is not synced": (LOST, "manifest_file.sync_directory = lambda folder: None"),
    "the old goes before the new is listed": (
        KILLED,
        "save = manifest.Manifest.save\n"
        "def early(self):\n"
        "    seal.sweep(self.root, {a.folder for a in self.artifacts.values()})\n"
        "    save(self)\n"
        "manifest.Manifest.save = early",
    ),
    "the new is listed before it has its name": (
        KILLED,
        "name = artifact_writer.ArtifactWriter._name\n"
        "def late(self, folder, artifact):\n"
        "    self.manifest.artifacts[artifact.variant] = artifact\n"
        "    self.manifest.save()\n"
        "    name(self, folder, artifact)\n"
        "artifact_writer.ArtifactWriter._name = late",
    ),
    "nothing is swept": (KILLED, "seal.sweep = lambda root, listed: None"),
}


@pytest.mark.timeout(600)
def test_a_broken_protocol_is_seen(tmp_path):
    """Each step of the protocol is needed: without it, replacing a dataset ends badly at some call."""
    folder = str(tmp_path)
    codes = {what: BREAK.format(how=how, modes=modes, folder=folder) for what, (modes, how) in BROKEN.items()}
    for what, shown in each(codes).items():
        assert re.match("bad: (after it|it ended)", shown), f"{what}: {shown}"


UNGUARDED = """
import contextlib
from _faults.kinds import read_errors
from iobench.bench import epoch
from iobench.dataset import verify


@contextlib.contextmanager
def unguarded(folder):
    yield lambda: None


{module}.guarded = unguarded
read_errors.LoopDisk = read_errors.CutFiles
read_errors.WAYS = {{{way!r}: read_errors.WAYS[{way!r}]}}
read_errors.variants = lambda: ("npy",)
import sys
from _faults.__main__ import main
sys.argv = ["faults", "--kind", "read-errors", "--folder", {folder!r}]
print("exit", main(), flush=True)
"""
WAYS = [("epoch", "run native"), ("epoch", "run dataloader"), ("verify", "verify")]


@pytest.mark.timeout(600)
def test_a_map_that_nobody_guards_is_seen(tmp_path):
    codes = {way: UNGUARDED.format(module=module, way=way, folder=str(tmp_path)) for module, way in WAYS}
    for way, shown in each(codes).items():
        assert re.search(r"read-errors +\d+ +[1-9]", shown), f"{way}: {shown}"
        assert "it ended with -7" in shown, f"{way}: {shown}"  # SIGBUS
        assert shown.endswith("exit 1\n0 \n"), f"{way}: {shown}"
