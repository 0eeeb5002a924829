"""Comparison of runs with earlier ones."""

import dataclasses
import json
import re
import statistics

import pytest
from kinds import complaint_kind, kind
from record_cases import MACHINE, MIB, STEADY, a_record, rounds_of, times

from iobench.base.errors import NotComparable
from iobench.base.machine import MachineGpu
from iobench.results import record_file, stats
from iobench.results.compare import Difference, compare, compare_machines
from iobench.results.parts import FieldSpec, LimitPart


def changed(records, **changes):
    return [dataclasses.replace(one, **changes) for one in records]


@pytest.mark.parametrize(
    ("speeds", "outcome"),
    [
        (STEADY, "equivalent"),
        (times(1.02), "equivalent"),
        (times(0.8), "slower"),
        (times(1.3), "faster"),
        (times(0.955), "inconclusive"),
        ([10], "inconclusive"),  # one round
    ],
)
def test_the_newer_run_has_the_right_outcome(speeds, outcome):
    (line,) = compare(rounds_of(STEADY), {"new": rounds_of(speeds)}).cases
    assert (line.case, line.new, line.comparison.outcome) == ("npy · native", "new", outcome)
    assert line.comparison.ratio.median == pytest.approx(statistics.median(speeds) / 1000)
    assert (line.comparison.ratio.low is None) == (len(speeds) == 1)


def side(*cases):
    """Return the steady rounds of each of these cases."""
    return [one for case in cases for one in rounds_of(STEADY, **case)]


def batch(size):
    return {"chosen": {"batch_size": size}}


NPY, HDF5, LMDB = {}, {"variant": "hdf5"}, {"variant": "lmdb"}
COLD = {"chosen": {"cache": "cold"}}


@pytest.mark.parametrize(
    ("base", "new", "settings", "unmatched"),
    [
        ([NPY, HDF5], [NPY, LMDB], [[]], [("hdf5 · native", "old"), ("lmdb · native", "new")]),
        ([NPY, COLD], [COLD, NPY], [[], []], []),
        # a case with other settings, if it is the only one of its format and loader
        (
            [{"loader": "dataloader:num_workers=2"}],
            [{"loader": "dataloader:num_workers=4", **batch(512)}],
            [[Difference("num_workers", 2, 4), Difference("batch_size", 256, 512)]],
            [],
        ),
        (
            [{"loader": "dataloader:fetch=sample"}, NPY],
            [{"loader": "dataloader:fetch=batch"}, NPY],
            [[], [Difference("fetch", "sample", "batch")]],
            [],
        ),
        ([batch(128), batch(256)], [batch(256), batch(128)], [[], []], []),
        (
            [batch(64), batch(256)],
            [batch(1024), batch(256)],
            [[]],
            [("npy · native, batch 64", "old"), ("npy · native, batch 1024", "new")],
        ),
    ],
)
def test_cases_are_matched_by_their_settings(base, new, settings, unmatched):
    result = compare(side(*base), {"new": side(*new)}, base_name="old")
    assert [line.settings for line in result.cases] == settings
    assert [(one.case, one.only_in) for one in result.unmatched] == unmatched


def part(name, **changes):
    """Return a change of some fields of a part of a record."""
    return {name: dataclasses.replace(getattr(a_record(1), name), **changes)}


def case(**changes):
    return {"case": {**a_record(1).case, **changes}}


UNLIKE = {
    "processor": part("machine", cpu="6502"),
    "memory": part("machine", memory_bytes=2**35),
    "disk": part("machine", disk=dataclasses.replace(MACHINE.disk, model="slow")),
    "GPU": part("machine", gpu=MachineGpu(name="H")),
    "device": case(device="cuda:0"),
    "fields": part("dataset", fields=[FieldSpec(name="x", shape=[7], dtype="uint8")]),
    "samples": part("dataset", samples=5),
    "data": case(content="0"),
    "model": case(model="cnn"),
    "cache": case(cache="cold"),
}


def on_both(other, **more):
    """Return records of two cases on a machine, and on one of another processor, twice as fast."""
    here = [*rounds_of(STEADY), *rounds_of(times(0.5), variant="hdf5")]
    fast = [*rounds_of(times(2)), *rounds_of(times(0.5), variant="hdf5"), *rounds_of(STEADY, variant="lmdb")]
    return {"a": here, "b": changed(fast, machine=dataclasses.replace(MACHINE, **other), **more)}


