"""The report: what it says, and how it snapshots in a real browser."""

import base64
import csv
import dataclasses
import html
import io
import json
import re
import shutil
import subprocess
import sys

import pytest
from record_cases import MACHINE, a_record, profiled, rounds_of

from iobench import report
from iobench.bench.case import Settings
from iobench.errors import MissingExtra, RecordError, ReportError
from iobench.report import figures, page
from iobench.report.context import contexts
from iobench.results import record

STEADY = [1000, 1010, 990, 1005, 995]
COLD = {"mode": "cold", "method": "drop_caches", "residency": 0.0}
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
    sweep = [one for size in (64, 128) for one in run_of_all(settings=Settings(batch_size=size))]
    seconds = {"open": 0.1, "read": 0.5, "wait": 0.2, "compute": 0.3}
    watched = [
        dataclasses.replace(profiled(one, seconds), system=[{"time": 1e9 + number, **LOOK}])
        for number, one in enumerate(run_of_all())
    ]
    return watched + run_of_all(cache=COLD) + sweep


def names(sections):
    return [figure.name for section in sections for figure in section.figures]


def test_the_first_thing_said_is_which_format_to_use():
    (section,) = page.sections(run_of_all())
    assert section.answer == "Use npy (stream, 5,000 MiB/s): faster than every other format."
    assert section.why[0].startswith("Fastest: npy · stream, 2.50 ×")
    assert any("50% of what this machine can do there (page cache)" in line for line in section.why)


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (1.0, "Use npy (native, 1,000 MiB/s); these rounds do not tell it apart from lmdb."),
        (0.5, "Use npy (native, 1,000 MiB/s): faster than every other format."),
    ],
)
def test_the_answer_is_no_surer_than_the_verdict(factor, said):
    (section,) = page.sections(rounds_of(STEADY) + rounds_of(times(factor * 0.999), variant="lmdb"))
    assert section.answer == said


def test_one_format_alone_is_not_called_the_best():
    (section,) = page.sections(rounds_of(STEADY))
    assert "no other format to hold it against" in section.answer


def test_groups_that_were_not_measured_alike_have_sections_of_their_own():
    sections = page.sections(run_of_all() + run_of_all(cache=COLD))
    assert [section.title for section in sections] == ["warm cache", "Across runs", "cold cache"]


def test_every_figure_there_is_to_show_is_shown():
    shown = names(page.sections(with_everything()))
    first = {name.partition("-")[2] for name in shown if name.startswith("1-")}
    assert first == {
        *("speed", "stages", "waits", "cpu", "memory", "size", "break-even", "rounds"),
        *("processors", "disk", "queue"),
    }
    assert {name for name in shown if not name[0].isdigit()} == {"cold-and-warm", "by-batch-size"}


def test_what_was_not_measured_has_no_figure():
    assert names(page.sections(rounds_of([1000]))) == ["1-speed", "1-waits", "1-cpu", "1-memory", "1-rounds"]


def test_cold_stands_beside_warm_only_where_all_else_is_equal():
    records = rounds_of(STEADY) + rounds_of(times(0.1), cache=COLD) + rounds_of(STEADY, variant="lmdb")
    rows = figures.cold_and_warm(contexts(records))
    assert [(row["case"], row["cache"], row["MiB/s"]) for row in rows] == [
        ("npy · native", "cold", 100.0),
        ("npy · native", "warm", 1000.0),
    ]


def test_speed_is_drawn_against_what_runs_vary():
    def sized(size):
        return rounds_of(times(size / 64), settings=Settings(batch_size=size))

    records = [*sized(64), *sized(128), *rounds_of(STEADY, variant="lmdb")]
    rows = figures.against(records, "batch size")
    assert [(row["series"], row["batch size"], row["MiB/s"]) for row in rows] == [
        ("npy · native", 64, 1000.0),
        ("npy · native", 128, 2000.0),
    ]
    assert figures.against(records, "workers") == []


def test_a_conversion_pays_for_itself_by_what_it_saves():
    fast, slow = rounds_of(times(2)), rounds_of(STEADY, variant="lmdb")
    rows = {(row["from"], row["to"]): row for row in figures.break_even(contexts(fast + slow)[0])}
    saved = 1024 / 1000 - 1024 / 2000
    assert rows["lmdb", "npy"]["epochs"] == pytest.approx(2.0 / saved)
    assert rows["npy", "lmdb"]["epochs"] is None


