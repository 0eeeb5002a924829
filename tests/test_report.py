"""The report: what it says, and how it looks in a real browser."""

import base64
import csv
import dataclasses
import html
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from record_cases import MIB, a_record, profiled, rounds_of

from iobench import report
from iobench.base.errors import (
    MissingDependency,
    RecordError,
    ReportError,
)
from iobench.report import across, conversion, figure, machine, page
from iobench.results import parts, record
from iobench.results.metrics import METRICS
from iobench.results.parts import FieldSpec
from iobench.results.summary import summarise

STEADY = [1000, 1010, 990, 1005, 995]
COLD = {"cache": {"mode": "cold", "method": "drop_caches", "residency": 0.0}, "chosen": {"cache": "cold"}}
LOOK = {
    "cores": [0.5, 1.0],
    "iowait": 0.1,
    "disk_bytes_per_s": 5e8,
    "disk_queue": 3.0,
    "gpu": None,
    "gpu_memory_bytes": None,
}


def times(factor):
    return [speed * factor for speed in STEADY]


def run_of_all(**common):
    """Four cases, the fastest of which is npy · stream."""
    kinds = {("npy", "stream"): 5, ("npy", "native"): 2, ("lmdb", "native"): 1, ("hdf5", "dataloader"): 0.1}
    return [
        one
        for (variant, loader), factor in kinds.items()
        for one in rounds_of(times(factor), variant=variant, loader=loader, **common)
    ]


def with_everything():
    """Records that fill every figure: cold and warm, several batch sizes, profiled, watched."""
    sweep = [one for size in (64, 128) for one in run_of_all(chosen={"batch_size": size, "profile": True})]
    seconds = {"open": 0.1, "read": 0.5, "wait": 0.2, "compute": 0.3}
    watched = [
        dataclasses.replace(profiled(one, seconds), snapshots=[{"time": 1e9 + number, **LOOK}])
        for number, one in enumerate(run_of_all() + rounds_of(STEADY, variant="memmap"))
    ]
    return watched + run_of_all(**COLD) + sweep


def context_of(records):
    (context,) = summarise(records).contexts
    return context


def names(found):
    return [one.name for one in found.figures]


def reasons(section):
    return dict(section.reasons)


def test_the_first_thing_said_is_what_to_use_how_sure_and_why():
    found = page.page(run_of_all())
    (section,) = found.sections
    assert found.answer == "Use npy with stream: 5,000 MiB/s, faster than everything else measured."
    assert reasons(section)["How sure"].startswith("Fastest: npy · stream, 2.50 ×")
    assert reasons(section)["Why"] == (
        "The lowest limit on its way is page cache, 10,000 MiB/s here: it reaches 50% of that, "
        "so at most 2.0 × as much can be had; npy · native reaches 20% of its own."
    )
    assert reasons(section)["How far"].startswith("hdf5 · dataloader, the slowest, takes 50.0 × (")


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ([400, 1600, 800, 1200, 900], "; these rounds do not tell it apart from lmdb with native."),
        (times(0.999), ", or lmdb with native: equally fast within 5%."),
        (times(0.5), ": 1,000 MiB/s, faster than everything else measured."),
        (None, " reached 1,000 MiB/s; nothing was measured beside it."),
    ],
)
def test_the_answer_is_no_surer_than_the_verdict(other, said):
    found = page.page(rounds_of(STEADY) + (rounds_of(other, variant="lmdb") if other else []))
    assert found.answer.endswith(said)


def test_contexts_stand_in_the_order_of_what_they_differ_in():
    records = [one for size in (256, 64, 1024) for one in rounds_of(STEADY, chosen={"batch_size": size})]
    assert page.page(records).matrix.columns == ["batch 64", "batch 256", "batch 1024"]


