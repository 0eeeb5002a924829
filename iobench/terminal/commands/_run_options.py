"""Options of a run as options of a command: those of RunOptions, and of the default loaders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from iobench.bench.command_option import declared
from iobench.bench.options import RunOptions
from iobench.terminal.commands import _loader_options
from iobench.terminal.commands._declared_options import made_of, with_options

OPTIONS = {spec.parameter: spec for spec in declared(RunOptions)}
with_run_options = with_options(RunOptions, _loader_options.parameters)


def parse(typed: Mapping[str, Any]) -> RunOptions:
    """Parse the values of the generated options; InvalidSettings names the option."""
    others = {name: value for name, value in typed.items() if name not in OPTIONS}
    return made_of(RunOptions, typed, loader_options=_loader_options.parse(others))
