"""A typer command that reports options given more than once."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperOption


class Command(TyperCommand):
    """A command that notes, for an option given more than once, that only the last value counts."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as typer does, after a note for each repeated option."""
        *_, given = self.make_parser(ctx).parse_args(args=list(args))
        for option in dict.fromkeys(one for one in given if isinstance(one, TyperOption)):
            times = given.count(option)
            if times > 1 and not (option.multiple or option.is_flag or ctx.resilient_parsing):
                _note_repeated(option.opts[0], times)
        return super().parse_args(ctx, args)


def _note_repeated(option: str, times: int) -> None:
    from iobench.terminal import display

    display.note(
        f"{option} was given {times} times; only the last one counts. An option that takes a list takes it "
        "with commas"
    )
