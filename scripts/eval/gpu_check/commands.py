"""Steps that run commands of iobench."""

from __future__ import annotations

import importlib.util
import json
import re
from typing import Any

from eval.gpu_check.check import FAIL, PASS, UNKNOWN, Check, Verdict, verdict_of

FORMATS = ("npy", "memmap", "hdf5", "lmdb")


def prepare(check: Check) -> Verdict:
    """Prepare the data of all other steps."""
    formats = [part for name in FORMATS for part in ("--format", name)]
    kind = ("--sample-shape", "3x224x224", "--dtype", "uint8")
    where = ("--data-dir", str(check.data))
    return verdict_of(
        check.call("prepare.txt", "iobench", "prepare", "--size", check.size, *kind, *formats, *where)
    )


def suite(check: Check) -> Verdict:
    """Run the GPU tests of the test suite."""
    processes = ("-n", "4") if installed("xdist") else ()
    done = check.call("suite.txt", "pytest", "-m", "gpu", "-q", "-x", *processes)
    last = (done.stdout.strip().splitlines() or ["no output"])[-1]
    if done.returncode == 0 and re.search(r"\b[1-9]\d* passed", last):
        return PASS, last
    return FAIL, last


def limits(check: Check) -> Verdict:
    """Measure the limits of the host-to-device link."""
    options = ("--device", check.device, "--seconds", "0.25", "--json", "--data-dir", str(check.data))
    done = check.call("limits.json", "iobench", "limits", *options)
    if done.returncode:
        return verdict_of(done)
    device_limits = [one for one in json.loads(done.stdout)["limits"] if "device" in one["name"]]
    return PASS, "; ".join(
        f"{one['name']}, {one['how']}: {one['bytes_per_s'] / 1e9:.2f} GB/s" for one in device_limits
    )


def run(check: Check, cache: str, model: str) -> Verdict:
    """Run all default loaders over all formats."""
    name, options = f"{cache}-{model}", f"--cache {cache} --model {model} --rounds 3 --fetch batch"
    (verdict, evidence), every = _measured(check, name, *options.split())
    if verdict == FAIL and cache == "cold" and "cold" in evidence:
        return UNKNOWN, evidence
    cases = {json.dumps(case, sort_keys=True) for case in every}
    return verdict, f"{len(cases)} cases in {name}.jsonl" if verdict == PASS else evidence


def report(check: Check) -> Verdict:
    """Write a report about all records."""
    records = [str(path) for path in sorted(check.out.glob("*.jsonl"))]
    if not records:
        return UNKNOWN, "no records"
    page = check.out / "report.html"
    return verdict_of(check.call("report.txt", "iobench", "report", *records, "--out", str(page)))


def other_loaders(check: Check) -> Verdict:
    """Run every installed loader over npy."""
    options = "--loader all --format npy --cache warm --rounds 2"
    (verdict, evidence), cases = _measured(check, "loaders", *options.split())
    ran = sorted({case["loader"] for case in cases})
    return verdict, f"{', '.join(ran)}{f'; {evidence}' if verdict == FAIL else ''}"


def kvikio(check: Check) -> Verdict:
    """Compare reads from the disk to the GPU with loaders that go through the host."""
    return _library(check, "gds", "kvikio", ("gds", "native", "stream"), "mode", "warm,cold")


def dali(check: Check) -> Verdict:
    """Compare the GPU pipeline with the CPU pipeline and with native."""
    return _library(check, "dali", "nvidia.dali", ("dali", "dali:pipeline=cpu", "native"), "pipeline", "warm")


def installed(module: str) -> bool:
    """Return whether a module is installed."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False


def _library(
    check: Check, name: str, module: str, loaders: tuple[str, ...], option: str, cache: str
) -> Verdict:
    """Run a loader that writes to the device itself and others; report the path that it selected."""
    if not installed(module):
        return UNKNOWN, f"not installed: pip install 'iobench[{name}]'"
    words = [word for loader in loaders for word in ("--loader", loader)]
    words += ["--format", "npy", "--cache", cache, "--rounds", "3"]
    (verdict, last), cases = _measured(check, name, *words)
    chosen = {case["options"][option] for case in cases if case["loader"] == name}
    return verdict, f"{option} {', '.join(sorted(chosen)) or 'unknown'}; {last}"


def _measured(check: Check, name: str, *words: str) -> tuple[Verdict, list[dict[str, Any]]]:
    """Run cases with their records in NAME.jsonl; return the verdict, and the case of each record."""
    (file := check.out / f"{name}.jsonl").unlink(missing_ok=True)
    where = ("--device", check.device, "--data-dir", str(check.data), "--out", str(file))
    verdict = verdict_of(check.call(f"{name}.txt", "iobench", "run", *words, *where))
    lines = file.read_text().splitlines() if file.exists() else []
    return verdict, [json.loads(line)["case"] for line in lines]