def test_what_wins_in_every_context_is_the_answer_and_else_it_depends():
    alike = run_of_all() + run_of_all(**COLD)
    assert page.page(alike).answer == "Use npy with stream: fastest with cold cache and warm cache."
    unsure = rounds_of([4000, 6000, 5200, 4500, 5900], variant="lmdb", loader="stream", **COLD)
    said = "fastest, or not told apart from the fastest, with cold cache and warm cache."
    assert page.page(alike + unsure).answer in [
        f"Use npy with stream: {said}",  # whichever has the higher median
        f"Use lmdb with stream: {said}",
    ]
    other = rounds_of(times(50), variant="lmdb", loader="stream", **COLD)
    assert page.page(alike + other).answer == (
        "It depends: lmdb with stream for cold cache; npy with stream for warm cache."
    )


def test_of_one_round_in_several_contexts_the_highest_medians_are_named_and_no_rival_is():
    one = [record for record in run_of_all() + run_of_all(**COLD) if record.round == 1]
    assert page.page(one).answer == (
        "Too few rounds to tell: npy with stream has the highest median with cold cache and warm cache. "
        "Give --rounds 5 or more."
    )
    alone = [record for record in run_of_all() if record.round == 1]
    assert page.page(alone).answer == (
        "Too few rounds to tell: npy with stream has the highest median, 5,000 MiB/s. "
        "Give --rounds 5 or more."
    )


def test_each_loader_is_told_in_words_with_what_the_format_changes_under_it():
    (section,) = page.page(run_of_all()).sections
    told = {one.loader: one for one in section.loaders}
    assert told["dataloader"].is_a == "torch.utils.data.DataLoader over a map-style Dataset"
    assert told["native"].here.startswith("Here 2,000 MiB/s at most: npy fastest; lmdb 2.00 × (")
    assert told["stream"].here == "Here 5,000 MiB/s at most: npy alone."


def test_a_loader_of_a_package_that_is_gone_is_shown_without_words():
    records = [dataclasses.replace(r, case={**r.case, "loader": "gone"}) for r in rounds_of(STEADY)]
    (section,) = page.page(records).sections
    assert [(one.loader, one.is_a) for one in section.loaders] == [("gone", "")]


def test_a_training_that_hardly_waits_is_told_that_the_format_changes_little():
    busy = rounds_of(STEADY, chosen={"model": "mlp"}, timing={"wait_s": 0.01})
    assert "a faster format changes little" in reasons(page.page(busy).sections[0])["Training"]
    idle = rounds_of(STEADY, chosen={"model": "mlp"}, timing={"wait_s": 0.5})
    assert "changes little" not in reasons(page.page(idle).sections[0])["Training"]


def test_where_the_training_step_takes_the_time_the_answer_is_not_a_format():
    def busy(**common):
        given = {"chosen": {"model": "mlp"}, "timing": {"wait_s": 0.01}, **common}
        return [
            one for v, f in (("npy", 1), ("lmdb", 1.002)) for one in rounds_of(times(f), variant=v, **given)
        ]

    said = (
        "Neither format nor loader matters here: the training step takes 99% of the time or more with each."
    )
    assert page.page(busy()).answer == said
    cold = {**COLD, "chosen": {"cache": "cold", "model": "mlp"}}
    assert page.page(busy() + busy(**cold)).answer.startswith("Neither format nor loader matters here: ")


def test_contexts_have_sections_of_their_own_and_stand_beside_each_other():
    found = page.page(run_of_all() + run_of_all(**COLD))
    assert [section.title for section in found.sections] == ["cold cache", "warm cache"]
    assert found.matrix.columns == ["cold cache", "warm cache"]
    assert [name for name, _ in found.matrix.rows] == [
        "npy · stream",
        "npy · native",
        "lmdb · native",
        "hdf5 · dataloader",
    ]
    assert [cell.relative for cell in found.matrix.rows[1][1]] == ["2.50 ×"] * 2


def test_a_choice_that_a_context_lacks_leaves_its_place_empty():
    records = run_of_all() + rounds_of(STEADY, **COLD)
    rows = dict(page.page(records).matrix.rows)
    assert [cell is None for cell in rows["npy · native"]] == [False, False]
    assert [cell is None for cell in rows["lmdb · native"]] == [False, True]  # cold cache has fewer cases


