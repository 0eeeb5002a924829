"""Records and studies' results of wrong types: left out by name, and the rest is shown."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import iobench
from _faults.attacked import done
from _faults.children import complaint, forked, limit_memory
from _faults.mutations import mutated, text_of
from _faults.prepares import NAME, Call
from _faults.registry import Outcome, Trials, kind
from _faults.typed import expect, typed
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
    "source": "somebody",
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


@kind("records-by-type")
def by_type(trials: Trials) -> Iterator[Outcome]:
    """Files of records, in which some values, keys or items of a line are replaced."""
    results, new = _results(trials.folder)
    for number in trials.some(full=500, quick=8):
        bodies = copy.deepcopy(new[:3])
        told = [mutated(bodies[0], trials.chance) for _ in range(trials.chance.choice((1, 1, 1, 2, 3)))]
        lines = [text_of(bodies[0]), *map(json.dumps, bodies[1:])]
        (results / "bad.jsonl").write_text("\n".join(lines) + "\n", errors="surrogatepass")
        drawn = number % 5 == 0  # pages take longest
        ended = forked(functools.partial(_look, trials.folder, drawn))
        yield f"records {number}: {'; '.join(told)}", complaint(ended)


@kind("studies-by-type")
def studies_by_type(trials: Trials) -> Iterator[Outcome]:
    """Studies' results in which some values, keys or items are replaced, beside one that is sound."""
    results, _ = _results(trials.folder)
    (results / "sound-1.study.json").write_text(json.dumps({**STUDY, "name": "volume", "setup": "sound"}))
    for number in trials.some(full=200, quick=8):
        body = copy.deepcopy(STUDY)
        told = [mutated(body, trials.chance) for _ in range(trials.chance.choice((1, 1, 2)))]
        (results / "bad-1.study.json").write_text(text_of(body), errors="surrogatepass")
        ended = forked(functools.partial(_page, trials.folder))
        yield f"study {number}: {'; '.join(told)}", complaint(ended)


def _results(data_dir: Path) -> tuple[Path, list[dict[str, Any]]]:
    """The results folder with a sound run in it, and the bodies of that run's records."""
    done(functools.partial(Call(0, ("npy", "lmdb")), data_dir))
    results = data_dir / "results"

    def measure() -> None:
        manifest = iobench.find_dataset(data_dir, NAME)
        options = RunOptions(loader=("native",), rounds="5", batch_size=(64,), profile=True)
        found = iobench.run(manifest, options, out=results / "good.jsonl")
        assert not found.failures, found.failures

    ended = forked(measure)
    assert ended.code == 0, ended.said
    _read(data_dir, "good", drawn=True)  # what this imports, no child has to
    return results, [json.loads(line) for line in (results / "good.jsonl").read_text().splitlines()]


def _look(data_dir: Path, drawn: bool) -> None:
    """Everything that reads records: the good are shown whatever lies beside them."""
    limit_memory(LIMIT_BYTES)
    _read(data_dir, "bad", drawn)


def _read(data_dir: Path, run: str, drawn: bool) -> None:
    here = ("--data-dir", str(data_dir))
    expect(["runs", *here], "good")
    expect(["runs", "--json", *here], "good")
    expect(["runs", "show", run, *here])
    expect(["runs", "show", run, "--wide", *here])
    expect(["compare", "good", run, "--force", *here])
    table = data_dir / "table.csv"
    table.unlink(missing_ok=True)
    expect(["runs", "export", "--out", str(table), *here])
    assert table.stat().st_size > 1000, "the good runs are not in the table"
    if drawn:
        expect(["report", "good", run, "--out", str(data_dir / "page.html"), *here])


def _page(data_dir: Path) -> None:
    limit_memory(LIMIT_BYTES)
    page = data_dir / "page.html"
    page.unlink(missing_ok=True)
    found = typed("report", "good", "--out", str(page), "--data-dir", str(data_dir))
    assert (found.code, found.problem) == (0, None), f"exit {found.code}: {found.said[-2000:]}"
    assert "sound" in page.read_text(), "the sound study is not in the page"
