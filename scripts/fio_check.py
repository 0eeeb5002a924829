"""Compare the disk limits that iobench measures with fio's. Takes about 80 seconds.

    .venv/bin/python scripts/fio_check.py [--data-dir data] [--name NAME] [--rounds 5]

Needs fio (Debian: apt install fio) and a prepared dataset. Both read its largest file in turns, past the page
cache. The table has medians in MB/s.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from stream_speed import fio

from iobench import find_dataset
from iobench.host import hardware_limits


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="the data folder")
    parser.add_argument("--name", help="the dataset; default: the only one")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each contender")
    options = parser.parse_args()
    manifest = find_dataset(options.data_dir, options.name)
    files = (file for variant in manifest.artifacts for file in manifest.files_of(variant))
    file = max(files, key=lambda path: path.stat().st_size)
    print(f"{file}: {file.stat().st_size / 2**20:,.0f} MiB")
    pairs = {
        "sequential": (
            lambda: hardware_limits.sequential_read(file, 1.0),
            [("1M", 8), ("1M", 32), ("4M", 32)],
            "read",
        ),
        "random 4 KiB": (
            lambda: hardware_limits.random_read(file, 4096, 1.0),
            [("4k", 32), ("4k", 128)],
            "randread",
        ),
        "random 148 KiB": (
            lambda: hardware_limits.random_read(file, 148 << 10, 1.0),
            [("148k", 32)],
            "randread",
        ),
    }
    print(f"{'':16} {'iobench':>12}  fio at block size, depth (MB/s)")
    for name, (limit, settings, kind) in pairs.items():
        rates: dict[str, list[float]] = {"iobench": []}
        for _ in range(options.rounds):
            rates["iobench"].append(limit().bytes_per_s)
            for size, depth in settings:
                rate = fio(file, kind, size, depth)
                rates.setdefault(f"{size}, {depth}", []).append(rate(0))
        medians = {way: statistics.median(values) / 1e6 for way, values in rates.items()}
        fio_rates = "   ".join(f"{way}: {rate:8,.0f}" for way, rate in medians.items() if way != "iobench")
        print(f"{name:16} {medians['iobench']:12,.0f}  {fio_rates}")


if __name__ == "__main__":
    main()
