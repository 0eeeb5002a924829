"""Comparison of runs with earlier ones."""

import dataclasses
import json
import re

import pytest
from kinds import complaint_kind, kind
from record_cases import MACHINE, MIB, STEADY, a_record, rounds_of, times

from iobench.base.errors import NotComparable
from iobench.base.machine import MachineGpu
from iobench.results import record_file, stats
from iobench.results.compare import Difference, compare
from iobench.results.machine_comparison import compare_machines
from iobench.results.parts import FieldSpec, LimitPart


def unmatched(result):
    return [(one.case, one.only_in) for one in result.unmatched]


def changed(records, **changes):
    return [dataclasses.replace(one, **changes) for one in records]


@pytest.mark.parametrize(
    ("factor", "outcome"),
    [(1.0, "equivalent"), (1.02, "equivalent"), (0.8, "slower"), (1.3, "faster"), (0.955, "inconclusive")],
)
def test_the_newer_run_has_the_right_outcome(factor, outcome):
    (line,) = compare(rounds_of(STEADY), {"new": rounds_of(times(factor))}).cases
    assert (line.case, line.new) == ("npy · native", "new")
    assert line.comparison.outcome == outcome
    assert line.comparison.ratio.median == pytest.approx(factor, rel=0.02)


def test_one_round_on_a_side_decides_nothing():
    (line,) = compare(rounds_of(STEADY), {"new": rounds_of([10])}).cases
    assert line.comparison.outcome == "inconclusive"
    assert line.comparison.ratio.low is None


def test_cases_on_one_side_only_are_listed():
    base = rounds_of(STEADY) + rounds_of(STEADY, variant="hdf5")
    new = rounds_of(STEADY) + rounds_of(STEADY, variant="lmdb")
    result = compare(base, {"new": new}, base_name="old")
    assert [line.case for line in result.cases] == ["npy · native"]
    assert unmatched(result) == [("hdf5 · native", "old"), ("lmdb · native", "new")]


def test_runs_without_a_common_case_are_refused():
    with pytest.raises(NotComparable, check=kind("no-common-case")):
        compare(rounds_of(STEADY), {"new": rounds_of(STEADY, variant="lmdb")}, base_name="old")


def test_a_case_with_changed_settings_is_matched_and_lists_them():
    base = rounds_of(STEADY, loader="dataloader:num_workers=2")
    new = rounds_of(STEADY, loader="dataloader:num_workers=4", chosen={"batch_size": 512})
    (line,) = compare(base, {"new": new}).cases
    assert line.settings == [Difference("num_workers", 2, 4), Difference("batch_size", 256, 512)]
    assert line.settings[0].sentence == "num_workers 2 → 4"


def test_fetching_samples_and_batches_are_matched():
    base = rounds_of(STEADY, loader="dataloader:fetch=sample") + rounds_of(STEADY)
    new = rounds_of(times(3), loader="dataloader:fetch=batch") + rounds_of(STEADY)
    settings = [line.settings for line in compare(base, {"new": new}).cases]
    assert settings == [[], [Difference("fetch", "sample", "batch")]]


def test_of_several_settings_the_same_are_matched_first():
    both = [{"batch_size": 128}, {"batch_size": 256}]
    base = [one for s in both for one in rounds_of(STEADY, chosen=s)]
    new = [one for s in both[::-1] for one in rounds_of(STEADY, chosen=s)]
    result = compare(base, {"new": new})
    assert [line.settings for line in result.cases] == [[], []]
    assert result.unmatched == []


def test_similar_cases_are_not_compared_with_each_other():
    base = [one for size in (64, 256) for one in rounds_of(STEADY, chosen={"batch_size": size})]
    new = [one for size in (256, 1024) for one in rounds_of(STEADY, chosen={"batch_size": size})]
    result = compare(base, {"new": new}, base_name="old")
    label = "npy · native, batch {}".format
    assert [line.case for line in result.cases] == [label(256)]
    assert unmatched(result) == [(label(64), "old"), (label(1024), "new")]


def test_cold_and_warm_are_separate_cases_within_one_file():
    def both(factor):
        return rounds_of(times(factor)) + rounds_of(times(factor / 10), chosen={"cache": "cold"})

    result = compare(both(1), {"new": both(1)})
    assert [line.comparison.outcome for line in result.cases] == ["equivalent"] * 2


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


def test_machines_that_measured_other_data_have_no_case_in_common():
    with pytest.raises(NotComparable, check=kind("no-common-case")):
        compare_machines(on_both({}, **UNLIKE["samples"]))


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


def test_the_command_prints_a_line_per_case(files, inside):
    root = files(old=rounds_of(STEADY), new=rounds_of(times(0.8)))
    done = inside("compare", "old", "new", "--data-dir", root)
    assert done.returncode == 0
    answer, _, header, line = done.stdout.splitlines()[:4]
    assert "1 slower" in answer
    assert header.split()[:3] == ["case", "new", "verdict"]
    assert "slower" in line
    assert "0.800" in line


def test_files_and_names_are_accepted_and_several_newer_runs(files, inside):
    root = files(old=rounds_of(STEADY), a=rounds_of(STEADY), b=rounds_of(times(2)))
    done = inside("compare", root / "results" / "old.jsonl", "a", "b", "--data-dir", root, "--json")
    result = json.loads(done.stdout)
    assert [(line["new"], line["comparison"]["outcome"]) for line in result["cases"]] == [
        ("a", "equivalent"),
        ("b", "faster"),
    ]


def test_markdown_is_a_table(files, inside):
    root = files(old=rounds_of(STEADY), new=rounds_of(STEADY))
    _, _, *lines = inside("compare", "old", "new", "--data-dir", root, "--markdown").stdout.splitlines()
    assert lines[0].startswith("| case | new |")
    assert set(lines[1]) <= set("|-: ")
    assert len({line.count("|") for line in lines[:3]}) == 1


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


def gate_kinds(done):
    """Return the kinds of the complaints of `--fail-on`."""
    return re.findall(r"^iobench: error\[([a-z-]+)\]: --fail-on slower:\d+%: ", done.stderr, re.M)


def test_complaints_have_the_case_and_the_figures():
    base = rounds_of(STEADY) + rounds_of(STEADY, variant="lmdb")
    slower, gone = compare(base, {"new": rounds_of(times(0.9))}, base_name="old").complaints
    assert (slower.kind, slower.cases) == ("slower", ["npy · native"])
    assert slower.values == {"new": "new", "ratio": pytest.approx(0.9)}
    assert (gone.kind, gone.cases, gone.values) == ("missing-case", ["lmdb · native"], {"base": "old"})
    (few,) = compare(rounds_of(STEADY), {"new": rounds_of([1000])}).complaints
    assert (few.kind, few.values["rounds"]) == ("few-rounds", 1)
    assert any("--rounds" in hint for hint in few.hints)


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
        (("old", "nowhere"), 1, "unknown-run"),
        (("old", "old", "--fail-on", "faster"), 2, "invalid-value"),
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


def test_force_lists_the_mismatches(files, inside):
    root = files(old=rounds_of(STEADY), other=changed(rounds_of(STEADY), **UNLIKE["processor"]))
    done = inside("compare", "old", "other", "--data-dir", root, "--force")
    assert "forced: processor Z80 2 → 6502 2" in done.stdout


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


def test_a_name_that_is_too_long_for_a_file_is_no_run(tmp_path, inside):
    assert complaint_kind(inside("compare", "x" * 5000, "y", "--data-dir", tmp_path), 1) == "unknown-run"


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
