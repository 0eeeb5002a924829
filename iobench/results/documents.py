"""Answers that are kept beside the records of runs: a file of JSON each, which is checked when it is read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from iobench.base.errors import (
    RecordError,
)
from iobench.base.text import reason
from iobench.results import history
from iobench.results.record import check_levels, plain

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Documents(Generic[Answer]):
    """Answers of one kind, each a file in a data folder's results.

    `suffix` ends their names, `described` is what one is, in words, and `check` raises ValueError, TypeError
    or ArithmeticError where one lacks what its readers rely on beyond its declared types.
    """

    holds: type[Answer]
    suffix: str
    described: str
    check: Callable[[Answer], None]

    def save(self, body: Mapping[str, Any], name: str, time: str, data_dir: Path) -> Path:
        """Write an answer of that name and time (ISO 8601), whole or not at all, and return its file.

        RecordError where it cannot be written.
        """
        stamp = time[:19].replace(":", "").replace("-", "").replace("T", "-")
        path = data_dir / "results" / f"{name}-{stamp}{self.suffix}"
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                beside.write_text(json.dumps(plain(body), indent=2))
                os.replace(beside, path)
            finally:
                beside.unlink(missing_ok=True)
        except OSError as error:
            raise RecordError(f"{path} cannot be written: {error.strerror}") from error
        return path

    def past(self, data_dir: Path) -> tuple[list[Answer], list[str]]:
        """The answers in a data folder, the oldest first, and a sentence for each file that holds none.

        RecordError where the folder cannot be listed.
        """
        found, problems = [], []
        for path in history.files_of(data_dir, self.suffix):
            try:
                found.append(self._read(path))
            except (OSError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
                problems.append(f"{path}: not {self.described}: {reason(error)}")
        return found, problems

    def _read(self, path: Path) -> Answer:
        answer = msgspec.json.decode(path.read_bytes(), type=self.holds)
        body = msgspec.to_builtins(answer)
        check_levels(body)
        json.dumps(body, ensure_ascii=False).encode()  # half of a surrogate pair is no text
        self.check(answer)
        return answer