def test_more_contexts_than_have_figures_all_stand_in_the_table():
    records = [one for size in range(1, 10) for one in rounds_of(STEADY, chosen={"batch_size": size})]
    found = page.page(records)
    assert len(found.sections) == page.MOST_CONTEXTS
    assert len(found.matrix.columns) == page.MOST_CONTEXTS + found.left_out == 9


SETTINGS = [
    [{"loader": f"stream:threads={count}"} for count in (1, 2)],
    [{"loader": f"dataloader:num_workers=2,prefetch_factor={count}"} for count in (2, 4)],
    [{"loader": f"dataloader:fetch={how}"} for how in ("sample", "batch")],
    [{"chosen": {"batch_size": size}} for size in (64, 256)],
    [{"chosen": {"order": order}} for order in ("sequential", "random")],
    [{"chosen": {"seed": seed}} for seed in (0, 1)],
    [{"chosen": {"model": model}} for model in ("none", "mlp")],
    [{"chosen": {"isolated": alone}} for alone in (False, True)],
    [{"variant": variant} for variant in ("hdf5", "hdf5:compression=gzip")],
]


@pytest.mark.parametrize("two", SETTINGS, ids=lambda two: str(two[0]))
def test_cases_that_differ_in_any_setting_are_never_one(two):
    records = [one for settings in two for one in rounds_of(STEADY, **settings)]
    found = page.page(records)
    rows = [row for one in found.figures if one.name.endswith("-speed") for row in one.rows]
    assert len({row["key"] for row in rows}) == len(rows) == 2
    assert all(row["rounds"] == len(STEADY) for row in rows)
    if len(found.sections) == 1:
        assert len({row["case"] for row in rows}) == 2
    else:
        assert len({section.title for section in found.sections}) == 2


def test_every_figure_there_is_to_show_is_shown():
    shown = names(page.page(with_everything()))
    first = {name.partition("-")[2] for name in shown if name.startswith("1-")}
    assert first >= {"speed", "stages", "waits", "cpu", "memory", "size", "break-even", "rounds"}
    assert first >= {"processors", "disk-speed", "queue"}
    assert "by-batch_size" in shown
    assert {name.partition("-")[2] for name in shown if name.startswith("2-")} == {"speed"}


def test_what_was_not_measured_has_no_figure():
    assert names(page.page(rounds_of([1000]))) == ["1-speed", "1-waits", "1-cpu", "1-memory", "1-rounds"]


def test_figures_are_named_and_explained_as_metrics_are():
    shown = {one.name: one for one in page.page(run_of_all()).figures}
    declared = {metric.name: metric for metric in METRICS}
    assert declared["cpu_s_per_gib"].meaning in shown["1-cpu"].says
    assert declared["bytes_per_s"].meaning in shown["1-speed"].says
    for metric in METRICS:
        assert figure.heading(metric.name) == metric.title
        assert figure.cell(metric.name, 0.123456) == metric.text(0.123456)


def test_speed_is_drawn_against_what_runs_vary():
    def sized(size):
        return rounds_of(times(size / 64), chosen={"batch_size": size})

    cases = summarise([*sized(64), *sized(128), *rounds_of(STEADY, variant="lmdb")]).cases
    drawn = {axis.name: across.series(cases, axis) for axis in across.axes(cases)}
    rows = drawn.pop("batch_size")
    assert [(row["series"], row["batch_size"], row["bytes_per_s"]) for row in rows] == [
        ("npy · native", 64, 1000.0 * MIB),
        ("npy · native", 128, 2000.0 * MIB),
    ]
    assert not any(drawn.values())


def test_speed_is_drawn_against_options_of_loaders_too():
    def threads(count, order):
        return rounds_of(times(count), loader=f"stream:threads={count}", chosen={"order": order})

    records = [one for order in ("random", "sequential") for n in (1, 2) for one in threads(n, order)]
    (drawn,) = (one for one in page.page(records).figures if one.name == "by-threads")
    assert {row["series"] for row in drawn.rows} == {
        "npy · stream, random order",
        "npy · stream, sequential order",
    }
    assert len(drawn.rows) == 4


