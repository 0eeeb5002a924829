"""A command as typer has it, that says which of its options count only once."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperOption


class Command(TyperCommand):
    """Says of an option that was given more than once that only the last counts, as is usual."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """What is left of the words; as usual."""
        *_, given = self.make_parser(ctx).parse_args(args=list(args))
        for option in dict.fromkeys(one for one in given if isinstance(one, TyperOption)):
            times = given.count(option)
            if times > 1 and not (option.multiple or option.is_flag or ctx.resilient_parsing):
                _say(option.opts[0], times)
        return super().parse_args(ctx, args)


def _say(option: str, times: int) -> None:
    from iobench.terminal import display

    display.note(
        f"{option} was given {times} times, of which only the last counts: where an option takes several "
        "values at once, separate them by commas"
    )
