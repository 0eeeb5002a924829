"""Parsing and formatting of sizes, shapes and figures."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kinds import kind

from iobench.base.errors import InvalidSettings
from iobench.base.units import (
    bytes_text,
    counted,
    parse_elements,
    parse_shape,
    percent_text,
    rate_text,
    seconds_text,
)


@pytest.mark.parametrize(
    ("text", "item_bytes", "elements"),
    [
        ("1e7", 4, 10_000_000),
        ("2_000_000", 4, 2_000_000),
        ("1", 8, 1),
        ("2.5e3", 4, 2500),
        ("1E+3", 4, 1000),
        (" 7 ", 4, 7),
        ("4GiB", 4, 1 << 30),
        ("1MiB", 8, 131_072),
        ("1 MiB", 1, 1 << 20),
        ("1.5KiB", 2, 768),
        ("500MB", 4, 125_000_000),
        ("10B", 4, 2),
    ],
)
def test_a_size_counts_elements_or_with_a_unit_bytes(text, item_bytes, elements):
    assert parse_elements(text, item_bytes) == elements


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "-1",
        "1.5",
        "0GiB",
        "-4GiB",
        "",
        "many",
        "nan",
        "inf",
        "1e",
        "4EiB",
        "4gb",
        "1e7 1",
        "1e-3",
        "--",
        "3B",
    ],
)
def test_an_invalid_size_is_refused(text):
    expected = "out-of-range" if text == "3B" else "invalid-size"
    with pytest.raises(InvalidSettings, check=kind(expected)) as error:
        parse_elements(text, 4)
    assert repr(text) in error.value.problem


@pytest.mark.parametrize(
    "text",
    ["1e19", "1e999999999", "9e99TiB", "9e999999KiB", "9e999999999TB", "1e400", "9" * 100_000, "9e18TiB"],
)
def test_a_size_beyond_all_disks_is_refused_at_once(text):
    with pytest.raises(InvalidSettings, check=kind("out-of-range")):
        parse_elements(text, 4)


@settings(deadline=None)
@given(st.text(alphabet="0123456789.eE+-_ kKMGTiB", max_size=12))
def test_every_text_is_a_positive_integer_or_a_value_error(text):
    try:
        elements = parse_elements(text, 4)
    except ValueError:
        return
    assert type(elements) is int
    assert elements > 0


@pytest.mark.parametrize(
    ("text", "shape"), [("128", (128,)), ("3x224x224", (3, 224, 224)), ("3,4", (3, 4)), (" 3 x 4 ", (3, 4))]
)
def test_a_shape_is_written_with_x_or_commas(text, shape):
    assert parse_shape(text) == shape


NO_SHAPES = ["", "0", "3x0", "x3", "3x", "-3", "3.5", "3x4y", "9" * 5000, "1e3", "nan", "３", "3xx4", "3 4"]


BAD_SHAPES = [
    *((text, "out-of-range" if text == "9" * 5000 else "invalid-shape") for text in NO_SHAPES),
    ("x".join(["1"] * 65), "too-many-axes"),
    ("1" + "0" * 30, "out-of-range"),
    ("1000000000x1000000000x9", "out-of-range"),
]


@pytest.mark.parametrize(("text", "reason"), BAD_SHAPES)
def test_an_invalid_shape_is_refused(text, reason):
    with pytest.raises(InvalidSettings, check=kind(reason)) as error:
        parse_shape(text)
    assert len(str(error.value)) < 200


def test_a_sample_may_have_31_axes():
    assert parse_shape("x".join(["1"] * 31)) == (1,) * 31


@pytest.mark.parametrize("text", ["1e-999999999", "1e-9999999999999999999", "1e", "--1", "_", "1" * 99 + "x"])
def test_odd_numbers_are_refused_at_once(text):
    with pytest.raises(InvalidSettings) as error:
        parse_elements(text, 4)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (40_000_000, "38.1 MiB"),
        (5 << 50, "5.00 PiB"),
        (5 << 60, "5,120 PiB"),
    ],
)
def test_bytes_have_iec_units(count, text):
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(12e-6, "12.0 µs"), (3.4e-3, "3.40 ms"), (0.5, "500 ms"), (1.25, "1.25 s"), (4000, "4,000 s")],
)
def test_seconds_have_a_fitting_unit(seconds, text):
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("rate", "text"), [(0, "0.00"), (950, "950"), (16_200, "16.2 k"), (1.42e6, "1.42 M"), (3e9, "3.00 G")]
)
def test_rates_are_short(rate, text):
    assert rate_text(rate) == text


@pytest.mark.parametrize(("share", "text"), [(0.0, "0%"), (1e-5, "<1%"), (0.006, "1%"), (1.5, "150%")])
def test_a_small_share_is_not_zero_percent(share, text):
    assert percent_text(share) == text


def test_one_of_a_thing_is_singular():
    assert counted(1, "worker") == "1 worker"
    assert counted(0, "case") == "0 cases"
    assert counted(1234, "epoch") == "1,234 epochs"
    assert [counted(count, "batch", "batches") for count in (1, 2)] == ["1 batch", "2 batches"]
