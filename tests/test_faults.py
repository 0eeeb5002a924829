"""scripts/faults --quick: iobench handles every injected fault, and a broken iobench is detected."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

KINDS = {
    *("environments", "full-disk", "interrupts-in-callbacks", "names", "permissions", "results-folder"),
    *("command-lines", "concurrency", "corruption", "corruption-foreign", "interrupts", "leaks"),
    *("manifest-mutations", "missing-libraries"),
    *("crash-at-syscalls", "crash-at-times", "read-errors", "record-mutations", "hostile-sources"),
    *("object-store", "study-mutations"),
}
SCRIPTS = Path(__file__).parent.parent / "scripts"


def python(*arguments, **options):
    path = os.pathsep.join(filter(None, (str(SCRIPTS), os.environ.get("PYTHONPATH"))))
    command, environment = [sys.executable, *map(str, arguments)], {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, capture_output=True, text=True, env=environment, **options)


@pytest.mark.timeout(1200)  # 300 s on two idle cores; a slow machine is not a failure
def test_every_injected_fault_is_handled(tmp_path):
    done = python("-m", "eval.faults", "--quick", "--folder", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    assert {row[0] for row in rows} == KINDS
    assert all(int(faults) > 0 == int(failures) for _, faults, failures, _ in rows)
    assert not list(tmp_path.iterdir())


# runs each piece of code in a forked child, so that iobench is imported once
EACH = """
import json, sys
from eval.faults import kinds, preload
from eval.faults.children import run_forked

kinds.load()
preload.shorten_rounds()
for what, code in json.loads(sys.stdin.read()).items():
    print(json.dumps(what), flush=True)
    result = run_forked(lambda: exec(code, {}))
    print(result.code, result.output)
"""


def each(codes):
    """Return the output and the end of each piece of code."""
    done = python("-c", EACH, input=json.dumps(codes))
    assert done.returncode == 0, done.stderr
    parts = re.split("|".join(re.escape(json.dumps(what) + "\n") for what in codes), done.stdout)
    return dict(zip(codes, parts[1:], strict=True))


BREAK = """
import os
import random
import tempfile
from pathlib import Path
from eval.faults.registry import Trials
from eval.faults import power, scenarios
from eval.faults.kinds import crash_consistency
from iobench.dataset import manifest, manifest_file, prepare, staging
replacing = scenarios.scenarios(("npy",))[2]
crash_consistency.scenarios = lambda formats: [replacing]
crash_consistency.installed_formats = lambda: []
crash_consistency.MODES = {modes}
synced = power.Disk.synced


def forget(end):
    # the disk ignores syncs of files of this name
    def some(self, descriptor):
        if not os.readlink(f"/proc/self/fd/{{descriptor}}").endswith(end):
            synced(self, descriptor)
    power.Disk.synced = some


{how}
with tempfile.TemporaryDirectory(dir={folder!r}) as folder:
    outcomes = crash_consistency.at_syscalls(Trials(Path(folder), random.Random(0), False))
    print("failure:", next((failure for _, failure in outcomes if failure), None), flush=True)
"""
KILLED, LOST, NAMES_KEPT = ["killed"], ["power loss"], ["power loss, names kept"]
RANDOM_NAMES = [f"power loss, random names {number}" for number in range(1, 5)]
BROKEN = {
    "files are not synced": (NAMES_KEPT, "prepare.sync = lambda folder: None"),
    "the manifest is not synced": (
        NAMES_KEPT,
        "write = manifest_file.replace_file\n"
        "manifest_file.replace_file = lambda path, content, sync: write(path, content)",
    ),
    "seals are not synced": (NAMES_KEPT, "forget(staging.SEAL)"),
    "the artifact's new name is not synced": (RANDOM_NAMES, "prepare.sync_directory = lambda folder: None"),
    "the manifest's new name is not synced": (LOST, "manifest_file.sync_directory = lambda folder: None"),
    "the old artifact is deleted before the new one is listed": (
        KILLED,
        "save = manifest.Manifest.save\n"
        "def early(self):\n"
        "    staging.sweep(self.root, {a.folder for a in self.artifacts.values()})\n"
        "    save(self)\n"
        "manifest.Manifest.save = early",
    ),
    "the new artifact is listed before it has its name": (
        KILLED,
        "seal_of = manifest.Manifest.seal_of\n"
        "def early(self, artifact):\n"
        "    self.artifacts[artifact.variant] = artifact\n"
        "    self.save()\n"
        "    return seal_of(self, artifact)\n"
        "manifest.Manifest.seal_of = early",
    ),
    "old artifacts are not deleted": (KILLED, "manifest.sweep = lambda root, listed: None"),
}


@pytest.mark.timeout(600)
def test_a_broken_protocol_is_detected(tmp_path):
    """Each step of the protocol is necessary: without it, replacing a dataset fails at some call."""
    folder = str(tmp_path)
    codes = {step: BREAK.format(how=how, modes=modes, folder=folder) for step, (modes, how) in BROKEN.items()}
    for step, shown in each(codes).items():
        assert re.match(r"\w+: (afterwards|exit) ", shown), f"{step}: {shown}"


UNGUARDED = """
import contextlib
from eval.faults.kinds import read_errors
from iobench.dataset import opener


