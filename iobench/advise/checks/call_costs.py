"""A profile of a loader: its costs by kind of work and by library, from the calls of its processes."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from iobench.base.finding import Finding

Key = tuple[str, int, str]  # file, line, function
Figures = tuple[int, int, float, float, dict[Key, Any]]  # calls, own and total seconds, the same by caller
Calls = Mapping[Key, Figures]

PACKAGES = ("site-packages", "dist-packages")  # folders that packages are installed in
OWN = (str(Path(__file__).parents[2]), "/torch/utils/data/")  # iobench, and the DataLoader itself
MOST = 0.9  # of the calls of a function, since the end of a profile cuts off some
NAMED = 3  # calls of a library in a sentence
# the queues of a DataLoader wait for work, not for the user's code
QUEUES = re.compile(r"multiprocessing/(queues|connection|popen\w*|process)\.py|threading\.py|/utils/data/")
IDLE = re.compile(r"'poll' of 'select\.poll'|posix\.waitpid|'(acquire|__enter__)' of '(_thread\.lock|_multi)")
IMAGES = r"\b(PIL|cv2|imageio|turbojpeg|simplejpeg|torchvision[/.]io)\b|ImagingDecoder"
COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")
C_LIBRARY = re.compile(r"<built-in method ([A-Za-z_]\w*)\.|of '([A-Za-z_]\w*)\.")


@dataclass(frozen=True, kw_only=True)
class Work:
    """A kind of work: the calls that are part of it, and the advice where it takes much of the time.

    Work without a kind of advice has a check of its own.
    """

    calls: str  # names of the functions, a regular expression
    inclusive: bool = True  # the time of what they call counts as well
    also: str = ""  # others that come with these, such as sorting, whose time counts as well
    iterates: str = ""  # likewise; their callers' own time counts: C code iterates over what they return
    repeats: int = 0  # only callers that call one of them so often each time count, with their own time
    in_workers: bool = False  # advice only where there are workers
    each: bool = False  # advice only where it is done for every second sample at least
    kind: str = ""  # of the advice
    cause: str = ""
    message: str = ""  # after "the time is spent"
    hint: str = ""
    measured_by: tuple[str, ...] = ("cache",)  # kinds of candidates that show what its remedy gains
    avoidable: bool = False  # its remedy takes all of its time away
    contains: tuple[str, ...] = ()  # other work that is part of it, and no cause of its own


WORK = {
    "images": Work(calls=IMAGES, inclusive=False),
    "decoding": Work(
        calls=rf"{IMAGES}|\b(zlib|gzip|bz2|lzma|lz4|zstd\w*|blosc|soundfile|librosa|torchaudio|msgpack)\b"
        r"|decompress|_pickle\.loads",
        inclusive=False,
    ),
    "scaling": Work(
        calls=r"of 'ImagingCore' objects>", inclusive=False
    ),  # by Pillow, which may decode meanwhile
    "crops": Work(calls="crop"),
    "chunks": Work(calls=r"h5py/_hl/dataset\.py:\d+ __getitem__|zarr/core(/array)?\.py:\d+ __getitem__"),
    "sound": Work(calls=r"\bsoundfile\.py:\d+ \w*read\b|torchaudio/\S+:\d+ load\b|librosa/\S+:\d+ load"),
    "lists": Work(
        calls=r"<built-in method torch\.tensor>|<method 'tolist' of 'numpy",
        inclusive=False,
        kind="python-lists",
        cause="Tensors made of Python lists, number by number.",
        message="in lists of numbers, which torch.tensor() reads and tolist() makes one by one",
        hint="store arrays from the beginning, and use torch.from_numpy() or torch.stack()",
        measured_by=("cache", "default-collate"),
    ),
    "elements": Work(
        calls=r"<method 'item' of '(torch|numpy)",
        repeats=8,
        kind="single-elements",
        cause="Numbers that are taken out of tensors or arrays one by one.",
        message="taking numbers out of tensors one by one, by .item()",
        hint="take slices and whole tensors instead",
    ),
    "text": Work(
        calls=r"\bxml/\S+:\d+ (parse\w*|iterparse)|etree/ElementTree\.py:\d+ (parse|XML|iterparse)"
        r"|lxml\.etree|json/__init__\.py:\d+ loads?|\b(orjson|ujson|simplejson)\b\S* ?loads"
        r"|yaml/__init__\.py:\d+ \w*load|/csv\.py:\d+ __next__|^pandas/io/\S+ read_\w+"
        r"|_?npyio\w*\.py:\d+ (loadtxt|genfromtxt)|^polars/io/\S+ read_\w+",
        iterates=r"<built-in method _csv\.reader>",
        each=True,
        kind="parsed-text",
        cause="Text that is parsed for each sample, such as XML, JSON and CSV.",
        message="parsing text for each sample",
        hint="parse it once, before training, and keep the values in arrays (.npy, or one Parquet file)",
        contains=("rows", "files"),
    ),
    "rows": Work(
        calls=r"^pandas/",
        kind="dataframe-rows",
        cause="Rows of a pandas DataFrame that are taken one by one, each as a new Series.",
        message="in pandas, which makes a Series of each row",
        hint="convert the columns to arrays once (DataFrame.to_numpy()), and index these",
    ),
    "members": Work(
        calls=r"numpy/lib/_?npyio\w*\.py:\d+ __getitem__",
        each=True,
        kind="npz-members",
        cause="Arrays of a .npz file, each of which is read as a whole whenever the file is indexed.",
        message="in NpzFile, which reads a whole array whenever it is indexed: mmap_mode has no effect",
        hint="take the arrays out once (x = file['x']), or save them as .npy, which mmap_mode is for",
        contains=("decoding", "files", "openings"),
    ),
    "openings": Work(
        calls=r"h5py/_hl/files\.py:\d+ (make_fid|close|__exit__)|zipfile\S*:\d+ (__init__|close)"
        r"|tarfile\.py:\d+ \w*open|\blmdb\S*:\d+ open|'(__exit__|close)' of 'Environment'"
        r"|pyarrow/parquet/core\.py:\d+ __init__"
        r"|sqlite3\.connect|zarr/api/synchronous\.py:\d+ open\w*",
        also=r"h5py/_hl/group\.py:\d+ __getitem__|zarr/core/group\.py:\d+ __getitem__",
        each=True,
        kind="file-reopened",
        cause="File of many samples that is opened again for each of them.",
        message="opening a file of many samples for each sample",
        hint="open it once in each process, in the first __getitem__, and keep it open",
        measured_by=("kept-open",),
        contains=("files", "lookups"),
    ),
    "lookups": Work(
        calls=r"h5py/_hl/group\.py:\d+ __getitem__|zarr/core/group\.py:\d+ __getitem__",
        also=r"h5py/_hl/dataset\.py:\d+ _fast_reader",  # which each object makes once
        each=True,
        kind="array-lookup",
        cause="Array of an HDF5 or Zarr file that is looked up by its name for each sample.",
        message="looking up an array by its name for each sample",
        hint="keep the array itself (self.x = file['x']), in the first __getitem__ of each process",
        measured_by=("kept-arrays",),
    ),
    "searches": Work(
        calls=r"<method '(index|count|remove)' of 'list' objects>",
        each=True,
        kind="list-searched",
        cause="List that is searched from its beginning for each sample.",
        message="searching a list for each sample",
        hint="make a dict once (places = {one: n for n, one in enumerate(values)}), and look it up there",
        avoidable=True,
    ),
    "queries": Work(
        calls=r"of 'sqlite3\.(Cursor|Connection)' objects>",
        each=True,
        kind="database-query",
        cause="Query of an SQLite database for each sample.",
        message="in queries of SQLite",
        hint="create an index of the columns in WHERE: without one (EXPLAIN QUERY PLAN says SCAN) each query "
        "reads the whole table",
    ),
    "listings": Work(
        calls=r"posix\.(listdir|scandir)|/glob\.py:\d+ i?glob|\bpathlib\S*:\d+ (r?glob|iterdir)",
        # from Python 3.13 on `Path.glob` returns an iterator, whose work is done in these
        also=r"\bpathlib\S*:\d+ (__lt__|_from_parsed_string)|/glob\.py:\d+ select_\w+",
        each=True,
        kind="folder-listed",
        cause="Folder that is listed for each sample.",
        message="listing a folder for each sample",
        hint="list it once, in __init__, and keep the paths",
        avoidable=True,
    ),
    "files": Work(
        calls=r"\b_?io\.open>|of '_io\.|_pickle\.load>|_?npyio\w*\.py:\d+ load\b"
        r"|torch/serialization\.py:\d+ load",
        each=True,
        kind="file-per-sample",
        cause="One file for each sample, opened again in each epoch.",
        message="opening and reading a file for each sample",
        hint="pack the samples into one file: 'iobench prepare --source FOLDER'",
    ),
    "proxies": Work(
        calls=r"multiprocessing/managers\.py:\d+ _callmethod",
        kind="manager-proxy",
        cause="Objects of a multiprocessing Manager: each access is a request to another process.",
        message="asking a multiprocessing Manager, a process that serves one request at a time",
        hint="give workers the object itself, or an array or tensor in shared memory",
    ),
    "locks": Work(
        calls=r"\.lock' objects>|_multiprocessing\.SemLock' objects>|fcntl\.(flock|lockf)|filelock/"
        r"|multiprocessing/synchronize\.py:\d+ (\w*acquire|__enter__)",
        in_workers=True,
        kind="lock",
        cause="Workers that wait for a lock of the dataset, so that only one of them works at a time.",
        message="waiting for a lock, so that workers work one at a time",
        hint="open what the lock protects once in each worker (in the first __getitem__), without a lock",
    ),
}


@dataclass(frozen=True)
class LibraryShare:
    """A library, its share of the time with all that it calls, and the most expensive calls of it."""

    name: str
    share: float
    calls: list[str]


@dataclass(frozen=True)
class LineShare:
    """A line of the user's own code, and the share of the time that it and what it calls take."""

    place: str
    text: str
    share: float


