"""Questions that iobench's own commands answer, each in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

from _gpu_check.check import FAILS, HOLDS, UNKNOWN, Check, Verdict, said_by

FORMATS = ("npy", "memmap", "hdf5", "lmdb")


def prepare(check: Check) -> Verdict:
    """The data that all others read."""
    formats = [part for name in FORMATS for part in ("--format", name)]
    kind = ("--sample-shape", "3x224x224", "--dtype", "uint8")
    where = ("--data-dir", str(check.data))
    return said_by(
        check.call("prepare.txt", "iobench", "prepare", "--size", check.size, *kind, *formats, *where)
    )


def suite(check: Check) -> Verdict:
    done = check.call("suite.txt", "pytest", "-m", "gpu", "-q", "-x")
    last = (done.stdout.strip().splitlines() or ["no output"])[-1]
    if done.returncode == 0 and re.search(r"\b[1-9]\d* passed", last):
        return HOLDS, last
    return FAILS, last


def limits(check: Check) -> Verdict:
    options = ("--device", check.device, "--seconds", "0.25", "--json", "--data-dir", str(check.data))
    done = check.call("limits.json", "iobench", "limits", *options)
    if done.returncode:
        return said_by(done)
    found = [one for one in json.loads(done.stdout)["limits"] if "device" in one["name"]]
    return HOLDS, "; ".join(
        f"{one['name']}, {one['how']}: {one['bytes_per_s'] / 1e9:.2f} GB/s" for one in found
    )


def run(check: Check, cache: str, model: str) -> Verdict:
    records = check.out / f"{cache}-{model}.jsonl"
    records.unlink(missing_ok=True)
    options = {"device": check.device, "cache": cache, "model": model, "rounds": "3", "fetch": "batch"}
    named = [part for name, value in options.items() for part in (f"--{name}", value)]
    where = ("--data-dir", str(check.data), "--out", str(records))
    done = check.call(f"{cache}-{model}.txt", "iobench", "run", *named, *where)
    lines = _lines(records)
    cases = {json.dumps(json.loads(line)["case"], sort_keys=True) for line in lines}
    verdict, said = said_by(done)
    if done.returncode and cache == "cold" and "cold" in said:
        return UNKNOWN, said
    return verdict, f"{len(cases)} cases in {records.name}" if verdict == HOLDS else said


def report(check: Check) -> Verdict:
    records = [str(path) for path in sorted(check.out.glob("*.jsonl"))]
    if not records:
        return UNKNOWN, "there are no records"
    page = check.out / "report.html"
    return said_by(check.call("report.txt", "iobench", "report", *records, "--out", str(page)))


def other_loaders(check: Check) -> Verdict:
    """Every loader that is installed, each in a process of its own."""
    (file := check.out / "loaders.jsonl").unlink(missing_ok=True)
    options = ("--loader", "all", "--format", "npy", "--cache", "warm", "--rounds", "2")
    where = ("--device", check.device, "--data-dir", str(check.data), "--out", str(file))
    done = check.call("loaders.txt", "iobench", "run", *options, *where)
    ran = {json.loads(line)["case"]["loader"] for line in _lines(file)}
    verdict, said = said_by(done)
    return verdict, f"{', '.join(sorted(ran))}{f'; {said}' if verdict == FAILS else ''}"


def kvikio(check: Check) -> Verdict:
    """Straight from the disk, beside what goes through the host."""
    return _library(check, "gds", "kvikio", ("gds", "native", "stream"), "mode", "warm,cold")


def dali(check: Check) -> Verdict:
    """A pipeline that copies to the GPU, beside one that leaves it to torch, and what has no pipeline."""
    return _library(check, "dali", "nvidia.dali", ("dali", "dali:pipeline=cpu", "native"), "pipeline", "warm")


def installed(module: str) -> bool:
    """Whether a module can be found."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it is not there
        return False


def _library(
    check: Check, name: str, module: str, loaders: tuple[str, ...], option: str, cache: str
) -> Verdict:
    """A loader that fills the device itself, run beside others: which way it decided for."""
    if not installed(module):
        return UNKNOWN, f"not installed: pip install 'iobench[{name}]'"
    (file := check.out / f"{name}.jsonl").unlink(missing_ok=True)
    words = [word for loader in loaders for word in ("--loader", loader)]
    options = ("--format", "npy", "--cache", cache, "--device", check.device, "--out", str(file))
    done = check.call(f"{name}.txt", "iobench", "run", "--data-dir", str(check.data), *words, *options)
    cases = [record["case"] for record in map(json.loads, _lines(file))]
    chosen = {case["options"][option] for case in cases if case["loader"] == name}
    verdict, last = said_by(done)
    return verdict, f"{option} {', '.join(sorted(chosen)) or 'unknown'}; {last}"


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []
