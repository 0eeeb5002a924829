"""Run an experiment on iobench itself: ./scripts/eval/run NAME [OPTIONS]; NAME --help says what it proves."""

from __future__ import annotations

import argparse
import importlib
import sys

from eval import harness

NAMES = (
    *("any_size", "diagnoses", "fidelity", "fio_check", "harness_floor", "hosts", "isolation"),
    *("mounts", "object_store", "pairs"),
    *("partial_rounds", "placements", "recommendations", "situations", "stream_cold", "stream_floor"),
    *("stream_photos", "stream_speed", "stream_threads", "tunings", "verdicts", "write_speed"),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/eval/run", description=__doc__)
    parser.add_argument("name", choices=NAMES)
    name = parser.parse_args(sys.argv[1:2]).name
    return harness.run(name, importlib.import_module(f"eval.{name}"), sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
