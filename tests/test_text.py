"""Text and figures for people: escaped and shortened; sizes and shapes that they type."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kinds import kind

from iobench.base.errors import InvalidSettings
from iobench.base.text import listed, printable, reason, shortened, suggestion
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
    ("text", "shown"),
    [
        ("plain · text, µs × 10 – été 🐱", "plain · text, µs × 10 – été 🐱"),
        ("\x1b[31m", "\\x1b[31m"),
        ("a\nb\tc\rd", "a\\x0ab\\x09c\\x0dd"),
        ("\x9b2J\x7f", "\\x9b2J\\x7f"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("a\u2028b\u200bc", "a\\u2028b\\u200bc"),
        ("\U000e0041", "\\U000e0041"),
        (b"\xff\xfe".decode("utf-8", "surrogateescape"), "\\xff\\xfe"),
        ("\ud800", "\\ud800"),
        ("[bold]", "[bold]"),
        ("", ""),
    ],
)
def test_characters_that_a_terminal_interprets_are_escaped(text, shown):
    assert printable(text) == shown


@given(st.text(st.characters()))
def test_any_text_becomes_one_line_that_can_be_encoded(text):
    shown = printable(text)
    shown.encode("utf-8")
    assert len(shown.splitlines()) <= 1
    assert not {unicodedata.category(c) for c in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert printable(shown) == shown


def test_long_texts_and_lists_are_shortened():
    assert shortened("x" * 80) == "x" * 80
    assert shortened("x" * 81) == "x" * 79 + "…"
    assert listed(["a", "b"]) == "a, b"
    assert listed([str(n) for n in range(10)]) == "0, 1, 2, 3, 4, 5, 6, 7 and 2 more"


@pytest.mark.parametrize(
    ("known", "text"), [(["shape", "ship", "crop"], "did you mean shape? "), (["crop"], ""), ([], "")]
)
def test_the_known_name_that_is_spelled_most_alike_is_suggested(known, text):
    assert suggestion("shap", known) == text


@pytest.mark.parametrize(
    ("error", "line"),
    [(ValueError("a\nb"), "a"), (EOFError(), "EOFError"), (ValueError("x" * 999), "x" * 199 + "…")],
)
def test_the_reason_is_the_first_line(error, line):
    assert reason(error) == line


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


@settings(deadline=None)
@given(st.text(alphabet="0123456789.eE+-_ kKMGTiB", max_size=12))
def test_every_text_is_a_positive_integer_or_a_value_error(text):
    try:
        elements = parse_elements(text, 4)
    except ValueError:
        return
    assert type(elements) is int
    assert elements > 0


NO_SIZES = (
    "0 -1 1.5 0GiB -4GiB many nan inf 1e 4EiB 4gb 1e-3 -- --1 _ 1e-999999999 1e-9999999999999999999".split()
)
BEYOND_ALL_DISKS = "1e19 1e999999999 9e99TiB 9e999999KiB 9e999999999TB 1e400 9e18TiB".split()
NO_SHAPES = "0 3x0 x3 3x -3 3.5 3x4y 1e3 nan ３ 3xx4".split()


@pytest.mark.parametrize(
    ("parse", "text", "reason"),
    [
        *((parse_elements, text, "invalid-size") for text in (*NO_SIZES, "", "1e7 1", "1" * 99 + "x")),
        *((parse_elements, text, "out-of-range") for text in (*BEYOND_ALL_DISKS, "9" * 100_000, "3B")),
        *((parse_shape, text, "invalid-shape") for text in (*NO_SHAPES, "", "3 4")),
        (parse_shape, "x".join(["1"] * 65), "too-many-axes"),
        *(
            (parse_shape, text, "out-of-range")
            for text in ("9" * 5000, "1" + "0" * 30, "1000000000x1000000000x9")
        ),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_what_is_no_size_or_shape_is_refused_at_once(parse, text, reason):
    with pytest.raises(InvalidSettings, check=kind(reason)) as error:
        parse(text, *([4] if parse is parse_elements else []))
    assert text[:20] in error.value.problem
    assert len(str(error.value)) < 200


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("128", (128,)),
        ("3x224x224", (3, 224, 224)),
        ("3,4", (3, 4)),
        (" 3 x 4 ", (3, 4)),
        ("x".join(["1"] * 31), (1,) * 31),
    ],
)
def test_a_shape_is_written_with_x_or_commas(text, shape):
    assert parse_shape(text) == shape


@pytest.mark.parametrize(
    ("form", "texts"),
    [
        (
            bytes_text,
            {
                0: "0 B",
                1023: "1023 B",
                1024: "1.00 KiB",
                40_000_000: "38.1 MiB",
                5 << 50: "5.00 PiB",
                5 << 60: "5,120 PiB",
            },
        ),
        (seconds_text, {12e-6: "12.0 µs", 3.4e-3: "3.40 ms", 0.5: "500 ms", 1.25: "1.25 s", 4000: "4,000 s"}),
        (rate_text, {0: "0.00", 950: "950", 16_200: "16.2 k", 1.42e6: "1.42 M", 3e9: "3.00 G"}),
        (percent_text, {0.0: "0%", 1e-5: "<1%", 0.006: "1%", 1.5: "150%"}),
        (lambda count: counted(count, "epoch"), {0: "0 epochs", 1: "1 epoch", 1234: "1,234 epochs"}),
        (lambda count: counted(count, "batch", "batches"), {1: "1 batch", 2: "2 batches"}),
    ],
)
def test_figures_are_written_in_fitting_units(form, texts):
    assert {value: form(value) for value in texts} == texts
