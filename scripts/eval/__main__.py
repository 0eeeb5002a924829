"""Run an experiment on iobench itself: ./scripts/eval/run NAME [OPTIONS]; NAME --help says what it proves."""

from __future__ import annotations

import argparse
import importlib
import sys

from eval import harness

NAMES = (
    *("diagnoses", "fidelity", "harness_floor", "hosts", "object_store", "partial_rounds"),
    *("recommendations", "stream_floor", "stream_soak", "stream_speed", "verdicts"),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/eval/run", description=__doc__)
    parser.add_argument("name", choices=NAMES)
    name = parser.parse_args(sys.argv[1:2]).name
    return harness.run(name, importlib.import_module(f"eval.{name}"), sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
