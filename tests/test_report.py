"""The report: its content, and its appearance in a real browser."""

import base64
import contextlib
import csv
import dataclasses
import html
import io
import json
import os
import re
import resource
import shutil
import subprocess
from pathlib import Path

import pytest
from kinds import complaint_kind, kind
from record_cases import MIB, STEADY, profiled, rounds_of, times
from test_notebook import a_finalist

from iobench import report
from iobench.advise.recommendation import Recommendation
from iobench.base.errors import ReportError
from iobench.base.finding import Finding
from iobench.base.machine import MachineDisk, MachineGpu, Snapshot
from iobench.report import figure, page
from iobench.report.display import html_of
from iobench.results import charts, parts, record_file, verdict
from iobench.results.charts import MAX_CONTEXTS
from iobench.results.metrics import METRICS
from iobench.results.parts import FieldSpec
from iobench.results.run_warning import RunWarning
from iobench.results.scaling_curve import curves
from iobench.results.summary import summarise
from iobench.results.warnings import warnings_of

COLD = {"cache": {"mode": "cold", "method": "drop_caches", "residency": 0.0}, "chosen": {"cache": "cold"}}
LOOK = {"cores": [0.5, 1.0], "iowait": 0.1, "disk_bytes_per_s": 5e8, "disk_queue": 3.0}


def run_of_all(**common):
    """Return records of four cases, of which npy · stream is the fastest."""
    kinds = {("npy", "stream"): 5, ("npy", "native"): 2, ("lmdb", "native"): 1, ("hdf5", "dataloader"): 0.1}
    return [
        one
        for (variant, loader), factor in kinds.items()
        for one in rounds_of(times(factor), variant=variant, loader=loader, **common)
    ]


def with_everything():
    """Return records that fill every figure: cold and warm, several batch sizes, profiled, watched."""
    sweep = [one for size in (64, 128) for one in run_of_all(chosen={"batch_size": size, "profile": True})]
    seconds = {"open": 0.1, "read": 0.5, "wait": 0.2, "compute": 0.3}
    watched = [
        dataclasses.replace(profiled(one, seconds), snapshots=[Snapshot(time=1e9 + number, **LOOK)])
        for number, one in enumerate(run_of_all() + rounds_of(STEADY, variant="memmap"))
    ]
    return watched + run_of_all(**COLD) + sweep


def context_of(records):
    (context,) = summarise(records).contexts
    return context


def names(content):
    return [one.name for one in content.charts]


@pytest.mark.parametrize(
    ("records", "name"), [(run_of_all(), "1-speed"), (run_of_all() + run_of_all(**COLD), "overview")]
)
def test_the_page_begins_with_the_answer_and_one_chart_of_all_cases(records, name):
    content = page.page(records)
    answer = verdict.answer(summarise(records))
    assert (content.outcome, content.answer) == (answer[0].kind, [one.sentence for one in answer])
    assert content.charts[0].name == name
    rows = [(row["case"], row["standing"], row["relative time"]) for row in content.charts[0].rows]
    assert rows == [
        ("npy · stream", charts.LEADER, pytest.approx(1)),
        ("npy · native", charts.OTHER, pytest.approx(2.5)),
        ("lmdb · native", charts.OTHER, pytest.approx(5)),
        ("hdf5 · dataloader", charts.DATALOADER, pytest.approx(50)),
    ]


def test_several_contexts_have_sections_with_their_verdicts():
    content = page.page(run_of_all() + run_of_all(**COLD))
    by_title = {section.title: html_of(section.blocks) for section in content.sections}
    assert all("npy · stream" in by_title[title] for title in ("warm cache", "cold cache"))
    assert ">warm<" in by_title["Every case"]


def test_contexts_beyond_those_with_figures_stand_in_the_table():
    records = [one for size in range(1, 10) for one in rounds_of(STEADY, chosen={"batch_size": size})]
    content = page.page(records)
    assert len([one for one in content.sections if one.title.startswith("batch")]) == MAX_CONTEXTS
    (table,) = (html_of(one.blocks) for one in content.sections if one.title == "Every case")
    assert all(f"batch {size}" in table for size in range(1, 10))


def test_every_kind_of_figure_is_shown_where_it_was_measured():
    shown = names(page.page(with_everything()))
    assert shown[0] == "overview"
    assert {"1-speed", "1-stages", "1-size", "1-rounds", "2-speed", "by-batch_size"} <= set(shown)
    assert names(page.page(rounds_of([1000]))) == ["1-speed"]


