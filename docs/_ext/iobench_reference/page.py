"""Markdown as MyST reads it: tables, code and prose that keeps every character."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_CODE = re.compile(r"(`+)(.+?)\1")
_TYPED = re.compile(r"(?<![\w`/-])(--[a-z][a-z0-9-]*)|'(iobench [^']+)'")
# numpydoc: a section's title, and an entry of it
_SECTION = re.compile(r"^([A-Z]\w+)\n-{3,}\n", re.MULTILINE)
ENTRY = re.compile(
    r"^(?P<names>\S[^\n:]*?)(?: : (?P<type>[^\n]*))?\n(?P<text>(?:[ ]+[^\n]*(?:\n|\Z)|\n)+)", re.MULTILINE
)
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
    """Return a docstring as Markdown: prose, indented examples as code, numpydoc's sections as lists."""
    text, *sections = _SECTION.split(docstring.strip() if docstring else "")
    blocks = [_block(block) for block in re.split(r"\n\s*\n", text) if block.strip()]
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        listed = "\n".join(_item(entry) for entry in ENTRY.finditer(body))
        blocks += [f"**{title}**", listed or paragraphs(body)]
    return "\n\n".join(blocks)


def _block(block: str) -> str:
    return block if block.startswith("    ") else prose(block)


def _item(entry: re.Match[str]) -> str:
    kind = f" ({prose(entry['type'])})" if entry["type"] else ""
    return f"- {code(entry['names'])}{kind}: {prose(entry['text'])}"


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
