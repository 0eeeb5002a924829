"""Datasets to run on, the command line as a process, and what its errors look like."""

import os

# tensors are small here: threads of torch and NumPy would wait for each other, and for other tests
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import contextlib
import gc
import shutil
import signal
import struct
import subprocess
import sys
import traceback
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from forked_children import ForkedChildren
from hypothesis import HealthCheck, settings
from slow_tests import left_out

import iobench
from iobench import formats
from iobench.base import thresholds
from iobench.base.registry import is_installed
from iobench.bench import isolated, limits, resume_check
from iobench.dataset import sandbox
from iobench.dataset.prepare import DEFAULT_FORMATS
from iobench.formats import NUMPY_DTYPES
from iobench.host import machine_load, page_cache
from iobench.host.process_counters import status_of
from iobench.results.stats import ENOUGH_ROUNDS
from iobench.terminal.cli import main

settings.register_profile("any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-machine")  # no test depends on wall time
settings.register_profile("quick", settings.get_profile("any-machine"), max_examples=15, derandomize=True)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell, and in some CIs
    signal.signal(signal.SIGINT, signal.default_int_handler)

# the simulated devices are a backend registered in Python, which older releases of torch do not have
collect_ignore_glob = [] if hasattr(torch._C, "_acc") else ["device/test_*.py"]

SAMPLES = 203  # no multiple of a batch

limits.SECONDS = 0.002  # per limit of a run: tests do not depend on its accuracy
limits.hardware_limits.IN_TURN_BYTES = 1 << 20  # nor at what memory it takes
machine_load.CPU_SPEED_S = 0.0003  # nor at how fast the processors are
thresholds.ROUND_S = 0.01  # nor at how sure a figure is


def with_shared_memory(size):
    """Return the words before a command that give it a /dev/shm of a size; skips where that takes root."""
    mount = f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"'
    words = ["unshare", "-m", "sh", "-c", mount, "sh"]
    if subprocess.run([*words, "true"], capture_output=True).returncode:
        pytest.skip("a small /dev/shm needs root")
    return words


def installed_formats():
    """Return the formats whose libraries are installed."""
    return [name for name in formats.names() if all(map(is_installed, formats.class_of(name).modules))]


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run all tests, see tests/slow_tests.py")


# the files that take longest: what starts last decides when a run on several cores ends
LONGEST_FIRST = (
    "test_contract test_recommend test_cli_run test_loader_contract test_add test_objects test_webdataset"
    " test_stream_faults test_isolated test_transfer_paths test_interrupts test_loaders_on_device"
    " test_hostile_sources test_diagnose_checks test_cli_prepare test_resume_check test_everywhere"
    " test_report test_ragged test_first_rows test_output test_prepare"
).split()
# those that leave most memory to their process, which every worker that it forks pays for
LARGEST_LAST = ("test_architecture", "test_documented", "test_prose")


def pytest_configure(config):
    if not config.getoption("slow"):
        settings.load_profile("quick")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("slow"):
        slow = left_out(items)
        config.hook.pytest_deselected(items=list(slow))
        items[:] = [item for item in items if item not in slow]
    places = {name: place for place, name in enumerate(LONGEST_FIRST)}
    places |= dict.fromkeys(LARGEST_LAST, len(places) + 1)
    items.sort(key=lambda item: places.get(item.path.stem, len(LONGEST_FIRST)))


def pytest_collectstart():
    gc.disable()  # nothing is garbage while modules are imported and tests are collected