@contextlib.contextmanager
def unguarded(folder, page):
    yield lambda: None


opener.guarded = unguarded
read_errors.LoopDisk = read_errors.TruncatedFiles
read_errors.READERS = {{{way!r}: read_errors.READERS[{way!r}]}}
read_errors.variants = lambda: ("npy",)
from argparse import Namespace
from eval.faults.__main__ import run
print(run("read-errors", Namespace(seed=0, quick=False, folder={folder!r})), "failures", flush=True)
"""
READERS = ["run native", "run dataloader", "verify"]


@pytest.mark.timeout(600)
def test_an_unguarded_memory_map_is_detected(tmp_path):
    codes = {way: UNGUARDED.format(way=way, folder=str(tmp_path)) for way in READERS}
    for way, shown in each(codes).items():
        assert re.search(r"read-errors +2 +2 ", shown), f"{way}: {shown}"
        assert "exit -7: " in shown, f"{way}: {shown}"  # SIGBUS
        assert shown.endswith("2 failures\n0 \n"), f"{way}: {shown}"


FAILING_STORE = """
from argparse import Namespace
from eval.faults.__main__ import run
from iobench.objects import client, reader
{how}
print(run("object-store", Namespace(seed=0, quick=True, folder={folder!r})), "failures", flush=True)
"""
CARELESS = {
    "versions are not compared": (
        "get = client.ObjectStore.get\n"
        "client.ObjectStore.get = lambda self, name, start, length, etag: get(self, name, start, length, '')"
    ),
    "short bodies are taken": "client.ObjectStore._whole = lambda self, got, length: memoryview(got)",
    "requests are sent again once the loop was left": "reader.RangeReader.stop = lambda self: None",
}


@pytest.mark.timeout(600)
def test_a_careless_client_of_object_stores_is_detected(tmp_path):
    pytest.importorskip("obstore", reason="the client of object stores is not installed: iobench[s3]")
    codes = {what: FAILING_STORE.format(how=how, folder=str(tmp_path)) for what, how in CARELESS.items()}
    for what, shown in each(codes).items():
        assert re.search(r"[1-3] failures\n0 \n$", shown), f"{what}: {shown}"


FUZZ = """
import tempfile
from pathlib import Path
from eval.faults import fuzz, fuzz_targets
from iobench.base.units import shape_text

tempfile.tempdir = {folder!r}
target = fuzz.Target("t", [{{"f": b"whole"}}], {read}, sandboxed=True)
for turn in range(3):
    fuzz._slice(target, Path(tempfile.mkdtemp()), str(turn))
print(len(target.findings), "findings", flush=True)
"""
FUZZED = {  # what reads the file: how many findings
    "lambda folder: (folder / 'f').read_text() == 'whole' or shape_text(None)": 1,
    "lambda folder: (folder / 'f').read_text() == 'whole' or fuzz_targets.np.dtype('no')": 0,  # of a library
    "lambda folder: fuzz_targets.formats.parse((folder / 'f').read_text(errors='replace'))": 0,  # one line
}


def test_fuzzing_finds_errors_of_iobench_alone(tmp_path):
    codes = {read: FUZZ.format(read=read, folder=str(tmp_path)) for read in FUZZED}
    for read, shown in each(codes).items():
        assert f"{FUZZED[read]} findings\n0 " in shown, f"{read}: {shown}"
    kept = [file.read_bytes() for file in tmp_path.glob("fuzz-t-*/data/f")]
    assert len(kept) == 1
    assert kept != [b"whole"]


def test_files_that_are_converted_are_fuzzed(tmp_path):
    done = python("-m", "eval.faults", "--fuzz", 1, "--kind", "source *", "--folder", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    names = {line.rsplit(maxsplit=3)[0] for line in done.stdout.splitlines()[1:]}
    assert {"source parts", "source photos", "source x.csv", "source x.npz", "source x.pt"} <= names