def test_machines_are_compared_by_relative_times_within_each():
    found = compare_machines(on_both({"cpu": "6502", "host": "there", "versions": {"iobench": "0.2.0"}}))
    ones, others = (
        {case.label.format: case.relative.median for case in each.cases} for each in found.contexts.values()
    )
    assert ones == {"npy": 1, "hdf5": pytest.approx(2, rel=0.02)}
    assert others == {"npy": 1, "hdf5": pytest.approx(4, rel=0.02)}, "lmdb is on one machine only"
    assert found.differences == {
        "cpu": ["Z80", "6502"],
        "host": ["here", "there"],
        "iobench": ["0.1.0", "0.2.0"],
    }


def test_runs_without_a_common_case_are_refused():
    for refused in (
        lambda: compare(side(NPY), {"new": side(LMDB)}),
        lambda: compare_machines(on_both({}, **UNLIKE["samples"])),
    ):
        with pytest.raises(NotComparable, check=kind("no-common-case")):
            refused()


def test_the_command_shows_machines_without_a_verdict(tmp_path, inside):
    for name, records in on_both({"cpu": "6502"}).items():
        for one in records:
            record_file.append(tmp_path / f"{name}.jsonl", one)
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    shown = inside("compare", "--machines", *files)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "cpu: Z80 / 6502" in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 100
    assert set(json.loads(inside("compare", "--machines", "--json", *files).stdout)["contexts"]) == {"a", "b"}
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "a.jsonl").write_bytes(files[1].read_bytes())
    files[1] = tmp_path / "there" / "a.jsonl"
    shown = json.loads(inside("compare", "--machines", "--json", *files).stdout)
    assert list(shown["contexts"]) == [*map(str, files)], "of files of one name the paths"
    for flag in (["--fail-on", "slower:5%"], ["--run"], ["--force"]):
        assert complaint_kind(inside("compare", "--machines", *files, *flag), 2) == "conflicting-options"


@pytest.mark.parametrize("what", UNLIKE)
def test_runs_measured_differently_are_refused_unless_forced(what):
    base, new = rounds_of(STEADY), changed(rounds_of(STEADY), **UNLIKE[what])
    with pytest.raises(NotComparable, check=kind("measured-differently")) as caught:
        compare(base, {"new": new})
    assert re.search(rf"measured differently: {what} .* → ", caught.value.problem)
    assert "--force" in caught.value.hint
    (line,) = compare(base, {"new": new}, force=True).cases
    assert [one.name for one in line.mismatches] == [what]


@pytest.mark.parametrize(
    "changes",
    [part("machine", host="container-17"), part("machine", versions={"iobench": "0.2.0"}, kernel="6.2")],
)
def test_another_release_or_host_name_may_be_compared(changes):
    assert compare(rounds_of(STEADY), {"new": changed(rounds_of(STEADY), **changes)}).cases


def test_many_comparisons_are_corrected_for():
    def many(number):
        return [one for batch in range(1, number + 1) for one in noisy(batch)]

    def noisy(batch):
        return rounds_of([900, 950, 1000, 1050, 1100], chosen={"batch_size": batch})

    one, several = (compare(many(n), {"new": many(n)}) for n in (1, 4))
    assert (one.correction, several.correction) == (None, stats.correction(4))
    narrow, wide = (result.cases[0].comparison.ratio for result in (one, several))
    assert wide.high - wide.low > narrow.high - narrow.low


@pytest.fixture
def files(tmp_path):
    """Write records to `NAME.jsonl` in the results folder of a data folder."""

    def write(**runs):
        for name, records in runs.items():
            for one in records:
                record_file.append(tmp_path / "results" / f"{name}.jsonl", one)
        return tmp_path

    return write


def test_files_and_names_are_accepted_and_several_newer_runs(files, inside):
    root = files(old=rounds_of(STEADY), a=rounds_of(STEADY), b=rounds_of(times(2)))
    done = inside("compare", root / "results" / "old.jsonl", "a", "b", "--data-dir", root, "--json")
    result = json.loads(done.stdout)
    assert [(line["new"], line["comparison"]["outcome"]) for line in result["cases"]] == [
        ("a", "equivalent"),
        ("b", "faster"),
    ]