def pytest_collection_finish():
    gc.freeze()  # a collection skips the imported modules, which took 0.2 s
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def working_folder(tmp_path_factory):
    """Run in an empty folder: by default a command writes to `data` in the working folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("working-folder"))
        yield


LIBRARIES = ("h5py", "lmdb", "pandas", "PIL.Image")


@pytest.fixture(scope="session")
def forked_children():
    """Return what forks the child processes of iobench; the first one starts it."""
    children = ForkedChildren("iobench.dataset.sandbox_worker", "iobench.bench.isolated", *LIBRARIES)
    yield children
    children.close()


@pytest.fixture(scope="session")
def warm_python(forked_children):
    """As `python -c`, given code, arguments and a folder, without the seconds that imports take."""
    return forked_children.python


@pytest.fixture(autouse=True)
def quick_children(request, monkeypatch, forked_children):
    """Fork child processes of one with the libraries imported, unless a test is `as_for_users`."""
    if request.node.get_closest_marker("as_for_users"):
        return
    server = SimpleNamespace(fork=forked_children.start, close=lambda: None)
    for module in (isolated, resume_check):
        monkeypatch.setattr(module, "ForkServer", lambda *modules: server)
    monkeypatch.setattr(sandbox, "spawn_python", forked_children.start)


@pytest.fixture
def few_rounds(monkeypatch):
    """Let the final rounds of a search end by their number; by its time it would take all of `max_time_s`."""
    monkeypatch.setattr("iobench.advise.search.UNLIMITED", ENOUGH_ROUNDS)


def image_arrays(samples=SAMPLES):
    """Small images with labels, as one would have them before any of our formats."""
    rng = np.random.default_rng(5)
    images = rng.integers(0, 256, (samples, 3, 16, 16), dtype=np.uint8)
    return {"x": images, "y": rng.integers(0, 10, samples)}


def every_dtype_arrays(samples=29):
    """One vector and one scalar field of each dtype of NumPy's own."""
    rng = np.random.default_rng(6)
    fields = {}
    for dtype in map(np.dtype, NUMPY_DTYPES):
        numbers = rng.integers(0, 2 if dtype.kind == "b" else 100, (samples, 4)).astype(dtype)
        fields |= {f"{dtype}_vector": numbers[:, :3], f"{dtype}_scalar": numbers[:, 3]}
    return fields


def prepared(folder, arrays, variants=()):
    """The manifest of these arrays in every format."""
    np.savez(folder / "arrays.npz", **arrays)
    source = iobench.open_source(folder / "arrays.npz")
    return iobench.prepare(source, variants or DEFAULT_FORMATS, data_dir=folder / "data")[0]


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """Images with labels in every format; not to be changed."""
    return prepared(tmp_path_factory.mktemp("images"), image_arrays())


@pytest.fixture
def own_images(images, tmp_path):
    """A copy of `images` for a test that damages it."""
    shutil.copytree(images.root, tmp_path / "data" / images.name)
    return iobench.find_dataset(tmp_path / "data")


@pytest.fixture(scope="session")
def every_dtype(tmp_path_factory):
    """A dataset with all dtypes in every format."""
    return prepared(tmp_path_factory.mktemp("dtypes"), every_dtype_arrays())


@pytest.fixture(scope="session")
def floats(tmp_path_factory):
    """16 MiB of generated vectors in every format: large enough to see them come from disk."""
    folder = tmp_path_factory.mktemp("floats")
    return iobench.prepare(iobench.Synthetic(1 << 22), DEFAULT_FORMATS, data_dir=folder / "data")[0]


@pytest.fixture
def by_file(monkeypatch, tmp_path):
    """Cold by posix_fadvise, file by file, so that a test leaves the rest of the page cache alone."""
    require_disk(tmp_path)
    monkeypatch.setattr(page_cache, "DROP_CACHES", tmp_path / "no-such-file")


