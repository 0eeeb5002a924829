"""`iobench run` as a user meets it: a process, its two streams and its exit code."""

import json
import os
import signal
import subprocess

import numpy as np
import psutil
import pytest
from conftest import call, command, complaint, damage, prepared, require_disk

from iobench.dataset.manifest import VERSION
from iobench.dataset.prepare import DEFAULT_FORMATS
from iobench.results import record
from iobench.results.cases import key_of
from iobench.results.metrics import METRICS

NOT_SHOWN = (  # on a CPU, in one process
    *("device_allocated_bytes", "device_reserved_bytes", "loss", "shuffledness", "spans_share", "headroom"),
    *(metric.name for metric in METRICS if metric.name.startswith("rank_")),
)


def run(manifest, *arguments, by=call):
    data_dir = ("--data-dir", manifest.root.parent)
    return by("run", *data_dir, "--device", "cpu", "--rounds", "3", *arguments)


def test_every_case_gets_a_line_and_the_fastest_a_sentence(images, inside, tmp_path):
    out = tmp_path / "r.jsonl"
    done = run(images, "--format", "all", "--out", out, by=inside)
    assert done.returncode == 0, done.stderr
    for name in DEFAULT_FORMATS:
        for loader in ("native", "dataloader", "stream"):
            assert any(line.startswith(name) and loader in line for line in done.stdout.splitlines())
    said = done.stdout.rpartition("\n\n")[2].splitlines()
    assert said[0].startswith(("Fastest: ", "Equally fast", "Inconclusive"))
    assert {line.split(":")[0] for line in said[1:]} >= {f"  under {one}" for one in ("native", "stream")}
    for word in ("cpu, warm cache, random order", "samples/s", "95 %", "times as long", "reached"):
        assert word in done.stdout
    wide = inside("runs", "--data-dir", images.root.parent, "show", out, "--wide").stdout
    assert all(metric.title in wide for metric in METRICS if metric.name not in NOT_SHOWN)
    assert len(record.read(out)[0]) == 3 * 3 * len(DEFAULT_FORMATS)
    assert f"dataset {images.name}" in done.stderr
    assert "(the newest in" in done.stderr
    assert f"records: {out}" in done.stderr


def test_json_is_all_there_is_on_stdout(images, tmp_path):
    options = ("--model", "mlp", "--name", images.name, "--format", "npy", "--loader", "native", "--json")
    done = run(images, *options, "--out", tmp_path / "r.jsonl", "--order", "random", "--seed", "7")
    found = json.loads(done.stdout, parse_constant=pytest.fail)
    ((one,), verdict) = (found["contexts"][0][name] for name in ("cases", "verdict"))
    assert (found["dataset"], verdict["outcome"]) == (images.name, "single")
    assert (one["rounds"], one["facets"]["order"], one["facets"]["seed"]) == (3, "random", 7)
    assert one["metrics"]["loss"]["median"] > 0
    assert 0 < one["metrics"]["wait_share"]["median"] <= 1
    assert "newest" not in done.stderr


def test_json_has_null_where_it_has_no_number(inside, tmp_path):
    manifest = prepared(tmp_path, {"x": np.full((8, 4), np.nan, np.float32)}, ["npy"])
    done = run(manifest, "--model", "mlp", "--loader", "native", "--json", by=inside)
    assert (
        json.loads(done.stdout, parse_constant=pytest.fail)["contexts"][0]["cases"][0]["metrics"]["loss"][
            "median"
        ]
        is None
    )


def test_cold_is_proved_and_said(floats, by_file, inside, tmp_path):
    require_disk(floats.root)
    asked = ("--cache", "cold", "--format", "memmap", "--loader", "native", "--out", tmp_path / "r")
    done = run(floats, *asked, by=inside)
    assert done.returncode == 0, done.stderr
    assert "cold cache" in done.stdout
    assert all(one.cache.residency <= 0.01 for one in record.read(tmp_path / "r")[0])
    assert all(
        one.disk.read_bytes > 0.9 * floats.schema.logical_bytes for one in record.read(tmp_path / "r")[0]
    )


def test_a_case_that_is_wrong_is_named_and_the_others_are_measured(own_images, inside):
    damage(own_images.files_of("npy")[0])
    done = run(own_images, "--format", "npy", "--format", "lmdb", "--loader", "native", by=inside)
    assert "npy · native: wrong content" in complaint(done, 1)
    assert "lmdb" in done.stdout
    assert list((own_images.root.parent / "results").glob("*.jsonl"))


def test_workers_under_spawn_start_from_the_command_line(images, tmp_path):
    workers = ("--num-workers", "1", "--start-method", "spawn", "--prefetch-factor", "1")
    case = ("--format", "npy", "--loader", "dataloader", "--fetch", "batch", "--batch-size", "64")
    done = run(images, *case, *workers, "--rounds", "1", "--out", tmp_path / "r.jsonl")
    assert done.returncode == 0, done.stderr
    assert record.read(tmp_path / "r.jsonl")[0][0].case["options"]["num_workers"] == 1


