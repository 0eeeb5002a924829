"""scripts/faults, as far as there is time: no injected fault ends badly, and a bad one would be seen."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

KINDS = {
    *("command-lines", "concurrency", "damages", "interrupts", "leaks", "manifests-by-type"),
    *("prepare-at-calls", "prepare-at-moments", "read-errors", "records-by-type", "sources"),
    "studies-by-type",
}
SCRIPTS = Path(__file__).parent.parent / "scripts"


def faults(*arguments, code="from _faults.__main__ import main; raise SystemExit(main())"):
    path = os.pathsep.join(filter(None, (str(SCRIPTS), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})


def test_no_fault_ends_badly(tmp_path):
    done = faults("--quick", "--folder", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    assert {row[0] for row in rows} == KINDS
    assert all(int(tried) > 0 == int(bad) for _, tried, bad, _ in rows)
    assert not list(tmp_path.iterdir())


BREAK = """
import os
from _faults import calls, power, prepares
from _faults.kinds import prepare_struck
from iobench.dataset import manifest, manifest_file, seal, writer
replacing = prepares.scenarios(("npy",))[2]
prepare_struck.scenarios = lambda formats: [replacing]
prepare_struck.MODES = {modes}
synced = power.Disk.synced


def forget(end):
    # the disk knows nothing of syncs of what is named so
    def some(self, descriptor):
        if not os.readlink(f"/proc/self/fd/{{descriptor}}").endswith(end):
            synced(self, descriptor)
    power.Disk.synced = some


{how}
from _faults.__main__ import main
raise SystemExit(main())
"""
KILLED, LOST, NAMES_KEPT = ["killed"], ["power lost"], ["power lost, names kept"]
BY_LOT = [f"power lost, by lot {number}" for number in range(1, 5)]
BROKEN = {
    "files are not synced": (NAMES_KEPT, "writer.sync = lambda folder: None"),
    "the manifest is not synced": (NAMES_KEPT, "forget('.tmp-manifest.json')"),
    "seals are not synced": (NAMES_KEPT, "forget(seal.FILE_NAME)"),
    "the artifact's new name is not synced": (BY_LOT, "writer.sync_directory = lambda folder: None"),
    "the manifest's new name is not synced": (LOST, "manifest_file.sync_directory = lambda folder: None"),
    "the old goes before the new is listed": (
        KILLED,
        "save = manifest.Manifest.save\n"
        "def early(self):\n"
        "    seal.sweep(self.root, {a.folder_name for a in self.artifacts.values()})\n"
        "    save(self)\n"
        "manifest.Manifest.save = early",
    ),
    "the new is listed before it has its name": (
        KILLED,
        "name = writer.Writer._name\n"
        "def late(self, folder, artifact):\n"
        "    self.manifest.artifacts[artifact.variant] = artifact\n"
        "    self.manifest.save()\n"
        "    name(self, folder, artifact)\n"
        "writer.Writer._name = late",
    ),
    "nothing is swept": (KILLED, "seal.sweep = lambda root, listed: None"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_protocol_is_seen(tmp_path, what):
    """Each step of the protocol is needed: without it, replacing a dataset ends badly at some call."""
    modes, how = BROKEN[what]
    code = BREAK.format(how=how, modes=modes)
    done = faults("--kind", "prepare-at-calls", "--folder", tmp_path, code=code)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"prepare-at-calls +\d+ +[1-9]", done.stdout), done.stdout


UNGUARDED = """
import contextlib
import types
from _faults.kinds import read_errors
from iobench.bench import epoch
from iobench.dataset import verify


@contextlib.contextmanager
def unguarded(folder):
    yield lambda: None


{module}.guarded = unguarded
read_errors.LoopDisk = read_errors.CutFiles
read_errors.WAYS = {{{way!r}: read_errors.WAYS[{way!r}]}}
read_errors.formats = types.SimpleNamespace(names=lambda: ["npy"])
from _faults.__main__ import main
raise SystemExit(main())
"""


@pytest.mark.parametrize(
    ("module", "way"), [("epoch", "run native"), ("epoch", "run dataloader"), ("verify", "verify")]
)
def test_a_map_that_nobody_guards_is_seen(tmp_path, module, way):
    code = UNGUARDED.format(module=module, way=way)
    done = faults("--kind", "read-errors", "--folder", tmp_path, code=code)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "it ended with -7" in done.stdout, done.stdout  # SIGBUS
