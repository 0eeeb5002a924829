"""Style of the project: docstrings, names with one meaning, and tests that leave the wording free."""

import ast
import functools
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("iobench", "scripts", "tests", "docs/_ext")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
NOT_A_FIRST_WORD = {"What", "Whether", "How", "Whoever", "Who", "Where", "That"}
NOT_USED = re.compile(
    r"\b(nobody|somebody|whoever|anew|mends?|mended)\b|\bis told\b|\bis said to\b|\bsave for\b"
    r"|\bas far as (it|that) can be had\b",
    re.IGNORECASE,
)
PHRASES_ALLOWED = 80


@functools.cache
def parsed(path):
    return ast.parse(path.read_text())


def docstrings(tree):
    """Yield every docstring of a module with its line."""
    for node in ast.walk(tree):
        documented = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        if documented and (text := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), text


def test_docstrings_begin_with_a_verb_or_a_noun():
    wrong = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in SOURCES
        for line, text in docstrings(parsed(path))
        if re.split(r"\W", text, maxsplit=1)[0] in NOT_A_FIRST_WORD
    ]
    assert wrong == []


def test_words_of_the_old_dialect_are_gone():
    texts = [*SOURCES, *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("iobench/**/*.html")]
    wrong = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in texts
        if "_build" not in path.parts and path != Path(__file__)  # it lists them
        for match in NOT_USED.finditer(path.read_text())
    ]
    assert wrong == []


def test_a_class_name_means_one_thing():
    places = defaultdict(list)
    for path in (ROOT / "iobench").rglob("*.py"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(ROOT)))
    twice = {name: files for name, files in places.items() if len(files) > 1}
    assert twice == {}


def is_phrase(value):
    """Return True for a string of three words or more."""
    return isinstance(value, str) and " " in value and len(re.findall(r"[A-Za-z]{2,}", value)) >= 3


def asserted(test):
    """Yield the constants that a test asserts on, or has an error matched with."""
    for node in ast.walk(test):
        if isinstance(node, ast.Assert):
            yield from (one.value for one in ast.walk(node.test) if isinstance(one, ast.Constant))
        elif isinstance(node, ast.keyword) and node.arg == "match":
            yield from (one.value for one in ast.walk(node.value) if isinstance(one, ast.Constant))


def test_few_tests_assert_a_phrase():
    phrases = [
        f"{path.relative_to(ROOT)}::{test.name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for test in ast.walk(parsed(path))
        if isinstance(test, ast.FunctionDef) and test.name.startswith("test")
        if any(map(is_phrase, asserted(test)))
    ]
    if len(phrases) > PHRASES_ALLOWED:
        pytest.fail(f"{len(phrases)} tests assert a phrase: {phrases}")