USAGE = [
    (("--format", "csv"), "unknown format 'csv'; known: "),
    (("--format", "hdf5:speed=1"), "has no option 'speed'"),
    (("--format", "hdf5:compression=zip"), "compression=zip: compression must be one of"),
    (("--format", "npy,memmap"), "unknown format 'npy,memmap' (give each a --format of its own); known: "),
    (("--loader", "train.py"), "names a file without a function in it, as train.py:make_loader does"),
    (("--loader", "fast"), "unknown loader 'fast'; known: dali, dataloader, "),
    (("--device", "tpu"), "unknown device 'tpu'; known: "),
    (("--cache", "tepid"), "cache 'tepid' is not one of warm, cold"),
    (("--order", "backwards"), "order 'backwards' is not one of"),
    (("--fetch", "all"), "--fetch all: it must be one of sample, batch"),
    (("--model", "gpt"), "model 'gpt' is not one of"),
    (("--batch-size", "0"), "batch_size 0 is below 1"),
    (("--batch-size", "many"), "--batch-size"),
    (("--rounds", "0"), "rounds 0 is below 1"),
    (("--warmup", "0"), "warmup 0 is below 1"),
    (("--num-workers", "-1"), "--num-workers -1: it must be a whole number from 0 to 1024"),
    (("--prefetch-factor", "2"), "prefetch_factor needs workers"),
    (("--block-size", "4KiB"), "for order block, not random"),
    (("--loader", "native", "--direct"), "direct is no option of native"),
    (("--seed", "-1"), "seed -1 is below 0"),
    (("--sudo",), "add --cache cold"),
    (("--pin-memory",), "need an accelerator"),
    (("--loader", "dataloader:speed=9"), "loader dataloader has no option 'speed'"),
    (("--loader", "native:pin_memory"), "'pin_memory' is not OPTION=VALUE"),
    (("--max-time", "-3"), "max-time -3.0 is not"),
    (("--plan", "/no/such/file.toml"), "--device, --rounds: the plan /no/such/file.toml says that"),
    (("--save-plan", "/no/such/folder/p.toml"), "cannot be written"),
    (("--speed", "9"), "--speed"),
]


@pytest.mark.parametrize(("arguments", "said"), USAGE)
def test_what_cannot_be_asked_is_a_usage_error(images, inside, arguments, said):
    done = run(images, *arguments, by=inside)
    assert said in complaint(done, 2)
    assert done.stdout == ""


def test_a_model_that_does_not_fit_the_data_is_a_usage_error(floats, inside):
    assert "use --model mlp" in complaint(run(floats, "--model", "cnn", by=inside), 2)


def test_a_device_that_is_not_here_is_an_error(images, inside):
    assert "--device cuda:99: this machine has" in complaint(run(images, "--device", "cuda:99", by=inside), 1)


def test_a_variant_that_is_not_prepared_is_an_error_with_the_command(images, inside):
    done = run(images, "--format", "hdf5:chunk_bytes=0", by=inside)
    assert f"iobench prepare --name {images.name} --format hdf5:chunk_bytes=0" in complaint(done, 1)


def test_without_a_dataset_the_command_to_make_one_is_named(tmp_path, inside):
    done = inside("run", "--data-dir", tmp_path / "nothing")
    assert "run 'iobench prepare --size 1e7' first" in complaint(done, 1)
    assert not (tmp_path / "nothing").exists()
    assert "no dataset there" in complaint(inside("run", "--data-dir", tmp_path, "--name", "other"), 1)
    assert "dataset name '../x'" in complaint(inside("run", "--data-dir", tmp_path, "--name", "../x"), 2)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("{", "not a manifest"),
        ("[]", "not a manifest"),
        ('{"manifest_version": 99}', "upgrade iobench"),
        (f'{{"manifest_version": {VERSION}}}', "damaged manifest"),
    ],
)
def test_a_manifest_that_is_none_is_an_error(tmp_path, inside, body, said):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "manifest.json").write_text(body)
    assert said in complaint(inside("run", "--data-dir", tmp_path), 1)


def test_a_missing_file_is_an_error_with_what_to_do(own_images, inside):
    path = own_images.files_of("npy")[0]
    path.unlink()
    done = run(own_images, "--format", "npy", "--loader", "native", by=inside)
    assert f"{path}: expected" in complaint(done, 1)
    assert "prepare it again" in complaint(done, 1)
    assert done.stdout == ""


def test_records_that_cannot_be_written_are_an_error(images, inside, tmp_path):
    done = run(images, "--out", tmp_path, by=inside)
    assert f"records cannot be written to {tmp_path};" in complaint(done, 1)


