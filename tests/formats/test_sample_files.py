"""Files written in threads: all of them, also if Ctrl-C comes meanwhile."""

import os
import signal
from pathlib import Path

import pytest

from iobench.contrib.formats.shared.sample_files import WRITTEN, file_writers


def test_ctrl_c_acts_when_the_next_files_are_written():
    written = []

    def write(file, sample):
        if sample == 0:
            os.kill(os.getpid(), signal.SIGINT)
        written.append((file, sample))

    files = [Path(str(number)) for number in range(2 * WRITTEN)]
    with pytest.raises(KeyboardInterrupt), file_writers() as write_all:
        write_all(write, files, range(2 * WRITTEN))
    assert sorted(written) == sorted(zip(files[:WRITTEN], range(WRITTEN), strict=True))


def test_an_error_of_a_writer_is_raised():
    def write(file, sample):
        raise OSError(28, "No space left on device", str(file))

    with pytest.raises(OSError, match="No space"), file_writers() as write_all:
        write_all(write, [Path("a")], [1])