@pytest.mark.parametrize(
    ("new", "code", "complaints"),
    [
        (rounds_of(STEADY), 0, []),
        (rounds_of(times(0.9)), 1, ["slower"]),
        (rounds_of(times(0.99)), 0, []),
        (rounds_of([1000]), 1, ["few-rounds"]),
        (rounds_of(times(1.5)), 0, []),
    ],
)
def test_a_gate_passes_only_where_no_case_is_slower_for_certain(files, inside, new, code, complaints):
    root = files(old=rounds_of(STEADY), new=new)
    done = inside("compare", "old", "new", "--data-dir", root, "--fail-on", "slower:5%")
    assert done.returncode == code
    assert gate_kinds(done) == complaints
    assert "npy · native" in done.stdout
    assert ("few-rounds" in complaints) == bool(re.search(r"error\[few-rounds\]: .*--rounds", done.stderr))


def gate_kinds(done):
    """Return the kinds of the complaints of `--fail-on`."""
    return re.findall(r"^iobench: error\[([a-z-]+)\]: --fail-on slower:\d+%: ", done.stderr, re.M)


def on_a_slower_machine(records, rate):
    return changed(
        records, limit=LimitPart(name="page cache", bytes_per_s=rate * MIB, now_bytes_per_s=rate * MIB)
    )


def test_a_gate_is_inconclusive_where_the_machine_changed(files, inside):
    old, new = rounds_of(STEADY), rounds_of(times(0.25))
    root = files(old=on_a_slower_machine(old, 5181), new=on_a_slower_machine(new, 1300))
    done = inside("compare", "old", "new", "--data-dir", root, "--fail-on", "slower:5%")
    assert done.returncode == 3
    assert gate_kinds(done) == ["machine-changed"]
    assert re.findall(r"^warning\[([a-z-]+)\]: ", done.stderr, re.M) == ["machine-changed"]
    assert "page cache 0.25 ×" in done.stdout
    shown = json.loads(inside("compare", "old", "new", "--data-dir", root, "--json").stdout)
    assert shown["cases"][0]["comparison"]["outcome"] == "machine-changed"
    assert shown["cases"][0]["doubt"]["kind"] == "limit-changed"
    (warning,) = shown["warnings"]
    assert (warning["kind"], warning["cases"]) == ("machine-changed", ["npy · native"])
    assert warning["values"]["limit_ratio"] == pytest.approx(0.25, rel=0.01)
    assert inside("compare", "old", "new", "--data-dir", root).returncode == 0


def test_a_slower_case_and_a_missing_one_fail_a_gate_although_another_is_inconclusive(files, inside):
    old, new = rounds_of(STEADY), rounds_of(times(0.25))
    old_hdf5, new_hdf5 = rounds_of(STEADY, variant="hdf5"), rounds_of(times(0.5), variant="hdf5")
    root = files(
        old=on_a_slower_machine(old, 5181)
        + changed(old_hdf5, limit=None)
        + rounds_of(STEADY, variant="lmdb"),
        new=on_a_slower_machine(new, 1300) + changed(new_hdf5, limit=None),
    )
    done = inside("compare", "old", "new", "--data-dir", root, "--fail-on", "slower:5%")
    assert done.returncode == 1
    assert gate_kinds(done) == ["slower", "missing-case"]
    assert "hdf5 · native" in done.stderr.partition("error[slower]")[2]
    assert "lmdb · native" in done.stderr.partition("error[missing-case]")[2]


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (("old", "x" * 5000), 1, "unknown-run"),
        (("old", "old", "--fail-on", "slower:5"), 2, "invalid-percentage"),
        (("old", "old", "--min-difference", "0.05"), 2, "invalid-percentage"),
        (("old", "old", "--json", "--markdown"), 2, "conflicting-options"),
        (("old", "other"), 1, "measured-differently"),
        (("old", "other", "--max-time", "5"), 2, "conflicting-options"),
        (("old",), 2, "usage"),
    ],
)
def test_bad_input_is_one_line(files, inside, arguments, code, complaint):
    root = files(old=rounds_of(STEADY), other=changed(rounds_of(STEADY), **UNLIKE["processor"]))
    done = inside("compare", *arguments, "--data-dir", root)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1)
    assert complaint_kind(done, code) == complaint
    if complaint == "measured-differently":
        forced = inside("compare", *arguments, "--data-dir", root, "--force")
        assert "forced: processor Z80 2 → 6502 2" in forced.stdout