def test_columns_are_named_and_written_as_metrics_are():
    for metric in METRICS:
        assert charts.heading(metric.name) == metric.title
        assert figure.cell(metric.name, 0.123456) == metric.text(0.123456)


@pytest.mark.parametrize(
    ("axis", "change"),
    [
        ("batch_size", lambda count: {"chosen": {"batch_size": count}}),
        ("threads", lambda count: {"loader": f"stream:threads={count}"}),  # an option of a loader
    ],
)
def test_speed_is_drawn_against_what_runs_vary(axis, change):
    records = [one for n in (1, 2) for one in rounds_of(times(n), **change(n))]
    records += rounds_of(STEADY, variant="lmdb")
    records += [dataclasses.replace(one, case={**one.case, "order": "random"}) for one in records]
    drawn = {one.axis: one for one in page.page(records).charts}[axis]
    loader = "stream" if axis == "threads" else "native"
    assert [(row["series"], row[axis], row["bytes_per_s"]) for row in drawn.rows] == [
        (f"npy · {loader}, {order} order", count, count * 1000.0 * MIB)
        for order in ("sequential", "random")
        for count in (1, 2)
    ]


def test_the_page_shows_where_more_ranks_stop_helping():
    records = [one for n in (1, 2) for one in rounds_of(times(n**0.1), chosen={"world_size": n})]
    (drawn,) = (one for one in page.page(records).charts if one.name == "by-world_size")
    (curve,) = curves(records)
    assert curve.sentence in drawn.caption


@pytest.fixture
def written(tmp_path):
    """Write a report of records and return its file."""

    def write(records):
        return report.write(records, tmp_path / "report.html")[0]

    return write


def tables(text):
    """Return the cells of each figure's table by the figure's name."""
    content = {}
    for name, body in re.findall(r'<figure id="([^"]+)"[^>]*>(.*?)</figure>', text, re.S):
        rows = re.findall(r"<tr>(.*?)</tr>", body, re.S)
        content[name] = [
            [html.unescape(cell) for cell in re.findall(r"<t[hd]>(.*?)</t", row)] for row in rows
        ]
    return content


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
    content = dict(re.findall(r'download="1-([a-z-]+)\.csv" href="data:text/csv;base64,([^"]+)"', text))
    assert set(content) == {name[2:] for name in tables(text)}
    rows = list(csv.DictReader(io.StringIO(base64.b64decode(content["rounds"]).decode())))
    assert [float(row["epoch_s"]) for row in rows] == [one.epoch_s for one in run_of_all()]


