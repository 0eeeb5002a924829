"""Findings: what iobench says of a run or in an answer, with the values behind the sentence."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Finding:
    """One fact: a verdict, a reason, a cost, a note about a run, or something that was skipped.

    Attributes
    ----------
    kind : str
        Short stable identifier, such as ``disk-space``.
    message : str
        The sentence, rendered once, without a full stop at its end.
    hint : str or None
        What to type or change.
    values : dict
        The numbers and names behind the sentence.
    """

    kind: str
    message: str
    hint: str | None = None
    values: dict[str, float | int | str] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """The message with its hint, in one line."""
        return f"{self.message}; {self.hint}" if self.hint else self.message

    def __str__(self) -> str:
        return self.sentence
