"""Two cases that differ in one setting stay two, wherever records are grouped."""

import csv
import dataclasses
import json

import pytest
from record_cases import a_case, a_record

from iobench.base.options import declared
from iobench.bench.case import CaseSettings
from iobench.bench.training import READING, STEP
from iobench.loading import loaders
from iobench.results import cases, history, record_file
from iobench.results.columns import blocks_of
from iobench.results.compare import compare
from iobench.results.summary import summarise

FAST, SLOW = 900, 100  # MiB/s: a median over both would be neither


def other_value(spec):
    """Return a value of an option other than its default."""
    if spec.choices is not None:
        return next(value for value in spec.choices if value != spec.default)
    return {bool: not spec.default, int: 7, float: 0.5, str: "other"}[spec.type]


# options that require others
NEEDS = {
    **{
        name: {"num_workers": 2}
        for name in ("prefetch_factor", "start_method", "persistent_workers", "method")
    },
    "via": {"fetch": "batch"},
    "shuffle_buffer": {"streaming": True},
}


def loader_pairs():
    for name in loaders.names():
        for spec in declared(loaders.class_of(name)):
            plain = loaders.class_of(name)()
            value = other_value(spec)
            needed = {one: value for one, value in NEEDS.get(spec.name, {}).items() if hasattr(plain, one)}
            plain = dataclasses.replace(plain, **needed)
            yield f"{name}:{spec.name}", plain, dataclasses.replace(plain, **{spec.name: value})


BASE = a_case(order="block")


def other_facet(value):
    """Return another value of a facet that takes any."""
    return not value if isinstance(value, bool) else 2 * value + 1 if isinstance(value, int) else "other"


OTHERS = {
    **{spec.name: other_facet(getattr(BASE, spec.name)) for spec in dataclasses.fields(BASE)},
    "device": "cuda:0",
    "order": "random",
    "cache": "cold",
    "model": "mlp",
    "max_batches": 50,
    "batch_tokens": 65536,
    "round_seconds": 7.0,
    "step_s": 0.04,
    "loader": loaders.get("stream"),
}
PAIRS = {
    **{name: (BASE, dataclasses.replace(BASE, **{name: value})) for name, value in OTHERS.items()},
    **{
        name: (dataclasses.replace(BASE, loader=one), dataclasses.replace(BASE, loader=other))
        for name, one, other in loader_pairs()
    },
}


def records_of(case, speed):
    made = a_record(speed)
    dataset = dataclasses.replace(made.dataset, name=case.dataset, content=case.content)
    timing, rounds = made.timing, range(1, 6)
    return [
        dataclasses.replace(
            made,
            round=number,
            case=case.facets,
            dataset=dataset,
            cache=dataclasses.replace(made.cache, mode=case.cache),
            timing=dataclasses.replace(timing, epochs_s=timing.epochs_s * (1 + number / 1e4)),
        )
        for number in rounds
    ]


def records_of_pair(name):
    one, other = PAIRS[name]
    return [*records_of(one, FAST), *records_of(other, SLOW)]


@pytest.fixture(params=PAIRS)
def pair(request):
    return records_of_pair(request.param)


# all options enter the key in the same way: one of each kind suffices
KINDS = ("dataloader:num_workers", "dataloader:fetch", "stream:direct", "tensorstore:cache_bytes")


@pytest.fixture(params=[*OTHERS, *KINDS])
def some_pair(request):
    return records_of_pair(request.param)


def test_every_field_of_a_case_is_tried():
    options = [spec for name in loaders.names() for spec in declared(loaders.class_of(name))]
    assert len(PAIRS) == len(dataclasses.fields(BASE)) + len(options)
    assert all(one != other for one, other in PAIRS.values())


def test_every_field_of_a_case_is_a_facet_of_its_key():
    keys = {one.key for pair in PAIRS.values() for one in pair}
    assert all(one.key != other.key for one, other in PAIRS.values())
    assert len(keys) > len(PAIRS)


def test_options_that_are_off_are_no_facets_so_that_old_keys_stay():
    """A new option changes a figure only where it is used: records without it are of the same case."""
    facets = set(a_case().facets) - {"dataset", "content", "format", "loader", "options"}
    assert facets == {
        *("device", "batch_size", "order", "seed", "cache", "model", "strict", "profile", "isolated"),
        "world_size",
    }


def test_every_setting_of_a_step_has_its_own_headroom():
    assert {"batch_size", "batch_tokens", "collate", "order", "model", "step_s", "strict"} <= set(STEP)
    assert {spec.name for spec in dataclasses.fields(CaseSettings)} >= READING


def test_isolation_is_named_only_if_a_loader_is_measured_in_both_ways():
    def named(*made):
        return [str(label) for label in cases.labels({case.key: case.facets for case in made}).values()]

    assert named(a_case(), a_case("hdf5", isolated=True, loader="webdataset")) == [
        "npy · native",
        "hdf5 · webdataset",
    ]
    shared, own = named(a_case(), a_case(isolated=True))
    texts = [cases.text_of("isolated", value) for value in (False, True)]
    assert [shared, own] == [f"npy · native, {text}" for text in texts]
    assert texts[0] != texts[1]


def test_a_summary_has_two_with_labels_of_their_own_in_a_table_of_two_lines(pair):
    summary = summarise(pair)
    assert len(summary.cases) == 2
    assert {round(case.bytes_per_s.median / 2**20, -2) for case in summary.cases} == {FAST, SLOW}
    assert len({str(case.label) for case in summary.cases}) == 2
    assert not [warning for warning in summary.warnings if warning.kind in ("round-spread", "drift")]
    (_, table, *_) = blocks_of(summary, long=True)
    first, second = zip(*(cells for _, cells in table.columns[: table.heads]), strict=True)
    assert first != second


def test_a_comparison_with_itself_has_two_cases_without_a_difference(pair):
    compared = compare(pair, {"again": pair}, force=True).cases
    assert len(compared) == 2
    assert [one.comparison.ratio.median for one in compared] == [1.0, 1.0]
    assert [one.settings + one.mismatches for one in compared] == [[], []]
    assert len({one.case for one in compared}) == 2


def test_an_export_has_two_keys(some_pair, tmp_path):
    history.export(some_pair, tmp_path / "t.csv")
    with open(tmp_path / "t.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len({row["case_key"] for row in rows}) == 2


def test_a_list_of_runs_counts_two_and_a_run_is_shown_with_two(some_pair, tmp_path, inside):
    for one in some_pair:
        record_file.append(tmp_path / "results" / "r.jsonl", one)
    (past,) = history.past(tmp_path)
    assert past.cases == 2
    shown = json.loads(inside("runs", "--data-dir", tmp_path, "show", "r", "--json").stdout)
    assert sum(len(context["cases"]) for context in shown["contexts"]) == 2


def test_a_report_draws_two(some_pair):
    page = pytest.importorskip("iobench.report.page")
    figures = {chart.name: chart for chart in page.page(some_pair).charts}
    drawn = [row for name, figure in figures.items() if name.endswith("speed") for row in figure.rows]
    assert len(drawn) == 2
    assert {round(row["bytes_per_s"] / 2**20, -2) for row in drawn} == {FAST, SLOW}


def test_the_same_case_is_one():
    again = [dataclasses.replace(one, round=one.round + 5) for one in records_of(BASE, FAST)]
    assert len(cases.by_case([*records_of(BASE, FAST), *again])) == 1


def test_a_machine_without_a_number_of_cores_is_named_by_its_processor():
    assert cases.text_of("processor", ["Z80", None]) == "Z80"
    assert cases.text_of("processor", ["Z80", 1]) == "Z80, 1 core"
