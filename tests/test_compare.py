"""Records against earlier ones."""

import dataclasses
import json

import pytest
from record_cases import MACHINE, a_record, rounds_of

from iobench.base.errors import (
    NotComparable,
)
from iobench.results import record
from iobench.results.compare import compare
from iobench.results.parts import FieldSpec, LimitPart, MachineGpu

STEADY = [1000, 1010, 990, 1005, 995]


def times(factor, speeds=STEADY):
    return [speed * factor for speed in speeds]


def changed(records, **changes):
    return [dataclasses.replace(one, **changes) for one in records]


@pytest.mark.parametrize(
    ("factor", "outcome"),
    [(1.0, "equivalent"), (1.02, "equivalent"), (0.8, "slower"), (1.3, "faster"), (0.955, "inconclusive")],
)
def test_the_newer_run_is_called_what_it_is(factor, outcome):
    (line,) = compare(rounds_of(STEADY), {"new": rounds_of(times(factor))}).lines
    assert (line.case, line.new) == ("npy · native", "new")
    assert line.comparison.outcome == outcome
    assert line.comparison.ratio.median == pytest.approx(factor, rel=0.02)


def test_one_round_on_a_side_decides_nothing():
    (line,) = compare(rounds_of(STEADY), {"new": rounds_of([10])}).lines
    assert line.comparison.outcome == "inconclusive"
    assert line.comparison.ratio.low is None


def test_cases_on_one_side_only_are_named():
    base = rounds_of(STEADY) + rounds_of(STEADY, variant="hdf5")
    new = rounds_of(STEADY) + rounds_of(STEADY, variant="lmdb")
    found = compare(base, {"new": new}, base_name="old")
    assert [line.case for line in found.lines] == ["npy · native"]
    assert found.missing == ["hdf5 · native is only in old", "lmdb · native is only in new"]


def test_nothing_in_common_is_refused():
    with pytest.raises(NotComparable, match="old and new have no case in common"):
        compare(rounds_of(STEADY), {"new": rounds_of(STEADY, variant="lmdb")}, base_name="old")


def test_a_case_whose_settings_changed_is_matched_and_says_what_changed():
    base = rounds_of(STEADY, loader="dataloader:num_workers=2")
    new = rounds_of(STEADY, loader="dataloader:num_workers=4", chosen={"batch_size": 512})
    (line,) = compare(base, {"new": new}).lines
    assert line.settings == ["num_workers 2 → 4", "batch_size 256 → 512"]


def test_of_several_settings_the_same_are_matched_first():
    both = [{"batch_size": 128}, {"batch_size": 256}]
    base = [one for s in both for one in rounds_of(STEADY, chosen=s)]
    new = [one for s in both[::-1] for one in rounds_of(STEADY, chosen=s)]
    found = compare(base, {"new": new})
    assert [line.settings for line in found.lines] == [[], []]
    assert found.missing == []


def test_cases_that_only_look_alike_are_not_held_against_each_other():
    base = [one for size in (64, 256) for one in rounds_of(STEADY, chosen={"batch_size": size})]
    new = [one for size in (256, 1024) for one in rounds_of(STEADY, chosen={"batch_size": size})]
    found = compare(base, {"new": new}, base_name="old")
    assert [line.case for line in found.lines] == ["npy · native, batch 256"]
    assert found.missing == [
        "npy · native, batch 64 is only in old",
        "npy · native, batch 1024 is only in new",
    ]


def test_cold_and_warm_are_told_apart_within_one_file():
    def both(factor):
        return rounds_of(times(factor)) + rounds_of(times(factor / 10), chosen={"cache": "cold"})

    found = compare(both(1), {"new": both(1)})
    assert [line.comparison.outcome for line in found.lines] == ["equivalent"] * 2


def part(name, **changes):
    """A change of some fields of a part of a record."""
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


@pytest.mark.parametrize("what", UNLIKE)
def test_what_was_not_measured_alike_is_refused_unless_forced_and_then_said_on_every_line(what):
    base, new = rounds_of(STEADY), changed(rounds_of(STEADY), **UNLIKE[what])
    with pytest.raises(NotComparable, match=rf"not measured alike: {what} .* → .*--force"):
        compare(base, {"new": new})
    (line,) = compare(base, {"new": new}, force=True).lines
    assert [difference.partition(" ")[0] for difference in line.forced] == [what]


