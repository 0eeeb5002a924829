"""Store of results beside the records of runs: one JSON file each, checked when read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from iobench.base.errors import RecordError
from iobench.base.files import regular, replace_file, system_errors_as
from iobench.base.text import reason
from iobench.results import history
from iobench.results.record_json import check_levels, plain

Stored = TypeVar("Stored")


@dataclass(frozen=True)
class ResultStore(Generic[Stored]):
    """Results of one type, each a file in the results of a data folder."""

    type: type[Stored]  # the class of the results
    suffix: str  # end of the files' names
    description: str  # A result in words, such as ``a recommendation``
    check: Callable[[Stored], None]  # raises ValueError, TypeError or ArithmeticError for contents
    # that their types allow and their readers do not

    def save(self, result: Stored, name: str, time: str, data_dir: Path) -> Path:
        """Write a result of that name and time (ISO 8601) atomically, and return its file.

        RecordError where it cannot be written.
        """
        stamp = time[:19].replace(":", "").replace("-", "").replace("T", "-")
        path = data_dir / "results" / f"{name}-{stamp}{self.suffix}"
        with system_errors_as(RecordError, "cannot be written", path, kind="not-writable", exact=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, json.dumps(plain(result), indent=2).encode())
        return path

    def load(self, data_dir: Path) -> tuple[list[Stored], list[RecordError]]:
        """Return the results in a data folder, the oldest first, and an error for each unreadable file.

        RecordError where the folder cannot be listed.
        """
        results: list[Stored] = []
        problems: list[RecordError] = []
        for path in history.files_of(data_dir, self.suffix):
            try:
                results.append(self._read(path))
            except (OSError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
                problem = f"not {self.description}: {reason(error)}"
                problems.append(RecordError(problem, kind="not-a-result", path=path))
        return results, problems

    def _read(self, path: Path) -> Stored:
        result = msgspec.json.decode(regular(path).read_bytes(), type=self.type)
        body = msgspec.to_builtins(result)
        check_levels(body)
        json.dumps(body, ensure_ascii=False).encode()  # half of a surrogate pair is no text
        self.check(result)
        return result
