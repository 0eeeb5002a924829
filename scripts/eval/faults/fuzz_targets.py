"""Targets of fuzzing: valid files of every format and kind of sample, and functions that read them."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import iobench
from eval.faults.children import DONE, run_forked
from eval.faults.kinds.record_mutations import recorded_run
from eval.faults.reading import READERS, assert_right
from eval.faults.targets import VerifiedDatasets, accepts, arrays, installed_formats, variants
from iobench import Manifest, Source, formats
from iobench.base.errors import IobenchError
from iobench.bench.plans import interrupted_run
from iobench.dataset import sandbox_worker
from iobench.dataset.opener import Opener
from iobench.dataset.remote_dataset import check_target, open_dataset, publish
from iobench.dataset.sources import checked, open_source
from iobench.dataset.staging import SEAL
from iobench.dataset.verify import read_back
from iobench.formats import Batch, Detectable, Field, Ragged

SAMPLES, ROWS = 8, 16  # of a valid file, small so that most changes are of heads and indexes; rows read
Files = dict[str, bytes]  # content by path below a folder


@dataclass
class Target:
    """Valid files, what reads a folder with them, and what fuzzing has reached and found."""

    name: str
    seeds: list[Files]
    read: Callable[[Path], object]
    times: dict[str, int] = field(default_factory=dict)  # of change, where a manifest has them
    sandboxed: bool = False  # where iobench reads such files: errors and crashes of libraries are contained
    inputs: int = 0
    lines: set[tuple[str, int]] = field(default_factory=set)
    findings: set[str] = field(default_factory=set)


def read_files(folder: Path) -> Files:
    """Return the files below a folder, which have names without its own."""
    return {
        str(one.relative_to(folder)): one.read_bytes() for one in sorted(folder.rglob("*")) if one.is_file()
    }


def targets(folder: Path, chosen: Callable[[str], bool]) -> Iterator[Target]:
    """Yield a target for each format and kind of samples, each file that is converted, and our own files."""
    sources = dict(_sources(folder))
    for label, source in sources.items():
        names = variants() if label == "vectors" else installed_formats()
        names = [one for one in names if "lzf" not in one]  # of a damaged chunk it returns any memory
        for variant in [one for one in names if accepts(one, source.schema) and chosen(f"{one} {label}")]:
            root = folder / f"{variant} {label}"
            call = partial(iobench.prepare, source, [variant], data_dir=root, name="d")
            if run_forked(lambda call=call: call() and None).code == DONE:
                yield from _of_format(variant, label, Manifest.load(root / "d"))
    yield from _of_files(folder)
    stored = [one for one in installed_formats() if chosen(f"stored {one}")]
    data = VerifiedDatasets(folder / "stored", stored, SAMPLES)
    for variant in stored:
        root = data.copy(variant, folder / f"stored {variant}" / "d")
        times = {str(one.relative_to(root.parent)): one.stat().st_mtime_ns for one in root.rglob("*")}
        yield Target(f"stored {variant}", [read_files(root.parent)], partial(read_stored, variant), times)
    if chosen("remote") and run_forked(partial(_publish, folder / "remote", sources["vectors"])).code == DONE:
        yield Target("remote", [read_files(folder / "remote" / "served")], read_remote)
    if chosen("records"):
        results, _ = recorded_run(folder / "records")
        yield Target("records", [{"run.jsonl": (results / "good.jsonl").read_bytes()}], read_records)


def _sources(folder: Path) -> Iterator[tuple[str, Source]]:
    """Write files that `prepare` reads, and yield them as sources by the kind of their samples."""
    from PIL import Image

    for label, variant in {"vectors": "npy", "images": "images", "tokens": "tokens"}.items():
        some = arrays(variant, SAMPLES * (8 if label == "tokens" else 1))  # several windows of the default
        np.savez(folder / f"{label}.npz", **some)  # type: ignore[arg-type]
        yield label, open_source(folder / f"{label}.npz")
    rng = np.random.default_rng(0)
    for number in range(4):
        path = folder / "photos" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (9 + number, 8, 3), np.uint8)).save(
            path, progressive=number == 3
        )
    yield "photos", open_source(folder / "photos", (-1, -1, 3))
    lines = [{"x": list(range(number)), "y": number, "z": [0.5, 1]} for number in range(SAMPLES)]
    (folder / "documents.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    yield "documents", open_source(folder / "documents.jsonl")


def _of_format(variant: str, label: str, manifest: Manifest) -> Iterator[Target]:
    """Yield the artifact as if another program had written it, if it can be added."""
    form, root = formats.parse(variant), manifest.path_of(variant)
    (root / SEAL).unlink()
    paths = [root, *sorted(root.rglob("*"))] if isinstance(form, Detectable) else []
    whole = Field("whole", (manifest.schema.sample_bytes,), "uint8")
    for path in [one for one in paths if form.sniff(one)] or paths:
        for fields in ((), manifest.schema.fields, (whole,)):
            read = partial(read_format, form, fields, str(path.relative_to(root)))
            if run_forked(partial(read, root)).code == DONE:
                yield Target(f"{variant} {label}", [read_files(root)], read, sandboxed=True)
                return


def _of_files(folder: Path) -> Iterator[Target]:
    """Yield files that are only converted."""
    import scipy.io
    import torch

    some = arrays("npy", SAMPLES)
    made = folder / "files"
    (made / "parts").mkdir(parents=True)
    np.save(made / "x.npy", some["x"])
    np.savez(made / "x.npz", **some)  # type: ignore[arg-type]
    np.savez_compressed(made / "packed.npz", **some)  # type: ignore[arg-type]
    torch.save({name: torch.from_numpy(array) for name, array in some.items()}, made / "x.pt")
    scipy.io.savemat(made / "x.mat", {"x": some["x"]})
    with scipy.io.netcdf_file(made / "x.nc", "w") as file:
        file.createDimension("n", SAMPLES)
        file.createVariable("y", "i4", ("n",))[:] = np.arange(SAMPLES)
    (made / "x.csv").write_text("a,b\n" + "".join(f"{number},{number / 3}\n" for number in range(SAMPLES)))
    shutil.copy(folder / "documents.jsonl", made / "x.jsonl")
    for number in range(2):
        np.save(made / "parts" / f"{number}.npy", some["x"])
    shutil.copytree(folder / "photos", made / "photos")
    kinds = {"x.pt": "torch", "x.mat": "mat", "x.nc": "netcdf", "x.csv": "csv", "x.jsonl": "jsonl"}
    kinds |= {"x.npz": "npz", "packed.npz": "npz"}
    for path in sorted(made.iterdir()):
        content = read_files(path) if path.is_dir() else {path.name: path.read_bytes()}
        if path.name in kinds:
            module, name = sandbox_worker.ADAPTERS[kinds[path.name]]
            form = getattr(importlib.import_module(f"iobench.dataset.sources.{module}"), name)()
            read = partial(read_format, form, (), path.name)
        else:
            read = partial(read_source, "" if path.is_dir() else path.name)
        yield Target(f"source {path.name}", [content], read, sandboxed=path.name in kinds)


def read_source(name: str, folder: Path) -> None:
    """Read a file or folder as `prepare --source` does in its own process."""
    for _ in itertools.islice(checked(open_source(folder / name, None if name else (8, 8))), ROWS):
        pass


def read_format(form: Any, fields: tuple[Field, ...], name: str, folder: Path) -> None:
    """Read data as the sandbox does, in order, by single rows, and at the places that the reader gives."""
    path = folder / name
    getattr(form, "sniff", bool)(path)
    schema = form.infer_schema(path, fields)
    form.notes(path, schema)
    count = min(ROWS, schema.samples)
    if not isinstance(form, formats.Format):
        for _ in form.batches(path, schema):
            pass
        return
    opener = Opener(form, path, schema)
    opener.check()
    in_order: Batch = next(iter(read_back(opener, count)))
    with replace(opener, random=True)() as reader:
        backwards = reader.batch(np.arange(count)[::-1].copy())
        places = reader.placement()
        for field in schema.fields:
            rows = [_bytes_of(in_order[field.name], row) for row in range(count)]
            assert rows == [_bytes_of(backwards[field.name], row) for row in range(count)][::-1], (
                "another order"
            )
            if field.name in places and field.dtype != "bool":  # odd bools are refused, as content
                file, offset = places[field.name].locate(np.arange(count))
                for row, expected in enumerate(rows):
                    with open(places[field.name].files[int(file[row])], "rb") as opened:
                        opened.seek(int(offset[row]))
                        assert opened.read(len(expected)) == expected, "other bytes at the place"


def _bytes_of(array: Any, row: int) -> bytes:
    part = (
        array.values[array.offsets[row] : array.offsets[row + 1]] if isinstance(array, Ragged) else array[row]
    )
    return bytes(np.ascontiguousarray(part).tobytes())


def read_stored(variant: str, folder: Path) -> None:
    """Verify what iobench wrote, which must then be right, and stream it."""
    root = folder / "d"
    with contextlib.suppress(IobenchError):
        READERS["verify"](root, variant)
        assert_right(root, variant)
    READERS["StreamLoader"](root, variant)


def _publish(folder: Path, source: Source) -> None:
    """Upload a dataset to a folder, without the versions of its objects."""
    manifest = iobench.prepare(source, ["npy", "lmdb"], data_dir=folder / "local", name="d")[0]
    publish(manifest, check_target(f"file://{folder}/served", False), overwrite=False)
    listing = folder / "served" / "manifest.json"
    body = json.loads(listing.read_text())
    for artifact in body["artifacts"].values():
        artifact["remote"]["etags"] = dict.fromkeys(artifact["remote"]["etags"], "")
    listing.write_text(json.dumps(body))


def read_remote(folder: Path) -> None:
    """Read the manifest, the placements and some rows of a dataset in an object store."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as cache:
        manifest = open_dataset(f"file://{folder}", Path(cache))
        for variant in manifest.artifacts:
            with manifest.opener(variant)() as reader:
                reader.batch(slice(0, min(ROWS, manifest.schema.samples)))


def read_records(folder: Path) -> None:
    """Read records and their plan, as `--resume` does."""
    interrupted_run(folder / "run.jsonl")