@pytest.mark.parametrize(
    "changes",
    [
        part("machine", host="container-17"),
        part("machine", versions={"iobench": "0.2.0"}, kernel="6.2"),
    ],
)
def test_another_release_or_host_name_may_be_compared(changes):
    assert compare(rounds_of(STEADY), {"new": changed(rounds_of(STEADY), **changes)}).lines


def test_many_lines_are_corrected_for():
    def many(number):
        return [one for batch in range(1, number + 1) for one in noisy(batch)]

    def noisy(batch):
        return rounds_of([900, 950, 1000, 1050, 1100], chosen={"batch_size": batch})

    one, several = (compare(many(n), {"new": many(n)}) for n in (1, 4))
    assert (one.correction, several.correction) == (None, "Bonferroni over 4 comparisons")
    narrow, wide = (found.lines[0].comparison.ratio for found in (one, several))
    assert wide.high - wide.low > narrow.high - narrow.low


@pytest.fixture
def files(tmp_path):
    """Writes records to `NAME.jsonl` in the results folder of a data folder."""

    def write(**runs):
        for name, records in runs.items():
            for one in records:
                record.append(tmp_path / "results" / f"{name}.jsonl", one)
        return tmp_path

    return write


def test_the_command_prints_a_line_per_case(files, inside):
    root = files(old=rounds_of(STEADY), new=rounds_of(times(0.8)))
    done = inside("compare", "old", "new", "--data-dir", root)
    assert done.returncode == 0
    header, line = done.stdout.splitlines()[:2]
    assert header.split()[:3] == ["case", "new", "base"]
    assert "slower" in line
    assert "0.800" in line
    assert "below 5%" in done.stdout


def test_files_do_as_well_as_names_and_several_can_be_new(files, inside):
    root = files(old=rounds_of(STEADY), a=rounds_of(STEADY), b=rounds_of(times(2)))
    done = inside("compare", root / "results" / "old.jsonl", "a", "b", "--data-dir", root, "--json")
    found = json.loads(done.stdout)
    assert [(line["new"], line["comparison"]["outcome"]) for line in found["lines"]] == [
        ("a", "equivalent"),
        ("b", "faster"),
    ]


def test_markdown_is_a_table(files, inside):
    root = files(old=rounds_of(STEADY), new=rounds_of(STEADY))
    lines = inside("compare", "old", "new", "--data-dir", root, "--markdown").stdout.splitlines()
    assert lines[0].startswith("| case | new |")
    assert set(lines[1]) <= set("|-: ")
    assert len({line.count("|") for line in lines[:3]}) == 1


@pytest.mark.parametrize(
    ("new", "code", "said"),
    [
        (rounds_of(STEADY), 0, ""),
        (rounds_of(times(0.9)), 1, "npy · native in new is slower, it takes 1.11 × as long"),
        (rounds_of(times(0.99)), 0, ""),
        (rounds_of([1000]), 1, "too few rounds to tell"),
        (rounds_of(times(1.5)), 0, ""),
    ],
)
def test_a_gate_opens_only_where_it_can_tell_that_nothing_got_slower(files, inside, new, code, said):
    root = files(old=rounds_of(STEADY), new=new)
    done = inside("compare", "old", "new", "--data-dir", root, "--fail-on", "slower:5%")
    assert done.returncode == code
    assert said in done.stderr
    assert "npy · native" in done.stdout


def on_a_slower_machine(records, rate):
    return changed(records, limit=LimitPart(name="page cache", bytes_per_s=rate * 2.0**20))


def test_a_gate_that_would_be_shut_for_the_machines_sake_says_that_nobody_can_tell(files, inside):
    old, new = rounds_of(STEADY), rounds_of(times(0.25))
    root = files(old=on_a_slower_machine(old, 5181), new=on_a_slower_machine(new, 1300))
    done = inside("compare", "old", "new", "--data-dir", root, "--fail-on", "slower:5%")
    assert done.returncode == 3
    why = "what the machine's own page cache gives changed, too"
    told = f"npy · native: cannot tell how new differs, since {why}"
    assert f"iobench: --fail-on slower:5%: {told}\n" in done.stderr
    assert f"warning: {told}; measure both again" in done.stderr
    assert "page cache 0.25 ×" in done.stdout
    assert inside("compare", "old", "new", "--data-dir", root).returncode == 0