def test_of_several_numbers_of_ranks_the_page_says_where_more_stop_to_help():
    records = [one for n in (1, 2) for one in rounds_of(times(n**0.1), chosen={"world_size": n})]
    (drawn,) = (one for one in page.page(records).figures if one.name == "by-world_size")
    assert drawn.title == "Speed by ranks"
    assert "npy · native: more ranks gave more each time, up to 2" in drawn.says


def spec_of(found, name):
    return json.dumps(next(one.spec for one in found.figures if one.name == name))


@pytest.mark.parametrize(("factor", "logarithmic"), [(0.5, False), (0.001, True)])
def test_an_axis_over_a_large_factor_is_logarithmic(factor, logarithmic):
    near = {"limit": None}
    records = rounds_of(STEADY, **near) + rounds_of(times(factor), variant="lmdb", **near)
    found = page.page(records)
    assert ('"type": "log"' in spec_of(found, "1-speed")) is logarithmic
    assert ("(logarithmic)" in spec_of(found, "1-speed")) is logarithmic


def test_a_legend_names_each_mark_that_is_drawn_and_no_other():
    found = page.page(rounds_of(STEADY) + rounds_of(times(0.5), variant="lmdb"))
    spec = next(one.spec for one in found.figures if one.name == "1-speed")
    (marks,) = (layer for layer in spec["layer"] if "shape" in layer["encoding"])
    domains = [marks["encoding"][channel]["scale"]["domain"] for channel in ("shape", "color", "size")]
    assert domains == [["fastest", "slower", "95 % interval", "one round", "limit of the hardware"]] * 3


def pays(records):
    return {(row["from"], row["to"]): row for row in conversion.break_even(context_of(records))}


def test_a_conversion_pays_for_itself_by_what_epochs_save():
    rows = pays(rounds_of(times(2)) + rounds_of(STEADY, variant="lmdb"))
    saved = 1024 / 1000 - 1024 / 2000
    row = rows["lmdb", "npy"]
    assert row["epochs"] == pytest.approx(2.0 / saved)
    assert row["epochs low"] < row["epochs"] < row["epochs high"]
    assert (rows["npy", "lmdb"]["epochs"], rows["npy", "lmdb"]["pays"]) == (None, "never")


def test_the_interval_of_a_conversion_is_as_wide_as_the_epochs_scatter():
    fast, slow = rounds_of(times(100)), rounds_of([600, 1500, 1000, 800, 1300], variant="lmdb")
    row = pays(fast + slow)["lmdb", "npy"]
    assert row["epochs high"] > 1.4 * row["epochs"] > 1.96 * row["epochs low"]


def test_opening_counts_once_a_training_and_not_once_an_epoch():
    fast = rounds_of(times(2), timing={"open_s": 10.0})
    row = pays(fast + rounds_of(STEADY, variant="lmdb"))["lmdb", "npy"]
    assert row["epochs"] == pytest.approx((2.0 + 10.0 - 0.01) / (1024 / 1000 - 1024 / 2000))


@pytest.mark.parametrize("other", [[1020, 700, 1300, 990, 1060], [1500], [1500, 1510]])
def test_nothing_is_claimed_where_the_interval_of_the_saving_includes_nothing(other):
    for row in pays(rounds_of(other) + rounds_of(STEADY[: len(other)], variant="lmdb")).values():
        assert (row["epochs"], row["pays"]) == (None, "cannot tell")


def test_a_snapshot_belongs_to_the_round_it_fell_into():
    ended = a_record(1000, time="2026-01-02T03:04:10.000+00:00", timing={"epochs_s": 3.0})
    end = 1767323050.0
    snapshots = [{"time": end - back, **LOOK} for back in (5, 2, 1)]
    rows = machine.system([dataclasses.replace(ended, snapshots=snapshots)])
    assert [row["case"] for row in rows] == ["between rounds", "npy · native", "npy · native"]
    assert [row["seconds"] for row in rows] == [0, 3, 4]