@dataclass(frozen=True)
class FunctionShare:
    """A function, its share of the time, and its number of calls."""

    name: str
    share: float
    calls: int


@dataclass(frozen=True)
class Profile:
    """Shares of the Python time of one process, or of all workers together.

    The profiler makes calls slower: the shares of many short calls are too large.
    """

    where: str  # ``main process`` or ``workers``
    total_s: float  # seconds of CPU time without waiting
    functions: list[FunctionShare]  # the functions with most time of their own, in that order
    getitem_share: float  # of the dataset's ``__getitem__``, including what it calls
    getitem_calls: int
    collate_share: float
    collate_own_share: float = 0.0  # of the lines of the user's collate function, without calls
    costs: Mapping[str, float] = field(default_factory=dict)  # by kind of work, see WORK
    outer: Mapping[str, tuple[int, str]] = field(default_factory=dict)  # calls of each, and the costliest
    libraries: list[LibraryShare] = field(default_factory=list)  # with all that they call, the most first
    lines: list[LineShare] = field(default_factory=list)  # of the user's own code, likewise
    gc_share: float = 0.0  # of the garbage collector
    same_random: list[str] = field(default_factory=list)  # generators that workers used from one state on
    chunks: list[str] = field(default_factory=list)  # open HDF5 datasets whose chunks hold several samples
    obstacle: str | None = None  # another profiler, beside which calls could not be profiled

    def cost(self, kind: str) -> float:
        """Return the share of a kind of work."""
        return self.costs.get(kind, 0.0)

    def unknown(self) -> Finding | None:
        """Return what is unknown because another profiler was active; None if nothing is."""
        if self.obstacle is None:
            return None
        message = (
            f"no profile of the {self.where}: another one is active ({self.obstacle}), so that the calls "
            "that take the time are unknown"
        )
        values = {"where": self.where, "profiler": self.obstacle}
        return Finding("no-profile", message, "run it without the other profiler", {**values})