def test_a_case_that_got_slower_shuts_a_gate_whatever_else_nobody_can_tell(files, inside):
    old, new = rounds_of(STEADY), rounds_of(times(0.25))
    old_hdf5, new_hdf5 = rounds_of(STEADY, variant="hdf5"), rounds_of(times(0.5), variant="hdf5")
    root = files(
        old=on_a_slower_machine(old, 5181) + changed(old_hdf5, limit=None),
        new=on_a_slower_machine(new, 1300) + changed(new_hdf5, limit=None),
    )
    done = inside("compare", "old", "new", "--data-dir", root, "--fail-on", "slower:5%")
    assert done.returncode == 1
    assert "hdf5 · native in new is slower" in done.stderr


def test_fetching_samples_and_batches_find_each_other_and_say_what_differs():
    base = rounds_of(STEADY, loader="dataloader:fetch=sample")
    new = rounds_of(times(3), loader="dataloader:fetch=batch")
    found = compare(base, {"new": new})
    assert [line.settings for line in found.lines] == [["fetch sample → batch"]]
    both = base + rounds_of(STEADY, loader="native")
    assert len(compare(both, {"new": new + rounds_of(STEADY, loader="native")}).lines) == 2


def test_a_gate_stays_shut_where_a_case_is_gone(files, inside):
    root = files(old=rounds_of(STEADY) + rounds_of(STEADY, variant="lmdb"), new=rounds_of(STEADY))
    done = inside("compare", "old", "new", "--data-dir", root, "--fail-on", "slower:5%")
    assert done.returncode == 1
    assert "lmdb · native is only in old" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("old", "nowhere"), 1, "no run 'nowhere'"),
        (("old", "old", "--fail-on", "faster"), 2, "write it like slower:5%"),
        (("old", "old", "--fail-on", "slower:5"), 2, "'5' is not a percentage"),
        (("old", "old", "--min-difference", "0.05"), 2, "'0.05' is not a percentage"),
        (("old", "old", "--json", "--markdown"), 2, "choose one"),
        (("old", "other"), 1, "not measured alike: processor Z80 2 → 6502 2; give --force"),
        (("old",), 2, "'new'"),
    ],
)
def test_bad_input_is_one_line(files, inside, arguments, code, said):
    root = files(old=rounds_of(STEADY), other=changed(rounds_of(STEADY), **UNLIKE["processor"]))
    done = inside("compare", *arguments, "--data-dir", root)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_force_says_on_the_line_what_was_forced(files, inside):
    root = files(old=rounds_of(STEADY), other=changed(rounds_of(STEADY), **UNLIKE["processor"]))
    done = inside("compare", "old", "other", "--data-dir", root, "--force")
    assert "forced: processor Z80 2 → 6502 2" in done.stdout


def test_lines_that_are_no_records_are_named_and_the_rest_is_compared(files, inside):
    root = files(old=rounds_of(STEADY), new=rounds_of(STEADY))
    with open(root / "results" / "new.jsonl", "a") as file:
        file.write('{"record_version": 99}\n{"cut')
    done = inside("compare", "old", "new", "--data-dir", root)
    assert done.returncode == 0
    assert "equivalent" in done.stdout
    assert "upgrade iobench" in done.stderr
    assert "cut off in the middle" in done.stderr


def test_several_runs_of_a_side_are_compared_as_runs(files, inside):
    def of_run(factor, name):
        return changed(rounds_of(times(factor)), run=name)

    runs = {f"{side}{n}": of_run(f, f"{side}{n}") for side in "ab" for n, f in enumerate((0.9, 1.0, 1.1))}
    root = files(**runs)
    done = inside("compare", "a0", "b2", "--data-dir", root)
    assert "faster" in done.stdout
    assert "It rests on one run of each" in done.stdout
    done = inside("compare", "a0,a1,a2", "b0,b1,b2", "--data-dir", root)
    assert "inconclusive" in done.stdout
    assert "Intervals are those of whole runs, not of rounds: 3 of a0,a1,a2 and 3 newer." in done.stdout
    assert inside("compare", "a0,", "b0", "--data-dir", root).returncode == 1