@pytest.mark.parametrize("change", [{"time": "now"}, {"cores": None}, {"cores": ["a"]}, {"disk_queue": "a"}])
def test_what_a_file_holds_in_place_of_a_snapshot_is_left_out(change):
    snapshots = [{"time": 1e9, **LOOK, **change}, {"time": 1e9 + 1, **LOOK}, {}]
    rows = machine.system([a_record(1000, snapshots=snapshots)])
    assert (len(rows), rows[-1]["disk queue"]) == (2 if "disk_queue" in change else 1, 3.0)
    assert rows[0]["disk queue"] is None or "disk_queue" not in change


@pytest.fixture
def written(tmp_path):
    """Writes a report of records and returns its file."""

    def write(records):
        return report.write(records, tmp_path / "report.html")[0]

    return write


def tables(text):
    """By figure, the cells of its table."""
    found = {}
    for name, body in re.findall(r'<figure id="([^"]+)"[^>]*>(.*?)</figure>', text, re.S):
        rows = re.findall(r"<tr>(.*?)</tr>", body, re.S)
        found[name] = [[html.unescape(cell) for cell in re.findall(r"<t[hd]>(.*?)</t", row)] for row in rows]
    return found


def test_figures_on_the_page_are_those_of_the_records(written):
    text = written(with_everything()).read_text()
    header, *rows = tables(text)["1-speed"]
    assert [(row[header.index("case")], row[header.index("MiB/s")]) for row in rows] == [
        ("npy · stream", "5,000"),
        ("npy · native", "2,000"),
        ("lmdb · native", "1,000"),
        ("memmap · native", "1,000"),
        ("hdf5 · dataloader", "100"),
    ]
    spec = re.search(r'id="1-speed">.*?<script type="application/json">(.*?)</script>', text, re.S)[1]
    data = json.loads(spec)["datasets"] if "datasets" in spec else json.loads(spec)
    assert "5000.0" in json.dumps(data)


def test_every_table_can_be_downloaded_as_it_is(written):
    text = written(run_of_all()).read_text()
    found = dict(re.findall(r'download="1-([a-z-]+)\.csv" href="data:text/csv;base64,([^"]+)"', text))
    assert set(found) == {name[2:] for name in tables(text)}
    rows = list(csv.DictReader(io.StringIO(base64.b64decode(found["rounds"]).decode())))
    assert [float(row["epoch_s"]) for row in rows] == [one.epoch_s for one in run_of_all()]


def test_nothing_is_fetched_from_anywhere(written):
    text = written(run_of_all()).read_text().partition("<script>")[0]  # before that of the charts
    assert len(text) > 10_000
    assert not re.findall(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="(?!data:)', text)
    assert "@import" not in text


HOSTILE = '</script><script>document.title="owned"</script><img src=x onerror="document.title=1">&amp;'


def hostile():
    """Records in which every text that comes from outside is hostile, over two contexts."""
    fields = [FieldSpec(name=HOSTILE, shape=[MIB], dtype="uint8")]
    dataset = {"name": HOSTILE, "source": {HOSTILE: HOSTILE}, "fields": fields}
    disk = parts.MachineDisk(file_system=HOSTILE, model=HOSTILE)
    gpu = parts.MachineGpu(name=HOSTILE, driver=HOSTILE)
    here = {"cpu": HOSTILE, "host": HOSTILE, "kernel": HOSTILE, "versions": {HOSTILE: HOSTILE}}
    chosen = {"format": HOSTILE, "dataset": HOSTILE, "options": {HOSTILE: 1, "name": HOSTILE}}
    limit = parts.LimitPart(name=HOSTILE, bytes_per_s=1e10)
    records = rounds_of(STEADY, dataset=dataset, machine={**here, "disk": disk, "gpu": gpu}, limit=limit)
    kinds = [{"loader": HOSTILE}, {"loader": "native"}, {"loader": HOSTILE, "order": HOSTILE}]
    kinds += [{"options": {HOSTILE: 2, "name": HOSTILE}}]
    return [dataclasses.replace(r, case={**r.case, **chosen, **kind}) for kind in kinds for r in records]


def test_text_from_files_and_machines_is_shown_and_does_nothing(written):
    path = written(hostile())
    assert HOSTILE not in path.read_text()
    assert html.escape(HOSTILE, quote=False).replace('"', "&#34;") in path.read_text()


def test_text_from_files_names_no_file():
    found = names(page.page(hostile()))
    assert any("onerror" in name for name in found)
    assert all(re.fullmatch(r"[\w-]+", name) for name in found)


def test_pictures_are_drawn_without_a_browser(tmp_path):
    _, *pictures = report.write(run_of_all(), tmp_path / "r.html", tmp_path / "pictures")
    assert {path.suffix for path in pictures} == {".png", ".svg"}
    for path in pictures:
        start = path.read_bytes()[:5]
        assert start == (b"\x89PNG\r" if path.suffix == ".png" else b"<svg ")
    assert "npy · stream" in (tmp_path / "pictures" / "1-speed.svg").read_text()


def test_no_records_are_refused(tmp_path):
    with pytest.raises(RecordError, match="no records to report on"):
        report.write([], tmp_path / "r.html")


def test_a_failure_leaves_the_report_that_was_there_and_nothing_else(tmp_path, monkeypatch):
    old = tmp_path / "r.html"
    old.write_text("old")
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ReportError, match=r"r\.html cannot be written: No space left on device"):
        report.write(rounds_of(STEADY), old)
    assert (old.read_text(), os.listdir(tmp_path)) == ("old", ["r.html"])


