"""Facets and key of a case: the identity that a record carries."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from iobench.base.machine import Machine
from iobench.base.units import shape_text
from iobench.results.parts import DatasetPart

Facets = Mapping[str, Any]


def all_facets(settings: Facets, dataset: DatasetPart, machine: Machine) -> dict[str, Any]:
    """Return all facets of a case, including the machine, as plain values."""
    disk = machine.disk
    options = [disk.mount_options] if disk.remote else []
    return {
        "processor": [machine.cpu, machine.usable_cores],
        "memory": round(machine.memory_bytes / 2**30),
        "disk": [disk.file_system, disk.model, disk.read_ahead_kib, *options],
        "gpu": machine.gpu.name if machine.gpu else None,
        "host": machine.host,
        "dataset": dataset.name,
        "content": dataset.content,
        "samples": dataset.samples,
        "fields": [f"{f.name} {f.dtype} {shape_text(f.shape) or 'scalar'}" for f in dataset.fields],
        **settings,
    }


def key_of(facets: Facets) -> str:
    """Return the key of these facets: 16 hexadecimal digits, a hash of them."""
    text = json.dumps(facets, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
