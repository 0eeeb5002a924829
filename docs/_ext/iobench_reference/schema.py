"""The JSON Schema of a record, and a page that explains its parts."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from iobench.base import machine
from iobench.results import parts, record
from iobench_reference import comments
from iobench_reference.page import code, page, paragraphs, prose, section, sentence, table

FILE = "record.schema.json"


def pages() -> dict[str, str]:
    """Return each file's text by its path: the page and the schema itself."""
    schema = record_schema()
    return {"record.md": _page(schema), FILE: json.dumps(schema, indent=2) + "\n"}


def record_schema() -> dict[str, Any]:
    """Return the schema of one line of a file of records, each field with its description."""
    _, components = msgspec.json.schema_components((record.Record, parts.CasePart))
    for name, body in components.items():
        _describe(body, comments.of_fields(_class(name)))
    root = components.pop("Record")
    root["properties"]["case"] |= {"$ref": "#/$defs/CasePart", "type": "object"}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **root, "$defs": components}


def _class(name: str) -> type:
    found: type = next(vars(module)[name] for module in (record, parts, machine) if name in vars(module))
    return found


def _describe(body: dict[str, Any], texts: dict[str, str]) -> None:
    for name, schema in body["properties"].items():
        if name in texts:
            schema["description"] = texts[name]


def _page(schema: dict[str, Any]) -> str:
    return page(
        "Records",
        "`iobench run` appends one line of JSON to its file for each round. "
        f"The JSON Schema is {{download}}`{FILE}`; `record_version` says which version a line has.",
        *(_part(name, body) for name, body in [("Record", schema), *schema["$defs"].items()]),
        section("The schema itself", f"```{{literalinclude}} {FILE}\n:language: json\n```"),
        label="reference-record",
    )


def _part(name: str, body: dict[str, Any]) -> str:
    required = body.get("required", [])
    rows = [
        [code(field), _type(spec), "yes" if field in required else "no", prose(spec.get("description", ""))]
        for field, spec in body["properties"].items()
    ]
    return section(
        code(name),
        paragraphs(sentence(body.get("description", ""))),
        table(["field", "type", "always", "meaning"], rows),
        label=f"record-{name.lower()}",
    )


def _type(spec: dict[str, Any]) -> str:
    if "$ref" in spec:
        name = spec["$ref"].rpartition("/")[2]
        return f"[{name}](#record-{name.lower()})"
    if "anyOf" in spec:
        return " or ".join(map(_type, spec["anyOf"]))
    if spec.get("type") == "array":
        return f"array of {_type(spec.get('items', {}))}"
    types = spec.get("type", "any")
    return prose(types if isinstance(types, str) else " or ".join(types))
