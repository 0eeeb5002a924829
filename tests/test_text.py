"""Display of untrusted text."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.base.text import listed, printable, reason, shortened, suggestion


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
