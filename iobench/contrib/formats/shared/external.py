"""Other projects: imports of their libraries, and checks of what their data declare."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from iobench.base.errors import CorruptArtifact, InvalidSettings
from iobench.base.text import reason
from iobench.formats import Array, Field, Index

FIXED = "pad the samples to one shape, or crop them to one"


def imported(library: str, hint: str, *modules: str) -> Any:
    """Import modules, and return their package; InvalidSettings if it is installed but cannot be imported."""
    try:
        for module in modules:
            import_module(module)
    except (ImportError, OSError) as error:
        problem = f"{library} cannot be imported: {reason(error)}"
        raise InvalidSettings(problem, "cannot-import", hint=hint) from error
    return import_module(modules[0].partition(".")[0])


def as_options(fields: Iterable[Field]) -> str:
    """Return the command-line options that select these fields."""
    return " ".join(f"--field {shlex.quote(field.typed)}" for field in fields)


def unequal_samples(
    path: Path, problem: str, expected: object, found: object, hint: str = FIXED
) -> CorruptArtifact:
    """Return the error for samples that differ in shape, size or dtype."""
    return CorruptArtifact(
        problem, kind="unequal-shapes", path=path, expected=expected, found=found, hint=hint
    )


def not_fixed(path: Path, name: str, found: str) -> CorruptArtifact:
    """Return the error for a field whose samples differ in shape or dtype."""
    return unequal_samples(path, f"{name}: the samples differ", "samples of one shape and dtype", found)


def first_true(wrong: Array) -> int | None:
    """Return the index of the first true entry; None if there is none."""
    return int(wrong.argmax()) if wrong.any() else None


def check_lengths(
    field: Field, lengths: Index, each: int, unit: str, path_of: Callable[[int], Path], first: int
) -> None:
    """Raise CorruptArtifact (``unequal-shapes``) unless each sample of a field has `each` units.

    Those of a ragged field have any multiple of them. `first` is the number of samples before these, and
    `path_of` returns the file of one of these.
    """
    differ = (lengths % each != 0) | (lengths < 0) if field.is_ragged else lengths != each
    if (row := first_true(differ)) is not None:
        raise unequal_samples(
            path_of(row),
            f"{field.name} of sample {first + row} has another length",
            f"{'a multiple of ' * field.is_ragged}{each} {unit} for {field.typed}",
            f"{lengths[row]} {unit}",
        )