def test_cold_through_sudo_that_is_not_here_is_an_error(by_file, images, inside, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    done = run(images, "--cache", "cold", "--sudo", by=inside)
    assert "--sudo: there is no sudo here" in complaint(done, 1)


def test_a_plan_repeats_a_run_and_is_all_that_is_said_of_it(images, inside, tmp_path):
    plan, data = tmp_path / "plan.toml", ("--data-dir", images.root.parent)
    chosen = ("--format", "npy", "--loader", "stream:direct=no", "--order", "block")
    more = ("--batch-size", "32,64", "--threads", "1,2", "--no-limits", "--max-time", "600")
    first = run(images, *chosen, *more, "--save-plan", plan, "--out", tmp_path / "a.jsonl", by=inside)
    assert first.returncode == 0, first.stderr
    again = inside("run", *data, "--plan", plan, "--out", tmp_path / "b.jsonl")
    assert again.returncode == 0, again.stderr
    one, other = (record.read(tmp_path / name)[0] for name in ("a.jsonl", "b.jsonl"))
    cases = [{(key_of(r.case), r.round) for r in records} for records in (one, other)]
    assert cases[0] == cases[1]
    assert len(cases[0]) == 3 * 4
    said = complaint(inside("run", *data, "--plan", plan, "--seed", "3"), 2)
    assert f"--seed: the plan {plan} says that" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hello", "cannot be read"),
        ("x = 1", "has no table [run]"),
        ("[run]\nspeed = 9", "a run has no setting speed"),
        ("colour = 1\n[run]", "a run has no setting colour"),
        ('[run]\nbatch_size = ["many"]', "Expected `int`"),
        ("[run]\nbatch_size = [0]", "batch_size 0 is below 1"),
        ('content = "00"\n[run]', "was written for data 00"),
    ],
)
def test_a_plan_that_is_none_is_one_line(images, inside, tmp_path, text, said):
    (tmp_path / "plan.toml").write_text(text)
    done = inside("run", "--data-dir", images.root.parent, "--plan", tmp_path / "plan.toml")
    assert said in complaint(done, 2)


def test_an_option_that_counts_once_is_said_to(images, inside):
    where = ("--data-dir", images.root.parent, "--name", images.name, "--no-limits")
    twice = (
        "--format",
        "npy",
        "--format",
        "memmap",
        "--no-limits",
        "--order",
        "random",
        "--order",
        "sequential",
    )
    done = inside("run", *where, "--loader", "native", "--rounds", "1", *twice)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "times" in line]
    assert len(said) == 1
    assert said[0].startswith("--order was given 2 times, of which only the last counts")


def test_loaders_are_listed_with_their_options(inside):
    shown = inside("loaders").stdout
    listed = {one["name"]: one for one in json.loads(inside("loaders", "--json").stdout)}
    for name in ("dataloader", "native", "stream"):
        assert name in shown
        assert listed[name]["usable"] == "yes"
    usable, options = (part.splitlines() for part in shown.split("\n\n"))
    assert len([line for line in usable if line[0] != " "]) == 1 + len(listed)
    assert any(line.split()[:3] == ["dataloader", "pin_memory", "none"] for line in options)
    options = {option["name"]: option for option in listed["dataloader"]["options"]}
    assert (options["num_workers"]["default"], options["num_workers"]["minimum"]) == (0, 0)


def test_an_interrupt_prints_what_was_measured_and_leaves_no_process(images, tmp_path):
    dataset = ("--data-dir", images.root.parent, "--format", "npy", "--loader", "dataloader")
    settings = ("--device", "cpu", "--num-workers", 2, "--rounds", 9999, "--out", tmp_path / "r.jsonl")
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command("run", *dataset, *settings), start_new_session=True, **streams) as process:
        while not process.stderr.readline().startswith("round 2/"):
            assert process.poll() is None
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers as well
        out, said = process.communicate(timeout=60)
    ended = complaint(subprocess.CompletedProcess((), process.returncode, out, said), 130)
    assert "is kept; go on with: iobench run" in ended
    assert any(line.startswith("npy") for line in out.splitlines())
    assert len(record.read(tmp_path / "r.jsonl")[0]) >= 2
    left = [p for p in psutil.process_iter() if session_of(p) == process.pid]
    assert not psutil.wait_procs(left, timeout=10)[1]


def session_of(process):
    try:
        return os.getsid(process.pid)
    except ProcessLookupError:
        return None


@pytest.mark.parametrize(
    ("option", "code", "said"),
    [
        ("--plan", 2, "is no regular file"),
        ("--save-plan", 2, "no regular file"),
        ("--out", 1, "records cannot be written"),
    ],
)
def test_a_fifo_is_not_waited_for(images, inside, tmp_path, option, code, said):
    os.mkfifo(tmp_path / "fifo")
    done = inside("run", "--data-dir", images.root.parent, option, tmp_path / "fifo")
    assert said in complaint(done, code)


def test_an_error_is_no_longer_than_somebody_reads(inside):
    assert len(complaint(inside("formats", "x" * 100_000), 2)) < 2000


@pytest.mark.parametrize("name", ["x" * 300, "x/" * 3000])
@pytest.mark.parametrize("command", [("runs", "show"), ("run", "--out"), ("run", "--plan"), ("report",)])
def test_a_name_that_no_disk_takes_is_one_line(images, inside, command, name):
    done = inside(*command, name, "--data-dir", images.root.parent)
    complaint(done, 2 if "--plan" in command else 1)