def full(path, content):
    """As a disk does that is full in the middle of a file."""
    path.open("wb").write(content[:1000])
    raise OSError(28, "No space left on device", str(path))


def test_pictures_that_cannot_be_drawn_leave_the_report_that_was_there(tmp_path, monkeypatch):
    import vl_convert

    def fails(*arguments, **options):
        raise ValueError("no chart")

    (tmp_path / "r.html").write_text("old")
    monkeypatch.setattr(vl_convert, "vegalite_to_svg", fails)
    with pytest.raises(ValueError, match="no chart"):
        report.write(rounds_of(STEADY), tmp_path / "r.html", tmp_path / "pictures")
    assert ((tmp_path / "r.html").read_text(), os.listdir(tmp_path)) == ("old", ["r.html"])


def test_a_link_stays_one_and_what_is_no_file_is_not_replaced(tmp_path):
    (tmp_path / "link.html").symlink_to(tmp_path / "r.html")
    report.write(rounds_of(STEADY), tmp_path / "link.html")
    assert (tmp_path / "link.html").is_symlink()
    assert "1,000 MiB/s" in (tmp_path / "r.html").read_text()
    report.write(rounds_of(STEADY), Path("/dev/null"))
    assert not Path("/dev/null").is_file()


@pytest.mark.parametrize("name", ["", "file/r.html", "no/such/folder/r.html", "a pipe that nobody reads"])
def test_a_page_that_cannot_be_written_is_an_error(tmp_path, name):
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "a pipe that nobody reads")
    with pytest.raises(ReportError, match="cannot be written"):
        report.write(rounds_of(STEADY), tmp_path / name)


def test_a_missing_library_is_named_with_the_command(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("iobench.report.")]:
        monkeypatch.delitem(sys.modules, name)
        monkeypatch.delattr(report, name.rpartition(".")[2], raising=False)
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(MissingDependency, match=r"needs altair: pip install 'iobench\[report\]'"):
        report.write(rounds_of(STEADY), tmp_path / "r.html")


@pytest.mark.parametrize("speeds", [[1000], [1000, 1001]])
def test_few_rounds_are_shown_without_intervals(written, speeds):
    header, row = tables(written(rounds_of(speeds)).read_text())["1-speed"]
    assert row[header.index("MiB/s low")] == "–"


def test_the_command_reports_the_newest_run_by_default(tmp_path, inside):
    for number, speeds in enumerate((STEADY, times(3))):
        for one in rounds_of(speeds):
            record.append(tmp_path / "results" / f"run{number}.jsonl", one)
    done = inside("report", "--data-dir", tmp_path, "-o", tmp_path / "r.html")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'r.html'}\n")
    assert "3,000 MiB/s" in (tmp_path / "r.html").read_text()


