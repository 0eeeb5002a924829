"""A run without `--slow` keeps a sample of each promise."""

import re
from itertools import product
from pathlib import Path
from types import SimpleNamespace

from slow_tests import LINES, left_out, listed

FOLDER = Path(__file__).parent


class Item:
    """A collected test with a row of each of its `parametrize`."""

    def __init__(self, function, *rows, marker=None):
        self.nodeid = f"{function}[{'-'.join(rows)}]" if rows else function
        self.get_closest_marker = lambda name: name == marker
        if rows:
            self.callspec = SimpleNamespace(_idlist=list(rows))


def kept(items):
    return [one for one in items if one not in left_out(items)]


def test_each_row_of_each_parameter_is_kept_once():
    formats, orders, loaders = (
        ("npy", "hdf5", "lmdb", "memmap"),
        ("sequential", "random"),
        ("native", "stream"),
    )
    cases = [Item("tests/test_x.py::test_a", *rows) for rows in product(formats, orders, loaders)]
    rows = [one.callspec._idlist for one in kept(cases)]
    assert len(rows) == len(formats)
    assert [set(column) for column in zip(*rows, strict=True)] == [set(formats), set(orders), set(loaders)]
    assert len({tuple(pair) for _, *pair in rows}) == len(orders) * len(loaders)  # pairs that others have not


def test_rows_of_one_parameter_tests_without_any_and_those_for_a_gpu_are_all_kept():
    items = [Item("tests/test_x.py::test_a", row) for row in ("npy", "hdf5")]
    items += [Item("tests/test_x.py::test_b"), Item("tests/test_x.py::test_c")]
    items += [Item("tests/gpu/test_x.py::test_a", *rows, marker="gpu") for rows in product("ab", "cd")]
    assert kept(items) == items


def test_listed_tests_are_left_out_and_do_not_stand_for_others(monkeypatch):
    monkeypatch.setattr("slow_tests._LISTED", listed("test_x.py::test_a[npy*", "test_x.py::TestB"))
    cases = [Item("tests/test_x.py::test_a", *rows) for rows in product(("npy", "hdf5"), ("one", "two"))]
    others = [Item("tests/test_x.py::TestB::test_b"), Item("tests/test_x.py::test_ab")]
    assert kept([*cases, *others]) == [*cases[2:], others[1]]


def test_each_line_names_a_test_that_there_is():
    assert [line for line in LINES if not is_there(line)] == []


def is_there(line):
    """Return True if there is the file, and in it the class, which may inherit its tests, or the test."""
    path, _, names = line.partition("[")[0].partition("::")
    name = names.partition("::")[0]
    return bool(re.search(rf"\b{name}\b" if "*" not in name else "", (FOLDER / path).read_text()))
