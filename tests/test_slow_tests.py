"""A run without `--slow` keeps a sample of each promise."""

import re
from itertools import product
from pathlib import Path
from types import SimpleNamespace

from slow_tests import LISTED, SHARED, left_out, lines

FOLDER = Path(__file__).parent


class Item:
    """A collected test with a row of each of its `parametrize`."""

    def __init__(self, function, *rows, marker=None):
        self.nodeid = f"{function}[{'-'.join(rows)}]" if rows else function
        self.get_closest_marker = lambda name: name == marker
        if rows:
            self.callspec = SimpleNamespace(_idlist=list(rows))


def kept(items, **lists):
    out = left_out(items, **lists)
    return [one for one in items if one not in out]


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


def test_listed_tests_are_left_out_and_do_not_stand_for_others():
    cases = [Item("tests/test_x.py::test_a", *rows) for rows in product(("npy", "hdf5"), ("one", "two"))]
    others = [Item("tests/test_x.py::TestB::test_b"), Item("tests/test_x.py::test_ab")]
    slow = "# why\ntest_x.py::test_a[npy*\n\ntest_x.py::TestB"
    assert kept([*cases, *others], slow=slow) == [*cases[2:], others[1]]


def test_tests_that_share_their_rows_have_two_of_them_in_turn():
    formats, tests = ("npy", "hdf5", "lmdb", "memmap"), ("test_a", "test_b", "TestC::test_c")
    items = [Item(f"tests/test_x.py::{test}", name) for test in tests for name in formats]
    alone = [Item("tests/test_x.py::test_d", name) for name in formats]
    result = kept([*items, *alone], shared="test_x.py::test_a\ntest_x.py::test_b\ntest_x.py::TestC::*[*m*")
    names = [[*one.callspec._idlist, one.nodeid.partition("[")[0][-1]] for one in result]
    assert names[:4] == [["npy", "a"], ["hdf5", "a"], ["lmdb", "b"], ["memmap", "b"]]
    assert names[4:] == [[name, "c"] for name in formats] + [[name, "d"] for name in formats]


def test_tests_that_share_their_formats_keep_their_other_rows():
    rows = product(("npy", "hdf5:chunk_bytes=0-None", "lmdb"), ("cut", "removed", "grown"))
    result = kept([Item("tests/test_x.py::test_a", *row) for row in rows], shared="test_x.py")
    assert {one.callspec._idlist[1] for one in result} == {"cut", "removed", "grown"}
    assert len(result) == len({one.callspec._idlist[0] for one in result}) == 3


def test_each_line_names_a_test_that_there_is():
    assert [line for line in lines(LISTED + SHARED) if not is_there(line)] == []


def is_there(line):
    """Return True if there is the file, and in it the class, which may inherit its tests, or the test."""
    path, _, names = line.partition("[")[0].partition("::")
    name = names.partition("::")[0]
    return bool(re.search(rf"\b{name}\b" if "*" not in name else "", (FOLDER / path).read_text()))
