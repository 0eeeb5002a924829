"""The contract suite fails for formats that break it: each of these breaks one test."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent / "package"

BROKEN = '''
import pickle
from dataclasses import dataclass
import numpy as np
from iobench_rawbin import RawBin, RawBinReader
from iobench.base.errors import CorruptArtifact
from iobench.formats import Strided
from iobench.testing.formats import FormatContract


class Sorted(RawBinReader):
    def _read_rows(self, rows, out):
        super()._read_rows(np.sort(rows), out)


class Forgetful(RawBinReader):
    def _read_slice(self, start, stop, out):
        super()._read_slice(start, stop, {name: out[name] for name in list(out)[1:]})


class Partial(RawBinReader):
    def batch(self, rows):
        batch = super().batch(rows)
        batch.popitem()
        return batch

    def native(self, rows):
        return super().batch(rows)


class Converted(RawBinReader):
    def sample(self, row, convert=None):
        return {name: array.astype("float64") for name, array in super().sample(row).items()}


class Misplaced(RawBinReader):
    def placement(self):
        return {name: Strided(p.files, p.offset + 1, p.stride) for name, p in self._places.items()}


class Undead(RawBinReader):
    def close(self):
        pass


def made(reader):
    @dataclass(frozen=True)
    class Made(RawBin):
        def open(self, path, schema, random=False):
            return reader(schema, super().open(path, schema).placement())
    Made.__name__ = Made.__qualname__ = f"Made{reader.__name__}"
    globals()[Made.__name__] = Made
    return Made()


@dataclass(frozen=True)
class Trusting(RawBin):
    """Opens any file."""
    def open(self, path, schema, random=False):
        for file in path.iterdir():
            try:
                pickle.loads(file.read_bytes())
            except Exception:
                pass
        return super().open(path, schema)


@dataclass(frozen=True)
class Chatty(RawBin):
    def open(self, path, schema, random=False):
        try:
            return super().open(path, schema)
        except CorruptArtifact as error:
            raise error.changed(problem=f"{error.problem}\\na second line") from error


@dataclass(frozen=True)
class Deadly(RawBin):
    """Ends the process on damage."""
    def open(self, path, schema, random=False):
        try:
            return super().open(path, schema)
        except CorruptArtifact:
            import os
            os._exit(9)


@dataclass(frozen=True)
class Careless(RawBin):
    def size_bound(self, schema):
        return schema.logical_bytes // 2


READERS = (Sorted, Forgetful, Partial, Converted, Misplaced, Undead)
for fmt in (*map(made, READERS), Trusting(), Chatty(), Deadly(), Careless()):
    name = type(fmt).__name__.removeprefix("Made")
    globals()[f"Test{name}"] = type(f"Test{name}", (FormatContract,), {"format": fmt})
'''

FOUND_BY = {
    "Sorted": "test_indices_in_any_order_with_duplicates",
    "Forgetful": "test_out_is_overwritten_and_not_retained",
    "Partial": "test_indices_in_any_order_with_duplicates",
    "Converted": "test_sample_is_one_row_of_every_field",
    "Misplaced": "test_placement_locates_every_sample",
    "Undead": "test_a_closed_reader_raises",
    "Trusting": "test_another_pickle_in_the_folder_is_not_loaded",
    "Chatty": "test_a_missing_file_is_corrupt",
    "Deadly": "test_a_truncated_file_is_corrupt",
    "Careless": "test_size_bound_holds_for_random_data",
}


@pytest.fixture(scope="module")
def failed(tmp_path_factory):
    """The failed tests, by class."""
    folder = tmp_path_factory.mktemp("broken")
    (folder / "test_broken.py").write_text(BROKEN)
    path = os.pathsep.join([str(PACKAGE), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "no:cacheprovider", "--rootdir", folder]
    chosen = " or ".join(f"({name} and {test})" for name, test in FOUND_BY.items())
    done = subprocess.run(
        [*command, "-k", chosen, folder],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    return set(re.findall(r"FAILED .*::Test(\w+)::(\w+)", done.stdout)) or done.stdout + done.stderr


@pytest.mark.parametrize("name", FOUND_BY)
def test_a_broken_contract_is_detected(failed, name):
    assert (name, FOUND_BY[name]) in failed
