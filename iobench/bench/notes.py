"""Notes: remarks about how a run went, which are neither errors nor warnings about a figure."""

from __future__ import annotations

from dataclasses import dataclass, field

Value = float | int | str


@dataclass(frozen=True)
class Note:
    """A remark about a run, a host or a survey of limits.

    Attributes
    ----------
    kind : str
        Short stable identifier, such as ``skipped``.
    message : str
        One sentence without the remedy.
    hint : str or None
        What to type or change.
    values : dict
        The facts behind the sentence, by name.
    """

    kind: str
    message: str
    hint: str | None = None
    values: dict[str, Value] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message
