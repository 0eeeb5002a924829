"""Leaves of LitData samples: layouts of litdata's serializers for arrays, tensors and numbers."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from iobench.base.errors import CorruptArtifact, corrupt, expecting
from iobench.contrib.formats.shared.external import FIXED, not_fixed
from iobench.formats import DTYPES, Field, unsupported_dtype

# litdata's numbers of NumPy's and torch's dtypes; two numbers of a torch dtype are synonyms
NUMPY = dict.fromkeys("int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split(), 0)
NUMPY = {name: number for number, name in enumerate([*NUMPY, "complex64", "complex128", "bool"])}
TORCH = {
    "float32": (0, 1),
    "float64": (2, 3),
    "complex64": (4, 5),
    "complex128": (6, 7),
    "float16": (8, 9),
    "uint8": (11,),
    "int8": (12,),
    "int16": (13, 14),
    "int32": (15, 16),
    "int64": (17, 18),
    "bool": (19,),
    "uint16": (20,),
}
NUMPY_NAMES = {number: name for name, number in NUMPY.items()}
TORCH_NAMES = {number: name for name, numbers in TORCH.items() for number in numbers}
SCALARS = {"int": "int64", "float": "float64", "bool": "bool"}
MOST_AXES = 32
HINTS = {
    "pickle": "store an array or a tensor; iobench never unpickles data",
    "bytes": "name the fields to read, with dtype and shape: --field 'x=float32[3,4]', or 'x=uint16[*]'",
}


def header_of(field: Field, count: int = 0) -> bytes:
    """Return the header that litdata's serializer of NumPy arrays writes before the values.

    `count` is the length of the sample, if the field is ragged.
    """
    shape = _shape(field, count)
    return struct.pack(
        f"<{2 + len(shape)}I", NUMPY[field.dtype], len(shape), *(n & 0xFFFFFFFF for n in shape)
    )


def _shape(field: Field, count: int) -> tuple[int, ...]:
    return (count, *field.inner) if field.is_ragged else field.shape


def prefix_of(path: Path, name: str, kind: str, field: Field) -> bytes:
    """Return the bytes before the values of a field in a leaf.

    `kind` is the serializer's name in litdata's index. The length of a ragged sample is 0 there.

    CorruptArtifact if the leaf has another dtype or shape, or of kind ``fields-needed`` or
    ``encoded-values``.
    """
    kind, _, number = kind.partition(":")
    if kind == "numpy" and field.dtype in NUMPY:
        return header_of(field)
    if kind == "tensor" and field.dtype in TORCH:  # litdata writes the last of the numbers
        shape = _shape(field, 0)
        return struct.pack(f">{2 + len(shape)}I", TORCH[field.dtype][-1], len(shape), *shape)
    known = {"no_header_numpy": NUMPY_NAMES, "no_header_tensor": TORCH_NAMES}.get(kind)
    dtype = SCALARS.get(kind) if known is None else known.get(int(number) if number.isdigit() else -1)
    if known is None and kind not in (*SCALARS, "bytes"):
        raise _refused(path, name, kind)
    if kind != "bytes" and (dtype != field.dtype or (kind in SCALARS and field.shape)):
        raise corrupt(path, f"leaf {name} as {field.dtype} {field.shape}", kind if dtype is None else dtype)
    return b""


def field_of(path: Path, name: str, kind: str, stored: bytes) -> Field:
    """Return name, shape and dtype of a leaf, from its bytes in the first sample.

    CorruptArtifact of kind ``unsupported-dtype``, ``unequal-shapes``, ``fields-needed`` or
    ``encoded-values``.
    """
    kind, _, number = kind.partition(":")
    if kind in SCALARS:
        return Field(name, (), SCALARS[kind])
    if kind in ("numpy", "tensor"):
        code, shape = _header(path, name, "<" if kind == "numpy" else ">", stored)
    elif kind in ("no_header_numpy", "no_header_tensor") and number.isdigit():
        code, shape = int(number), None
    else:
        raise _refused(path, name, kind)
    dtype = (NUMPY_NAMES if "numpy" in kind else TORCH_NAMES).get(code)
    if dtype not in DTYPES:
        raise unsupported_dtype(path, f"leaf {name}", dtype or f"litdata's dtype {code}")
    if shape is None:
        shape = (len(stored) // Field(name, (), dtype).sample_bytes,)
    if 0 in shape:
        raise not_fixed(path, f"leaf {name}", f"an empty array of shape {shape} in the first sample")
    return Field(name, shape, dtype)


def _refused(path: Path, name: str, kind: str) -> CorruptArtifact:
    return CorruptArtifact(
        f"leaf {name} does not describe an array of one shape",
        kind="fields-needed" if kind == "bytes" else "encoded-values",
        path=path,
        found=f"litdata's type {kind}",
        hint=HINTS.get(kind, f"decode it, and {FIXED}"),
    )


def _header(path: Path, name: str, order: str, stored: bytes) -> tuple[int, tuple[int, ...]]:
    dtype, axes = struct.unpack_from(f"{order}2I", stored.ljust(8, b"\xff"))
    if axes > MOST_AXES or len(stored) < 8 + 4 * axes:
        raise corrupt(path, f"dtype and shape of leaf {name} in the first sample", f"{axes} axes")
    return dtype, struct.unpack_from(f"{order}{axes}I", stored, 8)


def leaf_names(path: Path, spec: object) -> list[str]:
    """Return the name of each leaf, its keys joined by `/`, from the JSON description of a sample."""
    damage = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
    with expecting(path, "a description of samples", damage, kind="invalid-index"):
        _, tree = json.loads(spec if isinstance(spec, str) else "")
        names = _names(tree, ())
    if len(set(names)) != len(names) or not names:
        raise corrupt(path, "leaves of distinct names", ", ".join(names) or "none", kind="invalid-index")
    return names


def _names(tree: dict[str, Any], above: tuple[str, ...]) -> list[str]:
    kind, children = tree["type"], tree["children_spec"]
    if kind is None:
        return ["/".join(above) or "sample"]
    if kind == "builtins.dict":
        keys = [str(key) for key in json.loads(tree["context"])]
    elif kind in ("builtins.list", "builtins.tuple"):
        keys = [str(number) for number in range(len(children))]
    else:
        raise ValueError(f"samples of type {kind}, not dict, list or tuple")
    return [name for key, child in zip(keys, children, strict=True) for name in _names(child, (*above, key))]
