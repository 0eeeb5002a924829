"""`iobench.recommend` with a result for notebooks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from iobench.notebook.notebook_result import NotebookResult, with_result_type
from iobench.recommendation import recommend as recommending
from iobench.recommendation.result import Recommendation
from iobench.results.columns import Columns

if TYPE_CHECKING:
    from iobench.report.figure import Figure


@dataclass(frozen=True)
class NotebookRecommendation(NotebookResult, Recommendation):
    """A recommendation, with a display in a notebook; a row of its data is a finalist."""

    def _columns(self) -> Columns:
        return self.columns

    def _sentences(self) -> list[str]:
        statements = (f"{one.sentence}." for one in (*self.findings, *self.alternatives))
        return [*statements, *(f"Warning: {one.sentence}." for one in self.warnings)]

    def _code(self) -> str:
        return "\n\n".join(part for part in (self.prepare, self.code) if part)

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {
                **{name: value for name, value in asdict(one).items() if not isinstance(value, dict)},
                "roles": ", ".join(one.roles),
                "samples_per_s": one.samples_per_s.median,
                "samples_per_s low": one.samples_per_s.low,
                "samples_per_s high": one.samples_per_s.high,
                "relative to default": one.against_default.ratio.median if one.against_default else None,
                "use": one.key == self.use.key,
            }
            for one in self.finalists
        ]

    def _figures(self) -> list[Figure]:
        from iobench.report import recommendations

        return recommendations.figures(self)


recommend = with_result_type(NotebookRecommendation, recommending.recommend)
