"""Compare the write speed of `iobench prepare` with `dd conv=fsync` of as many bytes on the same disk.

    .venv/bin/python scripts/write_speed.py [--size 2e8] [--rounds 5] [--data-dir data]

Writes and deletes 50 times 800 MB by default, which takes 5 to 30 minutes. Prepare and dd take turns. Prints
medians in MiB/s, the ratio to dd, and the time of writing and reading back.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import time
from pathlib import Path

from iobench import Synthetic, prepare

VARIANTS = ("npy", "memmap", "hdf5:chunk_bytes=0", "hdf5", "lmdb")
MIB = 2**20


def dd_rate(folder: Path, count: int) -> float:
    """Return the MiB/s of dd writing and syncing `count` bytes of zeros."""
    target = folder / "dd.tmp"
    command = ["dd", "if=/dev/zero", f"of={target}", "bs=8M", f"count={count}", "iflag=count_bytes"]
    started = time.perf_counter()
    subprocess.run([*command, "conv=fsync", "status=none"], check=True)
    elapsed = time.perf_counter() - started
    target.unlink()
    return count / elapsed / MIB


def main() -> None:
    """Measure in turns and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=float, default=2e8, help="float32 elements")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each contender")
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="the data folder")
    options = parser.parse_args()
    source = Synthetic(int(options.size))
    folder = options.data_dir / "write-speed"
    folder.mkdir(parents=True)
    rates: dict[str, list[float]] = {name: [] for name in ("dd", *VARIANTS)}
    totals: dict[str, list[float]] = {name: [] for name in VARIANTS}
    try:
        for _ in range(options.rounds):
            for variant in VARIANTS:
                rates["dd"].append(dd_rate(folder, source.schema.logical_bytes))
                _, rows = prepare(source, [variant], data_dir=folder, name="d", overwrite=True)
                artifact = rows[0].artifact
                rates[variant].append(source.schema.logical_bytes / artifact.write_s / MIB)
                totals[variant].append(artifact.write_s + artifact.verify_s)
                shutil.rmtree(folder / "d")
    finally:
        shutil.rmtree(folder)
    base = statistics.median(rates["dd"])
    print(f"{'dd conv=fsync':22} {base:7.0f} MiB/s")
    for variant in VARIANTS:
        rate = statistics.median(rates[variant])
        total = statistics.median(totals[variant])
        print(f"{variant:22} {rate:7.0f} MiB/s  {rate / base:5.2f} of dd  {total:6.2f} s with read-back")


if __name__ == "__main__":
    main()