@pytest.fixture(scope="module")
def cluster():
    """Ray in this process, for the tests of a file; skips, with the reason, where it is not installed."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    ray.init(
        "local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=100 << 20,
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield ray
    ray.shutdown()


def enlarge(png):
    """Have a PNG file say that it has 30,000 x 30,000 pixels."""
    stored = bytearray(png.read_bytes())
    stored[16:24] = struct.pack(">2I", 30_000, 30_000)
    stored[29:33] = struct.pack(">I", zlib.crc32(stored[12:29]))
    png.write_bytes(stored)


def require_disk(path):
    """Skip where files live in memory: nothing makes them cold."""
    parts = [p for p in psutil.disk_partitions(all=True) if Path(path).is_relative_to(p.mountpoint)]
    if max(parts, key=lambda part: len(part.mountpoint)).fstype in ("tmpfs", "ramfs"):
        pytest.skip(f"{path} is in memory, not on a disk: set TMPDIR to one")


def open_files(path):
    """Return how many descriptors this process has of a file, or of the files in a folder."""
    links = (Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd"))
    return sum(Path(os.path.realpath(link)).is_relative_to(path) for link in links)


def damage(path):
    """Change the middle byte of a file and leave its size and its time as they were."""
    stat = path.stat()
    with open(path, "r+b") as file:
        file.seek(stat.st_size // 2)
        byte = file.read(1)
        file.seek(stat.st_size // 2)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def command(*arguments):
    """The command line that runs iobench with these arguments."""
    return [sys.executable, "-m", "iobench", *map(str, arguments)]


def call(*arguments, **options):
    """iobench in a process of its own, to its end."""
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=400, **options)


def peak_mib():
    """Peak memory of this process since it started.

    `ru_maxrss` would include what the process that started it held at that moment (getrusage(2), execve(2)).
    """
    return int(status_of("self", "VmHWM")) >> 10


def forked(action, folder):
    """Run a call in a forked child, which a library may crash; return its exit code and output."""
    with open(folder / "stdout", "w+") as out, open(folder / "stderr", "w+") as err:
        if not (child := os.fork()):
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # it is pytest-timeout's
            signal.alarm(120)
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            sys.stdout, sys.stderr = out, err
            code = 70
            try:
                action()
            except SystemExit as end:
                code = end.code or 0
            except BaseException:  # noqa: BLE001 - the parent reads it
                traceback.print_exc()
            finally:
                out.flush()
                err.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        printed = [(file.seek(0), file.read())[1] for file in (out, err)]
    return subprocess.CompletedProcess((), code, *printed)


@pytest.fixture
def inside(monkeypatch, capfd):
    """As `call`, but in this process: the same code and streams without the seconds that imports take."""

    def inside(*arguments):
        monkeypatch.setattr(sys, "argv", ["iobench", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        return subprocess.CompletedProcess(arguments, end.value.code or 0, *capfd.readouterr())

    return inside


def complaint(done, code):
    """The one line about what is wrong, which is all that a failing command has to say about it."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    complaints = [line for line in done.stderr.splitlines() if line.startswith("iobench: ")]
    assert len(complaints) == 1, done.stderr
    assert done.stderr.endswith(complaints[0] + "\n")
    return complaints[0]


class Arrays(iobench.Source):
    """Arrays in memory as a source, given in batches of `rows`."""

    def __init__(self, rows=50, **arrays):
        self.arrays, self.rows, self.name = arrays, rows, "arrays"
        samples = len(next(iter(arrays.values())))
        self.schema = formats.Schema(
            samples, tuple(formats.Field(n, a.shape[1:], a.dtype.name) for n, a in arrays.items())
        )

    @property
    def description(self):
        return {"kind": "test", "sum": float(sum(a.sum(dtype="float64") for a in self.arrays.values()))}

    def batches(self):
        for start in range(0, self.schema.samples, self.rows):
            yield {name: a[start : start + self.rows].copy() for name, a in self.arrays.items()}


def numbers(samples=203, seed=0):
    """A small source with a label, whose data differs with the seed."""
    rng = np.random.default_rng(seed)
    return Arrays(x=rng.random((samples, 5), np.float32), y=rng.integers(0, 10, samples))


def tree(folder):
    """Every file below a folder with its bytes, without the lock that prepare leaves."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 4 MiB in memory, and a way to make it read-only; skips where mounting is not allowed."""
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], capture_output=True)
    if done.returncode:
        pytest.skip("mounting a small disk needs root: " + done.stderr.decode().strip())
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


@pytest.fixture
def unprivileged(tmp_path):
    """Return a context in which this process has the rights of no user."""

    @contextlib.contextmanager
    def unprivileged():
        user = os.geteuid()
        for folder in (tmp_path, *tmp_path.parents):
            if folder.stat().st_mode & 0o005 != 0o005:
                folder.chmod(0o755)
        if user == 0:
            os.seteuid(65534)
        try:
            yield
        finally:
            os.seteuid(user)

    return unprivileged