NO_PROFILE = Profile("", 0.0, [], 0.0, 0, 0.0)


@contextmanager
def visible_opens() -> Iterator[None]:
    """Make lmdb.open a function in the block: it is a type, whose calls no profiler sees."""
    lmdb = sys.modules.get("lmdb")
    if lmdb is None:
        yield
        return
    own, made = lmdb.open, dict[str, Any]()
    code = "def open(*arguments, **options): return own(*arguments, **options)"
    exec(compile(code, "lmdb/__init__.py", "exec"), {"own": own}, made)
    lmdb.open = made["open"]  # type: ignore[attr-defined]
    try:
        yield
    finally:
        lmdb.open = own  # type: ignore[attr-defined]


def name_of(key: Key) -> str:
    """Return the name of a function as it is shown: the end of its path, its line and its own name."""
    file, line, function = key
    if file == "~":
        return function
    parts = Path(file).parts
    start = _package_start(parts)
    return f"{'/'.join(parts[-2 if start is None else start :])}:{line} {function}"


def _package_start(parts: Sequence[str]) -> int | None:
    roots = [place for place, part in enumerate(parts) if part in PACKAGES]
    return roots[-1] + 1 if roots else None


def busy_s(calls: Calls) -> float:
    """Return all seconds except those that queues wait for work."""
    busy = sum(figures[2] for key, figures in calls.items() if not is_idle(key))
    return max(1e-9, busy + _seconds(calls, WORK["locks"]))