def test_lines_that_are_no_records_are_named_and_the_rest_is_shown(tmp_path, inside):
    path = tmp_path / "results" / "run.jsonl"
    for one in rounds_of(STEADY):
        record.append(path, one)
    path.write_text(path.read_text() + '{"record_version": 99}\n{"epochs_s": NaN}\n{"cut')
    done = inside("report", "--data-dir", tmp_path, "-o", tmp_path / "r.html")
    assert done.returncode == 0
    assert len(re.findall("left out: ", done.stderr)) == 3
    assert "1,000 MiB/s" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize(
    ("content", "arguments", "said"),
    [
        (None, (), "no runs in"),
        ("", ("run",), "no round was finished"),
        ("hello\n", ("run",), "not a record"),
        ("", ("nowhere",), "no run 'nowhere'"),
    ],
)
def test_bad_input_is_one_line(tmp_path, inside, content, arguments, said):
    if content is not None:
        (tmp_path / "results").mkdir()
        (tmp_path / "results" / "run.jsonl").write_text(content)
    done = inside("report", *arguments, "--data-dir", tmp_path, "-o", tmp_path / "r.html")
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "r.html").exists()


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MEASURE = """<script>setTimeout(() => {
  const page = document.documentElement;
  page.dataset.overflow = page.scrollWidth - page.clientWidth;
  page.dataset.texts = [...document.querySelectorAll(".chart svg")].map((s) => s.textContent).join("|");
}, 3000)</script>"""


SHOWN = """<script>setTimeout(() => {
  document.documentElement.dataset.shown = document.querySelector(".warnings li").offsetHeight;
}, 3000)</script>"""


@pytest.fixture
def browse(tmp_path):
    """What a page has become in headless Chromium, and what it wrote to the console."""
    if CHROMIUM is None:
        pytest.skip("no Chromium here")

    def dump(path, width=1200, measure=MEASURE):
        looked_at = tmp_path / "looked-at.html"
        before, end, after = path.read_text().rpartition("</body>")
        looked_at.write_text(before + measure + end + after)
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
        options += ["--host-resolver-rules=MAP * ~NOTFOUND"]  # no network
        size = ["--dump-dom", f"--window-size={width},1000", "--virtual-time-budget=10000"]
        profile = f"--user-data-dir={tmp_path / 'profile'}"
        done = subprocess.run(
            [CHROMIUM, *options, *size, profile, looked_at.as_uri()],
            capture_output=True,
            text=True,
            timeout=120,
        )
        return done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line]

    return dump


@pytest.mark.parametrize("width", [500, 1200])
def test_a_browser_draws_every_chart_without_complaint_and_without_scrolling(written, browse, width):
    records = with_everything()
    dom, console = browse(written(records), width)
    assert console == []
    assert dom.count('data-drawn="yes"') == len(names(page.page(records)))
    assert re.search(r'data-overflow="(-?\d+)"', dom)[1] == "0"
    drawn = html.unescape(re.search(r'data-texts="([^"]*)"', dom)[1])
    assert all(label in drawn for label in ("npy · stream", "hdf5 · dataloader", "10,000"))


def test_hostile_text_does_nothing_in_a_browser(written, browse):
    dom, console = browse(written(hostile()))
    assert console == []
    assert re.search(r"<title>(.*?)</title>", dom)[1].startswith("iobench: ")


def test_warnings_are_printed(written, browse, tmp_path):
    text = written(rounds_of([1000, 1001])).read_text()
    warned = text.index("too few for a sure interval")
    assert text.rfind("<details", 0, warned) <= text.rfind("</details", 0, warned)  # which print hides
    printed = tmp_path / "printed.html"  # as print has it, on screen
    printed.write_text(text.replace("@media print", "@media all"))
    dom, _ = browse(printed, measure=SHOWN)
    assert float(re.search(r'data-shown="([\d.]+)"', dom)[1]) > 0
