"""Markdown as MyST reads it: tables, code and prose that keeps every character."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_CODE = re.compile(r"(`+)(.+?)\1")
_TYPED = re.compile(r"(?<![\w`/-])(--[a-z][a-z0-9-]*)|'(iobench [^']+)'")
_SPECIAL = re.compile(r"([\\*_\[\]<>|~#$])")


def code(text: object) -> str:
    """Return text as inline code; backticks in it are kept."""
    fence = "``" if "`" in str(text) else "`"
    return f"{fence}{text}{fence}"


def prose(text: str) -> str:
    """Return a sentence with options and commands as code, and every other special character escaped."""
    marked = _TYPED.sub(lambda match: code(match[1] or match[2]), " ".join(text.split()))
    pieces, end = [], 0
    for match in _CODE.finditer(marked):
        pieces += [_escaped(marked[end : match.start()]), code(match[2].strip())]
        end = match.end()
    return "".join([*pieces, _escaped(marked[end:])])


def paragraphs(docstring: str | None) -> str:
    """Return a docstring's paragraphs as prose; indented examples are kept as code."""
    blocks = re.split(r"\n\s*\n", docstring.strip()) if docstring else []
    return "\n\n".join(block if block.startswith("    ") else prose(block) for block in blocks)


def sentence(text: str) -> str:
    """Return text with a capital first letter and a full stop."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if not text or text.endswith((".", ":", "?")) else ".")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; cells are Markdown already."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def page(title: str, *parts: str, label: str = "") -> str:
    """Return a page: an optional label, the title, and its parts with an empty line between them."""
    anchor = [f"({label})="] if label else []
    return "\n\n".join(["\n".join([*anchor, f"# {title}"]), *filter(None, parts)]) + "\n"


def section(title: str, *parts: str, label: str = "") -> str:
    """Return a section, with a label that other pages can link to."""
    anchor = f"({label})=\n" if label else ""
    return "\n\n".join([f"{anchor}## {title}", *filter(None, parts)])


def directive(name: str, argument: str, body: str = "") -> str:
    """Return a MyST directive."""
    return "\n".join([f":::{{{name}}} {argument}".rstrip(), *([body] if body else []), ":::"])


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)


def _cell(text: str) -> str:
    inside = _CODE.sub(lambda match: match[0].replace("|", "\\|"), text)
    return " ".join(inside.split())