def test_a_look_belongs_to_the_round_it_fell_into():
    ended = a_record(1000, time="2026-01-02T03:04:10.000+00:00", epoch_s=3.0)
    end = 1767323050.0
    snapshots = [{"time": end - back, **LOOK} for back in (5, 2, 1)]
    rows = figures.system([dataclasses.replace(ended, system=snapshots)])
    assert [row["case"] for row in rows] == ["between rounds", "npy · native", "npy · native"]
    assert [row["seconds"] for row in rows] == [0, 3, 4]


@pytest.fixture
def written(tmp_path):
    """Writes a report of records and returns its file."""

    def write(records):
        return report.write(records, tmp_path / "report.html")[0]

    return write


def tables(text):
    """By figure, the cells of its table."""
    found = {}
    for name, body in re.findall(r'<figure id="([^"]+)">(.*?)</figure>', text, re.S):
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
        ("hdf5 · dataloader, sample fetch", "100"),
    ]
    spec = re.search(r'id="1-speed">.*?<script type="application/json">(.*?)</script>', text, re.S)[1]
    data = json.loads(spec)["datasets"] if "datasets" in spec else json.loads(spec)
    assert "5000.0" in json.dumps(data)


def test_every_table_can_be_downloaded_as_it_is(written):
    text = written(run_of_all()).read_text()
    found = dict(re.findall(r'download="1-([a-z-]+)\.csv" href="data:text/csv;base64,([^"]+)"', text))
    assert set(found) == {name[2:] for name in tables(text)}
    rows = list(csv.DictReader(io.StringIO(base64.b64decode(found["rounds"]).decode())))
    assert [float(row["seconds"]) for row in rows] == [one.epoch_s for one in run_of_all()]


def test_nothing_is_fetched_from_anywhere(written):
    text = written(run_of_all()).read_text().partition("<script>")[0]  # before that of the charts
    assert len(text) > 10_000
    assert not re.findall(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="(?!data:)', text)
    assert "@import" not in text


HOSTILE = '</script><script>document.title="owned"</script><img src=x onerror="document.title=1">&amp;'


def test_text_from_files_and_machines_is_shown_and_does_nothing(written):
    machine = {**MACHINE, "cpu": HOSTILE}
    dataset = {**a_record(1).dataset, "name": HOSTILE, "source": {"path": HOSTILE}}
    records = rounds_of(STEADY, machine=machine, dataset=dataset)
    case = {**records[0].case, "label": HOSTILE, "variant": HOSTILE}
    path = written([dataclasses.replace(one, case=case) for one in records])
    assert HOSTILE not in path.read_text()
    assert html.escape(HOSTILE, quote=False).replace('"', "&#34;") in path.read_text()


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


@pytest.mark.parametrize("name", ["", "file/r.html", "no/such/folder/r.html"])
def test_a_page_that_cannot_be_written_is_an_error(tmp_path, name):
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match="cannot be written"):
        report.write(rounds_of(STEADY), tmp_path / name)


def test_a_missing_library_is_named_with_the_command(tmp_path, monkeypatch):
    for name in ("iobench.report.html", "iobench.report.page", "iobench.report.charts"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.delattr(report, name.rpartition(".")[2], raising=False)
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(MissingExtra, match=r"needs altair: pip install 'iobench\[report\]'"):
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
    path.write_text(path.read_text() + '{"record_version": 99}\n{"epoch_s": NaN}\n{"cut')
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


@pytest.fixture
def browse(tmp_path):
    """What a page has become in headless Chromium, and what it wrote to the console."""
    if CHROMIUM is None:
        pytest.skip("no Chromium here")

    def dump(path, width=1200):
        looked_at = tmp_path / "looked-at.html"
        before, end, after = path.read_text().rpartition("</body>")
        looked_at.write_text(before + MEASURE + end + after)
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
    assert dom.count('data-drawn="yes"') == len(names(page.sections(records)))
    assert re.search(r'data-overflow="(-?\d+)"', dom)[1] == "0"
    drawn = html.unescape(re.search(r'data-texts="([^"]*)"', dom)[1])
    assert all(label in drawn for label in ("npy · stream", "hdf5 · dataloader, sample fetch", "6,000"))


def test_hostile_text_does_nothing_in_a_browser(written, browse):
    machine = {**MACHINE, "cpu": HOSTILE}
    records = rounds_of(STEADY, machine=machine)
    case = {**records[0].case, "label": HOSTILE, "variant": HOSTILE}
    dom, console = browse(written([dataclasses.replace(one, case=case) for one in records]))
    assert console == []
    assert re.search(r"<title>(.*?)</title>", dom)[1].startswith("iobench: ")
