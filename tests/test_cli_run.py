"""`iobench run` as a user meets it: a process, its two streams and its exit code."""

import json
import os
import signal
import subprocess
import time
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from conftest import call, command, complaint, prepared, require_disk
from kinds import complaint_kind

from iobench.dataset.manifest_file import VERSION
from iobench.dataset.prepare import DEFAULT_FORMATS
from iobench.results import record_file
from iobench.results.metrics import METRICS

NOT_SHOWN = (  # on a CPU, in one process
    *(
        "device_allocated_bytes",
        "device_reserved_bytes",
        "loss",
        "tokens_per_s",  # of token files
        "epoch_cost",  # of an object store, by stated prices
        "object_cache_hits",
        "refetched_bytes",
        "shuffle_quality",
        *("fill", "length_p50", "length_p99"),  # of samples that differ in length
        "decode_s",
        "profiling_share",
        "headroom",
        "epoch_share",
    ),
    *(metric.name for metric in METRICS if metric.name.startswith(("rank_", "straggler_", "request"))),
)


def run(manifest, *arguments, by=call):
    data_dir = ("--data-dir", manifest.root.parent)
    return by("run", *data_dir, "--device", "cpu", "--rounds", "3", *arguments)


def test_cases_skipped_for_one_cause_take_one_line(images, inside, tmp_path):
    loaders = ("--loader", "native", "--loader", "stream", "--no-limits", "--max-time", "0.001")
    done = run(
        images, "--format", "npy", "--format", "lmdb", *loaders, "--out", tmp_path / "r.jsonl", by=inside
    )
    assert done.returncode == 0, done.stderr
    (line,) = (one for one in done.stderr.splitlines() if one.startswith("skipped: "))
    assert line.count("·") == 3
    assert "not measured" not in done.stderr


def test_every_case_gets_a_line_and_the_fastest_a_sentence(images, inside, tmp_path):
    out = tmp_path / "r.jsonl"
    done = run(images, "--format", "all", "--out", out, by=inside)
    assert done.returncode == 0, done.stderr
    for name in DEFAULT_FORMATS:
        for loader in ("native", "dataloader", "stream"):
            assert any(line.startswith(name) and loader in line for line in done.stdout.splitlines())
    assert done.stdout.split("\n\n")[1].startswith("Use ")
    assert all(word in done.stdout for word in ("samples/s", "relative", "limit", "warm", "random"))
    wide = inside("runs", "--data-dir", images.root.parent, "show", out, "--wide").stdout
    assert all(metric.title in wide for metric in METRICS if metric.name not in NOT_SHOWN)
    assert len(record_file.read(out)[0]) == 3 * 3 * len(DEFAULT_FORMATS)
    assert f"dataset {images.name}" in done.stderr
    assert "(the newest in" in done.stderr
    assert f"records: {out}" in done.stderr


def test_json_is_all_there_is_on_stdout(images, tmp_path):
    options = ("--model", "mlp", "--name", images.name, "--format", "npy", "--loader", "native", "--json")
    done = run(images, *options, "--out", tmp_path / "r.jsonl", "--order", "random", "--seed", "7")
    shown = json.loads(done.stdout, parse_constant=pytest.fail)
    ((one,), verdict) = (shown["contexts"][0][name] for name in ("cases", "verdict"))
    assert (shown["dataset"], verdict["outcome"]) == (images.name, "single")
    assert (one["rounds"], one["facets"]["order"], one["facets"]["seed"]) == (3, "random", 7)
    assert one["metrics"]["loss"]["median"] > 0
    assert 0 < one["metrics"]["wait_share"]["median"] <= 1
    assert "newest" not in done.stderr


def test_json_has_null_where_it_has_no_number(inside, tmp_path):
    manifest = prepared(tmp_path, {"x": np.full((8, 4), np.nan, np.float32)}, ["npy"])
    done = run(manifest, "--model", "mlp", "--loader", "native", "--json", by=inside)
    ((one,),) = (
        context["cases"] for context in json.loads(done.stdout, parse_constant=pytest.fail)["contexts"]
    )
    assert one["metrics"]["loss"]["median"] is None


def test_cold_is_verified_and_shown(floats, by_file, inside, tmp_path):
    require_disk(floats.root)
    options = ("--cache", "cold", "--format", "memmap", "--loader", "native", "--out", tmp_path / "r")
    done = run(floats, *options, by=inside)
    assert done.returncode == 0, done.stderr
    assert "cold cache" in done.stdout
    for one in record_file.read(tmp_path / "r")[0]:
        assert one.cache.residency <= 0.01
        assert one.disk.read_bytes > 0.9 * floats.schema.logical_bytes


