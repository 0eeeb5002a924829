"""Libraries that are not installed: what needs one works, or ends with one line that says what to install."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from eval.faults import core_only
from eval.faults.foreign_data import ForeignData, foreign_data
from eval.faults.registry import Outcome, Trials, kind
from eval.faults.targets import VerifiedDatasets, installed_formats
from iobench import formats, studies
from iobench.base.registry import extra_of
from iobench.loading import loaders

HERE = "--data-dir whole/x-float32"
RUN = f"run --rounds 1 --no-limits {HERE}"
OTHERS = (
    *(f"{RUN} --loader native", f"{RUN} --loader all --format npy", f"{RUN} --format npy --ray auto"),
    *(f"verify {HERE}", f"limits --seconds 0.01 {HERE}", f"recommend --max-time 10 --loader native {HERE}"),
    *("prepare --source pictures", "add pictures", "recommend --source pictures --max-time 10"),
    *("prepare --source table.csv", "formats", "loaders", f"report {HERE}", f"report --png charts {HERE}"),
    *(f"runs {HERE}", f"runs export --out rounds.csv {HERE}", f"runs export --out rounds.parquet {HERE}"),
)
MEASURED = """
from pathlib import Path
import iobench
options = iobench.RunOptions(format=("npy",), loader=("native",), rounds="1", limits=False)
result = iobench.run(iobench.find_dataset(Path("whole/x-float32")), options)
"""
IN_A_NOTEBOOK = [MEASURED + code for code in ("result.to_pandas()", "result.plot()", "result._repr_html_()")]


@kind("missing-libraries")
def missing_libraries(trials: Trials) -> Iterator[Outcome]:
    """Use each format, loader, source, study and output with the core dependencies alone."""
    asked: list[list[str] | str] = [line.split() for line in _lines(_make_files(trials.folder))]
    chosen = trials.sample([*asked, *IN_A_NOTEBOOK], quick=16)
    done = subprocess.run(
        [sys.executable, "-m", "eval.faults.core_only"],
        input="".join(json.dumps(one) + "\n" for one in chosen),
        stdout=subprocess.PIPE,
        text=True,
        cwd=trials.folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([*core_only.__path__, *sys.path])},
    )
    problems = [json.loads(line) for line in done.stdout.splitlines()]
    problems += [f"the process ended with {done.returncode}"] * (len(chosen) - len(problems))
    for one, problem in zip(chosen, problems, strict=True):
        yield one if isinstance(one, str) else " ".join(one), problem


def _lines(data: Sequence[ForeignData]) -> Iterator[str]:
    for number, one in enumerate(data):
        shape = "--sample-shape 8x8x3 --dtype uint8"
        yield f"prepare --size 1e5 {shape} --name made-{number} --format {one.variant}"
        if extra_of(formats.type_of(one.variant)):
            yield f"add {one.path} --name added-{number}"
            yield f"prepare --source {one.path} --name converted-{number}"
    yield from (f"{RUN} --loader {name}" for name in loaders.names())
    yield from (f"study {name} --quick" for name in studies.names())
    yield from OTHERS


def _make_files(folder: Path) -> list[ForeignData]:
    """Create data of every format and of every other source; return those of formats."""
    from PIL import Image

    data = foreign_data(
        VerifiedDatasets(folder / "whole", installed_formats(), samples=30), folder / "foreign"
    )
    (folder / "table.csv").write_text("a,b\n" + "1,2\n" * 50)
    (folder / "pictures" / "label").mkdir(parents=True)
    Image.new("RGB", (300, 300)).save(folder / "pictures" / "label" / "1.png")
    return data
