"""Assertions on the kind and fields of errors, whatever their wording."""

import re

import pytest
from conftest import complaint

from iobench.base.errors import CorruptArtifact


class has(tuple):
    """Parts of the text of an error's field; without any, it is not empty."""

    def __new__(cls, *parts):
        return super().__new__(cls, parts)


def kind(name, **fields):
    """Return a check for `pytest.raises(…, check=kind("corrupt-artifact", path=…, hint=has("--format")))`."""

    def check(error):
        assert error.kind == name, f"kind {error.kind!r}: {error}"
        for field, value in fields.items():
            text = getattr(error, field)
            parts = isinstance(value, has) and text and all(part in text for part in value)
            assert parts or str(text) == str(value), f"{field}: {text!r}"
        return True

    return check


def refused_as(name, cls=CorruptArtifact, *, match=None, **fields):
    """Return `pytest.raises` of an error in one line, of this kind and class with these fields."""
    same = kind(name, **fields)
    return pytest.raises(cls, match=match, check=lambda error: "\n" not in str(error) and same(error))


def complaint_kind(done, code=1):
    """Return the kind of the only line in which a failed command says what is wrong."""
    line = complaint(done, code)
    match = re.match(r"iobench: error\[([a-z-]+)\]: ", line)
    assert match, line
    return match[1]