def test_workers_under_spawn_start_from_the_command_line(images, tmp_path):
    workers = ("--num-workers", "1", "--start-method", "spawn", "--prefetch-factor", "1")
    case = ("--format", "npy", "--loader", "dataloader", "--fetch", "batch", "--batch-size", "64")
    done = run(images, *case, *workers, "--rounds", "1", "--out", tmp_path / "r.jsonl")
    assert done.returncode == 0, done.stderr
    assert record_file.read(tmp_path / "r.jsonl")[0][0].case["options"]["num_workers"] == 1


USAGE = [
    (("--format", "csv"), "unknown-format"),
    (("--format", "hdf5:speed=1"), "unknown-option"),
    (("--format", "hdf5:compression=zip"), "invalid-value"),
    (("--format", "npy,memmap"), "unknown-format"),
    (("--loader", "train.py"), "no-function"),
    (("--loader", "fast"), "unknown-loader"),
    (("--device", "tpu"), "unknown-device"),
    (("--cache", "tepid"), "unknown-choice"),
    (("--order", "backwards"), "unknown-choice"),
    (("--fetch", "all"), "invalid-value"),
    (("--model", "gpt"), "unknown-choice"),
    (("--batch-size", "0"), "out-of-range"),
    (("--batch-size", "many"), "not-a-number"),
    (("--rounds", "0"), "out-of-range"),
    (("--max-batches", "0"), "out-of-range"),
    (("--warmup", "0"), "out-of-range"),
    (("--num-workers", "-1"), "invalid-value"),
    (("--prefetch-factor", "2"), "needs-workers"),
    (("--block-size", "4KiB"), "conflicting-options"),
    (("--loader", "native", "--direct"), "unknown-option"),
    (("--seed", "-1"), "out-of-range"),
    (("--sudo",), "missing-option"),
    (("--pin-memory",), "no-pinned-memory"),
    (("--loader", "dataloader:speed=9"), "unknown-option"),
    (("--loader", "native:pin_memory"), "malformed-option"),
    (("--max-time", "-3"), "out-of-range"),
    (("--plan", "/no/such/file.toml"), "conflicting-options"),
    (("--save-plan", "/no/such/folder/p.toml"), "not-writable"),
    (("--speed", "9"), "usage"),
]


@pytest.mark.parametrize(("arguments", "kind"), USAGE)
def test_invalid_settings_are_usage_errors(images, inside, arguments, kind):
    done = run(images, *arguments, by=inside)
    assert complaint_kind(done, 2) == kind
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "code", "kind", "part"),
    [
        (("--model", "cnn", "--format", "npy"), 2, "model-needs-images", "--model mlp"),
        (("--device", "cuda:99"), 1, "device-unavailable", "cuda:99"),
        (("--cache", "cold", "--sudo"), 1, "no-sudo", ""),
        (("--format", "hdf5:chunk_bytes=0"), 1, "not-prepared", "iobench prepare --name float32"),
        (("--out", "."), 1, "not-writable", ""),
    ],
)
def test_what_is_not_here_is_an_error_with_what_to_do(
    floats, by_file, inside, monkeypatch, tmp_path, arguments, code, kind, part
):
    monkeypatch.setenv("PATH", str(tmp_path))
    done = run(floats, *arguments, by=inside)
    assert complaint_kind(done, code) == kind
    assert part in complaint(done, code)


def test_without_a_dataset_the_command_to_make_one_is_named(tmp_path, inside):
    done = inside("run", "--data-dir", tmp_path / "nothing")
    assert "iobench prepare" in complaint(done, 1)
    assert not (tmp_path / "nothing").exists()
    assert complaint_kind(inside("run", "--data-dir", tmp_path, "--name", "other"), 1) == "no-dataset"
    assert complaint_kind(inside("run", "--data-dir", tmp_path, "--name", "../x"), 2) == "invalid-name"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("{", "not-a-manifest"),
        ("[]", "not-a-manifest"),
        ('{"manifest_version": 99}', "unknown-version"),
        (f'{{"manifest_version": {VERSION}}}', "damaged-manifest"),
    ],
)
def test_an_invalid_manifest_is_an_error(tmp_path, inside, body, kind):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "manifest.json").write_text(body)
    assert complaint_kind(inside("run", "--data-dir", tmp_path), 1) == kind


def test_a_missing_file_is_an_error_with_what_to_do(own_images, inside):
    path = own_images.files_of("npy")[0]
    path.unlink()
    done = run(own_images, "--format", "npy", "--loader", "native", by=inside)
    assert str(path) in complaint(done, 1)
    assert complaint_kind(done, 1) == "missing-file"
    assert done.stdout == ""


