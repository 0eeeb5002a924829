"""Assertions on the kind and fields of errors, whatever their wording."""

import re

from conftest import complaint


def kind(name, **fields):
    """Return a check for `pytest.raises(…, check=kind("corrupt-artifact", path=…))`."""

    def check(error):
        assert error.kind == name, f"kind {error.kind!r}: {error}"
        for field, value in fields.items():
            assert str(getattr(error, field)) == str(value), f"{field}: {getattr(error, field)!r}"
        return True

    return check


def complaint_kind(done, code=1):
    """Return the kind of the only line in which a failed command says what is wrong."""
    line = complaint(done, code)
    match = re.match(r"iobench: error\[([a-z-]+)\]: ", line)
    assert match, line
    return match[1]
