"""Names in any script: fields keep them, and what is accepted as a name works to the end."""

from __future__ import annotations

import functools
import os
import random
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

import iobench
from eval.faults.children import ChildResult, failure_of, run_forked, tried
from eval.faults.cli_runs import expect, run_cli
from eval.faults.registry import Outcome, Trials, kind
from eval.faults.scenarios import LOADER
from eval.faults.targets import installed_formats
from iobench.formats import Batch

ALPHABETS = [
    *("abcXYZ", "0123456789", "_-", ". /\\:*?\"<>|%$'#[]", "данные", "数据列", "مفتاح", "ключÄÖ", "éñ"),
    *("e\u0301n\u0303", "🐕🚀", "\uff41\uff42", "\u200b\u202e", "ıİßſ"),
]
WORDS = "f_ f con nul .. . __key__ x X é e\u0301 данные 数据 a/b a.b".split()
LIMITED = ("images", "megatron", "tokens")  # formats whose layout restricts number or types of fields
REFUSED_FIELDS = {"not-windows", "unsupported-dtype", "not-an-image"}


@kind("names")
def names(trials: Trials) -> Iterator[Outcome]:
    """Give fields, datasets, loaders and reports names that are rare, long or in any script."""
    attempts = [_fields, _fields, _fields, _dataset, _report, _loader_path]
    some = installed_formats()
    for number in trials.numbers(full=240, quick=18):
        folder = trials.folder / str(number)
        folder.mkdir()
        rng = random.Random(f"{trials.rng.random()}")
        what, problem = attempts[number % len(attempts)](folder, rng, some)
        yield f"{number}: {what}", problem


def _fields(folder: Path, rng: random.Random, some: Sequence[str]) -> Outcome:
    found = {rng.choice(WORDS) if rng.random() < 0.4 else _name(rng) for _ in range(rng.randint(1, 6))}
    variant = rng.choice(some)
    arrays = {name: np.full((20, 4), place, "f4") for place, name in enumerate(sorted(found))}
    result = run_forked(functools.partial(_prepare_and_read, folder, arrays, variant))
    problem = failure_of(result) or _refused(result, variant)
    return f"fields {sorted(found)!r} in {variant}", problem


def _refused(result: ChildResult, variant: str) -> str | None:
    """Describe a refusal that is not about number or types of the fields."""
    expected = result.kind is None or (result.kind in REFUSED_FIELDS and variant in LIMITED)
    return None if expected else f"refused: {result.output}"


def _prepare_and_read(folder: Path, arrays: Batch, variant: str) -> None:
    np.savez(folder / "source.npz", **arrays)  # type: ignore[arg-type]
    source = iobench.open_source(folder / "source.npz")
    manifest = iobench.prepare(source, [variant], data_dir=folder / "data")[0]
    seen = 0
    for batch in iobench.StreamLoader(manifest.root, format=variant, batch_size=8):
        values = {name: {float(value) for value in batch[name].flatten()} for name in tuple(batch.keys())}
        assert sorted(values.values(), key=min) == [{float(place)} for place in range(len(arrays))], values
        for name, array in arrays.items():
            assert not _is_word(name) or values[name] == {float(array[0, 0])}, f"{name!r}: {values}"
        seen += len(next(iter(batch.values())))
    assert seen == 20, f"{seen} samples"


def _is_word(name: str) -> bool:
    """Return whether every format keeps a name as it is: letters and digits of any script."""
    letters = name.replace("_", "")
    return letters.isalnum() and name[0].isalpha() and unicodedata.is_normalized("NFKC", name)


def _dataset(folder: Path, rng: random.Random, _: Sequence[str]) -> Outcome:
    name = _long(rng, rng.choice((1, 60, 190, 200, 201, 230, 240, 255, 300)))

    def work() -> None:
        here = ("--name", name, "--data-dir", str(folder / "data"))
        prepared = run_cli("prepare", "--size", "1e4", "--format", "npy", *here)
        assert prepared.problem is None, prepared.problem
        if prepared.code == 0:
            expect(["run", "--rounds", "2", "--no-limits", "--loader", "native", *here])
            expect(["report", "--data-dir", str(folder / "data"), "--out", str(folder / "r.html")])

    return tried(f"dataset {name[:20]!r}, {len(name.encode())} bytes", work)


def _report(folder: Path, rng: random.Random, _: Sequence[str]) -> Outcome:
    name = _long(rng, rng.choice((20, 200, 239, 246, 250, 255))) + ".html"
    name = name.encode()[-255:].decode(errors="ignore")

    def work() -> None:
        here = ("--data-dir", str(folder / "data"))
        expect(["prepare", "--size", "1e4", "--format", "npy", *here])
        expect(["run", "--rounds", "2", "--no-limits", "--loader", "native", *here])
        expect(["report", "--out", str(folder / name), *here])
        assert os.path.getsize(folder / name) > 1000, "no page"

    return tried(f"report {name[:20]!r}, {len(name.encode())} bytes", work)


def _loader_path(folder: Path, rng: random.Random, _: Sequence[str]) -> Outcome:
    name = rng.choice((b"\xff\xfe", "данные".encode(), b"a b", "数据".encode("gb18030"), b"x'y"))
    path = folder / os.fsdecode(name)

    def work() -> None:
        path.mkdir()
        (path / "train.py").write_text(LOADER)
        here = ("--data-dir", str(folder / "data"))
        expect(["prepare", "--size", "1e4", "--format", "npy", *here])
        target = f"{path / 'train.py'}:make_loader"
        run = run_cli("run", "--rounds", "2", "--no-limits", "--loader", target, "--loader", "native", *here)
        assert run.problem is None, run.problem
        if any((folder / "data" / "results").glob("*.jsonl")):
            expect(["runs", *here], "npy")
            expect(["report", "--out", str(folder / "r.html"), *here])

    return tried(f"loader in {name!r}", work)


def _name(rng: random.Random) -> str:
    return "".join(rng.choice(rng.choice(ALPHABETS)) for _ in range(rng.randint(1, 12)))


def _long(rng: random.Random, length: int) -> str:
    return rng.choice(("n", "ä", "数", "n-", "🐕")) * length
