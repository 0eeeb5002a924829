"""Meanings of the fields of a class: the comment at the field, or its entry in the docstring's Attributes."""

from __future__ import annotations

import ast
import inspect
import io
import re
import textwrap
import tokenize

from iobench_reference.page import ENTRY

_SECTION = re.compile(r"(?:^|\n)Attributes\n-+\n(?P<entries>.*?)(?=\n\S[^\n]*\n-{3,}\n|\Z)", re.DOTALL)


def of_fields(cls: type) -> dict[str, str]:
    """Return what each field holds that a class declares itself or inherits, where that is written."""
    found: dict[str, str] = {}
    for owner in reversed(cls.__mro__[:-1]):
        if owner.__module__.startswith("iobench"):
            found |= attributes(inspect.cleandoc(owner.__doc__ or ""))
            found |= _of_body(textwrap.dedent(inspect.getsource(owner)))
    return found


def without_attributes(docstring: str) -> str:
    """Return a docstring without its section Attributes, for where a table shows the same."""
    return _SECTION.sub("", docstring)


def attributes(docstring: str) -> dict[str, str]:
    """Return the entries of a numpydoc section Attributes by name."""
    section = _SECTION.search(docstring)
    entries = ENTRY.finditer(section["entries"]) if section else ()
    return {
        name.strip(): " ".join(entry["text"].split())
        for entry in entries
        for name in entry["names"].split(",")
    }


def _of_body(source: str) -> dict[str, str]:
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    written = _comments(source)
    lines = {
        statement.target.id: range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
        for statement in body.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }
    texts = {name: _text(written, span) for name, span in lines.items()}
    return {name: text for name, text in texts.items() if text}


def _text(written: dict[int, tuple[str, bool]], span: range) -> str:
    """Return the comments beside a field, continued by the lines below that hold nothing else."""
    parts = [written[line][0] for line in span if line in written]
    following = span.stop
    while parts and following in written and written[following][1]:
        parts.append(written[following][0])
        following += 1
    return " ".join(parts)


def _comments(source: str) -> dict[int, tuple[str, bool]]:
    """Return each comment by its line, and whether the line holds nothing else."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {
        token.start[0]: (token.string.lstrip("#: ").strip(), not token.line[: token.start[1]].strip())
        for token in tokens
        if token.type == tokenize.COMMENT and "noqa" not in token.string
    }