def is_idle(key: Key) -> bool:
    """Return True for waiting for another process or a thread."""
    return IDLE.search(name_of(key)) is not None


def cost_shares(calls: Calls, total_s: float) -> dict[str, float]:
    """Return the share of the time of each kind of work."""
    return {kind: min(1.0, _seconds(calls, work) / total_s) for kind, work in WORK.items()}


def outer_calls(calls: Calls) -> dict[str, tuple[int, str]]:
    """Return how often each kind of work was called from outside it, and its costliest function."""
    found = {}
    for kind, work in WORK.items():
        own = _matching(calls, work.calls) | _matching(calls, work.iterates)
        outside = {key: [by for caller, by in calls[key][4].items() if caller not in own] for key in own}
        costliest = max(own, key=lambda key: sum(by[3] for by in outside[key]), default=None)
        if costliest is not None and outside[costliest]:
            found[kind] = (sum(by[0] for by in outside[costliest]), name_of(costliest))
    return found


def library_shares(calls: Calls, total_s: float) -> list[LibraryShare]:
    """Return the libraries with the time of all that they call, those that take most of it first."""
    seconds = dict[str, dict[str, float]]()
    for key, (_, _, _, _, callers) in calls.items():
        library = None if is_idle(key) else library_of(key)
        for caller, by in callers.items() if library else ():
            if library_of(caller) != library:  # else it is part of that call
                parts = seconds.setdefault(str(library), {})
                parts[name_of(key)] = parts.get(name_of(key), 0.0) + float(by[3])
    costliest = {
        library: [name for name, _ in sorted(parts.items(), key=lambda part: -part[1])[:NAMED]]
        for library, parts in seconds.items()
    }
    shares = [
        LibraryShare(library, min(1.0, sum(parts.values()) / total_s), costliest[library])
        for library, parts in seconds.items()
    ]
    return sorted(shares, key=lambda one: -one.share)


def library_of(key: Key) -> str | None:
    """Return the package of a function; None for the user's own, Python's, and the DataLoader itself."""
    file, _, function = key
    if any(own in file for own in OWN):
        return None
    if file == "~":
        found = C_LIBRARY.search(function)
        name = (found[1] or found[2]).lstrip("_") if found else ""
        return name if name and name not in sys.stdlib_module_names else None
    parts = Path(file).parts
    start = _package_start(parts)
    return None if start is None else parts[start].removesuffix(".py")


def _matching(calls: Calls, names: str) -> set[Key]:
    """Return the functions whose names a regular expression matches; none of an empty one."""
    return {key for key in calls if re.search(names, name_of(key))} if names else set()


def _seconds(calls: Calls, work: Work) -> float:
    own = _matching(calls, work.calls) | _matching(calls, work.also)
    if work.repeats:
        return _repeated_s(calls, own, work.repeats)
    if not work.inclusive:
        return sum(float(calls[key][2]) for key in own)
    # from outside only: what they call of each other is part of it already
    outside = sum(
        float(by[3])
        for key in own
        for caller, by in calls[key][4].items()
        if caller not in own and not QUEUES.search(name_of(caller))
    )
    return outside + _repeated_s(calls, _matching(calls, work.iterates), 1)


def _repeated_s(calls: Calls, own: set[Key], repeats: int) -> float:
    """Return the seconds of functions that call one of `own` again and again, and of these calls."""
    called = dict[Key, tuple[int, float]]()
    for key in own:
        for caller, by in calls[key][4].items() if key in calls else ():
            number, seconds = called.get(caller, (0, 0.0))
            called[caller] = (number + by[0], seconds + by[3])
    often = {caller for caller, (number, _) in called.items() if number >= MOST * repeats * calls[caller][0]}
    return sum(called[caller][1] for caller in often) + sum(
        float(calls[key][2]) for key in _bodies(calls, often)
    )


def _bodies(calls: Calls, functions: set[Key]) -> set[Key]:
    """Return functions with their comprehensions, which up to Python 3.11 are functions of their own.

    Two in one line have the same name, and one takes the other's place: it seems to call itself alone.
    """
    files = {file for file, _, _ in functions}
    more = {
        key
        for key, one in calls.items()
        if key[2] in COMPREHENSIONS
        and (functions & one[4].keys() or (key[0] in files and one[4].keys() <= {key}))
    }
    return functions if more <= functions else _bodies(calls, functions | more)