def test_max_time_counts_from_the_beginning_of_the_command(images, inside, monkeypatch, tmp_path):
    begun = SimpleNamespace(monotonic=lambda: time.monotonic() - 100.0)
    monkeypatch.setattr("iobench.terminal.commands.run.time", begun)
    out = tmp_path / "r.jsonl"
    done = run(images, "--format", "npy", "--no-limits", "--max-time", "60", "--out", out, by=inside)
    assert done.returncode == 0, done.stderr
    assert len(record_file.read(out)[0]) == 1, "the first case, whatever the time"


def test_a_plan_repeats_a_run_and_excludes_other_options(images, inside, tmp_path):
    plan, data = tmp_path / "plan.toml", ("--data-dir", images.root.parent)
    chosen = ("--format", "npy", "--loader", "stream:direct=no", "--order", "block")
    more = ("--batch-size", "32,64", "--threads", "1,2", "--no-limits", "--max-time", "600")
    first = run(images, *chosen, *more, "--save-plan", plan, "--out", tmp_path / "a.jsonl", by=inside)
    assert first.returncode == 0, first.stderr
    again = inside("run", *data, "--plan", plan, "--out", tmp_path / "b.jsonl")
    assert again.returncode == 0, again.stderr
    one, other = (record_file.read(tmp_path / name)[0] for name in ("a.jsonl", "b.jsonl"))
    cases = [{(r.settings_key, r.round) for r in records} for records in (one, other)]
    assert cases[0] == cases[1]
    assert len(cases[0]) == 3 * 4
    assert complaint_kind(inside("run", *data, "--plan", plan, "--seed", "3"), 2) == "conflicting-options"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("hello", "not-readable"),
        ("x = 1", "not-a-plan"),
        ("[run]\nspeed = 9", "unknown-option"),
        ("colour = 1\n[run]", "unknown-option"),
        ('[run]\nbatch_size = ["many"]', "invalid-value"),
        ("[run]\nbatch_size = [0]", "invalid-value"),
        ('content = "00"\n[run]', "other-content"),
    ],
)
def test_an_invalid_plan_is_one_line(images, inside, tmp_path, text, kind):
    (tmp_path / "plan.toml").write_text(text)
    done = inside("run", "--data-dir", images.root.parent, "--plan", tmp_path / "plan.toml")
    assert complaint_kind(done, 2) == kind


def test_a_repeated_option_is_noted(images, inside):
    where = ("--data-dir", images.root.parent, "--name", images.name, "--no-limits", "--loader", "native")
    lists = ("--format", "npy", "--format", "memmap", "--order", "random", "--order", "sequential")
    done = inside(
        "run", *where, "--loader", "native", "--rounds", "1", *lists, "--no-limits", "--rounds", "2"
    )
    assert done.returncode == 0, done.stderr
    noted = [line.split()[0] for line in done.stderr.splitlines() if line.startswith("--")]
    assert noted == ["--rounds"]  # lists are typed once or several times


def test_loaders_are_listed_with_their_options(inside):
    shown = inside("loaders").stdout
    listed = {one["name"]: one for one in json.loads(inside("loaders", "--json").stdout)}
    for name in ("dataloader", "native", "stream"):
        assert name in shown
        assert listed[name]["usable"] == "yes"
    usable, options = (part.splitlines() for part in shown.split("\n\n"))
    assert len([line for line in usable if line[0] != " "]) == 1 + len(listed)
    assert any(line.split()[:3] == ["dataloader", "pin_memory", "auto"] for line in options)
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
    assert "--resume" in ended
    assert any(line.startswith("npy") for line in out.splitlines())
    assert len(record_file.read(tmp_path / "r.jsonl")[0]) >= 2
    left = [p for p in psutil.process_iter() if session_of(p) == process.pid]
    assert not psutil.wait_procs(left, timeout=60)[1]


def session_of(process):
    try:
        return os.getsid(process.pid)
    except ProcessLookupError:
        return None


@pytest.mark.parametrize(
    ("option", "code", "kind"),
    [("--plan", 2, "not-a-file"), ("--save-plan", 2, "not-a-file"), ("--out", 1, "not-writable")],
)
def test_a_fifo_does_not_block(images, inside, tmp_path, option, code, kind):
    os.mkfifo(tmp_path / "fifo")
    done = inside("run", "--data-dir", images.root.parent, option, tmp_path / "fifo")
    assert complaint_kind(done, code) == kind


def test_an_error_has_a_readable_length(inside):
    assert len(complaint(inside("formats", "x" * 100_000), 2)) < 2000


@pytest.mark.parametrize("name", ["x" * 300, "x/" * 3000])
@pytest.mark.parametrize("command", [("runs", "show"), ("run", "--out"), ("run", "--plan"), ("report",)])
def test_a_name_that_no_disk_takes_is_one_line(images, inside, command, name):
    done = inside(*command, name, "--data-dir", images.root.parent)
    complaint(done, 2 if "--plan" in command else 1)