def test_lines_that_are_no_records_are_reported_and_the_rest_is_compared(files, inside):
    root = files(old=rounds_of(STEADY), new=rounds_of(STEADY))
    with open(root / "results" / "new.jsonl", "a") as file:
        file.write('{"record_version": 99}\n{"cut')
    done = inside("compare", "old", "new", "--data-dir", root)
    assert done.returncode == 0
    assert "equivalent" in done.stdout
    assert "record_version" in done.stderr
    numbers = re.findall(r"new\.jsonl: line (\d+): ", done.stderr)
    assert numbers == [str(len(STEADY) + n) for n in (1, 2)]


def test_several_runs_of_a_side_are_compared_as_runs(files, inside):
    def of_run(factor, name):
        return changed(rounds_of(times(factor)), run=name)

    runs = {f"{side}{n}": of_run(f, f"{side}{n}") for side in "ab" for n, f in enumerate((0.9, 1.0, 1.1))}
    root = files(**runs)

    def interval_basis(*sides):
        shown = inside("compare", *sides, "--data-dir", root, "--json").stdout
        return json.loads(shown)["interval_basis"]

    done = inside("compare", "a0", "b2", "--data-dir", root)
    assert "faster" in done.stdout
    assert interval_basis("a0", "b2") == "rounds"
    done = inside("compare", "a0,a1,a2", "b0,b1,b2", "--data-dir", root)
    assert "inconclusive" in done.stdout
    assert interval_basis("a0,a1,a2", "b0,b1,b2") == "runs"
    assert inside("compare", "a0,", "b0", "--data-dir", root).returncode == 1


VERSION = """
import time
from torch.utils.data import DataLoader, Dataset
from work import WORK_S


class Slow(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, number):
        time.sleep(WORK_S)
        return float(number)


def make(batch_size=8):
    return DataLoader(Slow(), batch_size=batch_size)


def broken():
    raise RuntimeError("no such data")
"""


@pytest.fixture
def versions(tmp_path, monkeypatch):
    """Work in a folder with versions of one program, in which each imports its own module `work`."""
    root = tmp_path / "versions"
    root.mkdir()
    monkeypatch.chdir(root)
    for name, work_s in {"base": 0.004, "same": 0.004, "slower": 0.012}.items():
        (root / name).mkdir()
        (root / name / "train.py").write_text(VERSION)
        (root / name / "work.py").write_text(f"WORK_S = {work_s}")


@pytest.mark.usefixtures("versions")
def test_a_slower_version_fails_a_gate_that_the_same_version_passes(inside, tmp_path):
    out = tmp_path / "records.jsonl"
    targets = [f"{name}/train.py:make" for name in ("base", "same", "slower")]
    gate = ("--fail-on", "slower:30%", "--max-time", "150", "--out", out, "--json")  # 40 rounds end it
    done = inside("compare", "--run", *targets, *gate)
    assert done.returncode == 1
    assert gate_kinds(done) == ["slower"]
    same, slower = json.loads(done.stdout)["cases"]
    assert (same["new"], slower["new"]) == ("same/train.py:make", "slower/train.py:make")
    assert slower["comparison"]["outcome"] == "slower"
    assert 0.2 < slower["comparison"]["ratio"]["median"] < 0.6
    assert same["comparison"]["outcome"] != "slower"
    assert min(slower["rounds"]) >= 5
    assert len(out.read_text().splitlines()) == sum((*slower["rounds"], same["rounds"][1]))


@pytest.mark.usefixtures("versions")
@pytest.mark.parametrize(
    ("words", "code", "kinds"),
    [
        (("base/train.py:make", "same/train.py:broken"), 1, "raised"),
        (("base/train.py:make", "same/train.py:absent"), 1, "no-callable"),
        (("base/train.py:make", "base/train.py:make"), 2, "same-loader"),
        (("base/train.py:make", "same/train.py:make", "--force"), 2, "conflicting-options"),
    ],
)
def test_loaders_that_cannot_be_compared_are_refused_by_name(inside, words, code, kinds):
    done = inside("compare", "--run", *words, "--max-time", "300")  # which an error ends at once
    assert done.returncode == code
    assert f"iobench: error[{kinds}]: " in done.stderr
    assert words[1].partition(":")[0] in done.stderr or code == 2


@pytest.mark.usefixtures("versions")
def test_a_gate_without_time_for_a_round_says_nothing_about_speed(inside):
    words = ("compare", "--run", "base/train.py:make", "same/train.py:make", "--max-time", "0.1")
    gate = inside(*words, "--fail-on", "slower:10%", "--json")
    assert (gate.returncode, gate.stdout, gate_kinds(gate)) == (3, "", ["no-time"])
    assert inside(*words).returncode == 1