def test_nothing_is_fetched_from_anywhere(written):
    text = written(run_of_all()).read_text().partition("<script>")[0]  # before that of the charts
    assert len(text) > 10_000
    assert not re.findall(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="(?!data:)', text)
    assert "@import" not in text


HOSTILE = '</script><script>document.title="owned"</script><img src=x onerror="document.title=1">&amp;'


def hostile():
    """Return records in which every text from outside is hostile, over two contexts."""
    fields = [FieldSpec(name=HOSTILE, shape=[MIB], dtype="uint8")]
    dataset = {"name": HOSTILE, "source": {HOSTILE: HOSTILE}, "fields": fields}
    disk = MachineDisk(file_system=HOSTILE, model=HOSTILE)
    gpu = MachineGpu(name=HOSTILE, driver=HOSTILE)
    here = {"cpu": HOSTILE, "host": HOSTILE, "kernel": HOSTILE, "versions": {HOSTILE: HOSTILE}}
    chosen = {"format": HOSTILE, "dataset": HOSTILE, "options": {HOSTILE: 1, "name": HOSTILE}}
    limit = parts.LimitPart(name=HOSTILE, bytes_per_s=1e10)
    records = rounds_of(STEADY, dataset=dataset, machine={**here, "disk": disk, "gpu": gpu}, limit=limit)
    kinds = [{"loader": HOSTILE}, {"loader": "native"}, {"loader": HOSTILE, "order": HOSTILE}]
    kinds += [{"options": {HOSTILE: 2, "name": HOSTILE}}]
    return [dataclasses.replace(r, case={**r.case, **chosen, **kind}) for kind in kinds for r in records]


def test_text_from_files_and_machines_is_shown_and_does_nothing(written):
    path, figures = written(hostile()), names(page.page(hostile()))
    assert HOSTILE not in path.read_text()
    assert html.escape(HOSTILE, quote=False).replace('"', "&#34;") in path.read_text()
    assert any("onerror" in name for name in figures)
    assert all(re.fullmatch(r"[\w-]+", name) for name in figures), "names of files"


def test_pictures_are_drawn_without_a_browser(tmp_path):
    _, *pictures = report.write(run_of_all(), tmp_path / "r.html", tmp_path / "pictures")
    assert {path.suffix for path in pictures} == {".png", ".svg"}
    for path in pictures:
        start = path.read_bytes()[:5]
        assert start == (b"\x89PNG\r" if path.suffix == ".png" else b"<svg ")
    assert "npy · stream" in (tmp_path / "pictures" / "1-speed.svg").read_text()


def test_a_failure_leaves_the_existing_report_and_nothing_else(tmp_path):
    old = tmp_path / "r.html"
    old.write_text("old")
    with full_disk(), pytest.raises(ReportError, check=kind("not-writable", path=old)):
        report.write(rounds_of(STEADY), old)
    assert (old.read_text(), os.listdir(tmp_path)) == ("old", ["r.html"])


@contextlib.contextmanager
def full_disk(size=1000):
    """Let writing fail in the middle of a file, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class PanicException(BaseException):
    """As libraries in Rust raise it."""


@pytest.mark.parametrize(
    ("function", "error", "raised"),
    [
        ("vegalite_to_svg", ValueError("no chart"), ValueError),
        ("javascript_bundle", PanicException("Too many open files"), ReportError),
    ],
)
def test_a_library_that_fails_leaves_the_existing_report(tmp_path, monkeypatch, function, error, raised):
    import vl_convert

    def fails(*arguments, **options):
        raise error

    page.vega_script.cache_clear()
    (tmp_path / "r.html").write_text("old")
    monkeypatch.setattr(vl_convert, function, fails)
    with pytest.raises(raised) as caught:
        report.write(rounds_of(STEADY), tmp_path / "r.html", tmp_path / "pictures")
    assert getattr(caught.value, "kind", None) == ("library-panicked" if raised is ReportError else None)
    assert ((tmp_path / "r.html").read_text(), os.listdir(tmp_path)) == ("old", ["r.html"])


def test_a_link_stays_one_and_a_device_is_not_replaced(tmp_path):
    (tmp_path / "link.html").symlink_to(tmp_path / "r.html")
    report.write(rounds_of(STEADY), tmp_path / "link.html")
    assert (tmp_path / "link.html").is_symlink()
    assert "samples/s" in (tmp_path / "r.html").read_text()
    report.write(rounds_of(STEADY), Path("/dev/null"))
    assert not Path("/dev/null").is_file()


@pytest.mark.parametrize("name", ["", "file/r.html", "no/such/folder/r.html", "unread-pipe"])
def test_a_page_that_cannot_be_written_is_an_error(tmp_path, name):
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "unread-pipe")
    with pytest.raises(ReportError, check=kind("not-writable")):
        report.write(rounds_of(STEADY), tmp_path / name)


@pytest.mark.parametrize("speeds", [[1000], [1000, 1001]])
def test_few_rounds_are_shown_without_intervals(written, speeds):
    header, row = tables(written(rounds_of(speeds)).read_text())["1-speed"]
    assert row[header.index("MiB/s low")] == "–"


@pytest.mark.parametrize("found", [True, False])
def test_the_command_reports_the_newest_run_by_default(tmp_path, inside, found):
    for number, speeds in enumerate((STEADY, times(3))) if found else ():
        for one in rounds_of(speeds):
            record_file.append(tmp_path / "results" / f"run{number}.jsonl", one)
    path = tmp_path / "r.html"
    done = inside("report", "--data-dir", tmp_path, "-o", path)
    if found:
        assert (done.returncode, done.stdout) == (0, f"{path}\n")
        assert "3.00 k samples/s" in path.read_text()
    else:
        assert (complaint_kind(done), path.exists()) == ("no-runs", False)


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
    """Return a function for the DOM of a page in headless Chromium, and its console output."""
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
            timeout=400,
        )
        return done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line]

    return dump


@pytest.mark.parametrize("width", [500, 1200])
def test_a_browser_draws_every_chart_without_errors_and_without_scrolling(written, browse, width):
    records = with_everything()
    dom, console = browse(written(records), width)
    assert (console, overflow(dom)) == ([], 0)
    assert dom.count('data-drawn="yes"') == len(names(page.page(records)))
    drawn = html.unescape(re.search(r'data-texts="([^"]*)"', dom)[1])
    assert all(label in drawn for label in ("npy · stream", "hdf5 · dataloader", "DataLoader"))


def overflow(dom):
    return int(re.search(r'data-overflow="(-?\d+)"', dom)[1])


def test_hostile_text_does_nothing_in_a_browser(written, browse):
    dom, console = browse(written(hostile()))
    assert console == []
    assert re.search(r"<title>(.*?)</title>", dom)[1].startswith("iobench: ")


def test_warnings_are_printed(written, browse, tmp_path):
    text = written(rounds_of([1000, 1001])).read_text()
    (warning, *_) = warnings_of(rounds_of([1000, 1001]))
    warned = text.index(warning.message)
    assert text.rfind("<details", 0, warned) <= text.rfind("</details", 0, warned)  # which print hides
    printed = tmp_path / "printed.html"  # as print has it, on screen
    printed.write_text(text.replace("@media print", "@media all"))
    dom, _ = browse(printed, measure=SHOWN)
    assert float(re.search(r'data-shown="([\d.]+)"', dom)[1]) > 0


def an_answer(records, **changes):
    """Return a recommendation whose final rounds are these records, by default for their dataset."""
    keys = list(dict.fromkeys(one.settings_key for one in records))
    finalists = [
        a_finalist(f"case {number}", 200 / number, [role], key=key)
        for number, (key, role) in enumerate(zip(keys, ("fastest", "default"), strict=True), 1)
    ]
    fields = {
        "outcome": "decided",
        "use": finalists[0],
        "finalists": finalists,
        "findings": [Finding("decided", "Use what it says")],
        "dataset": records[0].dataset.name,
        "time": max(one.time for one in records),
        "warnings": [RunWarning("unstable-cpu-speed", "the CPU speed varied", [])],
    }
    return Recommendation(**fields | changes)


def two_cases():
    return rounds_of([1000, 1010]) + rounds_of([500, 510], variant="hdf5")


def with_a_changing_speed():
    """Return records of two cases with the warning that recommendations show, too."""
    both = rounds_of([1000, 1010, 1005, 1000, 1010]) + rounds_of([500, 510, 505, 500, 510], variant="hdf5")
    speeds = (1e6 * (1 + one.round % 2) for one in both)
    return [
        dataclasses.replace(one, processor=dataclasses.replace(one.processor, cpu_speed_per_s=speed))
        for one, speed in zip(both, speeds, strict=True)
    ]


def test_an_answer_and_its_warnings_are_said_once(tmp_path):
    records, path = with_a_changing_speed(), tmp_path / "report.html"
    assert "unstable-cpu-speed" in {one.kind for one in warnings_of(records)}
    for measured in (records, []):
        report.write(measured, path, recommended=[an_answer(records)])
        body = path.read_text().partition("<body>")[2]
        assert (body.count("Use what it says"), body.count("the CPU speed varied")) == (1, 1)


@pytest.mark.parametrize(
    "changes",
    [{"time": "2026-01-01T00:00:00+00:00"}, {"finalists": [a_finalist("npy", 100, ["default"])]}],
    ids=["measured later", "other cases"],
)
def test_rounds_of_another_run_keep_their_answer_and_warnings(changes):
    records = two_cases()
    content = page.page(records, advice=[an_answer(records, **changes)])
    assert content.answer == ["Use what it says"]
    (advised,) = (one for one in content.sections if one.title.startswith("Recommendation"))
    assert "the CPU speed varied" in html_of(advised.blocks)


def test_recommendations_for_other_datasets_follow_the_measurements():
    records = two_cases()
    content = page.page(records, advice=[an_answer(records, dataset="another"), an_answer(records)])
    advised = [one for one in content.sections if one.title.startswith("Recommendation")]
    names_of = [one.title.removeprefix("Recommendation for ") for one in advised]
    assert names_of == [records[0].dataset.name, "another"]
    every = next(one for one in content.sections if one.title == "Every metric")
    places = [content.sections.index(one) for one in (advised[0], every, advised[1])]
    assert places == sorted(places)
    assert "Use what it says" in html_of(advised[1].blocks)


def test_a_recommendation_fits_a_phone_and_heads_the_page(browse, tmp_path):
    path, records = tmp_path / "report.html", two_cases()
    advice = an_answer(records, findings=[Finding("decided", "Use npy with stream")], code="loader = X()")
    report.write(records, path, recommended=[advice])
    dom, console = browse(path, 390)
    assert (console, overflow(dom)) == ([], 0)
    assert re.search(r'<h1 id="answer">(.*?)</h1>', dom)[1] == "Use npy with stream."
